"""The pre-flight of a run with several ranks: roll call, process group, one timed all-reduce. One rank skips it."""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from trainstone.config.schema import Config
from trainstone.machine.launched import name_host
from trainstone.machine.ranks import Rank, read_meeting, read_rank
from trainstone.results import schema
from trainstone.results.preflight import Host, Preflight, describe_preflight
from trainstone.results.progress import Progress
from trainstone.results.store import RunFolder
from trainstone.train.distributed import World, broadcast_dict, gather
from trainstone.train.fit import choose_rank_device
from trainstone.train.preflight.group import close_group, start_group, use_interface
from trainstone.train.preflight.roll import call_roll
from trainstone.train.preflight.store import format_address
from trainstone.units import format_count


@contextmanager
def meet_all(config: Config, run: RunFolder | None) -> Iterator[World]:
    """Connect with the other ranks that the launcher started, until the end; rank 0 has the run folder."""
    rank, began = read_rank(), time.perf_counter()
    if rank.world == 1:
        yield World(rank, choose_rank_device(config.device, rank))
        return
    allow_many_files()
    roll = call_roll(config, rank, run.path if run else None)
    use_interface(roll.interface, requested=config.parallel.interface is not None)
    with close_group(roll.backend):
        control, timed = start_group(roll, config.parallel.timeout_seconds)
        preflight = None
        if rank.number == 0:
            preflight = Preflight(
                meeting=format_address(roll.store.address),
                backend=roll.backend,
                seconds=time.perf_counter() - began,
                hosts=[Host.model_validate(host) for host in roll.hosts],
                all_reduce=timed,
            )
        if run:
            run.update(preflight=preflight)
        timeout = timedelta(seconds=config.parallel.timeout_seconds)
        leads = rank.number in [host["ranks"][0] for host in roll.hosts]
        yield World(rank, roll.device, control, timeout, leads, preflight)


def allow_many_files() -> None:
    """Raise the limit of open files as far as the system allows: each rank has a connection to every other."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def tell_meeting(world: World) -> Progress:
    """Return the line on the ranks that have connected."""
    return Progress(describe_preflight(world.preflight) if world.preflight else "reading machine facts")


def announce_meeting(rank: Rank) -> Progress:
    """Return the line on where this rank connects with the others."""
    if rank.world == 1:
        return Progress("reading machine facts")
    others = format_count(rank.world - 1, "other rank")
    return Progress(f"connecting with {others} at {format_address(read_meeting())}")


def share_run(run: RunFolder | None, world: World) -> RunFolder:
    """Tell all ranks where the run is written; only the first writes its result."""
    hosts = gather(world, {"host": name_host()})
    told: dict[str, Any] | None = None
    if run:
        assert hosts is not None  # the first rank has all
        nodes = len({one["host"] for one in hosts})
        run.update(world=schema.World(ranks=world.rank.world, nodes=nodes))
        told = {"path": str(run.path.absolute()), "result": run.result.model_dump(mode="json", exclude_none=True)}
    told = broadcast_dict(world, told)
    return run or RunFolder(Path(told["path"]), schema.Result.model_validate(told["result"]), writes=False)
