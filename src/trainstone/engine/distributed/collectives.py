"""Many ranks: how they average gradients, share batch norm and exchange messages. A single rank pays for none of it.

Messages between ranks are tensors or JSON, never pickled objects. Batch norm goes over the batches of neighbouring
ranks on any device (torch's SyncBatchNorm is for CUDA only); its statistics and their sums are fp32 whatever the
precision of the activations.
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.parallel import DistributedDataParallel

from trainstone.config.schema import ParallelConfig
from trainstone.engine.distributed.store import first_line
from trainstone.errors import ConfigError, MachineError, OutOfMemoryError, PeerLostError, TrainstoneError
from trainstone.machine.ranks import Rank
from trainstone.measure.devices import is_out_of_memory
from trainstone.results.schema.run import Preflight

CHANNELS = (1, -1, 1, 1)  # shape of one number per channel beside images
TORCH_BUCKET_BYTES = 25 * 2**20
COMPRESSED = {"fp16": torch.float16, "bf16": torch.bfloat16}
# What gloo and NCCL say when another rank is gone or does not answer.
PEER_SIGNS = re.compile(
    "closed by peer|reset by peer|broken pipe|connection refused|connection was likely closed|timed out waiting|"
    "caused pair closure|collective operation timeout|communicator was aborted|ncclremoteerror|remote process exited|"
    "socket timeout",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class World:
    rank: Rank
    device: torch.device
    control: Any = None
    """gloo group for small messages between CPUs, beside that of gradients; None: alone."""
    timeout: timedelta = timedelta(minutes=10)
    leads_host: bool = True
    """The first of the ranks on its host."""
    preflight: Preflight | None = None
    """What the meeting found, on the first rank of many."""

    @property
    def alone(self) -> bool:
        return self.control is None


def place_device(device: torch.device, rank: Rank) -> torch.device:
    """Return the rank's own CUDA device: that of its number on its host, or the only one that it sees."""
    if device.type != "cuda" or device.index is not None:
        return device
    seen = torch.cuda.device_count()
    # Slurm may show each rank its own device only.
    index = 0 if seen == 1 else rank.local
    if index >= seen:
        raise MachineError(
            f"rank {rank.number} is number {rank.local} on its host, which has {seen} CUDA devices",
            hint="start at most one rank a device, or --device cpu",
        )
    return torch.device("cuda", index)


def wrap_model(model: nn.Module, world: World, parallel: ParallelConfig) -> nn.Module:
    """Let backward average gradients over ranks; all begin with the weights and buffers of rank 0."""
    if world.alone:
        return model
    # Only by its own default torch makes the first bucket small (1 MiB), which starts sending earlier.
    bucket = None if parallel.bucket_bytes == TORCH_BUCKET_BYTES else parallel.bucket_bytes / 2**20
    wrapped = DistributedDataParallel(
        model,
        device_ids=[world.device] if world.device.type == "cuda" else None,
        bucket_cap_mb=bucket,
        static_graph=parallel.static_graph,
        gradient_as_bucket_view=True,
        forward_sync_buffers=False,  # running statistics are averaged when they are needed
    )
    if parallel.compression != "none":
        wrapped.register_comm_hook(COMPRESSED[parallel.compression], send_compressed)
    return wrapped


def send_compressed(dtype: torch.dtype, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket of gradients in 16 bits. torch's own hook for bf16 is for NCCL only; gloo can do it as well."""
    gradients = bucket.buffer()
    sent = gradients.to(dtype).div_(dist.get_world_size())  # first, so that the sum of fp16 does not overflow
    future = dist.all_reduce(sent, async_op=True).get_future()
    return future.then(lambda done: gradients.copy_(done.value()[0]))


def settle_buckets(model: DistributedDataParallel, run_once: Callable[[], None]) -> None:
    """Bring gradients into the order that stays, by a forward and backward (two, if static) that leave no trace.

    After its first backward DistributedDataParallel regroups gradients by when they came, and above two ranks another
    grouping adds them up in another order. A run that is resumed would differ from one that never stopped by its first
    step; with this before the first step of both they are the same bit for bit. Buffers, gradients and random numbers
    are as before; optimisers must not move in run_once.
    """
    buffers = [buffer.clone() for buffer in model.buffers()]
    device = next(model.parameters()).device
    devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"):
        # A static graph counts in its first backward how often gradients come, and looks at their order in its second.
        for _ in range(2 if model.static_graph else 1):
            run_once()
            model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, before in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(before)


def average_buffers(buffers: Iterable[Tensor], world: World) -> None:
    """Give all ranks the mean of their running statistics, in one message. Counters stay as they are."""
    buffers = [buffer for buffer in buffers if buffer.is_floating_point()]
    if world.alone or not buffers:
        return
    flat = torch.cat([buffer.flatten().to(torch.promote_types(buffer.dtype, torch.float32)) for buffer in buffers])
    dist.all_reduce(flat, group=world.control if flat.device.type == "cpu" else None)
    parts = (flat / world.rank.world).split([buffer.numel() for buffer in buffers])
    for buffer, part in zip(buffers, parts, strict=True):
        buffer.copy_(part.view_as(buffer))


def gather(world: World, document: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Return the documents of all ranks, in their order, on rank 0; None on others. They must be JSON-able."""
    if world.alone:
        return [document]
    parts = _gather_parts(world, _to_bytes(json.dumps(document).encode()))
    return None if parts is None else [json.loads(part.numpy().tobytes()) for part in parts]


def gather_rows(world: World, rows: Tensor) -> Tensor | None:
    """Return the rows of all ranks (in host memory, as many columns), in their order, on rank 0; else None."""
    if world.alone:
        return rows
    parts = _gather_parts(world, rows)
    return None if parts is None else torch.cat(parts)


def _gather_parts(world: World, rows: Tensor) -> list[Tensor] | None:
    """Return the rows of each rank on rank 0; messages are as long as the longest."""
    counts = [torch.empty(1, dtype=torch.int64) for _ in range(world.rank.world)]
    dist.all_gather(counts, torch.tensor([len(rows)]), group=world.control)
    mine = rows.new_zeros((max(int(count) for count in counts), *rows.shape[1:]))
    mine[: len(rows)] = rows
    parts = [torch.empty_like(mine) for _ in counts] if world.rank.number == 0 else None
    dist.gather(mine, parts, dst=0, group=world.control)
    return [part[: int(count)] for part, count in zip(parts, counts, strict=True)] if parts else None


def broadcast_dict(world: World, document: dict[str, Any] | None) -> dict[str, Any]:
    """Return the document of rank 0 on every rank; what the others give is not looked at. It must be JSON-able."""
    first = world.rank.number == 0
    assert document is not None or not first, "rank 0 has the document"
    if world.alone:
        return document or {}
    text = json.dumps(document).encode() if first else b""
    length = torch.tensor([len(text)])
    dist.broadcast(length, src=0, group=world.control)
    tensor = _to_bytes(text) if first else torch.empty(int(length), dtype=torch.uint8)
    dist.broadcast(tensor, src=0, group=world.control)
    received: dict[str, Any] = json.loads(tensor.numpy().tobytes())
    return received


def _to_bytes(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def barrier(world: World) -> None:
    if not world.alone:
        dist.barrier(group=world.control)


def explain_torch_error(err: RuntimeError) -> TrainstoneError | None:
    """Recognise what torch says when memory is out, a rank is gone or a model cannot be compiled; None: not known."""
    text = str(err)
    if is_out_of_memory(err):
        first = text.splitlines()[0]
        return OutOfMemoryError(
            f"out of memory: {first}", hint="take a smaller train.batch_size (eval.batch_size to evaluate), or auto"
        )
    if type(err).__module__.startswith(("torch._dynamo", "torch._inductor")):
        told = next((line.strip() for line in text.splitlines() if line.strip() and not line.endswith("raised:")), text)
        return MachineError(f"torch.compile does not work here: {told}", hint="--set engine.compile=false")
    if PEER_SIGNS.search(text):
        return PeerLostError(
            f"another rank died or does not answer: {first_line(err)}",
            hint="its own output says why; `trainstone train --resume RUN` goes on from the last checkpoint",
        )
    return None


def span_batch_norm(model: nn.Module, world: World, bn_ranks: int) -> nn.Module:
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
                setattr(module, name, SpanBatchNorm2d(child, group))
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


class SpanBatchNorm2d(nn.BatchNorm2d):  # type: ignore[misc]
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
    def forward(  # the order of SpanBatchNorm2d.forward
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
