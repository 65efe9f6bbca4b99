"""The charts of a sweep: speed over what is swept with intervals and the knee, step time with its fit, memory, use."""

from collections.abc import Callable
from typing import Any

import altair as alt

from trainstone.report.blocks import Figure
from trainstone.report.charts import BLUE, LEFT, MUTED, ORANGE, PALETTE, figure, height_of, round_sensibly, values
from trainstone.results.knee import POOR_FIT
from trainstone.results.sweep import BATCH, Sweep, SweepRow, format_setting, is_numeric, label_row, name_key
from trainstone.units import format_bytes, format_percent, format_rate, format_seconds

HEIGHT = 260
GIB = 2**30
ONE = "all"
Rows = list[dict[str, Any]]


def draw_rates(sweep: Sweep) -> Figure | None:
    """Images a second with intervals: a curve where values have an order, else bars."""
    measured = [row for row in sweep.rows if row.images_per_second is not None]
    if not measured:
        return None
    told = "; ".join(f"{label_row(sweep, row)}: {format_rate(row.images_per_second or 0)}" for row in measured[:20])
    rows = [describe(sweep, row) for row in measured]
    chart = draw_curves(sweep, rows) if is_numeric([row.value for row in measured]) else draw_bars(sweep, rows)
    title = "Throughput, with 95 % intervals" if any(row.ci95 for row in measured) else "Throughput"
    return figure("sweep", title, f"Images per second: {told}.", chart)


def describe(sweep: Sweep, row: SweepRow) -> dict[str, Any]:
    """Return a point as charts take it."""
    rate = row.images_per_second or 0.0
    low, high = row.ci95 or (rate, rate)
    return {
        "x": row.value,
        "point": label_row(sweep, row),
        "value": format_setting(row.value),
        "curve": name_curve(sweep, row.curve),
        "rate": round_sensibly(rate),
        "low": round_sensibly(low),
        "high": round_sensibly(high),
        "told": format_rate(rate) + ("" if row.ci95 else " (no interval)"),
    }


def name_curve(sweep: Sweep, curve: Any) -> str:
    """Return a curve's name in the legend."""
    return ONE if sweep.curve_key is None else f"{name_key(sweep.curve_key)} {format_setting(curve)}"


def across(sweep: Sweep) -> alt.X:
    """The swept numbers: by doublings, ticks where the points are."""
    known = [v for v in sweep.values if is_numeric([v])]
    doubling = all(v > 0 for v in known)
    scale = alt.Scale(type="log", base=2, nice=False, padding=16) if doubling else alt.Scale(zero=False, padding=16)
    axis = alt.Axis(values=known, format="~g", labelOverlap="greedy", grid=False)
    return alt.X("x:Q", title=name_key(sweep.key), scale=scale, axis=axis)


def colour(sweep: Sweep) -> Any:
    """One colour a curve; a single curve needs no legend."""
    if sweep.curve_key is None:
        return alt.value(BLUE)
    names = [name_curve(sweep, curve) for curve in sweep.curves]
    scale = alt.Scale(domain=names, range=[PALETTE[place % len(PALETTE)] for place in range(len(names))])
    return alt.Color("curve:N", title=None, scale=scale, legend=alt.Legend(columns=2, labelLimit=260))


def draw_curves(sweep: Sweep, rows: Rows) -> Any:
    """Lines through the points, their intervals, and a rule at each knee."""
    x, hue = across(sweep), colour(sweep)
    top = max(row["high"] for row in rows)
    scale = alt.Scale(domain=[0, 1.12 * top], nice=False)
    y = alt.Y("rate:Q", title="images/s", scale=scale, axis=alt.Axis(tickCount=5, **LEFT))
    tooltip = [alt.Tooltip("point:N"), alt.Tooltip("told:N", title="images/s")]
    base = alt.Chart(values(rows))
    layers = [*mark_knees(sweep, x, scale)]
    layers.append(base.mark_line(strokeWidth=2, interpolate="linear").encode(x=x, y=y, color=hue, detail="curve:N"))
    known = alt.Chart(values([row for row in rows if row["low"] < row["high"]]))
    spread = known.mark_errorbar(ticks=alt.MarkConfig(size=9), thickness=1.5)
    layers.append(spread.encode(x=x, y=alt.Y("low:Q", title="images/s", scale=scale), y2="high:Q", color=hue))
    points = base.mark_point(filled=True, size=36, opacity=1)
    layers.append(points.encode(x=x, y=y, color=hue, tooltip=tooltip))
    return alt.layer(*layers).properties(width="container", height=HEIGHT)


def mark_knees(sweep: Sweep, x: alt.X, scale: alt.Scale) -> list[Any]:
    """A dashed rule, and its name above the curve."""
    last = max((v for v in sweep.values if is_numeric([v])), default=0)
    rows: Rows = []
    for place, value in enumerate(dict.fromkeys(knee.value for knee in sweep.knees)):
        top = float(scale.domain[1]) * (1 - 0.08 * (place % 3))  # knees beside each other are named above each other
        rows.append({"x": value, "y": round_sensibly(top), "name": f"knee: {value}", "right": value == last})
    if not rows:
        return []
    rules = alt.Chart(values(rows)).mark_rule(strokeDash=[5, 3], color=ORANGE, strokeWidth=1.5).encode(x=x)
    names = [
        alt.Chart(values([row for row in rows if row["right"] is right]))
        .mark_text(align="right" if right else "left", dx=-5 if right else 5, dy=6, color=ORANGE)
        .encode(x=x, y=alt.Y("y:Q", scale=scale), text="name:N")
        for right in (False, True)
    ]
    return [rules, *names]


def draw_bars(sweep: Sweep, rows: Rows) -> Any:
    """A bar a value, with its interval."""
    place = alt.Y("point:N", title=None, sort=[row["point"] for row in rows], axis=alt.Axis(labelLimit=220))
    tooltip = [alt.Tooltip("point:N"), alt.Tooltip("told:N", title="images/s")]
    base = alt.Chart(values(rows))
    x = alt.X("rate:Q", title="images/s", scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=6, labelOverlap=True))
    bars = base.mark_bar(height=16).encode(y=place, x=x, color=colour(sweep), tooltip=tooltip)
    spread = base.mark_rule(strokeWidth=2, color=ORANGE).encode(y=place, x="low:Q", x2="high:Q")
    return alt.layer(bars, spread).properties(width="container", height=height_of(len(rows), 30))


def draw_step_times(sweep: Sweep) -> Figure | None:
    """Time of a step over its images, and the straight line fitted to it."""
    rows: Rows = []
    for row in sweep.rows:
        if row.images_per_second and row.images_per_step and is_numeric([row.value]):
            seconds = row.images_per_step / row.images_per_second
            shown = {"point": label_row(sweep, row), "told": format_seconds(seconds)}
            rows.append({"x": row.value, "y": round_sensibly(seconds), "curve": name_curve(sweep, row.curve), **shown})
    if sweep.key != BATCH or len(rows) < 2:
        return None
    # Both axes by doublings: a straight fixed part is seen at the small end
    scale = alt.Scale(type="log", nice=False, padding=14)
    axis = alt.Axis(tickCount=5, format="~g", grid=False, **LEFT)
    y = alt.Y("y:Q", title="seconds a step", scale=scale, axis=axis)
    tooltip = [alt.Tooltip("point:N"), alt.Tooltip("told:N", title="step")]
    points = alt.Chart(values(rows)).mark_point(filled=True, size=70, opacity=1)
    layers = [points.encode(x=across(sweep), y=y, color=colour(sweep), tooltip=tooltip)]
    fitted = list_fitted(sweep)
    if fitted:
        line = alt.Chart(values(fitted)).mark_line(strokeDash=[5, 3], strokeWidth=1.5, color=MUTED)
        layers.insert(0, line.encode(x=across(sweep), y=y, detail="curve:N"))
    chart = alt.layer(*layers).properties(width="container", height=HEIGHT)
    told = "; ".join(f"{row['point']}: {row['told']}" for row in rows[:20])
    return figure("sweep-steps", "Time of a step, and the line fitted to it", f"Seconds a step: {told}.", chart)


def list_fitted(sweep: Sweep) -> Rows:
    """Return points of the fitted lines, as good ones as are told."""
    rows: Rows = []
    for fit in sweep.fits:
        mine = [row for row in sweep.rows if name_curve(sweep, row.curve) == name_curve(sweep, fit.curve)]
        for row in mine if fit.error <= POOR_FIT else []:
            seconds = fit.fixed_seconds + fit.seconds_per_image * (row.images_per_step or 0)
            if row.images_per_second and seconds > 0:
                rows.append({"x": row.value, "y": round_sensibly(seconds), "curve": name_curve(sweep, fit.curve)})
    return rows


def draw_memory(sweep: Sweep) -> Figure | None:
    """Highest memory of each point."""
    return draw_series(sweep, "sweep-memory", "Memory, at most", "GiB", lambda row: row.memory_bytes, GIB, format_bytes)


def draw_mfu(sweep: Sweep) -> Figure | None:
    """Share of the measured peak."""
    return draw_series(
        sweep, "sweep-mfu", "Share of the measured peak (MFU)", "%", lambda row: row.mfu, 0.01, format_percent
    )


def draw_utilisation(sweep: Sweep) -> Figure | None:
    """Share of the time with a kernel, or on a CPU an operator, running."""
    title = "Compute utilisation: share of the time in which something runs"
    return draw_series(
        sweep, "sweep-utilisation", title, "%", lambda row: row.compute_utilisation, 0.01, format_percent
    )


def draw_series(
    sweep: Sweep,
    name: str,
    title: str,
    unit: str,
    read: Callable[[SweepRow], float | None],
    divisor: float,
    tell: Callable[[float], str],
) -> Figure | None:
    """One number of each point over what is swept; values without an order have the table only."""
    rows: Rows = []
    for row in sweep.rows:
        number = read(row)
        if number is not None and is_numeric([row.value]):
            shown = {"point": label_row(sweep, row), "told": tell(number)}
            curve = name_curve(sweep, row.curve)
            rows.append({"x": row.value, "y": round_sensibly(number / divisor), "curve": curve, **shown})
    if len(rows) < 2:
        return None
    y = alt.Y("y:Q", title=unit, scale=alt.Scale(zero=True, nice=True), axis=alt.Axis(tickCount=4, **LEFT))
    tooltip = [alt.Tooltip("point:N"), alt.Tooltip("told:N", title=title.partition(":")[0])]
    base = alt.Chart(values(rows))
    line = base.mark_line(strokeWidth=2).encode(x=across(sweep), y=y, color=colour(sweep), detail="curve:N")
    points = base.mark_point(filled=True, size=60, opacity=1)
    marked = points.encode(x=across(sweep), y=y, color=colour(sweep), tooltip=tooltip)
    chart = alt.layer(line, marked).properties(width="container", height=180)
    told = "; ".join(f"{row['point']}: {row['told']}" for row in rows[:20])
    return figure(name, title, f"{title}. {told}.", chart)
