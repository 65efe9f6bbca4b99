"""Default boxes of an SSD, the arithmetic of boxes, and which default box learns which object. A box is four shares of
the picture's width and height, as edges (left, top, right, bottom) or as a centre (x, y, width, height); what a network
learns is its distance from a default.

For 300 pixels all is the original's (arXiv 1512.02325, MLPerf's SSD300). What is ours is how other sizes follow.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

MIN_IMAGE_SIZE = 64
FIRST_STEP = 8  # pixels between two cells of the finest map: the network has halved the picture three times
# The smallest boxes, in pixels of any picture: at 21 pixels, cells 8 pixels apart, an object of a box's shape overlaps
# one by about a half wherever it lies. Scaled down with a small picture they would lie beside most objects.
FIRST_SCALES = (21.0, 45.0)
LAST_SCALE = 1.05  # of the picture
FEW_CELLS = 4  # maps of so many cells a side or fewer divide the picture evenly; larger ones keep the network's steps
CENTRE_VARIANCE, SIZE_VARIANCE = 0.1, 0.2
MAX_PAIRS = 2**24  # objects x default boxes looked at together: 64 MB a tensor of them
FORCED = 2.0  # more than any overlap
NOWHERE = -3.0  # a box with all its edges there overlaps nothing that is in a picture


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
    """Return the maps of a picture of so many pixels a side, down to a single cell; a ValueError if too small.

    Scales go from 21 and 45 pixels in even steps to 1.05 of the picture: for 300 pixels 21, 45, 99, ... 315.
    """
    if image_size < MIN_IMAGE_SIZE:
        raise ValueError(f"an SSD needs pictures of at least {MIN_IMAGE_SIZE} pixels, not {image_size}")
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
        shapes = _list_shapes(level)
        centres = [(number + 0.5) * level.step for number in range(level.cells)]
        boxes += [(x, y, width, height) for y in centres for x in centres for width, height in shapes]
    return torch.tensor(boxes, dtype=torch.float64).clamp_(0, image_size).div_(image_size).float()


def _list_shapes(level: Level) -> list[tuple[float, float]]:
    middle = math.sqrt(level.scale * level.next_scale)
    shapes = [(level.scale, level.scale), (middle, middle)]
    for aspect in level.aspects:
        longer, shorter = level.scale * math.sqrt(aspect), level.scale / math.sqrt(aspect)
        shapes += [(longer, shorter), (shorter, longer)]
    return shapes


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
    # In place: with many pictures these are the largest tensors of a step beside the activations.
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
    num_pictures, num_objects, num_defaults = len(boxes), boxes.shape[1], len(defaults)
    if not num_objects or not num_pictures:
        return labels.new_zeros(num_pictures, num_defaults), boxes.new_zeros(num_pictures, num_defaults, 4)
    together = max(1, MAX_PAIRS // (num_objects * num_defaults))
    parts = zip(boxes.split(together), labels.split(together), strict=True)
    matched = [_match_part(*part, defaults, min_overlap) for part in parts]
    if len(matched) == 1:
        return matched[0]
    targets, offsets = zip(*matched, strict=True)
    return torch.cat(targets), torch.cat(offsets)


def _match_part(boxes: Tensor, labels: Tensor, defaults: Tensor, min_overlap: float) -> tuple[Tensor, Tensor]:
    sizes = boxes[..., 2:] - boxes[..., :2]
    real = (labels >= 0) & ((sizes > 0) & sizes.isfinite()).all(-1)  # (pictures, objects)
    boxes = torch.where(real[..., None], boxes, NOWHERE)
    # argmax and max take the first of equals; looked at backwards that is the last.
    overlaps = overlap(boxes.flip(1), to_edges(defaults.flip(0)))  # (pictures, objects, defaults), both backwards
    best_default = overlaps.argmax(2, keepdim=True)
    overlaps.scatter_(2, best_default, real.flip(1)[..., None] * FORCED)
    best, backwards = overlaps.max(1)
    best, chosen = best.flip(1), (boxes.shape[1] - 1 - backwards).flip(1)  # (pictures, defaults)
    learns = best > min_overlap
    targets = torch.where(learns, labels.gather(1, chosen) + 1, 0)
    objects = boxes.gather(1, chosen[..., None].expand(-1, -1, 4))
    return targets, torch.where(learns[..., None], encode(objects, defaults), 0.0)
