"""trainstone launch: run a verb on many ranks with torchrun, Open MPI or Slurm."""

import secrets
import shlex
import shutil
import sys
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from trainstone import errors
from trainstone.cli import options as shared
from trainstone.cli.execute import RunOptions, execute, print_run
from trainstone.cli.render.output import print_json, print_stderr
from trainstone.errors import EXIT_INTERRUPTED, EXIT_RESUMABLE, ConfigError, LaunchError, TrainstoneError
from trainstone.files import write_atomically
from trainstone.machine.launch_protocol import FOLDER, SINGLE_RANK_VERBS
from trainstone.text import printable, printable_lines
from trainstone.units import format_rate

if TYPE_CHECKING:
    from trainstone.launch.slurm import SlurmOptions
    from trainstone.launch.verb import Verb
    from trainstone.machine.signals import StopSignals
    from trainstone.machine.supervisor import LaunchPlan

End = TypeVar("End")
Follow = Callable[[str], Generator[str, None, End]]
# Options after the name of the verb belong to the verb, with or without -- before it.
VERB_FOLLOWS = {"allow_interspersed_args": False}
# A restart cannot help: the recipe, the data, the machine or the disk must be repaired first.
PERMANENT_ERRORS = (ConfigError, errors.DataError, errors.MachineError, errors.ResultError)
SYSTEM = "from --system"
DEVICES = f"{SYSTEM}, else the GPUs of --gres, else 1"

app = typer.Typer(
    name="launch",
    help="Run bench, train, profile or eval on many ranks: trainstone launch local --ranks 2 -- train demo-classify.",
    no_args_is_help=True,
)

DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the command that would be run; run and write nothing.")]
Words = Annotated[
    list[str] | None, typer.Argument(metavar="-- VERB ...", help="Verb that all ranks run, with its arguments.")
]
Limit = Annotated[str | None, typer.Option("--time", help="Time limit, such as 4:20:00.", show_default=SYSTEM)]
Account = Annotated[str | None, typer.Option("--account", help="Slurm account to charge.", show_default=SYSTEM)]
Gres = Annotated[str | None, typer.Option("--gres", help="Devices per node, such as gpu:4.", show_default=SYSTEM)]
Fleet = Annotated[
    bool,
    typer.Option("--fleet", help="Start one run on each node of the partition, instead of one run on --nodes nodes."),
]
Restarts = Annotated[
    int,
    typer.Option("--max-restarts", min=0, help="Maximum number of restarts from the last checkpoint if a rank fails."),
]
Detach = Annotated[bool, typer.Option("--detach", help="Exit after submitting; print job number and run folder.")]


@app.command(context_settings=VERB_FOLLOWS)
def local(
    words: Words = None,
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", "-np", min=1, help="Number of ranks.", show_default="one per CUDA device"),
    ] = None,
    oversubscribe: Annotated[
        bool, typer.Option("--oversubscribe", help="Allow more ranks than there are cores, or than fit into memory.")
    ] = False,
    max_restarts: Restarts = 0,
    system: shared.SystemName = None,
    dry_run: DryRun = False,
    verbose: shared.Verbose = 0,
) -> None:
    """Start ranks on this machine with torchrun: one per CUDA device, or on the CPU, dividing its cores."""
    from trainstone.launch.local import check_capacity, choose_ranks, plan_local
    from trainstone.launch.verb import parse_verb

    verb = parse_verb(words or [], system=system, ranks=ranks)
    number, name = choose_ranks(ranks), f"local-{secrets.token_hex(4)}"
    check_capacity(verb, number, max_restarts, oversubscribe=oversubscribe)
    plan = partial(plan_local, verb, launch=name, ranks=number, max_restarts=max_restarts)
    run_launch(plan, verb, dry_run=dry_run, verbose=bool(verbose))


@app.command(context_settings=VERB_FOLLOWS)
def mpi(
    words: Words = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks",
            "-np",
            min=1,
            help="Number of ranks in total.",
            show_default=f"{SYSTEM}, else the slots of the hosts",
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", "-H", metavar="A:4,B:4", help="Hosts and the number of ranks on each.")
    ] = None,
    hostfile: Annotated[Path | None, typer.Option("--hostfile", help="Hosts and ranks as an mpirun hostfile.")] = None,
    container: Annotated[
        str | None, typer.Option("--container", metavar="IMAGE", help="Run each rank in this Apptainer image.")
    ] = None,
    max_restarts: Restarts = 0,
    mpirun: Annotated[
        str, typer.Option("--mpirun", metavar="WORDS", help="More options for mpirun, as one quoted argument.")
    ] = "",
    system: shared.SystemName = None,
    dry_run: DryRun = False,
    verbose: shared.Verbose = 0,
) -> None:
    """Start ranks on this machine or on several hosts with Open MPI's mpirun."""
    from trainstone.launch import mpi
    from trainstone.launch.verb import parse_verb

    verb = parse_verb(words or [], system=system, ranks=ranks)
    options = mpi.MpiOptions(ranks, host, hostfile, container, max_restarts, mpirun)
    plan = partial(mpi.plan_mpi, verb, launch=f"mpi-{secrets.token_hex(4)}", options=options)
    planned = plan(verb.out.absolute() / "RUN")
    if not (dry_run or verb.dry_run):
        mpi.check_start(planned, options, verb)
    run_launch(plan, verb, dry_run=dry_run, verbose=bool(verbose))


@app.command(context_settings=VERB_FOLLOWS)
def slurm(
    words: Words = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, help="Number of nodes.", show_default=f"{SYSTEM}, else 1")
    ] = None,
    ranks_per_node: Annotated[
        int | None, typer.Option("--ranks-per-node", min=1, help="Ranks on each node.", show_default=DEVICES)
    ] = None,
    partition: Annotated[
        str | None, typer.Option("--partition", help="Slurm partition.", show_default=f"{SYSTEM}, else Slurm's default")
    ] = None,
    limit: Limit = None,
    account: Account = None,
    gres: Gres = None,
    container: Annotated[
        str | None, typer.Option("--container", help="Run each rank in this Apptainer image.", show_default=SYSTEM)
    ] = None,
    requeue: Annotated[
        bool, typer.Option("--requeue", help="Requeue and resume the job when it is preempted or hits its time limit.")
    ] = False,
    prologue: Annotated[
        list[str],
        typer.Option("--prologue", metavar="LINE", help="Shell line to run before the ranks start (repeatable)."),
    ] = [],  # noqa: B006
    fleet: Fleet = False,
    sbatch: Annotated[
        list[str], typer.Option("--sbatch", metavar="KEY[=VALUE]", help="Further sbatch option (repeatable).")
    ] = [],  # noqa: B006
    max_restarts: Restarts = 0,
    detach: Detach = False,
    system: shared.SystemName = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the script; submit and write nothing.")] = False,
) -> None:
    """Start ranks as a Slurm job: write a readable batch script, submit it and follow the job."""
    from trainstone.launch import slurm as engine
    from trainstone.launch.verb import parse_verb, prepare_folder

    lines, more = tuple(prologue), tuple(sbatch)
    options = engine.SlurmOptions(
        nodes, ranks_per_node, partition, limit, account, gres, container, requeue, lines, more, max_restarts
    )
    verb = parse_verb(words or [], system=system, ranks=1 if words and words[0] in SINGLE_RANK_VERBS else None)
    options = engine.request_cpus(options, verb.system)
    names = choose_nodes(verb, options) if fleet else []
    script = engine.format_script(verb, options, (verb.resume or verb.out / "RUN").absolute(), Path.cwd(), names)
    if dry_run or verb.dry_run:
        print_output(verb, {"script": script}, script)
        return
    engine.require_slurm()
    run = prepare_folder(verb, "-fleet" if fleet else "")
    file = run / FOLDER / engine.SCRIPT
    write_atomically(file, engine.format_script(verb, options, run, Path.cwd(), names))
    if fleet:
        run_fleet(verb, run, names, detach=detach)
    command = ("sbatch", "--parsable", str(file))
    number, (job,) = submit_and_follow(verb, run, command, lambda number: engine.follow_job(number, run), detach=detach)
    code = engine.resolve_job_exit_code(job, run, run / FOLDER / f"engine-{number}.log")
    show_result(run, as_json=verb.as_json)
    raise typer.Exit(code)


def choose_nodes(verb: "Verb", options: "SlurmOptions") -> list[str]:
    from trainstone.launch.slurm import apply_system, list_nodes, parse_directives

    if options.nodes not in (None, 1) or verb.resume is not None:
        raise ConfigError("--fleet starts a new run on each node", hint="remove --nodes and --resume")
    options = apply_system(options, verb.system)
    usable, skipped = list_nodes(options.partition, parse_directives(options.sbatch, fleet=True).get("reservation"))
    if skipped:
        print(f"skipped: {', '.join(f'{node} ({state})' for node, state in skipped.items())}", file=sys.stderr)
    return usable


def run_fleet(verb: "Verb", run: Path, nodes: list[str], *, detach: bool) -> NoReturn:
    from trainstone.launch.slurm import SUBMIT, collect_members, follow_job, format_submit_script

    script = run / FOLDER / SUBMIT
    write_atomically(script, format_submit_script(nodes))
    command = ("bash", str(script))
    number, ended = submit_and_follow(verb, run, command, lambda number: follow_job(number, run, nodes), detach=detach)
    members = collect_members(run, number, nodes, ended)
    if verb.as_json:
        print_json({"folder": str(run), "nodes": [member._asdict() for member in members]})
    else:
        width = max(4, *(len(member.node) for member in members))
        print(f"{'node':{width}}  images/s  status")
        for member in members:
            rate = format_rate(member.images_per_second) if member.images_per_second is not None else "–"
            print(f"{printable(member.node):{width}}  {rate:>8}  {member.status}")
        print(f"index: trainstone report {shlex.quote(str(run))}")
    failed = [f"{member.node}: {member.failure}" for member in members if member.failure]
    if failed:
        message = "\n".join([f"{len(failed)} of {len(members)} nodes failed", *failed])
        raise LaunchError(message, hint=f"trainstone report {shlex.quote(str(run))}")
    raise typer.Exit(max(member.code or 0 for member in members))


def submit_and_follow(
    verb: "Verb", run: Path, command: tuple[str, ...], follow: Follow[End], *, detach: bool
) -> tuple[str, End]:
    """Submit the job and follow it; return its number and how it ended. Ctrl-C leaves the job running."""
    from trainstone.cli.render.progress import ProgressLine
    from trainstone.launch.slurm import RefusedError, delayed_interrupt, submit

    number = None
    try:
        with delayed_interrupt():
            number = submit(*command)
        if detach:
            print_output(verb, {"job": number, "run": str(run)}, f"job  {number}\nrun  {printable(str(run))}\n")
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


def print_output(verb: "Verb", document: dict[str, Any], text: str) -> None:
    if verb.as_json:
        print_json(document)
    else:
        print(text, end="")


def run_launch(build_plan: "Callable[[Path], LaunchPlan]", verb: "Verb", *, dry_run: bool, verbose: bool) -> None:
    """Run the ranks, print the result and exit with the code of the run; with --dry-run, print the command."""
    from trainstone.launch.verb import prepare_folder
    from trainstone.machine.supervisor import format_script

    if dry_run or verb.dry_run:
        plan = build_plan(verb.out.absolute() / "RUN")
        document = {"command": plan.command, "environment": dict(plan.environment), "prologue": plan.prologue}
        print_output(verb, {**document, "config": verb.config}, printable_lines(format_script(plan)))
        return
    run = prepare_folder(verb)
    plan = build_plan(run)
    for note in plan.notes:
        print_stderr(f"note:  {printable(note)}")
    if verbose:
        print(printable_lines(format_script(plan)), end="", file=sys.stderr)
    show = partial(show_result, run, as_json=verb.as_json)
    execute(None, verb.config, lambda life: run_attempts(plan, run, life.signals), RunOptions(quiet=verb.quiet), show)


def run_attempts(plan: "LaunchPlan", run: Path, signals: "StopSignals") -> "Generator[str, None, int]":
    """Start the ranks; restart them after a failure if that may help. Return the exit code of the run."""
    from trainstone.launch.failure_report import resolve_exit_code
    from trainstone.machine.launch_protocol import LAUNCH, remove_attempt_files
    from trainstone.machine.supervisor import run_plan

    for attempt in range(1, plan.attempts + 1):
        code, text = yield from run_plan(plan, run, signals)
        try:
            ended = resolve_exit_code(
                run, text, plan.engine, code, stopped=signals.received is not None, launch=plan.environment[LAUNCH]
            )
            # Ranks receive a scheduler's signal; only the launcher knows that it was Ctrl-C.
            return EXIT_INTERRUPTED if ended == EXIT_RESUMABLE and signals.received == "SIGINT" else ended
        except TrainstoneError as err:
            if signals.received or isinstance(err, PERMANENT_ERRORS) or attempt == plan.attempts:
                raise
            print_stderr(f"{err.message}; restarting, attempt {attempt + 1} of at most {plan.attempts}")
            remove_attempt_files(run)
    raise AssertionError("a plan has at least one attempt")


def show_result(run: Path, *, as_json: bool) -> None:
    from trainstone.results.run_folder import read_result

    if (run / "result.json").is_file():
        print_run(read_result(run), run, as_json=as_json)
    else:
        print(f"no result in {run}: the run did not start", file=sys.stderr)
