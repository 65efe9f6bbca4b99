"""Which of how many processes this is and where they meet, as torchrun, Slurm, Open MPI or a PMI launcher tell it.

Ranks of one host that compute on the CPU: each takes its fair share of the cores and stays on it.
"""

import os
import re
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from trainstone.errors import LaunchError
from trainstone.machine.cpus import read_affinity, read_siblings, remember_affinity


class Variables(NamedTuple):
    """What one launcher calls things."""

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
LOOPBACK = "127.0.0.1"
BIND = "TRAINSTONE_BIND"
"""cores: ranks that compute on the CPU divide the cores of their host among themselves and stay on them."""
SET_BOTH = "set MASTER_ADDR (host of rank 0) and MASTER_PORT (a free port there), the same for all ranks"


class Rank(NamedTuple):
    """Number of this process, from 0, how many there are, and its number on its host."""

    number: int = 0
    world: int = 1
    local: int = 0


class Meeting(NamedTuple):
    """Where rank 0 waits for the others."""

    host: str
    port: int


ALONE = Rank()


def read_rank() -> Rank:
    """Return this process's place; alone where no launcher says otherwise."""
    names = find_launcher()
    if names is None:
        return ALONE
    rank, world = os.environ[names.rank], os.environ[names.world]
    if not (rank.isdecimal() and world.isdecimal() and int(rank) < int(world)):
        raise LaunchError(f"{names.rank}={rank} of {names.world}={world} is no place among processes")
    return Rank(int(rank), int(world), read_local(names))


def find_launcher() -> Variables | None:
    """Return the names of the first launcher that set its two; none: this process is alone."""
    return next((names for names in VARIABLES if names.rank in os.environ and names.world in os.environ), None)


def read_local(names: Variables) -> int:
    """Return the number on this host as the launcher tells it, else as another does, else 0.

    srun with PMI sets PMI_RANK but Slurm's local number; who exports RANK by hand often leaves LOCAL_RANK to srun.
    """
    for name in (names.local, *(other.local for other in VARIABLES)):
        local = os.environ.get(name)
        if local is None:
            continue
        if not local.isdecimal():
            raise LaunchError(f"{name}={local} is no number of a process on its host")
        return int(local)
    return 0


def count_sharing_ranks() -> int:
    """Return how many ranks share the cores this one may use: those of its host, unless each is bound to its own."""
    bound = len(read_affinity()) < (os.cpu_count() or 1)
    return 1 if bound else count_local_ranks()


def count_local_ranks() -> int:
    """Return how many ranks the launcher has started on this host."""
    names = find_launcher()
    told = re.match(r"\d+", os.environ.get(names.local_world, "") if names else "")  # Slurm writes 4(x2) for two hosts
    return max(1, int(told.group())) if told else 1


def read_meeting() -> Meeting:
    """Return where the ranks meet: MASTER_ADDR and MASTER_PORT, each else as Slurm or the MPI launcher imply it."""
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    names = find_launcher()
    host = host or find_host(names)
    if port:
        if not (port.isdecimal() and 0 < int(port) < 65536):
            raise LaunchError(f"MASTER_PORT={port} is no port: 1 to 65535 are")
        return Meeting(host, int(port))
    job = name_job(names)
    if job is None:
        raise LaunchError(f"nothing says at which port of {host} the ranks meet", hint=SET_BOTH)
    return Meeting(host, FIRST_PORT + zlib.crc32(job.encode()) % NUM_PORTS)


def find_host(names: Variables | None) -> str:
    """Return the host of rank 0: the first of Slurm's list, or this one if all ranks are here."""
    # mpirun starts its daemons on the other hosts by a step of their own, which lacks the first host.
    lists = ("SLURM_JOB_NODELIST",) if names == OPEN_MPI else ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
    for name in lists:
        nodes = os.environ.get(name)
        if nodes:
            return read_first_host(name, nodes)
    if names and os.environ.get(names.local_world) == os.environ[names.world]:
        return LOOPBACK
    raise LaunchError("nothing says where the ranks meet: MASTER_ADDR is not set", hint=SET_BOTH)


def name_job(names: Variables | None) -> str | None:
    """Return a name that all ranks of this run share and other runs do not; None if the launcher gives none."""
    job = next((os.environ[name] for name in JOB_NAMES if os.environ.get(name)), None)
    slurm = os.environ.get("SLURM_JOB_ID")
    if names == OPEN_MPI:  # its ranks belong to different steps of a Slurm job
        return job or slurm
    return f"{slurm}.{os.environ.get('SLURM_STEP_ID', '')}" if slurm else job


def read_first_host(name: str, nodes: str) -> str:
    """Return the first host of a list as Slurm writes it: n[01-03,7],gpu5 begins with n01."""
    first = re.match(r"(?:[^\[\],\s]|\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\])+(?=,|$)", nodes)
    if first is None:
        raise LaunchError(f"{name}={nodes} is no list of hosts such as n[01-03,7],gpu5", hint=SET_BOTH)
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first.group())


def expand_hosts(text: str) -> list[str]:
    """Return every host of a list: n01, n02, n03, n7, gpu5."""
    found = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        names = [""]
        for plain, ranges in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", part):
            names = [name + piece for name in names for piece in ([plain] if plain else expand_ranges(ranges))]
        found += names
    return found


def expand_ranges(text: str) -> list[str]:
    """Return 01, 02, 03, 7 of 01-03,7."""
    found = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and last.isdecimal():
            found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
        else:
            found.append(part)
    return found


def list_step_hosts() -> list[str]:
    """Return the hosts of the Slurm step or job that this process belongs to; empty: there is none."""
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"):
        if os.environ.get(name):
            return expand_hosts(os.environ[name])
    return []


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
