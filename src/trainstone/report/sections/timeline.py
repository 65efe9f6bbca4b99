"""Step times over the run with warm-up and outliers, and below them on the same axis what telemetry measured."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from typing import Any

import altair as alt
import numpy as np

from trainstone.report.blocks import Section
from trainstone.report.charts import (
    BLUE,
    GREY,
    LEFT,
    ORANGE,
    PALETTE,
    PURPLE,
    RED,
    SHADE,
    Layers,
    Rows,
    across,
    another,
    colours,
    figure,
    height_of,
    layered,
    mark,
    panels,
    points,
    round_sensibly,
    tips,
    up,
)
from trainstone.report.view import RunView
from trainstone.results.panels import TelemetryPoint
from trainstone.results.samples import HINDRANCES
from trainstone.results.series import StepSeries
from trainstone.results.tables import Table
from trainstone.units import format_seconds

NUM_STRETCHES = 20
STEPS_HEIGHT, PANEL_HEIGHT = 220, 80
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
OTHERS = "the others"
UNLIKE = 0.05
"""Of many devices those are named whose mean is so far off the median device's in any quantity."""


def build(view: RunView) -> Section | None:
    """One figure of panels: steps, then each measured quantity, then throttling."""
    drawn: list[Callable[[alt.X], Any]] = []
    told = []
    steps = view.steps
    if steps is not None:
        drawn.append(partial(draw_steps, view, steps))
        told.append(_describe_steps(view, steps))
    measured = list_measured(view.telemetry)
    shown = name_devices(measured)
    for title, rows in measured.items():
        drawn.append(partial(draw_quantity, rows, title, shown, title == list(measured)[-1]))
        inside = [row["y"] for row in rows]
        told.append(f"{title} from {min(inside):.3g} to {max(inside):.3g}")
    if throttled := list_throttled(view.telemetry):
        drawn.append(partial(draw_throttling, throttled))
        told.append(f"throttled for {', '.join(sorted({row['reason'] for row in throttled}))}")
    if not drawn:
        return None
    end = _find_end(view)
    chart = panels([draw(_time_axis(end, labelled=draw is drawn[-1])) for draw in drawn])
    table = _tabulate(steps) if steps else None
    title = "Steps and telemetry over time" if steps else "Telemetry over time"
    return Section(
        "timeline",
        "Steps over time" if steps else title,
        [figure("timeline", title, f"{'. '.join(told)}.", chart, table)],
        _explain(view, steps) if steps else "",
    )


def _explain(view: RunView, steps: StepSeries) -> str:
    """Say what is drawn, and what is not."""
    told = "Time runs from the start of the measurement."
    if steps.bucket_steps > 1:
        told += f" The line is the mean of {steps.bucket_steps} steps at a time, the band their fastest and slowest."
    found = view.result.step_seconds
    if found and found.num_outliers > len(found.outlier_steps):
        told += f" Of {found.num_outliers} outliers the first {len(found.outlier_steps)} are marked."
    if view.result.world.ranks > 1:
        told += f" The steps are those of rank 0 of {view.result.world.ranks}."
    return told


def _time_axis(end: float, *, labelled: bool) -> alt.X:
    title = "seconds" if labelled else None
    return across(title, domain=[0, end], nice=False, grid=True, labels=labelled, ticks=labelled)


def _find_end(view: RunView) -> float:
    ends = [view.steps.end_seconds] if view.steps else []
    ends += [sampled[-1].time_seconds for sampled in view.telemetry.values()]
    return max(max(ends), 1e-6)


def _describe_steps(view: RunView, steps: StepSeries) -> str:
    noun = "step" if steps.num_steps == 1 else "steps"
    told = f"{steps.num_steps} {noun} in {format_seconds(steps.end_seconds)}"
    found, throughput = view.result.step_seconds, view.result.throughput
    if found and throughput:
        told += f"; median {format_seconds(found.median)}, slowest {format_seconds(float(steps.high_seconds.max()))}"
        if throughput.steady_from_step:
            before = "warm-up until" if throughput.steady else "not steady; judged from"
            told += f"; {before} step {throughput.steady_from_step}"
        told += f"; outliers: {found.num_outliers}"
    return told


def _tabulate(steps: StepSeries) -> Table:
    """A few stretches of the run, for who cannot see the picture."""
    rows = []
    for part in np.array_split(np.arange(len(steps.count)), min(NUM_STRETCHES, len(steps.count))):
        count = float(steps.count[part].sum())
        mean = float((steps.mean_seconds[part] * steps.count[part]).sum() / count)
        low, high = float(steps.low_seconds[part].min()), float(steps.high_seconds[part].max())
        first = int(steps.first_step[part[0]])
        rows.append([f"{first} … {first + int(count) - 1}", *(format_seconds(spent) for spent in (mean, low, high))])
    return Table(["steps", "mean", "fastest", "slowest"], rows, numeric=[False, True, True, True])


@dataclass(frozen=True)
class StepScale:
    """The vertical axis of steps: slower ones than `top` are drawn at its upper edge."""

    top: float
    factor: float
    unit: str
    bottom: float

    def encode(self) -> alt.Y:
        """Return the axis."""
        domain = [self.bottom * self.factor, 1.05 * self.top * self.factor]
        return up(f"step ({self.unit})", domain=domain, nice=False, zero=False, tickCount=5, **LEFT)

    def place(self, seconds: float) -> float:
        """Return where a duration stands."""
        return round_sensibly(min(seconds, 1.02 * self.top) * self.factor)


def choose_scale(view: RunView, steps: StepSeries) -> StepScale:
    """Show up to one and a half times p99 to scale: a slow first step would flatten all others."""
    found = view.result.step_seconds
    usual = 1.5 * (found.p99 if found else float(np.quantile(steps.high_seconds, 0.99)))
    top = max(min(float(steps.high_seconds.max()), usual), 1e-9)
    factor, unit = (1e3, "ms") if top < 1 else (1.0, "s")
    return StepScale(top, factor, unit, bottom=min(0.9 * float(steps.low_seconds.min()), 0.9 * top))


def draw_steps(view: RunView, steps: StepSeries, x: alt.X) -> Any:
    """Points where each is a step, else a line of means in a band from the fastest to the slowest."""
    scale = choose_scale(view, steps)
    y = scale.encode()
    columns = (steps.start_seconds, steps.mean_seconds, steps.low_seconds, steps.high_seconds)
    rows: Rows = [
        {
            "x": round_sensibly(t),
            "y": scale.place(mean),
            "low": scale.place(low),
            "high": scale.place(high),
            "which": which,
            "took": format_seconds(mean),
        }
        for t, mean, low, high, which in zip(*columns, name_buckets(steps), strict=True)
    ]
    layers = _shade_warm_up(view, steps, x)
    if steps.bucket_steps == 1:
        tooltip = tips(which="step", took="took", x="at second")
        layers.append(points(rows, 14, {"opacity": 0.75, "color": BLUE}, x=x, y=y, tooltip=tooltip))
    else:
        tooltip = tips(which="step", took="took on average", x="at second")
        layers.append(mark("area", rows, {"opacity": 0.3, "color": BLUE}, x=x, y=another(y, "low"), y2="high:Q"))
        layers.append(mark("line", rows, {"color": BLUE, "strokeWidth": 1.2}, x=x, y=y, tooltip=tooltip))
    layers += _mark_outliers(steps, x, scale)
    if view.result.step_seconds:
        middle: Rows = [{"y": view.result.step_seconds.median * scale.factor}]
        layers.append(mark("rule", middle, {"strokeDash": [4, 3], "color": GREY}, y=y))
    return layered(layers, STEPS_HEIGHT)


def name_buckets(steps: StepSeries) -> list[str]:
    """Return the step, or the first and last of each bucket."""
    pairs = zip(steps.first_step.astype(int).tolist(), steps.count.astype(int).tolist(), strict=True)
    return [str(first) if count == 1 else f"{first} to {first + count - 1}" for first, count in pairs]


def _shade_warm_up(view: RunView, steps: StepSeries, x: alt.X) -> Layers:
    throughput = view.result.throughput
    if throughput is None or throughput.steady_from_step == 0:
        return []
    after = steps.start_seconds[steps.first_step >= throughput.steady_from_step]
    end = float(after[0]) if len(after) else steps.end_seconds
    name = "warm-up" if throughput.steady else "not judged"
    rows: Rows = [{"x": 0, "end": end, "what": name}]
    return [
        mark("rect", rows, {"color": SHADE}, x=x, x2="end:Q", tooltip="what:N"),
        mark("text", rows, {"align": "left", "dx": 4, "dy": 10, "y": 0, "color": GREY}, x=x, text="what:N"),
    ]


def _mark_outliers(steps: StepSeries, x: alt.X, scale: StepScale) -> Layers:
    """Flagged steps in orange; what is too slow for the picture stands at its edge as a triangle."""
    kept = zip(steps.kept["step"].astype(int), steps.kept["start_seconds"], steps.kept["step_seconds"], strict=True)
    marked = {str(step): (t, seconds) for step, t, seconds in kept}
    for which, t, seconds in zip(name_buckets(steps), steps.start_seconds, steps.high_seconds, strict=True):
        if seconds > scale.top:
            marked.setdefault(which, (t, seconds))
    rows: Rows = [
        {
            "which": which,
            "x": round_sensibly(t),
            "y": scale.place(seconds),
            "took": format_seconds(seconds),
            "what": "off the scale" if seconds > scale.top else "outlier",
        }
        for which, (t, seconds) in marked.items()
    ]
    if not rows:
        return []
    shapes = alt.Scale(domain=["outlier", "off the scale"], range=["circle", "triangle-up"])
    shape = alt.Shape("what:N", title=None, scale=shapes, legend=alt.Legend(orient="top-right"))
    tooltip = tips(which="step", took="took", what="what")
    return [points(rows, 45, {"color": ORANGE}, x=x, y=scale.encode(), shape=shape, tooltip=tooltip)]


def list_measured(telemetry: dict[str, list[TelemetryPoint]]) -> dict[str, Rows]:
    """Rows of each quantity that any device measured, by title of its panel."""
    measured = {}
    for name, (title, factor) in PANELS.items():
        rows: Rows = [
            {"x": round_sensibly(p.time_seconds), "y": round_sensibly(p.means[name] * factor), "device": device}
            for device, sampled in telemetry.items()
            for p in sampled
            if name in p.means
        ]
        if rows and not (name in DULL and len({row["y"] for row in rows}) == 1):
            measured[title] = rows
    return measured


def name_devices(measured: dict[str, Rows]) -> dict[str, str]:
    """Return each device's name in the legend: its own; of more than there are colours only unlike ones have one."""
    devices = list(dict.fromkeys(row["device"] for rows in measured.values() for row in rows))
    if len(devices) <= len(PALETTE):
        return {device: device for device in devices}
    distance = dict.fromkeys(devices, 0.0)
    for rows in measured.values():
        groups: dict[str, list[float]] = {}
        for row in rows:
            groups.setdefault(row["device"], []).append(row["y"])
        means = {device: fmean(group) for device, group in groups.items()}
        middle = median(means.values())
        for device, mean in means.items():
            distance[device] = max(distance[device], abs(mean / middle - 1) if middle else 0.0)
    unlike = sorted((device for device in devices if distance[device] > UNLIKE), key=lambda device: -distance[device])
    named = unlike[: len(PALETTE) - 1]
    return {device: device if device in named else OTHERS for device in devices}


def draw_quantity(rows: Rows, title: str, shown: dict[str, str], legend: bool, x: alt.X) -> Any:
    """One line a device; all in one colour where there is one device."""
    scale: dict[str, Any] = {"domain": [0, 100]} if title.endswith("(%)") else {"zero": False}
    named: Rows = [{**row, "shown": shown[row["device"]]} for row in rows]
    labels = sorted(set(shown.values()), key=lambda label: (label == OTHERS, label))
    kinds = {label: GREY if label == OTHERS else PALETTE[place] for place, label in enumerate(labels)}
    color = colours(kinds, "shown", legend=legend, columns=2, symbolLimit=len(labels)) if len(shown) > 1 else None
    look = {"strokeWidth": 1.5, "color": BLUE, "point": len(rows) == 1}
    line = mark(
        "line", named, look, x=x, y=up(title, tickCount=3, **LEFT, **scale), detail="device:N", color=color,
        tooltip=tips("device", x="at second", y=title),
    )  # fmt: skip
    return line.properties(width="container", height=PANEL_HEIGHT)


def list_throttled(telemetry: dict[str, list[TelemetryPoint]]) -> Rows:
    """When a device was hindered, and why; a power cap is no hindrance."""
    return [
        {"x": round_sensibly(point.time_seconds), "reason": reason, "device": device}
        for device, sampled in telemetry.items()
        for point in sampled
        for reason in point.throttle
        if reason in HINDRANCES
    ]


def draw_throttling(rows: Rows, x: alt.X) -> Any:
    """A tick at each sample, one line a reason."""
    reasons = sorted({row["reason"] for row in rows})
    kinds = dict(zip(reasons, (RED, ORANGE, PURPLE, GREY, BLUE), strict=False))
    y = alt.Y("reason:N", title="throttled", axis=alt.Axis(**LEFT, labels=False, ticks=False))
    color = colours(kinds, "reason", columns=2, labelLimit=200)
    tooltip = tips("device", "reason", x="at second")
    ticks = mark("tick", rows, {"thickness": 2}, x=x, y=y, color=color, tooltip=tooltip)
    return ticks.properties(width="container", height=height_of(len(reasons), 22))
