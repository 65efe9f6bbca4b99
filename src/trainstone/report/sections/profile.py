"""What a profile shows: where a step goes, operators, kernels, threads and streams, and the pipes of the cores."""

from collections.abc import Callable, Sequence
from typing import Any

from trainstone.report.blocks import Block, Code, Facts, Figure, Links, Prose, Section
from trainstone.report.charts import (
    BLUE,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    TEAL,
    Rows,
    bars_below_names,
    figure,
    round_sensibly,
    stacked,
    tips,
)
from trainstone.report.view import RunView
from trainstone.results.breakdown import (
    ADDED_UP,
    BESIDE,
    PARTS,
    average_parts,
    format_calls,
    mean_step,
    shorten,
    tell_overhead,
)
from trainstone.results.profiled import CoreUse, Timeline
from trainstone.results.tables import Table, keyed_table
from trainstone.results.thinning import choose_evenly
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
MOST_SECONDS = 1e6
"""Of a step; a damaged file may say anything."""
HOW_TO_OPEN = "the trace: open it as it is at https://ui.perfetto.dev, or in Chrome at chrome://tracing"
MOST_BARS = 12
MOST_STEPS = 30
NAME_LENGTH, CELL_LENGTH, TOOLTIP_LENGTH = 36, 72, 600
"""In characters: above a bar (what 390 pixels hold), in a table (whole names are listed below it), pointed at."""
MOST_PERCENT = 1e4

# The page has six colours, a step nine parts: three more that stand out from both papers by 3 : 1 (WCAG 2.2).
OLIVE, PINK, BROWN = "#8a8420", "#cf4f96", "#94714f"
COLOURS = dict(zip(PARTS, (BLUE, TEAL, PURPLE, OLIVE, ORANGE, RED, PINK, BROWN, GREY), strict=True))
"""Of each part, the same in every run."""
KERNEL_COLOURS = {"compute": BLUE, "communication": PURPLE, "copy": OLIVE}


def build_breakdown(view: RunView) -> Section | None:
    """Where a step goes: bars, sentences, tables and the way to the trace."""
    timeline = view.result.timeline
    if timeline is None or not 0 < mean_step(timeline) < MOST_SECONDS:
        return None
    blocks: list[Block] = [draw_steps(timeline)]
    if timeline.told:
        blocks.append(Prose(" ".join(timeline.told)))
    parts = average_parts(timeline)
    cells = [
        [part.name, format_seconds(part.seconds), format_percent(part.share), MEANINGS[part.name]] for part in parts
    ]
    columns, numeric = ["part", "a step", "share", "when"], [False, True, True, False]
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


def draw_steps(timeline: Timeline) -> Figure:
    """A stacked bar a step; of many steps some are drawn, spread over all."""
    shown = [timeline.steps[place] for place in choose_evenly(len(timeline.steps), MOST_STEPS)]
    parts = average_parts(timeline)
    names = [part.name for part in parts]
    rows: Rows = []
    cells = []
    for step in shown:
        spent = {name: getattr(step, PARTS[name]) for name in names}
        cells.append([str(step.step), format_seconds(step.seconds), *map(format_seconds, spent.values())])
        rows += [
            {
                "what": f"step {step.step}",
                "part": name,
                "x": round_sensibly(1e3 * seconds),
                "order": order,
                "told": format_seconds(seconds),
                "share": format_percent(seconds / step.seconds) if step.seconds else "",
            }
            for order, (name, seconds) in enumerate(spent.items())
        ]
    longest = max((step.seconds for step in shown), default=0.0) or 1e-9
    chart = stacked(
        rows, "milliseconds", {name: COLOURS[name] for name in names}, 1e3 * longest, step=26,
        columns=5 if len(names) > 6 else 6, tooltip=tips("part", what="step", told="takes", share="of it"),
    )  # fmt: skip
    largest = sorted(parts, key=lambda part: -part.share)
    shares = ", ".join(f"{part.name} {format_percent(part.share)}" for part in largest)
    told = f"Of a step of {format_seconds(mean_step(timeline))}, on average: {shares}."
    table = Table(["step", "in all", *names], cells, numeric=[True] * (len(names) + 2))
    return figure("breakdown", "Where each profiled step goes", told, chart, table)


def list_facts(timeline: Timeline) -> list[tuple[str, str]]:
    """The numbers beside the parts."""
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
    try:
        file = (view.path / timeline.trace).resolve()
        inside = file.is_relative_to(view.path.resolve()) and file.is_file()
    except (OSError, RuntimeError, ValueError):  # a name with a NUL, too long a one, links in a ring
        inside = False
    if inside:
        return [Links([(view.address(timeline.trace), HOW_TO_OPEN)])]
    return [Facts([("trace", f"{timeline.trace}, which is not in the run folder")])]


def make_bar(name: str, share: float, kind: str = "") -> dict[str, Any]:
    """Return what bars_below_names draws: a name, its share, and both in words."""
    told, short = format_percent(share), shorten(name, NAME_LENGTH)
    return {
        "name": short,
        "whole": shorten(name, TOOLTIP_LENGTH),
        "label": f"{short}: {told}",
        "percent": round_sensibly(min(max(0.0, 100 * share), MOST_PERCENT)),
        "told": told,
        "kind": kind,
    }


def draw_shares(name: str, title: str, alt: str, axis: str, rows: Rows, **more: Any) -> Figure:
    """Bars of shares, the largest that fit."""
    shown = rows[:MOST_BARS]
    told = "; ".join(f"{row['name']} {row['told']}" for row in shown)
    return figure(name, title, f"{alt}: {told}.", bars_below_names(shown, axis, **more))


def tabulate(
    columns: dict[str, bool], found: Sequence[Any], tell: Callable[[Any], list[tuple[str, float | str]]], caption: str
) -> list[Block]:
    """A table that sorts by the numbers behind its cells; names that are cut stand whole below it, folded away."""
    cells = [[(shorten(one.name, CELL_LENGTH), one.name), *tell(one)] for one in found]
    table = keyed_table(columns, cells, caption)
    long = [one.name for one in found if len(one.name) > CELL_LENGTH]
    what = f"Whole names of the {next(iter(columns))}s"
    return [table, *([Code(what, "\n".join(long), folded=True)] if long else [])]


def build_operators(view: RunView) -> Section | None:
    """Operators: bars, and a table that sorts."""
    timeline = view.result.timeline
    if timeline is None or not timeline.operators:
        return None
    found, steps = timeline.operators, max(1, len(timeline.steps))
    on_device = any(operator.device_seconds is not None for operator in found)

    def tell(operator: Any) -> list[tuple[str, float | str]]:
        spent = [operator.self_seconds, operator.total_seconds, *([operator.device_seconds] if on_device else [])]
        times = [("", "") if one is None else (format_seconds(one / steps), one) for one in spent]
        calls = (format_calls(operator.calls, steps), operator.calls)
        return [calls, *times, (format_percent(operator.share), operator.share)]

    columns = {"operator": False, "calls": True, "own time": True, "with callees": True}
    columns |= {"on the device": True} if on_device else {}
    what = "time on the device" if on_device else "own time"
    rows = [make_bar(operator.name, operator.share) for operator in found]
    axis = f"% of the profiled steps, {what}"
    blocks = [
        draw_shares("operators", f"Operators by {what}", "Share of the profiled steps", axis, rows),
        *tabulate(columns | {"share": True}, found, tell, "Calls and times a step"),
    ]
    share = "time on the device" if on_device else "own time on the host, without the operators it calls"
    lead = f"The {format_count(len(found), 'operator')} with most time; shares are of the profiled steps, by {share}."
    return Section("operators", "Operators", blocks, lead)


def build_kernels(view: RunView) -> Section | None:
    """Kernels of a device, where there is one, coloured by what they do."""
    timeline = view.result.timeline
    if timeline is None or not timeline.kernels:
        return None
    found, steps = timeline.kernels, max(1, len(timeline.steps))

    def tell(kernel: Any) -> list[tuple[str, float | str]]:
        calls = (format_calls(kernel.calls, steps), kernel.calls)
        time = (format_seconds(kernel.seconds / steps), kernel.seconds)
        return [(kernel.kind, kernel.kind), calls, time, (format_percent(kernel.share), kernel.share)]

    columns = {"kernel": False, "kind": False, "calls": True, "time": True, "share": True}
    rows = [make_bar(kernel.name, kernel.share, kernel.kind) for kernel in found]
    axis = "% of the profiled steps"
    drawn = draw_shares("kernels", "Kernels by time", "Share of the profiled steps", axis, rows, kinds=KERNEL_COLOURS)
    lead = f"The {format_count(len(found), 'kernel')} with most time on the device; shares are of the profiled steps."
    return Section("kernels", "Kernels", [drawn, *tabulate(columns, found, tell, "Calls and times a step")], lead)


def build_lanes(view: RunView) -> Section | None:
    """Threads of the host and streams of the device."""
    timeline = view.result.timeline
    if timeline is None or not timeline.lanes:
        return None
    steps, whole = max(1, len(timeline.steps)), sum(step.seconds for step in timeline.steps)

    def tell(lane: Any) -> list[tuple[str, float | str]]:
        share = lane.busy_seconds / whole if whole else ""
        return [
            (lane.kind, lane.kind),
            (f"{lane.events:,}", lane.events),
            (format_seconds(lane.busy_seconds / steps), lane.busy_seconds),
            (format_percent(share) if isinstance(share, float) else "", share),
        ]

    columns = {"lane": False, "kind": False, "events": True, "busy a step": True, "share": True}
    blocks = tabulate(columns, timeline.lanes, tell, "")[:1]
    return Section("lanes", "Threads and streams", blocks, "How long each was busy within the profiled steps.")


def build_cores(view: RunView) -> Section | None:
    """How busy the pipes of the device's cores were, by ncu: a bar a pipe."""
    timeline = view.result.timeline
    if timeline is None or timeline.cores is None or not timeline.cores.pipes_percent:
        return None
    cores: CoreUse = timeline.cores
    processes = f"{cores.processes:,} process{'' if cores.processes == 1 else 'es'}"
    facts = [
        ("measured over", f"{format_count(cores.kernels, 'kernel')} of {processes}"),
        ("cycles", f"{cores.cycles:,.0f}"),
        *([("by ncu, in", cores.file)] if cores.file else []),
    ]
    rows = [make_bar(name, percent / 100) for name, percent in cores.pipes_percent.items()]
    axis = "% of the pipe's peak"
    drawn = draw_shares("cores", "Use of the cores' pipes", "Percent of the peak", axis, rows, end=100.0)
    lead = "Percent of each pipe's peak, weighted by each kernel's cycles."
    return Section("cores", "Cores", [drawn, Facts(facts)], lead)
