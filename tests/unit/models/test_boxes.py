"""Tests of default boxes against the original's values; encoding, matching and detection against slow loops."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trainstone.models import boxes as boxes_module
from trainstone.models.boxes import FoundBoxes, decode, default_boxes, encode, find_boxes, match, to_centres, to_edges

# MLPerf's SSD300, from its paper and its reference implementation.
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
            longer, shorter = scale * math.sqrt(aspect), scale / math.sqrt(aspect)
            shapes += [(longer, shorter), (shorter, longer)]
        for row in range(CELLS[level]):
            for column in range(CELLS[level]):
                x, y = (column + 0.5) * STEPS[level], (row + 0.5) * STEPS[level]
                boxes += [tuple(min(max(side / 300, 0.0), 1.0) for side in (x, y, *shape)) for shape in shapes]
    return boxes


def test_default_boxes_300_pixels_equal_original():
    assert (DEFAULTS.shape, DEFAULTS.dtype) == ((8732, 4), torch.float32)
    assert torch.allclose(DEFAULTS, torch.tensor(list_originals_boxes()), rtol=0, atol=1e-7)
    with pytest.raises(ValueError, match="at least 64 pixels"):
        default_boxes(63)


@pytest.mark.parametrize(
    ("image_size", "cells", "number"),
    [
        (512, (64, 32, 16, 8, 4, 2, 1), 24564),  # the paper's SSD512
        (160, (20, 10, 5, 3, 1), 1600 + 600 + 150 + 36 + 4),
        (96, (12, 6, 3, 1), 576 + 216 + 36 + 4),
        (64, (8, 4, 2, 1), 256 + 96 + 16 + 4),
    ],
)
def test_list_levels_has_cells_of_convolutions(image_size, cells, number):
    assert tuple(level.cells for level in boxes_module.list_levels(image_size)) == cells
    assert len(default_boxes(image_size)) == number


@pytest.mark.parametrize("image_size", [64, 65, 91, 100, 112, 127, 128, 224, 300, 333, 700])
def test_default_boxes_scales_grow_and_boxes_are_inside_image(image_size):
    levels = boxes_module.list_levels(image_size)
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
def test_default_boxes_overlap_30_pixel_object_by_half(image_size):
    starts = torch.arange(0, image_size - 30, 5.0)
    left, top = torch.meshgrid(starts, starts, indexing="ij")
    objects = torch.stack([left, top, left + 30, top + 30], dim=-1).reshape(-1, 4) / image_size
    best = boxes_module.overlap(objects, to_edges(default_boxes(image_size))).amax(1)
    assert best.min() > 0.5


shares = st.floats(0, 1, width=32)
boxes_of_an_area = st.tuples(shares, shares, shares, shares).map(
    lambda b: (b[0] * 0.9, b[1] * 0.9, b[0] * 0.9 + 0.01 + b[2] * 0.09, b[1] * 0.9 + 0.01 + b[3] * 0.09)
)


@given(st.lists(boxes_of_an_area, min_size=1, max_size=5), st.integers(0, 8731))
@settings(deadline=None)
def test_decode_inverts_encode(boxes, which):
    edges, defaults = torch.tensor(boxes, dtype=torch.float64), DEFAULTS[which].double()
    assert torch.allclose(decode(encode(edges, defaults), defaults), edges, atol=1e-12)
    assert torch.allclose(to_edges(to_centres(edges)), edges, atol=1e-12)


def test_encode_equals_original():
    default = torch.tensor([0.5, 0.4, 0.2, 0.1], dtype=torch.float64)
    box = torch.tensor([0.4, 0.3, 0.8, 0.5], dtype=torch.float64)  # centre 0.6, 0.4; sides 0.4, 0.2
    expected = [0.1 / 0.2 / 0.1, 0.0, math.log(2) / 0.2, math.log(2) / 0.2]
    assert encode(box, default).tolist() == pytest.approx(expected, abs=1e-12)


Box = tuple[float, ...]


def measure_overlap(a: Sequence[float], b: Sequence[float]) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0.0) * max(height, 0.0)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    return shared / union if union > 0 else 0.0


def match_slowly(boxes: list[Box], labels: list[int], defaults: list[Box], min_overlap: float) -> list[int]:
    """Return for each default box, as edges, the matched object, or -1."""
    real = [o for o, (b, label) in enumerate(zip(boxes, labels, strict=True)) if label >= 0 and is_real(b)]
    overlaps = {o: [measure_overlap(boxes[o], default) for default in defaults] for o in real}
    for row in overlaps.values():
        best = max(range(len(row)), key=lambda place: (row[place], place))
        row[best] = 2.0
    matched = [-1] * len(defaults)
    for place in range(len(defaults)):
        best = max(real, key=lambda o: (overlaps[o][place], o), default=-1)
        if best >= 0 and overlaps[best][place] > min_overlap:
            matched[place] = best
    return matched


def is_real(box: Box) -> bool:
    return box[2] > box[0] and box[3] > box[1]


def check(boxes: Tensor, labels: Tensor, defaults: Tensor, min_overlap: float = 0.5) -> None:
    targets, offsets = match(boxes, labels, defaults, min_overlap=min_overlap)
    assert (targets.dtype, offsets.dtype) == (torch.int64, torch.float32)
    edges = to_edges(defaults.double()).tolist()
    for row in range(len(boxes)):
        matched = match_slowly(boxes[row].double().tolist(), labels[row].tolist(), edges, min_overlap)
        assert targets[row].tolist() == [0 if o < 0 else int(labels[row, o]) + 1 for o in matched]
        decoded = decode(offsets[row], defaults)
        for place, o in enumerate(matched):
            if o < 0:
                assert not offsets[row, place].any()
            else:
                assert torch.allclose(decoded[place], boxes[row, o], atol=1e-5)


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
def test_match_equals_slow_reference(objects, defaults, min_overlap):
    boxes, labels = torch.tensor([[box for box, _ in objects]]), torch.tensor([[label for _, label in objects]])
    both = torch.cat([boxes, boxes.flip(1)]), torch.cat([labels, labels.flip(1)])
    check(*both, to_centres(torch.tensor(defaults)), min_overlap)


def test_match_many_objects_equals_single_images(monkeypatch):
    torch.manual_seed(1)
    boxes = to_edges(torch.cat([torch.rand(2, 300, 2), torch.rand(2, 300, 2).pow(2) * 0.6 + 0.01], dim=2)).clamp(0, 1)
    labels = torch.randint(80, (2, 300))
    labels[1, 3:] = -1
    together = match(boxes, labels, DEFAULTS, min_overlap=0.5)
    monkeypatch.setattr(boxes_module, "MAX_PAIRS", 1)  # an image at a time
    apart = match(boxes, labels, DEFAULTS, min_overlap=0.5)
    assert all(torch.equal(a, b) for a, b in zip(together, apart, strict=True))
    single, _ = match(boxes[1:, :3], labels[1:, :3], DEFAULTS, min_overlap=0.5)
    assert torch.equal(together[0][1:], single)


@pytest.mark.parametrize(
    "box", [(0.5, 0.5, 0.5, 0.9), (0.9, 0.1, 0.1, 0.9), (math.nan, 0.0, 1.0, 1.0), (0.0, 0.0, math.inf, 1.0)]
)
def test_match_ignores_box_without_area(box):
    boxes = torch.tensor([[box, (0.1, 0.1, 0.6, 0.6)], [box, box]])
    targets, offsets = match(boxes, torch.tensor([[5, 2], [5, 5]]), default_boxes(96), min_overlap=0.5)
    assert set(targets[0].unique().tolist()) == {0, 3}
    assert not targets[1].any()
    assert not offsets[1].any()
    assert bool(offsets.isfinite().all())


@pytest.mark.parametrize("shape", [(2, 0), (0, 3)])
def test_match_without_objects_is_background(shape):
    boxes, labels = torch.zeros(*shape, 4), torch.zeros(shape, dtype=torch.int64)
    targets, offsets = match(boxes, labels, default_boxes(96), min_overlap=0.5)
    assert targets.shape == (shape[0], 832)
    assert offsets.shape == (shape[0], 832, 4)
    assert not targets.any()


def test_match_does_not_synchronise_device():
    """Reading a tensor's content fails on the meta device."""
    boxes, labels = torch.zeros(2, 8, 4, device="meta"), torch.zeros(2, 8, dtype=torch.int64, device="meta")
    targets, offsets = match(boxes, labels, default_boxes(300).to("meta"), min_overlap=0.5)
    assert (targets.shape, offsets.shape) == ((2, 8732), (2, 8732, 4))


Row = tuple[int, float, tuple[float, ...]]


def find_slowly(
    chances: list[list[float]],
    edges: list[list[float]],
    min_score: float,
    max_candidates: int,
    max_overlap: float,
    max_boxes: int,
) -> list[Row]:
    """Return one image's boxes by plain greedy suppression; `chances` are without the background."""
    pairs = [(chance, -place, -label) for place, row in enumerate(chances) for label, chance in enumerate(row)]
    kept: list[Row] = []
    for chance, place, label in sorted((pair for pair in pairs if pair[0] > min_score), reverse=True)[:max_candidates]:
        box = edges[-place]
        if all(other != -label or measure_overlap(better, box) <= max_overlap for other, _, better in kept):
            kept.append((-label, chance, tuple(box)))
    return [(label, chance, tuple(min(max(side, 0.0), 1.0) for side in box)) for label, chance, box in kept[:max_boxes]]


def check_found(scores: Tensor, offsets: Tensor, defaults: Tensor, **requested) -> FoundBoxes:
    found = find_boxes(scores, offsets, defaults, **requested)
    most = requested["max_boxes"]
    shapes = [tuple(part.shape) for part in found]
    assert shapes == [(len(scores), most, 4), (len(scores), most), (len(scores), most)]
    chances, edges = scores.softmax(2)[..., 1:].tolist(), decode(offsets, defaults).tolist()
    for row in range(len(scores)):
        expected = find_slowly(chances[row], edges[row], **requested)
        number = len(expected)
        assert found.labels[row].tolist() == [label for label, _, _ in expected] + [-1] * (most - number)
        chances_found = [chance for _, chance, _ in expected] + [0.0] * (most - number)
        assert found.scores[row].tolist() == pytest.approx(chances_found)
        boxes = torch.tensor([box for _, _, box in expected]).view(-1, 4)
        assert torch.allclose(found.edges[row, :number], boxes)
        assert not found.edges[row, number:].any()
    return found


# Boxes on a grid: their overlaps are quotients of small numbers, far enough from the thresholds below.
far, near = st.integers(-2, 14), st.integers(0, 8)
whole_boxes = st.tuples(far, far, near, near).map(lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3]))
DEFAULT = torch.tensor([0.5, 0.5, 1.0, 1.0])


def place_boxes(boxes: list[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    """Return offsets that decode to boxes on a grid of sixteenths, and their default boxes."""
    centres = to_centres(torch.tensor(boxes, dtype=torch.float32) / 16)
    defaults = torch.cat([centres[:, :2], centres[:, 2:].clamp(min=1e-6)], dim=1)
    return torch.zeros(len(boxes), 4), defaults


@given(
    boxes=st.lists(whole_boxes, min_size=1, max_size=12),
    seed=st.integers(0, 2**31),
    levels=st.sampled_from([1, 3, 1000]),  # few levels: many equal scores
    num_classes=st.integers(1, 4),
    min_score=st.sampled_from([0.0, 0.1, 0.4]),
    before=st.sampled_from([1, 3, 7, 20, 200]),
    overlap=st.sampled_from([0.0001, 0.3003, 0.5001, 0.9001]),
    most=st.sampled_from([1, 3, 50]),
)
@settings(deadline=None, max_examples=150)
def test_find_boxes_equals_slow_greedy_reference(boxes, seed, levels, num_classes, min_score, before, overlap, most):
    offsets, defaults = place_boxes(boxes)
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(levels, (2, len(boxes), num_classes + 1), generator=generator) * (3.0 / levels)
    check_found(
        scores,
        offsets.expand(2, -1, -1),
        defaults,
        min_score=min_score,
        max_candidates=before,
        max_overlap=overlap,
        max_boxes=most,
    )


@pytest.mark.parametrize("block", [7, 1024])
def test_find_boxes_in_blocks_equals_reference(monkeypatch, block):
    monkeypatch.setattr(boxes_module, "BLOCK", block)
    monkeypatch.setattr(boxes_module, "MAX_SCORES", 1)  # an image at a time
    generator = torch.Generator().manual_seed(0)
    defaults = default_boxes(64)
    scores = torch.randn(3, len(defaults), 4, generator=generator) * 2
    offsets = torch.randn(3, len(defaults), 4, generator=generator)
    found = check_found(scores, offsets, defaults, min_score=0.01, max_candidates=120, max_overlap=0.5, max_boxes=100)
    assert 1 < found.labels.ge(0).sum(1).min() < 100


def test_find_boxes_chain_of_overlaps_keeps_every_second():
    """Each box overlaps only the next one: every second one is kept, and the last is decided last."""
    boxes = [(left, 0, left + 8, 8) for left in range(0, 160, 2)]  # neighbours overlap by 0.6, the next but one by 1/3
    offsets, defaults = place_boxes(boxes)
    scores = torch.zeros(1, len(boxes), 2)
    scores[0, :, 1] = torch.linspace(3, 1, len(boxes))
    found = check_found(
        scores, offsets[None], defaults, min_score=0.0, max_candidates=200, max_overlap=0.5, max_boxes=200
    )
    assert found.labels.ge(0).sum() == len(boxes) // 2


def test_find_boxes_clips_after_suppression():
    """The two boxes are equal within the image, but differ outside it."""
    edges = torch.tensor([[0.0, 0.0, 1.0, 1.0], [-2.0, 0.0, 1.0, 1.0]])
    offsets = encode(edges, DEFAULT)[None]
    requested = {"min_score": 0.0, "max_candidates": 200, "max_overlap": 0.5, "max_boxes": 3}
    found = find_boxes(torch.zeros(1, 2, 2), offsets, DEFAULT.expand(2, 4), **requested)
    assert found.labels[0].tolist() == [0, 0, -1]
    assert torch.allclose(found.edges[0, 0], found.edges[0, 1], atol=1e-6)


def test_find_boxes_excludes_score_equal_to_minimum():
    requested = {"max_candidates": 200, "max_overlap": 0.5, "max_boxes": 2}
    scores, offsets = torch.zeros(1, 1, 2), torch.zeros(1, 1, 4)  # a chance of exactly a half
    for min_score, labels in ((0.5, [-1, -1]), (0.49, [0, -1])):
        assert find_boxes(scores, offsets, DEFAULT[None], min_score=min_score, **requested).labels[0].tolist() == labels


@pytest.mark.parametrize("where", ["scores", "offsets"])
def test_find_boxes_ignores_nan(where):
    scores, offsets = torch.zeros(2, 3, 2), torch.zeros(2, 3, 4)
    (scores if where == "scores" else offsets)[0] = math.nan
    defaults = torch.tensor([[0.2, 0.5, 0.1, 0.1], [0.5, 0.5, 0.1, 0.1], [0.8, 0.5, 0.1, 0.1]])
    found = find_boxes(scores, offsets, defaults, min_score=0.0, max_candidates=200, max_overlap=0.5, max_boxes=4)
    assert found.labels.tolist() == [[-1, -1, -1, -1], [0, 0, 0, -1]]
    assert bool(found.edges.isfinite().all())
    assert not found.scores[0].any()
