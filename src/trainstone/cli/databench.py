"""trainstone data bench: how fast a data set feeds, by threads and stages, and how many cores devices would need."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainstone.cli import options
from trainstone.errors import ConfigError

if TYPE_CHECKING:
    from trainstone.config.schema import Config
    from trainstone.results.feeding import Feeding


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
    page: Annotated[Path | None, typer.Option("--page", help="Write a page with charts to this file.")] = None,
    seed: options.Seed = None,
    device: options.DeviceName = None,
    as_json: options.Json = False,
    quiet: options.Quiet = 0,
) -> None:
    """Measure how fast pictures come out of a data set, by threads and stages; say how many cores devices need."""
    from trainstone.cli.feeding import tell_feeding
    from trainstone.cli.output import print_json
    from trainstone.cli.preparing import interruptible, start_work
    from trainstone.config.load import load_config
    from trainstone.machine.ranks import read_rank

    start_work(quiet)
    if read_rank().number > 0:
        return  # one process measures: others would take its cores
    flags = options.collect_flags(seed=seed, device=device, data=path)
    config = load_config(recipe, settings=settings, flags=flags)
    counts = parse_threads(threads)
    if demand is not None and not math.isfinite(demand):
        raise ConfigError(f"--demand {demand}: it takes a number of images a second")
    if page is not None and not page.absolute().parent.is_dir():
        raise ConfigError(f"--page {page}: there is no folder {page.parent}")
    with interruptible(""):
        feeding = run_bench(config, counts, seconds, demand, quiet=bool(quiet))
    if page is not None:
        from trainstone.report.feeding import write_feeding_page
        from trainstone.report.vega import Scripts

        with Scripts() as scripts:
            write_feeding_page(feeding, page, scripts)
    if as_json:
        print_json(feeding.model_dump(mode="json", exclude_none=True))
        return
    tell_feeding(feeding, page)


def parse_threads(text: str | None) -> list[int] | None:
    """Return numbers of threads: 1,2,4."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= 1024 for part in parts):
        raise ConfigError(f"--threads {text}: it takes numbers from 1 to 1024, such as 1,2,4")
    return sorted({int(part) for part in parts})


def run_bench(
    config: "Config", counts: list[int] | None, seconds: float, demand: float | None, *, quiet: bool
) -> "Feeding":
    """Measure the loader, then the devices it would feed unless told what they take."""
    from trainstone.cli.progress import ProgressLine
    from trainstone.results.feeding import Demand
    from trainstone.results.progress import Progress

    with ProgressLine(quiet=quiet) as line:
        line.show(Progress("loading torch"))
        from trainstone.train.databench import measure_feeding

        asked = None
        if demand is not None:
            asked = Demand(device="", devices=1, images_per_second=demand, how="given")
        going = measure_feeding(config, counts, seconds, asked)
        while True:
            try:
                line.show(next(going))
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
