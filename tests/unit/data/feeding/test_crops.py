"""Random parts of pictures have the distribution of their definition, told in other words; the middle is the middle."""

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from trainstone.config.schema import AugmentConfig
from trainstone.data.feeding.crops import MAX_OPTIONS, Crop, crop_area, crop_boxes, crop_overlap
from trainstone.data.feeding.draws import Draws, make_key
from trainstone.data.sample import Box

LOW, HIGH = 3 / 4, 4 / 3
DRAWS = 3_000
BOX = Box(0, 0.3, 0.4, 0.6, 0.9)


def make_rule(**keys: Any) -> AugmentConfig:
    """A recipe's section; also with values that no recipe may have."""
    return AugmentConfig().model_copy(update=keys)


SSD = make_rule(aspect=(0.5, 2.0), attempts=1)


def draw(crop: Callable[..., Crop], *told: Any, **keys: Any) -> np.ndarray:
    """Many crops: left, top, width, height."""
    rule = make_rule(**keys)
    return np.array([crop(*told, Draws(make_key(0, 0, key)), rule) for key in range(DRAWS)])


def draw_boxes(width: int, height: int, boxes: Any = (), **keys: Any) -> np.ndarray:
    told = {"area": (0.05, 1.0), "aspect": (0.75, 1.33), "attempts": 100, **keys}
    return draw(crop_boxes, width, height, boxes, **told)


def define_area(width: int, height: int, law: str) -> np.ndarray:
    """The definition in other words: propose many rectangles at once, keep those that fit."""
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
    assert (crops[:, 0] + crops[:, 2] <= width).all()
    assert (crops[:, 1] + crops[:, 3] <= height).all()


@pytest.mark.parametrize("law", ["log", "uniform"])
@pytest.mark.parametrize(("width", "height"), [(500, 375), (375, 500)])
def test_all_crops_have_the_distribution_of_the_definition(width: int, height: int, law: str):
    crops = draw(crop_area, width, height, aspect_law=law, attempts=1_000)
    assert_inside(crops, width, height)
    expected = define_area(width, height, law)
    for ours, theirs in (
        (crops[:, 2], expected[:, 0]),
        (crops[:, 3], expected[:, 1]),
        (crops[:, 2] / crops[:, 3], expected[:, 0] / expected[:, 1]),
    ):
        assert stats.ks_2samp(ours, theirs).pvalue > 0.005


def test_every_place_is_as_likely_with_both_edges():
    crops = draw(crop_area, 60, 40, area=(0.2, 0.2))
    free = 60 - crops[:, 2], 40 - crops[:, 3]
    for place, room in zip(crops[:, :2].T, free, strict=True):
        assert place.min() == 0
        assert (place == room).any()
        spread = (place + np.random.default_rng(0).uniform(size=DRAWS)) / (room + 1)
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
def test_the_middle_is_the_largest_of_allowed_aspect(width: int, height: int, aspect: Any, expected: Crop):
    assert crop_area(width, height, Draws(0), make_rule(attempts=0, aspect=aspect)) == expected


def share_of_box(crops: np.ndarray, width: int, height: int, box: Box) -> np.ndarray:
    """How much of a box lies inside each crop."""
    left, right = int(box.left * width), int(box.right * width)
    top, bottom = int(box.top * height), int(box.bottom * height)
    across = np.minimum(crops[:, 0] + crops[:, 2], right) - np.maximum(crops[:, 0], left)
    down = np.minimum(crops[:, 1] + crops[:, 3], bottom) - np.maximum(crops[:, 1], top)
    return across.clip(0) * down.clip(0) / ((right - left) * (bottom - top))


@pytest.mark.parametrize("covered", [0.1, 0.5, 1.0])
def test_crops_hold_enough_of_a_box(covered: float):
    crops = draw_boxes(300, 200, [BOX], min_object_covered=covered)
    assert_inside(crops, 300, 200)
    assert share_of_box(crops, 300, 200, BOX).min() >= covered
    assert len(np.unique(crops, axis=0)) > 700


def test_area_and_aspect_of_box_crops_are_in_their_ranges():
    crops = draw_boxes(300, 200, [BOX], area=(0.1, 0.5), aspect=(0.8, 1.25), min_object_covered=0)
    area = crops[:, 2] * crops[:, 3] / 60_000
    assert 0.1 <= area.min() < area.max() <= 0.5
    # The width is rounded: half a pixel of it belongs to the aspect.
    assert ((crops[:, 2] + 0.5) / crops[:, 3]).min() >= 0.8
    assert ((crops[:, 2] - 0.5) / crops[:, 3]).max() <= 1.25
    crops = draw_boxes(2_000, 2_000, area=(0.05, 0.5), min_object_covered=0)
    assert stats.kstest(crops[:, 2] / crops[:, 3], "uniform", (0.75, 0.58)).pvalue > 0.01


def test_every_height_of_allowed_area_is_as_likely():
    crops = draw_boxes(10, 10, aspect=(1.0, 1.0), area=(0.04, 1.0), min_object_covered=0)
    assert stats.chisquare(np.bincount(crops[:, 3])[2:]).pvalue > 0.01
    assert np.unique(crops[:, 3]).tolist() == list(range(2, 11))


def test_the_last_place_is_never_taken_as_in_tensorflow():
    crops = draw_boxes(20, 12, min_object_covered=0)
    for axis, side in ((0, 20), (1, 12)):
        inside = crops[:, 2 + axis] < side
        assert (crops[inside, axis] + crops[inside, 2 + axis]).max() == side - 1


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 2_000), (2_000, 3), (2, 2)])
def test_tiny_and_narrow_pictures_have_crops(width: int, height: int):
    assert_inside(draw_boxes(width, height, attempts=10), width, height)
    assert_inside(draw(crop_area, width, height), width, height)


def tell_overlap(crop: tuple[float, ...], box: Box) -> float:
    """Intersection over union, area by area."""
    inner = (max(crop[0], box.left), max(crop[1], box.top), min(crop[2], box.right), min(crop[3], box.bottom))
    shared = (inner[2] - inner[0]) * (inner[3] - inner[1]) if inner[0] < inner[2] and inner[1] < inner[3] else 0
    own = (crop[2] - crop[0]) * (crop[3] - crop[1])
    return shared / (own + (box.right - box.left) * (box.bottom - box.top) - shared)


def draw_slowly(boxes: list[Box], dice: random.Random, attempts: int) -> tuple[float, ...]:
    """SSD's rule told plainly: edges of a crop in shares, and how many boxes it keeps."""
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
            if any(tell_overlap(crop, box) < threshold for box in boxes):
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
def test_overlap_crops_are_spread_as_by_the_rule(boxes: list[Box], attempts: int):
    width, height = 10_000, 8_000  # so large that whole pixels tell shares
    dice, rule = random.Random(5), SSD.model_copy(update={"attempts": attempts})
    ours, told = [], [draw_slowly(boxes, dice, attempts) for _ in range(DRAWS)]
    for number in range(DRAWS):
        crop, kept = crop_overlap(width, height, boxes, Draws(make_key(3, number)), rule)
        ours.append((crop.left / width, crop.top / height, crop.right / width, crop.bottom / height, len(kept)))
    one, other = np.array(ours), np.array(told)
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
def test_every_overlap_crop_keeps_the_rule(boxes: list[Box], width: int, height: int, key: int):
    crop, kept = crop_overlap(width, height, boxes, Draws(key), SSD)
    assert 0 <= crop.left < crop.right <= width
    assert 0 <= crop.top < crop.bottom <= height
    assert bool(kept) == bool(boxes)
    if crop != Crop(0, 0, width, height):
        for box in kept:  # up to the half pixel that edges are moved by
            assert crop.left - 1 <= (box.left + box.right) / 2 * width <= crop.right + 1
            assert crop.top - 1 <= (box.top + box.bottom) / 2 * height <= crop.bottom + 1
    assert crop_overlap(width, height, boxes, Draws(key), SSD) == (crop, kept)


def test_a_picture_stays_whole_where_no_crop_is_good():
    box, whole = Box(0, 0.5, 0.5, 0.500001, 0.500001), Crop(0, 0, 64, 48)
    assert crop_overlap(64, 48, [], Draws(7), SSD) == (whole, ())
    assert crop_overlap(64, 48, [box], Draws(7), SSD.model_copy(update={"overlaps": ()})) == (whole, (box,))
    draws, hardly_ever_whole = Draws(1), SSD.model_copy(update={"overlaps": (0.99,) * 10**7})
    assert crop_overlap(64, 48, [box], draws, hardly_ever_whole) == (whole, (box,))
    again = Draws(1)
    assert any(again.uniform() >= 0 and again._state == draws._state for _ in range(MAX_OPTIONS * 6))
