"""Connect the ranks: rendezvous, roll call, process group, one timed all-reduce, the shared run folder."""

import logging
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout

from trainstone.config.schema import Config
from trainstone.engine.distributed.collectives import World, broadcast_dict, gather
from trainstone.engine.distributed.roll_call import (
    RollCall,
    call_roll,
    describe_error,
    raise_first_error,
    require_answers,
    shorten,
)
from trainstone.engine.distributed.store import Document, call_within, first_line, format_address
from trainstone.engine.fit import choose_rank_device
from trainstone.errors import LaunchError
from trainstone.machine import interfaces
from trainstone.machine.launch_protocol import get_host_name
from trainstone.machine.ranks import read_rank
from trainstone.results.run_folder import RunFolder
from trainstone.results.schema import run as schema
from trainstone.results.schema.run import AllReduce, Host, Preflight

log = logging.getLogger(__name__)

# The process groups time out before this rank does, and this rank before rank 0 collects the answers.
EARLY_SECONDS, LATE_SECONDS = 3.0, 1.5
SIZES = (2**10, 2**20, 2**24)
REPEATS = 3
# Skip the largest message if, by the time of the one before, it would take longer than this.
SLOW_SECONDS = 1.0


def start_group(roll: RollCall, seconds: float) -> tuple[Any, AllReduce]:
    """Open the process group and time an all-reduce; return the gloo group for small messages, and the times.

    Rank 0 raises the error of any rank. `seconds`: the timeout of the groups from then on.
    """
    if roll.device.type == "cuda":
        torch.cuda.set_device(roll.device)  # for this thread; open_group runs in another one
    control, timed, error, waited = None, None, None, False
    try:
        # Not interruptible: all ranks are connected, and can agree to stop as soon as they have a group.
        limit = max(1.0, roll.deadline.left - LATE_SECONDS)
        control, timed = call_within(limit, lambda: open_group(roll), interruptible=False)
    except (RuntimeError, TimeoutError) as err:
        waited = isinstance(err, TimeoutError)
        what = "timed out" if waited else first_line(err)
        used = shorten([f"{host['host']} at {host['address']} ({host['interface']})" for host in roll.hosts])
        error = LaunchError(
            f"ranks cannot communicate over {roll.backend}: {what}; hosts: {used}",
            hint="check firewalls between the hosts; choose another network with --set parallel.interface=NAME, more "
            "time with --set parallel.rendezvous_seconds=N; NCCL_DEBUG=INFO shows details",
        )

    def compare(documents: dict[int, Document]) -> Document:
        hosts = {number: host["host"] for host in roll.hosts for number in host["ranks"]}
        require_answers(documents, hosts, format_address(roll.store.address))
        raise_first_error({number: one for number, one in documents.items() if not one["waited"]}, hosts)
        raise_first_error(documents, hosts)
        return {}

    roll.store.hold_round(
        "group", {"error": describe_error(error), "waited": waited}, compare, roll.deadline.left, roll.deadline.left
    )
    assert timed is not None  # else rank 0 has raised
    for group in (None, control):
        _set_pg_timeout(timedelta(seconds=seconds), group)
    roll.store.store.set_timeout(timedelta(seconds=seconds))
    return control, timed


def open_group(roll: RollCall) -> tuple[Any, AllReduce]:
    """Open the process groups and time all-reduces: per size the median of a few, on the slowest rank."""
    timeout = timedelta(seconds=max(1.0, roll.deadline.left - EARLY_SECONDS))
    store, rank = roll.store.store, roll.store.rank
    store.set_timeout(timeout)
    if roll.device.type == "cuda":
        torch.cuda.set_device(roll.device)
    dist.init_process_group(
        roll.backend,
        store=dist.PrefixStore("group", store),
        rank=rank.number,
        world_size=rank.world,
        timeout=timeout,
        # No device_id: with it, creating a group of some ranks splits the world group, which waits for all ranks.
    )
    control = dist.new_group(backend="gloo", timeout=timeout)
    # gloo accepts CUDA tensors too, but copies them through host memory.
    device = roll.device if roll.backend == "nccl" else torch.device("cpu")
    time_once(torch.zeros(1, device=device))  # the first message connects: not timed
    seconds: list[float] = []
    for size in SIZES:
        message = torch.zeros(size // 4, device=device)
        slowest = torch.tensor([median(time_once(message) for _ in range(REPEATS))], device=device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)  # the same time on all ranks, so that all stop at the same size
        seconds.append(float(slowest))
        if seconds[-1] * SIZES[-1] / size > SLOW_SECONDS and size >= SIZES[-2]:
            break
    sizes = list(SIZES[: len(seconds)])
    return control, AllReduce(bytes=sizes, seconds=seconds, bytes_per_second=sizes[-1] / seconds[-1])


def time_once(message: torch.Tensor) -> float:
    began = time.perf_counter()
    dist.all_reduce(message)
    message[0].item()  # waits for the device
    return time.perf_counter() - began


@contextmanager
def connect_ranks(config: Config, run: RunFolder | None) -> Iterator[World]:
    """Connect with the other ranks for the `with` body; `run` is the run folder, on rank 0."""
    rank, began = read_rank(), time.perf_counter()
    if rank.world == 1:
        yield World(rank, choose_rank_device(config.device, rank))
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:  # each rank has an open connection, and so a file descriptor, to every other
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    roll = call_roll(config, rank, run.path if run else None)
    # The user's environment takes precedence unless the recipe names an interface.
    for variable in (interfaces.GLOO, interfaces.NCCL):
        if config.parallel.interface is not None or variable not in os.environ:
            os.environ[variable] = roll.interface
    succeeded = False
    try:
        control, timed = start_group(roll, config.parallel.timeout_seconds)
        preflight = None
        if rank.number == 0:
            preflight = Preflight(
                rendezvous=format_address(roll.store.address),
                backend=roll.backend,
                seconds=time.perf_counter() - began,
                hosts=[Host.model_validate(host) for host in roll.hosts],
                all_reduce=timed,
            )
            log_isolated_devices(roll)
        if run:
            run.update(preflight=preflight)
        timeout = timedelta(seconds=config.parallel.timeout_seconds)
        leads = rank.number in [host["ranks"][0] for host in roll.hosts]
        yield World(rank, roll.device, control, timeout, leads, preflight)
        succeeded = True
    finally:
        # After an error NCCL might wait forever for kernels whose peers are gone; the process ends soon anyway.
        if dist.is_initialized() and (succeeded or roll.backend == "gloo"):
            dist.destroy_process_group()


def log_isolated_devices(roll: RollCall) -> None:
    """Warn if several ranks of a host see one GPU each: NCCL can then fail to connect them directly, and is slower."""
    hosts = [host["host"] for host in roll.hosts if host["devices"] < len(host["ranks"])]
    if roll.backend == "nccl" and hosts:
        log.warning(
            "each rank on %s sees only its own GPU, so NCCL may not use NVLink or PCIe peer-to-peer; "
            "Slurm shows each rank all GPUs of its node with --sbatch gpu-bind=none",
            shorten(hosts),
        )


def share_run(run: RunFolder | None, world: World) -> RunFolder:
    """Broadcast the run folder to all ranks; only rank 0 writes the result."""
    hosts = gather(world, {"host": get_host_name()})
    mine: dict[str, Any] | None = None
    if run:
        nodes = len({one["host"] for one in hosts or ()})
        run.update(world=schema.WorldSize(ranks=world.rank.world, nodes=nodes))
        mine = {"path": str(run.path.absolute()), "result": run.result.model_dump(mode="json", exclude_none=True)}
    shared = broadcast_dict(world, mine)
    return run or RunFolder(Path(shared["path"]), schema.Result.model_validate(shared["result"]), writes=False)
