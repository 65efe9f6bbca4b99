"""What a profile shows: where a step goes, operators, kernels, threads and streams, and the pipes of the cores."""

from collections.abc import Callable, Sequence
from typing import Any

from trainstone.report import charts
from trainstone.report.blocks import Block, Code, Facts, Links, Prose, Section
from trainstone.report.charts import BLUE, CELL_LENGTH, GREY, ORANGE, PURPLE, RED, TEAL
from trainstone.report.view import RunView
from trainstone.results.profiled import (
    ADDED_UP,
    BESIDE,
    PARTS,
    Timeline,
    average_parts,
    format_calls,
    mean_step,
    shorten,
    tell_overhead,
)
from trainstone.results.series import choose_evenly
from trainstone.results.tables import Table, keyed_table
from trainstone.units import format_count, format_percent, format_seconds

MEANINGS = {
    "compute": "operators run",
    "optimiser": "its operators run",
    "communication": "not hidden",
    "copies": "memory moves",
    "waiting for data": "host waits for its batch",
    "synchronising": "host waits for the device",
    "launching": "host gives out work",
    "Python": "host is between operators",
    "unaccounted": "none of these",
}
"""Short: a phone has little room in a table."""
HOW_TO_OPEN = "the trace: open it as it is at https://ui.perfetto.dev, or in Chrome at chrome://tracing"
MOST_BARS = 12
MOST_STEPS = 30

# The page has six colours, a step nine parts: three more that stand out from both papers by 3 : 1 (WCAG 2.2).
OLIVE, PINK, BROWN = "#8a8420", "#cf4f96", "#94714f"
COLOURS = dict(zip(PARTS, (BLUE, TEAL, PURPLE, OLIVE, ORANGE, RED, PINK, BROWN, GREY), strict=True))
"""Of each part, the same in every run."""
KERNEL_COLOURS = {"compute": BLUE, "communication": PURPLE, "copy": OLIVE}

Cells = list[tuple[str, float | str]]
"""Each cell's text, and what it is sorted by."""


def build_breakdown(view: RunView) -> Section | None:
    timeline = view.result.timeline
    if timeline is None or not timeline.steps:
        return None
    parts = average_parts(timeline)
    shown = [timeline.steps[place] for place in choose_evenly(len(timeline.steps), MOST_STEPS)]
    seconds = {f"step {step.step}": {part.name: getattr(step, PARTS[part.name]) for part in parts} for step in shown}
    blocks: list[Block] = [charts.stacked("breakdown", "Where each profiled step goes", seconds, COLOURS)]
    if timeline.told:
        blocks.append(Prose(" ".join(timeline.told)))
    columns, numeric = ["part", "a step", "share", "when"], [False, True, True, False]
    cells = [
        [part.name, format_seconds(part.seconds), format_percent(part.share), MEANINGS[part.name]] for part in parts
    ]
    blocks.append(Table(columns, cells, caption="Parts of a step; they add up", numeric=numeric))
    blocks.append(Facts(list_facts(timeline)))
    beside = [
        [part.name, format_seconds(part.seconds), format_percent(part.share)]
        for part in average_parts(timeline, BESIDE)
        if timeline.device != "cpu" or part.name != ADDED_UP
    ]
    if beside:
        blocks.append(Table(columns[:3], beside, caption="What lies across the parts", numeric=numeric[:3]))
    blocks += link_trace(view, timeline)
    rank = f", rank {timeline.rank}" if timeline.rank is not None else ""
    count, mean = format_count(len(timeline.steps), "profiled step"), format_seconds(mean_step(timeline))
    lead = f"{count}, {mean} each on average; device {timeline.device}{rank}."
    return Section("breakdown", "Where a step goes", blocks, lead)


def list_facts(timeline: Timeline) -> list[tuple[str, str]]:
    running = "an operator runs" if timeline.device == "cpu" else "a kernel runs"
    rows = [
        ("compute utilisation", f"{format_percent(timeline.compute_utilisation)}: {running}"),
        ("time accounted for", format_percent(timeline.accounted_share)),
    ]
    if timeline.cores_used is not None:
        rows.append(("cores at work", f"{timeline.cores_used:.3g} on average"))
    if timeline.overhead is not None:
        rows.append(("cost of profiling", tell_overhead(timeline.overhead)))
    if timeline.events:
        rows.append(("events in the trace", f"{timeline.events:,}"))
    return rows


def link_trace(view: RunView, timeline: Timeline) -> list[Block]:
    """A link where the file is there, within the run folder; else its name."""
    if not timeline.trace:
        return []
    file = view.find_inside(timeline.trace)
    if file is not None and file.is_file():
        return [Links([(view.address(timeline.trace), HOW_TO_OPEN)])]
    return [Facts([("trace", f"{timeline.trace}, which is not in the run folder")])]


def tabulate(columns: dict[str, bool], found: Sequence[Any], fill: Callable[[Any], Cells], caption: str) -> list[Block]:
    """A table that sorts by the numbers behind its cells; names that are cut stand whole below it, folded away."""
    cells = [[(shorten(one.name, CELL_LENGTH), one.name), *fill(one)] for one in found]
    table = keyed_table(columns, cells, caption)
    long = [one.name for one in found if len(one.name) > CELL_LENGTH]
    what = f"Whole names of the {next(iter(columns))}s"
    return [table, *([Code(what, "\n".join(long), folded=True)] if long else [])]


def build_operators(view: RunView) -> Section | None:
    timeline = view.result.timeline
    if timeline is None or not timeline.operators:
        return None
    found, steps = timeline.operators, max(1, len(timeline.steps))
    on_device = any(operator.device_seconds is not None for operator in found)

    def fill(operator: Any) -> Cells:
        spent = [operator.self_seconds, operator.total_seconds, *([operator.device_seconds] if on_device else [])]
        times: Cells = [("", "") if one is None else (format_seconds(one / steps), one) for one in spent]
        calls = (format_calls(operator.calls, steps), operator.calls)
        return [calls, *times, (format_percent(operator.share), operator.share)]

    columns = {"operator": False, "calls": True, "own time": True, "with callees": True}
    columns |= {"on the device": True} if on_device else {}
    what = "time on the device" if on_device else "own time on the host, without the operators it calls"
    shares = [(operator.name, operator.share, "") for operator in found[:MOST_BARS]]
    blocks = [
        charts.share_bars("operators", "Operators by their time", "% of the profiled steps", shares, {"": BLUE}),
        *tabulate(columns | {"share": True}, found, fill, "Calls and times a step"),
    ]
    lead = f"The {format_count(len(found), 'operator')} with most time; shares are of the profiled steps, by {what}."
    return Section("operators", "Operators", blocks, lead)


def build_kernels(view: RunView) -> Section | None:
    timeline = view.result.timeline
    if timeline is None or not timeline.kernels:
        return None
    found, steps = timeline.kernels, max(1, len(timeline.steps))

    def fill(kernel: Any) -> Cells:
        calls = (format_calls(kernel.calls, steps), kernel.calls)
        time = (format_seconds(kernel.seconds / steps), kernel.seconds)
        return [(kernel.kind, kernel.kind), calls, time, (format_percent(kernel.share), kernel.share)]

    columns = {"kernel": False, "kind": False, "calls": True, "time": True, "share": True}
    shares = [(kernel.name, kernel.share, kernel.kind) for kernel in found[:MOST_BARS]]
    drawn = charts.share_bars("kernels", "Kernels by time", "% of the profiled steps", shares, KERNEL_COLOURS)
    lead = f"The {format_count(len(found), 'kernel')} with most time on the device; shares are of the profiled steps."
    return Section("kernels", "Kernels", [drawn, *tabulate(columns, found, fill, "Calls and times a step")], lead)


def build_lanes(view: RunView) -> Section | None:
    timeline = view.result.timeline
    if timeline is None or not timeline.lanes:
        return None
    steps, whole = max(1, len(timeline.steps)), sum(step.seconds for step in timeline.steps)

    def fill(lane: Any) -> Cells:
        busy, share = lane.busy_seconds, lane.busy_seconds / whole
        events = (f"{lane.events:,}", lane.events)
        return [(lane.kind, lane.kind), events, (format_seconds(busy / steps), busy), (format_percent(share), share)]

    columns = {"lane": False, "kind": False, "events": True, "busy a step": True, "share": True}
    blocks = tabulate(columns, timeline.lanes, fill, "")[:1]
    return Section("lanes", "Threads and streams", blocks, "How long each was busy within the profiled steps.")


def build_cores(view: RunView) -> Section | None:
    cores = view.result.timeline.cores if view.result.timeline else None
    if cores is None or not cores.pipes_percent:
        return None
    facts = [
        ("measured over", f"{format_count(cores.kernels, 'kernel')}; processes: {cores.processes:,}"),
        ("cycles", f"{cores.cycles:,.0f}"),
        *([("by ncu, in", cores.file)] if cores.file else []),
    ]
    shares = [(name, percent / 100, "") for name, percent in cores.pipes_percent.items()]
    drawn = charts.share_bars("cores", "Use of the cores' pipes", "% of the pipe's peak", shares, {"": BLUE}, end=100.0)
    lead = "Percent of each pipe's peak, weighted by each kernel's cycles."
    return Section("cores", "Cores", [drawn, Facts(facts)], lead)
