"""Collectives for small messages between ranks: gather, broadcast, barrier; no-ops on a single rank.

Messages are tensors or JSON, never pickled objects.
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
    """This rank's view of the process group."""

    rank: Rank
    device: torch.device
    control: Any = None
    """gloo group for small messages in host memory, beside the group for gradients; None: single rank."""
    timeout: timedelta = timedelta(minutes=10)
    leads_host: bool = True
    """Whether this is the first rank on its host."""
    preflight: Preflight | None = None
    """Result of the rendezvous, on rank 0 of several."""

    @property
    def is_single_rank(self) -> bool:
        return self.control is None


def gather(world: World, document: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Return the documents of all ranks in rank order on rank 0; None on other ranks. They must be valid JSON."""
    if world.is_single_rank:
        return [document]
    parts = _gather_parts(world, _to_bytes(json.dumps(document).encode()))
    return None if parts is None else [json.loads(part.numpy().tobytes()) for part in parts]


def gather_rows(world: World, rows: Tensor) -> Tensor | None:
    """Return the rows of all ranks (in host memory, same columns) in rank order on rank 0; None on other ranks."""
    if world.is_single_rank:
        return rows
    parts = _gather_parts(world, rows)
    return None if parts is None else torch.cat(parts)


def _gather_parts(world: World, rows: Tensor) -> list[Tensor] | None:
    """Return the rows of each rank on rank 0; tensors are padded to the longest."""
    counts = [torch.empty(1, dtype=torch.int64) for _ in range(world.rank.world)]
    dist.all_gather(counts, torch.tensor([len(rows)]), group=world.control)
    mine = rows.new_zeros((max(int(count) for count in counts), *rows.shape[1:]))
    mine[: len(rows)] = rows
    parts = [torch.empty_like(mine) for _ in counts] if world.rank.number == 0 else None
    dist.gather(mine, parts, dst=0, group=world.control)
    return [part[: int(count)] for part, count in zip(parts, counts, strict=True)] if parts else None


def broadcast_dict(world: World, document: dict[str, Any] | None) -> dict[str, Any]:
    """Return the document of rank 0 on every rank; it must be valid JSON. Documents of other ranks are ignored."""
    first = world.rank.number == 0
    assert document is not None or not first, "rank 0 must pass a document"
    if world.is_single_rank:
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
    if not world.is_single_rank:
        dist.barrier(group=world.control)
