"""The last round of the meeting: the process group is opened and messages are timed. One rank tells what failed."""

from dataclasses import replace
from datetime import timedelta

import torch

from trainstone.config.learning import ParallelConfig
from trainstone.errors import LaunchError, TrainstoneError
from trainstone.results.preflight import Link
from trainstone.train.distributed import World
from trainstone.train.preflight.deadline import call_within
from trainstone.train.preflight.group import set_patience, start_group
from trainstone.train.preflight.hello import Document, describe_trouble, find_trouble
from trainstone.train.preflight.links import Timed, time_links
from trainstone.train.preflight.roll import Met, find_lost
from trainstone.train.preflight.room import first_line, name_place

# Groups end their waiting before this rank does, and this rank before the first one counts who is left.
EARLY_SECONDS, LATE_SECONDS = 3.0, 1.5
HINT = (
    "parallel.interface names the network to take; parallel.meeting_seconds gives more time; NCCL_DEBUG=INFO says more"
)


def exchange(met: Met, world: World, parallel: ParallelConfig) -> tuple[World, Timed]:
    """Open the group and time messages; return the world with it, and on the first rank what all have timed."""
    if world.device.type == "cuda":
        torch.cuda.set_device(world.device)  # of this thread; start_group does it for its own
    trouble: TrainstoneError | None = None
    timed = Timed([])
    try:
        world, timed = call_within(
            max(1.0, met.deadline.left - LATE_SECONDS), lambda: open_and_time(met, world, parallel)
        )
    except (RuntimeError, TimeoutError) as err:
        what = "it did not come to an end" if isinstance(err, TimeoutError) else first_line(err)
        place = name_place(met.room.meeting)
        trouble = LaunchError(f"could not use the {met.own.backend} group that met at {place}: {what}", hint=HINT)
    links = [link.model_dump(mode="json") for link in timed.links]
    mine = {"trouble": describe_trouble(trouble), "failed": timed.failed, "links": links}
    said = met.room.gather("group", mine, met.deadline.left)
    problem = judge_exchange(met, said) if said is not None else None
    met.room.tell("group", None, problem, len(said or ()) - 1, met.deadline.left)
    set_patience(world.control, parallel.timeout_seconds)
    met.room.store.set_timeout(timedelta(seconds=parallel.timeout_seconds))
    all_links = [Link.model_validate(link) for one in (said or {}).values() for link in one["links"]]
    return world, timed._replace(links=sorted(all_links, key=lambda link: not link.hosts))


def open_and_time(met: Met, world: World, parallel: ParallelConfig) -> tuple[World, Timed]:
    """Do both; what hangs ends with an error of torch's."""
    seconds = max(1.0, met.deadline.left - EARLY_SECONDS)
    world = replace(world, control=start_group(met.room, met.own.backend, world.device, seconds))
    if not parallel.time_links:
        return world, Timed([])
    return world, time_links(world, [host["host"] for host in met.hosts], met.leaders, met.deadline)


def judge_exchange(met: Met, said: dict[int, Document]) -> TrainstoneError | None:
    """Return what is wrong. Where a rank is lost or a pair does not get on, others' troubles are only its echo."""
    hosts = {number: host["host"] for host in met.hosts for number in host["ranks"]}
    failures = list(dict.fromkeys(one["failed"] for one in said.values() if one["failed"]))
    hint = "look at the network between them; parallel.interface chooses another"
    pairs = LaunchError("; ".join(failures[:4]), hint=hint) if failures else None
    return find_lost(met.room, said, hosts) or pairs or find_trouble(said, hosts)
