"""Batch norm over the batches of several ranks."""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from trainstone.engine.distributed.collectives import World
from trainstone.errors import ConfigError

CHANNELS = (1, -1, 1, 1)  # shape of one number per channel beside images


def convert_sync_batch_norm(model: nn.Module, world: World, bn_ranks: int) -> nn.Module:
    """Let every batch norm of the model see the batches of bn_ranks neighbouring ranks. Weights and buffers stay the
    same tensors under the same names. To be called by all ranks, before the model is wrapped or compiled."""
    if world.rank.world % bn_ranks:
        raise ConfigError(
            f"parallel.bn_ranks = {bn_ranks} does not divide the number of ranks, {world.rank.world}",
            hint="every rank must belong to a group of so many",
        )
    group = open_group(world, bn_ranks)
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.BatchNorm2d:
                setattr(module, name, SyncBatchNorm2d(child, group))
    return model


def open_group(world: World, bn_ranks: int) -> Any:
    """Return the group of this rank. All ranks open all groups, in the same order: torch wants it so."""
    mine = None
    for first in range(0, world.rank.world, bn_ranks):
        members = list(range(first, first + bn_ranks))
        group = dist.new_group(members, timeout=world.timeout)
        if world.rank.number in members:
            mine = group
    return mine


class SyncBatchNorm2d(nn.BatchNorm2d):  # type: ignore[misc]
    """A batch norm that learns from the batches of all ranks of its span; in evaluation the ordinary one."""

    def __init__(self, norm: nn.BatchNorm2d, group: Any) -> None:
        """Copy everything from an ordinary one; `group`: the ranks that share their batches."""
        nn.Module.__init__(self)
        self.__dict__.update(norm.__dict__)
        self.group = group

    def forward(self, images: Tensor) -> Tensor:
        """Normalise by the span's mean and variance and let the running ones follow them."""
        if not self.training:
            return super().forward(images)
        self._check_input_dim(images)
        mean, variance, count = share_statistics(images.detach(), self.group)
        self.num_batches_tracked.add_(1)
        share, unbiased = self.momentum, variance * (count / (count - 1))
        self.running_mean.mul_(1 - share).add_(mean, alpha=share)  # none of these has a gradient
        self.running_var.mul_(1 - share).add_(unbiased, alpha=share)
        result: Tensor = Normalise.apply(images, self.weight, self.bias, mean, variance, count, self.eps, self.group)
        return result


def share_statistics(images: Tensor, group: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and biased variance a channel over the whole span, and how many values a channel it has.

    Means and variances are combined, not sums of squares: their difference would lose what a large mean hides.
    """
    if images.device.type in ("cpu", "cuda"):
        # What nn.BatchNorm2d itself calls: on a CPU 25 times as fast as var_mean. It moves running statistics, too,
        # and takes its precision from theirs.
        zeros = torch.zeros(images.shape[1], device=images.device)
        mean, variance = torch.ops.aten.batch_norm_update_stats(images, zeros, torch.ones_like(zeros), 0.1)
        mean, variance = mean.float(), variance.float()
    else:
        variance, mean = torch.var_mean(images.float(), dim=(0, 2, 3), correction=0)
    mine = torch.cat([mean, variance, mean.new_full((1,), images.numel() // images.shape[1])])
    others = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(others, mine, group=group)
    table = torch.stack(others)  # (ranks, 2 x channels + 1)
    means, variances = table[:, :-1].chunk(2, dim=1)
    counts = table[:, -1:]
    count = counts.sum()
    shares = counts / count
    mean = (means * shares).sum(dim=0)
    variance = ((variances + (means - mean).square()) * shares).sum(dim=0)
    return mean, variance, count


class Normalise(torch.autograd.Function):  # type: ignore[misc]
    """(x - mean) / sqrt(variance + eps) * weight + bias, with the gradient that knows mean and variance depend on
    the batches of all ranks of the span."""

    @staticmethod
    def forward(  # the order of SyncBatchNorm2d.forward
        ctx: Any,
        images: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        variance: Tensor,
        count: Tensor,
        eps: float,
        group: Any,
    ) -> Tensor:
        ctx.save_for_backward(images, weight, mean, variance, count)
        ctx.eps, ctx.group = eps, group
        return F.batch_norm(images, mean, variance, weight, bias, training=False, eps=eps)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Share the sums of g and of g * x_hat, then dx = w / s * (g - mean of g - x_hat * mean of g * x_hat)."""
        images, weight, mean, variance, count = ctx.saved_tensors
        # This rank's own sums are the gradients of weight and bias: averaging those over ranks is DDP's work.
        _, weight_gradient, bias_gradient = torch.ops.aten.native_batch_norm_backward(
            gradient, images, weight, mean, variance, None, None, False, ctx.eps, [False, True, True]
        )
        sums = torch.stack([weight_gradient.float(), bias_gradient.float()])
        dist.all_reduce(sums, group=ctx.group)
        of_products, of_gradients = sums / count
        inverse = (variance + ctx.eps).rsqrt()
        # dx = scale * g + slope * x + offset, a number each a channel
        scale = weight * inverse
        slope = -scale * of_products * inverse
        offset = -scale * of_gradients - slope * mean
        scale, slope, offset = (numbers.view(CHANNELS) for numbers in (scale, slope, offset))
        images_gradient = torch.addcmul(torch.addcmul(offset, images, slope), gradient, scale).to(images.dtype)
        return images_gradient, weight_gradient, bias_gradient, None, None, None, None, None
