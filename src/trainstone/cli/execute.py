"""Open the run folder, follow a flow to its end, show the result, exit with its code: every verb that runs work."""

import errno
import logging
import shlex
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import typer

from trainstone.cli.render.output import print_json, print_stderr, silence
from trainstone.errors import EXIT_INTERRUPTED, EXIT_RESUMABLE, EXIT_TARGET, ResultError, TrainstoneError
from trainstone.machine.launch_protocol import RESUMABLE_VERBS, launch_name, launched_run, leave_failure
from trainstone.machine.ranks import read_rank
from trainstone.machine.signals import StopSignals
from trainstone.text import format_error

if TYPE_CHECKING:
    from trainstone.config.schema import Config
    from trainstone.flows.lifecycle import Lifecycle
    from trainstone.results.progress import Progress
    from trainstone.results.run_folder import RunFolder
    from trainstone.results.schema.run import Kind, Result, Status

log = logging.getLogger(__name__)

Life: TypeAlias = "Lifecycle"
ProgressStream: TypeAlias = "Generator[Progress | str, None, Status]"
"""The progress of a run, which ends with its status."""
Flow = Callable[[Life], "ProgressStream | Generator[str, None, int]"]
"""What makes the stream; it may also end with an exit code of its own."""


@dataclass(frozen=True)
class RunOptions:
    """What the shared flags of a command say about its output."""

    out: Path = Path("runs")
    as_json: bool = False
    quiet: int = 0
    resume: Path | None = None
    """The run folder to continue, instead of a new one under `out`."""
    require_target: bool = False


def execute(
    kind: "Kind | None", config: "Config", flow: Flow, options: RunOptions, show: "Callable[[], None] | None" = None
) -> NoReturn:
    """Run a flow from its run folder to its exit code. Without a kind there is no run folder, and `show` prints."""
    from trainstone.cli.render.progress import ProgressLine
    from trainstone.flows.lifecycle import lifecycle

    first, run = read_rank().number == 0, None
    with StopSignals() as signals, ExitStack() as stack:
        if kind and first:
            run = stack.enter_context(open_run(kind, config, options))
        try:
            with ProgressLine(quiet=bool(options.quiet) or not first) as line, lifecycle(config, run, signals) as life:
                status = line.follow(flow(life))
        except KeyboardInterrupt as err:
            if run and run.result.points:
                show_run(run, as_json=options.as_json)
            elif run:
                print_stderr(f"interrupted; partial results are in {run.path}")
            raise typer.Exit(exit_code(kind, "interrupted", str(err))) from None
        if run:
            show_run(run, as_json=options.as_json)
        elif first and show:
            print_guarded(show)
    if isinstance(status, int):
        raise typer.Exit(status)
    raise typer.Exit(exit_code(kind, status, signals.received, require_target=options.require_target))


def exit_code(kind: "Kind | None", status: "Status", signal: str | None, *, require_target: bool = False) -> int:
    """Return how a run that ended with this status exits; `signal` is the one that stopped it.

    Ctrl-C was a person; any other signal came from a scheduler, which may start a resumable run again.
    """
    if status == "interrupted":
        return EXIT_RESUMABLE if kind in RESUMABLE_VERBS and signal != "SIGINT" else EXIT_INTERRUPTED
    return EXIT_TARGET if require_target and status == "target_missed" else 0


@contextmanager
def open_run(kind: "Kind", config: "Config", options: RunOptions) -> "Iterator[RunFolder]":
    """Create or reopen the run folder and hold its lock. Under a launcher it is the folder that the launcher chose."""
    from trainstone.results.run_folder import create_run, lock_run, read_result, reopen_run

    command, there = shlex.join(["trainstone", *sys.argv[1:]]), options.resume or launched_run()
    with ExitStack() as held:
        try:
            if there and there.is_dir():
                held.enter_context(lock_run(there))
            if options.resume:
                # A sweep keeps the command that names its points; a training says how it was started last.
                command = read_result(options.resume).command if kind == "sweep" else command
                run = reopen_run(options.resume, kind, command)
            elif there:
                if find_begun():
                    clear_attempt(there)
                run = create_run(there.parent, kind, config, command, run_id=there.name, there=True)
            else:
                run = create_run(options.out, kind, config, command)
                held.enter_context(lock_run(run.path))
        except TrainstoneError as err:
            if read_rank().world == 1:
                raise
            print_error(err)  # at once: to meet the others, which would wait for this rank, may take long
            from trainstone.engine.distributed.roll_call import call_roll

            with suppress(TrainstoneError, RuntimeError):  # what hinders that is not worth another message
                call_roll(config, read_rank(), None, trouble=err)
            raise typer.Exit(err.exit_code) from err
        yield run


def find_begun() -> Path | None:
    """Return the run that an earlier attempt of this launch has begun; None: there is none."""
    run = launched_run()
    return run if run is not None and (run / "result.json").is_file() else None


def clear_attempt(run: Path) -> None:
    """Remove what an earlier attempt of this launch has measured; refuse the run of another launch."""
    from trainstone.results.run_folder import read_result, refuse_running

    result = read_result(run)
    if result.process.launch != launch_name():
        refuse_running(run, result)
        raise ResultError(
            f"{run} holds a {result.kind} run that has ended", hint="launch it again: only training runs can be resumed"
        )
    for pattern in ("telemetry-*.csv", "steps-rank*.csv", "trace/*"):
        for path in run.glob(pattern):
            path.unlink(missing_ok=True)


def print_error(err: TrainstoneError) -> None:
    """Print message and hint, and leave them for a launcher."""
    leave_failure(err)
    print_stderr(format_error(err.message, err.hint))


def print_plan(
    config: "Config", out: Path, commands: Sequence[str] = (), other: "Config | None" = None, *, as_json: bool
) -> None:
    """--dry-run: what would be run, and by which commands, where it is children that do."""
    from trainstone.config.load import write_toml

    lines = [f"# against, in turn A B B A in one process:\n\n{write_toml(other)}"] if other else []
    lines.append(f"# would write a run folder RUN under {out}/")
    if commands:
        lines += ["# would start, one after the other:", *(f"#   {command}" for command in commands)]
    more = {"against": other} if other else {}
    print_resolved(config, lines, as_json=as_json, out=str(out), commands=list(commands), **more)


def print_resolved(config: "Config", lines: Iterable[str], *, as_json: bool, **more: object) -> None:
    """Print a configuration, then what would be done with it: `lines`, or `more` keys of the JSON document."""
    from trainstone.config.load import write_toml

    if as_json:
        print_json({"config": config, **more})
    else:
        print(write_toml(config), *lines, sep="\n")


def show_run(run: "RunFolder", *, as_json: bool) -> None:
    """Write the page and print the result. A terminal or pipe that is gone is not the run's problem."""
    write_page(run)
    print_guarded(partial(print_run, run.result, run.path, as_json=as_json), f"the result is in {run.path}")


def print_run(result: "Result", path: Path, *, as_json: bool) -> None:
    from trainstone.cli.render.run import print_result

    if as_json:
        print_json(result)
    else:
        print_result(result, path)


def print_guarded(show: Callable[[], None], hint: str | None = None) -> None:
    """Print on stdout. A pipe or terminal that is gone changes nothing; a full disk is one message."""
    try:
        show()
        sys.stdout.flush()
    except SystemExit:  # rich's answer to a closed pipe
        silence(1)
    except OSError as err:
        silence(1)
        if err.errno not in (errno.EPIPE, errno.EIO):
            raise ResultError(f"cannot write to standard output: {err.strerror}", hint=hint) from err


def write_page(run: "RunFolder") -> None:
    """Write report.html of a run and of points that have none; a failure is a warning, the result is as good."""
    from trainstone.report.page import PAGE_NAME, write_report

    folders = [run.path / point.run for point in run.result.points]
    try:
        for folder in (*folders, run.path):
            if folder == run.path or not (folder / PAGE_NAME).exists():
                write_report(folder)
        run.update()  # `files` names the page, too
    except (OSError, TrainstoneError) as err:
        log.warning("no report: %s; trainstone report writes it later", err)
