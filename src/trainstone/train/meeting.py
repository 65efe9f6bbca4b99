"""How the ranks of a run meet before anything else is done: the table of contents. Alone, nothing is done."""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from trainstone.config.schema import Config
from trainstone.machine.launched import name_host
from trainstone.machine.ranks import Rank, read_meeting, read_rank
from trainstone.results import schema
from trainstone.results.links import find_skewed, find_slow, tell_met
from trainstone.results.preflight import Host, Preflight
from trainstone.results.progress import Progress
from trainstone.results.store import RunFolder
from trainstone.train.distributed import World, broadcast_dict, gather
from trainstone.train.fit import choose_rank_device
from trainstone.train.preflight.exchange import exchange
from trainstone.train.preflight.group import close_group, use_interface
from trainstone.train.preflight.links import Timed
from trainstone.train.preflight.roll import Met, call_roll
from trainstone.train.preflight.room import name_place
from trainstone.units import format_count


@contextmanager
def meet_all(config: Config, run: RunFolder | None) -> Iterator[World]:
    """Meet the other ranks that the launcher started, and part when done; the first rank has the run's folder."""
    rank, began = read_rank(), time.perf_counter()
    if rank.world == 1:
        yield World(rank, choose_rank_device(config.device, rank))
        return
    allow_many_files()
    timeout = timedelta(seconds=config.parallel.timeout_seconds)
    met = call_roll(config, rank, run.path if run else None)
    wished = config.parallel.interface is not None
    with use_interface(met.interface.name, wished=wished), close_group(met.own.backend):
        world = World(rank, met.own.device, timeout=timeout, leads_host=rank.number in met.leaders)
        world, timed = exchange(met, world, config.parallel)
        if rank.number == 0:
            world = record_meeting(world, run, met, timed, time.perf_counter() - began)
        yield world


def allow_many_files() -> None:
    """Take as many as the system gives: a rank is connected with every other, and the usual limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def record_meeting(world: World, run: RunFolder | None, met: Met, timed: Timed, seconds: float) -> World:
    """Write what the meeting found into the result, and keep it with what is to be said of it."""
    hosts = []
    for one in met.hosts:
        clock = met.clocks.get(one["host"])
        kept = {key: one[key] for key in ("host", "ranks", "interface", "address", "devices", "versions")}
        skew = {"clock_skew_seconds": clock[0], "clock_uncertainty_seconds": clock[1]} if clock else {}
        hosts.append(Host.model_validate(kept | skew))
    preflight = Preflight(
        meeting=name_place(met.room.meeting),
        backend=met.own.backend,
        seconds=seconds,
        hosts=hosts,
        links=timed.links,
        links_left_out=timed.left_out,
    )
    if run:
        run.update(preflight=preflight)
    return replace(world, preflight=preflight, findings=(*find_skewed(hosts), *find_slow(timed.links)))


def tell_meeting(world: World) -> Progress:
    """Say who has met where."""
    return Progress(tell_met(world.preflight) if world.preflight else "reading machine facts")


def announce_meeting(rank: Rank) -> Progress:
    """Say where this rank goes to meet the others."""
    if rank.world == 1:
        return Progress("reading machine facts")
    others = format_count(rank.world - 1, "other rank")
    return Progress(f"meeting {others} at {name_place(read_meeting())}")


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
