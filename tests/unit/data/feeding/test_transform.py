"""Each augmentation against its definition, validation against Pillow's and OpenCV's resizing, colours as DALI."""

import io
import math
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from made_pictures import busy, mean_difference, save, smooth
from small_loaders import make_config
from trainstone.data.feeding.crops import Crop
from trainstone.data.feeding.draws import make_key
from trainstone.data.feeding.transform import PLAIN, Colours, Transform, View, change_colours, find_part, scale_edges
from trainstone.data.picture.decode import Region, Scratch, decode, decode_upper, look_sized
from trainstone.data.sample import Box
from trainstone.errors import ConfigError

SIZE = 64
SHAPES = [(500, 375), (300, 300), (7, 9), (73, 73), (3, 2_000), (2_000, 3), (641, 97)]
EXACT, FAST = {"decode": "exact", "shrink": False}, {"decode": "fast", "shrink": True}


def make(train: bool = True, size: int = SIZE, **keys: Any) -> Transform:
    return Transform(make_config(size, **{**EXACT, **keys}), train=train)


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
    for loader in (EXACT, FAST):
        for key in range(2):
            out = show(make(crop=crop, resize=resize, **loader), data, make_key(key))
            assert out.std() < 110
            assert not (out == 99).all()


@pytest.mark.parametrize(
    ("loader", "train", "expected"),
    [
        (FAST, True, (True, True)),
        (FAST, False, (False, False)),
        ({"decode": "exact", "shrink": True}, True, (False, True)),
        ({"decode": "fast", "shrink": False}, True, (True, False)),
        ({**FAST, "cache": "pixels"}, True, (False, False)),
        ({**FAST, "cache": "files"}, True, (True, True)),
    ],
)
def test_shortcuts_are_for_training_without_kept_pixels(loader: Any, train: bool, expected: tuple[bool, bool]):
    transform = make(train, **loader)
    assert (transform.fast, transform.may_shrink) == expected


def test_the_shorter_side_grows_with_the_picture():
    assert [make(size=size).shorter for size in (32, 160, 224, 288)] == [36, 182, 256, 329]
    assert make(val_shorter=64).shorter == 64
    with pytest.raises(ConfigError, match=r"augment\.val_shorter = 63"):
        make(val_shorter=63)


COLOURS = {"saturation": (0.5, 1.5), "hue_degrees": (-0.5, 0.5), "contrast": (0.5, 1.5), "brightness": (0.875, 1.125)}


def saturate(values: np.ndarray) -> np.ndarray:
    return np.rint(values).clip(0, 255)


def turn_hue(pixels: np.ndarray, saturation: float, degrees: float) -> np.ndarray:
    """Hsv, colour by colour: to YIQ, turned and stretched, and back."""
    red, green, blue = (pixels[..., channel].astype(np.float64) for channel in range(3))
    y = 0.299 * red + 0.587 * green + 0.114 * blue
    i = 0.596 * red - 0.274 * green - 0.321 * blue
    q = 0.211 * red - 0.523 * green + 0.311 * blue
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    i, q = saturation * (cos * i + sin * q), saturation * (cos * q - sin * i)
    return saturate(np.stack([y + 0.956 * i + 0.621 * q, y - 0.272 * i - 0.647 * q, y - 1.107 * i + 1.705 * q], axis=2))


@pytest.mark.parametrize(
    "numbers", [PLAIN, (0, 0, 1, 1), (1.5, -0.5, 1, 1), (1, 90, 1, 1), (1, 0, 0.5, 1.125), (1.4, 0.3, 1.3, 0.9)]
)
def test_pixels_are_dalis(numbers: tuple[float, ...]):
    pixels, colours = busy(97, 61), Colours(*map(float, numbers))
    expected = pixels.astype(np.float64)
    if colours[:2] != PLAIN[:2]:
        expected = turn_hue(pixels, colours.saturation, colours.hue_degrees)
    expected = saturate(colours.brightness * (128 + colours.contrast * (expected - 128)))
    batch = np.zeros((2, 61, 97, 3), np.uint8)
    batch[1] = pixels
    change_colours(batch[1], colours)
    # OpenCV counts in fixed point: a level, which the contrast may stretch.
    assert np.abs(batch[1] - expected).max() <= math.ceil(max(1.0, colours.contrast * colours.brightness))
    assert (batch[1] == expected).mean() > 0.9
    assert not batch[0].any()
    assert (batch[1] == pixels).all() == (colours == PLAIN)


def test_draws_are_spread_over_their_ranges_and_hang_on_the_key():
    data = save(smooth(40, 40))
    drawn = np.array([choose(make(**COLOURS), data, key).colours for key in range(3000)])
    for column, (low, high) in enumerate(COLOURS.values()):
        assert low <= drawn[:, column].min() < low + 0.02 * (high - low)
        assert high - 0.02 * (high - low) < drawn[:, column].max() <= high
        assert drawn[:, column].mean() == pytest.approx((low + high) / 2, abs=0.03 * (high - low))
    assert np.abs(np.corrcoef(drawn.T) - np.eye(4)).max() < 0.08
    assert choose(make(**COLOURS, crop="centre"), data, 7).colours == tuple(drawn[7])
    assert choose(make(), data, 7).colours is None
    assert all(choose(make(**{name: (0.5, 0.9)}), data, 7).colours for name in COLOURS)
