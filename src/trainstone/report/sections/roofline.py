"""Operators against the roofs that were measured in the same run: by arithmetic and traffic, and near its bound."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import altair as alt

from trainstone.report.blocks import Block, Facts, Figure, Prose, Section
from trainstone.report.charts import (
    BLUE,
    GREY,
    INK,
    MUTED,
    ORANGE,
    PURPLE,
    RED,
    TEAL,
    Layers,
    Rows,
    across,
    bars_below_names,
    colours,
    figure,
    mark,
    round_sensibly,
    tips,
    up,
)
from trainstone.report.sections.profile import MOST_BARS, NAME_LENGTH, TOOLTIP_LENGTH, make_bar
from trainstone.report.view import RunView
from trainstone.results.breakdown import mean_step, shorten
from trainstone.results.profiled import RooflineChart, RooflinePoint
from trainstone.results.roofline import name_plainly
from trainstone.results.tables import Table, keyed_table
from trainstone.units import format_decimal, format_percent, format_seconds

HEIGHT = 340
CELL_LENGTH = 56
ROOM = 3.0
"""Around points and roofs, on logarithmic axes."""
MOST_DRAWN_PERCENT = 200.0
MOST = 1e30
FEW_DECADES = 2.5
RIDGE = (0.4, 0.6)
"""Where on the axis the roofs meet: both sides have room for their names, on a phone, too."""
OTHERS = "others"
BOUNDS = {"compute": BLUE, "memory": TEAL}


def build(view: RunView) -> Section | None:
    """Sentences, both charts, and the numbers."""
    timeline = view.result.timeline
    roofs = keep_sound(timeline.roofline) if timeline and timeline.roofline else None
    if timeline is None or roofs is None:
        return None
    step_seconds = mean_step(timeline)
    blocks: list[Block] = [Prose(" ".join(roofs.told))] if roofs.told else []
    drawn = draw_roofline(roofs)
    blocks += [drawn] if drawn else []
    blocks += [draw_bounds(roofs, step_seconds), Facts(list_facts(roofs)), tabulate(roofs, step_seconds)]
    lead = (
        "The least time an operator can take is that of its arithmetic at the measured peak or of its memory traffic "
        "at the measured bandwidth, whichever is longer."
    )
    return Section("roofline", "Roofline", blocks, lead)


def keep_sound(roofs: RooflineChart) -> RooflineChart | None:
    """Leave out what cannot be divided, as a damaged file may have it; None where nothing is left."""
    if not all(1 <= roof < MOST for roof in (roofs.peak_flops, roofs.peak_bytes_per_second)):
        return None
    operators, found = (
        [
            point
            for point in listed
            if point.seconds >= 1 / MOST and 0 <= point.flops < MOST and 0 <= point.bytes_moved < MOST
        ]
        for listed in (roofs.operators, roofs.points)
    )
    return roofs.model_copy(update={"operators": operators, "points": found}) if operators else None


def list_facts(roofs: RooflineChart) -> list[tuple[str, str]]:
    """The roofs, and how much of the step stands under them."""
    return [
        ("peak", f"{format_decimal(roofs.peak_flops, 'FLOP/s')}, {roofs.peak_source}"),
        ("memory bandwidth", format_decimal(roofs.peak_bytes_per_second, "B/s")),
        ("ridge", f"{roofs.peak_flops / roofs.peak_bytes_per_second:.3g} FLOP a byte: below it memory is the bound"),
        ("work", "FLOPs by torch's formulas; of memory each tensor once"),
        ("operators judged", f"{len(roofs.operators):,}, {format_percent(roofs.covered_share)} of the profiled step"),
    ]


def tabulate(roofs: RooflineChart, step_seconds: float) -> Table:
    """One row an operator, all its shapes together; what was not counted is sorted last."""
    heads = ["operator", "calls", "time", "of the step", "FLOP/s", "B/s", "FLOP a byte", "bound", "of bound", "trace"]
    cells: list[list[tuple[str, float | str]]] = []
    for point in roofs.operators:
        share = point.seconds / step_seconds if step_seconds > 0 else 0.0
        rate, traffic = point.flops / point.seconds, point.bytes_moved / point.seconds
        intensity = point.flops / point.bytes_moved if point.flops and point.bytes_moved else None
        name = name_plainly(point.operator)
        cells.append(
            [
                (shorten(name, CELL_LENGTH), name),
                (f"{point.calls:,}", point.calls),
                (format_seconds(point.seconds), point.seconds),
                (format_percent(share), share),
                (format_decimal(rate, ""), rate) if point.flops else ("", ""),
                (format_decimal(traffic, ""), traffic),
                ("", "") if intensity is None else (f"{intensity:.3g}", intensity),
                (point.bound, point.bound),
                (format_percent(point.share_of_bound, 0), point.share_of_bound),
                (shorten(point.operator, CELL_LENGTH), point.operator),
            ]
        )
    numeric = {head: head not in ("operator", "bound", "trace") for head in heads}
    return keyed_table(numeric, cells, "Calls and times a step")


def draw_roofline(roofs: RooflineChart) -> Figure | None:
    """Points by arithmetic a byte and arithmetic a second, under the roofs; None where nothing has counted FLOPs."""
    shown = [point for point in roofs.points or roofs.operators if point.flops > 0 and point.bytes_moved > 0]
    if not shown:
        return None
    named = choose_colours(shown)
    rows = [place_point(point, named) for point in shown]
    ridge = roofs.peak_flops / roofs.peak_bytes_per_second
    wide = balance(*widen([*(row["x"] for row in rows), ridge]), ridge)
    # The roof itself always has room below it: where all points are on it there is still a picture
    high = widen([*(row["y"] for row in rows), roofs.peak_flops, 0.1 * roofs.peak_flops])
    x, y = log_axis(across, "FLOP a byte", wide, "~g"), log_axis(up, "FLOP/s", high, "~s")
    kinds = {name: named.get(name, GREY) for name in dict.fromkeys(row["operator"] for row in rows)}
    color = colours(kinds, "operator", labelLimit=300, symbolType="circle", symbolOpacity=1)
    size = alt.Size("ms:Q", scale=alt.Scale(range=[25, 700], zero=True), legend=None)
    tooltip = tips("operator", "shapes", time="a step", rate="does", intensity="FLOP a byte", bound="bound by",
                   reached="of that bound")  # fmt: skip
    look = {"opacity": 0.6, "strokeWidth": 1, "stroke": INK, "strokeOpacity": 0.5}
    layers = mark_roofs(roofs, x, y, wide, high)
    layers.append(mark("point", rows, {"filled": True, **look}, x=x, y=y, color=color, size=size, tooltip=tooltip))
    best = max(rows, key=lambda row: row["y"])
    peak, memory = format_decimal(roofs.peak_flops, "FLOP/s"), format_decimal(roofs.peak_bytes_per_second, "B/s")
    told = f"Peak {peak}, memory {memory}; {len(rows)} points, the fastest is {best['operator']} with {best['rate']}."
    title = "Operators under the measured roofs; larger points take more of the step"
    return figure("roofline", title, told, layers, height=HEIGHT)


def place_point(point: RooflinePoint, named: dict[str, str]) -> dict[str, Any]:
    """Return where an operator stands, and what is told of it."""
    name = label(point)
    return {
        "x": round_sensibly(point.flops / point.bytes_moved),
        "y": round_sensibly(point.flops / point.seconds),
        "ms": round_sensibly(1e3 * point.seconds),
        "operator": name if name in named else OTHERS,
        "shapes": point.shapes or "all",
        "time": f"{format_seconds(point.seconds)} in {point.calls:,} calls",
        "rate": format_decimal(point.flops / point.seconds, "FLOP/s"),
        "intensity": f"{point.flops / point.bytes_moved:.3g}",
        "bound": point.bound,
        "reached": format_percent(point.share_of_bound, 0),
    }


def choose_colours(shown: Sequence[RooflinePoint]) -> dict[str, str]:
    """One for each operator, those with most time first; grey is left for the others."""
    spent: dict[str, float] = {}
    for point in shown:
        spent[label(point)] = spent.get(label(point), 0.0) + point.seconds
    longest = sorted(spent, key=lambda name: -spent[name])
    return dict(zip(longest, (BLUE, ORANGE, TEAL, PURPLE, RED), strict=False))


def label(point: RooflinePoint) -> str:
    """An operator as a chart names it."""
    return shorten(name_plainly(point.operator), NAME_LENGTH)


def widen(inside: Sequence[float]) -> tuple[float, float]:
    """Return the ends of a logarithmic axis that has room around its values."""
    return min(inside) / ROOM, max(inside) * ROOM


def balance(low: float, high: float, ridge: float) -> tuple[float, float]:
    """Move the ends of the horizontal axis outwards until the ridge stands near the middle."""
    left, right = math.log(ridge / low), math.log(high / ridge)
    left = max(left, right * RIDGE[0] / (1 - RIDGE[0]))
    right = max(right, left * (1 - RIDGE[1]) / RIDGE[1])
    return ridge * math.exp(-left), ridge * math.exp(right)


def log_axis(make: Callable[..., Any], title: str, ends: tuple[float, float], form: str) -> Any:
    """A logarithmic axis with a mark at each power of ten; where those are few, at 2 and 5 of each, too."""
    low, high = (math.log10(end) for end in ends)
    digits = (1, 2, 5) if high - low < FEW_DECADES else (1,)
    marks = [digit * 10.0**power for power in range(math.floor(low), math.ceil(high)) for digit in digits]
    inside = [mark for mark in marks if ends[0] <= mark <= ends[1]]
    scale = {"type": "log", "domain": list(ends), "nice": False}
    return make(title, **scale, values=inside, format=form, labelOverlap=True, labelLimit=0)


def mark_roofs(
    roofs: RooflineChart, x: alt.X, y: alt.Y, wide: tuple[float, float], high: tuple[float, float]
) -> Layers:
    """The slope of the memory and the flat of the arithmetic, each with its name."""
    bandwidth, peak = roofs.peak_bytes_per_second, roofs.peak_flops
    start = max(wide[0], high[0] / bandwidth)
    corners = [(start, start * bandwidth), (peak / bandwidth, peak), (wide[1], peak)]
    line: Rows = [{"x": at, "y": height} for at, height in corners]
    flat = {"x": wide[1], "y": peak, "told": f"peak {format_decimal(peak, 'FLOP/s')}", "dx": -4}
    # Left of the ridge and above the slope, where no operator can be that does not live in a cache
    slope = {"x": peak / bandwidth, "y": peak, "told": f"memory {format_decimal(bandwidth, 'B/s')}", "dx": -8}
    names = [
        mark("text", [row], {"align": "right", "dx": row.pop("dx"), "dy": -9}, x=x, y=y, text="told:N")
        for row in (flat, slope)
    ]
    return [mark("line", line, {"strokeWidth": 2, "color": MUTED, "clip": True}, x=x, y=y), *names]


def draw_bounds(roofs: RooflineChart, step_seconds: float) -> Figure:
    """The operators with most time against their bound; a bar beyond twice the roof ends there, its number tells."""
    rows: Rows = []
    for point in roofs.operators[:MOST_BARS]:
        reached = format_percent(point.share_of_bound, 0)
        bar = make_bar(name_plainly(point.operator), point.share_of_bound, point.bound)
        rows.append(
            bar
            | {
                "whole": shorten(point.operator, TOOLTIP_LENGTH),
                "label": f"{bar['name']}: {reached}",
                "percent": min(bar["percent"], MOST_DRAWN_PERCENT),
                "told": f"{reached} of its bound, {format_percent(point.seconds / (step_seconds or 1.0))} of the step",
            }
        )
    chart = bars_below_names(rows, "% of its bound; 100 is the roof", end=100.0, kinds=BOUNDS, rule=100.0)
    told = "; ".join(f"{row['label']} ({row['kind']})" for row in rows)
    return figure("bounds", "How near each operator is to its bound", f"Share of the bound: {told}.", chart)
