"""Boxes: cut at their picture's edges, and as rows of numbers."""

import math

import pytest

from trainstone.data.sample import Box, clip_box, list_numbers, make_box

INSIDE = Box(1, 0.0, 0.25, 1.0, 0.5, crowd=True, area=0.1)


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        (INSIDE, INSIDE),
        (Box(0, -1.0, -0.5, 0.5, 3.0, area=0.2), Box(0, 0.0, 0.0, 0.5, 1.0, area=0.2)),
        (Box(0, 1.0, 0.0, 2.0, 1.0), None),
        (Box(0, -1.0, 0.0, 0.0, 1.0), None),
        (Box(0, 0.2, 0.5, 0.2, 1.0), None),
        (Box(0, 0.6, 0.5, 0.2, 1.0), None),
        (Box(0, 0.0, 0.0, math.inf, 1.0), Box(0, 0.0, 0.0, 1.0, 1.0)),
        *((Box(0, *[math.nan if n == at else 0.5 * (n > 1) for n in range(4)]), None) for at in range(4)),
    ],
)
def test_boxes_are_cut_at_the_picture(box: Box, expected: Box | None):
    assert clip_box(box) == expected


@pytest.mark.parametrize("box", [INSIDE, INSIDE._replace(area=None), Box(0, 0.0, 0.0, 1.0, 1.0, area=0.0)])
def test_numbers_make_the_same_box_again(box: Box):
    numbers = list_numbers(box)
    assert make_box(numbers[0], numbers[1:5], *numbers[5:]) == box
