"""Many ranks: how they average gradients and agree between steps. For a single rank nothing here costs anything.

Messages between ranks are tensors or JSON, never pickled objects.
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainstone.config.schema import ParallelConfig
from trainstone.errors import MachineError, OutOfMemoryError, PeerLostError, TrainstoneError
from trainstone.machine.ranks import Rank
from trainstone.measure.devices import is_out_of_memory
from trainstone.results.schema import Preflight
from trainstone.train.preflight.store import first_line

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
    mean = sum_over(world, flat) / world.rank.world
    for buffer, part in zip(buffers, mean.split([buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(part.view_as(buffer))


def sum_over(world: World, tensor: Tensor) -> Tensor:
    """Return the sum over all ranks, on every rank; the argument stays as it is."""
    total = tensor.detach().clone()
    if not world.alone:
        dist.all_reduce(total, group=world.control if total.device.type == "cpu" else None)
    return total


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
