"""What a training run learned: accuracy against the target, loss, time to it, evaluations; train --runs, run by run."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np

from trainstone.errors import ResultError
from trainstone.report.blocks import Block, Figure, Section
from trainstone.report.charts import (
    BLUE,
    DASHED,
    GREY,
    LEFT,
    ORANGE,
    PALETTE,
    TEAL,
    Layers,
    Rows,
    across,
    bars,
    colours,
    figure,
    layered,
    lines,
    mark,
    panels,
    points,
    round_sensibly,
    tips,
    up,
)
from trainstone.report.sections.facts import address
from trainstone.report.sections.speed import draw_parts
from trainstone.report.view import RunView
from trainstone.results.learning import (
    DRAWN_TOGETHER,
    SHARES,
    describe_metric,
    find_best,
    find_reached,
    format_epochs,
    format_metric,
    format_target,
    name_metric,
    split_time,
    thin_history,
)
from trainstone.results.losscurve import LossCurve, read_loss
from trainstone.results.quality import Evaluation, Quality, Repeated
from trainstone.results.tables import evaluation_table, training_table
from trainstone.results.thinning import Array
from trainstone.results.verdicts import describe_score
from trainstone.units import format_count, format_seconds

HEIGHT = 250
MOST_EVALUATIONS = 300
SMOOTHED, VALIDATION = "smoothed", "validation"
SCORED = (
    "Olympic mean, as MLPerf scores: the fastest and the slowest are dropped, the others averaged; "
    "a single run that missed the target is the slowest."
)
RUN_COLOURS = [colour for colour in PALETTE if colour != ORANGE]
"""Orange is the target's."""

Place = Callable[[Evaluation], float]


class Span(NamedTuple):
    """What runs across, from 0 to `end`, which is still to be multiplied by `factor` as every value is."""

    title: str
    factor: float
    end: float

    def place(self, value: float) -> float:
        """Return where a value stands."""
        return round_sensibly(value * self.factor)

    def encode(self, *, labelled: bool = True) -> alt.X:
        """Return the axis; panels above another share its labels."""
        look: dict[str, Any] = {"labels": labelled, "ticks": labelled, "labelSeparation": 8, "tickCount": 10}
        return across(self.title if labelled else None, domain=[0, self.place(self.end)], nice=False, **look)


def choose_time_span(end_seconds: float) -> Span:
    """Minutes, unless they would be few or many."""
    if end_seconds < 120:
        return Span("seconds", 1.0, end_seconds)
    return Span("hours", 1 / 3600, end_seconds) if end_seconds > 5 * 3600 else Span("minutes", 1 / 60, end_seconds)


def build(view: RunView) -> Section | None:
    """Charts of what there is; a run that was no training has none."""
    result, quality = view.result, view.result.quality
    if result.kind != "train" or result.repeated:  # build_runs draws those
        return None
    curve = read_curve(view)
    blocks: list[Block] = []
    lead = []
    if quality is not None:
        lead.append(describe_training(quality))
        blocks += draw_accuracy(quality)
    if curve is not None:
        blocks.append(draw_loss(curve, quality))
        if curve.num_not_finite:
            lead.append(f"The loss was not a finite number in {format_count(curve.num_not_finite, 'step')}.")
    if quality is not None:
        if result.phases is not None and quality.seconds_to_target:
            spent = split_time(result.phases, quality.seconds_to_target)
            parts = {name: seconds for name, seconds in spent.items() if seconds > 0}
            span = choose_time_span(sum(parts.values()))
            title = "What the time to the target went into"
            blocks.append(draw_parts("time-to-target", title, parts, span.title, span.factor))
        blocks += [evaluation_table(quality)] if quality.history else []
    return Section("learning", "Learning", blocks, " ".join(lead)) if blocks else None


def read_curve(view: RunView) -> LossCurve | None:
    """Read the losses of the first rank; None when absent, empty or damaged."""
    file = view.path / "steps-rank0000.csv"
    try:
        return read_loss(file) if file.is_file() else None
    except ResultError as err:
        view.doubts.append(err.message)
        return None


def describe_training(quality: Quality) -> str:
    """Say how good it got, when, and by how many starts."""
    best = find_best(quality)
    starts = f", in {quality.starts} starts" if quality.starts > 1 else ""
    trained = f"Trained for {format_epochs(quality.epochs)}{starts}"
    if best is None:
        return f"{trained}; not evaluated."
    found = quality.history[best]
    value = describe_metric(quality.metric, found.metrics[quality.metric], quality.target)
    told = f"{trained}; the best evaluation found {value} after {format_epochs(found.epoch)}"
    if quality.target is None:
        return f"{told}; there was no target."
    reached = "is reached" if find_reached(quality) is not None else "is not reached"
    return f"{told}: the target of {format_target(quality.metric, quality.target)} {reached}."


def draw_accuracy(quality: Quality) -> list[Block]:
    """Metrics over epochs, and over the run's clock, evaluations and checkpoints included."""
    known = {name for found in quality.history for name in found.metrics}
    wanted = next((group for group in DRAWN_TOGETHER if quality.metric in group), (quality.metric,))
    metrics = [name for name in wanted if name in known]
    if not metrics:
        return []
    epochs = Span("epochs", 1.0, max(found.epoch for found in quality.history) or 1.0)
    clock = choose_time_span(max(found.seconds for found in quality.history) or 1.0)
    title = " and ".join(name_metric(metric) for metric in metrics)
    title = title.replace("top", "Top", 1) if quality.metric in SHARES else title
    return [
        draw_metrics("accuracy", f"{title} over epochs", quality, metrics, epochs, lambda found: found.epoch),
        draw_metrics("accuracy-time", f"{title} over time", quality, metrics, clock, lambda found: found.seconds),
    ]


def draw_metrics(name: str, title: str, quality: Quality, metrics: Sequence[str], span: Span, place: Place) -> Figure:
    """Metrics at each evaluation, the target as a line, and the moment it was reached."""
    shown = thin_history(quality, MOST_EVALUATIONS)
    rows = [row for metric in metrics for row in list_metric(shown, metric, span, place)]
    kinds = dict(zip((name_metric(metric) for metric in metrics), (BLUE, TEAL), strict=False))
    target: Rows = []
    if quality.target is not None:
        named = f"target {format_target(quality.metric, quality.target)}"
        kinds[named] = ORANGE
        target.append({"y": scale_metric(quality.metric, quality.target), "what": named})
    y, color = metric_axis(quality.metric), colours(kinds, symbolType="circle")
    layers = [mark("rule", target, DASHED, y=y, color=color)] if target else []
    tooltip = tips("after", what="metric", told="is", clock="run's clock")
    layers += lines(rows, x=span.encode(), y=y, color=color, tooltip=tooltip)
    layers += mark_reached(quality, span, place, y)
    return figure(name, title, describe_accuracy(quality), layers, height=HEIGHT)


def metric_axis(metric: str) -> alt.Y:
    """Return the vertical axis."""
    return up("% of the pictures" if metric in SHARES else name_metric(metric), zero=True, nice=True, tickCount=5)


def scale_metric(metric: str, value: float) -> float:
    """Return where a value of the metric stands: shares in percent."""
    return round_sensibly((100 if metric in SHARES else 1) * value)


def list_metric(shown: Sequence[Evaluation], metric: str, span: Span, place: Place) -> Rows:
    """Return a metric's points."""
    return [
        {
            "x": span.place(place(found)),
            "y": scale_metric(metric, found.metrics[metric]),
            "what": name_metric(metric),
            "told": format_metric(metric, found.metrics[metric]),
            "after": format_epochs(found.epoch),
            "clock": format_seconds(found.seconds),
        }
        for found in shown
        if metric in found.metrics
    ]


def mark_reached(quality: Quality, span: Span, place: Place, y: alt.Y) -> Layers:
    """A ring around the evaluation that reached the target, and a line from it down to when that was."""
    at = find_reached(quality)
    if at is None:
        return []
    found = quality.history[at]
    told = format_epochs(found.epoch) if span.title == "epochs" else format_seconds(found.seconds)
    value = scale_metric(quality.metric, found.metrics[quality.metric])
    rows: Rows = [{"x": span.place(place(found)), "y": value, "told": f"reached after {told}"}]
    x = span.encode()
    right = place(found) < 0.5 * span.end
    side = {"align": "left" if right else "right", "dx": 6 if right else -6, "dy": -10}
    ring = {"size": 150, "strokeWidth": 2, "color": ORANGE, "opacity": 1, "filled": False}
    return [
        mark("rule", rows, {"strokeWidth": 1, "strokeDash": [2, 3], "color": ORANGE}, x=x, y=y, y2=alt.datum(0)),
        mark("point", rows, ring, x=x, y=y),
        # At the foot of the picture, where a curve that has risen is not
        mark("text", rows, side, x=x, y=alt.value(HEIGHT), text="told:N"),
    ]


def describe_accuracy(quality: Quality) -> str:
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


def find_epochs_per_step(quality: Quality | None, num_steps: float) -> float | None:
    """Return what a step is of an epoch, as the evaluations say, else the whole run; None if neither does."""
    if quality is None:
        return None
    pairs = [(found.epoch, float(found.step)) for found in quality.history if found.step and found.epoch > 0]
    epochs, steps = pairs[-1] if pairs else (quality.epochs, num_steps)
    return epochs / steps if epochs > 0 and steps > 0 else None


def draw_loss(curve: LossCurve, quality: Quality | None) -> Figure:
    """Two panels, aligned: the loss, and in small the learning rate."""
    num_steps = float(curve.step[-1]) + (1 + curve.bucket_steps) / 2
    epochs = find_epochs_per_step(quality, num_steps)
    span = Span("epochs" if epochs else "steps", epochs or 1.0, num_steps)
    rates = list_line(curve, curve.lr, span, "learning rate")
    rate = mark(
        "line", rates, {"color": TEAL, "strokeWidth": 1.5, "point": len(rates) == 1}, x=span.encode(),
        y=up("learning rate", zero=True, tickCount=3, format="~g", **LEFT),
        tooltip=tips(y="learning rate", x=span.title),
    )  # fmt: skip
    chart = panels([draw_loss_panel(curve, quality, span), rate.properties(width="container", height=80)])
    return figure("loss", "Training loss and learning rate", describe_loss(curve), chart)


def draw_loss_panel(curve: LossCurve, quality: Quality | None, span: Span) -> Any:
    """What the steps gave as a thin line behind the smoothed one; what evaluations gave as points."""
    each = "each step" if curve.bucket_steps == 1 else f"mean of {curve.bucket_steps:,} steps"
    raw, smooth = list_line(curve, curve.loss, span, each), list_line(curve, curve.smooth, span, SMOOTHED)
    top = find_top(curve, quality)
    found = list_validation(quality, span, top) if quality else []
    kinds = {each: GREY, SMOOTHED: BLUE} | ({VALIDATION: ORANGE} if found else {})
    lowest = round_sensibly(float(np.nanmin(curve.loss))) if np.isfinite(curve.loss).any() else 0.0
    channels: dict[str, Any] = {
        "x": span.encode(labelled=False),
        "y": up("loss", domain=[min(0.0, lowest), top], nice=False, tickCount=5, **LEFT),
        "color": colours(kinds, symbolType="circle", symbolOpacity=1, symbolStrokeWidth=0),
        "tooltip": tips(what="loss", y="is", x=span.title),
    }
    look = {"strokeWidth": 1, "opacity": 0.55, "clip": True, "point": len(raw) == 1}
    layers = [mark("line", raw, look, **channels), mark("line", smooth, {"strokeWidth": 2, "clip": True}, **channels)]
    return layered([*layers, *([points(found, 40, **channels)] if found else [])], 220)


def list_line(curve: LossCurve, numbers: Array, span: Span, name: str) -> Rows:
    """Return the points of a line, each where its step is done; what is no number has none."""
    pairs = zip(curve.step.tolist(), numbers.tolist(), strict=True)
    return [
        {"x": span.place(step + 1), "y": round_sensibly(value), "what": name}
        for step, value in pairs
        if np.isfinite(value)
    ]


def list_validation(quality: Quality, span: Span, top: float) -> Rows:
    """Return the loss of the evaluations, where they have one; what is off the scale stands at its edge."""
    return [
        {"x": span.place(found.step), "y": min(round_sensibly(found.metrics["loss"]), top), "what": VALIDATION}
        for found in thin_history(quality, MOST_EVALUATIONS)
        if "loss" in found.metrics
    ]


def find_top(curve: LossCurve, quality: Quality | None) -> float:
    """Return where the axis ends: a few steps or evaluations that leap out do not flatten the rest."""
    raw, smooth = (column[np.isfinite(column)] for column in (curve.loss, curve.smooth))
    if not len(raw):
        return 1.0
    usual = max(float(np.quantile(raw, 0.99)), float(np.quantile(smooth, 0.99)))
    evaluated = max((found.metrics.get("loss", 0.0) for found in quality.history), default=0.0) if quality else 0.0
    highest = max(usual, min(evaluated, 2 * usual))
    return round_sensibly(1.05 * highest) if highest > 0 else 1.0


def describe_loss(curve: LossCurve) -> str:
    """Say what the chart shows."""
    finite, rates = (column[np.isfinite(column)] for column in (curve.smooth, curve.lr))
    went = f"from {finite[0]:.3g} to {finite[-1]:.3g}" if len(finite) else "never a number"
    rate = f"; learning rate from {rates.min():.3g} to {rates.max():.3g}" if len(rates) else ""
    return f"Training loss, smoothed: {went} over {curve.num_steps:,} steps{rate}."


def build_runs(view: RunView) -> Section | None:
    """train --runs: their curves in one picture, how long each took, and a row each."""
    repeated, quality = view.result.repeated, view.result.quality
    if repeated is None or not repeated.runs:
        return None
    blocks: list[Block] = []
    if quality is not None:
        trained = [(child.label, child.result.quality) for child in view.children if child.result is not None]
        curves = {label: found for label, found in trained if found is not None}
        blocks += [drawn for drawn in (draw_runs(curves, quality), draw_times(repeated)) if drawn]
    children = {child.run: child for child in view.children}
    known = [children.get(run.run) for run in repeated.runs]
    links = [address(view, child) if child else None for child in known]
    caption = SCORED if repeated.score_seconds is not None else ""
    blocks.append(
        training_table(repeated, quality, [child.result if child else None for child in known], links, caption)
    )
    begun = "" if len(repeated.runs) == repeated.num_runs else f" of {repeated.num_runs}"
    lead = f"{format_count(len(repeated.runs), 'run')}{begun} with seeds counted up, each in its own process."
    return Section("trainings", "Learning, run by run", blocks, lead)


def draw_runs(curves: dict[str, Quality], together: Quality) -> Figure | None:
    """The metric over epochs, a line a run, and the target; of many runs all lines have one colour."""
    end = max((found.epoch for quality in curves.values() for found in quality.history), default=0.0)
    span = Span("epochs", 1.0, end or 1.0)
    rows: Rows = []
    for name, quality in curves.items():
        shown = thin_history(quality, max(12, MOST_EVALUATIONS // len(curves)))  # of many runs fewer points each
        found = list_metric(shown, together.metric, span, lambda found: found.epoch)
        rows += [row | {"run": name} for row in found]
    if not rows:
        return None
    few = len(curves) <= len(RUN_COLOURS)
    kinds = dict(zip(curves, RUN_COLOURS if few else [BLUE] * len(curves), strict=False))
    y, metric = metric_axis(together.metric), name_metric(together.metric)
    color = colours(kinds, "run", legend=few, columns=6, labelLimit=160, symbolType="circle")
    layers = lines(
        rows, opacity=1 if few else 0.5, x=span.encode(), y=y, color=color, detail="run:N",
        tooltip=tips("run", "after", told="is", clock="run's clock"),
    )  # fmt: skip
    title = f"{metric.replace('top', 'Top', 1)} over epochs, all runs"
    if together.target is not None:
        target: Rows = [{"y": scale_metric(together.metric, together.target)}]
        layers.insert(0, mark("rule", target, {**DASHED, "color": ORANGE}, y=y))
        title += f"; dashed: the target of {format_target(together.metric, together.target)}"
    best = [
        f"{name} {format_metric(together.metric, quality.value, together.target)}"
        for name, quality in list(curves.items())[:12]
        if quality.history and quality.value is not None
    ]
    told = f"{metric} of each run at its best: {', '.join(best)}."
    return figure("accuracy-runs", title, told, layers, height=HEIGHT)


def draw_times(repeated: Repeated) -> Figure | None:
    """A bar a run, in its colour where it counts in the olympic mean; the mean as a line."""
    times = {run.seed: run.seconds_to_target for run in repeated.runs if run.seconds_to_target is not None}
    if len(times) < 2:
        return None
    span, score = choose_time_span(max(times.values())), repeated.score_seconds
    counted = {run.seed: "counted" if run.counted else "dropped" for run in repeated.runs}
    rows: Rows = [
        {"what": f"seed {seed}", "x": span.place(seconds), "told": format_seconds(seconds)}
        | {"kind": "reached" if score is None else counted[seed]}
        for seed, seconds in times.items()
    ]
    used = {row["kind"] for row in rows}
    kinds = {k: c for k, c in {"counted": BLUE, "dropped": GREY, "reached": BLUE}.items() if k in used}
    x = across(span.title, zero=True, tickCount=8)
    mean = [] if score is None else [mark("rule", [{"x": span.place(score)}], {"color": ORANGE, "strokeWidth": 2}, x=x)]
    color = colours(kinds, "kind", legend=len(kinds) > 1, columns=2)
    tooltip = tips(what="run", told="reached in", kind="is")
    chart = bars(rows, x, step=28, color=color, tooltip=tooltip, over=mean)
    told = ", ".join(f"{row['what']} {row['told']}" for row in rows[:12])
    olympic = f"; {describe_score(repeated)}" if score is not None else ""
    title = "Time to the target" + ("; the line is the olympic mean" if olympic else "")
    return figure("times-to-target", title, f"Each run's time to the target: {told}{olympic}.", chart)
