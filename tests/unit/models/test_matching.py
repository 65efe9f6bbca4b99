"""Matching against loops over pictures, objects and default boxes that follow the original's words."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trainstone.models import matching
from trainstone.models.boxes import decode, default_boxes, to_centres, to_edges
from trainstone.models.matching import match

Box = tuple[float, float, float, float]


def measure_overlap(a: Box, b: Box) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0.0) * max(height, 0.0)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


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
@settings(deadline=None, max_examples=200)
def test_matching_follows_the_originals_words(objects, defaults, min_overlap):
    boxes, labels = torch.tensor([[box for box, _ in objects]]), torch.tensor([[label for _, label in objects]])
    both = torch.cat([boxes, boxes.flip(1)]), torch.cat([labels, labels.flip(1)])
    check(*both, to_centres(torch.tensor(defaults)), min_overlap)


def make_boxes(number: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.rand(number, 2, generator=generator)
    sizes = torch.rand(number, 2, generator=generator).pow(2) * 0.6 + 0.01
    edges = to_edges(torch.cat([centres, sizes], dim=1)).clamp(0, 1)
    return edges, torch.randint(80, (number,), generator=generator)


def pad(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    most = max(len(labels) for _, labels in rows)
    boxes, labels = torch.zeros(len(rows), most, 4), torch.full((len(rows), most), -1)
    for row, (edges, classes) in enumerate(rows):
        boxes[row, : len(edges)], labels[row, : len(edges)] = edges, classes
    return boxes, labels


def test_pictures_with_one_no_and_many_objects_are_matched_side_by_side():
    check(*pad([make_boxes(number, seed=number) for number in (0, 1, 5, 20)]), default_boxes(96))


def test_300_objects_on_the_originals_boxes_are_matched_as_one_by_one(monkeypatch):
    crowded, few = make_boxes(300, seed=1), make_boxes(3, seed=2)
    boxes, labels = pad([crowded, few])
    together = match(boxes, labels, default_boxes(300), min_overlap=0.5)
    monkeypatch.setattr(matching, "MAX_PAIRS", 1)  # a picture at a time
    apart = match(boxes, labels, default_boxes(300), min_overlap=0.5)
    assert all(torch.equal(a, b) for a, b in zip(together, apart, strict=True))
    alone, _ = match(few[0][None], few[1][None], default_boxes(300), min_overlap=0.5)
    assert torch.equal(together[0][1:], alone)
    assert torch.equal(together[0].count_nonzero(1) > 0, torch.tensor([True, True]))


def test_each_object_has_a_default_box_however_small_or_large_it_is():
    boxes = torch.tensor([[0.5, 0.5, 0.502, 0.502], [0.0, 0.0, 1.0, 1.0], [0.99, 0.0, 1.0, 1.0], [0.0, 0.98, 0.3, 1.0]])
    targets, offsets = match(boxes[None], torch.tensor([[0, 1, 2, 3]]), default_boxes(300), min_overlap=0.5)
    assert set(targets.unique().tolist()) == {0, 1, 2, 3, 4}
    assert bool(offsets.isfinite().all())


def test_an_overlap_of_just_a_half_is_not_enough():
    defaults = to_centres(torch.tensor([[0.0, 0.0, 0.5, 0.5], [0.0, 0.0, 0.5, 0.25], [0.75, 0.75, 1.0, 1.0]]))
    boxes, labels = torch.tensor([[[0.0, 0.0, 0.5, 0.5]]]), torch.tensor([[7]])
    assert match(boxes, labels, defaults, min_overlap=0.5)[0].tolist() == [[8, 0, 0]]
    assert match(boxes, labels, defaults, min_overlap=0.49)[0].tolist() == [[8, 8, 0]]


def test_equals_go_to_the_later_default_box_and_the_later_object():
    defaults = torch.tensor([[0.5, 0.5, 0.25, 0.25]] * 3)
    box = [0.125, 0.125, 0.875, 0.875]  # an overlap of 1/9 with all three
    boxes = torch.tensor([[box, box]])
    assert match(boxes, torch.tensor([[4, 6]]), defaults, min_overlap=0.5)[0].tolist() == [[0, 0, 7]]


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
