"""trainstone doctor: what this machine can do, what is missing, how noisy it is."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from trainstone.cli import options
from trainstone.cli.execute import Life, ProgressStream, RunOptions, execute
from trainstone.cli.render.output import print_json
from trainstone.errors import ConfigError
from trainstone.results.progress import Progress
from trainstone.text import printable

COLOURS = {"ok": "green", "limited": "yellow", "missing": "red"}


def doctor(
    recipe: Annotated[str, typer.Argument(help="Recipe of the --aa test.")] = "resnet50",
    aa: Annotated[bool, typer.Option("--aa", help="Run the same thing twice, interleaved: the noise floor.")] = False,
    settings: options.Settings = [],  # noqa: B006  (Typer reads it, nobody changes it)
    seconds: options.Seconds = None,
    device: options.DeviceName = None,
    out: options.Out = Path("runs"),
    as_json: options.Json = False,
    verbose: options.Verbose = 0,
    quiet: options.Quiet = 0,
) -> None:
    """Say what this machine can do, what is missing, and how noisy it is."""
    from trainstone.config.load import load_config

    if not aa:
        if settings or seconds is not None or device is not None or recipe != "resnet50":
            raise ConfigError(
                "a recipe, --set, --seconds and --device are for doctor --aa", hint="trainstone doctor --aa ..."
            )
        options.prepare_process(verbose=verbose, quiet=quiet)
        print_checks(out, as_json=as_json)
        return
    flags = options.collect_flags({"measure.seconds": seconds, "device": device})
    config = load_config(recipe, settings=settings, flags=flags)
    options.prepare_process(config, verbose=verbose, quiet=quiet)
    options.refuse_ranks("doctor --aa")
    outcome: dict[str, Any] = {}

    def flow(life: Life) -> ProgressStream:
        yield Progress("loading torch")
        from trainstone.flows.compare.aa_test import run_same_twice

        return (yield from run_same_twice(life, outcome))

    execute(None, config, flow, RunOptions(quiet=quiet), show=lambda: print_floor(outcome, as_json=as_json))


def print_checks(out: Path, *, as_json: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    from trainstone.flows.doctor import examine
    from trainstone.machine.facts import read_facts

    facts = read_facts()
    if as_json:
        print_json({"machine": facts, "checks": [asdict(check) for check in examine(facts, out)]})
        return
    console = Console(highlight=False)
    for check in examine(facts, out):
        mark = (f"{check.status:<8}", COLOURS[check.status])
        message = printable(check.message)
        console.print(Text.assemble(mark, (f"{check.name:<11}", "bold"), message), soft_wrap=True)
        if check.hint:
            console.print(Text(f"{'':19}{printable(check.hint)}", style="dim"), soft_wrap=True)
    print("\nMeasure: trainstone bench      Noise floor: trainstone doctor --aa")


def print_floor(floor: dict[str, Any], *, as_json: bool) -> None:
    from trainstone.units import format_percent

    if as_json:
        print_json(floor)
        return
    low, high = floor["ci95"]
    print(f"The same thing twice, {floor['num_pairs']} interleaved pairs of {floor['steps_per_block']} steps each:")
    difference = f"{floor['mean_difference'] * 100:+.2f} % (95 %: {low * 100:+.2f} … {high * 100:+.2f} %)"
    print(f"  difference           {difference}")
    print(f"  noise floor          {format_percent(floor['noise_floor'], 2)}")
    print(f"  smallest detectable  {format_percent(floor['detectable'], 2)} (80 % power, 5 % level, in as much time)")
    if low > 0 or high < 0:
        print("  The interval excludes 0 although both are the same: one time in twenty that is chance; run it again.")
    print("\nA difference smaller than that is not one this machine can show. Quieter: stop other work, --seconds 300")
