"""Default boxes against the original's numbers; encoding, decoding and overlap against plain arithmetic."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainstone.models.boxes import (
    decode,
    default_boxes,
    encode,
    list_levels,
    overlap,
    to_centres,
    to_edges,
)

# MLPerf's SSD300, as its paper and its reference tell them.
CELLS, STEPS = (38, 19, 10, 5, 3, 1), (8, 16, 32, 64, 100, 300)
SCALES = (21, 45, 99, 153, 207, 261, 315)
ASPECTS = ((2,), (2, 3), (2, 3), (2, 3), (2,), (2,))


DEFAULTS = default_boxes(300)


def list_originals_boxes() -> list[tuple[float, ...]]:
    boxes = []
    for level in range(6):
        scale, wider = SCALES[level], math.sqrt(SCALES[level] * SCALES[level + 1])
        shapes = [(scale, scale), (wider, wider)]
        for aspect in ASPECTS[level]:
            shapes.append((scale * math.sqrt(aspect), scale / math.sqrt(aspect)))
            shapes.append((scale / math.sqrt(aspect), scale * math.sqrt(aspect)))
        for row in range(CELLS[level]):
            for column in range(CELLS[level]):
                x, y = (column + 0.5) * STEPS[level], (row + 0.5) * STEPS[level]
                boxes += [tuple(min(max(side / 300, 0.0), 1.0) for side in (x, y, *shape)) for shape in shapes]
    return boxes


def test_boxes_for_300_pixels_are_the_originals_in_their_order():
    boxes = default_boxes(300)
    assert boxes.shape == (8732, 4)
    assert boxes.dtype == torch.float32
    assert torch.allclose(boxes, torch.tensor(list_originals_boxes()), rtol=0, atol=1e-7)


def test_levels_for_300_pixels_are_the_originals():
    levels = list_levels(300)
    assert tuple(level.cells for level in list_levels(300)) == CELLS
    assert tuple(level.step for level in levels) == STEPS
    assert tuple(level.boxes_per_cell for level in levels) == (4, 6, 6, 6, 4, 4)
    assert [level.padded for level in levels] == [True, True, True, True, False, False]


@pytest.mark.parametrize(
    ("image_size", "cells", "number"),
    [
        (512, (64, 32, 16, 8, 4, 2, 1), 24564),  # as the paper's SSD512 has
        (160, (20, 10, 5, 3, 1), 1600 + 600 + 150 + 36 + 4),
        (96, (12, 6, 3, 1), 576 + 216 + 36 + 4),
        (64, (8, 4, 2, 1), 256 + 96 + 16 + 4),
    ],
)
def test_other_sizes_have_the_maps_that_convolutions_give(image_size, cells, number):
    assert tuple(level.cells for level in list_levels(image_size)) == cells
    assert len(default_boxes(image_size)) == number


@pytest.mark.parametrize("image_size", [64, 65, 91, 100, 112, 127, 128, 224, 300, 333, 700])
def test_every_size_has_scales_that_grow_and_boxes_within_the_picture(image_size):
    levels = list_levels(image_size)
    scales = [level.scale for level in levels]
    assert scales == sorted(set(scales))
    assert levels[-1].next_scale == pytest.approx(1.05 * image_size)
    assert levels[-1].cells == 1
    boxes = default_boxes(image_size)
    assert len(boxes) == sum(level.cells**2 * level.boxes_per_cell for level in levels)
    assert bool(((boxes >= 0) & (boxes <= 1)).all())
    assert bool((boxes[:, 2:] > 0).all())
    assert boxes[-1, :2].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("image_size", [96, 128, 160, 300])
def test_an_object_of_30_pixels_overlaps_a_default_box_by_half_wherever_it_lies(image_size):
    starts = torch.arange(0, image_size - 30, 5.0)
    left, top = torch.meshgrid(starts, starts, indexing="ij")
    objects = torch.stack([left, top, left + 30, top + 30], dim=-1).reshape(-1, 4) / image_size
    best = overlap(objects, to_edges(default_boxes(image_size))).amax(1)
    assert best.min() > 0.5


@pytest.mark.parametrize("image_size", [0, 32, 63])
def test_a_picture_too_small_is_refused_with_what_is_needed(image_size):
    with pytest.raises(ValueError, match=f"at least 64 pixels, not {image_size}"):
        default_boxes(image_size)


shares = st.floats(0, 1, width=32)
boxes_of_an_area = st.tuples(shares, shares, shares, shares).map(
    lambda b: (b[0] * 0.9, b[1] * 0.9, b[0] * 0.9 + 0.01 + b[2] * 0.09, b[1] * 0.9 + 0.01 + b[3] * 0.09)
)


@given(st.lists(boxes_of_an_area, min_size=1, max_size=5), st.integers(0, 8731))
@settings(deadline=None)
def test_decoding_gives_back_what_was_encoded(boxes, which):
    edges, defaults = torch.tensor(boxes, dtype=torch.float64), DEFAULTS[which].double()
    assert torch.allclose(decode(encode(edges, defaults), defaults), edges, atol=1e-12)
    assert torch.allclose(to_edges(to_centres(edges)), edges, atol=1e-12)


def test_offsets_are_the_originals():
    default = torch.tensor([0.5, 0.4, 0.2, 0.1], dtype=torch.float64)
    box = torch.tensor([0.4, 0.3, 0.8, 0.5], dtype=torch.float64)  # centre 0.6, 0.4; sides 0.4, 0.2
    expected = [0.1 / 0.2 / 0.1, 0.0, math.log(2) / 0.2, math.log(2) / 0.2]
    assert encode(box, default).tolist() == pytest.approx(expected, abs=1e-12)


def overlap_of_two(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0.0) * max(height, 0.0)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    return shared / union if union > 0 else 0.0


cells = st.integers(0, 16).map(lambda number: number / 16)
any_boxes = st.tuples(cells, cells, cells, cells).map(
    lambda b: (min(b[0], b[2]), min(b[1], b[3]), max(b[0], b[2]), max(b[1], b[3]))
)


@given(st.lists(any_boxes, min_size=1, max_size=6), st.lists(any_boxes, min_size=1, max_size=6))
@settings(deadline=None)
def test_overlap_is_intersection_over_union_of_each_with_each(first, second):
    together = overlap(torch.tensor([first, first]), torch.tensor([second, second]))
    expected = torch.tensor([[overlap_of_two(a, b) for b in second] for a in first])
    assert torch.allclose(together, expected.expand_as(together), atol=1e-6)


def test_default_boxes_themselves_are_coded_as_nothing():
    defaults = default_boxes(64)
    assert encode(to_edges(defaults), defaults).abs().max() < 1e-4
