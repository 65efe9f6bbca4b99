"""trainstone data bench: how fast a data set feeds, by threads and stages, and how many cores devices would need."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainstone.cli import options
from trainstone.cli.execute import Options, execute
from trainstone.errors import ConfigError
from trainstone.results.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Generator

    from trainstone.results.schema import Status
    from trainstone.train.lifecycle import Lifecycle


def bench(
    path: Annotated[Path, typer.Argument(help="A data set: a folder, or a file of records.")],
    recipe: Annotated[
        str, typer.Option("--recipe", help="Whose crop, size and loader to use, and whose training to feed.")
    ] = "resnet50",
    settings: options.Settings = [],  # noqa: B006  (Typer reads it, nobody changes it)
    threads: Annotated[
        str | None,
        typer.Option("--threads", metavar="N,N...", help="How many to try.", show_default="1, 2, 4 ... all"),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Time for all numbers of threads.")] = 20.0,
    demand: Annotated[
        float | None,
        typer.Option(
            "--demand",
            min=0.001,
            metavar="IMAGES/S",
            help="What has to be fed.",
            show_default="measured: this machine's devices, synthetic data",
        ),
    ] = None,
    out: options.Out = Path("runs"),
    seed: options.Seed = None,
    device: options.DeviceName = None,
    as_json: options.Json = False,
    quiet: options.Quiet = 0,
) -> None:
    """Measure how fast pictures come out of a data set, by threads and stages; say how many cores devices need."""
    from trainstone.cli.preparing import start_work
    from trainstone.config.load import load_config

    start_work(quiet)
    options.refuse_ranks("data bench")  # others would take the cores of the one that measures
    flags = options.collect_flags(seed=seed, device=device, data=path)
    config = load_config(recipe, settings=settings, flags=flags)
    counts = parse_threads(threads)
    if demand is not None and not math.isfinite(demand):
        raise ConfigError(f"--demand {demand}: it takes a number of images a second")

    def flow(life: "Lifecycle") -> "Generator[Progress, None, Status]":
        yield Progress("loading torch")
        from trainstone.results.feeding import Demand
        from trainstone.train.feeding import run_data_bench

        given = Demand(device="", devices=1, images_per_second=demand, how="given") if demand is not None else None
        return (yield from run_data_bench(life, counts, seconds, given))

    execute("data", config, flow, Options(out, as_json, quiet))


def parse_threads(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= 1024 for part in parts):
        raise ConfigError(f"--threads {text}: it takes numbers from 1 to 1024, such as 1,2,4")
    return sorted({int(part) for part in parts})
