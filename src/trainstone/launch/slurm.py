"""trainstone launch slurm: options and system file -> plan -> a readable batch script -> submitted by sbatch.

What becomes of the job is for slurm_job.py; the same work on every node by itself for fleet.py.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import jinja2

from trainstone.config.system import LaunchConfig
from trainstone.errors import ConfigError, LaunchError
from trainstone.launch.apptainer import PYTHON, wrap_command
from trainstone.launch.child_runs import TRAINSTONE
from trainstone.launch.slurm_commands import list_partitions, run_slurm
from trainstone.launch.slurm_options import count_devices, find_lead, read_directives, refuse_lines, write_directive
from trainstone.launch.verb import Verb
from trainstone.machine.launched import VERBS
from trainstone.text import printable

SCRIPT = "job.sh"
MOST_REQUEUES = 100
MOST_IDLE = 3
"""Starts in a row without a new checkpoint: one may be stopped before its first step, but not each."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Options:
    """What the command line says; None and empty: the system file does, or a default."""

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


@dataclass(frozen=True)
class Plan:
    """What a job script says."""

    run: Path
    """Absolute run folder; of a fleet the folder that holds one run for each node."""
    folder: Path
    """That the job starts in."""
    title: str
    nodes: int
    ranks_per_node: int
    directives: dict[str, str | None]
    command: list[str]
    """Of a rank."""
    aftermath: list[str]
    """That names the cause of a failure, without its arguments."""
    environment: dict[str, str]
    prologue: tuple[str, ...]
    requeue: bool
    max_restarts: int
    trains: bool
    """Its starts leave checkpoints."""
    fleet: list[str] = field(default_factory=list)
    """Nodes of a fleet; empty: one world over all nodes."""


def plan_job(verb: Verb, options: Options, run: Path, folder: Path, fleet: Sequence[str] = ()) -> Plan:
    """Decide all that the script says: the command line goes before the system file."""
    system = verb.system
    site = system.launch if system else LaunchConfig()
    nodes = 1 if fleet else options.nodes or (system.nodes if system else 1)
    gres = options.gres or site.gres
    ranks = options.ranks_per_node or (system.devices_per_node if system else count_devices(gres))
    refuse_world(verb, nodes * ranks)
    container = options.container or site.container
    command, aftermath = verb.command(), [*TRAINSTONE[:-1], "trainstone.launch.aftermath"]
    if container:
        binds, gpus = list_folders(verb, run, folder), bool(gres and "gpu" in gres)
        inside = [PYTHON, *aftermath[1:]]
        command = wrap_command(verb.command(PYTHON), container, binds, gpus=gpus)
        aftermath = wrap_command(inside, container, binds, gpus=False)
    time = options.time or site.time
    given: dict[str, str | None] = {
        "job-name": f"trainstone-{re.sub(r'[^A-Za-z0-9._-]+', '-', verb.config.name)}",
        "nodes": str(nodes),
        "ntasks-per-node": str(ranks),
        "partition": options.partition or site.partition,
        "account": options.account or site.account,
        "time": time,
        "gres": gres,
        "signal": f"USR1@{find_lead(time)}",
        "chdir": str(folder),
        "output": name_output(run, bool(fleet)),
        "open-mode": "append",
    }
    directives = {name: value for name, value in given.items() if value is not None}
    more: dict[str, str | None] = {"requeue" if options.requeue else "no-requeue": None}
    more |= read_directives([*site.sbatch, *options.sbatch], fleet=bool(fleet))
    if fleet:
        more["array"] = f"0-{len(fleet) - 1}{more.get('array', '')}"
    return Plan(
        run=run,
        folder=folder,
        title=shlex.join(["trainstone", verb.name, *verb.arguments]),
        nodes=nodes,
        ranks_per_node=ranks,
        directives={**directives, **more},
        command=command,
        aftermath=aftermath,
        environment=check_names(site.environment),
        prologue=(*site.prologue, *options.prologue),
        requeue=options.requeue,
        max_restarts=options.max_restarts,
        trains=verb.name == "train",
        fleet=list(fleet),
    )


def refuse_world(verb: Verb, ranks: int) -> None:
    """A verb that makes worlds of its own cannot be part of one."""
    if ranks > 1 and verb.name not in VERBS:
        raise ConfigError(
            f"{verb.name} cannot be launched on {ranks} ranks; {', '.join(VERBS)} can",
            hint="--nodes 1 --ranks-per-node 1, or --fleet for one on each node",
        )


def list_folders(verb: Verb, run: Path, folder: Path) -> list[Path]:
    """Return what a container must see: where the job starts, the run, the data."""
    root = verb.config.data.root
    return [folder, run.parent, *([Path(root)] if root else [])]


def name_output(run: Path, fleet: bool) -> str:
    """Return where Slurm writes what the job says; a % of a folder's name is not Slurm's."""
    place = str(run / "launch" / "engine-").replace("%", "%%")
    return place + ("%A_%a.log" if fleet else "%j.log")


def check_names(environment: dict[str, str]) -> dict[str, str]:
    """Names stand in the script unquoted."""
    for name in environment:
        if not NAME.fullmatch(name):
            raise ConfigError(f"[launch.environment] of the system: {name!r} is no name of a variable")
    return environment


def render_script(plan: Plan) -> str:
    """Return the script; each value from outside is quoted, but for prologue lines, which are shell."""
    engine = jinja2.Environment(
        loader=jinja2.FunctionLoader(read_template),
        autoescape=False,  # a shell script; quoting is by filters
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    engine.filters |= {"quote": shlex.quote, "comment": comment}
    srun = ["srun", "--kill-on-bad-exit=1", *plan.command]
    return engine.get_template("job.sh.j2").render(
        title=tell_title(plan),
        directives=[write_directive(name, value) for name, value in plan.directives.items()],
        run=refuse_lines("the run folder", str(plan.run)),
        nodes=plan.fleet,
        environment=plan.environment,
        prologue=plan.prologue,
        max_restarts=plan.max_restarts,
        requeue=plan.requeue,
        trains=plan.trains,
        most_requeues=MOST_REQUEUES,
        most_idle=MOST_IDLE,
        srun=shlex.join(srun),
        aftermath=shlex.join(plan.aftermath),
    )


def tell_title(plan: Plan) -> list[str]:
    """Return what stands at the head of the script."""
    each = f"on each of {len(plan.fleet)} nodes by itself" if plan.fleet else f"on {plan.nodes} node(s)"
    again = "submit.sh beside it submits it again" if plan.fleet else f"submit it again: sbatch {SCRIPT}"
    return [
        f"{plan.title}",
        f"{each}, {plan.ranks_per_node} rank(s) a node. Written by trainstone launch slurm.",
        f"Edit what you like and {again}. Training goes on from its last checkpoint.",
    ]


def read_template(name: str) -> str:
    """Return a file of launch/templates."""
    return (resources.files("trainstone.launch") / "templates" / name).read_text(encoding="utf-8")


def comment(text: str) -> str:
    """Return text for a comment: one line, whatever is in it."""
    return printable(text)


class RefusedError(LaunchError):
    """Slurm has not taken the job: there is none."""


def submit(script: Path, *words: str) -> str:
    """Hand a script to Slurm; return the job's number. A refusal is one message in Slurm's own words."""
    done = run_slurm(["sbatch", "--parsable", *words, str(script)])
    if done.returncode:
        raise refusal(done.stderr)
    return done.stdout.strip().splitlines()[-1].partition(";")[0]


def refusal(said: str) -> LaunchError:
    """Return sbatch's refusal; of an unknown partition also those there are."""
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in said.splitlines() if line.strip()]
    reason = next((line for line in lines if line.startswith("Batch job submission failed")), None)
    words = "; ".join(dict.fromkeys([*lines[:3], *([reason] if reason else [])]))
    hint = "sinfo shows partitions and their limits"
    if "partition" in words.lower():
        hint = f"--partition: {', '.join(list_partitions()) or 'sinfo names none'}"
    if "timed out" in words.lower():
        return LaunchError(
            f"Slurm does not say whether it takes the job: {printable(words)}", hint="squeue --me shows it if it does"
        )
    return RefusedError(f"Slurm refuses the job: {printable(words)}", hint=hint)
