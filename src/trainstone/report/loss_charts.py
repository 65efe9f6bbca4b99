"""The chart of a training run's loss, and below it the learning rate on the same axis of epochs."""

from typing import Any, NamedTuple

import altair as alt
import numpy as np

from trainstone.report.blocks import Figure
from trainstone.report.charts import BLUE, GREY, LEFT, ORANGE, TEAL, figure, round_sensibly, values
from trainstone.results.learning import thin_history
from trainstone.results.losscurve import Array, LossCurve
from trainstone.results.quality import Quality

Rows = list[dict[str, Any]]

MOST_EVALUATIONS = 300
SMOOTHED, VALIDATION = "smoothed", "validation"


class Axis(NamedTuple):
    """What runs across, from 0 to `end`, which is still to be multiplied by `factor` as every value is."""

    title: str
    factor: float
    end: float

    def place(self, value: float) -> float:
        """Return where a value stands."""
        return round_sensibly(value * self.factor)

    def encode(self, *, labelled: bool = True) -> alt.X:
        """Return the axis; panels above another share its labels."""
        axis = alt.Axis(labels=labelled, ticks=labelled, labelOverlap=True, labelSeparation=8, tickCount=10)
        scale = alt.Scale(domain=[0, self.place(self.end)], nice=False)
        return alt.X("x:Q", title=self.title if labelled else None, scale=scale, axis=axis)

    def tell(self) -> alt.Tooltip:
        """Return what a pointed-at value says of its place."""
        return alt.Tooltip("x:Q", title=self.title, format=",.4~g")


def find_epochs_per_step(quality: Quality | None, num_steps: float) -> float | None:
    """Return what a step is of an epoch, as the evaluations say, else the whole run; None if neither does."""
    if quality is None:
        return None
    pairs = [(found.epoch, float(found.step)) for found in quality.history if found.step and found.epoch > 0]
    epochs, steps = pairs[-1] if pairs else (quality.epochs, num_steps)
    return epochs / steps if epochs > 0 and steps > 0 else None


def draw_loss(curve: LossCurve, quality: Quality | None) -> Figure:
    """Two panels, aligned."""
    num_steps = float(curve.step[-1]) + (1 + curve.bucket_steps) / 2
    epochs = find_epochs_per_step(quality, num_steps)
    across = Axis("epochs" if epochs else "steps", epochs or 1.0, num_steps)
    panels = [draw_loss_panel(curve, quality, across), draw_rate_panel(curve, across)]
    chart = alt.vconcat(*panels, spacing=10).resolve_scale(x="shared", color="independent")
    return figure("loss", "Training loss and learning rate", tell_loss(curve), chart)


def draw_loss_panel(curve: LossCurve, quality: Quality | None, across: Axis) -> Any:
    """What the steps gave as a thin line behind the smoothed one; what evaluations gave as points."""
    each = "each step" if curve.bucket_steps == 1 else f"mean of {curve.bucket_steps:,} steps"
    raw, smooth = line_rows(curve, curve.loss, across, each), line_rows(curve, curve.smooth, across, SMOOTHED)
    top = find_top(curve, quality)
    found = validation_rows(quality, across, top) if quality else []
    kinds = {each: GREY, SMOOTHED: BLUE} | ({VALIDATION: ORANGE} if found else {})
    scale = alt.Scale(domain=[min(0.0, find_bottom(curve)), top], nice=False)
    y = alt.Y("y:Q", title="loss", scale=scale, axis=alt.Axis(**LEFT, tickCount=5))
    legend = alt.Legend(columns=3, labelLimit=260, symbolType="circle", symbolOpacity=1, symbolStrokeWidth=0)
    colours = alt.Scale(domain=list(kinds), range=list(kinds.values()))
    colour = alt.Color("what:N", title=None, scale=colours, legend=legend)
    tooltip = [alt.Tooltip("what:N", title="loss"), alt.Tooltip("y:Q", title="is", format=".4~g"), across.tell()]
    marks = [
        alt.Chart(values(raw)).mark_line(strokeWidth=1, opacity=0.55, clip=True, point=len(raw) == 1),
        alt.Chart(values(smooth)).mark_line(strokeWidth=2, clip=True),
    ]
    if found:
        marks.append(alt.Chart(values(found)).mark_point(filled=True, size=40, opacity=1))
    x = across.encode(labelled=False)
    drawn = [mark.encode(x=x, y=y, color=colour, tooltip=tooltip) for mark in marks]
    return alt.layer(*drawn).properties(width="container", height=220)


def line_rows(curve: LossCurve, losses: Array, across: Axis, name: str) -> Rows:
    """Return the points of a line, each where its step is done; a loss that is no number has none."""
    pairs = zip(curve.step.tolist(), losses.tolist(), strict=True)
    return [
        {"x": across.place(step + 1), "y": round_sensibly(loss), "what": name}
        for step, loss in pairs
        if np.isfinite(loss)
    ]


def validation_rows(quality: Quality, across: Axis, top: float) -> Rows:
    """Return the loss of the evaluations, where they have one; what is off the scale stands at its edge."""
    return [
        {"x": across.place(found.step), "y": min(round_sensibly(found.metrics["loss"]), top), "what": VALIDATION}
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


def find_bottom(curve: LossCurve) -> float:
    """Return the lowest loss; 0 without any."""
    return round_sensibly(float(np.nanmin(curve.loss))) if np.isfinite(curve.loss).any() else 0.0


def draw_rate_panel(curve: LossCurve, across: Axis) -> Any:
    """The learning rate, in small."""
    pairs = zip(curve.step.tolist(), curve.lr.tolist(), strict=True)
    rows = [{"x": across.place(step + 1), "y": round_sensibly(rate)} for step, rate in pairs if np.isfinite(rate)]
    y = alt.Y("y:Q", title="learning rate", scale=alt.Scale(zero=True), axis=alt.Axis(**LEFT, tickCount=3, format="~g"))
    tooltip = [alt.Tooltip("y:Q", title="learning rate", format=".4~g"), across.tell()]
    line = alt.Chart(values(rows)).mark_line(color=TEAL, strokeWidth=1.5, point=len(rows) == 1)
    return line.encode(x=across.encode(), y=y, tooltip=tooltip).properties(width="container", height=80)


def tell_loss(curve: LossCurve) -> str:
    """Say what the chart shows."""
    finite, rates = (column[np.isfinite(column)] for column in (curve.smooth, curve.lr))
    went = f"from {finite[0]:.3g} to {finite[-1]:.3g}" if len(finite) else "never a number"
    rate = f"; learning rate from {rates.min():.3g} to {rates.max():.3g}" if len(rates) else ""
    return f"Training loss, smoothed: {went} over {curve.num_steps:,} steps{rate}."
