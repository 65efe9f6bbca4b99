"""SSD's crop against a slow, plain telling of the same rule with another generator, and that it always ends."""

import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainstone.data.feeding.crops import Crop, Window
from trainstone.data.feeding.draws import Draws, make_key
from trainstone.data.feeding.overlap import MAX_OPTIONS, crop_overlap, overlap
from trainstone.data.sample import Box

RULE = {"sides": (0.3, 1.0), "aspect": (0.5, 2.0), "overlaps": (0.0, 0.1, 0.3, 0.5, 0.7, 0.9), "attempts": 1}
WIDTH, HEIGHT = 10_000, 8_000  # so large that whole pixels tell shares
DRAWN = 4000
CASES = {
    "large": [Box(0, 0.1, 0.05, 0.9, 0.95)],
    "small": [Box(0, 0.7, 0.6, 0.8, 0.75)],
    "two": [Box(0, 0.05, 0.1, 0.45, 0.6), Box(1, 0.4, 0.3, 0.95, 0.9)],
}


def tell_overlap(crop: tuple[float, ...], box: Box) -> float:
    """Intersection over union, area by area."""
    inner = (max(crop[0], box.left), max(crop[1], box.top), min(crop[2], box.right), min(crop[3], box.bottom))
    shared = (inner[2] - inner[0]) * (inner[3] - inner[1]) if inner[0] < inner[2] and inner[1] < inner[3] else 0
    own = (crop[2] - crop[0]) * (crop[3] - crop[1])
    return shared / (own + (box.right - box.left) * (box.bottom - box.top) - shared)


def draw_slowly(boxes: list[Box], dice: random.Random, attempts: int) -> tuple[tuple[float, ...], int]:
    """A crop in shares, and how many boxes it keeps."""
    while True:
        threshold = dice.choice([*RULE["overlaps"], None])
        if threshold is None:
            return (0.0, 0.0, 1.0, 1.0), len(boxes)
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
                return crop, kept


def distance(one: list[float], other: list[float]) -> float:
    """Kolmogorov and Smirnov's: the largest difference of the shares below any value."""
    values = np.sort(np.concatenate([one, other]))
    below = [np.searchsorted(np.sort(row), values, side="right") / len(row) for row in (one, other)]
    return float(np.abs(below[0] - below[1]).max())


@pytest.mark.parametrize("attempts", [1, 5])
@pytest.mark.parametrize("name", CASES)
def test_sizes_places_and_boxes_are_spread_as_by_the_rule(name: str, attempts: int):
    boxes, dice = CASES[name], random.Random(5)
    ours, kept = [], Counter[int]()
    for number in range(DRAWN):
        rule = {**RULE, "attempts": attempts}
        crop, left = crop_overlap(WIDTH, HEIGHT, boxes, Draws(make_key(3, number)), **rule)
        ours.append((crop.left / WIDTH, crop.top / HEIGHT, crop.right / WIDTH, crop.bottom / HEIGHT))
        kept[len(left)] += 1
    told = [draw_slowly(boxes, dice, attempts) for _ in range(DRAWN)]
    expected = Counter(count for _, count in told)
    # Two samples of one law differ by more once in a thousand times: 1.95 sqrt(2 / n).
    limit = 1.95 * math.sqrt(2 / DRAWN)
    for edge in range(4):
        assert distance([row[edge] for row in ours], [crop[edge] for crop, _ in told]) < limit
    sizes = [[row[2] - row[0] for row in rows] for rows in (ours, [crop for crop, _ in told])]
    assert distance(*sizes) < limit
    wholes = [sum(row == (0, 0, 1, 1) for row in rows) / DRAWN for rows in (ours, [crop for crop, _ in told])]
    assert wholes[0] == pytest.approx(wholes[1], abs=0.04)
    for count in expected:
        assert kept[count] / DRAWN == pytest.approx(expected[count] / DRAWN, abs=0.04)


def test_options_are_drawn_evenly():
    """One box that is the whole picture: each crop's overlap is its area, so the chance to pass is known."""
    box = [Box(0, 0.0, 0.0, 1.0, 1.0)]
    counts = Counter(
        crop_overlap(100, 100, box, Draws(make_key(number)), **{**RULE, "overlaps": (0.0,), "aspect": (0.01, 100)})[0]
        == Crop(0, 0, 100, 100)
        for number in range(4000)
    )
    # Half of the draws stay whole; nearly every other crop holds the centre: passes p, so 1 / (1 + p).
    passes = np.random.default_rng(0).random((200_000, 4))
    width, height = 0.3 + 0.7 * passes[:, 0], 0.3 + 0.7 * passes[:, 1]
    left, top = passes[:, 2] * (1 - width), passes[:, 3] * (1 - height)
    p = ((left <= 0.5) & (left + width > 0.5) & (top <= 0.5) & (top + height > 0.5)).mean()
    assert counts[True] / 4000 == pytest.approx(1 / (1 + p), abs=0.03)


@given(
    st.lists(
        st.tuples(*[st.floats(0, 0.99)] * 2, *[st.floats(0.001, 1)] * 2).map(
            lambda b: Box(0, b[0], b[1], min(1.0, b[0] + b[2]), min(1.0, b[1] + b[3]))
        ),
        max_size=5,
    ),
    st.integers(1, 700),
    st.integers(1, 700),
    st.integers(0, 2**64 - 1),
)
def test_every_crop_keeps_the_rule(boxes: list[Box], width: int, height: int, key: int):
    crop, kept = crop_overlap(width, height, boxes, Draws(key), **RULE)
    assert 0 <= crop.left < crop.right <= width
    assert 0 <= crop.top < crop.bottom <= height
    assert bool(kept) == bool(boxes)
    if crop != Crop(0, 0, width, height):
        for box in kept:  # up to the half pixel that edges are moved by
            assert crop.left - 1 <= (box.left + box.right) / 2 * width <= crop.right + 1
            assert crop.top - 1 <= (box.top + box.bottom) / 2 * height <= crop.bottom + 1
    assert crop_overlap(width, height, boxes, Draws(key), **RULE) == (crop, kept)


def test_a_picture_without_boxes_stays_whole():
    for key in range(50):
        assert crop_overlap(64, 48, [], Draws(key), **RULE) == (Crop(0, 0, 64, 48), ())


def test_no_overlaps_leave_the_picture_whole():
    box = Box(0, 0.2, 0.2, 0.4, 0.4)
    assert crop_overlap(64, 48, [box], Draws(7), **{**RULE, "overlaps": ()}) == (Crop(0, 0, 64, 48), (box,))


def test_it_ends_where_no_crop_is_good_and_whole_is_hardly_ever_drawn():
    box = Box(0, 0.5, 0.5, 0.500001, 0.500001)
    draws = Draws(1)
    rule = {**RULE, "overlaps": (0.99,) * 10**7}
    assert crop_overlap(64, 48, [box], draws, **rule) == (Crop(0, 0, 64, 48), (box,))
    again = Draws(1)
    for _ in range(MAX_OPTIONS * 6):  # an option, two sides, perhaps a place: it stopped by its own count
        again.uniform()
        if again._state == draws._state:
            break
    else:
        pytest.fail("more was drawn than the cap allows")


def test_overlap_of_known_rectangles():
    part = Window(0.0, 0.0, 0.5, 0.5)
    assert overlap(part, Box(0, 0.25, 0.25, 0.75, 0.75)) == pytest.approx(0.0625 / 0.4375)
    assert overlap(part, Box(0, 0.5, 0.5, 1.0, 1.0)) == 0
    assert overlap(part, Box(0, 0.0, 0.0, 0.5, 0.5)) == 1
