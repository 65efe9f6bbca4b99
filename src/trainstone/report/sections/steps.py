"""Step times over the run, warm-up shaded and outliers marked; telemetry below them on the same time axis."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import altair as alt
import numpy as np

from trainstone.report.blocks import Figure, Section, Table
from trainstone.report.charts import (
    AXIS_WIDTH,
    BLUE,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SHADE,
    figure,
    height_of,
    round_sensibly,
    values,
)
from trainstone.report.view import RunView
from trainstone.results.panels import TelemetryPoint
from trainstone.results.samples import HINDRANCES
from trainstone.results.series import StepSeries
from trainstone.units import format_seconds

# Telemetry columns: title of the panel, factor to its unit.
PANELS = {
    "util_percent": ("use (%)", 1.0),
    "clock_mhz": ("clock (GHz)", 1e-3),
    "mem_clock_mhz": ("memory clock (GHz)", 1e-3),
    "power_watts": ("power (W)", 1.0),
    "temp_celsius": ("temperature (°C)", 1.0),
    "mem_used_bytes": ("memory (GiB)", 2.0**-30),
}

DULL = ("mem_clock_mhz",)
"""Shown only when it moves."""
MAX_MARKED = 1000
LEFT: dict[str, Any] = {"minExtent": AXIS_WIDTH, "maxExtent": AXIS_WIDTH}


def build(view: RunView) -> Section | None:
    """One figure of panels that share the time axis."""
    if view.steps is None and not view.telemetry:
        return None
    drawn = draw_timeline(view)
    lead = "Time runs from the start of the measurement. Every step is kept; the slowest ones too."
    return Section("timeline", "Steps over time", [drawn], lead)


def draw_timeline(view: RunView) -> Figure:
    """Panels one below the other: steps, then each measured quantity, then throttling."""
    panels: list[Callable[[alt.X], Any]] = []
    told = []
    steps = view.steps
    if steps is not None:
        panels.append(partial(_draw_steps, view, steps))
        told.append(_tell_steps(view, steps))
    measured = measured_rows(view.telemetry)
    for title, rows in measured.items():
        told_devices = len(view.telemetry) > 1 and title == list(measured)[-1]
        panels.append(partial(_draw_quantity, rows, title, len(view.telemetry) > 1, told_devices))
        inside = [row["value"] for row in rows]
        told.append(f"{title} from {min(inside):.3g} to {max(inside):.3g}")
    if throttled := throttle_rows(view.telemetry):
        panels.append(partial(_draw_throttling, throttled))
        told.append(f"throttled for {', '.join(sorted({row['reason'] for row in throttled}))}")
    end = _end_seconds(view)
    drawn = [draw(_time_axis(end, labelled=draw is panels[-1])) for draw in panels]
    chart = alt.vconcat(*drawn, spacing=10).resolve_scale(x="shared", color="independent")
    return figure("timeline", "Steps and telemetry over time", f"{'. '.join(told)}.", chart, _tabulate(view))


def _time_axis(end: float, *, labelled: bool) -> alt.X:
    axis = alt.Axis(grid=True, labels=labelled, ticks=labelled, labelOverlap=True)
    return alt.X("t:Q", title="seconds" if labelled else None, scale=alt.Scale(domain=[0, end], nice=False), axis=axis)


def _end_seconds(view: RunView) -> float:
    ends = [view.steps.end_seconds] if view.steps else []
    ends += [points[-1].time_seconds for points in view.telemetry.values()]
    return max(max(ends), 1e-6)


@dataclass(frozen=True)
class Scale:
    """The vertical axis of the steps: slower ones than `top` are drawn at its upper edge."""

    top: float
    factor: float
    unit: str
    bottom: float

    def encode(self, field: str = "y:Q") -> alt.Y:
        domain = [self.bottom * self.factor, 1.05 * self.top * self.factor]
        scale = alt.Scale(domain=domain, nice=False, zero=False)
        return alt.Y(field, title=f"step ({self.unit})", scale=scale, axis=alt.Axis(**LEFT, tickCount=5))

    def place(self, seconds: float) -> float:
        return round_sensibly(min(seconds, 1.02 * self.top) * self.factor)


def _choose_scale(view: RunView, steps: StepSeries) -> Scale:
    found = view.result.step_seconds
    usual = 1.5 * (found.p99 if found else float(np.quantile(steps.high_seconds, 0.99)))
    top = max(min(float(steps.high_seconds.max()), usual), 1e-9)
    factor, unit = (1e3, "ms") if top < 1 else (1.0, "s")
    return Scale(top, factor, unit, bottom=0.9 * float(steps.low_seconds.min()))


def _draw_steps(view: RunView, steps: StepSeries, axis: alt.X) -> Any:
    scale = _choose_scale(view, steps)
    columns = (steps.start_seconds, steps.mean_seconds, steps.low_seconds, steps.high_seconds, steps.first_step)
    rows = [
        {
            "t": round_sensibly(t),
            "y": scale.place(mean),
            "low": scale.place(low),
            "high": scale.place(high),
            "step": int(step),
            "took": format_seconds(mean),
        }
        for t, mean, low, high, step in zip(*columns, strict=True)
    ]
    tooltip = [alt.Tooltip("step:Q"), alt.Tooltip("took:N", title="took"), alt.Tooltip("t:Q", title="at second")]
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
    return alt.layer(*layers).properties(width="container", height=220)


def _shade_warm_up(view: RunView, steps: StepSeries, axis: alt.X) -> list[Any]:
    throughput = view.result.throughput
    if throughput is None or throughput.steady_from_step == 0:
        return []
    after = steps.start_seconds[steps.first_step >= throughput.steady_from_step]
    end = float(after[0]) if len(after) else steps.end_seconds
    shade = alt.Chart(values([{"t": 0, "end": end, "what": "warm-up"}]))
    return [
        shade.mark_rect(color=SHADE).encode(x=axis, x2="end:Q", tooltip="what:N"),
        shade.mark_text(align="left", dx=4, dy=10, y=0, color=GREY, text="warm-up").encode(x=axis),
    ]


def _mark_outliers(steps: StepSeries, axis: alt.X, scale: Scale) -> list[Any]:
    """Flagged steps in orange; what is too slow for the picture stands at its edge as a triangle."""
    marked = dict(
        zip(steps.kept["step"], zip(steps.kept["start_seconds"], steps.kept["step_seconds"], strict=True), strict=True)
    )
    beyond = steps.high_seconds > scale.top
    for step, t, seconds in zip(
        steps.first_step[beyond], steps.start_seconds[beyond], steps.high_seconds[beyond], strict=True
    ):
        marked.setdefault(step, (t, seconds))
    rows = [
        {
            "step": int(step),
            "t": round_sensibly(t),
            "y": scale.place(seconds),
            "took": format_seconds(seconds),
            "what": "off the scale" if seconds > scale.top else "outlier",
        }
        for step, (t, seconds) in sorted(marked.items())[:MAX_MARKED]
    ]
    if not rows:
        return []
    tooltip = [alt.Tooltip("step:Q"), alt.Tooltip("took:N", title="took"), alt.Tooltip("what:N")]
    shapes = alt.Scale(domain=["outlier", "off the scale"], range=["circle", "triangle-up"])
    marks = alt.Chart(values(rows)).mark_point(filled=True, size=45, color=ORANGE, opacity=1)
    shape = alt.Shape("what:N", title=None, scale=shapes, legend=alt.Legend(orient="top-right"))
    return [marks.encode(x=axis, y=scale.encode(), shape=shape, tooltip=tooltip)]


def measured_rows(telemetry: dict[str, list[TelemetryPoint]]) -> dict[str, list[dict[str, Any]]]:
    """Rows of each quantity that any device measured, by title of its panel."""
    panels = {}
    for name, (title, factor) in PANELS.items():
        rows = [
            {"t": round_sensibly(p.time_seconds), "value": round_sensibly(p.means[name] * factor), "device": device}
            for device, points in telemetry.items()
            for p in points
            if name in p.means
        ]
        if rows and not (name in DULL and len({row["value"] for row in rows}) == 1):
            panels[title] = rows
    return panels


def throttle_rows(telemetry: dict[str, list[TelemetryPoint]]) -> list[dict[str, Any]]:
    """When a device was hindered, and why; a power cap is no hindrance."""
    return [
        {"t": round_sensibly(point.time_seconds), "reason": reason, "device": device}
        for device, points in telemetry.items()
        for point in points
        for reason in point.throttle
        if reason in HINDRANCES
    ]


def _draw_quantity(rows: list[dict[str, Any]], title: str, several: bool, legend: bool, axis: alt.X) -> Any:
    line = alt.Chart(values(rows)).mark_line(strokeWidth=1.5, color=BLUE, point=len(rows) == 1)
    domain = {"domain": [0, 100]} if title.endswith("(%)") else {"zero": False}
    scale = alt.Y("value:Q", title=title, scale=alt.Scale(**domain), axis=alt.Axis(**LEFT, tickCount=3))
    tooltip = [alt.Tooltip("device:N"), alt.Tooltip("t:Q", title="at second"), alt.Tooltip("value:Q", title=title)]
    drawn = line.encode(x=axis, y=scale, tooltip=tooltip)
    if several:
        names = alt.Legend(columns=2, symbolLimit=64) if legend else None
        drawn = drawn.encode(color=alt.Color("device:N", title=None, legend=names))
    return drawn.properties(width="container", height=80)


def _draw_throttling(rows: list[dict[str, Any]], axis: alt.X) -> Any:
    reasons = sorted({row["reason"] for row in rows})
    colours = alt.Scale(domain=reasons, range=[RED, ORANGE, PURPLE, GREY, BLUE][: len(reasons)])
    ticks = alt.Chart(values(rows)).mark_tick(thickness=2)
    drawn = ticks.encode(
        x=axis,
        y=alt.Y("reason:N", title="throttled", axis=alt.Axis(**LEFT, labels=False, ticks=False)),
        color=alt.Color("reason:N", title=None, scale=colours, legend=alt.Legend(columns=2, labelLimit=200)),
        tooltip=["device:N", "reason:N", alt.Tooltip("t:Q", title="at second")],
    )
    return drawn.properties(width="container", height=height_of(len(reasons), 22))


def _tell_steps(view: RunView, steps: StepSeries) -> str:
    told = f"{steps.num_steps} steps in {format_seconds(steps.end_seconds)}"
    found, throughput = view.result.step_seconds, view.result.throughput
    if found and throughput:
        told += f"; median {format_seconds(found.median)}, slowest {format_seconds(float(steps.high_seconds.max()))}"
        told += f"; warm-up until step {throughput.steady_from_step}; {found.num_outliers} outliers"
    return told


def _tabulate(view: RunView) -> Table | None:
    """Twenty stretches of the run, for who cannot see the picture."""
    steps = view.steps
    if steps is None:
        return None
    rows = []
    for part in np.array_split(np.arange(len(steps.count)), min(20, len(steps.count))):
        count = float(steps.count[part].sum())
        mean = float((steps.mean_seconds[part] * steps.count[part]).sum() / count)
        low, high = float(steps.low_seconds[part].min()), float(steps.high_seconds[part].max())
        first = int(steps.first_step[part[0]])
        rows.append(
            [f"{first} … {first + int(count) - 1}", format_seconds(mean), format_seconds(low), format_seconds(high)]
        )
    return Table(["steps", "mean", "fastest", "slowest"], rows, numeric=[False, True, True, True])
