"""trainstone doctor: check what this machine supports, what is missing and how noisy it is."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainstone.cli import options
from trainstone.cli.execute import ProgressStream, RunOptions, execute
from trainstone.cli.render.output import print_json
from trainstone.errors import ConfigError, MachineError
from trainstone.results.progress import Progress
from trainstone.text import printable

if TYPE_CHECKING:
    from trainstone.flows.doctor import Check
    from trainstone.flows.lifecycle import Lifecycle

COLOURS = {"ok": "green", "limited": "yellow", "missing": "red", "wrong": "red", "skipped": "dim"}


def doctor(
    recipe: Annotated[str, typer.Argument(help="Recipe that --aa trains.")] = "resnet50",
    aa: Annotated[
        bool,
        typer.Option(
            "--aa", help="Run an A/A test, which measures the noise floor: train the same model twice, interleaved."
        ),
    ] = False,
    gpu_selftest: Annotated[
        bool, typer.Option("--gpu-selftest", help="Check in two minutes that this GPU's (or CPU's) numbers are right.")
    ] = False,
    settings: options.Settings = [],  # noqa: B006  (never mutated)
    seconds: options.Seconds = None,
    device: options.DeviceName = None,
    out: options.Out = Path("runs"),
    as_json: options.Json = False,
    verbose: options.Verbose = 0,
    quiet: options.Quiet = 0,
) -> None:
    """Check this machine: what it supports, what is missing and how noisy it is."""
    from trainstone.config.load import load_config

    if aa and gpu_selftest:
        raise ConfigError("--gpu-selftest cannot be combined with --aa", hint="trainstone doctor --gpu-selftest")
    if not aa:
        if settings or seconds is not None or recipe != "resnet50" or not (device is None or gpu_selftest):
            raise ConfigError("a recipe, --set, --seconds and --device need --aa", hint="trainstone doctor --aa")
        options.prepare_process(load_config(recipe), verbose=verbose, quiet=quiet)  # trials are like those of bench
        if gpu_selftest:
            print_selftest(device or "auto", out, as_json=as_json)
        else:
            print_checks(out, as_json=as_json)
        return
    flags = options.collect_flags({"measure.seconds": seconds, "device": device})
    config = load_config(recipe, settings=settings, flags=flags)
    options.prepare_process(config, verbose=verbose, quiet=quiet)
    options.check_single_process("doctor --aa")
    outcome: dict[str, Any] = {}

    def flow(life: "Lifecycle") -> ProgressStream:
        yield Progress("loading torch")
        from trainstone.flows.compare.aa_test import run_aa_test

        return (yield from run_aa_test(life, outcome))

    execute(None, config, flow, RunOptions(quiet=quiet), show=lambda: print_noise_floor(outcome, as_json=as_json))


def print_checks(out: Path, *, as_json: bool) -> None:
    from trainstone.flows.doctor import examine
    from trainstone.machine.facts import read_facts

    facts = read_facts()
    closing = "\nMeasure the speed: trainstone bench\nMeasure the noise floor: trainstone doctor --aa"
    show_checks(examine(facts, out), {"machine": facts}, closing, as_json=as_json)


def print_selftest(device: str, out: Path, *, as_json: bool) -> None:
    from trainstone.flows.selftest import run_selftest
    from trainstone.results.run_folder import name_run

    options.check_single_process("doctor --gpu-selftest")
    path = out / f"{name_run('selftest')}.json"
    checks = show_checks(run_selftest(device, path), {"file": str(path)}, f"\nfile  {path}", as_json=as_json)
    if wrong := [check.name for check in checks if check.status == "wrong"]:
        raise MachineError(f"wrong checks: {', '.join(wrong)}", hint=f"attach {path} to a bug report")


def show_checks(checks: "Iterable[Check]", more: dict[str, Any], closing: str, *, as_json: bool) -> "list[Check]":
    """Print and return checks as they end, then a closing text; with --json one document that also has `more`."""
    from rich.console import Console
    from rich.text import Text

    console, ended = Console(highlight=False, quiet=as_json), []
    for check in checks:
        ended.append(check)
        mark = (f"{check.status:<8}", COLOURS[check.status])
        message = printable(check.message)
        console.print(Text.assemble(mark, (f"{check.name:<11}", "bold"), message), soft_wrap=True)
        if check.hint:
            console.print(Text(f"{'':19}{printable(check.hint)}", style="dim"), soft_wrap=True)
    if as_json:
        print_json({**more, "checks": [asdict(check) for check in ended]})
    else:
        print(closing)
    return ended


def print_noise_floor(floor: dict[str, Any], *, as_json: bool) -> None:
    from trainstone.units import format_percent

    if as_json:
        print_json(floor)
        return
    low, high = floor["ci95"]
    print(f"A/A test: {floor['num_pairs']} interleaved pairs of blocks of {floor['steps_per_block']} steps")
    difference = f"{floor['mean_difference'] * 100:+.2f} % (95 %: {low * 100:+.2f} … {high * 100:+.2f} %)"
    print(f"  difference           {difference}")
    print(f"  noise floor          {format_percent(floor['noise_floor'], 2)}")
    print(
        f"  smallest detectable  {format_percent(floor['detectable'], 2)} (80 % power, 5 % level, same measuring time)"
    )
    if low > 0 or high < 0:
        print(
            "  The interval excludes 0 although both sides are equal; chance does that once in 20 tests. Run it again."
        )
    print("\nThis machine cannot show smaller differences. To reduce noise, stop other programs or use --seconds 300.")
