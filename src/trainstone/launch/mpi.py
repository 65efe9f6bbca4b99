"""trainstone launch mpi: ranks on one host or many, started by Open MPI's mpirun, also in Apptainer images."""

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from trainstone.errors import ConfigError, MachineError
from trainstone.launch.apptainer import PYTHON, wrap_command
from trainstone.launch.engine import Plan
from trainstone.launch.folder import rank_environment
from trainstone.launch.hosts import Host, count_slots, read_hostfile, read_hosts
from trainstone.launch.verb import Verb
from trainstone.machine.affinity import VARIABLE as CPUS

FORWARDED = ("TRAINSTONE_", "NCCL_", "GLOO_", "OMP_", "MASTER_")
"""Variables of the user's that ranks on other hosts get as well."""


SCHEDULERS = {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PE_HOSTFILE"}
"""Who has set one of these tells mpirun the hosts."""


class Asked(NamedTuple):
    """Options of the command line."""

    ranks: int | None = None
    host: str | None = None
    hostfile: Path | None = None
    container: str | None = None
    max_restarts: int = 0
    words: str = ""
    """For mpirun itself."""


def list_hosts(asked: Asked) -> list[Host]:
    """Return the hosts that were named; none: this one, or what a scheduler gives mpirun."""
    if asked.host and asked.hostfile:
        raise ConfigError("--host and --hostfile both name hosts", hint="give one of them")
    if asked.host:
        return read_hosts(asked.host)
    return read_hostfile(asked.hostfile) if asked.hostfile else []


def choose_ranks(asked: Asked, verb: Verb, hosts: list[Host]) -> int:
    """Return how many ranks to start: as asked, else the slots of the hosts, else one a device of the system."""
    devices = verb.system.nodes * verb.system.devices_per_node if verb.system else None
    ranks = asked.ranks or count_slots(hosts) or devices
    if not ranks:
        raise ConfigError(
            "nothing says how many ranks to start", hint="say -np N, or name hosts with their slots: --host n1:4,n2:4"
        )
    return ranks


def plan_mpi(verb: Verb, run: Path, launch: str, asked: Asked) -> Plan:
    """Return what starts the ranks."""
    settings = verb.system.launch if verb.system else None
    hosts = list_hosts(asked)
    ranks = choose_ranks(asked, verb, hosts)
    environment = rank_environment(run, launch, ranks=ranks, bind=True)
    if hosts and "MASTER_ADDR" not in os.environ:
        environment["MASTER_ADDR"] = hosts[0].name
    environment |= settings.environment if settings else {}
    container = asked.container or (settings.container if settings else None)
    return Plan(
        engine="mpi",
        command=(*mpirun(asked, ranks, list_forwarded(environment)), *rank_command(verb, run, container)),
        environment=environment,
        prologue=settings.prologue if settings else (),
        attempts=1 + asked.max_restarts,
    )


def mpirun(asked: Asked, ranks: int, forwarded: Sequence[str]) -> list[str]:
    """Return mpirun's words. Ranks bind themselves; a name alone after -x takes the value from mpirun's environment."""
    words = ["mpirun", "-np", str(ranks)]
    words += ["--host", asked.host] if asked.host else []
    words += ["--hostfile", str(asked.hostfile)] if asked.hostfile else []
    words += ["--bind-to", "none", "--wdir", str(Path.cwd())]
    words += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    for name in forwarded:
        words += ["-x", name]
    try:
        return [*words, *shlex.split(asked.words)]
    except ValueError as err:
        raise ConfigError(f"--mpirun {asked.words}: {err}") from err


def list_forwarded(environment: dict[str, str]) -> list[str]:
    """Return the names of variables that all ranks get: ours, and the user's that concern ranks."""
    theirs = [name for name in os.environ if name.startswith(FORWARDED) and name != CPUS]
    return sorted({*environment, *theirs})


def rank_command(verb: Verb, run: Path, container: str | None) -> list[str]:
    """Return the command line of a rank; in an image it sees this folder, the run's and the data's."""
    if container is None:
        return verb.command()
    root = verb.config.data.root
    binds = [Path.cwd(), run.parent, *([Path(root)] if root else [])]
    program = "apptainer" if shutil.which("apptainer") or not shutil.which("singularity") else "singularity"
    # Whether there are devices is for the ranks' hosts to say: --nv without one only warns.
    return wrap_command(verb.command(PYTHON), container, binds, gpus=verb.config.device != "cpu", program=program)


def check_hosts(asked: Asked, verb: Verb) -> None:
    """Refuse a system of several nodes of which none is named: mpirun would take this host for all of them."""
    nodes = verb.system.nodes if verb.system else 1
    if nodes > 1 and not (asked.ranks or asked.host or asked.hostfile) and not SCHEDULERS & os.environ.keys():
        raise ConfigError(
            f"system {verb.config.system} has {nodes} nodes, and nothing names them",
            hint="--host a:4,b:4 or --hostfile FILE, or start it inside a scheduler's allocation",
        )


def check_programs(plan: Plan) -> None:
    """Refuse to start where a program is missing; a prologue may bring it."""
    if plan.prologue:
        return
    if shutil.which("mpirun") is None:
        raise MachineError(
            "there is no mpirun here", hint="install Open MPI (Debian: openmpi-bin), or `module load` it in a prologue"
        )
    inside = {"apptainer", "singularity"} & set(plan.command)
    if inside and shutil.which(inside.pop()) is None:
        raise MachineError(
            "--container needs Apptainer or Singularity; neither is here", hint="install apptainer, or leave it out"
        )
