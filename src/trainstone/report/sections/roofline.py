"""Operators against the roofs that were measured in the same run: by arithmetic and traffic, and near its bound."""

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from trainstone.report import charts
from trainstone.report.blocks import Block, Facts, Figure, Prose, Section
from trainstone.report.charts import BLUE, GREY, INK, MUTED, NAME_LENGTH, ORANGE, PURPLE, RED, TEAL, Rows, mark, tips
from trainstone.report.sections.profile import MOST_BARS
from trainstone.report.view import RunView
from trainstone.results.profiled import RooflineChart, RooflinePoint, mean_step, name_plainly, shorten
from trainstone.results.tables import Table, keyed_table
from trainstone.units import format_decimal, format_percent, format_seconds

HEIGHT = 340
CELL_LENGTH = 56
ROOM = 3.0
"""Around points and roofs, on logarithmic axes."""
OTHERS = "others"
BOUNDS = {"compute": BLUE, "memory": TEAL}


def build(view: RunView) -> Section | None:
    timeline = view.result.timeline
    roofs = timeline.roofline if timeline else None
    if timeline is None or roofs is None or not roofs.operators:
        return None
    blocks: list[Block] = [Prose(" ".join(roofs.told))] if roofs.told else []
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
    blocks += [Facts(facts), tabulate(roofs, mean_step(timeline))]
    lead = (
        "The least time an operator can take is that of its arithmetic at the measured peak or of its memory traffic "
        "at the measured bandwidth, whichever is longer."
    )
    return Section("roofline", "Roofline", blocks, lead)


def tabulate(roofs: RooflineChart, step_seconds: float) -> Table:
    """One row for each operator, all its shapes together; what was not counted is sorted last."""
    heads = ["operator", "calls", "time", "of the step", "FLOP/s", "B/s", "FLOP a byte", "bound", "of bound", "trace"]
    cells: list[list[tuple[str, float | str]]] = []
    for point in roofs.operators:
        share, rate = point.seconds / step_seconds, point.flops / point.seconds
        traffic = point.bytes_moved / point.seconds
        intensity = point.flops / point.bytes_moved if point.bytes_moved else 0.0
        name = name_plainly(point.operator)
        cells.append(
            [
                (shorten(name, CELL_LENGTH), name),
                (f"{point.calls:,}", point.calls),
                (format_seconds(point.seconds), point.seconds),
                (format_percent(share), share),
                (format_decimal(rate, ""), rate) if rate else ("", ""),
                (format_decimal(traffic, ""), traffic),
                (f"{intensity:.3g}", intensity) if intensity else ("", ""),
                (point.bound, point.bound),
                (format_percent(point.share_of_bound, 0), point.share_of_bound),
                (shorten(point.operator, CELL_LENGTH), point.operator),
            ]
        )
    numeric = {head: head not in ("operator", "bound", "trace") for head in heads}
    return keyed_table(numeric, cells, "Calls and times a step")


def draw_roofline(roofs: RooflineChart, shown: Sequence[RooflinePoint]) -> Figure:
    """Points by arithmetic a byte and arithmetic a second, under the slope of the memory and the flat of the peak."""
    kinds = choose_colours(shown)
    rows: Rows = []
    for point in shown:
        name = shorten(name_plainly(point.operator), NAME_LENGTH)
        rows.append(
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
        )
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
    names = {
        right: (f"peak {format_decimal(peak, 'FLOP/s')}", -4),
        ridge: (f"memory {format_decimal(bandwidth, 'B/s')}", -8),  # above the slope, where hardly an operator can be
    }
    tooltip = tips("operator", "shapes", time="a step", rate="does", bound="reaches its bound")
    look = {"filled": True, "opacity": 0.6, "strokeWidth": 1, "stroke": INK, "strokeOpacity": 0.5}
    size = alt.Size("ms:Q", scale=alt.Scale(range=[25, 700], zero=True), legend=None)
    color = charts.colours(kinds, "operator", labelLimit=300, symbolType="circle", symbolOpacity=1)
    layers = [mark("line", roof, {"strokeWidth": 2, "color": MUTED, "clip": True}, x=x, y=y)]
    for at, (name, dx) in names.items():
        style = {"align": "right", "dx": dx, "dy": -9}
        layers.append(mark("text", [{"x": at, "y": peak, "told": name}], style, x=x, y=y, text="told:N"))
    layers.append(mark("point", rows, look, x=x, y=y, color=color, size=size, tooltip=tooltip))
    title = "Operators under the measured roofs; larger points take more of the step"
    return charts.figure("roofline", title, "", layers, height=HEIGHT)


def choose_colours(shown: Sequence[RooflinePoint]) -> dict[str, str]:
    """One for each operator, those with most time first; grey for the others."""
    spent: dict[str, float] = {}
    for point in shown:
        name = shorten(name_plainly(point.operator), NAME_LENGTH)
        spent[name] = spent.get(name, 0.0) + point.seconds
    longest = sorted(spent, key=lambda name: -spent[name])
    kinds = dict(zip(longest, (BLUE, ORANGE, TEAL, PURPLE, RED), strict=False))
    return kinds | ({OTHERS: GREY} if len(longest) > len(kinds) else {})


def list_ticks(low: float, high: float) -> list[float]:
    """Return the powers of ten between two values; where those are few, 2 and 5 of each, too."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
    digits = (1, 2, 5) if len(powers) < 4 else (1,)
    return [tick for power in powers for digit in digits if low <= (tick := digit * 10.0**power) <= high]
