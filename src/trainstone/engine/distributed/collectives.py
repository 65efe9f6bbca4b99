"""Many ranks: how they average gradients, share batch norm and exchange messages. A single rank pays for none of it.

Messages between ranks are tensors or JSON, never pickled objects. Batch norm goes over the batches of neighbouring
ranks on any device (torch's SyncBatchNorm is for CUDA only); its statistics and their sums are fp32 whatever the
precision of the activations.
"""

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainstone.machine.ranks import Rank
from trainstone.results.schema.run import Preflight


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
