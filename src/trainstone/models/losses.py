"""Loss functions: cross-entropy with two kinds of label smoothing, mixup (arXiv 1710.09412), and SSD's loss."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

MASK = 2**64 - 1
MIXUP = int.from_bytes(b"mixup")  # separates these draws from others with the same seed


def cross_entropy(
    logits: Tensor, labels: Tensor, *, smoothing: float = 0.0, over: Literal["all", "others"] = "all"
) -> Tensor:
    """Return the batch mean in fp32. Label smoothing moves a share of the target from the true class to all classes,
    itself included, or only to the others."""
    logits = logits.float()  # (batch, classes)
    if over == "all" or not smoothing:
        return F.cross_entropy(logits, labels, label_smoothing=smoothing)
    share = smoothing / max(1, logits.shape[1] - 1)
    log_p = F.log_softmax(logits, dim=1)
    true = log_p.gather(1, labels[:, None]).squeeze(1)
    return -((1 - smoothing - share) * true + share * log_p.sum(1)).mean()


def draw_mix(batch_size: int, alpha: float, *, seed: int, step: int, rank_number: int) -> tuple[Tensor, Tensor]:
    """Draw each image's partner, int64 (batch,), and the mixing share, float32 (1,), from Beta(alpha, alpha).

    Each step of each rank has its own range of 2^128 numbers in the seed's Philox sequence.
    """
    key = np.array([seed & MASK, MIXUP], dtype=np.uint64)
    place = np.array([0, 0, step, rank_number], dtype=np.uint64)
    draws = np.random.Generator(np.random.Philox(key=key, counter=place))
    share = draws.beta(alpha, alpha)
    permutation = draws.permutation(batch_size)
    return torch.from_numpy(permutation.astype(np.int64, copy=False)), torch.tensor([share], dtype=torch.float32)


def mix_images(images: Tensor, permutation: Tensor, share: Tensor) -> Tensor:
    """Return share x images + (1 - share) x their partners, floating point; the memory format is preserved."""
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
    """Return the batch mean in fp32 of each image's loss, divided by its number of positive boxes.

    Scores (batch, boxes, classes + 1) are logits, the background's first; `targets` and `target_offsets` come from
    `match` in models/boxes.py. For each positive box the `negatives` background boxes with the highest loss count. An
    image without an object has loss 0, and every parameter still gets a gradient.
    """
    scores, offsets = scores.float(), offsets.float()
    positive = targets > 0  # (batch, boxes)
    num_positive = positive.sum(1)
    losses = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
    # A cross-entropy is never negative: positive boxes, set to 0, sort last and add nothing.
    hardest = losses.masked_fill(positive, 0.0).sort(dim=1, descending=True, stable=True).values
    counts = torch.arange(hardest.shape[1], device=hardest.device) < (num_positive * negatives).floor()[:, None]
    distances = F.smooth_l1_loss(offsets, target_offsets.float(), reduction="none").sum(2)
    # where, not a product: excluded values must not count even if they are infinite.
    found = torch.where(positive, losses + distances, 0.0).sum(1)
    missed = torch.where(counts, hardest, 0.0).sum(1)
    return ((found + missed) / num_positive.clamp(min=1)).mean()
