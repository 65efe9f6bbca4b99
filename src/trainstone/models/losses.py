"""Losses: cross-entropy with both conventions of label smoothing, mixup (arXiv 1710.09412), and SSD's."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

MASK = 2**64 - 1
MIXUP = int.from_bytes(b"mixup")  # keeps these draws apart from others of the same seed


def cross_entropy(
    logits: Tensor, labels: Tensor, *, smoothing: float = 0.0, over: Literal["all", "others"] = "all"
) -> Tensor:
    """Return the batch's mean in fp32. A share `smoothing` of the target is taken from the true class and spread evenly
    over all classes, itself included, or over the others."""
    logits = logits.float()  # (batch, classes)
    if over == "all" or not smoothing:
        return F.cross_entropy(logits, labels, label_smoothing=smoothing)
    share = smoothing / max(1, logits.shape[1] - 1)
    log_p = F.log_softmax(logits, dim=1)
    true = log_p.gather(1, labels[:, None]).squeeze(1)
    return -((1 - smoothing - share) * true + share * log_p.sum(1)).mean()


def draw_mix(batch_size: int, alpha: float, *, seed: int, step: int, rank_number: int) -> tuple[Tensor, Tensor]:
    """Return who is mixed with whom, int64 (batch,), and the share each keeps, float32 (1,), from Beta(alpha, alpha).

    Each step of each rank has a stretch of 2^128 numbers of its own in the seed's row.
    """
    key = np.array([seed & MASK, MIXUP], dtype=np.uint64)
    place = np.array([0, 0, step, rank_number], dtype=np.uint64)
    draws = np.random.Generator(np.random.Philox(key=key, counter=place))
    share = draws.beta(alpha, alpha)
    permutation = draws.permutation(batch_size)
    return torch.from_numpy(permutation.astype(np.int64, copy=False)), torch.tensor([share], dtype=torch.float32)


def mix_images(images: Tensor, permutation: Tensor, share: Tensor) -> Tensor:
    """Return share x images + (1 - share) x their partners, floating point; the memory format stays."""
    return torch.lerp(images[permutation], images, share.to(images.dtype))


def mix_loss(
    loss_fn: Callable[[Tensor, Tensor], Tensor], logits: Tensor, labels: Tensor, permutation: Tensor, share: Tensor
) -> Tensor:
    """Return share x loss of the labels + (1 - share) x loss of the partners' labels."""
    own, partners = loss_fn(logits, labels), loss_fn(logits, labels[permutation])
    return torch.lerp(partners, own, share.to(own.dtype).reshape(()))


def detection_loss(
    scores: Tensor, offsets: Tensor, targets: Tensor, target_offsets: Tensor, *, negatives: float
) -> Tensor:
    """Return the batch's mean in fp32: each image's loss over the number of its boxes with an object.

    Scores (batch, boxes, classes + 1) are logits, the background's first; `targets` and `target_offsets` are as
    `match` of models/boxes.py gives them. For each box with an object the `negatives` hardest of the background count:
    those with the highest loss. An image without an object counts as 0, and every parameter still gets a gradient.
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
