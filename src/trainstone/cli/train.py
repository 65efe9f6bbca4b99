"""trainstone train: train until the target is reached, honestly timed; survives being killed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainstone.cli import options
from trainstone.cli.bench import print_plan, show
from trainstone.cli.opening import find_begun, open_folder, tell_command
from trainstone.errors import EXIT_INTERRUPTED, EXIT_RESUMABLE, EXIT_TARGET, ConfigError, TrainstoneError

if TYPE_CHECKING:
    from trainstone.config.learning import StopConfig
    from trainstone.config.schema import Config
    from trainstone.results.schema import Result
    from trainstone.results.store import RunFolder
    from trainstone.train.to_target import Ended

Data = Annotated[
    Path | None, typer.Option("--data", help="Train on the pictures of this data set.", show_default="the recipe's")
]
Runs = Annotated[
    int, typer.Option("--runs", min=1, help="Train so often, with new seeds: the time to the target and its spread.")
]
FIXED = ("workload", "seed", "data", "model")
"""What a run keeps to its end, however often it is resumed."""


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(help="A recipe's name, a .toml file, or the config.toml of a run.", show_default="resnet50"),
    ] = None,
    settings: options.Settings = [],  # noqa: B006  (Typer reads it, nobody changes it)
    system: options.SystemName = None,
    data: Data = None,
    out: options.Out = Path("runs"),
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="RUN", help="Go on with this run from its last checkpoint.")
    ] = None,
    require_target: Annotated[
        bool, typer.Option("--require-target", help="Exit with 8 where the target was not reached.")
    ] = False,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", help="Stop after this time, target or not; 0: no limit.", show_default="no limit"),
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option("--iterations", help="Stop after so many steps; 0: no limit.", show_default="the recipe's epochs"),
    ] = None,
    runs: Runs = 1,
    seed: options.Seed = None,
    device: options.DeviceName = None,
    strict: options.Strict = False,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
    quiet: options.Quiet = 0,
) -> None:
    """Train to the target and stop there; say how long it took and where the time went."""
    from trainstone.cli.repeating import plan_runs, run_all, tell_commands
    from trainstone.log import configure_terminal
    from trainstone.machine.allocator import restart_keeping_memory
    from trainstone.machine.ranks import read_rank

    flags = options.collect_flags(seed=seed, device=device, data=data)
    flags |= {key: value for key, value in (("stop.seconds", seconds), ("stop.steps", iterations)) if value is not None}
    begun = find_begun() if resume is None else None
    if begun:  # what it has settled stays settled
        recipe, resume, system, settings = None, begun, None, [one for one in settings if not one.endswith("auto")]
    config, changed = load_asked(recipe, resume, settings, system, flags), bool(settings or flags or system)
    repeated = plan_runs(config, resume, runs, strict=strict, changed=changed)
    if dry_run:
        print_plan(config, None, out, tell_commands(repeated, resume) if repeated else (), as_json=as_json)
        return
    if config.engine.keep_memory and not repeated:
        restart_keeping_memory()
    first = read_rank().number == 0
    configure_terminal(verbose=0, quiet=quiet)
    if resume and not changed:
        status = tell_over(resume, config.stop, as_json=as_json, first=first)
        if status:
            raise typer.Exit(code_of_end(status, None, require_target=require_target))
    if repeated:
        status, signal = run_all(config, repeated, resume, out, quiet=bool(quiet), as_json=as_json)
    else:
        status, signal = run_one(config, resume, out, strict=strict, quiet=bool(quiet), as_json=as_json)
    raise typer.Exit(code_of_end(status, signal, require_target=require_target))


def run_one(
    config: "Config", resume: Path | None, out: Path, *, strict: bool, quiet: bool, as_json: bool
) -> tuple[str, str | None]:
    """Train once, on one rank or many; the first shows what came of it. Return status, and the signal that ended it."""
    from trainstone.machine.ranks import read_rank

    first = read_rank().number == 0
    run = open_run(config, resume, out) if first else None
    try:
        ended = run_here(config, run, strict=strict, quiet=quiet or not first, resume=resume is not None)
    except KeyboardInterrupt as err:
        if run:
            print(f"interrupted; what there is lies in {run.path}", file=sys.stderr)
        return "interrupted", str(err) or "SIGINT"
    if run:
        show(run, as_json=as_json)
    return ended.status, ended.signal


def load_asked(
    recipe: str | None, resume: Path | None, settings: list[str], system: str | None, flags: dict[str, Any]
) -> "Config":
    """Resolve the recipe; that of the run which is resumed, with what is to be changed from there on."""
    from trainstone.config.load import load_config
    from trainstone.results.store import read_result

    if resume is None:
        return load_config(recipe or "resnet50", settings=settings, system=system, flags=flags)
    if recipe is not None:
        raise ConfigError(
            f"--resume {resume} has its recipe: {recipe} is one too many", hint="change keys of it with --set"
        )
    read_result(resume)  # says what is wrong where this is no run
    before = load_config(str(resume / "config.toml"))
    config = load_config(str(resume / "config.toml"), settings=settings, system=system, flags=flags)
    for fixed in FIXED:
        if getattr(before, fixed) != getattr(config, fixed):
            raise ConfigError(f"a run that is resumed keeps its {fixed}", hint="start a new run to change it")
    return config


def open_run(config: "Config", resume: Path | None, out: Path) -> "RunFolder":
    """Make a run folder, or take up the one that is resumed."""
    from trainstone.results.store import reopen_run

    with telling_ranks(config):
        return open_folder(out, "train", config) if resume is None else reopen_run(resume, "train", tell_command())


@contextmanager
def telling_ranks(config: "Config") -> Iterator[None]:
    """Where the first rank cannot begin, say why and let the others know: they would wait for it."""
    from trainstone.cli.main import print_error
    from trainstone.machine.ranks import read_rank

    try:
        yield
    except TrainstoneError as err:
        if read_rank().world == 1:
            raise
        print_error(err)  # at once: to meet the others may take long
        from trainstone.train.refusal import tell_refusal

        tell_refusal(config, err)
        raise typer.Exit(err.exit_code) from err


def tell_over(resume: Path, stop: "StopConfig", *, as_json: bool, first: bool) -> str | None:
    """Say so where a run has come to its end, and return how: there is nothing to resume. None: there is."""
    from trainstone.results.store import RunFolder, read_result

    result = read_result(resume)
    if result.kind != "train" or result.status not in ("ok", "target_reached", "target_missed"):
        return None
    if first:
        print(f"{resume} has come to its end: {tell_end(result, stop)}", file=sys.stderr)
        show(RunFolder(resume, result), as_json=as_json)
    return result.status


def tell_end(result: "Result", stop: "StopConfig") -> str:
    """Name the rule that ended a run, and what to type to let it go on."""
    if result.repeated:
        return f"all of its {result.repeated.num_runs} runs have; --runs N begins new ones"
    if result.status == "target_reached":
        return "the target is reached; --set eval.target=X asks for more"
    quality = result.quality
    last = quality.history[-1] if quality and quality.history else None
    steps = quality.steps if quality and quality.steps is not None else last.step if last else 0
    if stop.steps and steps >= stop.steps:
        return f"stop.steps = {stop.steps}; --set stop.steps=0 takes the limit away"
    if stop.seconds and quality and quality.epochs < stop.epochs and (last is None or last.seconds >= stop.seconds):
        return f"stop.seconds = {stop.seconds:g}; --set stop.seconds=0 takes the limit away"
    return f"stop.epochs = {stop.epochs:g}; --set stop.epochs=N gives it more"


def run_here(config: "Config", run: "RunFolder | None", *, strict: bool, quiet: bool, resume: bool) -> "Ended":
    """Train in this process."""
    from trainstone.cli.progress import ProgressLine
    from trainstone.results.progress import Progress

    with ProgressLine(quiet=quiet) as line:
        line.show(Progress("loading torch"))
        from trainstone.train.to_target import run_train

        going = run_train(config, run, strict=strict, resume=resume)
        while True:
            try:
                line.show(next(going))
            except StopIteration as end:
                ended: Ended = end.value
                return ended


def code_of_end(status: str, signal: str | None, *, require_target: bool) -> int:
    """Return the exit code of a run that ended so."""
    if status == "interrupted":
        return code_of_signal(signal)
    return EXIT_TARGET if require_target and status == "target_missed" else 0


def code_of_signal(name: str | None) -> int:
    """Ctrl-C was a person; any other signal a scheduler that may start the run again."""
    return EXIT_INTERRUPTED if name == "SIGINT" else EXIT_RESUMABLE
