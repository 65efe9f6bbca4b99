"""From a network's scores to boxes: the best of all classes, duplicates left out (greedy non-maximum suppression)."""

from typing import NamedTuple

import torch
from torch import Tensor

from trainstone.models.boxes import decode
from trainstone.models.boxes import overlap as measure_overlap

MAX_SCORES = 2**24  # looked at together: their keys take 128 MB
BLOCK = 1024  # candidates whose overlaps are looked at together
NOTHING = -1


class Found(NamedTuple):
    """A batch's boxes, the best first; where a picture has fewer than others, its last rows are empty."""

    edges: Tensor
    """float32 (batch, most, 4), within the picture; zeros where there is none."""
    labels: Tensor
    """int64 (batch, most), classes from 0; -1 where there is none."""
    scores: Tensor
    """float32 (batch, most); 0 where there is none."""


@torch.no_grad()
def find_boxes(
    scores: Tensor,
    offsets: Tensor,
    defaults: Tensor,
    *,
    min_score: float,
    before: int,
    overlap: float,
    most: int,
) -> Found:
    """Return the boxes that a network means, at most `most` a picture.

    Scores (batch, boxes, classes + 1) are logits, the background's first. The `before` best pairs of box and class of a
    picture with a score above `min_score` are looked at; of two boxes of a class that overlap by more than `overlap`
    the worse is left out, if the better is not left out itself. Equal scores: the earlier default box, then the lower
    class, is the better. What is no number is nothing.
    """
    together = max(1, MAX_SCORES // max(1, scores.shape[1] * scores.shape[2]))
    parts = [
        _choose_candidates(*part, defaults, min_score, before)
        for part in zip(scores.split(together), offsets.split(together), strict=True)
    ]
    edges, labels, chances = (torch.cat(part) for part in zip(*parts, strict=True))
    return _keep_best(edges, labels, chances, _suppress(edges, labels, overlap), most)


def _choose_candidates(
    scores: Tensor, offsets: Tensor, defaults: Tensor, min_score: float, before: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return edges, labels and scores of each picture's best pairs, the best first; labels are -1 where none is."""
    chances = scores.float().softmax(2)[..., 1:].flatten(1)  # (pictures, boxes * classes)
    num_classes = scores.shape[2] - 1
    places = torch.arange(chances.shape[1], device=chances.device)
    # Bits of positive floats are in the order of their values: with the place behind them no two keys are equal, and
    # topk, which promises no order of equals, has none to choose.
    bits = torch.where(chances > min_score, chances, 0.0).view(torch.int32)
    keys = (bits.long() << 32) | (chances.shape[1] - 1 - places)
    best = keys.topk(min(before, chances.shape[1]), dim=1).indices
    boxes, labels = best // num_classes, best % num_classes
    chances = chances.gather(1, best)
    edges = decode(offsets.float().gather(1, boxes[..., None].expand(-1, -1, 4)), defaults[boxes])
    real = (chances > min_score) & edges.isfinite().all(2)
    return edges, torch.where(real, labels, NOTHING), chances


def _suppress(edges: Tensor, labels: Tensor, max_overlap: float) -> Tensor:
    """Return which candidates stay, bool (pictures, candidates): block by block, so that memory is bounded."""
    keep = labels != NOTHING
    blocks = [slice(begin, begin + BLOCK) for begin in range(0, labels.shape[1], BLOCK)]
    for number, block in enumerate(blocks):
        for earlier in blocks[:number]:
            hides = _find_duplicates(edges, labels, earlier, block, max_overlap)
            keep[:, block] &= ~(hides & keep[:, earlier, None]).any(1)
        hides = _find_duplicates(edges, labels, block, block, max_overlap).triu_(1)
        keep[:, block] = _settle(keep[:, block], hides)
    return keep


def _find_duplicates(edges: Tensor, labels: Tensor, better: slice, worse: slice, max_overlap: float) -> Tensor:
    """Tell for each two candidates whether the better would hide the worse: bool (pictures, better, worse)."""
    same = labels[:, better, None] == labels[:, None, worse]
    return (measure_overlap(edges[:, better], edges[:, worse]) > max_overlap) & same


def _settle(candidates: Tensor, hides: Tensor) -> Tensor:
    """Return which candidates greedy suppression keeps, where `hides[:, i, j]` is set for i < j only.

    One stays if no better one that stays hides it. Asked again and again of all at once, the answer is right for the
    first candidate after one round, for the first two after two, ...; a round that changes nothing has come to the end,
    for there is one answer only. Mostly after a few rounds.
    """
    keep = candidates
    while True:
        settled = candidates & ~(hides & keep[..., None]).any(1)
        if torch.equal(settled, keep):
            return settled
        keep = settled


def _keep_best(edges: Tensor, labels: Tensor, chances: Tensor, keep: Tensor, most: int) -> Found:
    """Move what stays to the front, in its order; what does not stay goes to a place behind the last."""
    place = torch.where(keep, keep.cumsum(1) - 1, most).clamp_(max=most)
    shape = (len(edges), most + 1)
    found_edges = edges.new_zeros(*shape, 4).scatter_(1, place[..., None].expand(-1, -1, 4), edges.clamp(0, 1))
    found_labels = labels.new_full(shape, NOTHING).scatter_(1, place, labels)
    found_scores = chances.new_zeros(shape).scatter_(1, place, chances)
    return Found(found_edges[:, :most], found_labels[:, :most], found_scores[:, :most])
