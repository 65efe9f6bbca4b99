"""Print the summary of a result on the terminal: verdict, measurements, tables, findings, files.

The numbers and tables come from results/; this module only formats them for the width of the terminal.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from trainstone import __version__, units
from trainstone.cli.render.sparkline import draw_bars, draw_sparkline
from trainstone.cli.render.tables import Rows, print_lines, print_rows, print_table, shorten_cell
from trainstone.errors import ResultError
from trainstone.results import tables, training
from trainstone.results.combine import list_repeated_facts
from trainstone.results.interleaved import describe_gradient_sync
from trainstone.results.loader_speed import describe_cores, describe_covers
from trainstone.results.published import is_published
from trainstone.results.schema.data_bench import DataBenchResult
from trainstone.results.schema.run import Comparison, Result
from trainstone.results.schema.sweep import Sweep
from trainstone.results.series import sample_steps
from trainstone.results.step_parts import MIN_SHARE, average_parts, describe_overhead, shorten
from trainstone.results.step_summary import describe_interval, describe_rate, describe_setting, format_repeat_command
from trainstone.results.verdicts import describe_target
from trainstone.text import printable, printable_lines

SEVERITIES = {"error": "red bold", "warning": "yellow", "info": "cyan"}
"""Severities of findings in printing order, with their styles."""
MAX_NOTED = 5
"""With more published figures than this, only --json and --page show their sources and differences."""
LONGEST_NOTE = 32
SPARKLINE_WIDTH = 36
MOST_OPERATORS, OPERATOR_BAR_WIDTH = 6, 8


def print_result(result: Result, path: Path) -> None:
    """Print a result on stdout, with colour on a terminal."""
    console = Console(file=sys.stdout, highlight=False)
    print_lines(console, [f"trainstone {__version__} · {describe_setting(result)}"], "dim")
    console.print()
    print_lines(console, [result.verdict or f"no result: {result.status}"], "bold")
    console.print()
    width = min(SPARKLINE_WIDTH, console.width - 2)
    trained, profiled = (list_rows(result, width, console.encoding) for list_rows in (training_rows, profile_rows))
    steps = step_chart_rows(result, path, width, console.encoding)
    print_rows(console, [*trained, *profiled, *_rate_rows(result), *_step_rows(result), *steps, *_machine_rows(result)])
    if result.repeated:
        console.print()
        print_table(console, tables.build_training_table(result.repeated, result.quality))
    if result.data_bench:
        print_data_bench(console, result.data_bench)
    if result.sweep:
        console.print()
        print_sweep(console, result.sweep)
    if result.comparison:
        console.print()
        print_comparison(console, result.comparison)
    if result.findings:
        console.print()
    for found in sorted(result.findings, key=lambda f: list(SEVERITIES).index(f.severity)):
        message = printable_lines(found.message).replace("\n", "\n    ")
        severity = (f"{found.severity}: ", SEVERITIES[found.severity])
        console.print(Text.assemble(severity, f"{message} [{printable(found.code)}]"))
        console.print(Padding(Text(printable_lines(found.hint), style="dim"), (0, 0, 0, 4), expand=False))
    console.print()
    report = [f"report  {path / 'report.html'}"] if (path / "report.html").exists() else []
    named = [f"result  {path / 'result.json'}", *report, f"repeat  {format_repeat_command(result, path)}"]
    print_lines(console, named, wrap=False)  # unwrapped, so that they can be copied


def step_chart_rows(result: Result, path: Path, width: int, encoding: str) -> Rows:
    """Yield a sparkline of the step times, with dim warm-up steps left of a bar, and the minimum and maximum."""
    file = min(path.glob("steps-rank*.csv"), default=None)
    try:
        series = sample_steps(file) if file else None
    except ResultError:  # print the result even if this file is damaged
        series = None
    if series is None:
        return
    steady_from = result.throughput.steady_from_step if result.throughput else 0
    cut = int(np.searchsorted(series.first_step, steady_from))
    warm_up, steady = draw_sparkline(series.mean_seconds, width - 1 if cut else width, cut, encoding=encoding)
    mark = "|" if warm_up and steady else ""
    low, high = (units.format_seconds(float(end)) for end in (series.low_seconds.min(), series.high_seconds.max()))
    yield "steps", Text.assemble((warm_up + mark, "dim"), steady, f"  min {low}, max {high}")


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
        yield "data loader", f"{synthetic}; {alone} images/s ({threads}, {loader.storage})"
    if loader and loader.skipped:
        times = units.format_count(loader.skipped, "time")
        yield "skipped", f"{units.format_count(loader.skipped_images, 'damaged image')}, {times} in total"
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
        unsteady = "NOT steady" if throughput.trend_percent is not None else "too few to say whether they are steady"
        steady = "steady" if throughput.steady else unsteady
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
        yield "gradient sync", describe_gradient_sync(result.communication)


def _machine_rows(result: Result) -> Rows:
    if result.trials:
        found = (result.trials.describe_precisions(), result.trials.describe_batches(), result.trials.taken)
        yield "trials", "; ".join(filter(None, found))
    used = result.utilisation
    if used and used.mfu is not None and used.flops_per_image and used.peak_flops:
        work = f"{units.format_decimal(used.flops_per_image, 'FLOP')} per image"
        peak = f"{units.format_decimal(used.peak_flops, 'FLOP/s')} {used.peak_source}"
        yield "utilisation", f"{units.format_percent(used.mfu)} ({work}; peak {peak})"
    if result.memory and result.memory.peak_host_bytes:
        device = result.memory.peak_device_bytes
        on_device = f"{units.format_bytes(device)} on the device, " if device else ""
        host = f"{units.format_bytes(result.memory.peak_host_bytes)} host"
        yield "memory", f"peak {on_device}{host}; allocator: {result.memory.allocator}"
    if result.energy:
        energy = result.energy
        yield "energy", f"{energy.joules_per_image:.3g} J per image, {energy.average_watts:.3g} W ({energy.meter})"
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
        # 92.4 % top-1 after epoch 8; 99.7 % top-5, loss 0.382
        message = training.describe_metric(quality.metric, quality.value, quality.target)
        if (best := training.find_best(quality)) is not None:
            found = quality.history[best]
            others = [name for name in found.metrics if name != quality.metric]
            beside = (f"{training.name_metric(n)} {training.format_metric(n, found.metrics[n])}" for n in others)
            message += f" after epoch {training.format_epoch(found.epoch)}" if found.step else ""
            message += f"; {', '.join(beside)}" if others else ""
        yield "quality", message
    values = [found.metrics[quality.metric] for found in quality.history if quality.metric in found.metrics]
    if len(values) >= 2:
        _, bars = draw_sparkline(values, width, encoding=encoding)
        ends = (training.format_metric(quality.metric, value, quality.target) for value in (values[0], max(values)))
        yield "over epochs", "{}  first {}, best {}".format(bars, *ends)
    if quality.target is not None:
        seconds = quality.seconds_to_target
        reached = "not reached" if seconds is None else f"reached in {units.format_seconds(seconds)}"
        yield "target", f"{describe_target(quality)}, {reached}"
    if result.kind == "eval":
        return
    starts = f", in {quality.starts} starts" if quality.starts > 1 else ""
    yield "epochs", f"{training.format_epoch(quality.epochs)}{starts}"
    if result.phases is not None:
        total = training.total_time(quality, result.phases)
        if split := training.describe_split(result.phases, total):
            yield "time", f"{units.format_seconds(total)}: {split}"


def profile_rows(result: Result, width: int, encoding: str | None) -> Rows:
    timeline = result.timeline
    if timeline is None:
        return
    parts = sorted(average_parts(timeline), key=lambda part: -part.share)
    named = [f"{part.name} {units.format_percent(part.share)}" for part in parts if part.share >= MIN_SHARE]
    if named:
        yield "breakdown", ", ".join(named)
    if timeline.sentences and timeline.device != "cpu":  # on a CPU they repeat the breakdown
        yield "gaps", " ".join(timeline.sentences)
    running = "operators run" if timeline.device == "cpu" else "kernels run"
    cores = f", on {timeline.cores_used:.3g} cores" if timeline.cores_used is not None else ""
    yield "busy", f"{running} for {units.format_percent(timeline.compute_utilisation)} of the time{cores}"
    if timeline.overhead is not None:
        yield "profiler", describe_overhead(timeline.overhead)
    if shown := timeline.operators[:MOST_OPERATORS]:
        bars = draw_bars([operator.share for operator in shown], OPERATOR_BAR_WIDTH, encoding=encoding)
        lines = [
            f"{bar:<{OPERATOR_BAR_WIDTH}} {units.format_percent(operator.share):>6}  "
            + shorten(operator.name, max(12, width))
            for bar, operator in zip(bars, shown, strict=True)
        ]
        # Long names are cut, not wrapped.
        yield "operators", Text("\n".join(lines), no_wrap=True, overflow="crop")
    if timeline.roofline is not None and timeline.roofline.sentences:
        yield "roofline", " ".join(timeline.roofline.sentences)
    if timeline.cores is not None and timeline.cores.pipes_percent:
        pipes = timeline.cores.pipes_percent.items()
        yield "SM pipes", ", ".join(f"{name} {percent:.1f} %" for name, percent in pipes)
    if timeline.trace:
        yield "trace", f"{timeline.trace}; open it at https://ui.perfetto.dev"


def print_comparison(console: Console, comparison: Comparison) -> None:
    published = [row for row in comparison.rows if is_published(row)]
    measured = [row for row in comparison.rows if not is_published(row)]
    if published:
        print_table(console, tables.build_published_table(published))
        few = len(published) <= MAX_NOTED
        more = "for sources and differences, use --json, --page FILE, or --to with one name"
        print_lines(console, tables.list_comparison_notes(published) if few else [more], "dim")
    if measured:
        print_table(console, tables.build_comparison_table(measured))
        print_lines(console, tables.list_comparison_notes(measured), "dim")
    if comparison.geometric_mean is not None:
        print_lines(console, [f"geometric mean of A / B: {units.format_ratio(comparison.geometric_mean)}"], "dim")


def print_sweep(console: Console, sweep: Sweep) -> None:
    """Print the points measured so far, with the knee in bold, then their explanation."""
    if sweep.rows:
        styles = ["bold" if tables.is_knee(sweep, row) else "" for row in sweep.rows]
        lengths = [row.rate for row in sweep.rows]
        table = tables.build_sweep_table(sweep)
        table = replace(table, rows=[[shorten_cell(cell, LONGEST_NOTE) for cell in row] for row in table.rows])
        print_table(console, table, lengths=lengths, styles=styles)
    if sweep.sentences:
        console.print()
    print_lines(console, sweep.sentences)


def print_data_bench(console: Console, bench: DataBenchResult) -> None:
    """Print a `data bench` result: data set, thread counts, stages, cores needed for training."""
    images = f"{units.format_count(bench.images, 'image')} in {bench.split}"
    print_lines(console, [f"{bench.path}: {images}, {bench.storage}"], "bold")
    made = f"{bench.image_size} x {bench.image_size}, batches of {bench.batch_size:,}"
    lines = [
        f"{units.format_bytes(bench.image_bytes)} per image; {bench.transform}; to {made}",
        f"decoder: {bench.decode}; {bench.cpu}, {units.format_count(bench.cores, 'core')}",
    ]
    if bench.skipped:
        lines.append(f"skipped: {units.format_count(bench.skipped, 'image')} that could not be used")
    print_lines(console, lines, "dim")
    console.print()
    print_table(console, tables.build_thread_table(bench), lengths=[point.images_per_second for point in bench.points])
    print_lines(console, describe_covers(bench), "dim")
    if bench.stages:
        console.print()
        lengths = [*(stage.seconds_per_image for stage in bench.stages), 0.0]
        print_table(console, tables.build_stage_table(bench), lengths=lengths)
    console.print()
    print_lines(console, [describe_cores(bench)])
