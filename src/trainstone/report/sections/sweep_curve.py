"""Report sections on sweeps (throughput curve, knee, explanation, table of points) and on comparisons of two runs."""

from collections.abc import Callable
from typing import Any

import altair as alt

from trainstone.report import charts
from trainstone.report.blocks import Block, FactsBlock, Figure, Prose, Section
from trainstone.report.charts import BLUE, GREY, ORANGE, TEAL, mark
from trainstone.report.view import RunView
from trainstone.results.knee import POOR_FIT, label_row, name_key
from trainstone.results.schema.run import FINISHED, Comparison
from trainstone.results.schema.sweep import BATCH, Sweep, SweepRow, format_setting, is_numeric
from trainstone.results.tables import build_comparison_table, build_sweep_table, format_row_ratio
from trainstone.units import format_bytes, format_count, format_percent, format_rate, format_ratio, format_seconds

HEIGHT = 260
MAX_SHOWN = 20
INTERLEAVED = "Both were run alternately (A B B A) in one process, so that linear drift cancels out."
OUTCOMES = {"faster": TEAL, "slower": ORANGE, "no difference shown": BLUE, "not assessed": GREY}
Read = Callable[[SweepRow], float | None]
Format = Callable[[float], str]
SERIES: tuple[tuple[str, str, str, float, Read, Format], ...] = (
    ("sweep-mfu", "Model FLOPs utilisation (MFU)", "%", 0.01, lambda row: row.mfu, format_percent),
    ("sweep-utilisation", "Compute utilisation: share of the time in which a kernel runs", "%", 0.01,
     lambda row: row.compute_utilisation, format_percent),
    ("sweep-memory", "Peak memory", "GiB", 2**30, lambda row: row.memory_bytes, format_bytes),
)  # fmt: skip
"""Name, title, unit, divisor, value and format of further charts."""


def build(view: RunView) -> Section | None:
    sweep = view.result.sweep
    if sweep is None:
        return None
    drawn: list[Block | None] = [draw_rates(sweep), *map(Prose, sweep.sentences), draw_step_times(sweep)]
    for name, title, unit, divisor, read, form in SERIES:
        rows = list_points(sweep, read, form, divisor)
        if len(rows) < 2 or not is_numeric([row["x"] for row in rows]):
            continue  # values without an order are only in the table
        x, y = swept_axis(sweep), charts.y_axis(unit, zero=True, nice=True, tickCount=4, **charts.LEFT)
        tooltip, color = charts.tooltips(what="point", shown=title.partition(":")[0]), curve_colour(sweep)
        layers = charts.lines(rows, size=60, width=2, x=x, y=y, color=color, detail="curve:N", tooltip=tooltip)
        drawn.append(charts.build_figure(name, title, f"{title}. {describe_points(rows)}.", layers, height=180))
    if sweep.rows:
        links = {child.run: child.link for child in view.children}
        drawn.append(build_sweep_table(sweep, [links.get(row.run) for row in sweep.rows], full=True))
    summary = format_count(sweep.num_points, "point")
    if view.result.status not in FINISHED:
        summary = f"The sweep is {view.result.status}: {len(sweep.rows)} of {summary}"
    intervals = "error bars are 95 % intervals" if any(row.ci95 for row in sweep.rows) else "no point has an interval"
    lead = f"{summary}, each in its own process, in shuffled order; {intervals}."
    return Section("sweep", f"Sweep over {name_key(sweep.key)}", [block for block in drawn if block], lead)


def name_curve(sweep: Sweep, curve: Any) -> str:
    return "all" if sweep.curve_key is None else f"{name_key(sweep.curve_key)} {format_setting(curve)}"


def swept_axis(sweep: Sweep) -> alt.X:
    known = [value for value in sweep.values if is_numeric([value])]
    doubling = all(value > 0 for value in known)
    scale: dict[str, Any] = {"type": "log", "base": 2, "nice": False} if doubling else {"zero": False}
    look: dict[str, Any] = {"values": known, "format": "~g", "labelOverlap": "greedy", "grid": False}
    return charts.x_axis(name_key(sweep.key), padding=16, **scale, **look)


def curve_colour(sweep: Sweep) -> Any:
    """Return a colour per curve; a single curve needs no legend."""
    if sweep.curve_key is None:
        return alt.value(BLUE)
    names = [name_curve(sweep, curve) for curve in sweep.curves]
    colours = {name: charts.PALETTE[index % len(charts.PALETTE)] for index, name in enumerate(names)}
    return charts.colour_scale(colours, "curve", columns=2)


def draw_rates(sweep: Sweep) -> Figure | None:
    rows = list_points(sweep, lambda row: row.images_per_second, format_rate)
    if not rows:
        return None
    title = "Throughput, with 95 % intervals" if any(row.ci95 for row in sweep.rows) else "Throughput"
    summary = f"Images per second: {describe_points(rows)}."
    tooltip, color = charts.tooltips(what="point", shown="images/s"), curve_colour(sweep)
    if not is_numeric([row["x"] for row in rows]):
        x = charts.x_axis("images/s", zero=True, tickCount=6)
        flat = [row | {"x": row["y"]} for row in rows]
        bars = charts.bar_chart(flat, x, step=30, limit=220, color=color, tooltip=tooltip)
        return charts.build_figure("sweep", title, summary, bars)
    x, top = swept_axis(sweep), 1.12 * max(row["high"] for row in rows)
    y = charts.y_axis("images/s", domain=[0, top], nice=False, tickCount=5, **charts.LEFT)
    last = max((value for value in sweep.values if is_numeric([value])), default=0)
    layers: charts.Layers = []
    for index, value in enumerate(dict.fromkeys(knee.value for knee in sweep.knees)):
        height = top * (1 - 0.08 * (index % 3))  # labels of neighbouring knees are at different heights
        knee: charts.Rows = [{"x": value, "y": charts.round_digits(height), "name": f"knee: {value}"}]
        side = {"align": "right", "dx": -5} if value == last else {"align": "left", "dx": 5}
        layers.append(mark("rule", knee, {**charts.DASHED, "color": ORANGE}, x=x))
        layers.append(mark("text", knee, {"dy": 6, "color": ORANGE, **side}, x=x, y=y, text="name:N"))
    line, dotted = charts.lines(rows, size=36, width=2, x=x, y=y, color=color, detail="curve:N", tooltip=tooltip)
    layers += [line, charts.intervals(rows, x, y, color), dotted]
    return charts.build_figure("sweep", title, summary, layers, height=HEIGHT)


def list_points(sweep: Sweep, read: Read, form: Format, divisor: float = 1.0) -> charts.Rows:
    found = [(row, read(row)) for row in sweep.rows]
    return [
        {
            "x": row.value,
            "y": charts.round_digits(number / divisor),
            "curve": name_curve(sweep, row.curve),
            "what": label_row(sweep, row),
            "shown": form(number),
            "low": charts.round_digits(row.ends[0]),
            "high": charts.round_digits(row.ends[1]),
        }
        for row, number in found
        if number is not None
    ]


def describe_points(rows: charts.Rows) -> str:
    """Return points as text, e.g. `batch 1: 44.4; batch 2: 47.1`."""
    return "; ".join(f"{row['what']}: {row['shown']}" for row in rows[:MAX_SHOWN])


def draw_step_times(sweep: Sweep) -> Figure | None:
    """Draw step time over batch size with the fitted line; both axes are logarithmic, so the fixed cost is visible."""
    rows = list_points(
        sweep, lambda row: row.images_per_step / row.rate if row.images_per_step and row.rate else None, format_seconds
    )
    if sweep.key != BATCH or len(rows) < 2:
        return None
    title = "Step time and fitted line"
    scale: dict[str, Any] = {"type": "log", "nice": False, "padding": 14, "tickCount": 5, "format": "~g", "grid": False}
    x, y = swept_axis(sweep), charts.y_axis("seconds per step", **scale, **charts.LEFT)
    fitted: charts.Rows = []
    for fit in sweep.fits:
        curve = name_curve(sweep, fit.curve)
        for row in sweep.rows:
            seconds = fit.fixed_seconds + fit.seconds_per_image * (row.images_per_step or 0)
            if name_curve(sweep, row.curve) == curve and row.rate and seconds > 0 and fit.error <= POOR_FIT:
                fitted.append({"x": row.value, "y": charts.round_digits(seconds), "curve": curve})
    look = {**charts.DASHED, "color": charts.MUTED}
    layers = [mark("line", fitted, look, x=x, y=y, detail="curve:N")] if fitted else []
    tooltip = charts.tooltips(what="point", shown="step")
    layers.append(charts.points(rows, 70, x=x, y=y, color=curve_colour(sweep), tooltip=tooltip))
    return charts.build_figure(
        "sweep-steps", title, f"Seconds per step: {describe_points(rows)}.", layers, height=HEIGHT
    )


def build_comparison(view: RunView) -> Section | None:
    """Build the comparison that `bench --against` made in this run."""
    return describe_comparison(view.result.comparison, INTERLEAVED) if view.result.comparison else None


def describe_comparison(comparison: Comparison, lead: str) -> Section:
    rows: charts.Rows = []
    for row in comparison.rows:
        item = {"what": row.label, "x": row.ratio, "outcome": row.outcome, "colour": OUTCOMES[row.outcome]}
        item["shown"] = format_ratio(row.ratio)
        rows.append(item | ({"low": row.ci95[0], "high": row.ci95[1]} if row.ci95 else {}))
    x = charts.x_axis("speedup (A / B)", type="log", nice=False, padding=12, format="~g")
    one = mark("rule", [{"one": 1}], {"color": GREY, "strokeDash": [4, 3]}, x=charts.with_field(x, "one"))
    tooltip = charts.tooltips("what", shown="ratio", outcome="outcome")
    chart = charts.dot_plot(rows, x, step=28, limit=220, tooltip=tooltip, under=[one])
    summary = "; ".join(f"{row.label}: {format_row_ratio(row)}, {row.outcome}" for row in comparison.rows[:MAX_SHOWN])
    drawn = charts.build_figure("comparison", "Speedup of A over B", f"{summary}.", chart)
    blocks: list[Block] = [drawn, build_comparison_table(comparison.rows, full=True)]
    differing = [(row.label, "; ".join(row.differences)) for row in comparison.rows if row.differences]
    if differing:
        summary = "Other differences between A and B, and warnings about both:"
        blocks += [Prose(summary), FactsBlock(differing)]
    if comparison.skipped:
        blocks += [Prose("Skipped:"), FactsBlock([("", summary) for summary in comparison.skipped])]
    return Section("comparison", "Comparison", blocks, lead)
