"""Boxes of an SSD: default boxes, encoding, matching with objects, and decoding of detections with greedy
non-maximum suppression.

A box is four fractions of the image's width and height, as edges (left, top, right, bottom) or as a centre (x, y,
width, height); the network predicts its offset from a default box.

For 300 pixels everything equals the original (arXiv 1512.02325, MLPerf's SSD300). Other sizes follow our own rule.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

MIN_IMAGE_SIZE = 64
FIRST_STEP = 8  # pixels between two cells of the finest map: the network has halved the image three times
# The smallest boxes, in pixels for every image size: with 21 pixels and cells 8 pixels apart, an object of a box's
# shape overlaps a box by about a half at any position. Boxes scaled down with a small image would miss most objects.
FIRST_SCALES = (21.0, 45.0)
LAST_SCALE = 1.05  # of the image
FEW_CELLS = (
    4  # maps with at most this many cells per side divide the image evenly; larger ones keep the network's steps
)
CENTRE_VARIANCE, SIZE_VARIANCE = 0.1, 0.2
MAX_PAIRS = 2**24  # objects x default boxes per chunk: 64 MB per tensor
FORCED = 2.0  # more than any overlap
OUTSIDE = -3.0  # a box with all edges at this value overlaps nothing in the image
MAX_SCORES = 2**24  # scores per chunk: their keys take 128 MB
BLOCK = 1024  # candidates per chunk of overlaps
NO_LABEL = -1


class Level(NamedTuple):
    """One of the feature maps with boxes, from fine to coarse."""

    cells: int
    """Cells per side."""
    step: float
    """Pixels between two cells."""
    padded: bool
    """Whether the convolution before it is padded (halves the map) or not (two cells less); both are 3x3."""
    scale: float
    """Pixels of its square box; a second, larger square is the geometric mean of this and the next level's scale."""
    next_scale: float
    aspects: tuple[float, ...]

    @property
    def boxes_per_cell(self) -> int:
        """Two squares, and each aspect ratio in landscape and portrait."""
        return 2 + 2 * len(self.aspects)


def list_levels(image_size: int) -> tuple[Level, ...]:
    """Return the feature maps of a square image, down to a single cell; ValueError if the image is too small.

    Scales are 21, then from 45 pixels in even steps to 1.05 of the image: for 300 pixels 21, 45, 99, ... 315.
    """
    if image_size < MIN_IMAGE_SIZE:
        raise ValueError(f"an SSD needs images of at least {MIN_IMAGE_SIZE} pixels")
    sizes = [(math.ceil(image_size / FIRST_STEP), True)]
    while sizes[-1][0] > 1:
        before = sizes[-1][0]
        padded = before not in (3, 5)  # 5 to 3 to 1, as the original ends
        sizes.append(((before + 1) // 2 if padded else before - 2, padded))
    first, second = FIRST_SCALES
    growth = (LAST_SCALE * image_size - second) / (len(sizes) - 1)
    scales = [first, *(second + growth * number for number in range(len(sizes)))]
    levels = []
    for number, (cells, padded) in enumerate(sizes):
        step = image_size / cells if cells <= FEW_CELLS else float(FIRST_STEP * 2**number)
        outermost = number == 0 or number >= len(sizes) - 2
        aspects = (2.0,) if outermost else (2.0, 3.0)
        levels.append(Level(cells, step, padded, scales[number], scales[number + 1], aspects))
    return tuple(levels)


def default_boxes(image_size: int) -> Tensor:
    """Return all default boxes as centres, float32 (boxes, 4): level by level, row by row; 8732 for 300 pixels."""
    boxes: list[tuple[float, float, float, float]] = []
    for level in list_levels(image_size):
        middle = math.sqrt(level.scale * level.next_scale)
        shapes = [(level.scale, level.scale), (middle, middle)]
        for aspect in level.aspects:
            longer, shorter = level.scale * math.sqrt(aspect), level.scale / math.sqrt(aspect)
            shapes += [(longer, shorter), (shorter, longer)]
        centres = [(number + 0.5) * level.step for number in range(level.cells)]
        boxes += [(x, y, width, height) for y in centres for x in centres for width, height in shapes]
    return torch.tensor(boxes, dtype=torch.float64).clamp_(0, image_size).div_(image_size).float()


def to_edges(boxes: Tensor) -> Tensor:
    """Convert centres (..., 4) to edges."""
    centre, size = boxes[..., :2], boxes[..., 2:]
    return torch.cat([centre - size / 2, centre + size / 2], dim=-1)


def to_centres(boxes: Tensor) -> Tensor:
    """Convert edges (..., 4) to centres."""
    first, last = boxes[..., :2], boxes[..., 2:]
    return torch.cat([(first + last) / 2, last - first], dim=-1)


def encode(edges: Tensor, defaults: Tensor) -> Tensor:
    """Return the offsets of boxes, as edges (..., 4), from default boxes, as centres: the network's targets."""
    boxes = to_centres(edges)
    centre = (boxes[..., :2] - defaults[..., :2]) / defaults[..., 2:] / CENTRE_VARIANCE
    size = (boxes[..., 2:] / defaults[..., 2:]).log() / SIZE_VARIANCE
    return torch.cat([centre, size], dim=-1)


def decode(offsets: Tensor, defaults: Tensor) -> Tensor:
    """Return the boxes for predicted offsets, as edges (..., 4): the inverse of `encode`."""
    centre = defaults[..., :2] + offsets[..., :2] * CENTRE_VARIANCE * defaults[..., 2:]
    size = defaults[..., 2:] * (offsets[..., 2:] * SIZE_VARIANCE).exp()
    return to_edges(torch.cat([centre, size], dim=-1))


def overlap(first: Tensor, second: Tensor) -> Tensor:
    """Return the pairwise intersection over union, (..., a, b), of edges (..., a, 4) and (..., b, 4).

    Boxes without an area overlap nothing.
    """
    left, top, right, bottom = first[..., :, None, :].unbind(-1)
    left_2, top_2, right_2, bottom_2 = second[..., None, :, :].unbind(-1)
    # In place: with many images these are the largest tensors of a step after the activations.
    shared = torch.minimum(right, right_2).sub_(torch.maximum(left, left_2)).clamp_(min=0)
    shared.mul_(torch.minimum(bottom, bottom_2).sub_(torch.maximum(top, top_2)).clamp_(min=0))
    union = ((right - left) * (bottom - top) + (right_2 - left_2) * (bottom_2 - top_2)).sub_(shared)
    return shared.div_(union.clamp_(min=torch.finfo(union.dtype).tiny))


@torch.no_grad()
def match(boxes: Tensor, labels: Tensor, defaults: Tensor, *, min_overlap: float) -> tuple[Tensor, Tensor]:
    """Match default boxes with objects and return their training targets.

    The targets are classes, int64 (batch, defaults), 0 for background and class + 1 for an object; and offsets to the
    object, float32 (batch, defaults, 4), zeros for background. `boxes` (batch, objects, 4) are edges, `labels` (batch,
    objects) classes from 0, negative for padding; `defaults` (defaults, 4) are centres. Boxes without an area are
    ignored. If two objects have the same best default box, the later one gets it; of equally good default boxes the
    last is the best.
    """
    num_images, num_objects, num_defaults = len(boxes), boxes.shape[1], len(defaults)
    if not num_objects or not num_images:
        return labels.new_zeros(num_images, num_defaults), boxes.new_zeros(num_images, num_defaults, 4)
    chunk = max(1, MAX_PAIRS // (num_objects * num_defaults))
    parts = zip(boxes.split(chunk), labels.split(chunk), strict=True)
    matched = [_match_part(*part, defaults, min_overlap) for part in parts]
    if len(matched) == 1:
        return matched[0]
    targets, offsets = zip(*matched, strict=True)
    return torch.cat(targets), torch.cat(offsets)


def _match_part(boxes: Tensor, labels: Tensor, defaults: Tensor, min_overlap: float) -> tuple[Tensor, Tensor]:
    sizes = boxes[..., 2:] - boxes[..., :2]
    real = (labels >= 0) & ((sizes > 0) & sizes.isfinite()).all(-1)  # (images, objects)
    boxes = torch.where(real[..., None], boxes, OUTSIDE)
    # argmax and max return the first of equals; on reversed tensors that is the last.
    overlaps = overlap(boxes.flip(1), to_edges(defaults.flip(0)))  # (images, objects, defaults), both reversed
    best_default = overlaps.argmax(2, keepdim=True)
    overlaps.scatter_(2, best_default, real.flip(1)[..., None] * FORCED)
    best, reversed_index = overlaps.max(1)
    best, chosen = best.flip(1), (boxes.shape[1] - 1 - reversed_index).flip(1)  # (images, defaults)
    positive = best > min_overlap
    targets = torch.where(positive, labels.gather(1, chosen) + 1, 0)
    objects = boxes.gather(1, chosen[..., None].expand(-1, -1, 4))
    return targets, torch.where(positive[..., None], encode(objects, defaults), 0.0)


class FoundBoxes(NamedTuple):
    """Detections of a batch, the best first; rows beyond an image's detections are padding."""

    edges: Tensor
    """float32 (batch, max_boxes, 4), within the image; padding is 0."""
    labels: Tensor
    """int64 (batch, max_boxes), classes from 0; padding is -1."""
    scores: Tensor
    """float32 (batch, max_boxes); padding is 0."""


@torch.no_grad()
def find_boxes(
    scores: Tensor,
    offsets: Tensor,
    defaults: Tensor,
    *,
    min_score: float,
    max_candidates: int,
    max_overlap: float,
    max_boxes: int,
) -> FoundBoxes:
    """Decode a network's output into at most `max_boxes` detections per image, by greedy non-maximum suppression.

    Scores (batch, boxes, classes + 1) are logits, the background's first. Candidates are an image's best
    `max_candidates` pairs of box and class with a score above `min_score`. A candidate is removed if it overlaps a
    better, kept one of its class by more than `max_overlap`. With equal scores the earlier default box, then the lower
    class, is better. NaN is ignored.
    """
    chunk = max(1, MAX_SCORES // max(1, scores.shape[1] * scores.shape[2]))
    parts = [
        _choose_candidates(*part, defaults, min_score, max_candidates)
        for part in zip(scores.split(chunk), offsets.split(chunk), strict=True)
    ]
    edges, labels, chances = (torch.cat(part) for part in zip(*parts, strict=True))
    keep = _suppress(edges, labels, max_overlap)
    # Kept candidates move to the front, in order; the others go to one extra place at the end.
    place = torch.where(keep, keep.cumsum(1) - 1, max_boxes).clamp_(max=max_boxes)
    shape = (len(edges), max_boxes + 1)
    found_edges = edges.new_zeros(*shape, 4).scatter_(1, place[..., None].expand(-1, -1, 4), edges.clamp(0, 1))
    found_labels = labels.new_full(shape, NO_LABEL).scatter_(1, place, labels)
    found_scores = chances.new_zeros(shape).scatter_(1, place, chances)
    return FoundBoxes(found_edges[:, :max_boxes], found_labels[:, :max_boxes], found_scores[:, :max_boxes])


def _choose_candidates(
    scores: Tensor, offsets: Tensor, defaults: Tensor, min_score: float, max_candidates: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return edges, labels and scores of each image's best candidates, the best first; padding has label -1."""
    chances = scores.float().softmax(2)[..., 1:].flatten(1)  # (images, boxes * classes)
    num_classes = scores.shape[2] - 1
    places = torch.arange(chances.shape[1], device=chances.device)
    # The bits of positive floats sort like their values. With the index appended no two keys are equal, so that topk,
    # which does not define the order of equal values, is deterministic.
    bits = torch.where(chances > min_score, chances, 0.0).view(torch.int32)
    keys = (bits.long() << 32) | (chances.shape[1] - 1 - places)
    best = keys.topk(min(max_candidates, chances.shape[1]), dim=1).indices
    boxes, labels = best // num_classes, best % num_classes
    chances = chances.gather(1, best)
    edges = decode(offsets.float().gather(1, boxes[..., None].expand(-1, -1, 4)), defaults[boxes])
    real = (chances > min_score) & edges.isfinite().all(2)
    return edges, torch.where(real, labels, NO_LABEL), chances


def _suppress(edges: Tensor, labels: Tensor, max_overlap: float) -> Tensor:
    """Return which candidates are kept, bool (images, candidates); works in blocks, so that memory is bounded."""
    keep = labels != NO_LABEL
    blocks = [slice(begin, begin + BLOCK) for begin in range(0, labels.shape[1], BLOCK)]
    for number, block in enumerate(blocks):
        for earlier in blocks[:number]:
            suppresses = _find_duplicates(edges, labels, earlier, block, max_overlap)
            keep[:, block] &= ~(suppresses & keep[:, earlier, None]).any(1)
        suppresses = _find_duplicates(edges, labels, block, block, max_overlap).triu_(1)
        keep[:, block] = _suppress_block(keep[:, block], suppresses)
    return keep


def _find_duplicates(edges: Tensor, labels: Tensor, better: slice, worse: slice, max_overlap: float) -> Tensor:
    """Return for each pair of candidates whether the better suppresses the worse: bool (images, better, worse)."""
    same = labels[:, better, None] == labels[:, None, worse]
    return (overlap(edges[:, better], edges[:, worse]) > max_overlap) & same


def _suppress_block(candidates: Tensor, suppresses: Tensor) -> Tensor:
    """Return which candidates greedy suppression keeps; `suppresses[:, i, j]` is set for i < j only.

    A candidate is kept if no kept better one suppresses it. All candidates are updated at once until nothing changes:
    after n rounds the first n are final, and the solution is unique. Usually a few rounds are enough.
    """
    keep = candidates
    while True:
        updated = candidates & ~(suppresses & keep[..., None]).any(1)
        if torch.equal(updated, keep):
            return updated
        keep = updated
