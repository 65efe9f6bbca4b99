"""Rank, world size and rendezvous address from the variables of torchrun, Slurm, Open MPI or a PMI launcher.

Ranks of one host are bound to an equal share of its cores; ranks with a GPU to a share of those near it.
"""

import os
import re
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from trainstone.errors import LaunchError
from trainstone.machine.cpus import parse_cpu_list, read_affinity, read_siblings, read_text, remember_affinity


class Variables(NamedTuple):
    rank: str
    world: str
    local: str
    local_world: str


OPEN_MPI = Variables(
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"
)
# In order of precedence: torchrun's variables override Slurm's inside a Slurm job.
# Slurm's are those of a step (srun): a batch script also has SLURM_PROCID and SLURM_NTASKS, but is a single process.
VARIABLES = (
    Variables("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    OPEN_MPI,
    Variables("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    Variables("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)
# Job names shared by all ranks: Open MPI 4; Open MPI 5 and other PMIx launchers.
JOB_NAMES = ("OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE")
# Below Linux's ephemeral ports (32768 and above), so rarely in use.
FIRST_PORT, NUM_PORTS = 20000, 12000
NODE_LISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
LOOPBACK = "127.0.0.1"
# Value "cores": bind each rank to its share of the host's cores.
BIND, BOUND = "TRAINSTONE_BIND", "TRAINSTONE_BOUND"
HINT = "export MASTER_ADDR=HOST MASTER_PORT=29500: the host of rank 0 and a free port there, the same for all ranks"


class Rank(NamedTuple):
    """Rank of this process, world size, and local rank on its host."""

    number: int = 0
    world: int = 1
    local: int = 0


class Rendezvous(NamedTuple):
    """Address of rank 0, where the other ranks connect."""

    host: str
    port: int


SINGLE_RANK = Rank()


def read_rank() -> Rank:
    """Return the rank of this process; a single rank if no launcher's variables are set.

    srun with PMI sets PMI_RANK but only Slurm's local rank, and users who export RANK often rely on srun's local rank.
    """
    names = find_launcher()
    if names is None:
        return SINGLE_RANK
    local_names = [name for name in (names.local, *(other.local for other in VARIABLES)) if name in os.environ][:1]
    for name in (names.rank, names.world, *local_names):
        if not os.environ[name].isdecimal():
            raise LaunchError(f"invalid {name}={os.environ[name]!r}: expected a number")
    rank, world = int(os.environ[names.rank]), int(os.environ[names.world])
    if rank >= world:
        raise LaunchError(f"invalid {names.rank}={rank}: expected less than {names.world}={world}")
    return Rank(rank, world, int(os.environ[local_names[0]]) if local_names else 0)


def find_launcher() -> Variables | None:
    return next((names for names in VARIABLES if names.rank in os.environ and names.world in os.environ), None)


def count_sharing_ranks() -> int:
    """Return how many ranks share this rank's cores: all ranks of the host, or 1 if each is bound to its own cores."""
    # Where Slurm binds no rank, the CPUs of its job are fewer than the host's, and shared.
    shared = os.environ.get("SLURM_CPU_BIND_TYPE", "").startswith("none") and BOUND not in os.environ
    bound = len(read_affinity()) < (os.cpu_count() or 1) and not shared
    return 1 if bound else count_local_ranks()


def count_local_ranks() -> int:
    names = find_launcher()
    text = os.environ.get(names.local_world, "") if names else ""
    match = re.match(r"\d+", text)  # Slurm writes 4(x2) for two hosts
    return max(1, int(match.group())) if match else 1


def read_rendezvous() -> Rendezvous:
    """Return the rendezvous address: MASTER_ADDR and MASTER_PORT, with defaults from Slurm or the MPI launcher."""
    names, port, host = find_launcher(), os.environ.get("MASTER_PORT"), os.environ.get("MASTER_ADDR")
    if not host:  # rank 0's host: the first of Slurm's list, or this host if all ranks are on it
        # mpirun starts its daemons on the other hosts as a separate step, whose host list lacks the first host.
        hosts = list_step_hosts(NODE_LISTS[1:] if names == OPEN_MPI else NODE_LISTS)
        if not hosts and not (names and os.environ.get(names.local_world) == os.environ[names.world]):
            raise LaunchError("MASTER_ADDR is not set, and the launcher's variables do not define it", hint=HINT)
        host = hosts[0] if hosts else LOOPBACK
    if port:
        if not (port.isdecimal() and 0 < int(port) < 65536):
            raise LaunchError(f"invalid MASTER_PORT={port!r}: expected a port from 1 to 65535")
        return Rendezvous(host, int(port))
    # A job name that all ranks of this run share, and other runs do not.
    job = next((os.environ[name] for name in JOB_NAMES if os.environ.get(name)), None)
    slurm = os.environ.get("SLURM_JOB_ID")
    if names == OPEN_MPI:  # its ranks are in different steps of a Slurm job
        job = job or slurm
    elif slurm:
        job = f"{slurm}.{os.environ.get('SLURM_STEP_ID', '')}"
    if job is None:
        raise LaunchError("MASTER_PORT is not set, and the launcher's variables do not define it", hint=HINT)
    return Rendezvous(host, FIRST_PORT + zlib.crc32(job.encode()) % NUM_PORTS)


def list_step_hosts(variables: Sequence[str] = NODE_LISTS) -> list[str]:
    """Return the hosts of this process's Slurm step or job: n[01-02],gpu5 is n01, n02, gpu5."""
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


def bind_cores(rank: Rank, gpus: Sequence[str] | None = None, root: Path = Path("/")) -> None:
    """Bind this rank to its share of the cores if TRAINSTONE_BIND=cores; call it before threads start.

    `gpus`: PCI ids of the GPUs that this rank sees, by local rank; None: it computes on the CPU. A rank that sees only
    its own GPU cannot know which ranks have theirs on the same NUMA node, and is not bound.
    """
    # Removed, because the process is bound once and its children inherit the affinity.
    requested = os.environ.pop(BIND, None) == "cores"
    sharing = count_local_ranks()
    bound_by_slurm = not (os.environ.get("SLURM_CPU_BIND_TYPE") or "none").startswith("none")
    known = gpus is None or len(gpus) >= sharing
    if not requested or sharing < 2 or bound_by_slurm or not known or not hasattr(os, "sched_setaffinity"):
        return
    cores = list_cores(read_affinity())
    if cores:
        lists = [read_text(root / "sys/bus/pci/devices" / gpu / "local_cpulist") for gpu in (gpus or ())[:sharing]]
        near = [parse_cpu_list(text) for text in lists] or [frozenset[int]()] * sharing
        os.sched_setaffinity(0, assign_near_cores(cores, near, rank.local % sharing))
        os.environ[BOUND] = "1"
        remember_affinity()


def list_cores(cpus: Collection[int], root: Path = Path("/")) -> list[frozenset[int]]:
    """Return the physical cores of `cpus` in order, each as the set of its hardware threads in `cpus`."""
    cores = {(read_siblings(cpu, root) or frozenset({cpu})) & frozenset(cpus) for cpu in cpus}
    return sorted((core for core in cores if core), key=min)


def assign_near_cores(cores: list[frozenset[int]], near: Sequence[frozenset[int]], number: int) -> frozenset[int]:
    """Return the CPUs of one of several ranks, where near[rank] are those near its GPU.

    Ranks whose GPUs are near the same cores divide these. All ranks divide the cores that are near no GPU.
    """
    own = [core for core in cores if core & near[number]]
    if not own:
        return assign_cores(cores, len(near), number)
    neighbours = [rank for rank, cpus in enumerate(near) if cpus == near[number]]
    rest = [core for core in cores if not core & frozenset().union(*near)]
    share = assign_cores(rest, len(near), number) if len(rest) >= len(near) else frozenset()
    return assign_cores(own, len(neighbours), neighbours.index(number)) | share


def assign_cores(cores: list[frozenset[int]], ranks: int, number: int) -> frozenset[int]:
    """Return the CPUs of one of several ranks: neighbouring cores, an equal share or one core more.

    With more ranks than cores, the ranks share cores in turn.
    """
    if ranks > len(cores):
        return cores[number % len(cores)]
    number %= ranks
    share = cores[number * len(cores) // ranks : (number + 1) * len(cores) // ranks]
    return frozenset().union(*share)
