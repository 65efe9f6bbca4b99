"""Run a flow: open the run folder, show progress, print the result, exit with the right code. Used by most verbs."""

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

from trainstone.cli.render.output import print_json, print_stderr, redirect_to_null
from trainstone.errors import EXIT_INTERRUPTED, EXIT_RESUMABLE, EXIT_TARGET, ResultError, TrainstoneError
from trainstone.machine.launch_protocol import RESUMABLE_VERBS, get_launch_name, get_run_folder, write_failure
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

ProgressStream: TypeAlias = "Generator[Progress | str, None, Status]"
"""Generator of progress messages that returns the status of the run."""
Flow: TypeAlias = "Callable[[Lifecycle], ProgressStream | Generator[str, None, int]]"
"""Function that starts the stream; the stream may also return an exit code."""


@dataclass(frozen=True)
class RunOptions:
    """Values of the command-line options about the output of a run."""

    out: Path = Path("runs")
    as_json: bool = False
    quiet: int = 0
    resume: Path | None = None
    """The run folder to continue, instead of a new one under `out`."""
    require_target: bool = False


def execute(
    kind: "Kind | None", config: "Config", flow: Flow, options: RunOptions, show: "Callable[[], None] | None" = None
) -> NoReturn:
    """Run a flow in a new or resumed run folder and exit. Without `kind`, there is only the output of `show`."""
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
            print_safely(show)
    if isinstance(status, int):
        raise typer.Exit(status)
    raise typer.Exit(exit_code(kind, status, signals.received, require_target=options.require_target))


def exit_code(kind: "Kind | None", status: "Status", signal: str | None, *, require_target: bool = False) -> int:
    """Return the exit code for a run with this status; `signal` is the signal that stopped it, if any.

    SIGINT comes from the user (Ctrl-C); other signals come from a scheduler, which may resume the run.
    """
    if status == "interrupted":
        return EXIT_RESUMABLE if kind in RESUMABLE_VERBS and signal != "SIGINT" else EXIT_INTERRUPTED
    return EXIT_TARGET if require_target and status == "target_missed" else 0


@contextmanager
def open_run(kind: "Kind", config: "Config", options: RunOptions) -> "Iterator[RunFolder]":
    """Create or reopen the run folder and lock it. Under a launcher, use the folder that the launcher chose."""
    from trainstone.results.run_folder import create_run, lock_run, read_result, reopen_run

    command, folder = shlex.join(["trainstone", *sys.argv[1:]]), options.resume or get_run_folder()
    with ExitStack() as locks:
        try:
            if folder and folder.is_dir():
                locks.enter_context(lock_run(folder))
            if options.resume:
                # A sweep keeps its first command, which lists its points; a training records its latest command.
                command = read_result(options.resume).command if kind == "sweep" else command
                run = reopen_run(options.resume, kind, command)
            elif folder:
                if find_earlier_attempt():
                    remove_measurements(folder)
                run = create_run(folder.parent, kind, config, command, run_id=folder.name, exist_ok=True)
            else:
                run = create_run(options.out, kind, config, command)
                locks.enter_context(lock_run(run.path))
        except TrainstoneError as err:
            if read_rank().world == 1:
                raise
            print_error(err)  # print now: the rendezvous below may take long
            from trainstone.engine.distributed.roll_call import call_roll

            with suppress(TrainstoneError, RuntimeError):  # the first error is already printed
                call_roll(config, read_rank(), None, trouble=err)
            raise typer.Exit(err.exit_code) from err
        yield run


def find_earlier_attempt() -> Path | None:
    """Return the run folder of an earlier attempt of this launch, if any."""
    run = get_run_folder()
    return run if run is not None and (run / "result.json").is_file() else None


def remove_measurements(run: Path) -> None:
    """Remove the measurements of an earlier attempt of this launch; raise if the run is of another launch."""
    from trainstone.results.run_folder import read_result, refuse_running

    result = read_result(run)
    if result.process.launch != get_launch_name():
        refuse_running(run, result)
        raise ResultError(
            f"{run} already holds a {result.kind} run, and only train can be resumed",
            hint="start a new launch, which creates a new run folder",
        )
    for pattern in ("telemetry-*.csv", "steps-rank*.csv", "trace/*"):
        for path in run.glob(pattern):
            path.unlink(missing_ok=True)


def print_error(err: TrainstoneError) -> None:
    """Print message and hint, and record them for the launcher."""
    write_failure(err)
    print_stderr(format_error(err.message, err.hint))


def print_plan(
    config: "Config", out: Path, commands: Sequence[str] = (), other: "Config | None" = None, *, as_json: bool
) -> None:
    """Print the plan of --dry-run: the configuration, and the commands of child processes, if any."""
    from trainstone.config.load import format_toml

    lines = [f"# compared with, in turns A B B A in one process:\n\n{format_toml(other)}"] if other else []
    lines.append(f"# would write a run folder RUN under {out}/")
    if commands:
        lines += ["# would run, one after the other:", *(f"#   {command}" for command in commands)]
    more = {"against": other} if other else {}
    print_resolved(config, lines, as_json=as_json, out=str(out), commands=list(commands), **more)


def print_resolved(config: "Config", lines: Iterable[str], *, as_json: bool, **more: object) -> None:
    """Print a configuration, then `lines`; with --json, one document that also has the keys of `more`."""
    from trainstone.config.load import format_toml

    if as_json:
        print_json({"config": config, **more})
    else:
        print(format_toml(config), *lines, sep="\n")


def show_run(run: "RunFolder", *, as_json: bool) -> None:
    """Write the page and print the result. A closed terminal or pipe does not fail the run."""
    write_page(run)
    print_safely(partial(print_run, run.result, run.path, as_json=as_json), f"the result is in {run.path}")


def print_run(result: "Result", path: Path, *, as_json: bool) -> None:
    from trainstone.cli.render.run import print_result

    if as_json:
        print_json(result)
    else:
        print_result(result, path)


def print_safely(show: Callable[[], None], hint: str | None = None) -> None:
    """Print on stdout. A closed pipe or terminal is ignored; other errors, such as a full disk, raise ResultError."""
    try:
        show()
        sys.stdout.flush()
    except SystemExit:  # rich exits on a closed pipe
        redirect_to_null(1)
    except OSError as err:
        redirect_to_null(1)
        if err.errno not in (errno.EPIPE, errno.EIO):
            raise ResultError(f"cannot write to standard output: {err.strerror}", hint=hint) from err


def write_page(run: "RunFolder") -> None:
    """Write report.html of a run and of its points without one; a failure is only a warning."""
    from trainstone.report.page import PAGE_NAME, write_report

    folders = [run.path / point.run for point in run.result.points]
    try:
        for folder in (*folders, run.path):
            if folder == run.path or not (folder / PAGE_NAME).exists():
                write_report(folder)
        run.update()  # add the page to `files`
    except (OSError, TrainstoneError) as err:
        log.warning("report not written: %s; to write it: trainstone report %s", err, shlex.quote(str(run.path)))
