"""trainstone bench: measure training speed. Arguments -> config -> run -> result -> page and summary."""

import re
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainstone.cli import options
from trainstone.cli.execute import ProgressStream, RunOptions, execute, print_plan
from trainstone.errors import ConfigError
from trainstone.results.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainstone.config.schema import Config
    from trainstone.flows.lifecycle import Lifecycle


def bench(
    recipe: options.Recipe = "resnet50",
    settings: options.Settings = [],  # noqa: B006  (never mutated)
    system: options.SystemName = None,
    data: options.Data = None,
    out: options.Out = Path("runs"),
    seconds: options.Seconds = None,
    iterations: Annotated[
        int | None,
        typer.Option("--iterations", help="Number of steps to run, warm-up included, instead of a time budget."),
    ] = None,
    against: Annotated[
        list[str],
        typer.Option(
            "--against",
            metavar="RECIPE|KEY=VALUE",
            help="Compare with another recipe, or with this one with other values (repeatable: further keys of the "
            "same opponent); both run in turn.",
        ),
    ] = [],  # noqa: B006
    runs: options.Runs = 1,
    seed: options.Seed = None,
    device: options.DeviceName = None,
    strict: options.Strict = False,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
    verbose: options.Verbose = 0,
    quiet: options.Quiet = 0,
) -> None:
    """Measure how fast this machine trains a model, with a confidence interval, and what limits it."""
    from trainstone.config.load import load_config

    values = {"measure.seconds": seconds, "seed": seed, "device": device, "measure.iterations": iterations}
    flags = options.collect_flags(values, data)
    load = partial(load_config, system=system, flags=flags)
    config = load(recipe, settings=settings)
    other, same_recipe = load_against(load, recipe, settings, against, config, runs)
    if dry_run:
        print_plan(config, out, list_commands(config, runs, strict=strict), other, as_json=as_json)
        return
    if other:
        options.check_single_process("bench --against")
    if runs > 1:
        options.check_single_process("bench --runs")
    options.prepare_process(config if runs == 1 else None, verbose=verbose, quiet=quiet)

    def flow(life: "Lifecycle") -> ProgressStream:
        if runs > 1:
            from trainstone.flows.child_runs import repeat_bench

            return (yield from repeat_bench(life, runs, strict=strict))
        yield Progress("loading torch")
        if other:
            from trainstone.flows.compare.pair import run_against

            return (yield from run_against(life, other, same_recipe=same_recipe, strict=strict))
        from trainstone.flows.bench.run import run_bench

        return (yield from run_bench(life, strict=strict))

    execute("bench", config, flow, RunOptions(out, as_json, quiet))


def load_against(
    load: "Callable[..., Config]", recipe: str, settings: list[str], against: list[str], config: "Config", runs: int
) -> "tuple[Config | None, bool]":
    """Resolve --against; return its configuration, if any, and whether it is the same recipe with other keys."""
    if not against:
        return None, False
    separately = "measure each with its own trainstone bench, then: trainstone compare RUN --to RUN"
    changes = [value for value in against if re.match(r"[\w.]+\s*=", value)]
    recipes = [value for value in against if value not in changes]
    if len(recipes) > 1:
        message = f"--against has {len(recipes)} recipes: {', '.join(recipes)}; expected one"
        raise ConfigError(message, hint="compare two recipes at a time; give changed keys as KEY=VALUE")
    if runs > 1:
        message = "--against and --runs exclude each other: --against uses one process, --runs one process per run"
        raise ConfigError(message, hint=separately)
    other = load(recipes[0] if recipes else recipe, settings=[*settings, *changes])
    if other.engine.keep_memory != config.engine.keep_memory:
        raise ConfigError(
            "--against cannot change engine.keep_memory: it applies to the whole process", hint=separately
        )
    if any(change.startswith("measure.") for change in changes):
        message = "--against cannot change the measure section: it applies to the whole run"
        raise ConfigError(message, hint="set it for both: --set measure.KEY=VALUE")
    return other.model_copy(update={"measure": config.measure}), not recipes


def list_commands(config: "Config", runs: int, *, strict: bool) -> list[str]:
    from trainstone.flows.child_runs import child_command

    file, points = Path("RUN/config.toml"), Path("RUN/points")
    seeds = range(config.seed, config.seed + runs if runs > 1 else config.seed)
    return [shlex.join(child_command("bench", file, points, strict=strict, seed=seed)) for seed in seeds]
