"""Rows of the terminal summary that say where the time of a profiled step went. It draws and judges nothing."""

from collections.abc import Iterator

from rich.text import Text

from trainstone.cli.sparkline import draw_bars
from trainstone.results.breakdown import average_parts, shorten, tell_overhead
from trainstone.results.profiled import OperatorTime, Timeline
from trainstone.results.schema import Result
from trainstone.text import printable
from trainstone.units import format_percent

MOST_OPERATORS = 6
BAR_WIDTH = 8
LEAST_SHARE = 0.0005
"""Of a step; a smaller part would be told as 0.0 %."""


def profile_rows(result: Result, width: int, encoding: str | None) -> list[tuple[str, Text]]:
    """Name and text of each line; nothing for a run that was not profiled."""
    timeline = result.timeline
    if timeline is None:
        return []
    told = [(name, Text(printable(text))) for name, text in _tell(timeline)]
    drawn = [("operators", draw_operators(timeline.operators, width, encoding))] if timeline.operators else []
    after = [(name, Text(printable(text))) for name, text in _tell_after(timeline)]
    return [*told, *drawn, *after]


def _tell(timeline: Timeline) -> Iterator[tuple[str, str]]:
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


def _tell_after(timeline: Timeline) -> Iterator[tuple[str, str]]:
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
