"""Start ranks on one or more hosts with Open MPI's mpirun, optionally in an Apptainer image."""

import os
import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from trainstone.errors import ConfigError, MachineError
from trainstone.launch.verb import IMAGE_PYTHON, Verb, build_rank_environment
from trainstone.machine.cpus import GIVEN_CPUS
from trainstone.machine.supervisor import LaunchPlan

# Prefixes of the user's variables that mpirun forwards to ranks on other hosts.
FORWARDED = ("TRAINSTONE_", "NCCL_", "GLOO_", "OMP_", "MASTER_")
# With one of these variables set, mpirun gets the hosts from the scheduler.
SCHEDULERS = {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PE_HOSTFILE"}
Hosts = list[tuple[str, int | None]]
"""Each host and its number of slots (None: not given)."""


class MpiOptions(NamedTuple):
    """Options of `trainstone launch mpi`."""

    ranks: int | None = None
    host: str | None = None
    hostfile: Path | None = None
    container: str | None = None
    max_restarts: int = 0
    words: str = ""  # further options of mpirun


def plan_mpi(verb: Verb, run: Path, launch: str, options: MpiOptions) -> LaunchPlan:
    """Plan ranks on the named hosts, else on the scheduler's hosts, else on this host.

    Number of ranks: as requested, else the slots of the hosts, else one per device of the system.
    """
    settings = verb.system.launch if verb.system else None
    if options.host and options.hostfile:
        raise ConfigError("--host and --hostfile are both given; only one is allowed", hint="remove one of them")
    hosts = parse_hosts(options.host) if options.host else read_hostfile(options.hostfile) if options.hostfile else []
    slots = sum(number or 0 for _, number in hosts) if all(number for _, number in hosts) else 0
    devices = verb.system.nodes * verb.system.devices_per_node if verb.system else 0
    ranks = options.ranks or slots or devices
    if not ranks:
        hint = "-np 8, or hosts with their slots: --host n1:4,n2:4"
        raise ConfigError("unknown number of ranks: no -np, no slots and no --system are given", hint=hint)
    environment = build_rank_environment(run, launch, ranks=ranks)
    if hosts and "MASTER_ADDR" not in os.environ:
        environment["MASTER_ADDR"] = hosts[0][0]
    environment |= settings.environment if settings else {}
    command, container = verb.command(), options.container or (settings.container if settings else None)
    if container is not None:
        program = "apptainer" if shutil.which("apptainer") or not shutil.which("singularity") else "singularity"
        # Only the ranks' hosts know whether they have devices; without one, --nv only warns.
        gpus, binds = verb.config.device != "cpu", [Path.cwd(), run.parent]
        command = verb.wrap(verb.command(IMAGE_PYTHON), container, binds, gpus=gpus, program=program)
    return LaunchPlan(
        engine="mpi",
        command=(*build_mpirun_command(options, ranks, environment), *command),
        environment=environment,
        prologue=settings.prologue if settings else (),
        attempts=1 + options.max_restarts,
    )


def build_mpirun_command(options: MpiOptions, ranks: int, environment: Mapping[str, str]) -> list[str]:
    """Return the mpirun command. Ranks bind themselves; -x NAME forwards the value in mpirun's environment."""
    forwarded = [name for name in os.environ if name.startswith(FORWARDED) and name != GIVEN_CPUS]
    words = ["mpirun", "-np", str(ranks)]
    words += ["--host", options.host] if options.host else []
    words += ["--hostfile", str(options.hostfile)] if options.hostfile else []
    words += ["--bind-to", "none", "--wdir", str(Path.cwd())]
    words += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    words += [word for name in sorted({*environment, *forwarded}) for word in ("-x", name)]
    try:
        return [*words, *shlex.split(options.words)]
    except ValueError as err:
        raise ConfigError(f"invalid --mpirun {options.words!r}: {err}") from err


def check_start(plan: LaunchPlan, options: MpiOptions, verb: Verb) -> None:
    """Raise when a program is missing, unless a prologue may provide it.

    Also raise when a system has several nodes and none is named: mpirun would start all ranks on this host.
    """
    nodes = verb.system.nodes if verb.system else 1
    if nodes > 1 and not (options.ranks or options.host or options.hostfile) and not SCHEDULERS & os.environ.keys():
        raise ConfigError(
            f"unknown hosts: system {verb.config.system} has {nodes} nodes, and none is named",
            hint="--host a:4,b:4 or --hostfile FILE, or start it in a scheduler's allocation",
        )
    if plan.prologue:
        return
    if shutil.which("mpirun") is None:
        raise MachineError(
            "mpirun not found", hint="install Open MPI (Debian: openmpi-bin), or load its module in the prologue"
        )
    inside = {"apptainer", "singularity"} & set(plan.command)
    if inside and shutil.which(inside.pop()) is None:
        raise MachineError(
            "--container needs Apptainer or Singularity; neither was found",
            hint="install apptainer, or remove --container",
        )


def parse_hosts(text: str) -> Hosts:
    hosts: Hosts = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([^\s:,-][^\s:,]*)(?::(\d+))?\s*", part)
        if match is None:
            raise ConfigError(f"invalid --host {text}: expected a list of hosts", hint="--host n1:4,n2:4")
        hosts.append((match[1], int(match[2]) if match[2] else None))
    return hosts


def read_hostfile(path: Path) -> Hosts:
    """Read Open MPI's hostfile: one host per line, followed by slots=4 or :4; # begins a comment."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"cannot read --hostfile {path}: {err}") from err
    hosts: Hosts = []
    for line in lines:
        match = re.match(r"\s*(?:[^\s#]+@)?([^\s#]+?)(?::(\d+))?(?:\s(?:[^#]*(?<![\w-])slots\s*=\s*(\d+))?|#|$)", line)
        if match:
            slots = match[3] or match[2]
            hosts.append((match[1], int(slots) if slots else None))
    if not hosts:
        raise ConfigError(f"invalid --hostfile {path}: it names no host", hint="write one host per line: n1 slots=4")
    return hosts
