"""What a training run learned: accuracy against the target, loss, time to it, evaluations; train --runs, run by run."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np

from trainstone.errors import ResultError
from trainstone.report import charts
from trainstone.report.blocks import Block, Figure, Section
from trainstone.report.charts import BLUE, DASHED, GREY, LEFT, ORANGE, PALETTE, TEAL, Layers, Rows, figure, mark, tips
from trainstone.report.sections.facts import address
from trainstone.report.view import RunView
from trainstone.results import learning
from trainstone.results.learning import format_epochs, format_metric, format_target, name_metric, thin_history
from trainstone.results.quality import Evaluation, Quality, Repeated
from trainstone.results.series import Array, LossCurve, read_loss
from trainstone.results.tables import evaluation_table, training_table
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


class Span(NamedTuple):
    """What runs across, from 0 to `end`: epochs, steps or a unit of time; a value stands at `factor` times it."""

    title: str
    factor: float
    end: float

    def place(self, value: float) -> float:
        return charts.round_sensibly(value * self.factor)

    def locate(self, found: Evaluation) -> float:
        return self.place(found.epoch if self.title == "epochs" else found.seconds)

    def encode(self, *, labelled: bool = True) -> alt.X:
        """Return the axis; panels above another share its labels."""
        look: dict[str, Any] = {"labels": labelled, "ticks": labelled, "labelSeparation": 8, "tickCount": 10}
        return charts.across(self.title if labelled else None, domain=[0, self.place(self.end)], nice=False, **look)


def build(view: RunView) -> Section | None:
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
            spent = learning.split_time(result.phases, quality.seconds_to_target)
            parts = {name: seconds for name, seconds in spent.items() if seconds > 0}
            blocks.append(charts.stacked("time-to-target", "What the time to the target went into", {"run": parts}))
        blocks += [evaluation_table(quality)] if quality.history else []
    return Section("learning", "Learning", blocks, " ".join(lead)) if blocks else None


def read_curve(view: RunView) -> LossCurve | None:
    """Read the losses of rank 0; None when absent, empty or damaged."""
    file = view.path / "steps-rank0000.csv"
    try:
        return read_loss(file) if file.is_file() else None
    except ResultError as err:
        view.doubts.append(err.message)
        return None


def describe_training(quality: Quality) -> str:
    best = learning.find_best(quality)
    starts = f", in {quality.starts} starts" if quality.starts > 1 else ""
    trained = f"Trained for {format_epochs(quality.epochs)}{starts}"
    if best is None:
        return f"{trained}; not evaluated."
    found = quality.history[best]
    value = learning.describe_metric(quality.metric, found.metrics[quality.metric], quality.target)
    told = f"{trained}; the best evaluation found {value} after {format_epochs(found.epoch)}"
    if quality.target is None:
        return f"{told}; there was no target."
    reached = "is reached" if learning.find_reached(quality) is not None else "is not reached"
    return f"{told}: the target of {format_target(quality.metric, quality.target)} {reached}."


def draw_accuracy(quality: Quality) -> list[Block]:
    """Metrics over epochs, and over the run's clock, evaluations and checkpoints included."""
    shown = thin_history(quality, MOST_EVALUATIONS)
    wanted = next((group for group in learning.DRAWN_TOGETHER if quality.metric in group), (quality.metric,))
    metrics = [name for name in wanted if any(name in found.metrics for found in shown)]
    if not metrics:
        return []
    title = capitalise(" and ".join(name_metric(metric) for metric in metrics))
    kinds = dict(zip((name_metric(metric) for metric in metrics), (BLUE, TEAL), strict=False))
    seconds = max(found.seconds for found in shown)
    unit, factor = charts.choose_unit(max(1.0, seconds))
    spans = {
        "accuracy": ("epochs", Span("epochs", 1.0, max(found.epoch for found in shown) or 1.0)),
        "accuracy-time": ("time", Span(unit, factor, seconds or 1.0)),
    }
    blocks: list[Block] = []
    for name, (over, span) in spans.items():
        rows = [row for metric in metrics for row in list_metric(shown, metric, span, name_metric(metric))]
        layers = [*draw_metric(rows, quality, span, kinds), *mark_reached(quality, span)]
        blocks.append(figure(name, f"{title} over {over}", "", layers, height=HEIGHT))
    return blocks


def capitalise(metric: str) -> str:
    """Return Top-1 for top-1; mAP stays."""
    return metric.replace("top", "Top", 1)


def draw_metric(rows: Rows, quality: Quality, span: Span, kinds: dict[str, str]) -> Layers:
    title = "% of the pictures" if quality.metric in learning.SHARES else name_metric(quality.metric)
    y = charts.up(title, zero=True, nice=True, tickCount=5)
    target: Rows = []
    if quality.target is not None:
        named = f"target {format_target(quality.metric, quality.target)}"
        kinds = kinds | {named: ORANGE}
        target.append({"y": scale_metric(quality.metric, quality.target), "what": named})
    color = charts.colours(kinds, symbolType="circle", labelLimit=160)
    tooltip = tips(what="line", told="is", after="after", clock="clock")
    layers = [mark("rule", target, DASHED, y=y, color=color)] if target else []
    return [*layers, *charts.lines(rows, x=span.encode(), y=y, color=color, tooltip=tooltip)]


def scale_metric(metric: str, value: float) -> float:
    return charts.round_sensibly((100 if metric in learning.SHARES else 1) * value)


def list_metric(shown: Iterable[Evaluation], metric: str, span: Span, name: str) -> Rows:
    return [
        {
            "x": span.locate(found),
            "y": scale_metric(metric, found.metrics[metric]),
            "what": name,
            "told": format_metric(metric, found.metrics[metric]),
            "after": format_epochs(found.epoch),
            "clock": format_seconds(found.seconds),
        }
        for found in shown
        if metric in found.metrics
    ]


def mark_reached(quality: Quality, span: Span) -> Layers:
    """A line down to when the target was reached, and the words at its foot, where a curve that has risen is not."""
    at = learning.find_reached(quality)
    if at is None:
        return []
    found = quality.history[at]
    told = format_epochs(found.epoch) if span.title == "epochs" else format_seconds(found.seconds)
    value = scale_metric(quality.metric, found.metrics[quality.metric])
    rows: Rows = [{"x": span.locate(found), "y": value, "told": f"reached after {told}"}]
    right = rows[0]["x"] < 0.5 * span.place(span.end)
    side = {"align": "left" if right else "right", "dx": 6 if right else -6, "dy": -10}
    x = span.encode()
    return [
        mark("rule", rows, {"strokeWidth": 1.5, "strokeDash": [2, 3], "color": ORANGE}, x=x, y="y:Q", y2=alt.datum(0)),
        mark("text", rows, side, x=x, y=alt.value(HEIGHT), text="told:N"),
    ]


def draw_loss(curve: LossCurve, quality: Quality | None) -> Figure:
    num_steps = float(curve.step[-1]) + (1 + curve.bucket_steps) / 2
    epochs = find_epochs_per_step(quality, num_steps)
    span = Span("epochs" if epochs else "steps", epochs or 1.0, num_steps)
    rates = list_line(curve, curve.lr, span, "learning rate")
    look = {"color": TEAL, "strokeWidth": 1.5, "point": len(rates) == 1}
    y = charts.up("learning rate", zero=True, tickCount=3, format="~g", **LEFT)
    rate = mark("line", rates, look, x=span.encode(), y=y, tooltip=tips(y="learning rate", x=span.title))
    chart = charts.panels([draw_loss_panel(curve, quality, span), rate.properties(width="container", height=80)])
    smooth = curve.smooth[np.isfinite(curve.smooth)]
    went = f"from {smooth[0]:.3g} to {smooth[-1]:.3g}" if len(smooth) else "never a number"
    told = f"Training loss, smoothed: {went} over {curve.num_steps:,} steps."
    return figure("loss", "Training loss and learning rate", told, chart)


def find_epochs_per_step(quality: Quality | None, num_steps: float) -> float | None:
    """Return what a step is of an epoch, as the evaluations say, else the whole run; None if neither does."""
    if quality is None:
        return None
    pairs = [(found.epoch, float(found.step)) for found in quality.history if found.step and found.epoch > 0]
    epochs, steps = pairs[-1] if pairs else (quality.epochs, num_steps)
    return epochs / steps if epochs > 0 and steps > 0 else None


def draw_loss_panel(curve: LossCurve, quality: Quality | None, span: Span) -> Any:
    """What the steps gave as a thin line behind the smoothed one; what evaluations gave as points.

    A few steps or evaluations that leap out do not flatten the rest: they are drawn at the edge.
    """
    each = "each step" if curve.bucket_steps == 1 else f"mean of {curve.bucket_steps:,} steps"
    raw, smooth = list_line(curve, curve.loss, span, each), list_line(curve, curve.smooth, span, SMOOTHED)
    found: Rows = [
        {"x": span.place(found.step), "y": charts.round_sensibly(found.metrics["loss"]), "what": VALIDATION}
        for found in (thin_history(quality, MOST_EVALUATIONS) if quality else [])
        if "loss" in found.metrics
    ]
    usual = max((float(np.quantile([row["y"] for row in rows], 0.99)) for rows in (raw, smooth) if rows), default=1.0)
    evaluated = max((row["y"] for row in found), default=0.0)
    top = charts.round_sensibly(1.05 * max(usual, min(evaluated, 2 * usual))) or 1.0
    found = [row | {"y": min(row["y"], top)} for row in found]
    lowest = min((row["y"] for row in raw), default=0.0)
    kinds = {each: GREY, SMOOTHED: BLUE} | ({VALIDATION: ORANGE} if found else {})
    channels: dict[str, Any] = {
        "x": span.encode(labelled=False),
        "y": charts.up("loss", domain=[min(0.0, lowest), top], nice=False, tickCount=5, **LEFT),
        "color": charts.colours(kinds, symbolType="circle", symbolOpacity=1),
        "tooltip": tips(what="loss", y="is", x=span.title),
    }
    look = {"strokeWidth": 1, "opacity": 0.55, "clip": True, "point": len(raw) == 1}
    layers = [mark("line", raw, look, **channels), mark("line", smooth, {"strokeWidth": 2, "clip": True}, **channels)]
    return charts.layered([*layers, *([charts.points(found, 40, **channels)] if found else [])], 220)


def list_line(curve: LossCurve, numbers: Array, span: Span, name: str) -> Rows:
    """Return the points of a line, each where its step is done; what is not finite has none."""
    pairs = zip(curve.step.tolist(), numbers.tolist(), strict=True)
    return [
        {"x": span.place(step + 1), "y": charts.round_sensibly(value), "what": name}
        for step, value in pairs
        if np.isfinite(value)
    ]


def build_runs(view: RunView) -> Section | None:
    """train --runs: their curves in one picture, how long each took, and a row each."""
    repeated, quality = view.result.repeated, view.result.quality
    if repeated is None or not repeated.runs:
        return None
    blocks: list[Block] = []
    if quality is not None:
        trained = [(child.label, child.result.quality) for child in view.children if child.result is not None]
        curves = {label: found for label, found in trained if found is not None and found.history}
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
    span = Span("epochs", 1.0, max((q.history[-1].epoch for q in curves.values()), default=0.0) or 1.0)
    rows: Rows = []
    for name, quality in curves.items():
        shown = thin_history(quality, max(12, MOST_EVALUATIONS // len(curves)))  # of many runs fewer points each
        rows += list_metric(shown, together.metric, span, name)
    if not rows:
        return None
    layers = draw_metric(rows, together, span, dict(zip(curves, itertools.cycle(RUN_COLOURS), strict=False)))
    title = f"{capitalise(name_metric(together.metric))} over epochs, all runs"
    return figure("accuracy-runs", title, "", layers, height=HEIGHT)


def draw_times(repeated: Repeated) -> Figure | None:
    """A bar for each run, grey where the olympic mean drops it; the mean as a line."""
    timed = [(run, run.seconds_to_target) for run in repeated.runs if run.seconds_to_target is not None]
    if len(timed) < 2:
        return None
    (unit, factor), score = charts.choose_unit(max(seconds for _, seconds in timed)), repeated.score_seconds
    rows: Rows = [
        {"what": f"seed {run.seed}", "x": charts.round_sensibly(seconds * factor), "told": format_seconds(seconds)}
        | {"kind": "counted" if run.counted or score is None else "dropped"}
        for run, seconds in timed
    ]
    x = charts.across(unit, zero=True, tickCount=8)
    mean: Sequence[Any] = []
    if score is not None:
        mean = [mark("rule", [{"x": score * factor}], {"color": ORANGE, "strokeWidth": 2}, x=x)]
    color = charts.colours({"counted": BLUE, "dropped": GREY}, "kind", legend=score is not None, columns=2)
    chart = charts.bars(
        rows, x, step=28, color=color, over=mean, tooltip=tips(what="run", told="reached in", kind="is")
    )
    title = "Time to the target" + ("" if score is None else "; the line is the olympic mean")
    return figure("times-to-target", title, "", chart)
