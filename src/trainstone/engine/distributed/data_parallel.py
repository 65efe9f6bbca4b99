"""Data-parallel training: each rank's device, the all-reduce of gradients, running statistics."""

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainstone.config.schema import ParallelConfig
from trainstone.engine.distributed.collectives import World
from trainstone.errors import MachineError
from trainstone.machine.ranks import Rank

TORCH_BUCKET_BYTES = 25 * 2**20
COMPRESSED = {"fp16": torch.float16, "bf16": torch.bfloat16}


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
