"""The terminal summary of a result: the verdict, how it was got, the findings. It draws and judges nothing."""

import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trainstone import __version__
from trainstone.results.checks import describe_first_step
from trainstone.results.schema import Finding, Result
from trainstone.results.summary import describe_interval
from trainstone.units import format_bytes, format_decimal, format_percent, format_rate, format_seconds

STYLES = {"info": "cyan", "warning": "yellow", "error": "red bold"}


def print_result(result: Result, path: Path) -> None:
    """Print a result on stdout; no colour when it is not a terminal."""
    console = Console(file=sys.stdout, highlight=False)
    console.print(Text(f"trainstone {__version__} · {describe_setting(result)}", style="dim"))
    console.print()
    console.print(Text(result.verdict or f"no number: {result.status}", style="bold"))
    console.print()
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, told in rows(result):
        table.add_row(name, Text(told))
    console.print(Padding(table, (0, 0, 0, 2)))
    print_findings(console, result.findings)
    console.print()
    console.print(Text(f"result  {path / 'result.json'}"), soft_wrap=True)
    console.print(Text(f"repeat  trainstone bench {path / 'config.toml'}"), soft_wrap=True)


def describe_setting(result: Result) -> str:
    """One line: recipe, device, precision, batch, data."""
    train, engine = result.config.get("train", {}), result.config.get("engine", {})
    parts = [f"{result.recipe.name} v{result.recipe.version}"]
    if result.devices:
        threads = f", {engine.get('threads')} threads" if result.devices[0].label == "cpu" else ""
        parts.append(f"{result.devices[0].name}{threads}")
    parts += [str(train.get("precision")), f"batch {train.get('batch_size')}"]
    parts.append(f"{result.config.get('data', {}).get('source')} data")
    return " · ".join(parts)


def rows(result: Result) -> Iterator[tuple[str, str]]:
    """Name and text of each line; what was not measured is absent."""
    throughput = result.throughput
    if throughput:
        low_high = throughput.ci95
        interval = f"; {format_rate(low_high[0])} … {format_rate(low_high[1])}" if low_high else ""
        rate = f"{format_rate(throughput.images_per_second)} images/s"
        yield "throughput", f"{rate} {describe_interval(throughput)}{interval}"
    if result.points:
        yield "runs", f"{len(result.points)} in points/"
    yield from _step_rows(result)
    yield from _machine_rows(result)


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
    order = {"error": 0, "warning": 1, "info": 2}
    if findings:
        console.print()
    for found in sorted(findings, key=lambda f: order[f.severity]):
        console.print(Text.assemble((f"{found.severity}: ", STYLES[found.severity]), f"{found.message} [{found.code}]"))
        console.print(Padding(Text(found.hint, style="dim"), (0, 0, 0, 4)))
