"""Data-parallel training: device placement, DistributedDataParallel, gradient compression, running statistics."""

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
    """Return the rank's accelerator: that of its local rank, or the only visible one."""
    if device.type == "cpu" or device.index is not None:
        return device
    kind, visible = device.type.upper(), torch.accelerator.device_count()
    # Slurm may show each rank only its own device.
    index = 0 if visible == 1 else rank.local
    if index >= visible:
        raise MachineError(
            f"no {kind} device for rank {rank.number} (local rank {rank.local}): its host has {visible} {kind} devices",
            hint="start at most one rank per device, or use --device cpu",
        )
    return torch.device(device.type, index)


def wrap_model(model: nn.Module, world: World, parallel: ParallelConfig) -> nn.Module:
    """Wrap the model in DistributedDataParallel; all ranks start from the weights and buffers of rank 0."""
    if world.is_single_rank:
        return model
    # Only with its default size torch makes the first bucket small (1 MiB), which starts communication earlier.
    bucket = None if parallel.bucket_bytes == TORCH_BUCKET_BYTES else parallel.bucket_bytes / 2**20
    wrapped = DistributedDataParallel(
        model,
        device_ids=[world.device] if world.device.type == "cuda" else None,
        bucket_cap_mb=bucket,
        static_graph=parallel.static_graph,
        gradient_as_bucket_view=True,
        forward_sync_buffers=False,  # average_buffers averages running statistics when they are needed
    )
    if parallel.compression != "none":
        wrapped.register_comm_hook(COMPRESSED[parallel.compression], send_compressed)
    return wrapped


def send_compressed(dtype: torch.dtype, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket of gradients in 16 bits, on NCCL and gloo (torch's own bf16 hook supports only NCCL)."""
    gradients = bucket.buffer()
    sent = gradients.to(dtype).div_(dist.get_world_size())  # divide first, so that the fp16 sum does not overflow
    future = dist.all_reduce(sent, async_op=True).get_future()
    return future.then(lambda done: gradients.copy_(done.value()[0]))


def rebuild_buckets(model: DistributedDataParallel, run_once: Callable[[], None]) -> None:
    """Let DistributedDataParallel rebuild its buckets before training, with a forward and backward (two, if static).

    After its first backward DistributedDataParallel regroups gradients by the order in which they became ready. With
    more than two ranks another grouping sums in another order, so the first step of a resumed run would differ from
    that of an uninterrupted run. With this call before the first step both are equal bit for bit. Buffers, gradients
    and random states are restored; `run_once` must not step an optimiser.
    """
    buffers = [buffer.clone() for buffer in model.buffers()]
    device = next(model.parameters()).device
    devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"):
        # With a static graph the first backward counts how often gradients arrive; the second records their order.
        for _ in range(2 if model.static_graph else 1):
            run_once()
            model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, before in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(before)


def average_buffers(buffers: Iterable[Tensor], world: World) -> None:
    """Average the running statistics over all ranks, in one message. Integer counters are not changed."""
    buffers = [buffer for buffer in buffers if buffer.is_floating_point()]
    if world.is_single_rank or not buffers:
        return
    flat = torch.cat([buffer.flatten().to(torch.promote_types(buffer.dtype, torch.float32)) for buffer in buffers])
    dist.all_reduce(flat, group=world.control if flat.device.type == "cpu" else None)
    parts = (flat / world.rank.world).split([buffer.numel() for buffer in buffers])
    for buffer, part in zip(buffers, parts, strict=True):
        buffer.copy_(part.view_as(buffer))
