"""Random parts of pictures have the distribution of their definition; the middle is where it belongs."""

import math

import numpy as np
import pytest
from scipy import stats

from trainstone.data.feeding.crops import Crop, crop_area, crop_boxes, crop_middle, window_centre
from trainstone.data.feeding.draws import Draws, make_key
from trainstone.data.sample import Box

THIRDS = (3 / 4, 4 / 3)
DRAWS = 4_000
BOX = Box(0, 0.3, 0.4, 0.6, 0.9)


def draw_area(width: int, height: int, law: str = "log", area=(0.08, 1.0), attempts: int = 10) -> np.ndarray:
    """Many crops: left, top, width, height."""
    log = law == "log"
    return np.array(
        [
            crop_area(
                width, height, Draws(make_key(0, 0, key)), area=area, aspect=THIRDS, log_aspect=log, attempts=attempts
            )
            for key in range(DRAWS)
        ]
    )


def draw_boxes(
    width: int, height: int, boxes=(), area=(0.05, 1.0), aspect=(0.75, 1.33), covered=0.1, attempts: int = 100
) -> np.ndarray:
    return np.array(
        [
            crop_boxes(
                *(width, height, boxes, Draws(make_key(0, 0, key))),
                area=area,
                aspect=aspect,
                min_object_covered=covered,
                attempts=attempts,
            )
            for key in range(DRAWS)
        ]
    )


def define_area(width: int, height: int, log: bool, seed: int) -> np.ndarray:
    """The definition in other words: propose many rectangles at once, keep those that fit."""
    random = np.random.default_rng(seed)
    area = random.uniform(0.08, 1, 5 * DRAWS) * width * height
    low, high = THIRDS
    ratio = np.exp(random.uniform(math.log(low), math.log(high), area.size))
    if not log:
        ratio = random.uniform(low, high, area.size)
    across, down = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
    fits = (across <= width) & (down <= height)
    return np.stack([across[fits], down[fits]], axis=1)[:DRAWS]


def assert_inside(crops: np.ndarray, width: int, height: int) -> None:
    assert (crops >= 0).all()
    assert (crops[:, 2:] > 0).all()
    assert (crops[:, 0] + crops[:, 2] <= width).all()
    assert (crops[:, 1] + crops[:, 3] <= height).all()


def test_area_is_even_where_every_crop_fits():
    crops = draw_area(2_000, 2_000, area=(0.08, 0.74))
    shares = crops[:, 2] * crops[:, 3] / 4e6
    assert stats.kstest(shares, "uniform", (0.08, 0.66)).pvalue > 0.01


def test_aspects_are_even_by_logarithm_or_by_themselves():
    logs, plain = (draw_area(2_000, 2_000, law, area=(0.08, 0.74)) for law in ("log", "uniform"))
    low, high = THIRDS
    ratio = np.log(logs[:, 2] / logs[:, 3])
    assert stats.kstest(ratio, "uniform", (math.log(low), math.log(high / low))).pvalue > 0.01
    ratio = plain[:, 2] / plain[:, 3]
    assert stats.kstest(ratio, "uniform", (low, high - low)).pvalue > 0.01
    # The two laws are told apart by as many draws.
    assert stats.kstest(np.log(ratio), "uniform", (math.log(low), math.log(high / low))).pvalue < 1e-3


@pytest.mark.parametrize("law", ["log", "uniform"])
@pytest.mark.parametrize(("width", "height"), [(500, 375), (375, 500), (400, 400)])
def test_all_crops_have_the_distribution_of_the_definition(width: int, height: int, law: str):
    crops = draw_area(width, height, law, attempts=1_000)
    assert_inside(crops, width, height)
    expected = define_area(width, height, law == "log", seed=1)
    for ours, theirs in (
        (crops[:, 2], expected[:, 0]),
        (crops[:, 3], expected[:, 1]),
        (crops[:, 2] * crops[:, 3], expected.prod(axis=1)),
        (crops[:, 2] / crops[:, 3], expected[:, 0] / expected[:, 1]),
    ):
        assert stats.ks_2samp(ours, theirs).pvalue > 0.005


def test_every_place_is_as_likely_with_both_edges():
    crops = draw_area(60, 40, area=(0.2, 0.2))
    free = 60 - crops[:, 2], 40 - crops[:, 3]
    for place, room in zip(crops[:, :2].T, free, strict=True):
        assert place.min() == 0
        assert (place == room).any()
        spread = (place + np.random.default_rng(0).uniform(size=DRAWS)) / (room + 1)
        assert stats.kstest(spread, "uniform").pvalue > 0.01
    assert abs(np.corrcoef(crops[:, 0], crops[:, 1])[0, 1]) < 0.05


def test_after_so_many_attempts_the_middle_is_taken():
    crops = draw_area(3, 2_000, attempts=10)
    assert {tuple(crop) for crop in crops} == {(0, 998, 3, 4)}
    crops = draw_area(2_000, 3)
    assert {tuple(crop) for crop in crops} == {(998, 0, 4, 3)}


def test_a_single_attempt_falls_back_as_often_as_it_does_not_fit():
    random = np.random.default_rng(0)
    area = random.uniform(0.08, 1, 200_000) * 30_000
    ratio = np.exp(random.uniform(*np.log(THIRDS), area.size))
    misses = ((np.rint(np.sqrt(area * ratio)) > 300) | (np.rint(np.sqrt(area / ratio)) > 100)).mean()
    crops = draw_area(300, 100, attempts=1)
    assert abs((crops == (83, 0, 133, 100)).all(axis=1).mean() - misses) < 0.03


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [
        (100, 100, Crop(0, 0, 100, 100)),
        (100, 200, Crop(0, 33, 100, 133)),
        (200, 100, Crop(33, 0, 133, 100)),
        (1, 1, Crop(0, 0, 1, 1)),
        (1, 2_000, Crop(0, 999, 1, 1)),
        (133, 100, Crop(0, 0, 133, 100)),
    ],
)
def test_the_middle_is_the_largest_of_allowed_aspect(width: int, height: int, expected: Crop):
    assert crop_middle(width, height, THIRDS) == expected


@pytest.mark.parametrize("aspect", [(0.01, 0.02), (50.0, 100.0)])
@pytest.mark.parametrize(("width", "height"), [(20, 20), (1, 1), (3, 2_000), (2_000, 3)])
def test_the_middle_is_never_empty(width: int, height: int, aspect: tuple[float, float]):
    crop = crop_middle(width, height, aspect)
    assert crop.width >= 1
    assert crop.height >= 1


def test_edges_of_a_crop():
    assert (Crop(2, 3, 10, 20).right, Crop(2, 3, 10, 20).bottom) == (12, 23)


def share_of_box(crops: np.ndarray, width: int, height: int, box: Box) -> np.ndarray:
    """How much of a box lies inside each crop."""
    left, right = int(box.left * width), int(box.right * width)
    top, bottom = int(box.top * height), int(box.bottom * height)
    across = np.minimum(crops[:, 0] + crops[:, 2], right) - np.maximum(crops[:, 0], left)
    down = np.minimum(crops[:, 1] + crops[:, 3], bottom) - np.maximum(crops[:, 1], top)
    return across.clip(0) * down.clip(0) / ((right - left) * (bottom - top))


@pytest.mark.parametrize("covered", [0.1, 0.5, 1.0])
def test_crops_hold_enough_of_a_box(covered: float):
    crops = draw_boxes(300, 200, [BOX], covered=covered)
    assert_inside(crops, 300, 200)
    assert share_of_box(crops, 300, 200, BOX).min() >= covered
    assert len(np.unique(crops, axis=0)) > 1_000


def test_one_of_several_boxes_is_enough():
    corners = [Box(0, 0, 0, 0.5, 0.5), Box(1, 0.5, 0.5, 1, 1)]
    crops = draw_boxes(200, 200, corners, covered=0.5, area=(0.05, 0.4))
    first, second = (share_of_box(crops, 200, 200, box) >= 0.5 for box in corners)
    assert (first | second).all()
    assert (first & ~second).sum() > 500
    assert (second & ~first).sum() > 500


def test_without_a_box_the_whole_picture_is_the_object():
    crops = draw_boxes(300, 200, covered=0.4)
    assert (crops[:, 2] * crops[:, 3]).min() >= 0.4 * 60_000
    assert np.array_equal(draw_boxes(300, 200, [Box(0, 0, 0, 1, 1)], covered=0.4), crops)


def test_area_and_aspect_are_in_their_ranges():
    crops = draw_boxes(300, 200, [BOX], area=(0.1, 0.5), aspect=(0.8, 1.25), covered=0)
    area = crops[:, 2] * crops[:, 3] / 60_000
    assert area.min() >= 0.1
    assert area.max() <= 0.5
    # The width is rounded: half a pixel of it belongs to the aspect.
    assert ((crops[:, 2] + 0.5) / crops[:, 3]).min() >= 0.8
    assert ((crops[:, 2] - 0.5) / crops[:, 3]).max() <= 1.25


def test_heights_are_even_between_the_smallest_and_the_largest_area():
    crops = draw_boxes(1_000, 1_000, aspect=(1.0, 1.0), area=(0.04, 1.0), covered=0)
    assert stats.kstest(crops[:, 3] + 0.5, "uniform", (200, 801)).pvalue > 0.01
    assert (crops[:, 2] == crops[:, 3]).all()


def test_smallest_and_largest_heights_are_as_likely_as_those_between():
    crops = draw_boxes(10, 10, aspect=(1.0, 1.0), area=(0.04, 1.0), covered=0)
    assert stats.chisquare(np.bincount(crops[:, 3])[2:]).pvalue > 0.01
    assert np.unique(crops[:, 3]).tolist() == list(range(2, 11))


def test_aspects_of_box_crops_are_even():
    crops = draw_boxes(2_000, 2_000, area=(0.05, 0.5), covered=0)
    assert stats.kstest(crops[:, 2] / crops[:, 3], "uniform", (0.75, 0.58)).pvalue > 0.01


def test_the_last_place_is_never_taken_as_in_tensorflow():
    crops = draw_boxes(20, 12, covered=0)
    inside = crops[:, 2] < 20
    assert (crops[inside, 0] + crops[inside, 2]).max() == 19
    inside = crops[:, 3] < 12
    assert (crops[inside, 1] + crops[inside, 3]).max() == 11


@pytest.mark.parametrize(
    "boxes",
    [
        [Box(0, 0.501, 0.501, 0.502, 0.502)],  # less than a pixel
        [Box(0, 0.9, 0.9, 0.1, 0.1)],  # inside out
        [Box(0, 2.0, 2.0, 3.0, 3.0)],  # outside
    ],
)
def test_boxes_that_no_crop_can_hold_leave_the_whole_picture(boxes: list[Box]):
    crops = draw_boxes(100, 80, boxes, attempts=3)
    assert {tuple(crop) for crop in crops} == {(0, 0, 100, 80)}


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 2_000), (2_000, 3), (2, 2)])
def test_tiny_and_narrow_pictures_have_crops(width: int, height: int):
    assert_inside(draw_boxes(width, height, attempts=10), width, height)
    assert_inside(draw_area(width, height), width, height)


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [
        (256, 256, (16, 16, 240, 240)),
        (500, 375, (500 / 341 * 58, 375 / 256 * 16, 500 / 341 * 282, 375 / 256 * 240)),
        (375, 500, (375 / 256 * 16, 500 / 341 * 58, 375 / 256 * 240, 500 / 341 * 282)),
        (257, 256, (16 * 257 / 257, 16, 240, 240)),
    ],
)
def test_the_window_of_validation(width: int, height: int, expected: tuple[float, ...]):
    assert window_centre(width, height, 224, 256) == pytest.approx(expected)


@pytest.mark.parametrize(("width", "height"), [(3, 2_000), (2_000, 3), (1, 1), (7, 5), (4_000, 4_001)])
@pytest.mark.parametrize(("size", "shorter"), [(224, 256), (224, 224), (32, 36), (33, 40)])
def test_the_window_lies_inside_any_picture(width: int, height: int, size: int, shorter: int):
    left, top, right, bottom = window_centre(width, height, size, shorter)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    across, down = right - left, bottom - top
    assert across / down == pytest.approx(1, rel=1 / shorter)
