"""The charts of the roofline: operators between arithmetic and traffic, and how near each is to its bound."""

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from trainstone.report.blocks import Figure
from trainstone.report.charts import (
    BLUE,
    GREY,
    INK,
    MUTED,
    ORANGE,
    PURPLE,
    RED,
    TEAL,
    figure,
    round_sensibly,
    values,
)  # fmt: skip
from trainstone.report.profile_charts import MOST_BARS, NAME_LENGTH, TOOLTIP_LENGTH, draw_bars
from trainstone.results.breakdown import shorten
from trainstone.results.profiled import RooflineChart, RooflinePoint
from trainstone.results.roofline import name_plainly
from trainstone.units import format_decimal, format_percent, format_seconds

HEIGHT = 340
ROOM = 3.0
"""Around points and roofs, on logarithmic axes."""
MOST_DRAWN_PERCENT = 200.0
MOST = 1e30
FEW_DECADES = 2.5
RIDGE = (0.4, 0.6)
"""Where on the axis the roofs meet: both sides have room for their names, on a phone, too."""
OTHERS = "others"
BOUNDS = {"compute": BLUE, "memory": TEAL}


def keep_sound(roofs: RooflineChart) -> RooflineChart | None:
    """Leave out what cannot be divided, as a damaged file may have it; None where nothing is left."""
    if not all(1 <= roof < MOST for roof in (roofs.peak_flops, roofs.peak_bytes_per_second)):
        return None
    operators, points = (
        [
            point
            for point in points
            if point.seconds >= 1 / MOST and 0 <= point.flops < MOST and 0 <= point.bytes_moved < MOST
        ]
        for points in (roofs.operators, roofs.points)
    )
    return roofs.model_copy(update={"operators": operators, "points": points}) if operators else None


def draw_roofline(roofs: RooflineChart) -> Figure | None:
    """Points by arithmetic a byte and arithmetic a second, under the roofs; None where nothing has counted FLOPs."""
    shown = [point for point in roofs.points or roofs.operators if point.flops > 0 and point.bytes_moved > 0]
    if not shown:
        return None
    colours = choose_colours(shown)
    rows = [place_point(point, colours) for point in shown]
    ridge = roofs.peak_flops / roofs.peak_bytes_per_second
    across = balance(*widen([*(row["x"] for row in rows), ridge]), ridge)
    # The roof itself always has room below it: where all points are on it there is still a picture
    up = widen([*(row["y"] for row in rows), roofs.peak_flops, 0.1 * roofs.peak_flops])
    x = axis(alt.X, "x:Q", "FLOP a byte", across, "~g")
    y = axis(alt.Y, "y:Q", "FLOP/s", up, "~s")
    used = list(dict.fromkeys(row["operator"] for row in rows))
    colour = alt.Color(
        "operator:N", title=None, scale=alt.Scale(domain=used, range=[colours.get(name, GREY) for name in used]),
        legend=alt.Legend(columns=3, labelLimit=300, symbolType="circle", symbolOpacity=1),
    )  # fmt: skip
    size = alt.Size("ms:Q", scale=alt.Scale(range=[25, 700], zero=True), legend=None)
    tooltip = [
        alt.Tooltip("operator:N"), alt.Tooltip("shapes:N"), alt.Tooltip("time:N", title="a step"),
        alt.Tooltip("rate:N", title="does"), alt.Tooltip("intensity:N", title="FLOP a byte"),
        alt.Tooltip("bound:N", title="bound by"), alt.Tooltip("reached:N", title="of that bound"),
    ]  # fmt: skip
    dots = alt.Chart(values(rows)).mark_point(filled=True, opacity=0.6, strokeWidth=1, stroke=INK, strokeOpacity=0.5)
    layers = [*draw_roofs(roofs, x, y, across, up), dots.encode(x=x, y=y, color=colour, size=size, tooltip=tooltip)]
    chart = alt.layer(*layers).properties(width="container", height=HEIGHT)
    best = max(rows, key=lambda row: row["y"])
    peak, memory = format_decimal(roofs.peak_flops, "FLOP/s"), format_decimal(roofs.peak_bytes_per_second, "B/s")
    told = f"Peak {peak}, memory {memory}; {len(rows)} points, the fastest is {best['operator']} with {best['rate']}."
    return figure("roofline", "Operators under the measured roofs; larger points take more of the step", told, chart)


def place_point(point: RooflinePoint, colours: dict[str, str]) -> dict[str, Any]:
    """Return where an operator stands, and what is told of it."""
    name = label(point)
    return {
        "x": round_sensibly(point.flops / point.bytes_moved),
        "y": round_sensibly(point.flops / point.seconds),
        "ms": round_sensibly(1e3 * point.seconds),
        "operator": name if name in colours else OTHERS,
        "shapes": point.shapes or "all",
        "time": f"{format_seconds(point.seconds)} in {point.calls:,} calls",
        "rate": format_decimal(point.flops / point.seconds, "FLOP/s"),
        "intensity": f"{point.flops / point.bytes_moved:.3g}",
        "bound": point.bound,
        "reached": format_percent(point.share_of_bound, 0),
    }


def choose_colours(points: Sequence[RooflinePoint]) -> dict[str, str]:
    """One for each operator, those with most time first; grey is left for the others."""
    spent: dict[str, float] = {}
    for point in points:
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


def axis(channel: Any, field: str, title: str, ends: tuple[float, float], form: str) -> Any:
    """A logarithmic axis with a mark at each power of ten; where those are few, at 2 and 5 of each, too."""
    low, high = (math.log10(end) for end in ends)
    digits = (1, 2, 5) if high - low < FEW_DECADES else (1,)
    marks = [digit * 10.0**power for power in range(math.floor(low), math.ceil(high)) for digit in digits]
    scale = alt.Scale(type="log", domain=list(ends), nice=False)
    ticks = alt.Axis(
        values=[mark for mark in marks if ends[0] <= mark <= ends[1]], format=form, labelOverlap=True, labelLimit=0
    )
    return channel(field, title=title, scale=scale, axis=ticks)


def draw_roofs(
    roofs: RooflineChart, x: alt.X, y: alt.Y, across: tuple[float, float], up: tuple[float, float]
) -> list[Any]:
    """The slope of the memory and the flat of the arithmetic, each with its name."""
    bandwidth, peak = roofs.peak_bytes_per_second, roofs.peak_flops
    start = max(across[0], up[0] / bandwidth)
    corners = [(start, start * bandwidth), (peak / bandwidth, peak), (across[1], peak)]
    line = alt.Chart(values([{"x": at, "y": height} for at, height in corners])).mark_line(
        strokeWidth=2, color=MUTED, clip=True
    )
    flat = {"x": across[1], "y": peak, "told": f"peak {format_decimal(peak, 'FLOP/s')}"}
    slope = {"x": peak / bandwidth, "y": peak, "told": f"memory {format_decimal(bandwidth, 'B/s')}"}
    return [
        line.encode(x=x, y=y),
        alt.Chart(values([flat])).mark_text(align="right", dx=-4, dy=-9).encode(x=x, y=y, text="told:N"),
        # Left of the ridge and above the slope, where no operator can be that does not live in a cache
        alt.Chart(values([slope])).mark_text(align="right", dx=-8, dy=-9).encode(x=x, y=y, text="told:N"),
    ]


def draw_bounds(roofs: RooflineChart, step_seconds: float) -> Figure:
    """The operators with most time against their bound; a bar beyond twice the roof ends there, its number tells."""
    rows = [bound_row(point, step_seconds or 1.0) for point in roofs.operators[:MOST_BARS]]
    chart = draw_bars(rows, "% of its bound; 100 is the roof", end=100.0, kinds=BOUNDS, rule=100.0)
    told = "; ".join(f"{row['label']} ({row['kind']})" for row in rows)
    return figure("bounds", "How near each operator is to its bound", f"Share of the bound: {told}.", chart)


def bound_row(point: RooflinePoint, step_seconds: float) -> dict[str, Any]:
    """Return a bar: name, share of the bound, share of the step."""
    told = format_percent(point.share_of_bound, 0)
    return {
        "name": label(point),
        "whole": shorten(point.operator, TOOLTIP_LENGTH),
        "label": f"{label(point)}: {told}",
        "percent": round_sensibly(min(max(0.0, 100 * point.share_of_bound), MOST_DRAWN_PERCENT)),
        "told": f"{told} of its bound, {format_percent(point.seconds / step_seconds)} of the step",
        "colour": BOUNDS[point.bound],
        "kind": point.bound,
    }
