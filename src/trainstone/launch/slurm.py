"""Write the batch script of `trainstone launch slurm` from its options and the system file.

The text is templates/job.sh.j2. slurm_job.py submits and follows it, as one job or on each node of a partition.
"""

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from pathlib import Path

import jinja2

from trainstone.config.schema import LaunchConfig, System
from trainstone.errors import ConfigError
from trainstone.launch.verb import IMAGE_PYTHON, Verb
from trainstone.machine.launched import VERBS
from trainstone.text import printable

SCRIPT = "job.sh"
# How long before its time limit a job is signalled: enough for a checkpoint of a large model on a slow disk.
# Of a short job a quarter of its time.
SIGNAL_SECONDS = 90
MAX_REQUEUES = 100
MAX_STARTS_WITHOUT_CHECKPOINT = 3
# Options of sbatch that the launcher sets or that would break it, with what to use instead.
OWN = {
    "array": "--fleet submits an array; --sbatch array=%4 limits it to 4 tasks at a time",
    "hold": "submit with --detach, then: scontrol hold JOB",
    "test-only": "--dry-run prints the script",
    "wrap": "--prologue LINE adds shell lines",
} | dict.fromkeys(
    ("output", "error", "open-mode", "chdir", "requeue", "no-requeue", "nodes", "ntasks-per-node", "wait"),
    "see: trainstone launch slurm --help",
)


@dataclass(frozen=True)
class Options:
    """Options of the command line; None or empty: from the system file, or a default."""

    nodes: int | None = None
    ranks_per_node: int | None = None
    partition: str | None = None
    time: str | None = None
    account: str | None = None
    gres: str | None = None
    container: str | None = None
    requeue: bool = False
    prologue: tuple[str, ...] = ()
    sbatch: tuple[str, ...] = ()
    max_restarts: int = 0


def add_system(options: Options, system: System | None) -> Options:
    site = system.launch if system else LaunchConfig()
    gres = options.gres or site.gres
    return replace(
        options,
        nodes=options.nodes or (system.nodes if system else 1),
        ranks_per_node=options.ranks_per_node or (system.devices_per_node if system else count_devices(gres)),
        partition=options.partition or site.partition,
        time=options.time or site.time,
        account=options.account or site.account,
        gres=gres,
        container=options.container or site.container,
        prologue=(*site.prologue, *options.prologue),
        sbatch=(*site.sbatch, *options.sbatch),
    )


def write_script(verb: Verb, options: Options, run: Path, folder: Path, fleet: Sequence[str] = ()) -> str:
    """Return the batch script; every value is quoted except prologue lines, which are shell.

    `folder` is where the job starts. `fleet` names nodes that each run a job of their own, in a folder below `run`.
    """
    options = add_system(options, verb.system)
    options = replace(options, nodes=1) if fleet else options
    num_ranks = (options.nodes or 1) * (options.ranks_per_node or 1)
    if num_ranks > 1 and verb.name not in VERBS:
        raise ConfigError(
            f"{verb.name} runs on one rank, not on {num_ranks}; verbs for many ranks: {', '.join(VERBS)}",
            hint="--nodes 1 --ranks-per-node 1, or --fleet for one on each node",
        )
    command, aftermath = build_commands(verb, options, run, folder)
    text = (resources.files("trainstone.launch") / "templates" / "job.sh.j2").read_text(encoding="utf-8")
    template = jinja2.Template(text, undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    script: str = template.render(
        quote=shlex.quote,
        title=printable(shlex.join(["trainstone", verb.name, *verb.arguments])),
        options=options,
        directives=list_directives(verb, options, run, folder, len(fleet)),
        run=refuse_line_break("the run folder", str(run)),
        nodes=shlex.join(fleet),
        num_tasks=len(fleet),
        environment=verb.system.launch.environment if verb.system else {},
        trains=verb.name == "train",
        max_requeues=MAX_REQUEUES,
        max_starts=MAX_STARTS_WITHOUT_CHECKPOINT,
        srun=shlex.join(["srun", "--kill-on-bad-exit=1", *command]),
        aftermath=shlex.join(aftermath),
    )
    return script


def build_commands(verb: Verb, options: Options, run: Path, folder: Path) -> tuple[list[str], list[str]]:
    """Return the command of a rank and the one that finds the cause of a failure, both in the container if any."""
    aftermath = ["-P", "-m", "trainstone.launch.aftermath"]
    if options.container is None:
        return verb.command(), [sys.executable, *aftermath]
    wrap = partial(verb.wrap, image=options.container, binds=[folder, run.parent], program="apptainer")
    command = wrap(verb.command(IMAGE_PYTHON), gpus="gpu" in (options.gres or ""))
    return command, wrap([IMAGE_PYTHON, *aftermath], gpus=False)


def list_directives(verb: Verb, options: Options, run: Path, folder: Path, num_tasks: int) -> list[str]:
    """Return the #SBATCH options; `num_tasks`: of the array of a fleet, 0 for a job."""
    log = str(run / "launch" / "engine-").replace("%", "%%")  # Slurm replaces %j in file names
    limit = read_time(options.time or "") or 4 * SIGNAL_SECONDS  # in seconds; Slurm may signal up to a minute early
    values = {
        "job-name": f"trainstone-{re.sub(r'[^A-Za-z0-9._-]+', '-', verb.config.name)}",
        "nodes": str(options.nodes),
        "ntasks-per-node": str(options.ranks_per_node),
        "partition": options.partition,
        "account": options.account,
        "time": options.time,
        "gres": options.gres,
        "signal": f"USR1@{max(1, min(SIGNAL_SECONDS, limit // 4))}",
        "chdir": str(folder),
        "output": log + ("%A_%a.log" if num_tasks else "%j.log"),
        "open-mode": "append",
    }
    found: dict[str, str | None] = {name: value for name, value in values.items() if value is not None}
    found["requeue" if options.requeue else "no-requeue"] = None
    found |= read_directives(options.sbatch, fleet=num_tasks > 0)
    if num_tasks:
        found["array"] = f"0-{num_tasks - 1}{found.get('array', '')}"
    return [write_directive(name, value) for name, value in found.items()]


def read_directives(words: Sequence[str], *, fleet: bool = False) -> dict[str, str | None]:
    """Read KEY and KEY=VALUE of --sbatch, with or without dashes; a later value replaces an earlier one.

    A fleet may limit how many of its tasks run at a time: array=%4.
    """
    found: dict[str, str | None] = {}
    for word in words:
        name, equals, value = word.partition("=")
        name = name.removeprefix("--")
        if not re.fullmatch("[a-z][a-z0-9-]*", name):
            raise ConfigError(
                f"invalid --sbatch {word}: expected KEY or KEY=VALUE with a long option of sbatch",
                hint="--sbatch exclusive --sbatch mem=0",
            )
        # sbatch accepts the beginning of a long name.
        own = next((own for own in OWN if own.startswith(name)), None)
        if own and not (fleet and name == "array" and re.fullmatch(r"%\d+", value)):
            raise ConfigError(f"invalid --sbatch {word}: launch slurm sets --{own} itself", hint=OWN[own])
        found[name] = value if equals else None
    return found


def write_directive(name: str, value: str | None) -> str:
    """Return an option as #SBATCH lines have it, in double quotes where necessary."""
    if value is None:
        return f"--{name}"
    refuse_line_break(f"--{name}", value)
    if re.fullmatch(r"[\w@%+=:,./-]+", value, re.ASCII):
        return f"--{name}={value}"
    return f"--{name}=" + '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def refuse_line_break(name: str, value: str) -> str:
    """Return the value; one with a line break could add lines to the script."""
    if any(character in value for character in "\n\r\0"):
        raise ConfigError(f"invalid {name} {value!r}: it has a line break")
    return value


def count_devices(gres: str | None) -> int:
    """Return the number of GPUs in gpu:4, gpu:v100:4 or gpu:2080ti:4, at least one."""
    counts = re.findall(r"\bgpu(?::[\w.-]+)?[:=](\d+)(?=$|[,(])", gres or "")
    return max(1, sum(map(int, counts)))


def read_time(time: str) -> int | None:
    """Return the seconds of M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; None for anything else, such as unlimited."""
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", time):
        return None
    days, _, clock = time.rpartition("-")
    parts = clock.split(":")
    units = (3600, 60, 1) if days or len(parts) == 3 else (60, 1)
    return int(days or 0) * 86_400 + sum(int(part) * unit for part, unit in zip(parts, units, strict=False))
