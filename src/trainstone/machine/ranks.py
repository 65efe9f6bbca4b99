"""Which of how many processes this is and where they meet, as torchrun, Slurm, Open MPI or a PMI launcher tell it.

Ranks of one host that compute on the CPU: each takes its fair share of the cores and stays on it.
"""

import os
import re
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from trainstone.errors import LaunchError
from trainstone.machine.cpus import read_affinity, read_siblings, remember_affinity


class Variables(NamedTuple):
    rank: str
    world: str
    local: str
    local_world: str


OPEN_MPI = Variables(
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"
)
# In the order they are believed: torchrun inside a Slurm job knows better than Slurm.
# Slurm's are those of a step (srun): a batch script also has SLURM_PROCID and SLURM_NTASKS, but runs alone.
VARIABLES = (
    Variables("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    OPEN_MPI,
    Variables("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    Variables("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)
# Names of a job that all its ranks share; of Open MPI 4, of Open MPI 5 and other PMIx launchers.
JOB_NAMES = ("OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE")
# Below the ports that Linux hands out by itself (32768 and above): seldom taken.
FIRST_PORT, NUM_PORTS = 20000, 12000
NODE_LISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
LOOPBACK = "127.0.0.1"
# cores: ranks that compute on the CPU divide the cores of their host among themselves and stay on them.
BIND = "TRAINSTONE_BIND"
SET_BOTH = "set MASTER_ADDR (host of rank 0) and MASTER_PORT (a free port there), the same for all ranks"


class Rank(NamedTuple):
    """Number of this process, from 0, how many there are, and its number on its host."""

    number: int = 0
    world: int = 1
    local: int = 0


class Rendezvous(NamedTuple):
    """Where rank 0 waits for the others."""

    host: str
    port: int


SINGLE_RANK = Rank()


def read_rank() -> Rank:
    """Return this process's place; a single process where no launcher says otherwise.

    srun with PMI sets PMI_RANK but Slurm's local number, and users who export RANK often leave LOCAL_RANK to srun.
    """
    names = find_launcher()
    if names is None:
        return SINGLE_RANK
    locals_ = [name for name in (names.local, *(other.local for other in VARIABLES)) if name in os.environ][:1]
    for name in (names.rank, names.world, *locals_):
        if not os.environ[name].isdecimal():
            raise LaunchError(f"invalid {name}={os.environ[name]}: expected a number")
    rank, world = int(os.environ[names.rank]), int(os.environ[names.world])
    if rank >= world:
        raise LaunchError(f"invalid {names.rank}={rank}: expected less than {names.world}={world}")
    return Rank(rank, world, int(os.environ[locals_[0]]) if locals_ else 0)


def find_launcher() -> Variables | None:
    return next((names for names in VARIABLES if names.rank in os.environ and names.world in os.environ), None)


def count_sharing_ranks() -> int:
    """Return how many ranks share the cores this one may use: those of its host, unless each is bound to its own."""
    bound = len(read_affinity()) < (os.cpu_count() or 1)
    return 1 if bound else count_local_ranks()


def count_local_ranks() -> int:
    names = find_launcher()
    message = re.match(
        r"\d+", os.environ.get(names.local_world, "") if names else ""
    )  # Slurm writes 4(x2) for two hosts
    return max(1, int(message.group())) if message else 1


def read_rendezvous() -> Rendezvous:
    """Return where the ranks meet: MASTER_ADDR and MASTER_PORT, each else as Slurm or the MPI launcher imply it."""
    names, port, host = find_launcher(), os.environ.get("MASTER_PORT"), os.environ.get("MASTER_ADDR")
    if not host:  # that of rank 0: the first of Slurm's list, or this one if all ranks are here
        # mpirun starts its daemons on the other hosts by a step of their own, which lacks the first host.
        hosts = list_step_hosts(NODE_LISTS[1:] if names == OPEN_MPI else NODE_LISTS)
        if not hosts and not (names and os.environ.get(names.local_world) == os.environ[names.world]):
            raise LaunchError("MASTER_ADDR is not set, and no launcher implies it", hint=SET_BOTH)
        host = hosts[0] if hosts else LOOPBACK
    if port:
        if not (port.isdecimal() and 0 < int(port) < 65536):
            raise LaunchError(f"invalid MASTER_PORT={port}: expected a port from 1 to 65535")
        return Rendezvous(host, int(port))
    # A name that all ranks of this run share and other runs do not.
    job = next((os.environ[name] for name in JOB_NAMES if os.environ.get(name)), None)
    slurm = os.environ.get("SLURM_JOB_ID")
    if names == OPEN_MPI:  # its ranks belong to different steps of a Slurm job
        job = job or slurm
    elif slurm:
        job = f"{slurm}.{os.environ.get('SLURM_STEP_ID', '')}"
    if job is None:
        raise LaunchError("MASTER_PORT is not set, and no launcher implies it", hint=SET_BOTH)
    return Rendezvous(host, FIRST_PORT + zlib.crc32(job.encode()) % NUM_PORTS)


def list_step_hosts(variables: Sequence[str] = NODE_LISTS) -> list[str]:
    """Return the hosts of the Slurm step or job that this process belongs to: n[01-02],gpu5 is n01, n02, gpu5."""
    text = next((os.environ[name] for name in variables if os.environ.get(name)), "")
    found = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        names = [""]
        for plain, ranges in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", part):
            names = [name + piece for name in names for piece in ([plain] if plain else expand_ranges(ranges))]
        found += names
    return found


def expand_ranges(text: str) -> list[str]:
    found = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if last.isdecimal():
            found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
        else:
            found.append(part)
    return found


def bind_cores(rank: Rank) -> None:
    """Stay on this rank's share, where the launcher says so (TRAINSTONE_BIND); call it before threads are made."""
    # Removed: the share is taken once, and a child process has it already.
    wanted = os.environ.pop(BIND, None) == "cores"
    sharing = count_local_ranks()
    bound_by_slurm = not (os.environ.get("SLURM_CPU_BIND_TYPE") or "none").startswith("none")
    if not wanted or sharing < 2 or bound_by_slurm or not hasattr(os, "sched_setaffinity"):
        return
    cores = list_cores(read_affinity())
    if cores:
        os.sched_setaffinity(0, share_cores(cores, sharing, rank.local))
        remember_affinity()


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
