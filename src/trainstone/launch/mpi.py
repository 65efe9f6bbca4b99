"""trainstone launch mpi: ranks on one host or many, started by Open MPI's mpirun, also in Apptainer images."""

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from trainstone.errors import ConfigError, MachineError
from trainstone.launch.apptainer import PYTHON, wrap_command
from trainstone.launch.supervisor import Plan
from trainstone.launch.verb import Verb, rank_environment
from trainstone.machine.cpus import GIVEN_CPUS as CPUS

FORWARDED = ("TRAINSTONE_", "NCCL_", "GLOO_", "OMP_", "MASTER_")
"""Variables of the user's that ranks on other hosts get as well."""


SCHEDULERS = {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PE_HOSTFILE"}
"""Who has set one of these tells mpirun the hosts."""


class Host(NamedTuple):
    """A host and how many ranks it has room for."""

    name: str
    slots: int | None
    """None: not said."""


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


def read_hosts(text: str) -> list[Host]:
    """Read a:4,b:4."""
    hosts = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([^\s:,-][^\s:,]*)(?::(\d+))?\s*", part)
        if match is None:
            raise ConfigError(f"--host {text} is no list of hosts", hint="for example --host n1:4,n2:4")
        hosts.append(Host(match[1], int(match[2]) if match[2] else None))
    return hosts


def read_hostfile(path: Path) -> list[Host]:
    """Read Open MPI's hostfile: a host a line, with slots=4 or :4 behind; # begins a remark."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"cannot read --hostfile {path}: {err}") from err
    hosts = []
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words:
            slots = re.search(r"\bslots\s*=\s*(\d+)", " ".join(words[1:]))
            name, _, number = words[0].rpartition(":") if re.search(r":\d+$", words[0]) else (words[0], "", "")
            hosts.append(Host(name.rpartition("@")[2], int(slots[1] if slots else number) if slots or number else None))
    if not hosts:
        raise ConfigError(f"--hostfile {path} names no host", hint="a line for each: n1 slots=4")
    return hosts


def count_slots(hosts: list[Host]) -> int | None:
    """Return how many ranks all hosts have room for; None where one does not say."""
    slots = [host.slots for host in hosts]
    return sum(slot for slot in slots if slot) if slots and None not in slots else None
