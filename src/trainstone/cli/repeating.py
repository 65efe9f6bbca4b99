"""train --runs on the command line: plans, begins or takes up several runs of the same training, and shows them."""

import shlex
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from trainstone.cli.bench import show
from trainstone.cli.opening import open_folder, tell_command
from trainstone.errors import ConfigError, ResultError

if TYPE_CHECKING:
    from trainstone.config.schema import Config
    from trainstone.results.quality import Repeated
    from trainstone.results.store import RunFolder


def plan_runs(config: "Config", resume: Path | None, runs: int, *, strict: bool, changed: bool) -> "Repeated | None":
    """Return what --runs asks for, or the run that is resumed was asked for; None: a single run."""
    from trainstone.machine.ranks import read_rank
    from trainstone.results.quality import Repeated
    from trainstone.results.store import read_result

    repeated = read_result(resume).repeated if resume else None
    if resume and runs > 1:
        raise ConfigError("--runs begins new runs, --resume goes on with those there are", hint="give one of the two")
    if repeated and changed:
        raise ConfigError(
            f"{resume} has {repeated.num_runs} runs of one configuration: --resume cannot change it",
            hint=f"for another begin anew: trainstone train {resume}/config.toml --runs {repeated.num_runs} --set ...",
        )
    if runs > 1:
        repeated = Repeated(num_runs=runs, first_seed=config.seed, strict=strict)
    if repeated and read_rank().world > 1:
        raise ConfigError(
            f"--runs starts its runs itself, one after the other; here {read_rank().world} ranks would each do so",
            hint="start it without a launcher; or each run by itself: trainstone launch ... -- train ... --seed N",
        )
    return repeated


def tell_commands(repeated: "Repeated", resume: Path | None) -> list[str]:
    """Return the commands that are left to run, for --dry-run."""
    from trainstone.launch.repeat import list_commands

    return [shlex.join(command) for command in list_commands(resume or Path("RUN"), repeated)]


def run_all(
    config: "Config", repeated: "Repeated", resume: Path | None, out: Path, *, quiet: bool, as_json: bool
) -> tuple[str, str | None]:
    """Train what is left and show what came of it; return its status, and the signal that ended it."""
    from trainstone.cli.progress import ProgressLine
    from trainstone.launch.repeat import repeat_training

    signal_name = None
    with ExitStack() as held:
        run = take_up(resume, held) if resume else begin(config, repeated, out, held)
        try:
            with ProgressLine(quiet=quiet) as line:
                for progress in repeat_training(run):
                    line.show(progress)
        except KeyboardInterrupt as err:
            signal_name = str(err) or "SIGINT"
        show(run, as_json=as_json)
    return run.result.status, signal_name


def begin(config: "Config", repeated: "Repeated", out: Path, held: ExitStack) -> "RunFolder":
    """Make the folder that holds all runs."""
    from trainstone.launch.unfinished import hold

    run = open_folder(out, "train", config)
    held.enter_context(hold(run.path))
    run.update(repeated=repeated)
    return run


def take_up(path: Path, held: ExitStack) -> "RunFolder":
    """Go on with runs that were stopped or killed; one that outlived its killed parent is stopped first."""
    from trainstone.launch.unfinished import end_orphans, hold, load_settled
    from trainstone.results.store import read_result, reopen_run

    if not held.enter_context(hold(path)):
        raise ResultError(f"{path} is being gone on with by another process", hint="wait for its end")
    result = read_result(path)
    refuse_running_elsewhere(path)
    if result.machine:  # else the first run has settled nothing yet
        load_settled(path, result)
    run = reopen_run(path, "train", tell_command())
    run.begin()
    end_orphans(path)
    return run


def refuse_running_elsewhere(path: Path) -> None:
    """Refuse where a run is under way on another host: its parent, which seldom writes, may live there, too."""
    from trainstone.launch.repeat import read_children

    for child in read_children(path).values():
        writer = child.result.process
        if child.result.status == "running" and writer.host != socket.gethostname():
            raise ResultError(
                f"{path / child.folder} is still running: process {writer.pid} on {writer.host}",
                hint="wait for it, or stop it first",
            )
