"""trainstone train: train until the target is reached and measure the time; a killed run can be resumed."""

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainstone.cli import options
from trainstone.cli.execute import (
    ProgressStream,
    RunOptions,
    execute,
    exit_code,
    find_earlier_attempt,
    print_plan,
    show_run,
)
from trainstone.cli.render.output import print_stderr
from trainstone.errors import ConfigError
from trainstone.machine.ranks import read_rank
from trainstone.results.progress import Progress

if TYPE_CHECKING:
    from trainstone.config.schema import Config, StopConfig
    from trainstone.flows.lifecycle import Lifecycle
    from trainstone.results.schema.quality import Repeated

FIXED = ("workload", "seed", "data", "model")
"""Keys and sections of the recipe that a resumed run cannot change."""

Seconds = Annotated[
    float | None,
    typer.Option(
        "--seconds", help="Stop after this many seconds, target reached or not; 0: no limit.", show_default="no limit"
    ),
]
Iterations = Annotated[
    int | None,
    typer.Option(
        "--iterations", help="Stop after this many steps; 0: no limit.", show_default="the epochs of the recipe"
    ),
]
Runs = Annotated[
    int,
    typer.Option(
        "--runs",
        min=1,
        help="Number of trainings, each with a new seed; reports the time to the target and its spread.",
    ),
]


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(help="Recipe name, recipe file (.toml), or the config.toml of a run.", show_default="resnet50"),
    ] = None,
    settings: options.Settings = [],  # noqa: B006  (never mutated)
    system: options.SystemName = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Data set to train on.", show_default=options.RECIPE)
    ] = None,
    out: options.Out = Path("runs"),
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="RUN", help="Resume this run from its last checkpoint.")
    ] = None,
    require_target: Annotated[
        bool, typer.Option("--require-target", help="Exit with code 8 if the target is not reached.")
    ] = False,
    seconds: Seconds = None,
    iterations: Iterations = None,
    runs: Runs = 1,
    seed: options.Seed = None,
    device: options.DeviceName = None,
    strict: options.Strict = False,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
    quiet: options.Quiet = 0,
) -> None:
    """Train until the target is reached; report how long it took and where the time went."""
    values = {"seed": seed, "device": device, "stop.seconds": seconds, "stop.steps": iterations}
    flags = options.collect_flags(values, data)
    earlier = find_earlier_attempt() if resume is None else None
    if earlier:  # a restarted attempt keeps the settings of the first
        recipe, resume, system = None, earlier, None
        settings = [setting for setting in settings if not setting.endswith("auto")]
    config, changed = load_train_config(recipe, resume, settings, system, flags), bool(settings or flags or system)
    repeated = plan_runs(config, resume, runs, strict=strict, changed=changed)
    if dry_run:
        print_plan(config, out, list_commands(repeated, config, resume) if repeated else (), as_json=as_json)
        return
    options.prepare_process(None if repeated else config, quiet=quiet)
    if resume and not changed:
        exit_if_complete(resume, config.stop, as_json=as_json, require_target=require_target)
    flow = partial(run_flow, repeated=repeated, strict=strict, resume=resume is not None)
    execute("train", config, flow, RunOptions(out, as_json, quiet, resume, require_target))


def run_flow(life: "Lifecycle", *, repeated: "Repeated | None", strict: bool, resume: bool) -> ProgressStream:
    """Train once in this process, or several times in child processes."""
    if repeated:
        from trainstone.flows.child_runs import repeat_training

        return (yield from repeat_training(life, repeated))
    yield Progress("loading torch")
    from trainstone.flows.train.run import run_train

    return (yield from run_train(life, strict=strict, resume=resume))


def load_train_config(
    recipe: str | None, resume: Path | None, settings: list[str], system: str | None, flags: dict[str, Any]
) -> "Config":
    """Resolve the recipe, or the configuration of the resumed run with its changes."""
    from trainstone.config.load import load_config
    from trainstone.results.run_folder import read_result

    if resume is None:
        return load_config(recipe or "resnet50", settings=settings, system=system, flags=flags)
    if recipe is not None:
        raise ConfigError(
            f"unexpected recipe {recipe}: --resume {resume} uses the configuration of that run",
            hint="remove the recipe; --set KEY=VALUE changes a key",
        )
    read_result(resume)  # raises if this is not a run folder
    before = load_config(str(resume / "config.toml"))
    config = load_config(str(resume / "config.toml"), settings=settings, system=system, flags=flags)
    for fixed in FIXED:
        if getattr(before, fixed) != getattr(config, fixed):
            raise ConfigError(f"a resumed run cannot change its {fixed}", hint="start a new run to change it")
    return config


def plan_runs(config: "Config", resume: Path | None, runs: int, *, strict: bool, changed: bool) -> "Repeated | None":
    """Return the plan of --runs or of the resumed run; None for a single run."""
    from trainstone.flows.sweep.plan import check_shared_config
    from trainstone.results.run_folder import read_result
    from trainstone.results.schema.quality import Repeated

    repeated = read_result(resume).repeated if resume else None
    if resume and runs > 1:
        raise ConfigError(
            "--runs and --resume exclude each other: one starts new runs, the other continues a run", hint="remove one"
        )
    if resume and repeated and changed:
        config_file = shlex.quote(str(resume / "config.toml"))
        raise ConfigError(
            f"{resume} repeats one configuration in {repeated.num_runs} runs: --resume cannot change it",
            hint=f"start new runs: trainstone train {config_file} --runs {repeated.num_runs} --set KEY=VALUE",
        )
    if resume and repeated:
        check_shared_config(resume)
    if runs > 1:
        repeated = Repeated(num_runs=runs, first_seed=config.seed, strict=strict)
    if repeated and read_rank().world > 1:
        raise ConfigError(
            f"train --runs needs a single process: found {read_rank().world} ranks, and each would start all runs",
            hint="start it without a launcher, or launch one run per seed: trainstone launch ... -- train ... --seed N",
        )
    return repeated


def list_commands(repeated: "Repeated", config: "Config", resume: Path | None) -> list[str]:
    from trainstone.flows.child_runs import list_due_seeds, plan_child

    folder = resume or Path("RUN")
    due = list_due_seeds(folder, repeated)
    return [shlex.join(plan_child(folder, repeated, seed, config.name).command) for seed in due]


def exit_if_complete(resume: Path, stop: "StopConfig", *, as_json: bool, require_target: bool) -> None:
    """Print the result and exit if the run is complete: there is nothing to resume."""
    from trainstone.results.run_folder import RunFolder, read_result

    result = read_result(resume)
    if result.kind != "train" or result.status not in ("ok", "target_reached", "target_missed"):
        return
    limits = ", ".join(f"stop.{key} = {value:g}" for key, value in stop.model_dump().items() if value)
    end = f"{limits}; train longer with --set stop.epochs=N, remove a limit with --set stop.steps=0 or stop.seconds=0"
    if result.repeated:
        config_file = shlex.quote(str(resume / "config.toml"))
        end = f"all {result.repeated.num_runs} runs have ended; start new ones: trainstone train {config_file} --runs N"
    elif result.status == "target_reached":
        end = "the target is reached; train to a higher one with --set eval.target=X"
    if read_rank().number == 0:
        print_stderr(f"{resume} is complete: {end}")
        show_run(RunFolder(resume, result), as_json=as_json)
    raise typer.Exit(exit_code("train", result.status, None, require_target=require_target))
