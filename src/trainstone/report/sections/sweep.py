"""A sweep: the curve with its knee, what explains it, and every point with a link to its page."""

from collections.abc import Callable
from typing import Any

import altair as alt

from trainstone.report import charts
from trainstone.report.blocks import Block, Figure, Prose, Section
from trainstone.report.sections.facts import address
from trainstone.report.view import RunView
from trainstone.results.schema import FINISHED
from trainstone.results.sweep import BATCH, POOR_FIT, Sweep, SweepRow, format_setting, is_numeric, label_row, name_key
from trainstone.results.tables import sweep_table
from trainstone.units import format_bytes, format_count, format_percent, format_rate, format_seconds

HEIGHT = 260
MAX_TOLD = 20
Read = Callable[[SweepRow], float | None]
Format = Callable[[float], str]
SERIES: tuple[tuple[str, str, str, float, Read, Format], ...] = (
    ("sweep-mfu", "Share of the measured peak (MFU)", "%", 0.01, lambda row: row.mfu, format_percent),
    ("sweep-utilisation", "Compute utilisation: share of the time in which something runs", "%", 0.01,
     lambda row: row.compute_utilisation, format_percent),
    ("sweep-memory", "Memory, at most", "GiB", 2**30, lambda row: row.memory_bytes, format_bytes),
)  # fmt: skip
"""Name, title, unit, divisor, value and format of further charts."""


def build(view: RunView) -> Section | None:
    sweep = view.result.sweep
    if sweep is None:
        return None
    drawn: list[Block | None] = [draw_rates(sweep), *map(Prose, sweep.told), draw_step_times(sweep)]
    drawn += [draw_series(sweep, *series) for series in SERIES]
    if sweep.rows:
        links = {child.run: address(view, child) for child in view.children}
        drawn.append(sweep_table(sweep, [links.get(row.run) for row in sweep.rows], full=True))
    blocks = [block for block in drawn if block is not None]
    return Section("sweep", f"Sweep over {name_key(sweep.key)}", blocks, describe_progress(view, sweep))


def describe_progress(view: RunView, sweep: Sweep) -> str:
    done = len(sweep.rows)
    told = format_count(sweep.num_points, "point")
    if view.result.status not in FINISHED:
        told = f"The sweep is {view.result.status}: {done} of {told}"
    known = any(row.ci95 is not None for row in sweep.rows)
    intervals_told = "bars are 95 % intervals" if known else "no point has an interval"
    return f"{told}, each a process of its own, run in shuffled order; {intervals_told}."


def name_curve(sweep: Sweep, curve: Any) -> str:
    return "all" if sweep.curve_key is None else f"{name_key(sweep.curve_key)} {format_setting(curve)}"


def swept_axis(sweep: Sweep) -> alt.X:
    known = [value for value in sweep.values if is_numeric([value])]
    doubling = all(value > 0 for value in known)
    scale: dict[str, Any] = {"type": "log", "base": 2, "nice": False} if doubling else {"zero": False}
    look: dict[str, Any] = {"values": known, "format": "~g", "labelOverlap": "greedy", "grid": False}
    return charts.across(name_key(sweep.key), padding=16, **scale, **look)


def curve_colour(sweep: Sweep) -> Any:
    """One colour a curve; a single curve needs no legend."""
    if sweep.curve_key is None:
        return alt.value(charts.BLUE)
    names = [name_curve(sweep, curve) for curve in sweep.curves]
    colours = {name: charts.PALETTE[place % len(charts.PALETTE)] for place, name in enumerate(names)}
    return charts.colours(colours, "curve", columns=2)


def draw_rates(sweep: Sweep) -> Figure | None:
    rows = list_points(sweep, lambda row: row.images_per_second, format_rate)
    if not rows:
        return None
    tooltip = charts.tips(what="point", told="images/s")
    if is_numeric([row["x"] for row in rows]):
        chart = draw_curves(sweep, rows, tooltip)
    else:
        x = charts.across("images/s", zero=True, tickCount=6)
        flat = [row | {"x": row["y"]} for row in rows]
        chart = charts.bars(flat, x, step=30, limit=220, color=curve_colour(sweep), tooltip=tooltip)
    title = "Throughput, with 95 % intervals" if any(row.ci95 for row in sweep.rows) else "Throughput"
    return charts.figure("sweep", title, f"Images per second: {tell_points(rows)}.", chart)


def draw_curves(sweep: Sweep, rows: charts.Rows, tooltip: list[Any]) -> Any:
    x, color = swept_axis(sweep), curve_colour(sweep)
    top = 1.12 * max(row["high"] for row in rows)
    y = charts.up("images/s", domain=[0, top], nice=False, tickCount=5, **charts.LEFT)
    layers = mark_knees(sweep, x, y, top)
    line, dotted = charts.lines(rows, size=36, width=2, x=x, y=y, color=color, detail="curve:N", tooltip=tooltip)
    return charts.layered([*layers, line, charts.intervals(rows, x, y, color), dotted], HEIGHT)


def mark_knees(sweep: Sweep, x: alt.X, y: alt.Y, top: float) -> charts.Layers:
    last = max((value for value in sweep.values if is_numeric([value])), default=0)
    layers: charts.Layers = []
    for place, value in enumerate(dict.fromkeys(knee.value for knee in sweep.knees)):
        height = top * (1 - 0.08 * (place % 3))  # knees beside each other are named above each other
        rows: charts.Rows = [{"x": value, "y": charts.round_sensibly(height), "name": f"knee: {value}"}]
        side = {"align": "right", "dx": -5} if value == last else {"align": "left", "dx": 5}
        layers.append(charts.mark("rule", rows, {**charts.DASHED, "color": charts.ORANGE}, x=x))
        layers.append(charts.mark("text", rows, {"dy": 6, "color": charts.ORANGE, **side}, x=x, y=y, text="name:N"))
    return layers


def list_points(sweep: Sweep, read: Read, form: Format, divisor: float = 1.0) -> charts.Rows:
    found = [(row, read(row)) for row in sweep.rows]
    return [
        {
            "x": row.value,
            "y": charts.round_sensibly(number / divisor),
            "curve": name_curve(sweep, row.curve),
            "what": label_row(sweep, row),
            "told": form(number),
            "low": charts.round_sensibly(row.ends[0]),
            "high": charts.round_sensibly(row.ends[1]),
        }
        for row, number in found
        if number is not None
    ]


def tell_points(rows: charts.Rows) -> str:
    """Return batch 1: 44.4; batch 2: 47.1."""
    return "; ".join(f"{row['what']}: {row['told']}" for row in rows[:MAX_TOLD])


def draw_step_times(sweep: Sweep) -> Figure | None:

    def read(row: SweepRow) -> float | None:
        if not row.images_per_second or not row.images_per_step:
            return None
        return row.images_per_step / row.images_per_second

    rows = list_points(sweep, read, format_seconds)
    if sweep.key != BATCH or len(rows) < 2:
        return None
    # Both axes by doublings: a straight fixed part is seen at the small end
    y = charts.up(
        "seconds a step", type="log", nice=False, padding=14, tickCount=5, format="~g", grid=False, **charts.LEFT
    )
    x = swept_axis(sweep)
    tooltip = charts.tips(what="point", told="step")
    layers = [charts.points(rows, 70, x=x, y=y, color=curve_colour(sweep), tooltip=tooltip)]
    fitted = list_fitted(sweep)
    if fitted:
        layers.insert(
            0, charts.mark("line", fitted, {**charts.DASHED, "color": charts.MUTED}, x=x, y=y, detail="curve:N")
        )
    title = "Time of a step, and the line fitted to it"
    return charts.figure("sweep-steps", title, f"Seconds a step: {tell_points(rows)}.", layers, height=HEIGHT)


def list_fitted(sweep: Sweep) -> charts.Rows:
    rows: charts.Rows = []
    for fit in sweep.fits:
        curve = name_curve(sweep, fit.curve)
        mine = [row for row in sweep.rows if name_curve(sweep, row.curve) == curve]
        for row in mine if fit.error <= POOR_FIT else []:
            seconds = fit.fixed_seconds + fit.seconds_per_image * (row.images_per_step or 0)
            if row.images_per_second and seconds > 0:
                rows.append({"x": row.value, "y": charts.round_sensibly(seconds), "curve": curve})
    return rows


def draw_series(
    sweep: Sweep, name: str, title: str, unit: str, divisor: float, read: Read, form: Format
) -> Figure | None:
    """One number of each point over what is swept; values without an order have the table only."""
    rows = list_points(sweep, read, form, divisor)
    if len(rows) < 2 or not is_numeric([row["x"] for row in rows]):
        return None
    x, y = swept_axis(sweep), charts.up(unit, zero=True, nice=True, tickCount=4, **charts.LEFT)
    tooltip, color = charts.tips(what="point", told=title.partition(":")[0]), curve_colour(sweep)
    layers = charts.lines(rows, size=60, width=2, x=x, y=y, color=color, detail="curve:N", tooltip=tooltip)
    return charts.figure(name, title, f"{title}. {tell_points(rows)}.", layers, height=180)
