"""Default boxes of an SSD, the arithmetic of boxes, which default box learns which object, and the way back: from a
network's scores to boxes, the best of all classes, duplicates left out (greedy non-maximum suppression).

A box is four shares of the image's width and height, as edges (left, top, right, bottom) or as a centre (x, y, width,
height); what a network learns is its distance from a default.

For 300 pixels all is the original's (arXiv 1512.02325, MLPerf's SSD300). What is ours is how other sizes follow.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

MIN_IMAGE_SIZE = 64
FIRST_STEP = 8  # pixels between two cells of the finest map: the network has halved the image three times
# The smallest boxes, in pixels of any image: at 21 pixels, cells 8 pixels apart, an object of a box's shape overlaps
# one by about a half wherever it lies. Scaled down with a small image they would lie beside most objects.
FIRST_SCALES = (21.0, 45.0)
LAST_SCALE = 1.05  # of the image
FEW_CELLS = 4  # maps of so many cells a side or fewer divide the image evenly; larger ones keep the network's steps
CENTRE_VARIANCE, SIZE_VARIANCE = 0.1, 0.2
MAX_PAIRS = 2**24  # objects x default boxes looked at together: 64 MB a tensor of them
FORCED = 2.0  # more than any overlap
NOWHERE = -3.0  # a box with all its edges there overlaps nothing that is in an image
MAX_SCORES = 2**24  # looked at together: their keys take 128 MB
BLOCK = 1024  # candidates whose overlaps are looked at together
NOTHING = -1


class Level(NamedTuple):
    """One of the maps that boxes are found on, from fine to coarse."""

    cells: int
    """A side."""
    step: float
    """Pixels between two cells."""
    padded: bool
    """How the network comes to it: halved by a padded 3x3, or two cells less by one without padding."""
    scale: float
    """Pixels of its square boxes; a larger one has the middle between this and the next level's."""
    next_scale: float
    aspects: tuple[float, ...]

    @property
    def boxes_per_cell(self) -> int:
        """Two squares, and each aspect lying and standing."""
        return 2 + 2 * len(self.aspects)


def list_levels(image_size: int) -> tuple[Level, ...]:
    """Return the maps of an image of so many pixels a side, down to a single cell; a ValueError if too small.

    Scales go from 21 and 45 pixels in even steps to 1.05 of the image: for 300 pixels 21, 45, 99, ... 315.
    """
    if image_size < MIN_IMAGE_SIZE:
        raise ValueError(f"an SSD needs images of at least {MIN_IMAGE_SIZE} pixels, not {image_size}")
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
    """Centres (..., 4) to edges."""
    centre, size = boxes[..., :2], boxes[..., 2:]
    return torch.cat([centre - size / 2, centre + size / 2], dim=-1)


def to_centres(boxes: Tensor) -> Tensor:
    """Edges (..., 4) to centres."""
    first, last = boxes[..., :2], boxes[..., 2:]
    return torch.cat([(first + last) / 2, last - first], dim=-1)


def encode(edges: Tensor, defaults: Tensor) -> Tensor:
    """Return how boxes, as edges (..., 4), differ from default boxes, as centres: what the network is to say."""
    boxes = to_centres(edges)
    centre = (boxes[..., :2] - defaults[..., :2]) / defaults[..., 2:] / CENTRE_VARIANCE
    size = (boxes[..., 2:] / defaults[..., 2:]).log() / SIZE_VARIANCE
    return torch.cat([centre, size], dim=-1)


def decode(offsets: Tensor, defaults: Tensor) -> Tensor:
    """Return the boxes that a network means, as edges (..., 4): the inverse of `encode`."""
    centre = defaults[..., :2] + offsets[..., :2] * CENTRE_VARIANCE * defaults[..., 2:]
    size = defaults[..., 2:] * (offsets[..., 2:] * SIZE_VARIANCE).exp()
    return to_edges(torch.cat([centre, size], dim=-1))


def overlap(first: Tensor, second: Tensor) -> Tensor:
    """Return the intersection over union of each with each, (..., a, b) of edges (..., a, 4) and (..., b, 4).

    Boxes without an area overlap nothing.
    """
    left, top, right, bottom = first[..., :, None, :].unbind(-1)
    left_2, top_2, right_2, bottom_2 = second[..., None, :, :].unbind(-1)
    # In place: with many images these are the largest tensors of a step beside the activations.
    shared = torch.minimum(right, right_2).sub_(torch.maximum(left, left_2)).clamp_(min=0)
    shared.mul_(torch.minimum(bottom, bottom_2).sub_(torch.maximum(top, top_2)).clamp_(min=0))
    union = ((right - left) * (bottom - top) + (right_2 - left_2) * (bottom_2 - top_2)).sub_(shared)
    return shared.div_(union.clamp_(min=torch.finfo(union.dtype).tiny))


@torch.no_grad()
def match(boxes: Tensor, labels: Tensor, defaults: Tensor, *, min_overlap: float) -> tuple[Tensor, Tensor]:
    """Return the class that each default box learns, int64 (batch, defaults), 0 for background and class + 1 for an
    object; and how it differs from the object, float32 (batch, defaults, 4), zeros for background.

    `boxes` (batch, objects, 4) are edges, `labels` (batch, objects) classes from 0, negative where there is no object;
    `defaults` (defaults, 4) are centres. A box without an area is no object. Where two objects have the same best
    default box it learns the later one; of default boxes that are equally good the last is the best.
    """
    num_images, num_objects, num_defaults = len(boxes), boxes.shape[1], len(defaults)
    if not num_objects or not num_images:
        return labels.new_zeros(num_images, num_defaults), boxes.new_zeros(num_images, num_defaults, 4)
    together = max(1, MAX_PAIRS // (num_objects * num_defaults))
    parts = zip(boxes.split(together), labels.split(together), strict=True)
    matched = [_match_part(*part, defaults, min_overlap) for part in parts]
    if len(matched) == 1:
        return matched[0]
    targets, offsets = zip(*matched, strict=True)
    return torch.cat(targets), torch.cat(offsets)


def _match_part(boxes: Tensor, labels: Tensor, defaults: Tensor, min_overlap: float) -> tuple[Tensor, Tensor]:
    sizes = boxes[..., 2:] - boxes[..., :2]
    real = (labels >= 0) & ((sizes > 0) & sizes.isfinite()).all(-1)  # (images, objects)
    boxes = torch.where(real[..., None], boxes, NOWHERE)
    # argmax and max take the first of equals; looked at backwards that is the last.
    overlaps = overlap(boxes.flip(1), to_edges(defaults.flip(0)))  # (images, objects, defaults), both backwards
    best_default = overlaps.argmax(2, keepdim=True)
    overlaps.scatter_(2, best_default, real.flip(1)[..., None] * FORCED)
    best, backwards = overlaps.max(1)
    best, chosen = best.flip(1), (boxes.shape[1] - 1 - backwards).flip(1)  # (images, defaults)
    learns = best > min_overlap
    targets = torch.where(learns, labels.gather(1, chosen) + 1, 0)
    objects = boxes.gather(1, chosen[..., None].expand(-1, -1, 4))
    return targets, torch.where(learns[..., None], encode(objects, defaults), 0.0)


class FoundBoxes(NamedTuple):
    """A batch's boxes, the best first; where an image has fewer than others, its last rows are empty."""

    edges: Tensor
    """float32 (batch, most, 4), within the image; zeros where there is none."""
    labels: Tensor
    """int64 (batch, most), classes from 0; -1 where there is none."""
    scores: Tensor
    """float32 (batch, most); 0 where there is none."""


@torch.no_grad()
def find_boxes(
    scores: Tensor, offsets: Tensor, defaults: Tensor, *, min_score: float, before: int, overlap: float, most: int
) -> FoundBoxes:
    """Return the boxes that a network means, at most `most` an image.

    Scores (batch, boxes, classes + 1) are logits, the background's first. The `before` best pairs of box and class of a
    image with a score above `min_score` are looked at; of two boxes of a class that overlap by more than `overlap`
    the worse is left out, if the better is not left out itself. Equal scores: the earlier default box, then the lower
    class, is the better. What is no number is nothing.
    """
    together = max(1, MAX_SCORES // max(1, scores.shape[1] * scores.shape[2]))
    parts = [
        _choose_candidates(*part, defaults, min_score, before)
        for part in zip(scores.split(together), offsets.split(together), strict=True)
    ]
    edges, labels, chances = (torch.cat(part) for part in zip(*parts, strict=True))
    keep = _suppress(edges, labels, overlap)
    # What stays moves to the front, in its order; what does not goes to a place behind the last.
    place = torch.where(keep, keep.cumsum(1) - 1, most).clamp_(max=most)
    shape = (len(edges), most + 1)
    found_edges = edges.new_zeros(*shape, 4).scatter_(1, place[..., None].expand(-1, -1, 4), edges.clamp(0, 1))
    found_labels = labels.new_full(shape, NOTHING).scatter_(1, place, labels)
    found_scores = chances.new_zeros(shape).scatter_(1, place, chances)
    return FoundBoxes(found_edges[:, :most], found_labels[:, :most], found_scores[:, :most])


def _choose_candidates(
    scores: Tensor, offsets: Tensor, defaults: Tensor, min_score: float, before: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return edges, labels and scores of each image's best pairs, the best first; labels are -1 where none is."""
    chances = scores.float().softmax(2)[..., 1:].flatten(1)  # (images, boxes * classes)
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
    """Return which candidates stay, bool (images, candidates): block by block, so that memory is bounded."""
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
    """Tell for each two candidates whether the better would hide the worse: bool (images, better, worse)."""
    same = labels[:, better, None] == labels[:, None, worse]
    return (overlap(edges[:, better], edges[:, worse]) > max_overlap) & same


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
