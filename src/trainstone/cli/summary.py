"""The terminal summary of a result: the verdict, how it was got, the findings. It draws and judges nothing."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trainstone import __version__
from trainstone.cli.comparison import print_comparison
from trainstone.cli.feeding import NARROW_WIDTH, print_feeding
from trainstone.cli.learning import learning_rows
from trainstone.cli.profiled import profile_rows
from trainstone.cli.sparkline import draw_sparkline
from trainstone.cli.sweeping import print_sweep
from trainstone.errors import ResultError
from trainstone.results.checks import describe_first_step
from trainstone.results.exchange import tell_exchange
from trainstone.results.schema import Finding, Result
from trainstone.results.series import StepSeries, sample_steps
from trainstone.results.summary import describe_interval, describe_rate, describe_repeat, describe_setting
from trainstone.text import printable, printable_lines
from trainstone.units import format_bytes, format_count, format_decimal, format_percent, format_rate, format_seconds

STYLES = {"info": "cyan", "warning": "yellow", "error": "red bold"}
ORDER = {"error": 0, "warning": 1, "info": 2}
SPARKLINE_WIDTH = 36


def print_result(result: Result, path: Path) -> None:
    """Print a result on stdout; no colour when it is not a terminal."""
    console = Console(file=sys.stdout, highlight=False)
    console.print(Text(printable(f"trainstone {__version__} · {describe_setting(result)}"), style="dim"))
    console.print()
    console.print(Text(printable(result.verdict or f"no number: {result.status}"), style="bold"))
    console.print()
    width = min(SPARKLINE_WIDTH, console.width - 2)
    drawn = draw_steps(result, path, width, console.encoding)
    learned, profiled = (told(result, width, console.encoding) for told in (learning_rows, profile_rows))
    print_rows(console, [*learned, *profiled, *rows(result, drawn)])
    if result.data_bench:
        print_feeding(console, result.data_bench)
    if result.sweep:
        console.print()
        print_sweep(console, result.sweep)
    if result.comparison:
        console.print()
        print_comparison(console, result.comparison, verdict=False)
    print_findings(console, result.findings)
    console.print()
    print_paths(console, result, path)


def print_rows(console: Console, told: list[tuple[str, Text]]) -> None:
    """Names beside their values; above them where it is narrow."""
    if console.width < NARROW_WIDTH:
        for name, text in told:
            console.print(Text(name, style="dim"))
            console.print(Padding(text, (0, 0, 0, 2), expand=False))
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in told:
        table.add_row(name, text)
    console.print(Padding(table, (0, 0, 0, 2), expand=False))


def draw_steps(result: Result, path: Path, width: int, encoding: str) -> Text | None:
    """A sparkline of the step times, warm-up dim and left of a bar, with the shortest and the longest."""
    series = read_series(path)
    if series is None or not np.isfinite(series.mean_seconds).all():
        return None
    steady_from = result.throughput.steady_from_step if result.throughput else 0
    cut = int(np.searchsorted(series.first_step, steady_from))
    warm_up, steady = draw_sparkline(series.mean_seconds, width - 1 if cut else width, cut, encoding=encoding)
    mark = "|" if warm_up and steady else ""
    low, high = format_seconds(float(series.low_seconds.min())), format_seconds(float(series.high_seconds.max()))
    return Text.assemble((warm_up + mark, "dim"), steady, f"  min {low}, max {high}")


def read_series(path: Path) -> StepSeries | None:
    """The first rank's steps; a file that cannot be read is no reason to keep the result back."""
    file = min(path.glob("steps-rank*.csv"), default=None)
    try:
        return sample_steps(file) if file else None
    except ResultError:
        return None


def print_paths(console: Console, result: Result, path: Path) -> None:
    """Name the files and the next command; never wrapped, so that they can be copied."""
    named = [("result", str(path / "result.json"))]
    if (path / "report.html").exists():
        named.append(("report", str(path / "report.html")))
    named.append(("repeat", describe_repeat(result, path)))
    for name, told in named:
        console.print(Text(f"{name}  {printable(told)}"), soft_wrap=True)


def rows(result: Result, drawn_steps: Text | None = None) -> Iterator[tuple[str, Text]]:
    """Name and text of each line; what was not measured is absent."""
    told = [*_rate_rows(result), *_step_rows(result)]
    yield from ((name, Text(printable(text))) for name, text in told)
    if drawn_steps:
        yield "steps", drawn_steps
    yield from ((name, Text(printable(text))) for name, text in _machine_rows(result))


def _rate_rows(result: Result) -> Iterator[tuple[str, str]]:
    throughput = result.throughput
    if throughput:
        low_high = throughput.ci95
        interval = f"; {format_rate(low_high[0])} … {format_rate(low_high[1])}" if low_high else ""
        rate = f"{format_rate(throughput.images_per_second)} images/s"
        yield "throughput", f"{rate} {describe_interval(throughput)}{interval}"
    loader = result.loader
    if loader and loader.synthetic_images_per_second:
        synthetic = f"synthetic {describe_rate(loader.synthetic_images_per_second, loader.synthetic_ci95)}"
        alone = f"loader alone {describe_rate(loader.images_per_second, loader.ci95)}"
        yield "feeding", f"{synthetic}; {alone} images/s ({format_count(loader.threads, 'thread')}, {loader.storage})"
    if loader and loader.skipped:
        times = format_count(loader.skipped, "time")
        yield "left out", f"{format_count(loader.skipped_pictures, 'damaged picture')}, {times} in all"
    if result.points and not result.repeated:
        yield "runs", f"{len(result.points)} in points/"


def _step_rows(result: Result) -> Iterator[tuple[str, str]]:
    steps, throughput, phases = result.step_seconds, result.throughput, result.phases
    if steps:
        tails = f"p5 {format_seconds(steps.p5)}, p95 {format_seconds(steps.p95)}, p99 {format_seconds(steps.p99)}"
        yield "step", f"median {format_seconds(steps.median)}, {tails}"
        yield "first step", describe_first_step(steps)
    if throughput and not result.points:
        judged = "NOT steady" if throughput.trend_percent is not None else "too few to judge"
        steady = "steady" if throughput.steady else judged
        yield "window", f"{throughput.num_steps} steps from step {throughput.steady_from_step}, {steady}"
    if phases and phases.train_seconds and phases.data_wait_seconds is not None:
        yield "data wait", format_percent(phases.data_wait_seconds / phases.train_seconds)
    if phases and phases.forward_seconds and phases.backward_seconds and phases.optimizer_seconds:
        split = {
            "forward": phases.forward_seconds,
            "backward": phases.backward_seconds,
            "optimiser": phases.optimizer_seconds,
        }
        total = sum(split.values())
        yield (
            "phases",
            ", ".join(f"{name} {format_percent(seconds / total, 0)}" for name, seconds in split.items()),
        )
    if phases and phases.compile_seconds is not None:
        yield "compile", format_seconds(phases.compile_seconds)
    if result.communication:
        yield "exchange", tell_exchange(result.communication)


def _machine_rows(result: Result) -> Iterator[tuple[str, str]]:
    used = result.utilisation
    if used and used.mfu is not None and used.flops_per_image and used.peak_flops:
        work = f"{format_decimal(used.flops_per_image, 'FLOP')} an image"
        peak = f"{format_decimal(used.peak_flops, 'FLOP/s')} {used.peak_source}"
        yield "utilisation", f"{format_percent(used.mfu)} ({work}; peak {peak})"
    if result.memory and result.memory.peak_host_bytes:
        device = result.memory.peak_device_bytes
        on_device = f"{format_bytes(device)} on the device, " if device else ""
        host = f"{format_bytes(result.memory.peak_host_bytes)} host at most"
        yield "memory", f"{on_device}{host}; allocator: {result.memory.allocator}"
    if result.energy:
        energy = result.energy
        yield (
            "energy",
            f"{energy.joules_per_image:.3g} J an image, {energy.average_watts:.3g} W ({energy.meter})",
        )
    if result.noise:
        yield "noise", f"grade {result.noise.grade}: {'; '.join(result.noise.reasons) or 'quiet'}"


def print_findings(console: Console, findings: list[Finding]) -> None:
    """List findings, gravest first, each with what to do."""
    if findings:
        console.print()
    for found in sorted(findings, key=lambda f: ORDER[f.severity]):
        message = printable_lines(found.message).replace("\n", "\n    ")
        severity = (f"{found.severity}: ", STYLES[found.severity])
        console.print(Text.assemble(severity, f"{message} [{printable(found.code)}]"))
        console.print(Padding(Text(printable_lines(found.hint), style="dim"), (0, 0, 0, 4), expand=False))
