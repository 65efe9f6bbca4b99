"""trainstone launch slurm: a batch script from options and system file, submitted, followed, and its result shown."""

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from trainstone.cli import options as shared
from trainstone.cli.launching import show_result
from trainstone.errors import EXIT_INTERRUPTED, ConfigError, LaunchError, ResultError

if TYPE_CHECKING:
    from trainstone.launch.fleet import Member, Nodes
    from trainstone.launch.slurm import Options, Plan
    from trainstone.launch.slurm_queue import Job
    from trainstone.launch.verb import Verb

SYSTEM = "the system's"
DEVICES = f"{SYSTEM} devices, those of --gres, or 1"

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- VERB ...", help="The verb that all ranks run, with its arguments.", show_default=False),
]
NumNodes = Annotated[
    int | None, typer.Option("--nodes", min=1, help="Number of hosts.", show_default=f"{SYSTEM}, or 1")
]
NumRanks = Annotated[
    int | None,
    typer.Option("--ranks-per-node", min=1, help="Ranks on each host, one a device.", show_default=DEVICES),
]
Partition = Annotated[str | None, typer.Option("--partition", help="Queue.", show_default=f"{SYSTEM}, or Slurm's own")]
Limit = Annotated[str | None, typer.Option("--time", help="Time limit, such as 4:20:00.", show_default=SYSTEM)]
Account = Annotated[str | None, typer.Option("--account", help="Who pays.", show_default=SYSTEM)]
Gres = Annotated[str | None, typer.Option("--gres", help="Devices of a node, such as gpu:4.", show_default=SYSTEM)]
Container = Annotated[
    str | None, typer.Option("--container", help="Apptainer image that ranks run in.", show_default=SYSTEM)
]
Requeue = Annotated[
    bool, typer.Option("--requeue", help="Stopped ahead of its end, the job goes back into the queue and on.")
]
Prologue = Annotated[
    list[str], typer.Option("--prologue", help="Shell line before the work (repeatable).", show_default=False)
]
Fleet = Annotated[bool, typer.Option("--fleet", help="The same work on every node of the partition by itself.")]
Sbatch = Annotated[
    list[str],
    typer.Option(
        "--sbatch", metavar="KEY[=VALUE]", help="A further option of sbatch (repeatable).", show_default=False
    ),
]
Restarts = Annotated[
    int, typer.Option("--max-restarts", min=0, help="Go on from the last checkpoint so often, if a rank dies.")
]
Detach = Annotated[bool, typer.Option("--detach", help="Submit and end: print job and run folder.")]
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
    """Ranks as a job of Slurm: a readable batch script, submitted and followed."""
    from trainstone.launch.slurm import Options
    from trainstone.launch.verb import read_verb
    from trainstone.machine.launched import ALONE_VERBS

    asked = Options(
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        partition=partition,
        time=limit,
        account=account,
        gres=gres,
        container=container,
        requeue=requeue,
        prologue=tuple(prologue),
        sbatch=tuple(sbatch),
        max_restarts=max_restarts,
    )
    verb = read_verb(words or [], system=system, ranks=1 if words and words[0] in ALONE_VERBS else None)
    run = run_fleet if fleet else run_job
    run(verb, asked, detach=detach, dry_run=dry_run or verb.dry_run)


def run_job(verb: "Verb", asked: "Options", *, detach: bool, dry_run: bool) -> None:
    """One world over all nodes."""
    from trainstone.launch.folder import prepare_folder
    from trainstone.launch.slurm import plan_job, render_script
    from trainstone.launch.slurm_commands import require_slurm, uninterrupted
    from trainstone.launch.slurm_job import conclude_job
    from trainstone.machine.launched import FOLDER

    example = (verb.resume or verb.out / "RUN").absolute()
    script = render_script(plan_job(verb, asked, example, Path.cwd()))
    if dry_run:
        print_script(script, verb)
        return
    require_slurm()
    run, number = prepare_folder(verb), None
    try:
        with uninterrupted():
            number = submit_run(verb, asked, run)
        if tell_submitted(number, run, verb, detach=detach):
            return
        job = follow_run(number, run, quiet=verb.quiet)
    except KeyboardInterrupt:
        leave_running(number, run)
    code = conclude_job(job, run, run / FOLDER / f"engine-{number}.log")
    show_result(run, as_json=verb.as_json)
    raise typer.Exit(code)


def submit_run(verb: "Verb", asked: "Options", run: Path) -> str:
    """Write the script and hand it to Slurm; a folder that was made for a job which does not come goes again."""
    from trainstone.files import write_atomically
    from trainstone.launch.slurm import SCRIPT, RefusedError, plan_job, render_script, submit
    from trainstone.machine.launched import FOLDER

    try:
        write_atomically(run / FOLDER / SCRIPT, render_script(plan_job(verb, asked, run, Path.cwd())))
        return submit(run / FOLDER / SCRIPT)
    except (RefusedError, ResultError):
        if verb.resume is None:
            shutil.rmtree(run, ignore_errors=True)
        raise


def follow_run(number: str, run: Path, *, quiet: bool) -> "Job":
    """Show a job until it has ended; return its end."""
    from trainstone.cli.progress import ProgressLine
    from trainstone.launch.slurm_job import follow_job

    with ProgressLine(quiet=quiet) as line:
        return line.follow(follow_job(number, run))


def run_fleet(verb: "Verb", asked: "Options", *, detach: bool, dry_run: bool) -> None:
    """A world of its own on each node."""
    from trainstone.launch.fleet import follow_fleet, gather_members, submit_fleet
    from trainstone.launch.slurm import RefusedError, plan_job, render_script

    if asked.nodes not in (None, 1) or verb.resume is not None:
        raise ConfigError("--fleet makes a new run on each node by itself", hint="leave --nodes and --resume out")
    nodes = choose_nodes(verb, asked)
    example = (verb.out / "FLEET").absolute()
    if dry_run:
        print_script(render_script(plan_job(verb, asked, example, Path.cwd(), nodes.usable)), verb)
        return
    folder, plan = prepare_fleet(verb, asked, nodes)
    number = None
    try:
        number = submit_fleet(folder / "launch" / "job.sh", nodes.usable)
        if tell_submitted(number, folder, verb, detach=detach):
            return
        from trainstone.cli.progress import ProgressLine

        with ProgressLine(quiet=verb.quiet) as line:
            ended = line.follow(follow_fleet(number, plan.fleet))
    except RefusedError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    except KeyboardInterrupt:
        leave_running(number, folder)
    members = gather_members(folder, ended)
    show_fleet(members, folder, as_json=verb.as_json)
    failed = [member for member in members if member.failure]
    if failed:
        told = "\n".join(f"{member.node}: {member.failure}" for member in failed)
        raise LaunchError(f"{len(failed)} of {len(members)} nodes failed\n{told}", hint=f"trainstone report {folder}")
    raise typer.Exit(max(member.code or 0 for member in members))


def choose_nodes(verb: "Verb", asked: "Options") -> "Nodes":
    """Return the nodes of the fleet; name those that it goes without."""
    from trainstone.config.system import LaunchConfig
    from trainstone.launch.fleet import list_nodes
    from trainstone.launch.slurm_options import read_directives

    site = verb.system.launch if verb.system else LaunchConfig()
    reservation = read_directives([*site.sbatch, *asked.sbatch], fleet=True).get("reservation")
    nodes = list_nodes(asked.partition or site.partition, reservation)
    if nodes.left_out:
        told = ", ".join(f"{node} ({state})" for node, state in nodes.left_out.items())
        print(f"left out: {told}", file=sys.stderr)
    return nodes


def prepare_fleet(verb: "Verb", asked: "Options", nodes: "Nodes") -> "tuple[Path, Plan]":
    """Make the folder of a fleet, its script and the one that submits it again."""
    from trainstone.files import write_atomically
    from trainstone.launch.fleet import RESUBMIT, write_resubmit
    from trainstone.launch.slurm import SCRIPT, plan_job, render_script
    from trainstone.results.store import name_run

    folder = (verb.out / name_run(f"{verb.config.name}-fleet")).absolute()
    plan = plan_job(verb, asked, folder, Path.cwd(), nodes.usable)
    script = render_script(plan)
    try:
        (folder / "launch").mkdir(parents=True)
        write_atomically(folder / "launch" / SCRIPT, script)
        write_atomically(folder / "launch" / RESUBMIT, write_resubmit(nodes.usable))
    except OSError as err:
        raise ResultError(
            f"cannot write {folder}: {err.strerror}", hint="choose another folder with --out DIR"
        ) from err
    return folder, plan


def print_script(script: str, verb: "Verb") -> None:
    """--dry-run."""
    from trainstone.cli.output import print_json

    if verb.as_json:
        print_json({"script": script})
    else:
        print(script, end="")


def tell_submitted(number: str, run: Path, verb: "Verb", *, detach: bool) -> bool:
    """Say which job it is and where; with --detach that is all, and the product."""
    from trainstone.cli.output import print_json
    from trainstone.text import printable

    if not detach:
        if not verb.quiet:
            print(f"job {number} · {printable(str(run))}", file=sys.stderr, flush=True)
        return False
    if verb.as_json:
        print_json({"job": number, "run": str(run)})
    else:
        print(f"job  {number}\nrun  {printable(str(run))}")
        print(f"stop it: scancel {number} · look: squeue -j {number}", file=sys.stderr)
    return True


def leave_running(number: str | None, run: Path) -> NoReturn:
    """Ctrl-C: whoever waited goes, the job, if there is one yet, stays."""
    if number is not None:
        print(f"job {number} goes on; stop it: scancel {number} · its run folder: {run}", file=sys.stderr)
    raise typer.Exit(EXIT_INTERRUPTED) from None


def show_fleet(members: "list[Member]", folder: Path, *, as_json: bool) -> None:
    """One line for each node."""
    from rich.console import Console
    from rich.table import Table

    from trainstone.cli.output import print_json
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
