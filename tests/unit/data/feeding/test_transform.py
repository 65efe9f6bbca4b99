"""Each augmentation against its definition, and validation against Pillow's and OpenCV's own resizing."""

import io
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from damage import real_data
from made_pictures import busy, mean_difference, save, smooth
from trainstone.config.pictures import AugmentConfig, LoaderConfig
from trainstone.data.feeding.crops import Crop, Window
from trainstone.data.feeding.draws import make_key
from trainstone.data.feeding.transform import Transform, View, cut, describe_transform, make_transform
from trainstone.data.generated.source import GeneratedSource
from trainstone.data.picture.decode import decode, look_sized
from trainstone.data.picture.region import Region, Scratch, decode_upper
from trainstone.data.sample import Box
from trainstone.errors import ConfigError

SIZE = 64
SHAPES = [(500, 375), (375, 500), (300, 300), (20, 14), (7, 9), (64, 64), (73, 73), (3, 2_000), (2_000, 3), (641, 97)]
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


def by_pillow(data: bytes, size: int, shorter: int) -> np.ndarray:
    """Validation as torchvision and the originals define it: shorter side, longer one truncated, centre."""
    with Image.open(io.BytesIO(data)) as picture:
        width, height = picture.size
        scaled = (
            (shorter, int(height * shorter / width)) if width < height else (int(width * shorter / height), shorter)
        )
        whole = picture.convert("RGB").resize(scaled, Image.Resampling.BILINEAR)
    left, top = (scaled[0] - size) // 2, (scaled[1] - size) // 2
    return np.asarray(whole.crop((left, top, left + size, top + size)))


def by_opencv(data: bytes, size: int, shorter: int) -> np.ndarray:
    pixels = decode(data)
    height, width = pixels.shape[:2]
    scaled = (shorter, int(height * shorter / width)) if width < height else (int(width * shorter / height), shorter)
    whole = cv2.resize(pixels, scaled, interpolation=cv2.INTER_LINEAR)
    left, top = (scaled[0] - size) // 2, (scaled[1] - size) // 2
    return whole[top : top + size, left : left + size]


@pytest.mark.parametrize(("width", "height"), SHAPES)
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_validation_is_pillows_resize_and_centre(width: int, height: int, kind: str):
    data = save(busy(width, height), kind)
    assert mean_difference(show(make(train=False), data), by_pillow(data, SIZE, 73)) < 1


@pytest.mark.parametrize(("width", "height"), SHAPES)
def test_validation_by_four_pixels_is_opencvs_resize_and_centre(width: int, height: int):
    data = save(busy(width, height))
    assert np.array_equal(show(make(train=False, val_resize="bilinear"), data), by_opencv(data, SIZE, 73))


def test_validation_of_the_usual_size():
    data = save(busy(500, 333), quality=95)
    transform = make(train=False, size=224)
    assert transform.shorter == 256
    assert mean_difference(show(transform, data), by_pillow(data, 224, 256)) < 1
    assert mean_difference(show(transform, data), by_opencv(data, 224, 256)) > 0.5  # another filter


@pytest.mark.parametrize("val_shorter", [64, 65, 100, 300])
def test_the_shorter_side_can_be_told(val_shorter: int):
    data = save(busy(201, 150))
    transform = make(train=False, val_shorter=val_shorter)
    assert mean_difference(show(transform, data), by_pillow(data, SIZE, val_shorter)) < 1


def test_generated_pictures_in_validation():
    source = GeneratedSource("classify", "val", 4, 96, 80, 4)
    for number in range(4):
        data = source.read(number).image
        assert mean_difference(show(make(train=False), data), by_pillow(data, SIZE, 73)) < 1
        bilinear = show(make(train=False, val_resize="bilinear"), data)
        assert np.array_equal(bilinear, by_opencv(data, SIZE, 73))


def find_photos() -> list[Path]:
    folders = real_data("classification/tiny-imagenet-20"), real_data("detection"), real_data("jpeg-edge-cases")
    photos = [path for folder in folders for path in sorted(folder.rglob("*.[jJ][pP]*[gG]"))[:12]]
    return [path for path in photos if not path.name.startswith(("corrupt", "bad", "cmyk"))]


def test_real_photos_in_validation():
    photos = find_photos()
    assert len(photos) > 10
    for path in photos:
        data = path.read_bytes()
        assert mean_difference(show(make(train=False, size=224), data), by_pillow(data, 224, 256)) < 1, path
        bilinear = make(train=False, size=224, val_resize="bilinear")
        assert mean_difference(show(bilinear, data), by_opencv(data, 224, 256)) == 0, path


def test_validation_ignores_the_key():
    data = save(busy(90, 70))
    transform = make(train=False, flip=1.0)
    assert np.array_equal(show(transform, data, 1), show(transform, data, 2))


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


@pytest.mark.parametrize("crop", ["area", "boxes"])
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


@pytest.mark.parametrize("resize", ["bilinear", "antialias"])
def test_the_whole_picture_loses_its_aspect(resize: str):
    pixels = busy(200, 90)
    out = show(make(crop="whole", resize=resize, flip=0.0), save(pixels, "PNG"), 5)
    if resize == "bilinear":
        assert np.array_equal(out, cv2.resize(pixels, (SIZE, SIZE)))
    else:
        assert np.array_equal(out, np.asarray(Image.fromarray(pixels).resize((SIZE, SIZE), Image.Resampling.BILINEAR)))


@pytest.mark.parametrize("resize", ["bilinear", "antialias"])
def test_training_on_the_centre_is_validations_centre(resize: str):
    data = save(busy(200, 90))
    train = make(crop="centre", resize=resize, flip=0.0)
    assert np.array_equal(show(train, data, 3), show(make(train=False, val_resize=resize), data))


@pytest.mark.parametrize("crop", ["area", "boxes", "centre", "whole"])
@pytest.mark.parametrize("resize", ["bilinear", "antialias"])
def test_mirrored_pictures_are_exact_mirrors(crop: str, resize: str):
    data = save(busy(120, 90))
    for key in range(5):
        plain, mirrored = (show(make(crop=crop, resize=resize, flip=flip), data, key) for flip in (0.0, 1.0))
        assert np.array_equal(mirrored, plain[:, ::-1])
        assert not np.array_equal(mirrored, plain)


@pytest.mark.parametrize("flip", [0.0, 0.1, 0.5, 1.0])
def test_as_many_are_mirrored_as_were_asked_for(flip: float):
    data, transform = save(smooth(50, 50)), make(flip=flip)
    share = np.mean([choose(transform, data, make_key(0, 0, picture)).flip for picture in range(4_000)])
    assert abs(share - flip) < 4 * (flip * (1 - flip) / 4_000) ** 0.5 + 1e-9


def test_recipes_that_crop_in_another_way_mirror_the_same_pictures():
    data = save(smooth(50, 50))
    flips = [
        [choose(make(crop=crop), data, make_key(0, key)).flip for key in range(50)]
        for crop in ("area", "boxes", "centre", "whole")
    ]
    assert flips.count(flips[0]) == 4


def test_mirroring_says_nothing_about_the_crop():
    data, transform = save(smooth(400, 300)), make()
    views = [choose(transform, data, make_key(7, key)) for key in range(3_000)]
    flips = np.array([view.flip for view in views])
    for edge in zip(*(view.part for view in views), strict=True):
        assert abs(np.corrcoef(flips, np.array(edge))[0, 1]) < 0.06


def test_boxes_steer_the_crop():
    data, box = save(smooth(300, 200)), Box(0, 0.0, 0.0, 0.1, 0.1)
    transform = make(crop="boxes", min_object_covered=1.0, area=(0.05, 0.3), attempts=1_000)
    for key in range(50):
        part = transform.choose(look_sized(data), (box,), make_key(key)).part
        assert isinstance(part, Crop)
        assert (part.left, part.top) == (0, 0)


def test_the_recipes_numbers_reach_the_crop():
    data = save(smooth(400, 400))
    transform = make(area=(0.2, 0.3), aspect=(1.0, 1.0))
    for key in range(50):
        part = choose(transform, data, make_key(key)).part
        assert isinstance(part, Crop)
        assert part.width == part.height
        assert 0.195 < part.width * part.height / 160_000 < 0.305


def test_a_crop_of_a_shrunk_picture_looks_the_same():
    data = save(smooth(800, 600), quality=95)
    plain, shrunk = make(), make(loader=LoaderConfig())
    shrinks = set()
    for key in range(20):
        view = choose(shrunk, data, make_key(key))
        shrinks.add(view.shrink)
        assert view.part == choose(plain, data, make_key(key)).part
        assert mean_difference(show(shrunk, data, make_key(key)), show(plain, data, make_key(key))) < 3
    assert shrinks == {2, 4, 8}


def test_edges_of_a_crop_go_to_the_nearest_pixel_of_a_shrunk_one():
    pixels = np.arange(10 * 8 * 3, dtype=np.uint8).reshape(10, 8, 3)
    assert np.array_equal(cut(Region(pixels), Crop(1, 2, 3, 4)), pixels[2:6, 1:4])
    assert np.array_equal(cut(Region(pixels, 4), Crop(5, 7, 20, 26)), pixels[2:8, 1:6])
    assert cut(Region(pixels, 4), Crop(0, 0, 31, 39)).shape == (10, 8, 3)


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
    with pytest.raises(ConfigError, match=r"augment.val_shorter = 63 is below data.image_size = 64"):
        make(val_shorter=63)


def test_extreme_pictures_have_a_window_of_floats():
    view = make(train=False).choose(look_sized(save(smooth(3, 2_000))), (), 0)
    assert isinstance(view.part, Window)
    assert view.part.bottom - view.part.top == pytest.approx(64 / 73 * 3, rel=0.01)


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (make(), "random crop of 8 % to 100 % of the area, aspect 0.75 to 1.33, bilinear, mirrored 50 %"),
        (make(train=False), "shorter side 73, the middle 64 x 64, antialiased"),
        (make(crop="whole", flip=0.0), "the whole picture, bilinear"),
        (make(train=False, val_crop="whole"), "the whole picture, antialiased"),
        (
            make(crop="overlap", aspect=(0.5, 2.0), overlaps=(0.1, 0.5), contrast=(0.5, 1.5)),
            "the whole picture or a random crop of 30 % to 100 % of each side, width to height 0.50 to 2.00 in shares, "
            "overlap with each box at least one of 0.1, 0.5, bilinear, mirrored 50 %, saturation 1 to 1, "
            "hue in degrees 0 to 0, contrast 0.5 to 1.5, brightness 1 to 1",
        ),
    ],
)
def test_what_is_done_can_be_told(transform: Transform, expected: str):
    assert describe_transform(transform) == expected
