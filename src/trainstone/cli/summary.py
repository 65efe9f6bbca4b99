"""The terminal summary of a result: the verdict, how it was got, the findings. It draws and judges nothing."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trainstone import __version__, units
from trainstone.cli import tables
from trainstone.cli.sparkline import draw_bars, draw_sparkline
from trainstone.errors import ResultError
from trainstone.results import learning
from trainstone.results.combine import list_repeated_facts
from trainstone.results.profiled import MIN_SHARE, OperatorTime, Timeline, average_parts, shorten, tell_overhead
from trainstone.results.quality import Quality
from trainstone.results.ratio import tell_exchange
from trainstone.results.schema import Finding, Result
from trainstone.results.series import sample_steps
from trainstone.results.summary import describe_interval, describe_rate, describe_repeat, describe_setting
from trainstone.results.tables import training_table
from trainstone.results.verdicts import describe_goal
from trainstone.text import printable, printable_lines

STYLES = {"info": "cyan", "warning": "yellow", "error": "red bold"}
SEVERITIES = ("error", "warning", "info")
SPARKLINE_WIDTH = 36
MOST_OPERATORS, BAR_WIDTH = 6, 8

Rows = Iterator[tuple[str, str | Text]]


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
    steps = [*_step_rows(result), *([("steps", drawn)] if drawn else [])]
    print_rows(console, [*trained, *profiled, *_rate_rows(result), *steps, *_machine_rows(result)])
    if result.repeated:
        console.print()
        tables.print_table(console, training_table(result.repeated, result.quality))
    if result.data_bench:
        tables.print_feeding(console, result.data_bench)
    if result.sweep:
        console.print()
        tables.print_sweep(console, result.sweep)
    if result.comparison:
        console.print()
        tables.print_comparison(console, result.comparison)
    print_findings(console, result.findings)
    console.print()
    print_paths(console, result, path)


def print_rows(console: Console, rows: Sequence[tuple[str, str | Text]]) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        shown = value if isinstance(value, Text) else Text(printable(value))
        if console.width < tables.NARROW_WIDTH:
            console.print(Text(printable(name), style="dim"))
            tables.print_indented(console, shown)
        table.add_row(Text(printable(name)), shown)
    if console.width >= tables.NARROW_WIDTH:
        tables.print_indented(console, table)


def draw_steps(result: Result, path: Path, width: int, encoding: str) -> Text | None:
    """A sparkline of the step times, warm-up dim and left of a bar, with the shortest and the longest."""
    file = min(path.glob("steps-rank*.csv"), default=None)
    try:
        series = sample_steps(file) if file else None
    except ResultError:  # a damaged file is no reason to hide the result
        series = None
    if series is None:
        return None
    steady_from = result.throughput.steady_from_step if result.throughput else 0
    cut = int(np.searchsorted(series.first_step, steady_from))
    warm_up, steady = draw_sparkline(series.mean_seconds, width - 1 if cut else width, cut, encoding=encoding)
    mark = "|" if warm_up and steady else ""
    ends = (series.low_seconds.min(), series.high_seconds.max())
    low, high = (units.format_seconds(float(seconds)) for seconds in ends)
    return Text.assemble((warm_up + mark, "dim"), steady, f"  min {low}, max {high}")


def print_paths(console: Console, result: Result, path: Path) -> None:
    """Name the files and the next command; never wrapped, so that they can be copied."""
    named = [("result", str(path / "result.json"))]
    if (path / "report.html").exists():
        named.append(("report", str(path / "report.html")))
    named.append(("repeat", describe_repeat(result, path)))
    for name, told in named:
        console.print(Text(f"{name}  {printable(told)}"), soft_wrap=True)


def _rate_rows(result: Result) -> Rows:
    throughput = result.throughput
    if throughput:
        interval = f"; {units.format_interval(throughput.ci95)}" if throughput.ci95 else ""
        rate = f"{units.format_rate(throughput.images_per_second)} images/s"
        yield "throughput", f"{rate} {describe_interval(throughput)}{interval}"
    loader = result.loader
    if loader and loader.synthetic_images_per_second:
        synthetic = f"synthetic {describe_rate(loader.synthetic_images_per_second, loader.synthetic_ci95)}"
        threads = units.format_count(loader.threads, "thread")
        alone = f"loader alone {describe_rate(loader.images_per_second, loader.ci95)}"
        yield "feeding", f"{synthetic}; {alone} images/s ({threads}, {loader.storage})"
    if loader and loader.skipped:
        times = units.format_count(loader.skipped, "time")
        yield "left out", f"{units.format_count(loader.skipped_pictures, 'damaged picture')}, {times} in all"
    if result.points and not result.repeated:
        yield "runs", f"{len(result.points)} in points/"


def _step_rows(result: Result) -> Rows:
    steps, throughput, phases = result.step_seconds, result.throughput, result.phases
    if steps:
        quantiles = {"median": steps.median, "p5": steps.p5, "p95": steps.p95, "p99": steps.p99}
        yield "step", ", ".join(f"{name} {units.format_seconds(value)}" for name, value in quantiles.items())
        times = f" ({steps.first / steps.median:,.1f} times a steady one)" if steps.median else ""
        yield "first step", f"{units.format_seconds(steps.first)}{times}"
    if throughput and not result.points:
        judged = "NOT steady" if throughput.trend_percent is not None else "too few to judge"
        steady = "steady" if throughput.steady else judged
        yield "window", f"{throughput.num_steps} steps from step {throughput.steady_from_step}, {steady}"
    if phases and phases.train_seconds and phases.data_wait_seconds is not None:
        yield "data wait", units.format_percent(phases.data_wait_seconds / phases.train_seconds)
    if phases and phases.forward_seconds and phases.backward_seconds and phases.optimizer_seconds:
        parts = (phases.forward_seconds, phases.backward_seconds, phases.optimizer_seconds)
        shares = (units.format_percent(seconds / sum(parts), 0) for seconds in parts)
        yield "phases", ", ".join(map(" ".join, zip(("forward", "backward", "optimiser"), shares, strict=True)))
    if phases and phases.compile_seconds is not None:
        yield "compile", units.format_seconds(phases.compile_seconds)
    if result.communication:
        yield "exchange", tell_exchange(result.communication)


def _machine_rows(result: Result) -> Rows:
    used = result.utilisation
    if used and used.mfu is not None and used.flops_per_image and used.peak_flops:
        work = f"{units.format_decimal(used.flops_per_image, 'FLOP')} an image"
        peak = f"{units.format_decimal(used.peak_flops, 'FLOP/s')} {used.peak_source}"
        yield "utilisation", f"{units.format_percent(used.mfu)} ({work}; peak {peak})"
    if result.memory and result.memory.peak_host_bytes:
        device = result.memory.peak_device_bytes
        on_device = f"{units.format_bytes(device)} on the device, " if device else ""
        host = f"{units.format_bytes(result.memory.peak_host_bytes)} host at most"
        yield "memory", f"{on_device}{host}; allocator: {result.memory.allocator}"
    if result.energy:
        energy = result.energy
        yield "energy", f"{energy.joules_per_image:.3g} J an image, {energy.average_watts:.3g} W ({energy.meter})"
    if result.noise:
        yield "noise", f"grade {result.noise.grade}: {'; '.join(result.noise.reasons) or 'quiet'}"


def training_rows(result: Result, width: int, encoding: str | None) -> Rows:
    quality = result.quality
    if quality is None:
        return
    if result.repeated is not None:
        yield from list_repeated_facts(result.repeated, quality)
        return
    if quality.history and quality.value is not None:
        yield "quality", describe_quality(quality, quality.value)
    if drawn := draw_evaluations(quality, width, encoding):
        yield "over epochs", drawn
    if quality.target is not None:
        seconds = quality.seconds_to_target
        reached = "not reached" if seconds is None else f"reached in {units.format_seconds(seconds)}"
        yield "target", f"{describe_goal(quality)}, {reached}"
    if result.kind == "eval":
        return
    starts = f", in {quality.starts} starts" if quality.starts > 1 else ""
    yield "epochs", f"{learning.format_epoch(quality.epochs)}{starts}"
    if result.phases is not None:
        total = learning.total_time(quality, result.phases)
        if split := learning.describe_split(result.phases, total):
            yield "time", f"{units.format_seconds(total)}: {split}"


def describe_quality(quality: Quality, value: float) -> str:
    """Return 92.4 % top-1 after epoch 8; 99.7 % top-5, loss 0.382."""
    best = learning.find_best(quality)
    told = learning.describe_metric(quality.metric, value, quality.target)
    if best is None:
        return told
    found = quality.history[best]
    beside = [
        f"{learning.name_metric(name)} {learning.format_metric(name, value)}"
        for name, value in found.metrics.items()
        if name != quality.metric
    ]
    after = f" after epoch {learning.format_epoch(found.epoch)}" if found.step else ""
    return "; ".join([f"{told}{after}", *([", ".join(beside)] if beside else [])])


def draw_evaluations(quality: Quality, width: int, encoding: str | None) -> str | None:
    values = [found.metrics[quality.metric] for found in quality.history if quality.metric in found.metrics]
    if len(values) < 2:
        return None
    _, bars = draw_sparkline(values, width, encoding=encoding)
    first, best = (learning.format_metric(quality.metric, value, quality.target) for value in (values[0], max(values)))
    return f"{bars}  first {first}, best {best}"


def profile_rows(result: Result, width: int, encoding: str | None) -> Rows:
    timeline = result.timeline
    if timeline is None:
        return
    yield from _part_rows(timeline)
    if timeline.operators:
        yield "operators", draw_operators(timeline.operators, width, encoding)
    yield from _device_rows(timeline)


def _part_rows(timeline: Timeline) -> Rows:
    parts = sorted(average_parts(timeline), key=lambda part: -part.share)
    named = [f"{part.name} {units.format_percent(part.share)}" for part in parts if part.share >= MIN_SHARE]
    if named:
        yield "where", ", ".join(named)
    if timeline.told and timeline.device != "cpu":  # of a CPU they say what stands above
        yield "gaps", " ".join(timeline.told)
    running = "operators run" if timeline.device == "cpu" else "kernels run"
    cores = f", on {timeline.cores_used:.3g} cores" if timeline.cores_used is not None else ""
    yield "busy", f"{running} for {units.format_percent(timeline.compute_utilisation)} of the time{cores}"
    if timeline.overhead is not None:
        yield "profiler", tell_overhead(timeline.overhead)


def _device_rows(timeline: Timeline) -> Rows:
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
        f"{bar:<{BAR_WIDTH}} {units.format_percent(operator.share):>6}  {shorten(operator.name, longest)}"
        for bar, operator in zip(bars, shown, strict=True)
    ]
    return Text("\n".join(lines), no_wrap=True, overflow="crop")


def print_findings(console: Console, findings: list[Finding]) -> None:
    if findings:
        console.print()
    for found in sorted(findings, key=lambda f: SEVERITIES.index(f.severity)):
        message = printable_lines(found.message).replace("\n", "\n    ")
        severity = (f"{found.severity}: ", STYLES[found.severity])
        console.print(Text.assemble(severity, f"{message} [{printable(found.code)}]"))
        console.print(Padding(Text(printable_lines(found.hint), style="dim"), (0, 0, 0, 4), expand=False))
