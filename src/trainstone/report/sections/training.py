"""Report sections on training: accuracy, loss, time to target, the runs of train --runs, convergence as in MLPerf.

The convergence section compares epochs to target with MLPerf's reference convergence points (RCP), if they apply.
"""

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import altair as alt
import numpy as np

from trainstone.report import charts
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
    build_figure,
    mark,
    tooltips,
)
from trainstone.report.view import STEPS, RunView
from trainstone.results import training
from trainstone.results.mlperf import summary as convergence
from trainstone.results.mlperf.logs import LoggedRun, find_run_logs, read_logs
from trainstone.results.mlperf.summary import Expected
from trainstone.results.schema.quality import Evaluation, Quality, Repeated
from trainstone.results.series import LossCurve, read_loss
from trainstone.results.tables import Table, build_evaluation_table, build_training_table
from trainstone.results.training import format_epochs, format_metric, format_target, name_metric, thin_history
from trainstone.stats.series import Array
from trainstone.units import format_count, format_seconds

HEIGHT, CONVERGENCE_HEIGHT = 250, 260
MAX_LOGS = 100
PARTS = 12
MEAN, NOT_COUNTED, REACHED, MISSED = "reference", "reference, not counted", "reached the target", "missed the target"
MAX_EVALUATIONS = 300
SMOOTHED, VALIDATION = "smoothed", "validation"
SCORED = (
    "Olympic mean, as in MLPerf: the fastest and the slowest run are dropped, the others are averaged; "
    "if one run missed the target, it counts as the slowest."
)
RUN_COLOURS = [colour for colour in PALETTE if colour != ORANGE]  # orange marks the target


class TimeAxis(NamedTuple):
    """A horizontal axis from 0 to `end` in epochs, steps or a unit of time; positions are values times `factor`."""

    title: str
    factor: float
    end: float

    def to_position(self, value: float) -> float:
        return charts.round_digits(value * self.factor)

    def locate(self, found: Evaluation) -> float:
        return self.to_position(found.epoch if self.title == "epochs" else found.seconds)

    def encode(self, *, labelled: bool = True) -> alt.X:
        """Return the axis; only the bottom panel shows labels."""
        look: dict[str, Any] = {"labels": labelled, "ticks": labelled, "labelSeparation": 8, "tickCount": 10}
        return charts.x_axis(
            self.title if labelled else None, domain=[0, self.to_position(self.end)], nice=False, **look
        )


def build(view: RunView) -> Section | None:
    result, quality = view.result, view.result.quality
    if result.kind != "train" or result.repeated:  # build_runs draws repeated runs
        return None
    curve = view.read(STEPS, read_loss)
    blocks: list[Block] = []
    lead = []
    if quality is not None:
        lead.append(describe_training(quality))
        blocks += draw_accuracy(quality)
    if curve is not None:
        blocks.append(draw_loss(curve, quality))
        if curve.num_not_finite:
            lead.append(f"The loss was NaN or infinite in {format_count(curve.num_not_finite, 'step')}.")
    if quality is not None:
        if result.phases is not None and quality.seconds_to_target:
            spent = training.split_time(result.phases, quality.seconds_to_target)
            parts = {name: seconds for name, seconds in spent.items() if seconds > 0}
            blocks.append(charts.stacked_bars("time-to-target", "Phases of the time to target", {"run": parts}))
        blocks += [build_evaluation_table(quality)] if quality.history else []
    return Section("training", "Training", blocks, " ".join(lead)) if blocks else None


def describe_training(quality: Quality) -> str:
    best = training.find_best(quality)
    starts = f", in {quality.starts} starts" if quality.starts > 1 else ""
    trained = f"Trained for {format_epochs(quality.epochs)}{starts}"
    if best is None:
        return f"{trained}; not evaluated."
    found = quality.history[best]
    value = training.describe_metric(quality.metric, found.metrics[quality.metric], quality.target)
    summary = f"{trained}; the best evaluation found {value} after {format_epochs(found.epoch)}"
    if quality.target is None:
        return f"{summary}; no target was set."
    reached = "is reached" if training.find_reached(quality) is not None else "is not reached"
    return f"{summary}: the target of {format_target(quality.metric, quality.target)} {reached}."


def draw_accuracy(quality: Quality) -> list[Block]:
    """Draw the metrics over epochs and over wall time, which includes evaluations and checkpoints.

    A vertical line marks when the target was reached. Its text is at the bottom, where the curve does not hide it.
    """
    shown = thin_history(quality, MAX_EVALUATIONS)
    wanted = next((group for group in training.DRAWN_TOGETHER if quality.metric in group), (quality.metric,))
    metrics = [name for name in wanted if any(name in found.metrics for found in shown)]
    if not metrics:
        return []
    title = " and ".join(name_metric(metric) for metric in metrics).replace("top", "Top", 1)  # mAP stays
    kinds = dict(zip((name_metric(metric) for metric in metrics), (BLUE, TEAL), strict=False))
    seconds = max(found.seconds for found in shown)
    unit, factor = charts.choose_unit(max(1.0, seconds))
    spans = {
        "accuracy": ("epochs", TimeAxis("epochs", 1.0, max(found.epoch for found in shown) or 1.0)),
        "accuracy-time": ("time", TimeAxis(unit, factor, seconds or 1.0)),
    }
    reached = training.find_reached(quality)
    blocks: list[Block] = []
    for name, (over, span) in spans.items():
        rows = [row for metric in metrics for row in list_metric(shown, metric, span, name_metric(metric))]
        layers = draw_metric(rows, quality, span, kinds)
        if reached is not None:
            found = quality.history[reached]
            summary = format_epochs(found.epoch) if over == "epochs" else format_seconds(found.seconds)
            y = scale_metric(quality.metric, found.metrics[quality.metric])
            at: Rows = [{"x": span.locate(found), "y": y, "shown": f"reached after {summary}"}]
            right, x = at[0]["x"] < 0.5 * span.to_position(span.end), span.encode()
            side = {"align": "left" if right else "right", "dx": 6 if right else -6, "dy": -10}
            look = {"strokeWidth": 1.5, "strokeDash": [2, 3], "color": ORANGE}
            layers.append(mark("rule", at, look, x=x, y="y:Q", y2=alt.datum(0)))
            layers.append(mark("text", at, side, x=x, y=alt.value(HEIGHT), text="shown:N"))
        blocks.append(build_figure(name, f"{title} over {over}", "", layers, height=HEIGHT))
    return blocks


def draw_metric(rows: Rows, quality: Quality, span: TimeAxis, kinds: dict[str, str]) -> Layers:
    title = "% of the images" if quality.metric in training.SHARES else name_metric(quality.metric)
    y = charts.y_axis(title, zero=True, nice=True, tickCount=5)
    target: Rows = []
    if quality.target is not None:
        named = f"target {format_target(quality.metric, quality.target)}"
        kinds = kinds | {named: ORANGE}
        target.append({"y": scale_metric(quality.metric, quality.target), "what": named})
    color = charts.colour_scale(kinds, symbolType="circle", labelLimit=160)
    tooltip = tooltips(what="line", shown="value", after="after", clock="wall time")
    layers = [mark("rule", target, DASHED, y=y, color=color)] if target else []
    return [*layers, *charts.lines(rows, x=span.encode(), y=y, color=color, tooltip=tooltip)]


def scale_metric(metric: str, value: float) -> float:
    return charts.round_digits((100 if metric in training.SHARES else 1) * value)


def list_metric(shown: Iterable[Evaluation], metric: str, span: TimeAxis, name: str) -> Rows:
    return [
        {
            "x": span.locate(found),
            "y": scale_metric(metric, found.metrics[metric]),
            "what": name,
            "shown": format_metric(metric, found.metrics[metric]),
            "after": format_epochs(found.epoch),
            "clock": format_seconds(found.seconds),
        }
        for found in shown
        if metric in found.metrics
    ]


def draw_loss(curve: LossCurve, quality: Quality | None) -> Figure:
    """Draw the loss of steps (raw and smoothed) and of evaluations, and the learning rate below it.

    The axis ends near the 99th percentile; larger values are drawn at the edge, so that they do not flatten the rest.
    """
    num_steps = float(curve.step[-1]) + (1 + curve.bucket_steps) / 2
    span = TimeAxis("steps", 1.0, num_steps)
    if quality is not None:  # steps per epoch from the last evaluation, else from the whole run
        pairs = [(found.epoch, float(found.step)) for found in quality.history if found.step and found.epoch > 0]
        epochs, steps = pairs[-1] if pairs else (quality.epochs, num_steps)
        span = TimeAxis("epochs", epochs / steps, num_steps) if epochs > 0 and steps > 0 else span
    each = "each step" if curve.bucket_steps == 1 else f"mean of {curve.bucket_steps:,} steps"

    def trace(name: str, numbers: Array) -> Rows:
        """Return a line's finite points, each at the end of its step."""
        pairs = zip(curve.step.tolist(), numbers.tolist(), strict=True)
        return [
            {"x": span.to_position(step + 1), "y": charts.round_digits(value), "what": name}
            for step, value in pairs
            if np.isfinite(value)
        ]

    raw, smooth, rates = trace(each, curve.loss), trace(SMOOTHED, curve.smooth), trace("learning rate", curve.lr)
    found: Rows = [
        {"x": span.to_position(found.step), "y": charts.round_digits(found.metrics["loss"]), "what": VALIDATION}
        for found in (thin_history(quality, MAX_EVALUATIONS) if quality else [])
        if "loss" in found.metrics
    ]
    usual = max((float(np.quantile([row["y"] for row in rows], 0.99)) for rows in (raw, smooth) if rows), default=1.0)
    highest_loss = max((row["y"] for row in found), default=0.0)
    top = charts.round_digits(1.05 * max(usual, min(highest_loss, 2 * usual))) or 1.0
    found = [row | {"y": min(row["y"], top)} for row in found]
    lowest = min((row["y"] for row in raw), default=0.0)
    kinds = {each: GREY, SMOOTHED: BLUE} | ({VALIDATION: ORANGE} if found else {})
    channels: dict[str, Any] = {
        "x": span.encode(labelled=False),
        "y": charts.y_axis("loss", domain=[min(0.0, lowest), top], nice=False, tickCount=5, **LEFT),
        "color": charts.colour_scale(kinds, symbolType="circle", symbolOpacity=1),
        "tooltip": tooltips(what="loss", y="value", x=span.title),
    }
    look = {"strokeWidth": 1, "opacity": 0.55, "clip": True, "point": len(raw) == 1}
    layers = [mark("line", raw, look, **channels), mark("line", smooth, {"strokeWidth": 2, "clip": True}, **channels)]
    layers += [charts.points(found, 40, **channels)] if found else []
    solid = {"color": TEAL, "strokeWidth": 1.5, "point": len(rates) == 1}
    y = charts.y_axis("learning rate", zero=True, tickCount=3, format="~g", **LEFT)
    rate = mark("line", rates, solid, x=span.encode(), y=y, tooltip=tooltips(y="learning rate", x=span.title))
    chart = charts.stack_panels([charts.build_layered(layers, 220), rate.properties(width="container", height=80)])
    finite = curve.smooth[np.isfinite(curve.smooth)]
    went = f"from {finite[0]:.3g} to {finite[-1]:.3g}" if len(finite) else "never finite"
    summary = f"Training loss, smoothed: {went} over {curve.num_steps:,} steps."
    return build_figure("loss", "Training loss and learning rate", summary, chart)


def build_runs(view: RunView) -> Section | None:
    """Draw the runs of train --runs: their curves in one chart, their times to target, and a table."""
    repeated, quality = view.result.repeated, view.result.quality
    if repeated is None or not repeated.runs:
        return None
    children = {child.run: child for child in view.children}
    known = [children.get(run.run) for run in repeated.runs]
    blocks: list[Block] = []
    if quality is not None:
        trained = [(child.label, child.result.quality) for child in view.children if child.result is not None]
        curves = {label: found for label, found in trained if found is not None and found.history}
        span = TimeAxis("epochs", 1.0, max((one.history[-1].epoch for one in curves.values()), default=0.0) or 1.0)
        rows: Rows = []
        for name, one in curves.items():
            # Fewer points per run if there are many runs.
            shown = thin_history(one, max(12, MAX_EVALUATIONS // len(curves)))
            rows += list_metric(shown, quality.metric, span, name)
        if rows:
            layers = draw_metric(rows, quality, span, dict(zip(curves, itertools.cycle(RUN_COLOURS), strict=False)))
            title = f"{name_metric(quality.metric).replace('top', 'Top', 1)} over epochs, all runs"
            blocks.append(build_figure("accuracy-runs", title, "", layers, height=HEIGHT))
        blocks += draw_times(repeated)
    links = [child.link if child else None for child in known]
    caption = SCORED if repeated.score_seconds is not None else ""
    results = [child.result if child else None for child in known]
    blocks.append(build_training_table(repeated, quality, results, links, caption))
    begun = "" if len(repeated.runs) == repeated.num_runs else f" of {repeated.num_runs}"
    lead = f"{format_count(len(repeated.runs), 'run')}{begun} with consecutive seeds, each in its own process."
    return Section("trainings", "Runs", blocks, lead)


def draw_times(repeated: Repeated) -> list[Figure]:
    """Draw each run's time to target; runs that the olympic mean drops are grey, the mean is a line."""
    timed = [(run, run.seconds_to_target) for run in repeated.runs if run.seconds_to_target is not None]
    if len(timed) < 2:
        return []
    (unit, factor), score = charts.choose_unit(max(seconds for _, seconds in timed)), repeated.score_seconds
    rows: Rows = [
        {"what": f"seed {run.seed}", "x": charts.round_digits(seconds * factor), "shown": format_seconds(seconds)}
        | {"kind": "counted" if run.counted or score is None else "dropped"}
        for run, seconds in timed
    ]
    title, x, mean = "Time to target", charts.x_axis(unit, zero=True, tickCount=8), Layers()
    if score is not None:
        title += "; the line is the olympic mean"
        mean = [mark("rule", [{"x": score * factor}], {"color": ORANGE, "strokeWidth": 2}, x=x)]
    color = charts.colour_scale({"counted": BLUE, "dropped": GREY}, "kind", legend=score is not None, columns=2)
    tooltip = tooltips(what="run", shown="time to target", kind="score")
    return [
        build_figure(
            "times-to-target", title, "", charts.bar_chart(rows, x, step=28, color=color, over=mean, tooltip=tooltip)
        )
    ]


def build_convergence(view: RunView) -> Section | None:
    """Compare epochs to target with MLPerf's reference; None if benchmark, data or optimizer differ from it.

    A log that cannot be read is a warning; a log outside the run folder is ignored.
    """
    if view.result.kind != "train":
        return None
    logs = [log for log in find_run_logs(view.path) if view.find_inside(str(log.relative_to(view.path)))]
    runs, errors = read_logs(logs[:MAX_LOGS])
    view.warnings.extend(err.message for err in errors)
    if not runs or convergence.explain_missing_reference(runs) is not None:
        return None
    benchmark, batch = runs[0].benchmark or "", runs[0].global_batch or 0
    expected = convergence.expect(benchmark, batch)
    assert expected is not None  # else explain_missing_reference returned a reason
    assessment, note = convergence.assess_runs(runs)
    if assessment is None:  # some runs missed the target
        note = f"{note}; the reference needs {expected.mean:.1f} epochs at a batch of {expected.batch:,}"
    lead = f"{note[0].upper()}{note[1:]}."
    points = convergence.list_points(benchmark)
    counted = convergence.prune(points, convergence.NUM_RUNS[benchmark])
    rows = [
        [
            *(f"{point.batch:,}", f"{point.mean:.2f}", f"{point.least:.2f}", f"{point.stdev:.2f}"),
            "used here" if point.batch in expected.points else "" if point in counted else "not counted",
        ]
        for point in points
    ]
    caption = (
        f"{convergence.SOURCE[benchmark]}. The mean excludes the fastest and the slowest run. MLPerf rejects "
        "results with fewer epochs than the minimum. Not counted: slower than the line between its neighbours."
    )
    heads = ["global batch", "mean epochs", "minimum", "stdev", ""]
    table = Table(heads, rows, caption=caption, numeric=[True] * 4 + [False])
    drawn = draw_convergence(runs, points, counted, lead)
    return Section("convergence", "Convergence compared with MLPerf's reference", (drawn, table), lead)


def draw_convergence(runs: list[LoggedRun], points: list[Expected], counted: list[Expected], text: str) -> Figure:
    batch, num_runs = runs[0].global_batch or 0, convergence.NUM_RUNS[runs[0].benchmark or ""]

    def build_row(at: int, epochs: float, what: str) -> dict[str, Any]:
        return {"batch": at, "epochs": charts.round_digits(epochs), "what": what}

    between = []  # linear in the batch size, so a curve on this logarithmic axis
    for low, high in itertools.pairwise(counted):
        sizes = [round(low.batch * (high.batch / low.batch) ** (part / PARTS)) for part in range(1, PARTS)]
        between += [low, *(convergence.interpolate(size, low, high, num_runs) for size in sizes)]
    curve = [build_row(one.batch, one.mean, MEAN) | {"least": one.least} for one in (*between, counted[-1])]
    reference = [build_row(point.batch, point.mean, MEAN if point in counted else NOT_COUNTED) for point in points]
    trained = [
        build_row(batch, run.epochs, REACHED if run.converged else MISSED) for run in runs if run.epochs is not None
    ]
    kinds = {MEAN: BLUE, NOT_COUNTED: GREY, REACHED: ORANGE, MISSED: charts.RED}
    least, most = 0.9 * min(batch, points[0].batch), 1.1 * max(batch, points[-1].batch)
    powers = [2**n for n in range(31) if least <= 2**n <= most]
    scale = {"type": "log", "domain": [least, most], "nice": False}
    x = charts.x_axis("images per step (global batch)", "batch", **scale, values=powers, format=",d")
    y = charts.y_axis("epochs to the target", "epochs", zero=True, tickCount=6)
    color, tooltip = charts.colour_scale(kinds, columns=2, symbolType="circle"), tooltips("what", "batch:Q", "epochs:Q")
    layers = [
        mark("area", curve, {"opacity": 0.25, "color": BLUE}, x=x, y=y, y2="least:Q"),
        mark("line", curve, {"strokeWidth": 1.5}, x=x, y=y, color=color),
        charts.points(reference, 30, x=x, y=y, color=color, tooltip=tooltip),
        charts.points(trained, 90, x=x, y=y, color=color, tooltip=tooltip),
    ]
    title = "Epochs to the target by batch size"
    return build_figure("convergence", title, text, layers, height=CONVERGENCE_HEIGHT)
