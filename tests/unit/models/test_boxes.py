"""Default boxes against the original's numbers, arithmetic of boxes and matching against plain loops."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trainstone.models import boxes as boxes_module
from trainstone.models.boxes import decode, default_boxes, encode, list_levels, match, overlap, to_centres, to_edges

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


def test_a_picture_too_small_is_refused_with_what_is_needed():
    with pytest.raises(ValueError, match="at least 64 pixels, not 63"):
        default_boxes(63)


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


Box = tuple[float, ...]


def measure_overlap(a: Box, b: Box) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0.0) * max(height, 0.0)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    return shared / union if union > 0 else 0.0


def match_slowly(boxes: list[Box], labels: list[int], defaults: list[Box], min_overlap: float) -> list[int]:
    """Return for each default box, as edges, the object that it learns, or -1."""
    real = [o for o, (b, label) in enumerate(zip(boxes, labels, strict=True)) if label >= 0 and is_real(b)]
    overlaps = {o: [measure_overlap(boxes[o], default) for default in defaults] for o in real}
    for row in overlaps.values():
        best = max(range(len(row)), key=lambda place: (row[place], place))
        row[best] = 2.0
    learnt = [-1] * len(defaults)
    for place in range(len(defaults)):
        best = max(real, key=lambda o: (overlaps[o][place], o), default=-1)
        if best >= 0 and overlaps[best][place] > min_overlap:
            learnt[place] = best
    return learnt


def is_real(box: Box) -> bool:
    return box[2] > box[0] and box[3] > box[1]


def check(boxes: Tensor, labels: Tensor, defaults: Tensor, min_overlap: float = 0.5) -> None:
    targets, offsets = match(boxes, labels, defaults, min_overlap=min_overlap)
    assert (targets.dtype, offsets.dtype) == (torch.int64, torch.float32)
    edges = to_edges(defaults.double()).tolist()
    for row in range(len(boxes)):
        learnt = match_slowly(boxes[row].double().tolist(), labels[row].tolist(), edges, min_overlap)
        assert targets[row].tolist() == [0 if o < 0 else int(labels[row, o]) + 1 for o in learnt]
        meant = decode(offsets[row], defaults)
        for place, o in enumerate(learnt):
            if o < 0:
                assert not offsets[row, place].any()
            else:
                assert torch.allclose(meant[place], boxes[row, o], atol=1e-5)


# On a grid of sixteenths all overlaps are quotients of small whole numbers: equals are equal in every precision.
cells = st.integers(-2, 18).map(lambda number: number / 16)
grid_boxes = st.tuples(cells, cells, cells, cells)  # also empty and inside out
sides = st.integers(1, 16).map(lambda number: number / 16)
real_boxes = st.tuples(cells, cells, sides, sides).map(lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3]))


@given(
    objects=st.lists(st.tuples(real_boxes | grid_boxes, st.integers(-1, 3)), min_size=1, max_size=8),
    defaults=st.lists(real_boxes, min_size=1, max_size=10),
    min_overlap=st.sampled_from([0.1, 0.25, 0.5, 0.9]),
)
@settings(deadline=None, max_examples=120)
def test_matching_follows_the_originals_words(objects, defaults, min_overlap):
    boxes, labels = torch.tensor([[box for box, _ in objects]]), torch.tensor([[label for _, label in objects]])
    both = torch.cat([boxes, boxes.flip(1)]), torch.cat([labels, labels.flip(1)])
    check(*both, to_centres(torch.tensor(defaults)), min_overlap)


def test_300_objects_on_the_originals_boxes_are_matched_as_one_by_one(monkeypatch):
    torch.manual_seed(1)
    boxes = to_edges(torch.cat([torch.rand(2, 300, 2), torch.rand(2, 300, 2).pow(2) * 0.6 + 0.01], dim=2)).clamp(0, 1)
    labels = torch.randint(80, (2, 300))
    labels[1, 3:] = -1
    together = match(boxes, labels, DEFAULTS, min_overlap=0.5)
    monkeypatch.setattr(boxes_module, "MAX_PAIRS", 1)  # an image at a time
    apart = match(boxes, labels, DEFAULTS, min_overlap=0.5)
    assert all(torch.equal(a, b) for a, b in zip(together, apart, strict=True))
    alone, _ = match(boxes[1:, :3], labels[1:, :3], DEFAULTS, min_overlap=0.5)
    assert torch.equal(together[0][1:], alone)


@pytest.mark.parametrize(
    "box", [(0.5, 0.5, 0.5, 0.9), (0.9, 0.1, 0.1, 0.9), (math.nan, 0.0, 1.0, 1.0), (0.0, 0.0, math.inf, 1.0)]
)
def test_a_box_without_an_area_is_no_object(box):
    boxes = torch.tensor([[box, (0.1, 0.1, 0.6, 0.6)], [box, box]])
    targets, offsets = match(boxes, torch.tensor([[5, 2], [5, 5]]), default_boxes(96), min_overlap=0.5)
    assert set(targets[0].unique().tolist()) == {0, 3}
    assert not targets[1].any()
    assert not offsets[1].any()
    assert bool(offsets.isfinite().all())


@pytest.mark.parametrize("shape", [(2, 0), (0, 3)])
def test_nothing_to_match_is_all_background(shape):
    boxes, labels = torch.zeros(*shape, 4), torch.zeros(shape, dtype=torch.int64)
    targets, offsets = match(boxes, labels, default_boxes(96), min_overlap=0.5)
    assert targets.shape == (shape[0], 832)
    assert offsets.shape == (shape[0], 832, 4)
    assert not targets.any()


def test_nothing_waits_for_the_device():
    """The meta device has no content: whatever looks at one fails there."""
    boxes, labels = torch.zeros(2, 8, 4, device="meta"), torch.zeros(2, 8, dtype=torch.int64, device="meta")
    targets, offsets = match(boxes, labels, default_boxes(300).to("meta"), min_overlap=0.5)
    assert (targets.shape, offsets.shape) == ((2, 8732), (2, 8732, 4))
