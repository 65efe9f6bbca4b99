"""Tests of crops and transforms: random crops have the defined distribution, pixels match Pillow, OpenCV and DALI."""

import io
import math
import random
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy import stats

from support.builders.images import mean_difference, noisy, save, smooth
from support.builders.loaders import make_config
from trainstone.config.schema import AugmentConfig
from trainstone.data.image.decode import Region, Scratch, decode, decode_top_rows, read_checked_header
from trainstone.data.pipeline.crops import MAX_OPTIONS, Crop, crop_area, crop_boxes, crop_overlap
from trainstone.data.pipeline.random_draws import Draws, derive_key
from trainstone.data.pipeline.transform import (
    PLAIN,
    Colours,
    ImageView,
    Transform,
    change_colours,
    find_shown_part,
    scale_edges,
)
from trainstone.data.sample import Box
from trainstone.errors import ConfigError

SIZE = 64
SHAPES = [(500, 375), (300, 300), (7, 9), (73, 73), (3, 2_000), (2_000, 3), (641, 97)]
EXACT, FAST = {"decode": "exact", "shrink": False}, {"decode": "fast", "shrink": True}


def make(train: bool = True, size: int = SIZE, **keys: Any) -> Transform:
    return Transform(make_config(size, **{**EXACT, **keys}), train=train)


def transform_image(transform: Transform, data: bytes, key: int = 0, boxes: tuple[Box, ...] = ()) -> np.ndarray:
    """Return the pixels of a stored image in a batch."""
    header = read_checked_header(data)
    view = transform.choose_view(header, boxes, key)
    rows = transform.rows_needed(view, header)
    region = decode_top_rows(data, rows, Scratch(), fast=transform.fast, shrink=view.shrink, header=header)
    out = np.full((transform.size, transform.size, 3), 99, np.uint8)
    transform.write(region, view, out)
    return out


def choose_view(transform: Transform, data: bytes, key: int) -> ImageView:
    return transform.choose_view(read_checked_header(data), (), key)


def transform_with_library(data: bytes, size: int, shorter: int, resize: str = "antialias") -> np.ndarray:
    """Transform as torchvision and the original codes do for validation: resize the shorter side, then centre crop."""
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
def test_validation_matches_pillow_resize_and_centre_crop(width: int, height: int, kind: str):
    data = save(noisy(width, height), kind)
    assert mean_difference(transform_image(make(train=False), data), transform_with_library(data, SIZE, 73)) < 1


@pytest.mark.parametrize(("width", "height"), SHAPES)
def test_bilinear_validation_matches_opencv_resize_and_centre_crop(width: int, height: int):
    data = save(noisy(width, height))
    expected = transform_with_library(data, SIZE, 73, "bilinear")
    assert np.array_equal(transform_image(make(train=False, val_resize="bilinear"), data), expected)
    assert np.array_equal(transform_image(make(crop="centre", flip=0.0), data, 3), expected)


def test_rows_needed_of_centre_crop_are_sufficient():
    data = save(noisy(100, 600))
    transform = make(train=False)
    header = read_checked_header(data)
    view = transform.choose_view(header, (), 0)
    rows = transform.rows_needed(view, header)
    assert rows < 360
    whole, out = Region(decode(data)), np.empty((SIZE, SIZE, 3), np.uint8)
    transform.write(whole, view, out)
    assert np.array_equal(transform_image(transform, data), out)
    transform.write(Region(whole.pixels[:rows]), view, out)
    assert np.array_equal(transform_image(transform, data), out)


@pytest.mark.parametrize("crop", ["area", "boxes", "whole"])
@pytest.mark.parametrize("resize", ["bilinear", "antialias"])
def test_write_crops_then_resizes(crop: str, resize: str):
    data = save(noisy(200, 150))
    pixels = decode(data)
    transform = make(crop=crop, resize=resize, flip=0.0)
    for key in range(30):
        part = choose_view(transform, data, key).part
        assert isinstance(part, Crop)
        inside = np.ascontiguousarray(pixels[part.top : part.bottom, part.left : part.right])
        if resize == "bilinear":
            expected = cv2.resize(inside, (SIZE, SIZE), interpolation=cv2.INTER_LINEAR)
        else:
            expected = np.asarray(Image.fromarray(inside).resize((SIZE, SIZE), Image.Resampling.BILINEAR))
        assert np.array_equal(transform_image(transform, data, key), expected)


@pytest.mark.parametrize("crop", ["area", "boxes", "centre", "whole"])
@pytest.mark.parametrize("resize", ["bilinear", "antialias"])
def test_write_with_flip_mirrors_exactly(crop: str, resize: str):
    data = save(noisy(120, 90))
    for key in range(5):
        plain, mirrored = (transform_image(make(crop=crop, resize=resize, flip=flip), data, key) for flip in (0.0, 1.0))
        assert np.array_equal(mirrored, plain[:, ::-1])
        assert not np.array_equal(mirrored, plain)


def test_flip_is_independent_of_crop():
    data, transform = save(smooth(400, 300)), make()
    views = [choose_view(transform, data, derive_key(7, key)) for key in range(3_000)]
    flips = np.array([view.flip for view in views])
    for edge in zip(*(view.part for view in views), strict=True):
        assert abs(np.corrcoef(flips, np.array(edge))[0, 1]) < 0.06


def cut(region: Region, crop: Crop) -> np.ndarray:
    left, top, right, bottom = scale_edges(crop, region.shrink)
    return region.pixels[top:bottom, left:right]


def test_scale_edges_rounds_to_nearest_pixel():
    pixels = np.arange(10 * 8 * 3, dtype=np.uint8).reshape(10, 8, 3)
    assert np.array_equal(cut(Region(pixels), Crop(1, 2, 3, 4)), pixels[2:6, 1:4])
    assert np.array_equal(cut(Region(pixels, 4), Crop(5, 7, 20, 26)), pixels[2:8, 1:6])
    assert cut(Region(pixels, 4), Crop(0, 0, 31, 39)).shape == (10, 8, 3)


@pytest.mark.parametrize("shrink", [1, 2, 4, 8])
def test_find_shown_part_matches_pixels_of_shrunk_image(shrink: int):
    """The pixels of the shrunk image encode their positions."""
    region = Region(np.indices((100, 90)).transpose(1, 2, 0).astype(np.uint8), shrink)
    crop = Crop(3 * shrink + 1, 5 * shrink - 1, 40 * shrink + 1, 30 * shrink + 1)
    pixels, part = cut(region, crop), find_shown_part(region, ImageView(crop, flip=False))
    (top, left), (bottom, right) = pixels[0, 0].tolist(), pixels[-1, -1].tolist()
    assert (part.left, part.top) == (left * shrink, top * shrink)
    assert (part.right, part.bottom) == ((right + 1) * shrink, (bottom + 1) * shrink)


@pytest.mark.parametrize(("width", "height"), SHAPES)
@pytest.mark.parametrize("crop", ["area", "boxes", "centre", "whole"])
@pytest.mark.parametrize("resize", ["bilinear", "antialias"])
def test_transform_supports_every_image_shape(width: int, height: int, crop: str, resize: str):
    data = save(smooth(width, height))
    for loader in (EXACT, FAST):
        for key in range(2):
            out = transform_image(make(crop=crop, resize=resize, **loader), data, derive_key(key))
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
def test_fast_and_shrink_only_in_training_without_pixel_cache(loader: Any, train: bool, expected: tuple[bool, bool]):
    transform = make(train, **loader)
    assert (transform.fast, transform.may_shrink) == expected


def test_shorter_side_follows_image_size():
    assert [make(size=size).shorter for size in (32, 160, 224, 288)] == [36, 182, 256, 329]
    assert make(val_shorter=64).shorter == 64
    with pytest.raises(ConfigError, match=r"augment\.val_shorter = 63"):
        make(val_shorter=63)


COLOURS = {"saturation": (0.5, 1.5), "hue_degrees": (-0.5, 0.5), "contrast": (0.5, 1.5), "brightness": (0.875, 1.125)}


def saturate(values: np.ndarray) -> np.ndarray:
    return np.rint(values).clip(0, 255)


def turn_hue(pixels: np.ndarray, saturation: float, degrees: float) -> np.ndarray:
    """DALI's Hsv: convert to YIQ, rotate and scale, convert back."""
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
def test_change_colours_matches_dali(numbers: tuple[float, ...]):
    pixels, colours = noisy(97, 61), Colours(*map(float, numbers))
    expected = pixels.astype(np.float64)
    if colours[:2] != PLAIN[:2]:
        expected = turn_hue(pixels, colours.saturation, colours.hue_degrees)
    expected = saturate(colours.brightness * (128 + colours.contrast * (expected - 128)))
    batch = np.zeros((2, 61, 97, 3), np.uint8)
    batch[1] = pixels
    change_colours(batch[1], colours)
    # OpenCV uses fixed point: the error is one level, scaled by the contrast.
    assert np.abs(batch[1] - expected).max() <= math.ceil(max(1.0, colours.contrast * colours.brightness))
    assert (batch[1] == expected).mean() > 0.9
    assert not batch[0].any()
    assert (batch[1] == pixels).all() == (colours == PLAIN)


def test_colour_draws_cover_their_ranges_and_depend_on_key():
    data = save(smooth(40, 40))
    drawn = np.array([choose_view(make(**COLOURS), data, key).colours for key in range(3000)])
    for column, (low, high) in enumerate(COLOURS.values()):
        assert low <= drawn[:, column].min() < low + 0.02 * (high - low)
        assert high - 0.02 * (high - low) < drawn[:, column].max() <= high
        assert drawn[:, column].mean() == pytest.approx((low + high) / 2, abs=0.03 * (high - low))
    assert np.abs(np.corrcoef(drawn.T) - np.eye(4)).max() < 0.08
    assert choose_view(make(**COLOURS, crop="centre"), data, 7).colours == tuple(drawn[7])
    assert choose_view(make(), data, 7).colours is None
    assert all(choose_view(make(**{name: (0.5, 0.9)}), data, 7).colours for name in COLOURS)


LOW, HIGH = 3 / 4, 4 / 3
DRAWS = 3_000
BOX = Box(0, 0.3, 0.4, 0.6, 0.9)


def make_augment(**keys: Any) -> AugmentConfig:
    """Return an [augment] section, also with values that the schema rejects."""
    return AugmentConfig().model_copy(update=keys)


SSD = make_augment(aspect=(0.5, 2.0), attempts=1)


def draw_crops(crop: Callable[..., Crop], *arguments: Any, **keys: Any) -> np.ndarray:
    """Return many crops as left, top, width, height."""
    rule = make_augment(**keys)
    return np.array([crop(*arguments, Draws(derive_key(0, 0, key)), rule) for key in range(DRAWS)])


def draw_boxes(width: int, height: int, boxes: Any = (), **keys: Any) -> np.ndarray:
    options = {"area": (0.05, 1.0), "aspect": (0.75, 1.33), "attempts": 100, **keys}
    return draw_crops(crop_boxes, width, height, boxes, **options)


def define_area(width: int, height: int, law: str) -> np.ndarray:
    """Draw crops by the definition: propose many rectangles at once, keep those that fit."""
    dice = np.random.default_rng(1)
    area = dice.uniform(0.08, 1, 5 * DRAWS) * width * height
    ratio = np.exp(dice.uniform(math.log(LOW), math.log(HIGH), area.size))
    if law == "uniform":
        ratio = dice.uniform(LOW, HIGH, area.size)
    across, down = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
    fits = (across <= width) & (down <= height)
    return np.stack([across[fits], down[fits]], axis=1)[:DRAWS]


def assert_inside(crops: np.ndarray, width: int, height: int) -> None:
    assert (crops >= 0).all()
    assert (crops[:, 2:] > 0).all()
    assert (crops[:, :2] + crops[:, 2:] <= (width, height)).all()


@pytest.mark.parametrize("law", ["log", "uniform"])
@pytest.mark.parametrize(("width", "height"), [(500, 375), (375, 500)])
def test_crop_area_has_defined_distribution(width: int, height: int, law: str):
    crops = draw_crops(crop_area, width, height, aspect_distribution=law, attempts=1_000)
    assert_inside(crops, width, height)
    expected = define_area(width, height, law)
    for ours, theirs in (
        (crops[:, 2], expected[:, 0]),
        (crops[:, 3], expected[:, 1]),
        (crops[:, 2] / crops[:, 3], expected[:, 0] / expected[:, 1]),
    ):
        assert stats.ks_2samp(ours, theirs).pvalue > 0.005


def test_crop_area_position_is_uniform_including_edges():
    crops = draw_crops(crop_area, 60, 40, area=(0.2, 0.2))
    free = 60 - crops[:, 2], 40 - crops[:, 3]
    for position, limit in zip(crops[:, :2].T, free, strict=True):
        assert position.min() == 0
        assert (position == limit).any()
        spread = (position + np.random.default_rng(0).uniform(size=DRAWS)) / (limit + 1)
        assert stats.kstest(spread, "uniform").pvalue > 0.01
    assert abs(np.corrcoef(crops[:, 0], crops[:, 1])[0, 1]) < 0.06


@pytest.mark.parametrize(
    ("width", "height", "aspect", "expected"),
    [
        (100, 100, (LOW, HIGH), Crop(0, 0, 100, 100)),
        (100, 200, (LOW, HIGH), Crop(0, 33, 100, 133)),
        (200, 100, (LOW, HIGH), Crop(33, 0, 133, 100)),
        (1, 1, (LOW, HIGH), Crop(0, 0, 1, 1)),
        (1, 2_000, (LOW, HIGH), Crop(0, 999, 1, 1)),
        (3, 2_000, (LOW, HIGH), Crop(0, 998, 3, 4)),
        (2_000, 3, (LOW, HIGH), Crop(998, 0, 4, 3)),
        (133, 100, (LOW, HIGH), Crop(0, 0, 133, 100)),
        (20, 20, (0.01, 0.02), Crop(9, 0, 1, 20)),
        (20, 20, (50.0, 100.0), Crop(0, 9, 20, 1)),
    ],
)
def test_crop_area_falls_back_to_largest_centre_crop(width: int, height: int, aspect: Any, expected: Crop):
    assert crop_area(width, height, Draws(0), make_augment(attempts=0, aspect=aspect)) == expected


def share_of_box(crops: np.ndarray, width: int, height: int, box: Box) -> np.ndarray:
    """Return the share of a box inside each crop."""
    left, right = int(box.left * width), int(box.right * width)
    top, bottom = int(box.top * height), int(box.bottom * height)
    across = np.minimum(crops[:, 0] + crops[:, 2], right) - np.maximum(crops[:, 0], left)
    down = np.minimum(crops[:, 1] + crops[:, 3], bottom) - np.maximum(crops[:, 1], top)
    return across.clip(0) * down.clip(0) / ((right - left) * (bottom - top))


@pytest.mark.parametrize("covered", [0.1, 0.5, 1.0])
def test_crop_boxes_covers_minimum_share_of_a_box(covered: float):
    crops = draw_boxes(300, 200, [BOX], min_object_covered=covered)
    assert_inside(crops, 300, 200)
    assert share_of_box(crops, 300, 200, BOX).min() >= covered
    assert len(np.unique(crops, axis=0)) > 700


def test_crop_boxes_area_and_aspect_stay_in_range():
    crops = draw_boxes(300, 200, [BOX], area=(0.1, 0.5), aspect=(0.8, 1.25), min_object_covered=0)
    area = crops[:, 2] * crops[:, 3] / 60_000
    assert 0.1 <= area.min() < area.max() <= 0.5
    # The width is rounded by up to half a pixel.
    assert ((crops[:, 2] + 0.5) / crops[:, 3]).min() >= 0.8
    assert ((crops[:, 2] - 0.5) / crops[:, 3]).max() <= 1.25
    crops = draw_boxes(2_000, 2_000, area=(0.05, 0.5), min_object_covered=0)
    assert stats.kstest(crops[:, 2] / crops[:, 3], "uniform", (0.75, 0.58)).pvalue > 0.01


def test_crop_boxes_height_is_uniform():
    crops = draw_boxes(10, 10, aspect=(1.0, 1.0), area=(0.04, 1.0), min_object_covered=0)
    assert stats.chisquare(np.bincount(crops[:, 3])[2:]).pvalue > 0.01
    assert np.unique(crops[:, 3]).tolist() == list(range(2, 11))


def test_crop_boxes_never_uses_last_position_like_tensorflow():
    crops = draw_boxes(20, 12, min_object_covered=0)
    for axis, side in ((0, 20), (1, 12)):
        inside = crops[:, 2 + axis] < side
        assert (crops[inside, axis] + crops[inside, 2 + axis]).max() == side - 1


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 2_000), (2_000, 3), (2, 2)])
def test_crops_of_tiny_and_narrow_images_are_inside(width: int, height: int):
    assert_inside(draw_boxes(width, height, attempts=10), width, height)
    assert_inside(draw_crops(crop_area, width, height), width, height)


def compute_iou(crop: tuple[float, ...], box: Box) -> float:
    """Return the intersection over union."""
    inner = (max(crop[0], box.left), max(crop[1], box.top), min(crop[2], box.right), min(crop[3], box.bottom))
    shared = (inner[2] - inner[0]) * (inner[3] - inner[1]) if inner[0] < inner[2] and inner[1] < inner[3] else 0
    own = (crop[2] - crop[0]) * (crop[3] - crop[1])
    return shared / (own + (box.right - box.left) * (box.bottom - box.top) - shared)


def draw_reference_crop(boxes: list[Box], dice: random.Random, attempts: int) -> tuple[float, ...]:
    """Draw a crop by a plain version of SSD's rule: its edges as shares, and the number of boxes kept."""
    while True:
        threshold = dice.choice([*SSD.overlaps, None])
        if threshold is None:
            return (0.0, 0.0, 1.0, 1.0, len(boxes))
        for _ in range(attempts):
            width, height = dice.uniform(0.3, 1), dice.uniform(0.3, 1)
            if width / height < 0.5 or width / height > 2:
                continue
            left, top = dice.uniform(0, 1 - width), dice.uniform(0, 1 - height)
            crop = (left, top, left + width, top + height)
            if any(compute_iou(crop, box) < threshold for box in boxes):
                continue
            centres = [((box.left + box.right) / 2, (box.top + box.bottom) / 2) for box in boxes]
            kept = sum(crop[0] <= x < crop[2] and crop[1] <= y < crop[3] for x, y in centres)
            if kept:
                return (*crop, kept)


@pytest.mark.parametrize("attempts", [1, 5])
@pytest.mark.parametrize(
    "boxes",
    [
        [Box(0, 0.1, 0.05, 0.9, 0.95)],
        [Box(0, 0.7, 0.6, 0.8, 0.75)],
        [Box(0, 0.05, 0.1, 0.45, 0.6), Box(1, 0.4, 0.3, 0.95, 0.9)],
    ],
)
def test_crop_overlap_has_distribution_of_reference_rule(boxes: list[Box], attempts: int):
    width, height = 10_000, 8_000  # so large that rounding to pixels does not matter
    dice, rule = random.Random(5), SSD.model_copy(update={"attempts": attempts})
    ours, reference = [], [draw_reference_crop(boxes, dice, attempts) for _ in range(DRAWS)]
    for number in range(DRAWS):
        crop, kept = crop_overlap(width, height, boxes, Draws(derive_key(3, number)), rule)
        ours.append((crop.left / width, crop.top / height, crop.right / width, crop.bottom / height, len(kept)))
    one, other = np.array(ours), np.array(reference)
    for edge in range(4):
        assert stats.ks_2samp(one[:, edge], other[:, edge]).pvalue > 0.001
    assert stats.ks_2samp(one[:, 2] - one[:, 0], other[:, 2] - other[:, 0]).pvalue > 0.001
    wholes = [(rows[:, :4] == (0, 0, 1, 1)).all(axis=1).mean() for rows in (one, other)]
    assert wholes[0] == pytest.approx(wholes[1], abs=0.04)
    for count in np.unique(other[:, 4]):
        assert (one[:, 4] == count).mean() == pytest.approx((other[:, 4] == count).mean(), abs=0.04)


EDGES = st.tuples(*[st.floats(0, 0.99)] * 2, *[st.floats(0.001, 1)] * 2)


@given(
    st.lists(EDGES.map(lambda b: Box(0, b[0], b[1], min(1.0, b[0] + b[2]), min(1.0, b[1] + b[3]))), max_size=5),
    st.integers(1, 700),
    st.integers(1, 700),
    st.integers(0, 2**64 - 1),
)
def test_crop_overlap_keeps_boxes_with_centre_in_crop(boxes: list[Box], width: int, height: int, key: int):
    crop, kept = crop_overlap(width, height, boxes, Draws(key), SSD)
    assert 0 <= crop.left < crop.right <= width
    assert 0 <= crop.top < crop.bottom <= height
    assert bool(kept) == bool(boxes)
    if crop != Crop(0, 0, width, height):
        for box in kept:  # up to the half pixel by which edges are rounded
            assert crop.left - 1 <= (box.left + box.right) / 2 * width <= crop.right + 1
            assert crop.top - 1 <= (box.top + box.bottom) / 2 * height <= crop.bottom + 1
    assert crop_overlap(width, height, boxes, Draws(key), SSD) == (crop, kept)


def test_crop_overlap_returns_whole_image_without_valid_crop():
    box, whole = Box(0, 0.5, 0.5, 0.500001, 0.500001), Crop(0, 0, 64, 48)
    assert crop_overlap(64, 48, [], Draws(7), SSD) == (whole, ())
    assert crop_overlap(64, 48, [box], Draws(7), SSD.model_copy(update={"overlaps": ()})) == (whole, (box,))
    draws, hardly_ever_whole = Draws(1), SSD.model_copy(update={"overlaps": (0.99,) * 10**7})
    assert crop_overlap(64, 48, [box], draws, hardly_ever_whole) == (whole, (box,))
    again = Draws(1)
    assert any(again.uniform() >= 0 and again._state == draws._state for _ in range(MAX_OPTIONS * 6))
