"""SSD's loss: cross-entropy of the boxes with an object and of the hardest without, and the distance of the former."""

import torch
import torch.nn.functional as F
from torch import Tensor


def detection_loss(
    scores: Tensor, offsets: Tensor, targets: Tensor, target_offsets: Tensor, *, negatives: float
) -> Tensor:
    """Return the batch's mean in fp32: each picture's loss over the number of its boxes with an object.

    Scores (batch, boxes, classes + 1) are logits, the background's first; `targets` and `target_offsets` are as
    models/matching.py gives them. For each box with an object the `negatives` hardest of the background count: those
    with the highest loss. A picture without an object counts as 0, and every parameter still gets a gradient.
    """
    scores, offsets = scores.float(), offsets.float()
    positive = targets > 0  # (batch, boxes)
    num_positive = positive.sum(1)
    losses = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
    # A cross-entropy is never negative: sorted, boxes with an object come behind all others, and add nothing.
    hardest = losses.masked_fill(positive, 0.0).sort(dim=1, descending=True, stable=True).values
    counts = torch.arange(hardest.shape[1], device=hardest.device) < (num_positive * negatives).floor()[:, None]
    distances = F.smooth_l1_loss(offsets, target_offsets.float(), reduction="none").sum(2)
    # where, not a product: what does not count must not count even if it is infinite.
    found = torch.where(positive, losses + distances, 0.0).sum(1)
    missed = torch.where(counts, hardest, 0.0).sum(1)
    return ((found + missed) / num_positive.clamp(min=1)).mean()
