"""The charts of quality: accuracy over epochs and over time with the target, and what the time to it went into."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import altair as alt

from trainstone.report.blocks import Figure
from trainstone.report.charts import BLUE, ORANGE, PALETTE, TEAL, figure, round_sensibly, values
from trainstone.report.loss_charts import MOST_EVALUATIONS, Axis, Rows
from trainstone.results.learning import (
    DRAWN_TOGETHER,
    SHARES,
    find_best,
    find_reached,
    format_epochs,
    format_metric,
    format_target,
    name_metric,
    split_time,
    thin_history,
)
from trainstone.results.quality import Evaluation, Quality
from trainstone.results.schema import Phases
from trainstone.units import format_percent, format_seconds

HEIGHT = 250
PLAIN = re.compile(r"[A-Za-z0-9@., -]+")

Place = Callable[[Evaluation], float]


def choose_time_axis(end_seconds: float) -> Axis:
    """Minutes, unless they would be few or many."""
    if end_seconds < 120:
        return Axis("seconds", 1.0, end_seconds)
    return Axis("hours", 1 / 3600, end_seconds) if end_seconds > 5 * 3600 else Axis("minutes", 1 / 60, end_seconds)


def pick_metrics(quality: Quality) -> list[str]:
    """Return the metrics to draw together, the one that counts among them; it alone where none goes with it."""
    known = {name for found in quality.history for name in found.metrics}
    wanted = next((group for group in DRAWN_TOGETHER if quality.metric in group), (quality.metric,))
    return [name for name in wanted if name in known]


def draw_over_epochs(quality: Quality) -> Figure | None:
    """Accuracy by epochs trained."""
    end = max((found.epoch for found in quality.history), default=0.0)
    return draw_accuracy(quality, Axis("epochs", 1.0, end or 1.0), lambda found: found.epoch, "accuracy")


def draw_over_time(quality: Quality) -> Figure | None:
    """Accuracy by the run's clock, evaluations and checkpoints included."""
    end = max((found.seconds for found in quality.history), default=0.0)
    return draw_accuracy(quality, choose_time_axis(end or 1.0), lambda found: found.seconds, "accuracy-time")


def draw_accuracy(quality: Quality, across: Axis, place: Place, name: str) -> Figure | None:
    """Metrics at each evaluation, the target as a line, and the moment it was reached."""
    metrics = pick_metrics(quality)
    if not metrics:
        return None
    percent = 100 if quality.metric in SHARES else 1
    shown = thin_history(quality, MOST_EVALUATIONS)
    rows = [row for metric in metrics for row in metric_rows(shown, metric, across, place)]
    kinds = dict(zip((name_metric(metric) for metric in metrics), (BLUE, TEAL), strict=False))
    y = alt.Y("y:Q", title=name_axis(quality.metric), scale=alt.Scale(zero=True, nice=True), axis=alt.Axis(tickCount=5))
    target = []
    if quality.target is not None:
        named = f"target {format_target(quality.metric, quality.target)}"
        kinds[named] = ORANGE
        target.append({"y": round_sensibly(percent * quality.target), "what": named})
    legend = alt.Legend(columns=3, labelLimit=260, symbolType="circle")
    colours = alt.Scale(domain=list(kinds), range=list(kinds.values()))
    colour = alt.Color("what:N", title=None, scale=colours, legend=legend)
    layers = mark_metrics(rows, across.encode(), y, colour)
    if target:
        rule = alt.Chart(values(target)).mark_rule(strokeWidth=1.5, strokeDash=[5, 3])
        layers.insert(0, rule.encode(y=y, color=colour))
    layers += mark_reached(quality, across, place, y)
    chart = alt.layer(*layers).properties(width="container", height=HEIGHT)
    over = "epochs" if across.title == "epochs" else "time"
    title = f"{' and '.join(name_metric(metric) for metric in metrics)} over {over}"
    title = title.replace("top", "Top", 1) if percent == 100 else title
    return figure(name, title, tell_accuracy(quality), chart)


def name_axis(metric: str) -> str:
    """Name the vertical axis; Vega-Lite makes expressions of axis titles, so that no odd text may stand there."""
    if metric in SHARES:
        return "% of the pictures"
    name = name_metric(metric)
    return name if PLAIN.fullmatch(name) else "value"


def metric_rows(shown: Sequence[Evaluation], metric: str, across: Axis, place: Place) -> Rows:
    """Return a metric's points."""
    percent = 100 if metric in SHARES else 1
    return [
        {
            "x": across.place(place(found)),
            "y": round_sensibly(percent * found.metrics[metric]),
            "what": name_metric(metric),
            "told": format_metric(metric, found.metrics[metric]),
            "after": format_epochs(found.epoch),
            "clock": format_seconds(found.seconds),
        }
        for found in shown
        if metric in found.metrics
    ]


def mark_metrics(rows: Rows, x: alt.X, y: alt.Y, colour: alt.Color) -> list[Any]:
    """Lines, and points that say more when they are pointed at; smaller where they would touch."""
    tooltip = [
        alt.Tooltip("what:N", title="metric"),
        alt.Tooltip("told:N", title="is"),
        alt.Tooltip("after:N"),
        alt.Tooltip("clock:N", title="run's clock"),
    ]
    chart = alt.Chart(values(rows))
    size = 30 if len(rows) <= 120 else 4
    return [
        chart.mark_line(strokeWidth=1.5).encode(x=x, y=y, color=colour),
        chart.mark_point(filled=True, size=size, opacity=1).encode(x=x, y=y, color=colour, tooltip=tooltip),
    ]


def mark_reached(quality: Quality, across: Axis, place: Place, y: alt.Y) -> list[Any]:
    """A ring around the evaluation that reached the target, and a line from it down to when that was."""
    at = find_reached(quality)
    if at is None:
        return []
    found = quality.history[at]
    percent = 100 if quality.metric in SHARES else 1
    value = found.metrics[quality.metric]
    told = format_epochs(found.epoch) if across.title == "epochs" else format_seconds(found.seconds)
    row = {"x": across.place(place(found)), "y": round_sensibly(percent * value), "told": f"reached after {told}"}
    chart, x = alt.Chart(values([row])), across.encode()
    right = place(found) < 0.5 * across.end
    return [
        chart.mark_rule(strokeWidth=1, strokeDash=[2, 3], color=ORANGE).encode(x=x, y=y, y2=alt.datum(0)),
        chart.mark_point(size=150, strokeWidth=2, color=ORANGE, opacity=1, filled=False).encode(x=x, y=y),
        # At the foot of the picture, where a curve that has risen is not
        chart.mark_text(align="left" if right else "right", dx=6 if right else -6, dy=-10).encode(
            x=x, y=alt.value(HEIGHT), text="told:N"
        ),
    ]


def tell_accuracy(quality: Quality) -> str:
    """Say what the chart shows."""
    best, name = find_best(quality), name_metric(quality.metric)
    if best is None:
        return f"{name} was not measured."
    first, top = quality.history[0], quality.history[best]
    began = first.metrics.get(quality.metric)
    start = f"from {format_metric(quality.metric, began)} " if began is not None and best > 0 else ""
    peak = format_metric(quality.metric, top.metrics[quality.metric], quality.target)
    told = f"{name} {start}to {peak} after {format_epochs(top.epoch)} and {format_seconds(top.seconds)}"
    if quality.target is None:
        return f"{told}."
    reached = "reached" if find_reached(quality) is not None else "not reached"
    return f"{told}; the target of {format_target(quality.metric, quality.target)} was {reached}."


def draw_time_to_target(phases: Phases, seconds: float) -> Figure:
    """One stacked bar of the parts that hold any time."""
    parts = {name: spent for name, spent in split_time(phases, seconds).items() if spent > 0}
    total = sum(parts.values())
    across = choose_time_axis(total)
    rows = [
        {"part": name, "x": across.place(spent), "order": order, "told": format_seconds(spent)}
        for order, (name, spent) in enumerate(parts.items())
    ]
    colours = alt.Scale(domain=list(parts), range=PALETTE[: len(parts)])
    legend = alt.Legend(columns=5, labelLimit=200)
    scale = alt.Scale(domain=[0, across.place(total)], nice=False)
    chart = (
        alt.Chart(values(rows))
        .mark_bar(height=34)
        .encode(
            x=alt.X(
                "x:Q", title=across.title, stack="zero", scale=scale, axis=alt.Axis(tickCount=8, labelOverlap=True)
            ),
            color=alt.Color("part:N", title=None, sort=list(parts), scale=colours, legend=legend),
            order="order:Q",
            tooltip=["part:N", alt.Tooltip("told:N", title="took")],
        )
        .properties(width="container", height=44)
    )
    told = ", ".join(f"{name} {format_percent(spent / total, 0)}" for name, spent in parts.items())
    return figure(
        "time-to-target", "What the time to the target went into", f"Of {format_seconds(total)}: {told}.", chart
    )
