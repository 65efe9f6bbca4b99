"""trainstone profile: show where the time of a step goes. Arguments -> config -> profiled steps -> analysis -> page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainstone.cli import options
from trainstone.cli.execute import ProgressStream, RunOptions, execute, print_plan
from trainstone.errors import ConfigError
from trainstone.results.progress import Progress

if TYPE_CHECKING:
    from trainstone.flows.lifecycle import Lifecycle

# A trace grows by 1 to 10 MB per step; viewers become slow with more.
MAX_ITERATIONS = 200


def profile(
    recipe: options.Recipe = "resnet50",
    settings: options.Settings = [],  # noqa: B006  (never mutated)
    system: options.SystemName = None,
    data: options.Data = None,
    out: options.Out = Path("runs"),
    start: Annotated[
        int | None,
        typer.Option(
            "--start", min=0, help="First step to profile, counted from 0.", show_default="once the steps are steady"
        ),
    ] = None,
    iterations: Annotated[
        int, typer.Option("--iterations", min=1, max=MAX_ITERATIONS, help="Number of steps to profile.")
    ] = 3,
    cores: Annotated[
        bool, typer.Option("--cores", help="Also measure FMA, FP16 and tensor cores of an NVIDIA GPU, with ncu.")
    ] = False,
    nvtx: Annotated[
        bool,
        typer.Option("--nvtx", help="Record no trace; mark phases for nsys: nsys profile trainstone profile --nvtx."),
    ] = False,
    seed: options.Seed = None,
    device: options.DeviceName = None,
    strict: options.Strict = False,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
    verbose: options.Verbose = 0,
    quiet: options.Quiet = 0,
) -> None:
    """Profile a few training steps and show where their time goes: operators, gaps, roofline, utilisation."""
    from trainstone.config.load import load_config

    flags = options.collect_flags({"seed": seed, "device": device, "engine.nvtx": nvtx or None}, data)
    config = load_config(recipe, settings=settings, system=system, flags=flags)
    if cores and config.engine.nvtx:
        raise ConfigError("--cores and --nvtx exclude each other: --cores starts ncu itself", hint="remove one")
    if cores:
        options.check_single_process("profile --cores")
        from trainstone.flows.profile.ncu import check_permission, find_ncu

        find_ncu()
        check_permission()
    if dry_run:
        print_plan(config, out, as_json=as_json)
        return
    options.prepare_process(config, verbose=verbose, quiet=quiet)

    def flow(life: "Lifecycle") -> ProgressStream:
        yield Progress("loading torch")
        from trainstone.flows.profile.run import run_profile

        status = yield from run_profile(life, start=start, iterations=iterations, cores=cores, strict=strict)
        if cores and status == "ok":
            from trainstone.flows.profile.ncu import add_cores

            yield from add_cores(life)
        return status

    execute("profile", config, flow, RunOptions(out, as_json, quiet))
