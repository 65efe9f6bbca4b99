"""trainstone bench: training speed on this machine. Arguments -> config -> run -> result -> summary."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainstone.cli import options
from trainstone.errors import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from trainstone.config.schema import Config
    from trainstone.results.store import RunFolder


def bench(
    recipe: Annotated[
        str, typer.Argument(help="A recipe's name, a .toml file, or the config.toml of a run.")
    ] = "resnet50",
    settings: options.Settings = [],  # noqa: B006  (Typer reads it, nobody changes it)
    system: options.SystemName = None,
    out: options.Out = Path("runs"),
    seconds: options.Seconds = None,
    iterations: Annotated[
        int | None,
        typer.Option("--iterations", help="Run exactly so many steps instead of a time.", show_default=False),
    ] = None,
    runs: options.Runs = 1,
    seed: options.Seed = None,
    device: options.DeviceName = None,
    strict: options.Strict = False,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
    verbose: options.Verbose = 0,
    quiet: options.Quiet = 0,
) -> None:
    """Measure how fast this machine trains, with an error bar, and say what limits it."""
    from trainstone.config.load import load_config
    from trainstone.log import configure_terminal
    from trainstone.machine.allocator import restart_keeping_memory
    from trainstone.results.store import create_run

    flags = options.collect_flags(seconds=seconds, seed=seed, device=device, iterations=iterations)
    config = load_config(recipe, settings=settings, system=system, flags=flags)
    if dry_run:
        print_plan(config, out, runs, strict=strict, as_json=as_json)
        return
    if config.engine.keep_memory and runs == 1:
        restart_keeping_memory()
    configure_terminal(verbose=verbose, quiet=quiet)
    run = create_run(out, "bench", config, shlex.join(["trainstone", *sys.argv[1:]]))
    try:
        if runs > 1:
            repeat_run(config, run, runs, strict=strict, quiet=bool(quiet))
        else:
            run_once(config, run, strict=strict, quiet=bool(quiet))
    except KeyboardInterrupt:
        print(f"interrupted; what there is lies in {run.path}", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finish(run, as_json=as_json)


def run_once(config: "Config", run: "RunFolder", *, strict: bool, quiet: bool) -> None:
    """Measure in this process."""
    from trainstone.cli.progress import ProgressLine

    with ProgressLine(quiet=quiet) as line:
        from trainstone.results.progress import Progress

        line.show(Progress("loading torch"))
        from trainstone.train.run import run_bench

        for progress in run_bench(config, run, strict=strict):
            line.show(progress)


def repeat_run(config: "Config", run: "RunFolder", num_runs: int, *, strict: bool, quiet: bool) -> None:
    """Measure in child processes, one after the other, each with its own seed."""
    from trainstone.cli.progress import ProgressLine
    from trainstone.launch.children import repeat_bench

    with ProgressLine(quiet=quiet) as line:
        for progress in repeat_bench(config, run, num_runs, strict=strict):
            line.show(progress)


def print_plan(config: "Config", out: Path, runs: int, *, strict: bool, as_json: bool) -> None:
    """--dry-run: what would be run, and by which commands."""
    from trainstone.cli.output import print_json
    from trainstone.config.load import write_toml
    from trainstone.launch.children import bench_command

    children = [
        shlex.join(bench_command(Path("RUN/config.toml"), Path("RUN/points"), config.seed + number, strict=strict))
        for number in range(runs if runs > 1 else 0)
    ]
    if as_json:
        plan = {"config": config.model_dump(mode="json", exclude_none=True), "out": str(out), "commands": children}
        print_json(plan)
        return
    print(write_toml(config))
    print(f"# would write a run folder RUN under {out}/")
    if children:
        print("# would start, one after the other:")
        print("\n".join(f"#   {command}" for command in children))


def finish(run: "RunFolder", *, as_json: bool) -> None:
    """Print the product and leave with the run's exit code."""
    from trainstone.cli.output import print_json
    from trainstone.cli.summary import print_result

    if as_json:
        print_json(run.result.model_dump(mode="json", exclude_none=True))
    else:
        print_result(run.result, run.path)
    if run.result.status == "interrupted":
        raise typer.Exit(EXIT_INTERRUPTED)
