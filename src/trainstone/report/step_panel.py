"""The panel of step times: every step or buckets of them, warm-up shaded, outliers marked."""

from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np

from trainstone.report.charts import BLUE, GREY, LEFT, ORANGE, SHADE, round_sensibly, values
from trainstone.report.view import RunView
from trainstone.results.series import StepSeries
from trainstone.units import format_seconds

HEIGHT = 220


@dataclass(frozen=True)
class Scale:
    """The vertical axis: slower steps than `top` are drawn at its upper edge."""

    top: float
    factor: float
    unit: str
    bottom: float

    def encode(self, field: str = "y:Q") -> alt.Y:
        """Return the axis for a field."""
        domain = [self.bottom * self.factor, 1.05 * self.top * self.factor]
        scale = alt.Scale(domain=domain, nice=False, zero=False)
        return alt.Y(field, title=f"step ({self.unit})", scale=scale, axis=alt.Axis(**LEFT, tickCount=5))

    def place(self, seconds: float) -> float:
        """Return where a duration stands."""
        return round_sensibly(min(seconds, 1.02 * self.top) * self.factor)


def choose_scale(view: RunView, steps: StepSeries) -> Scale:
    """Show up to one and a half times p99 to scale: a slow first step would flatten all others."""
    found = view.result.step_seconds
    usual = 1.5 * (found.p99 if found else float(np.quantile(steps.high_seconds, 0.99)))
    top = max(min(float(steps.high_seconds.max()), usual), 1e-9)
    factor, unit = (1e3, "ms") if top < 1 else (1.0, "s")
    return Scale(top, factor, unit, bottom=min(0.9 * float(steps.low_seconds.min()), 0.9 * top))


def draw_steps(view: RunView, steps: StepSeries, axis: alt.X) -> Any:
    """Points where each is a step, else a line of means in a band from the fastest to the slowest."""
    scale = choose_scale(view, steps)
    columns = (steps.start_seconds, steps.mean_seconds, steps.low_seconds, steps.high_seconds)
    rows = [
        {
            "t": round_sensibly(t),
            "y": scale.place(mean),
            "low": scale.place(low),
            "high": scale.place(high),
            "which": which,
            "took": format_seconds(mean),
        }
        for t, mean, low, high, which in zip(*columns, name_buckets(steps), strict=True)
    ]
    took = "took" if steps.bucket_steps == 1 else "took on average"
    tooltip = [alt.Tooltip("which:N", title="step"), alt.Tooltip("took:N", title=took), alt.Tooltip("t:Q")]
    layers = _shade_warm_up(view, steps, axis)
    if steps.bucket_steps == 1:
        points = alt.Chart(values(rows)).mark_point(filled=True, size=14, opacity=0.75, color=BLUE)
        layers.append(points.encode(x=axis, y=scale.encode(), tooltip=tooltip))
    else:
        area = alt.Chart(values(rows)).mark_area(opacity=0.3, color=BLUE)
        layers.append(area.encode(x=axis, y=scale.encode("low:Q"), y2="high:Q"))
        line = alt.Chart(values(rows)).mark_line(color=BLUE, strokeWidth=1.2)
        layers.append(line.encode(x=axis, y=scale.encode(), tooltip=tooltip))
    layers += _mark_outliers(steps, axis, scale)
    if view.result.step_seconds:
        line = alt.Chart(values([{"y": view.result.step_seconds.median * scale.factor}]))
        layers.append(line.mark_rule(strokeDash=[4, 3], color=GREY).encode(y=scale.encode()))
    return alt.layer(*layers).properties(width="container", height=HEIGHT)


def name_buckets(steps: StepSeries) -> list[str]:
    """Return the step, or the first and last of each bucket."""
    pairs = zip(steps.first_step.astype(int).tolist(), steps.count.astype(int).tolist(), strict=True)
    return [str(first) if count == 1 else f"{first} to {first + count - 1}" for first, count in pairs]


def _shade_warm_up(view: RunView, steps: StepSeries, axis: alt.X) -> list[Any]:
    throughput = view.result.throughput
    if throughput is None or throughput.steady_from_step == 0:
        return []
    after = steps.start_seconds[steps.first_step >= throughput.steady_from_step]
    end = float(after[0]) if len(after) else steps.end_seconds
    name = "warm-up" if throughput.steady else "not judged"
    shade = alt.Chart(values([{"t": 0, "end": end, "what": name}]))
    return [
        shade.mark_rect(color=SHADE).encode(x=axis, x2="end:Q", tooltip="what:N"),
        shade.mark_text(align="left", dx=4, dy=10, y=0, color=GREY, text=name).encode(x=axis),
    ]


def _mark_outliers(steps: StepSeries, axis: alt.X, scale: Scale) -> list[Any]:
    """Flagged steps in orange; what is too slow for the picture stands at its edge as a triangle."""
    kept = zip(steps.kept["step"].astype(int), steps.kept["start_seconds"], steps.kept["step_seconds"], strict=True)
    marked = {str(step): (t, seconds) for step, t, seconds in kept}
    buckets = zip(name_buckets(steps), steps.start_seconds, steps.high_seconds, strict=True)
    for which, t, seconds in buckets:
        if seconds > scale.top:
            marked.setdefault(which, (t, seconds))
    rows = [
        {
            "which": which,
            "t": round_sensibly(t),
            "y": scale.place(seconds),
            "took": format_seconds(seconds),
            "what": "off the scale" if seconds > scale.top else "outlier",
        }
        for which, (t, seconds) in marked.items()
    ]
    if not rows:
        return []
    tooltip = [alt.Tooltip("which:N", title="step"), alt.Tooltip("took:N", title="took"), alt.Tooltip("what:N")]
    shapes = alt.Scale(domain=["outlier", "off the scale"], range=["circle", "triangle-up"])
    marks = alt.Chart(values(rows)).mark_point(filled=True, size=45, color=ORANGE, opacity=1)
    shape = alt.Shape("what:N", title=None, scale=shapes, legend=alt.Legend(orient="top-right"))
    return [marks.encode(x=axis, y=scale.encode(), shape=shape, tooltip=tooltip)]
