"""Which default box learns which object: by overlap, and each object's best one in any case. Nothing waits for a device
and nothing loops over pictures or objects."""

import torch
from torch import Tensor

from trainstone.models.boxes import encode, overlap, to_edges

MAX_PAIRS = 2**24  # objects x default boxes looked at together: 64 MB a tensor of them
FORCED = 2.0  # more than any overlap
NOWHERE = -3.0  # a box with all its edges there overlaps nothing that is in a picture


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
