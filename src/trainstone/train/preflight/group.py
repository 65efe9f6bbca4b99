"""Opens the process group in a store where all ranks are known to be, and closes it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout

from trainstone.config.learning import ParallelConfig
from trainstone.errors import ConfigError, MachineError
from trainstone.machine.interfaces import GLOO, NCCL
from trainstone.train.preflight.room import Room


def choose_backend(parallel: ParallelConfig, device: torch.device) -> str:
    """Return nccl for CUDA devices and gloo for others, unless told; refuse what cannot work."""
    backend = parallel.backend
    if backend == "auto":
        backend = "nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo"
    if backend == "nccl" and device.type != "cuda":
        raise ConfigError(
            f"parallel.backend = nccl is for CUDA devices, not for {device.type}", hint="--set parallel.backend=gloo"
        )
    if not dist.is_backend_available(backend):
        raise MachineError(f"this torch was built without {backend}", hint="--set parallel.backend=auto")
    return backend


def start_group(room: Room, backend: str, device: torch.device, seconds: float) -> Any:
    """Open the process group and that for small messages between CPUs, which is returned. Both wait so long at most."""
    timeout = timedelta(seconds=seconds)
    room.store.set_timeout(timeout)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("group", room.store),
        rank=room.rank.number,
        world_size=room.rank.world,
        timeout=timeout,
        # No device_id: groups of some ranks would then be split off the whole, which waits for all of them.
    )
    return dist.new_group(backend="gloo", timeout=timeout)


def set_patience(control: Any, seconds: float) -> None:
    """Let the open groups wait so long from now on."""
    for group in (None, control):
        _set_pg_timeout(timedelta(seconds=seconds), group)


@contextmanager
def close_group(backend: str) -> Iterator[None]:
    """Close whatever was opened."""
    unhurt = False
    try:
        yield
        unhurt = True
    finally:
        # After an error NCCL might wait for ever for kernels whose peers are gone; the process ends soon anyway.
        if dist.is_initialized() and (unhurt or backend == "gloo"):
            dist.destroy_process_group()


@contextmanager
def use_interface(name: str, *, wished: bool) -> Iterator[None]:
    """Let gloo and NCCL take this interface; what the user's environment says counts unless the recipe says more."""
    before = {variable: os.environ.get(variable) for variable in (GLOO, NCCL)}
    try:
        for variable, value in before.items():
            if wished or value is None:
                os.environ[variable] = name
        yield
    finally:
        for variable, value in before.items():
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = value
