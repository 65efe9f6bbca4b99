"""What a profile shows: where a step goes, operators, kernels, threads and streams, and the pipes of the cores.

And operators against the roofs that were measured in the same run: by arithmetic and traffic, and near their bound.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import altair as alt

from trainstone.report import charts
from trainstone.report.blocks import Block, CodeBlock, FactsBlock, Figure, Links, Prose, Section, keep_known
from trainstone.report.charts import BLUE, CELL_LENGTH, GREY, NAME_LENGTH, ORANGE, PURPLE, RED, TEAL, Rows, mark
from trainstone.report.view import RunView
from trainstone.results import step_parts
from trainstone.results.schema.timeline import RooflineChart, RooflinePoint
from trainstone.results.step_parts import PARTS, format_calls, mean_step, name_plainly, shorten
from trainstone.results.tables import Table, keyed_table
from trainstone.stats.downsample import choose_evenly
from trainstone.units import format_count, format_decimal, format_percent, format_seconds

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
ROOFLINE_HEIGHT = 340
ROOFLINE_CELL_LENGTH = 56
ROOM = 3.0  # around points and roofs, on logarithmic axes
OTHERS = "others"
BOUNDS = {"compute": BLUE, "memory": TEAL}

# The page has six colours, a step nine parts: three more that stand out from both papers by 3 : 1 (WCAG 2.2).
OLIVE, PINK, BROWN = "#8a8420", "#cf4f96", "#94714f"
COLOURS = dict(zip(PARTS, (BLUE, TEAL, PURPLE, OLIVE, ORANGE, RED, PINK, BROWN, GREY), strict=True))
"""Of each part, the same in every run."""
KERNEL_COLOURS = {"compute": BLUE, "communication": PURPLE, "copy": OLIVE}

Cells = list[tuple[str, float | str]]  # each cell's text, and what it is sorted by


def build_breakdown(view: RunView) -> Section | None:
    timeline = view.result.timeline
    if timeline is None or not timeline.steps:
        return None
    on_cpu, parts = timeline.device == "cpu", step_parts.average_parts(timeline)
    shown = [timeline.steps[place] for place in choose_evenly(len(timeline.steps), MOST_STEPS)]
    seconds = {f"step {step.step}": {part.name: getattr(step, PARTS[part.name]) for part in parts} for step in shown}
    blocks: list[Block] = [charts.stacked("breakdown", "Where each profiled step goes", seconds, COLOURS)]
    if timeline.sentences:
        blocks.append(Prose(" ".join(timeline.sentences)))
    columns, numeric = ["part", "a step", "share", "when"], [False, True, True, False]
    cells = [
        [part.name, format_seconds(part.seconds), format_percent(part.share), MEANINGS[part.name]] for part in parts
    ]
    blocks.append(Table(columns, cells, caption="Parts of a step; they add up", numeric=numeric))
    running = "an operator runs" if on_cpu else "a kernel runs"
    facts = {
        "compute utilisation": f"{format_percent(timeline.compute_utilisation)}: {running}",
        "time accounted for": format_percent(timeline.accounted_share),
        "cores at work": "" if timeline.cores_used is None else f"{timeline.cores_used:.3g} on average",
        "cost of profiling": step_parts.describe_overhead(timeline.overhead) if timeline.overhead else "",
        "events in the trace": f"{timeline.events:,}" if timeline.events else "",
    }
    blocks.append(FactsBlock(keep_known(facts)))
    beside = [
        [part.name, format_seconds(part.seconds), format_percent(part.share)]
        for part in step_parts.average_parts(timeline, step_parts.BESIDE)
        if not on_cpu or part.name != step_parts.ADDED_UP
    ]
    if beside:
        blocks.append(Table(columns[:3], beside, caption="What lies across the parts", numeric=numeric[:3]))
    if timeline.trace:
        file = view.find_inside(timeline.trace)
        if file is not None and file.is_file():
            blocks.append(Links([(view.address(timeline.trace), HOW_TO_OPEN)]))
        else:
            blocks.append(FactsBlock([("trace", f"{timeline.trace}, which is not in the run folder")]))
    rank = f", rank {timeline.rank}" if timeline.rank is not None else ""
    count, mean = format_count(len(timeline.steps), "profiled step"), format_seconds(mean_step(timeline))
    lead = f"{count}, {mean} each on average; device {timeline.device}{rank}."
    return Section("breakdown", "Where a step goes", blocks, lead)


def tabulate(columns: dict[str, bool], found: Sequence[Any], fill: Callable[[Any], Cells], caption: str) -> list[Block]:
    """A table that sorts by the numbers behind its cells; names that are cut stand whole below it, folded away."""
    cells = [[(shorten(one.name, CELL_LENGTH), one.name), *fill(one)] for one in found]
    table = keyed_table(columns, cells, caption)
    long = [one.name for one in found if len(one.name) > CELL_LENGTH]
    what = f"Whole names of the {next(iter(columns))}s"
    return [table, *([CodeBlock(what, "\n".join(long), folded=True)] if long else [])]


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


def build_roofline(view: RunView) -> Section | None:
    timeline = view.result.timeline
    roofs = timeline.roofline if timeline else None
    if timeline is None or roofs is None or not roofs.operators:
        return None
    blocks: list[Block] = [Prose(" ".join(roofs.sentences))] if roofs.sentences else []
    shown = [point for point in roofs.points or roofs.operators if point.flops > 0 and point.bytes_moved > 0]
    blocks += [draw_roofline(roofs, shown)] if shown else []
    shares = [(name_plainly(point.operator), point.share_of_bound, point.bound) for point in roofs.operators]
    title, axis = "How near each operator is to its bound", "% of its bound; 100 is the roof"
    blocks.append(charts.share_bars("bounds", title, axis, shares[:MOST_BARS], BOUNDS, digits=0, end=100.0, rule=100.0))
    facts = [
        ("peak", f"{format_decimal(roofs.peak_flops, 'FLOP/s')}, {roofs.peak_source}"),
        ("memory bandwidth", format_decimal(roofs.peak_bytes_per_second, "B/s")),
        ("ridge", f"{roofs.peak_flops / roofs.peak_bytes_per_second:.3g} FLOP a byte: below it memory is the bound"),
        ("work", "FLOPs by torch's formulas; of memory each tensor once"),
        ("operators judged", f"{len(roofs.operators):,}, {format_percent(roofs.covered_share)} of the profiled step"),
    ]
    step_seconds = mean_step(timeline)
    heads = ["operator", "calls", "time", "of the step", "FLOP/s", "B/s", "FLOP a byte", "bound", "of bound", "trace"]
    cells: list[Cells] = []  # one row for each operator, all its shapes together; what was not counted is sorted last
    for point in roofs.operators:
        share, rate = point.seconds / step_seconds, point.flops / point.seconds
        traffic = point.bytes_moved / point.seconds
        intensity = point.flops / point.bytes_moved if point.bytes_moved else 0.0
        name = name_plainly(point.operator)
        cells.append(
            [
                (shorten(name, ROOFLINE_CELL_LENGTH), name),
                (f"{point.calls:,}", point.calls),
                (format_seconds(point.seconds), point.seconds),
                (format_percent(share), share),
                (format_decimal(rate, ""), rate) if rate else ("", ""),
                (format_decimal(traffic, ""), traffic),
                (f"{intensity:.3g}", intensity) if intensity else ("", ""),
                (point.bound, point.bound),
                (format_percent(point.share_of_bound, 0), point.share_of_bound),
                (shorten(point.operator, ROOFLINE_CELL_LENGTH), point.operator),
            ]
        )
    numeric = {head: head not in ("operator", "bound", "trace") for head in heads}
    blocks += [FactsBlock(facts), keyed_table(numeric, cells, "Calls and times a step")]
    lead = (
        "The least time an operator can take is that of its arithmetic at the measured peak or of its memory traffic "
        "at the measured bandwidth, whichever is longer."
    )
    return Section("roofline", "Roofline", blocks, lead)


def draw_roofline(roofs: RooflineChart, shown: Sequence[RooflinePoint]) -> Figure:
    """Points by arithmetic a byte and arithmetic a second, under the slope of the memory and the flat of the peak."""
    names = [shorten(name_plainly(point.operator), NAME_LENGTH) for point in shown]
    spent: dict[str, float] = {}
    for name, point in zip(names, shown, strict=True):
        spent[name] = spent.get(name, 0.0) + point.seconds
    longest = sorted(spent, key=lambda name: -spent[name])
    kinds = dict(zip(longest, (BLUE, ORANGE, TEAL, PURPLE, RED), strict=False))  # grey for the others
    kinds |= {OTHERS: GREY} if len(longest) > len(kinds) else {}
    rows: Rows = [
        {
            "x": charts.round_sensibly(point.flops / point.bytes_moved),
            "y": charts.round_sensibly(point.flops / point.seconds),
            "ms": charts.round_sensibly(1e3 * point.seconds),
            "operator": name if name in kinds else OTHERS,
            "shapes": point.shapes or "all",
            "time": f"{format_seconds(point.seconds)} in {point.calls:,} calls",
            "rate": format_decimal(point.flops / point.seconds, "FLOP/s"),
            "bound": f"{format_percent(point.share_of_bound, 0)} of {point.bound}",
        }
        for name, point in zip(names, shown, strict=True)
    ]
    bandwidth, peak = roofs.peak_bytes_per_second, roofs.peak_flops
    ridge = peak / bandwidth
    # The names of both roofs have room: the ridge is in the middle of the axis, and there is something below the peak
    reach = ROOM * max(max(ridge / row["x"], row["x"] / ridge) for row in rows)
    low, high = min(0.1 * peak, *(row["y"] for row in rows)) / ROOM, max(peak, *(row["y"] for row in rows)) * ROOM
    left, right = max(ridge / reach, low / bandwidth), ridge * reach
    scale: dict[str, Any] = {"type": "log", "nice": False, "labelLimit": 0, "labelOverlap": True}
    x = charts.across("FLOP a byte", **scale, domain=[left, right], values=list_ticks(left, right), format="~g")
    y = charts.up("FLOP/s", **scale, domain=[low, high], values=list_ticks(low, high), format="~s")
    roof: Rows = [{"x": left, "y": left * bandwidth}, {"x": ridge, "y": peak}, {"x": right, "y": peak}]
    named = [
        (right, f"peak {format_decimal(peak, 'FLOP/s')}", -4),
        (ridge, f"memory {format_decimal(bandwidth, 'B/s')}", -8),  # above the slope, where hardly an operator can be
    ]
    tooltip = charts.tips("operator", "shapes", time="a step", rate="does", bound="reaches its bound")
    look = {"filled": True, "opacity": 0.6, "strokeWidth": 1, "stroke": charts.INK, "strokeOpacity": 0.5}
    size = alt.Size("ms:Q", scale=alt.Scale(range=[25, 700], zero=True), legend=None)
    color = charts.colours(kinds, "operator", labelLimit=300, symbolType="circle", symbolOpacity=1)
    layers = [mark("line", roof, {"strokeWidth": 2, "color": charts.MUTED, "clip": True}, x=x, y=y)]
    for at, name, dx in named:
        style = {"align": "right", "dx": dx, "dy": -9}
        layers.append(mark("text", [{"x": at, "y": peak, "shown": name}], style, x=x, y=y, text="shown:N"))
    layers.append(mark("point", rows, look, x=x, y=y, color=color, size=size, tooltip=tooltip))
    title = "Operators under the measured roofs; larger points take more of the step"
    return charts.figure("roofline", title, "", layers, height=ROOFLINE_HEIGHT)


def list_ticks(low: float, high: float) -> list[float]:
    """Return the powers of ten between two values; where those are few, 2 and 5 of each, too."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
    digits = (1, 2, 5) if len(powers) < 4 else (1,)
    return [tick for power in powers for digit in digits if low <= (tick := digit * 10.0**power) <= high]


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
    return Section("cores", "Cores", [drawn, FactsBlock(facts)], lead)
