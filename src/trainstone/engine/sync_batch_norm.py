"""Synchronised batch norm over several ranks, on any device (torch's SyncBatchNorm needs CUDA).

Statistics and their sums are fp32, whatever the precision of the activations.
"""

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
    """Replace every batch norm by one that normalises over the batches of bn_ranks neighbouring ranks.

    Weights and buffers stay the same tensors under the same names. All ranks must call this, before the model is
    wrapped or compiled.
    """
    if world.rank.world % bn_ranks:
        raise ConfigError(
            f"invalid parallel.bn_ranks = {bn_ranks}: it must divide the number of ranks, {world.rank.world}",
            hint="to switch synchronised batch norm off: --set parallel.bn_ranks=1",
        )
    group = open_group(world, bn_ranks)
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.BatchNorm2d:
                setattr(module, name, SyncBatchNorm2d(child, group))
    return model


def open_group(world: World, bn_ranks: int) -> Any:
    """Return the process group of this rank. torch requires that all ranks create all groups in the same order."""
    mine = None
    for first in range(0, world.rank.world, bn_ranks):
        members = list(range(first, first + bn_ranks))
        group = dist.new_group(members, timeout=world.timeout)
        if world.rank.number in members:
            mine = group
    return mine


class SyncBatchNorm2d(nn.BatchNorm2d):  # type: ignore[misc]
    """Batch norm over the batches of all ranks of a group; in evaluation mode the same as nn.BatchNorm2d."""

    def __init__(self, norm: nn.BatchNorm2d, group: Any) -> None:
        """Copy parameters and buffers from `norm`; `group`: the ranks that share their statistics."""
        nn.Module.__init__(self)
        self.__dict__.update(norm.__dict__)
        self.group = group

    def forward(self, images: Tensor) -> Tensor:
        """Normalise by mean and variance of the group, and update the running statistics."""
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
    """Return mean and biased variance per channel over the group, and the number of values per channel.

    Means and variances are combined, not sums of squares: with a large mean their difference would lose precision.
    """
    if images.device.type in ("cpu", "cuda"):
        # The kernel of nn.BatchNorm2d: on a CPU 25 times as fast as var_mean. It also updates running statistics, and
        # takes its precision from them: give it fp32 dummies.
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
    """(x - mean) / sqrt(variance + eps) * weight + bias; its gradient includes the dependence of mean and variance on
    the batches of all ranks of the group."""

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
        """All-reduce the sums of g and g * x_hat, then dx = w / s * (g - mean of g - x_hat * mean of g * x_hat)."""
        images, weight, mean, variance, count = ctx.saved_tensors
        inverse = (variance + ctx.eps).rsqrt()
        # This rank's own sums are the gradients of weight and bias: DDP averages those over ranks.
        # The CPU's kernel uses the running mean and variance, CUDA's the saved mean and inverse (it requires them).
        _, weight_gradient, bias_gradient = torch.ops.aten.native_batch_norm_backward(
            gradient, images, weight, mean, variance, mean, inverse, False, ctx.eps, [False, True, True]
        )
        sums = torch.stack([weight_gradient.float(), bias_gradient.float()])
        dist.all_reduce(sums, group=ctx.group)
        of_products, of_gradients = sums / count
        # dx = scale * g + slope * x + offset, with one number each per channel
        scale = weight * inverse
        slope = -scale * of_products * inverse
        offset = -scale * of_gradients - slope * mean
        scale, slope, offset = (numbers.view(CHANNELS) for numbers in (scale, slope, offset))
        images_gradient = torch.addcmul(torch.addcmul(offset, images, slope), gradient, scale).to(images.dtype)
        return images_gradient, weight_gradient, bias_gradient, None, None, None, None, None
