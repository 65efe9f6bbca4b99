"""Found boxes against a greedy loop over sorted candidates in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trainstone.models import nms
from trainstone.models.boxes import decode, default_boxes, encode, to_centres
from trainstone.models.nms import Found, find_boxes

Row = tuple[int, float, tuple[float, ...]]


def measure_overlap(a: list[float], b: list[float]) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0.0) * max(height, 0.0)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    return shared / union if union > 0 else 0.0


def find_slowly(
    chances: list[list[float]], edges: list[list[float]], min_score: float, before: int, overlap: float, most: int
) -> list[Row]:
    """The words of the original for one picture; `chances` are without the background."""
    pairs = [(chance, -place, -label) for place, row in enumerate(chances) for label, chance in enumerate(row)]
    kept: list[Row] = []
    for chance, place, label in sorted((pair for pair in pairs if pair[0] > min_score), reverse=True)[:before]:
        box = edges[-place]
        if all(other != -label or measure_overlap(list(better), box) <= overlap for other, _, better in kept):
            kept.append((-label, chance, tuple(box)))
    return [(label, chance, tuple(min(max(side, 0.0), 1.0) for side in box)) for label, chance, box in kept[:most]]


def check(scores: Tensor, offsets: Tensor, defaults: Tensor, **asked) -> Found:
    found = find_boxes(scores, offsets, defaults, **asked)
    most = asked["most"]
    shapes = [tuple(part.shape) for part in found]
    assert shapes == [(len(scores), most, 4), (len(scores), most), (len(scores), most)]
    chances, edges = scores.softmax(2)[..., 1:].tolist(), decode(offsets, defaults).tolist()
    for row in range(len(scores)):
        expected = find_slowly(chances[row], edges[row], **asked)
        number = len(expected)
        assert found.labels[row].tolist() == [label for label, _, _ in expected] + [-1] * (most - number)
        assert found.scores[row].tolist() == pytest.approx(
            [chance for _, chance, _ in expected] + [0.0] * (most - number)
        )
        assert torch.allclose(
            found.edges[row, :number], torch.tensor([list(box) for _, _, box in expected] or []).view(-1, 4)
        )
        assert not found.edges[row, number:].any()
    return found


# Boxes on a grid: their overlaps are quotients of small numbers, far enough from the thresholds asked for below.
cells, sides = st.integers(-2, 14), st.integers(0, 8)
grid_boxes = st.tuples(cells, cells, sides, sides).map(lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3]))
DEFAULT = torch.tensor([0.5, 0.5, 1.0, 1.0])


def place_boxes(boxes: list[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    """Return offsets that decode to boxes on a grid of sixteenths, and their default boxes."""
    centres = to_centres(torch.tensor(boxes, dtype=torch.float32) / 16)
    defaults = torch.cat([centres[:, :2], centres[:, 2:].clamp(min=1e-6)], dim=1)
    return torch.zeros(len(boxes), 4), defaults


@given(
    boxes=st.lists(grid_boxes, min_size=1, max_size=12),
    seed=st.integers(0, 2**31),
    levels=st.sampled_from([1, 3, 1000]),  # few levels: many equal scores
    num_classes=st.integers(1, 4),
    min_score=st.sampled_from([0.0, 0.1, 0.4]),
    before=st.sampled_from([1, 3, 7, 20, 200]),
    overlap=st.sampled_from([0.0001, 0.3003, 0.5001, 0.9001]),
    most=st.sampled_from([1, 3, 50]),
)
@settings(deadline=None, max_examples=150)
def test_found_boxes_are_those_of_the_greedy_way(boxes, seed, levels, num_classes, min_score, before, overlap, most):
    offsets, defaults = place_boxes(boxes)
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(levels, (2, len(boxes), num_classes + 1), generator=generator) * (3.0 / levels)
    check(scores, offsets.expand(2, -1, -1), defaults, min_score=min_score, before=before, overlap=overlap, most=most)


@pytest.mark.parametrize("block", [7, 1024])
def test_many_crowded_boxes_in_blocks_and_at_once(monkeypatch, block):
    monkeypatch.setattr(nms, "BLOCK", block)
    monkeypatch.setattr(nms, "MAX_SCORES", 1)  # a picture at a time
    generator = torch.Generator().manual_seed(0)
    defaults = default_boxes(64)
    scores = torch.randn(3, len(defaults), 4, generator=generator) * 2
    offsets = torch.randn(3, len(defaults), 4, generator=generator)
    found = check(scores, offsets, defaults, min_score=0.01, before=120, overlap=0.5, most=100)
    assert 1 < found.labels.ge(0).sum(1).min() < 100


def test_a_long_chain_is_settled_as_the_greedy_way_does():
    """Each box overlaps the next one only: every second one stays, and the last is known last."""
    boxes = [(left, 0, left + 8, 8) for left in range(0, 160, 2)]  # neighbours overlap by 0.6, the next but one by 1/3
    offsets, defaults = place_boxes(boxes)
    scores = torch.zeros(1, len(boxes), 2)
    scores[0, :, 1] = torch.linspace(3, 1, len(boxes))
    found = check(scores, offsets[None], defaults, min_score=0.0, before=200, overlap=0.5, most=200)
    assert found.labels.ge(0).sum() == len(boxes) // 2


def test_boxes_are_clipped_after_duplicates_are_looked_for():
    """Within the picture the two are the same; they are not where they reach beyond it."""
    edges = torch.tensor([[0.0, 0.0, 1.0, 1.0], [-2.0, 0.0, 1.0, 1.0]])
    offsets = encode(edges, DEFAULT)[None]
    asked = {"min_score": 0.0, "before": 200, "overlap": 0.5, "most": 3}
    found = find_boxes(torch.zeros(1, 2, 2), offsets, DEFAULT.expand(2, 4), **asked)
    assert found.labels[0].tolist() == [0, 0, -1]
    assert torch.allclose(found.edges[0, 0], found.edges[0, 1], atol=1e-6)


def test_a_score_that_is_just_the_least_is_left_out():
    asked = {"before": 200, "overlap": 0.5, "most": 2}
    scores, offsets = torch.zeros(1, 1, 2), torch.zeros(1, 1, 4)  # a chance of exactly a half
    for min_score, labels in ((0.5, [-1, -1]), (0.49, [0, -1])):
        assert find_boxes(scores, offsets, DEFAULT[None], min_score=min_score, **asked).labels[0].tolist() == labels


@pytest.mark.parametrize("where", ["scores", "offsets"])
def test_what_is_no_number_is_nothing(where):
    scores, offsets = torch.zeros(2, 3, 2), torch.zeros(2, 3, 4)
    (scores if where == "scores" else offsets)[0] = math.nan
    defaults = torch.tensor([[0.2, 0.5, 0.1, 0.1], [0.5, 0.5, 0.1, 0.1], [0.8, 0.5, 0.1, 0.1]])
    found = find_boxes(scores, offsets, defaults, min_score=0.0, before=200, overlap=0.5, most=4)
    assert found.labels.tolist() == [[-1, -1, -1, -1], [0, 0, 0, -1]]
    assert bool(found.edges.isfinite().all())
    assert not found.scores[0].any()
