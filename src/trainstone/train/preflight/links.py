"""Times all-reduces by message size: between the first ranks of two hosts, and of all ranks together."""

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from trainstone.results.preflight import Link
from trainstone.train.distributed import World
from trainstone.train.preflight.deadline import Deadline
from trainstone.train.preflight.group import set_patience
from trainstone.train.preflight.room import first_line

SIZES = (2**10, 2**16, 2**20, 2**24)
REPEATS = 3
# A message is not sent again, nor is the next larger one, where that would take so long.
SLOW_SECONDS = 1.0
TELLING_BYTES = 2**20
# For one pair; and what must be left of the meeting's time to go on with the next ones.
PAIR_SECONDS, SPARE_SECONDS = 20.0, 5.0
# Groups end their waiting so long before the meeting is over.
PATIENCE_SECONDS = 3.0
MOST_ROUNDS = 15


class Timed(NamedTuple):
    """What one rank timed, or what went wrong."""

    links: list[Link]
    left_out: int = 0
    """Pairs that there was no time for."""
    failed: str | None = None


def plan_rounds(hosts: int) -> list[list[tuple[int, int]]]:
    """Return every pair of hosts once, in rounds whose pairs have no host in common."""
    seats: list[int | None] = [*range(hosts), *([None] if hosts % 2 else [])]
    rounds = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        across = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append([(min(a, b), max(a, b)) for a, b in across if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


def time_links(world: World, hosts: Sequence[str], leaders: Sequence[int], deadline: Deadline) -> Timed:
    """Time each pair of hosts by their first ranks, then all ranks, which the first rank keeps."""
    rounds = plan_rounds(len(hosts)) if len(hosts) > 1 else []
    seat = leaders.index(world.rank.number) if world.rank.number in leaders else None
    found: list[Link] = []
    done = 0
    for pairs in rounds[:MOST_ROUNDS]:
        set_patience(world.control, max(1.0, deadline.left - PATIENCE_SECONDS))
        mine = next((pair for pair in pairs if seat in pair), None)
        failed = None
        if mine is not None:
            names = [hosts[one] for one in mine]
            try:
                link = time_pair(world, [leaders[one] for one in mine], names, deadline)
                found += [link] if seat == mine[0] else []
            except RuntimeError as err:
                failed = f"{names[0]} and {names[1]} cannot exchange messages: {first_line(err)}"
        done += 1
        some_failed, some_late = agree(world, failed is not None, deadline.left < SPARE_SECONDS)
        if some_failed:
            return Timed(found, failed=failed)
        if some_late:
            break
    set_patience(world.control, max(1.0, deadline.left - PATIENCE_SECONDS))
    together = make_link([], *time_sizes(world, None))
    found += [together] if world.rank.number == 0 else []
    return Timed(found, left_out=sum(map(len, rounds[done:])))


def agree(world: World, *mine: bool) -> list[bool]:
    """Return what any rank says is so."""
    told = torch.tensor([int(one) for one in mine])
    dist.all_reduce(told, dist.ReduceOp.MAX, group=world.control)
    return [bool(one) for one in told]


def time_pair(world: World, ranks: list[int], names: list[str], deadline: Deadline) -> Link:
    """Time messages between two ranks in a group of their own."""
    seconds = min(PAIR_SECONDS, max(1.0, deadline.left - SPARE_SECONDS))
    group = dist.new_group(ranks, timeout=timedelta(seconds=seconds), use_local_synchronization=True)
    try:
        return make_link(names, *time_sizes(world, group))
    finally:
        with suppress(RuntimeError):
            dist.destroy_process_group(group)


def make_link(names: list[str], sizes: list[int], seconds: list[float]) -> Link:
    """Return what was timed as it is recorded."""
    return Link(hosts=names, bytes=sizes, seconds=seconds, bytes_per_second=sizes[-1] / seconds[-1])


def time_sizes(world: World, group: Any) -> tuple[list[int], list[float]]:
    """Return sizes and the median time of each; on a slow link the largest are left out."""
    # gloo takes tensors of a CUDA device as well, but by way of the host's memory.
    device = world.device if dist.get_backend(group) == "nccl" else torch.device("cpu")
    sizes, seconds = [], []
    time_once(torch.zeros(1, device=device), group)  # which also connects, and is not what a message takes
    for size, larger in pairwise((*SIZES, SIZES[-1])):
        message = torch.zeros(size // 4, device=device)
        first = time_once(message, group)
        slowest = torch.tensor([first], device=device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group)  # all must agree how often
        # Small ones take as long as the way, not as their bytes.
        slow = size >= TELLING_BYTES and float(slowest) * larger / size > SLOW_SECONDS
        times = [first] if slow else [time_once(message, group) for _ in range(REPEATS)]
        sizes.append(size)
        seconds.append(median(times))
        if slow:
            break
    return sizes, seconds


def time_once(message: torch.Tensor, group: Any) -> float:
    """Return how long one all-reduce takes."""
    on_device = message.device.type != "cpu"
    if on_device:
        torch.accelerator.synchronize()
    began = time.perf_counter()
    dist.all_reduce(message, group=group)
    if on_device:
        torch.accelerator.synchronize()
    return time.perf_counter() - began
