"""trainstone launch slurm: write a batch script, submit it, follow the job and show its result."""

import shutil
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import typer

from trainstone.cli import options as shared
from trainstone.cli.launching import show_result
from trainstone.cli.output import print_json, print_stderr
from trainstone.errors import EXIT_INTERRUPTED, ConfigError, LaunchError
from trainstone.files import write_atomically
from trainstone.machine.launched import ALONE_VERBS, FOLDER
from trainstone.text import printable

if TYPE_CHECKING:
    from trainstone.launch.fleet import Member
    from trainstone.launch.slurm import Options
    from trainstone.launch.verb import Verb

End = TypeVar("End")
SYSTEM = "from --system"
DEVICES = f"{SYSTEM}, else the GPUs of --gres, else 1"

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- VERB ...", help="The verb that all ranks run, with its arguments.", show_default=False),
]
NumNodes = Annotated[
    int | None, typer.Option("--nodes", min=1, help="Number of nodes.", show_default=f"{SYSTEM}, else 1")
]
NumRanks = Annotated[
    int | None, typer.Option("--ranks-per-node", min=1, help="Ranks on each node.", show_default=DEVICES)
]
Partition = Annotated[
    str | None, typer.Option("--partition", help="Slurm partition.", show_default=f"{SYSTEM}, else Slurm's default")
]
Limit = Annotated[str | None, typer.Option("--time", help="Time limit, such as 4:20:00.", show_default=SYSTEM)]
Account = Annotated[str | None, typer.Option("--account", help="Slurm account to charge.", show_default=SYSTEM)]
Gres = Annotated[str | None, typer.Option("--gres", help="Devices per node, such as gpu:4.", show_default=SYSTEM)]
Container = Annotated[
    str | None, typer.Option("--container", help="Apptainer image that ranks run in.", show_default=SYSTEM)
]
Requeue = Annotated[
    bool,
    typer.Option("--requeue", help="Requeue and resume the job when it is preempted or hits its time limit."),
]
Prologue = Annotated[
    list[str], typer.Option("--prologue", help="Shell line to run first (repeatable).", show_default=False)
]
Fleet = Annotated[bool, typer.Option("--fleet", help="Run on every node of the partition, one run per node.")]
Sbatch = Annotated[
    list[str],
    typer.Option("--sbatch", metavar="KEY[=VALUE]", help="Another option of sbatch (repeatable).", show_default=False),
]
Restarts = Annotated[
    int, typer.Option("--max-restarts", min=0, help="How often to restart from the last checkpoint if a rank dies.")
]
Detach = Annotated[bool, typer.Option("--detach", help="Print job number and run folder after submitting, and exit.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the script; submit and write nothing.")]


def slurm(
    words: Words = None,
    nodes: NumNodes = None,
    ranks_per_node: NumRanks = None,
    partition: Partition = None,
    limit: Limit = None,
    account: Account = None,
    gres: Gres = None,
    container: Container = None,
    requeue: Requeue = False,
    prologue: Prologue = [],  # noqa: B006  (Typer reads it, nobody changes it)
    fleet: Fleet = False,
    sbatch: Sbatch = [],  # noqa: B006
    max_restarts: Restarts = 0,
    detach: Detach = False,
    system: shared.SystemName = None,
    dry_run: DryRun = False,
) -> None:
    """Run ranks as a Slurm job: a readable batch script, submitted and followed."""
    from trainstone.launch.folder import prepare_folder
    from trainstone.launch.slurm import SCRIPT, Options, write_script
    from trainstone.launch.slurm_job import require_slurm
    from trainstone.launch.verb import read_verb

    lines, more = tuple(prologue), tuple(sbatch)
    options = Options(
        nodes, ranks_per_node, partition, limit, account, gres, container, requeue, lines, more, max_restarts
    )
    verb = read_verb(words or [], system=system, ranks=1 if words and words[0] in ALONE_VERBS else None)
    names = choose_nodes(verb, options) if fleet else []
    script = write_script(verb, options, (verb.resume or verb.out / "RUN").absolute(), Path.cwd(), names)
    if dry_run or verb.dry_run:
        print_product(verb, {"script": script}, script)
        return
    require_slurm()
    run = prepare_folder(verb, "-fleet" if fleet else "")
    write_atomically(run / FOLDER / SCRIPT, write_script(verb, options, run, Path.cwd(), names))
    if fleet:
        run_fleet(verb, run, names, detach=detach)
    else:
        run_job(verb, run, detach=detach)


def choose_nodes(verb: "Verb", options: "Options") -> list[str]:
    """Return the nodes of a fleet; print those that are skipped."""
    from trainstone.launch.fleet import list_nodes
    from trainstone.launch.slurm import add_system, read_directives

    if options.nodes not in (None, 1) or verb.resume is not None:
        raise ConfigError("--fleet starts a new run on each node", hint="remove --nodes and --resume")
    options = add_system(options, verb.system)
    usable, skipped = list_nodes(options.partition, read_directives(options.sbatch, fleet=True).get("reservation"))
    if skipped:
        print(f"skipped: {', '.join(f'{node} ({state})' for node, state in skipped.items())}", file=sys.stderr)
    return usable


def run_job(verb: "Verb", run: Path, *, detach: bool) -> NoReturn:
    """Submit one job over all nodes and follow it."""
    from trainstone.launch.slurm import SCRIPT
    from trainstone.launch.slurm_job import conclude_job, follow_job

    command = ("sbatch", "--parsable", str(run / FOLDER / SCRIPT))
    number, job = submit_and_follow(verb, run, command, lambda number: follow_job(number, run), detach=detach)
    code = conclude_job(job, run, run / FOLDER / f"engine-{number}.log")
    show_result(run, as_json=verb.as_json)
    raise typer.Exit(code)


def run_fleet(verb: "Verb", run: Path, nodes: list[str], *, detach: bool) -> NoReturn:
    """Submit an array with one task per node and follow it."""
    from trainstone.launch.fleet import SUBMIT, follow_fleet, gather_members, write_submit

    script = run / FOLDER / SUBMIT
    write_atomically(script, write_submit(nodes))
    command = ("bash", str(script))
    number, ended = submit_and_follow(verb, run, command, lambda number: follow_fleet(number, nodes), detach=detach)
    members = gather_members(run, number, ended)
    show_fleet(members, run, as_json=verb.as_json)
    failed = [f"{member.node}: {member.failure}" for member in members if member.failure]
    if failed:
        message = "\n".join([f"{len(failed)} of {len(members)} nodes failed", *failed])
        raise LaunchError(message, hint=f"trainstone report {run}")
    raise typer.Exit(max(member.code or 0 for member in members))


def submit_and_follow(
    verb: "Verb",
    run: Path,
    command: tuple[str, ...],
    follow: Callable[[str], Generator[str, None, End]],
    *,
    detach: bool,
) -> tuple[str, End]:
    """Submit and follow to the end; return the job's number and end. Ctrl-C leaves the job running."""
    from trainstone.cli.progress import ProgressLine
    from trainstone.launch.slurm_job import RefusedError, delayed_interrupt, submit

    number = None
    try:
        with delayed_interrupt():
            number = submit(*command)
        if detach:
            print_product(verb, {"job": number, "run": str(run)}, f"job  {number}\nrun  {printable(str(run))}\n")
            raise typer.Exit
        if not verb.quiet:
            print(f"job {number} · {printable(str(run))}", file=sys.stderr, flush=True)
        with ProgressLine(quiet=verb.quiet) as line:
            return number, line.follow(follow(number))
    except RefusedError:
        if verb.resume is None:
            shutil.rmtree(run, ignore_errors=True)
        raise
    except KeyboardInterrupt:
        if number is not None:
            print_stderr(f"job {number} continues; cancel it with: scancel {number} · run folder: {run}")
        raise typer.Exit(EXIT_INTERRUPTED) from None


def print_product(verb: "Verb", document: dict[str, str], text: str) -> None:
    """Print the output of --dry-run and --detach."""
    if verb.as_json:
        print_json(document)
    else:
        print(text, end="")


def show_fleet(members: "list[Member]", folder: Path, *, as_json: bool) -> None:
    """Print a table with one line per node."""
    from rich.console import Console
    from rich.table import Table

    from trainstone.units import format_rate

    if as_json:
        print_json({"folder": str(folder), "nodes": [member._asdict() for member in members]})
        return
    table = Table("node", "images/s", "status", box=None, pad_edge=False)
    for member in members:
        rate = format_rate(member.images_per_second) if member.images_per_second is not None else "–"
        table.add_row(member.node, rate, member.status)
    Console().print(table)
    print(f"index: trainstone report {folder}")
