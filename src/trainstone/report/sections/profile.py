"""Report sections of a profile: step breakdown, operators, kernels, threads and streams, roofline, GPU pipes.

The roofline compares operators with the peaks that were measured in the same run.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import altair as alt

from trainstone.report import charts
from trainstone.report.blocks import Block, CodeBlock, FactsBlock, Figure, Links, Prose, Section, drop_empty
from trainstone.report.charts import BLUE, CELL_LENGTH, GREY, NAME_LENGTH, ORANGE, PURPLE, RED, TEAL, Rows, mark
from trainstone.report.view import RunView
from trainstone.results import step_parts
from trainstone.results.schema.timeline import RooflineChart, RooflinePoint
from trainstone.results.step_parts import PARTS, describe_operator, format_calls, mean_step, shorten
from trainstone.results.tables import Table, build_sortable_table
from trainstone.stats.downsample import choose_evenly
from trainstone.units import format_count, format_decimal, format_percent, format_seconds

MEANINGS = {
    "compute": "operators run",
    "optimiser": "optimiser operators run",
    "communication": "not overlapped with compute",
    "copies": "memory is copied",
    "waiting for data": "host waits for a batch",
    "synchronising": "host waits for the device",
    "launching": "host launches kernels",
    "Python": "host is between operators",
    "unaccounted": "none of these",
}
"""Short, to fit a table on a phone."""
HOW_TO_OPEN = "trace; open it at https://ui.perfetto.dev or in Chrome at chrome://tracing"
MAX_BARS = 12
MAX_STEPS = 30
ROOFLINE_HEIGHT = 340
ROOFLINE_CELL_LENGTH = 56
MARGIN = 3.0  # factor around points and roofs on logarithmic axes
OTHERS = "others"
BOUNDS = {"compute": BLUE, "memory": TEAL}

# A step has nine parts but the page six colours: three more with a contrast of 3:1 in both themes (WCAG 2.2).
OLIVE, PINK, BROWN = "#8a8420", "#cf4f96", "#94714f"
COLOURS = dict(zip(PARTS, (BLUE, TEAL, PURPLE, OLIVE, ORANGE, RED, PINK, BROWN, GREY), strict=True))
"""Colour of each part of a step, the same in every run."""
KERNEL_COLOURS = {"compute": BLUE, "communication": PURPLE, "copy": OLIVE}

Cells = list[tuple[str, float | str]]  # text and sort key of each cell


def build_breakdown(view: RunView) -> Section | None:
    timeline = view.result.timeline
    if timeline is None or not timeline.steps:
        return None
    on_cpu, parts = timeline.device == "cpu", step_parts.average_parts(timeline)
    shown = [timeline.steps[place] for place in choose_evenly(len(timeline.steps), MAX_STEPS)]
    seconds = {f"step {step.step}": {part.name: getattr(step, PARTS[part.name]) for part in parts} for step in shown}
    blocks: list[Block] = [charts.stacked_bars("breakdown", "Time of each profiled step by part", seconds, COLOURS)]
    if timeline.sentences:
        blocks.append(Prose(" ".join(timeline.sentences)))
    columns, numeric = ["part", "time per step", "share", "when"], [False, True, True, False]
    cells = [
        [part.name, format_seconds(part.seconds), format_percent(part.share), MEANINGS[part.name]] for part in parts
    ]
    blocks.append(Table(columns, cells, caption="Parts of a step; they add up to its time", numeric=numeric))
    running = "an operator runs" if on_cpu else "a kernel runs"
    facts = {
        "compute utilisation": f"{format_percent(timeline.compute_utilisation)}: {running}",
        "accounted time": format_percent(timeline.accounted_share),
        "busy CPU cores": "" if timeline.cores_used is None else f"{timeline.cores_used:.3g} on average",
        "profiling overhead": step_parts.describe_overhead(timeline.overhead) if timeline.overhead else "",
        "events in the trace": f"{timeline.events:,}" if timeline.events else "",
    }
    blocks.append(FactsBlock(drop_empty(facts)))
    beside = [
        [part.name, format_seconds(part.seconds), format_percent(part.share)]
        for part in step_parts.average_parts(timeline, step_parts.BESIDE)
        if not on_cpu or part.name != step_parts.ADDED_UP
    ]
    if beside:
        blocks.append(Table(columns[:3], beside, caption="Totals that overlap these parts", numeric=numeric[:3]))
    if timeline.trace:
        file = view.find_inside(timeline.trace)
        if file is not None and file.is_file():
            blocks.append(Links([(view.url(timeline.trace), HOW_TO_OPEN)]))
        else:
            blocks.append(FactsBlock([("trace", f"{timeline.trace} is not in the run folder")]))
    rank = f", rank {timeline.rank}" if timeline.rank is not None else ""
    count, mean = format_count(len(timeline.steps), "profiled step"), format_seconds(mean_step(timeline))
    lead = f"{count}, {mean} each on average; device {timeline.device}{rank}."
    return Section("breakdown", "Step breakdown", blocks, lead)


def build_tables(
    columns: dict[str, bool], found: Sequence[Any], fill: Callable[[Any], Cells], caption: str
) -> list[Block]:
    """Return a sortable table and, if names were shortened, a folded list of the full names."""
    cells = [[(shorten(one.name, CELL_LENGTH), one.name), *fill(one)] for one in found]
    table = build_sortable_table(columns, cells, caption)
    long = [one.name for one in found if len(one.name) > CELL_LENGTH]
    what = f"Full names of the {next(iter(columns))}s"
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

    columns = {"operator": False, "calls": True, "self time": True, "with callees": True}
    columns |= {"device time": True} if on_device else {}
    what = "device time" if on_device else "self time on the host (without called operators)"
    shares = [(operator.name, operator.share, "") for operator in found[:MAX_BARS]]
    blocks = [
        charts.share_bars("operators", "Operators by time", "share of the profiled steps (%)", shares, {"": BLUE}),
        *build_tables(columns | {"share": True}, found, fill, "Calls and times are per step"),
    ]
    lead = f"The {format_count(len(found), 'operator')} with the most time; share = {what} / profiled time."
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
    shares = [(kernel.name, kernel.share, kernel.kind) for kernel in found[:MAX_BARS]]
    drawn = charts.share_bars("kernels", "Kernels by time", "share of the profiled steps (%)", shares, KERNEL_COLOURS)
    lead = f"The {format_count(len(found), 'kernel')} with the most device time; shares are of the profiled steps."
    tables = build_tables(columns, found, fill, "Calls and times are per step")
    return Section("kernels", "Kernels", [drawn, *tables], lead)


def build_lanes(view: RunView) -> Section | None:
    timeline = view.result.timeline
    if timeline is None or not timeline.lanes:
        return None
    steps, total = max(1, len(timeline.steps)), sum(step.seconds for step in timeline.steps)

    def fill(lane: Any) -> Cells:
        busy, share = lane.busy_seconds, lane.busy_seconds / total
        events = (f"{lane.events:,}", lane.events)
        return [(lane.kind, lane.kind), events, (format_seconds(busy / steps), busy), (format_percent(share), share)]

    columns = {"lane": False, "kind": False, "events": True, "busy per step": True, "share": True}
    blocks = build_tables(columns, timeline.lanes, fill, "")[:1]
    return Section("lanes", "Threads and streams", blocks, "Busy time of each within the profiled steps.")


def build_roofline(view: RunView) -> Section | None:
    timeline = view.result.timeline
    roofs = timeline.roofline if timeline else None
    if timeline is None or roofs is None or not roofs.operators:
        return None
    blocks: list[Block] = [Prose(" ".join(roofs.sentences))] if roofs.sentences else []
    shown = [point for point in roofs.points or roofs.operators if point.flops > 0 and point.bytes_moved > 0]
    blocks += [draw_roofline(roofs, shown)] if shown else []
    shares = [(describe_operator(point.operator), point.share_of_bound, point.bound) for point in roofs.operators]
    title, axis = "Share of the roofline bound that each operator reaches", "share of bound (%)"
    blocks.append(charts.share_bars("bounds", title, axis, shares[:MAX_BARS], BOUNDS, digits=0, end=100.0, rule=100.0))
    facts = [
        ("peak", f"{format_decimal(roofs.peak_flops, 'FLOP/s')}, {roofs.peak_source}"),
        ("memory bandwidth", format_decimal(roofs.peak_bytes_per_second, "B/s")),
        ("ridge", f"{roofs.peak_flops / roofs.peak_bytes_per_second:.3g} FLOP/byte; below it, memory is the bound"),
        ("how work is counted", "FLOPs by torch's formulas; each tensor is read or written once"),
        ("operators covered", f"{len(roofs.operators):,}, {format_percent(roofs.covered_share)} of the profiled step"),
    ]
    step_seconds = mean_step(timeline)
    heads = ["operator", "calls", "time", "of step", "FLOP/s", "B/s", "FLOP/byte", "bound", "of bound", "trace"]
    cells: list[Cells] = []  # one row per operator, all shapes together; uncounted values are sorted last
    for point in roofs.operators:
        share, rate = point.seconds / step_seconds, point.flops / point.seconds
        traffic = point.bytes_moved / point.seconds
        intensity = point.flops / point.bytes_moved if point.bytes_moved else 0.0
        name = describe_operator(point.operator)
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
    blocks += [FactsBlock(facts), build_sortable_table(numeric, cells, "Calls and times are per step")]
    lead = (
        "An operator's lower bound is the time of its arithmetic at the measured peak or of its memory traffic "
        "at the measured bandwidth, whichever is longer."
    )
    return Section("roofline", "Roofline", blocks, lead)


def draw_roofline(roofs: RooflineChart, shown: Sequence[RooflinePoint]) -> Figure:
    """Draw operators by FLOP/byte and FLOP/s below the memory bandwidth slope and the compute peak."""
    names = [shorten(describe_operator(point.operator), NAME_LENGTH) for point in shown]
    spent: dict[str, float] = {}
    for name, point in zip(names, shown, strict=True):
        spent[name] = spent.get(name, 0.0) + point.seconds
    longest = sorted(spent, key=lambda name: -spent[name])
    kinds = dict(zip(longest, (BLUE, ORANGE, TEAL, PURPLE, RED), strict=False))  # grey for the others
    kinds |= {OTHERS: GREY} if len(longest) > len(kinds) else {}
    rows: Rows = [
        {
            "x": charts.round_digits(point.flops / point.bytes_moved),
            "y": charts.round_digits(point.flops / point.seconds),
            "ms": charts.round_digits(1e3 * point.seconds),
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
    # Leave room for the names of both roofs: the ridge is in the middle of the x axis, and the y axis starts lower
    reach = MARGIN * max(max(ridge / row["x"], row["x"] / ridge) for row in rows)
    low, high = min(0.1 * peak, *(row["y"] for row in rows)) / MARGIN, max(peak, *(row["y"] for row in rows)) * MARGIN
    left, right = max(ridge / reach, low / bandwidth), ridge * reach
    scale: dict[str, Any] = {"type": "log", "nice": False, "labelLimit": 0, "labelOverlap": True}
    x = charts.x_axis("FLOP/byte", **scale, domain=[left, right], values=list_ticks(left, right), format="~g")
    y = charts.y_axis("FLOP/s", **scale, domain=[low, high], values=list_ticks(low, high), format="~s")
    roof: Rows = [{"x": left, "y": left * bandwidth}, {"x": ridge, "y": peak}, {"x": right, "y": peak}]
    named = [
        (right, f"peak {format_decimal(peak, 'FLOP/s')}", -4),
        (ridge, f"memory {format_decimal(bandwidth, 'B/s')}", -8),  # above the slope, where operators are rare
    ]
    tooltip = charts.tooltips("operator", "shapes", time="time per step", rate="rate", bound="share of bound")
    look = {"filled": True, "opacity": 0.6, "strokeWidth": 1, "stroke": charts.INK, "strokeOpacity": 0.5}
    size = alt.Size("ms:Q", scale=alt.Scale(range=[25, 700], zero=True), legend=None)
    color = charts.colour_scale(kinds, "operator", labelLimit=300, symbolType="circle", symbolOpacity=1)
    layers = [mark("line", roof, {"strokeWidth": 2, "color": charts.MUTED, "clip": True}, x=x, y=y)]
    for at, name, dx in named:
        style = {"align": "right", "dx": dx, "dy": -9}
        layers.append(mark("text", [{"x": at, "y": peak, "shown": name}], style, x=x, y=y, text="shown:N"))
    layers.append(mark("point", rows, look, x=x, y=y, color=color, size=size, tooltip=tooltip))
    title = "Roofline of operators; larger points take more of the step"
    return charts.build_figure("roofline", title, "", layers, height=ROOFLINE_HEIGHT)


def list_ticks(low: float, high: float) -> list[float]:
    """Return the powers of ten between two values; if there are fewer than 4, also 2 and 5 times each."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
    digits = (1, 2, 5) if len(powers) < 4 else (1,)
    return [tick for power in powers for digit in digits if low <= (tick := digit * 10.0**power) <= high]


def build_cores(view: RunView) -> Section | None:
    cores = view.result.timeline.cores if view.result.timeline else None
    if cores is None or not cores.pipes_percent:
        return None
    facts = [
        ("kernels measured", f"{format_count(cores.kernels, 'kernel')}; processes: {cores.processes:,}"),
        ("cycles", f"{cores.cycles:,.0f}"),
        *([("ncu file", cores.file)] if cores.file else []),
    ]
    shares = [(name, percent / 100, "") for name, percent in cores.pipes_percent.items()]
    drawn = charts.share_bars(
        "cores", "SM pipe utilisation", "share of the pipe peak (%)", shares, {"": BLUE}, end=100.0
    )
    lead = "Percent of each pipe's peak, averaged over kernels weighted by their cycles."
    return Section("cores", "SM pipes", [drawn, FactsBlock(facts)], lead)
