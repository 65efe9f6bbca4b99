"""trainstone train: train until the target is reached, honestly timed; survives being killed."""

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainstone.cli import options
from trainstone.cli.execute import (
    Life,
    ProgressStream,
    RunOptions,
    execute,
    exit_code,
    find_begun,
    print_plan,
    show_run,
)
from trainstone.cli.render.output import print_stderr
from trainstone.errors import ConfigError
from trainstone.machine.ranks import read_rank
from trainstone.results.progress import Progress

if TYPE_CHECKING:
    from trainstone.config.schema import Config, StopConfig
    from trainstone.results.schema.quality import Repeated

FIXED = ("workload", "seed", "data", "model")
"""What a run keeps to its end, however often it is resumed."""


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(help="A recipe's name, a .toml file, or the config.toml of a run.", show_default="resnet50"),
    ] = None,
    settings: options.Settings = [],  # noqa: B006  (Typer reads it, nobody changes it)
    system: options.SystemName = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Train on the images of this data set.", show_default="the recipe's")
    ] = None,
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
    runs: Annotated[
        int,
        typer.Option("--runs", min=1, help="Train so often, with new seeds: the time to the target and its spread."),
    ] = 1,
    seed: options.Seed = None,
    device: options.DeviceName = None,
    strict: options.Strict = False,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
    quiet: options.Quiet = 0,
) -> None:
    """Train to the target and stop there; say how long it took and where the time went."""
    values = {"seed": seed, "device": device, "stop.seconds": seconds, "stop.steps": iterations}
    flags = options.collect_flags(values, data)
    begun = find_begun() if resume is None else None
    if begun:  # what it has settled stays settled
        recipe, resume, system, settings = None, begun, None, [one for one in settings if not one.endswith("auto")]
    config, changed = load_requested(recipe, resume, settings, system, flags), bool(settings or flags or system)
    repeated = plan_runs(config, resume, runs, strict=strict, changed=changed)
    if dry_run:
        print_plan(config, out, list_commands(repeated, config, resume) if repeated else (), as_json=as_json)
        return
    options.prepare_process(None if repeated else config, quiet=quiet)
    if resume and not changed:
        show_if_over(resume, config.stop, as_json=as_json, require_target=require_target)
    flow = partial(run_flow, repeated=repeated, strict=strict, resume=resume is not None)
    execute("train", config, flow, RunOptions(out, as_json, quiet, resume, require_target))


def run_flow(life: Life, *, repeated: "Repeated | None", strict: bool, resume: bool) -> ProgressStream:
    """Train once in this process, or several times in child processes."""
    if repeated:
        from trainstone.flows.child_runs import repeat_training

        return (yield from repeat_training(life, repeated))
    yield Progress("loading torch")
    from trainstone.flows.train.run import run_train

    return (yield from run_train(life, strict=strict, resume=resume))


def load_requested(
    recipe: str | None, resume: Path | None, settings: list[str], system: str | None, flags: dict[str, Any]
) -> "Config":
    """Resolve the recipe; that of the run which is resumed, with what is to be changed from there on."""
    from trainstone.config.load import load_config
    from trainstone.results.run_folder import read_result

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


def plan_runs(config: "Config", resume: Path | None, runs: int, *, strict: bool, changed: bool) -> "Repeated | None":
    """Return what --runs asks for, or the run that is resumed was asked for; None: a single run."""
    from trainstone.flows.sweep.plan import check_settled
    from trainstone.results.run_folder import read_result
    from trainstone.results.schema.quality import Repeated

    repeated = read_result(resume).repeated if resume else None
    if resume and runs > 1:
        raise ConfigError("--runs begins new runs, --resume goes on with those there are", hint="give one of the two")
    if repeated and changed:
        raise ConfigError(
            f"{resume} has {repeated.num_runs} runs of one configuration: --resume cannot change it",
            hint=f"for another begin anew: trainstone train {resume}/config.toml --runs {repeated.num_runs} --set ...",
        )
    if resume and repeated:
        check_settled(resume)
    if runs > 1:
        repeated = Repeated(num_runs=runs, first_seed=config.seed, strict=strict)
    if repeated and read_rank().world > 1:
        raise ConfigError(
            f"--runs starts its runs itself, one after the other; here {read_rank().world} ranks would each do so",
            hint="start it without a launcher; or each run by itself: trainstone launch ... -- train ... --seed N",
        )
    return repeated


def list_commands(repeated: "Repeated", config: "Config", resume: Path | None) -> list[str]:
    from trainstone.flows.child_runs import list_due, plan_child

    folder = resume or Path("RUN")
    due = list_due(folder, repeated)
    return [shlex.join(plan_child(folder, repeated, seed, config.name).command) for seed in due]


def show_if_over(resume: Path, stop: "StopConfig", *, as_json: bool, require_target: bool) -> None:
    """Say so where a run has come to its end, and exit: there is nothing to resume."""
    from trainstone.results.run_folder import RunFolder, read_result

    result = read_result(resume)
    if result.kind != "train" or result.status not in ("ok", "target_reached", "target_missed"):
        return
    limits = ", ".join(f"stop.{key} = {value:g}" for key, value in stop.model_dump().items() if value)
    end = f"{limits}; --set stop.epochs=N gives it more, --set stop.steps=0 or stop.seconds=0 takes a limit away"
    if result.repeated:
        end = f"all of its {result.repeated.num_runs} runs have; --runs N begins new ones"
    elif result.status == "target_reached":
        end = "the target is reached; --set eval.target=X asks for more"
    if read_rank().number == 0:
        print_stderr(f"{resume} has come to its end: {end}")
        show_run(RunFolder(resume, result), as_json=as_json)
    raise typer.Exit(exit_code("train", result.status, None, require_target=require_target))
