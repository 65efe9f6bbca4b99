"""Mixup (arXiv 1710.09412): pictures and losses mixed in pairs within a batch, by draws that need no state."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

MASK = 2**64 - 1
MIXUP = int.from_bytes(b"mixup")  # keeps these draws apart from others of the same seed


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
