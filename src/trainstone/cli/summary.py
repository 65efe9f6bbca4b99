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
from trainstone.cli.sparkline import draw_bars, draw_sparkline
from trainstone.cli.tables import NARROW_WIDTH, print_comparison, print_feeding, print_indented, print_sweep
from trainstone.errors import ResultError
from trainstone.results.breakdown import average_parts, shorten, tell_overhead
from trainstone.results.checks import describe_first_step
from trainstone.results.learning import (
    describe_metric,
    describe_split,
    find_best,
    format_epoch,
    format_metric,
    format_target,
    name_metric,
    total_time,
)
from trainstone.results.paired import tell_exchange
from trainstone.results.profiled import OperatorTime, Timeline
from trainstone.results.quality import Quality
from trainstone.results.repeated import list_repeated_facts, tell_run
from trainstone.results.schema import Finding, Result
from trainstone.results.series import StepSeries, sample_steps
from trainstone.results.summary import describe_interval, describe_rate, describe_repeat, describe_setting
from trainstone.text import printable, printable_lines
from trainstone.units import (
    format_bytes,
    format_count,
    format_decimal,
    format_interval,
    format_percent,
    format_rate,
    format_seconds,
)

STYLES = {"info": "cyan", "warning": "yellow", "error": "red bold"}
SEVERITIES = ("error", "warning", "info")
SPARKLINE_WIDTH = 36
MOST_OPERATORS, BAR_WIDTH = 6, 8
LEAST_SHARE = 0.0005
"""Of a step; a smaller part would be told as 0.0 %."""

Rows = Iterator[tuple[str, Text]]
Told = Iterator[tuple[str, str]]


def print_result(result: Result, path: Path) -> None:
    """Print a result on stdout; no colour when it is not a terminal."""
    console = Console(file=sys.stdout, highlight=False)
    console.print(Text(printable(f"trainstone {__version__} · {describe_setting(result)}"), style="dim"))
    console.print()
    console.print(Text(printable(result.verdict or f"no number: {result.status}"), style="bold"))
    console.print()
    width = min(SPARKLINE_WIDTH, console.width - 2)
    drawn = draw_steps(result, path, width, console.encoding)
    trained, profiled = (list_rows(result, width, console.encoding) for list_rows in (training_rows, profile_rows))
    print_rows(console, [*trained, *profiled, *speed_rows(result, drawn)])
    if result.data_bench:
        print_feeding(console, result.data_bench)
    if result.sweep:
        console.print()
        print_sweep(console, result.sweep)
    if result.comparison:
        console.print()
        print_comparison(console, result.comparison)
    print_findings(console, result.findings)
    console.print()
    print_paths(console, result, path)


def print_rows(console: Console, told: list[tuple[str, Text]]) -> None:
    """Names beside their values; above them where it is narrow."""
    if console.width < NARROW_WIDTH:
        for name, text in told:
            console.print(Text(printable(name), style="dim"))
            print_indented(console, text)
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in told:
        table.add_row(Text(printable(name)), text)
    print_indented(console, table)


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


def as_text(told: Told) -> Rows:
    """Make rows printable."""
    yield from ((name, Text(printable(text))) for name, text in told)


def speed_rows(result: Result, drawn_steps: Text | None = None) -> Rows:
    """Name and text of each line about the speed; what was not measured is absent."""
    yield from as_text(_rate_rows(result))
    yield from as_text(_step_rows(result))
    if drawn_steps:
        yield "steps", drawn_steps
    yield from as_text(_machine_rows(result))


def _rate_rows(result: Result) -> Told:
    throughput = result.throughput
    if throughput:
        interval = f"; {format_interval(throughput.ci95)}" if throughput.ci95 else ""
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


def _step_rows(result: Result) -> Told:
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


def _machine_rows(result: Result) -> Told:
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


def training_rows(result: Result, width: int, encoding: str | None) -> Rows:
    """Name and text of each line; nothing for a run that was no training."""
    quality = result.quality
    if quality is None:
        return
    if result.repeated is not None:
        yield from as_text((f"seed {run.seed}", tell_run(run, quality)) for run in result.repeated.runs)
        yield from as_text(iter(list_repeated_facts(result.repeated, quality)))
        return
    if quality.history and quality.value is not None:
        yield "quality", Text(printable(describe_quality(quality, quality.value)))
    if drawn := draw_evaluations(quality, width, encoding):
        yield "over epochs", drawn
    if quality.target is not None:
        yield "target", Text(printable(describe_target(quality)))
    if result.kind == "eval":
        return
    starts = f", in {quality.starts} starts" if quality.starts > 1 else ""
    yield "epochs", Text(f"{format_epoch(quality.epochs)}{starts}")
    if result.phases is not None:
        total = total_time(quality, result.phases)
        if split := describe_split(result.phases, total):
            yield "time", Text(f"{format_seconds(total)}: {split}")


def describe_quality(quality: Quality, value: float) -> str:
    """Return 92.4 % top-1 after epoch 8; 99.7 % top-5, loss 0.382."""
    best = find_best(quality)
    told = describe_metric(quality.metric, value, quality.target)
    if best is None:
        return told
    found = quality.history[best]
    beside = [
        f"{name_metric(name)} {format_metric(name, value)}"
        for name, value in found.metrics.items()
        if name != quality.metric
    ]
    after = f" after epoch {format_epoch(found.epoch)}" if found.step else ""
    return "; ".join([f"{told}{after}", *([", ".join(beside)] if beside else [])])


def describe_target(quality: Quality) -> str:
    """Return 90 % top-1, reached in 2 min 27 s."""
    assert quality.target is not None
    target = f"{format_target(quality.metric, quality.target)} {name_metric(quality.metric)}"
    seconds = quality.seconds_to_target
    return f"{target}, not reached" if seconds is None else f"{target}, reached in {format_seconds(seconds)}"


def draw_evaluations(quality: Quality, width: int, encoding: str | None) -> Text | None:
    """A sparkline of the metric, with its first and its best."""
    values = [found.metrics[quality.metric] for found in quality.history if quality.metric in found.metrics]
    if len(values) < 2:
        return None
    _, bars = draw_sparkline(values, width, encoding=encoding)
    first, best = (format_metric(quality.metric, value, quality.target) for value in (values[0], max(values)))
    return Text(printable(f"{bars}  first {first}, best {best}"))


def profile_rows(result: Result, width: int, encoding: str | None) -> Rows:
    """Name and text of each line about a profiled step; nothing for a run that was not profiled."""
    timeline = result.timeline
    if timeline is None:
        return
    yield from as_text(_part_rows(timeline))
    if timeline.operators:
        yield "operators", draw_operators(timeline.operators, width, encoding)
    yield from as_text(_device_rows(timeline))


def _part_rows(timeline: Timeline) -> Told:
    parts = sorted(average_parts(timeline), key=lambda part: -part.share)
    named = [f"{part.name} {format_percent(part.share)}" for part in parts if part.share >= LEAST_SHARE]
    if named:
        yield "where", ", ".join(named)
    if timeline.told and timeline.device != "cpu":  # of a CPU they say what stands above
        yield "gaps", " ".join(timeline.told)
    running = "operators run" if timeline.device == "cpu" else "kernels run"
    cores = f", on {timeline.cores_used:.3g} cores" if timeline.cores_used is not None else ""
    yield "busy", f"{running} for {format_percent(timeline.compute_utilisation)} of the time{cores}"
    if timeline.overhead is not None:
        yield "profiler", tell_overhead(timeline.overhead)


def _device_rows(timeline: Timeline) -> Told:
    if timeline.roofline is not None and timeline.roofline.told:
        yield "roofline", " ".join(timeline.roofline.told)
    if timeline.cores is not None and timeline.cores.pipes_percent:
        pipes = timeline.cores.pipes_percent.items()
        yield "cores", ", ".join(f"{name} {percent:.1f} %" for name, percent in pipes)
    if timeline.trace:
        yield "trace", f"{timeline.trace}, for https://ui.perfetto.dev"


def draw_operators(operators: list[OperatorTime], width: int, encoding: str | None) -> Text:
    """A line an operator: bar, share, name. Never wrapped: what does not fit is cut off at the end of the name."""
    shown = operators[:MOST_OPERATORS]
    bars = draw_bars([operator.share for operator in shown], BAR_WIDTH, encoding=encoding)
    longest = max(12, width)
    lines = [
        f"{bar:<{BAR_WIDTH}} {format_percent(operator.share):>6}  {shorten(operator.name, longest)}"
        for bar, operator in zip(bars, shown, strict=True)
    ]
    return Text("\n".join(lines), no_wrap=True, overflow="crop")


def print_findings(console: Console, findings: list[Finding]) -> None:
    """List findings, gravest first, each with what to do."""
    if findings:
        console.print()
    for found in sorted(findings, key=lambda f: SEVERITIES.index(f.severity)):
        message = printable_lines(found.message).replace("\n", "\n    ")
        severity = (f"{found.severity}: ", STYLES[found.severity])
        console.print(Text.assemble(severity, f"{message} [{printable(found.code)}]"))
        console.print(Padding(Text(printable_lines(found.hint), style="dim"), (0, 0, 0, 4), expand=False))
