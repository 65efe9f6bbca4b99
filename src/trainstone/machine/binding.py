"""Ranks of one host that compute on the CPU: each takes its fair share of the cores and stays on it."""

import os
import re
from collections.abc import Collection
from pathlib import Path

from trainstone.machine.affinity import read_affinity, remember_affinity
from trainstone.machine.cpus import read_siblings
from trainstone.machine.launched import BIND
from trainstone.machine.ranks import Rank, find_launcher


def bind_cores(rank: Rank) -> None:
    """Stay on this rank's share, where the launcher asks for it (TRAINSTONE_BIND); call it before threads are made."""
    # Taken out: the share is taken once, and a child process has it already.
    asked = os.environ.pop(BIND, None) == "cores"
    sharing = count_local_ranks()
    if not asked or sharing < 2 or is_bound_by_slurm() or not hasattr(os, "sched_setaffinity"):
        return
    cores = list_cores(read_affinity())
    if cores:
        os.sched_setaffinity(0, share_cores(cores, sharing, rank.local))
        remember_affinity()


def count_local_ranks() -> int:
    """Return how many ranks the launcher has started on this host."""
    names = find_launcher()
    told = re.match(r"\d+", os.environ.get(names.local_world, "") if names else "")  # Slurm writes 4(x2) for two hosts
    return int(told.group()) if told else 1


def is_bound_by_slurm() -> bool:
    """Say whether Slurm has given each rank cores of its own."""
    kind = os.environ.get("SLURM_CPU_BIND_TYPE", "none")
    return bool(kind) and not kind.startswith("none")


def list_cores(cpus: Collection[int], root: Path = Path("/")) -> list[frozenset[int]]:
    """Return the physical cores of these CPUs, in their order; each with those of its threads that we may use."""
    cores = {(read_siblings(cpu, root) or frozenset({cpu})) & frozenset(cpus) for cpu in cpus}
    return sorted((core for core in cores if core), key=min)


def share_cores(cores: list[frozenset[int]], ranks: int, number: int) -> frozenset[int]:
    """Return the CPUs of one of several ranks: neighbours, as many as the others have or one core more.

    More ranks than cores share them in turn.
    """
    if ranks > len(cores):
        return cores[number % len(cores)]
    number %= ranks
    mine = cores[number * len(cores) // ranks : (number + 1) * len(cores) // ranks]
    return frozenset().union(*mine)
