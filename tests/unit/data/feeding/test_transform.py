"""Each augmentation against its definition, and validation against Pillow's and OpenCV's own resizing."""

import io
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from made_pictures import busy, mean_difference, save, smooth
from trainstone.config.schema import AugmentConfig, LoaderConfig
from trainstone.data.feeding.crops import Crop
from trainstone.data.feeding.draws import make_key
from trainstone.data.feeding.transform import Transform, View, find_part, make_transform, scale_edges
from trainstone.data.picture.decode import Region, Scratch, decode, decode_upper, look_sized
from trainstone.data.sample import Box
from trainstone.errors import ConfigError

SIZE = 64
SHAPES = [(500, 375), (300, 300), (7, 9), (73, 73), (3, 2_000), (2_000, 3), (641, 97)]
EXACT = LoaderConfig(decode="exact", shrink=False)


def make(train: bool = True, loader: LoaderConfig = EXACT, size: int = SIZE, **augment: Any) -> Transform:
    return make_transform(AugmentConfig(**augment), loader, size, train=train)


def show(transform: Transform, data: bytes, key: int = 0, boxes: tuple[Box, ...] = ()) -> np.ndarray:
    """What a batch holds of a stored picture."""
    seen = look_sized(data)
    view = transform.choose(seen, boxes, key)
    rows = transform.rows_needed(view, seen)
    region = decode_upper(data, rows, Scratch(), fast=transform.fast, shrink=view.shrink, seen=seen)
    out = np.full((transform.size, transform.size, 3), 99, np.uint8)
    transform.write(region, view, out)
    return out


def choose(transform: Transform, data: bytes, key: int) -> View:
    return transform.choose(look_sized(data), (), key)


def by_library(data: bytes, size: int, shorter: int, resize: str = "antialias") -> np.ndarray:
    """Validation as torchvision and the originals define it: shorter side, longer one truncated, centre."""
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) if resize == "antialias" else decode(data)
    height, width = pixels.shape[:2]
    scaled = (shorter, int(height * shorter / width)) if width < height else (int(width * shorter / height), shorter)
    if resize == "antialias":
        whole = np.asarray(Image.fromarray(pixels).resize(scaled, Image.Resampling.BILINEAR))
    else:
        whole = cv2.resize(pixels, scaled, interpolation=cv2.INTER_LINEAR)
    left, top = (scaled[0] - size) // 2, (scaled[1] - size) // 2
    return whole[top : top + size, left : left + size]


@pytest.mark.parametrize(("width", "height"), SHAPES)
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_validation_is_pillows_resize_and_centre(width: int, height: int, kind: str):
    data = save(busy(width, height), kind)
    assert mean_difference(show(make(train=False), data), by_library(data, SIZE, 73)) < 1


@pytest.mark.parametrize(("width", "height"), SHAPES)
def test_validation_by_four_pixels_is_opencvs_resize_and_centre(width: int, height: int):
    data = save(busy(width, height))
    expected = by_library(data, SIZE, 73, "bilinear")
    assert np.array_equal(show(make(train=False, val_resize="bilinear"), data), expected)
    assert np.array_equal(show(make(crop="centre", flip=0.0), data, 3), expected)


def test_only_the_rows_of_the_middle_are_decoded_and_they_are_enough():
    data = save(busy(100, 600))
    transform = make(train=False)
    seen = look_sized(data)
    view = transform.choose(seen, (), 0)
    rows = transform.rows_needed(view, seen)
    assert rows < 360
    whole, out = Region(decode(data)), np.empty((SIZE, SIZE, 3), np.uint8)
    transform.write(whole, view, out)
    assert np.array_equal(show(transform, data), out)
    transform.write(Region(whole.pixels[:rows]), view, out)
    assert np.array_equal(show(transform, data), out)


@pytest.mark.parametrize("crop", ["area", "boxes", "whole"])
@pytest.mark.parametrize("resize", ["bilinear", "antialias"])
def test_a_random_crop_is_cut_out_then_resized(crop: str, resize: str):
    data = save(busy(200, 150))
    pixels = decode(data)
    transform = make(crop=crop, resize=resize, flip=0.0)
    for key in range(30):
        part = choose(transform, data, key).part
        assert isinstance(part, Crop)
        inside = np.ascontiguousarray(pixels[part.top : part.bottom, part.left : part.right])
        if resize == "bilinear":
            expected = cv2.resize(inside, (SIZE, SIZE), interpolation=cv2.INTER_LINEAR)
        else:
            expected = np.asarray(Image.fromarray(inside).resize((SIZE, SIZE), Image.Resampling.BILINEAR))
        assert np.array_equal(show(transform, data, key), expected)


@pytest.mark.parametrize("crop", ["area", "boxes", "centre", "whole"])
@pytest.mark.parametrize("resize", ["bilinear", "antialias"])
def test_mirrored_pictures_are_exact_mirrors(crop: str, resize: str):
    data = save(busy(120, 90))
    for key in range(5):
        plain, mirrored = (show(make(crop=crop, resize=resize, flip=flip), data, key) for flip in (0.0, 1.0))
        assert np.array_equal(mirrored, plain[:, ::-1])
        assert not np.array_equal(mirrored, plain)


def test_mirroring_says_nothing_about_the_crop():
    data, transform = save(smooth(400, 300)), make()
    views = [choose(transform, data, make_key(7, key)) for key in range(3_000)]
    flips = np.array([view.flip for view in views])
    for edge in zip(*(view.part for view in views), strict=True):
        assert abs(np.corrcoef(flips, np.array(edge))[0, 1]) < 0.06


def cut(region: Region, crop: Crop) -> np.ndarray:
    left, top, right, bottom = scale_edges(crop, region.shrink)
    return region.pixels[top:bottom, left:right]


def test_edges_of_a_crop_go_to_the_nearest_pixel_of_a_shrunk_one():
    pixels = np.arange(10 * 8 * 3, dtype=np.uint8).reshape(10, 8, 3)
    assert np.array_equal(cut(Region(pixels), Crop(1, 2, 3, 4)), pixels[2:6, 1:4])
    assert np.array_equal(cut(Region(pixels, 4), Crop(5, 7, 20, 26)), pixels[2:8, 1:6])
    assert cut(Region(pixels, 4), Crop(0, 0, 31, 39)).shape == (10, 8, 3)


@pytest.mark.parametrize("shrink", [1, 2, 4, 8])
def test_the_part_is_that_of_the_pixels_really_cut(shrink: int):
    """A smaller picture whose pixels say where they come from."""
    region = Region(np.indices((100, 90)).transpose(1, 2, 0).astype(np.uint8), shrink)
    crop = Crop(3 * shrink + 1, 5 * shrink - 1, 40 * shrink + 1, 30 * shrink + 1)
    pixels, part = cut(region, crop), find_part(region, View(crop, flip=False))
    (top, left), (bottom, right) = pixels[0, 0].tolist(), pixels[-1, -1].tolist()
    assert (part.left, part.top) == (left * shrink, top * shrink)
    assert (part.right, part.bottom) == ((right + 1) * shrink, (bottom + 1) * shrink)


@pytest.mark.parametrize(("width", "height"), SHAPES)
@pytest.mark.parametrize("crop", ["area", "boxes", "centre", "whole"])
@pytest.mark.parametrize("resize", ["bilinear", "antialias"])
def test_every_shape_of_picture_can_be_trained_on(width: int, height: int, crop: str, resize: str):
    data = save(smooth(width, height))
    for loader in (EXACT, LoaderConfig()):
        for key in range(2):
            out = show(make(crop=crop, resize=resize, loader=loader), data, make_key(key))
            assert out.std() < 110
            assert not (out == 99).all()


@pytest.mark.parametrize(
    ("loader", "train", "expected"),
    [
        (LoaderConfig(), True, (True, True)),
        (LoaderConfig(), False, (False, False)),
        (LoaderConfig(decode="exact"), True, (False, True)),
        (LoaderConfig(shrink=False), True, (True, False)),
        (LoaderConfig(cache="pixels"), True, (False, False)),
        (LoaderConfig(cache="files"), True, (True, True)),
    ],
)
def test_shortcuts_are_for_training_without_kept_pixels(loader: LoaderConfig, train: bool, expected: tuple[bool, bool]):
    transform = make(train, loader)
    assert (transform.fast, transform.may_shrink) == expected


def test_the_shorter_side_grows_with_the_picture():
    assert [make(size=size).shorter for size in (32, 160, 224, 288)] == [36, 182, 256, 329]
    assert make(val_shorter=64).shorter == 64
    with pytest.raises(ConfigError, match=r"augment\.val_shorter = 63"):
        make(val_shorter=63)
