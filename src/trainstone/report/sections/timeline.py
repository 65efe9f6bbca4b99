"""Report section with step times over the run (warm-up and outliers marked) and telemetry on the same time axis."""

from statistics import fmean, median
from typing import Any

import altair as alt
import numpy as np

from trainstone.report import charts
from trainstone.report.blocks import Section
from trainstone.report.charts import (
    BLUE,
    GREY,
    LEFT,
    ORANGE,
    PALETTE,
    SHADE,
    Layers,
    Rows,
    mark,
    round_digits,
    tooltips,
)
from trainstone.report.view import RunView
from trainstone.results.series import StepSeries, TelemetryPoint
from trainstone.results.telemetry import THROTTLE_REASONS
from trainstone.units import format_count, format_seconds

STEPS_HEIGHT, PANEL_HEIGHT = 220, 80
# Telemetry columns: title of the panel, factor to its unit.
PANELS = {
    "util_percent": ("utilisation (%)", 1.0),
    "clock_mhz": ("clock (GHz)", 1e-3),
    "mem_clock_mhz": ("memory clock (GHz)", 1e-3),
    "power_watts": ("power (W)", 1.0),
    "temp_celsius": ("temperature (°C)", 1.0),
    "mem_used_bytes": ("memory (GiB)", 2.0**-30),
}
OTHERS = "other devices"
OUTLIER_DEVIATION = 0.05  # with many devices, only those are named whose mean differs this much from the median device


def build(view: RunView) -> Section | None:
    """Draw one figure of panels: steps, each measured quantity, throttling."""
    steps, measured = view.steps, list_measured(view.telemetry)
    throttled: Rows = [  # when and why a device was throttled; a power cap does not count
        {"x": round_digits(point.time_seconds), "reason": reason, "device": device}
        for device, sampled in view.telemetry.items()
        for point in sampled
        for reason in point.throttle
        if reason in THROTTLE_REASONS
    ]
    ends = [sampled[-1].time_seconds for sampled in view.telemetry.values()]
    end = max([*ends, steps.end_seconds if steps else 0.0, 1e-6])
    count = len(measured) + (steps is not None) + bool(throttled)
    if not count:
        return None
    axes = iter(  # only the last panel has labels
        charts.x_axis("seconds" if last else None, domain=[0, end], nice=False, grid=True, labels=last, ticks=last)
        for last in [False] * (count - 1) + [True]
    )
    drawn, texts, lead, title = [], [], "", "Telemetry over time"
    if steps is not None:
        drawn.append(draw_steps(view, steps, next(axes)))
        title = "Steps and telemetry over time"
        described, lead = describe_steps(view, steps)
        texts.append(described)
    shown = choose_legend_names(measured)
    labels = sorted(set(shown.values()), key=lambda label: (label == OTHERS, label))
    kinds = {label: GREY if label == OTHERS else PALETTE[index] for index, label in enumerate(labels)}
    for what, rows in measured.items():
        legend, scale = what == list(measured)[-1], {"domain": [0, 100]} if what.endswith("(%)") else {"zero": False}
        named: Rows = [{**row, "shown": shown[row["device"]]} for row in rows]
        color = charts.colour_scale(kinds, "shown", legend=legend, columns=2) if len(shown) > 1 else None
        look = {"strokeWidth": 1.5, "color": BLUE, "point": len(rows) == 1}
        y, tooltip = charts.y_axis(what, tickCount=3, **LEFT, **scale), tooltips("device", x="time (s)", y=what)
        line = mark("line", named, look, x=next(axes), y=y, detail="device:N", color=color, tooltip=tooltip)
        drawn.append(line.properties(width="container", height=PANEL_HEIGHT))
        inside = [row["y"] for row in rows]
        texts.append(f"{what} from {min(inside):.3g} to {max(inside):.3g}")
    if throttled:
        reasons = sorted({row["reason"] for row in throttled})
        y = alt.Y("reason:N", title="throttled", axis=alt.Axis(**LEFT, labels=False, ticks=False))
        color = charts.colour_scale(dict(zip(reasons, PALETTE, strict=False)), "reason", columns=2, labelLimit=200)
        tooltip = tooltips("device", "reason", x="time (s)")
        ticks = mark("tick", throttled, {"thickness": 2}, x=next(axes), y=y, color=color, tooltip=tooltip)
        drawn.append(ticks.properties(width="container", height=charts.height_of(len(reasons), 22)))
        texts.append(f"throttled for {', '.join(reasons)}")
    figure = charts.build_figure("timeline", title, f"{'. '.join(texts)}.", charts.stack_panels(drawn))
    return Section("timeline", "Steps over time" if steps else title, [figure], lead)


def describe_steps(view: RunView, steps: StepSeries) -> tuple[str, str]:
    """Return the chart's text (steps, duration, median, slowest, warm-up, outliers) and the section's lead."""
    summary = f"{format_count(steps.num_steps, 'step')} in {format_seconds(steps.end_seconds)}"
    lead = "Time starts with the measurement."
    found, throughput = view.result.step_seconds, view.result.throughput
    if found and throughput:
        summary += f"; median {format_seconds(found.median)}, slowest {format_seconds(float(steps.high_seconds.max()))}"
        summary += (
            f"; {describe_start(view)} until step {throughput.steady_from_step}" if throughput.steady_from_step else ""
        )
        summary += f"; outliers: {found.num_outliers}"
    if steps.bucket_steps > 1:
        lead += f" The line is the mean of {steps.bucket_steps} steps, the band their minimum and maximum."
    if found and found.num_outliers > len(found.outlier_steps):
        lead += f" The first {len(found.outlier_steps)} of {found.num_outliers} outliers are marked."
    if view.result.world.ranks > 1:
        lead += f" Steps of rank 0 of {view.result.world.ranks} ranks."
    return summary, lead


def describe_start(view: RunView) -> str:
    return "warm-up" if view.result.throughput and view.result.throughput.steady else "not assessed"


def draw_steps(view: RunView, steps: StepSeries, x: alt.X) -> Any:
    """Draw a point per step, or with many steps a line of means in a band from minimum to maximum.

    The axis ends at 1.5 times p99, because a slow first step would flatten all others.
    """
    found = view.result.step_seconds
    usual = 1.5 * (found.p99 if found else float(np.quantile(steps.high_seconds, 0.99)))
    top = max(min(float(steps.high_seconds.max()), usual), 1e-9)
    unit, factor = charts.choose_unit(top)
    bottom = 0.9 * min(float(steps.low_seconds.min()), top)
    domain = [bottom * factor, 1.05 * top * factor]
    y = charts.y_axis(f"step ({unit})", domain=domain, nice=False, zero=False, tickCount=5, **LEFT)

    def to_axis(seconds: float) -> float:
        return round_digits(min(seconds, 1.02 * top) * factor)

    pairs = zip(steps.first_step.astype(int).tolist(), steps.count.astype(int).tolist(), strict=True)
    names = [str(first) if count == 1 else f"{first} to {first + count - 1}" for first, count in pairs]
    columns = (steps.start_seconds, steps.mean_seconds, steps.low_seconds, steps.high_seconds)
    rows: Rows = [
        {"x": round_digits(t), "y": to_axis(mean), "low": to_axis(low), "high": to_axis(high)}
        | {"which": which, "took": format_seconds(mean), "slowest": format_seconds(high)}
        for t, mean, low, high, which in zip(*columns, names, strict=True)
    ]
    layers = shade_warm_up(view, steps, x)
    if steps.bucket_steps == 1:
        tooltip = tooltips(which="step", took="duration", x="time (s)")
        layers.append(charts.points(rows, 14, {"opacity": 0.75, "color": BLUE}, x=x, y=y, tooltip=tooltip))
    else:
        tooltip = tooltips(which="steps", took="mean", slowest="slowest", x="time (s)")
        layers.append(
            mark("area", rows, {"opacity": 0.3, "color": BLUE}, x=x, y=charts.with_field(y, "low"), y2="high:Q")
        )
        layers.append(mark("line", rows, {"color": BLUE, "strokeWidth": 1.2}, x=x, y=y, tooltip=tooltip))
    kept = zip(steps.kept["step"].astype(int), steps.kept["start_seconds"], steps.kept["step_seconds"], strict=True)
    slow = zip(names, steps.start_seconds, steps.high_seconds, strict=True)
    outliers = {str(step): (t, seconds) for step, t, seconds in kept}  # flagged, or too slow for the chart
    outliers |= {which: (t, seconds) for which, t, seconds in slow if seconds > top}
    marked: Rows = [
        {"which": which, "x": round_digits(t), "y": to_axis(seconds), "took": format_seconds(seconds)}
        | {"what": "off the scale" if seconds > top else "outlier"}
        for which, (t, seconds) in outliers.items()
    ]
    if marked:
        shapes = alt.Scale(domain=["outlier", "off the scale"], range=["circle", "triangle-up"])
        shape = alt.Shape("what:N", title=None, scale=shapes, legend=alt.Legend(orient="top-right"))
        tooltip = tooltips(which="step", took="duration", what="what")
        layers.append(charts.points(marked, 45, {"color": ORANGE}, x=x, y=y, shape=shape, tooltip=tooltip))
    if found:
        layers.append(mark("rule", [{"y": found.median * factor}], {"strokeDash": [4, 3], "color": GREY}, y=y))
    return charts.build_layered(layers, STEPS_HEIGHT)


def shade_warm_up(view: RunView, steps: StepSeries, x: alt.X) -> Layers:
    throughput = view.result.throughput
    if throughput is None or throughput.steady_from_step == 0:
        return []
    after = steps.start_seconds[steps.first_step >= throughput.steady_from_step]
    end = float(after[0]) if len(after) else steps.end_seconds
    rows: Rows = [{"x": 0, "end": end, "what": describe_start(view)}]
    return [
        mark("rect", rows, {"color": SHADE}, x=x, x2="end:Q", tooltip="what:N"),
        mark("text", rows, {"align": "left", "dx": 4, "dy": 10, "y": 0, "color": GREY}, x=x, text="what:N"),
    ]


def list_measured(telemetry: dict[str, list[TelemetryPoint]]) -> dict[str, Rows]:
    """Return the rows of each measured quantity by panel title; the memory clock only if it changes."""
    measured = {}
    for name, (title, factor) in PANELS.items():
        rows: Rows = [
            {"x": round_digits(p.time_seconds), "y": round_digits(p.means[name] * factor), "device": device}
            for device, sampled in telemetry.items()
            for p in sampled
            if name in p.means
        ]
        if rows and (name != "mem_clock_mhz" or len({row["y"] for row in rows}) > 1):
            measured[title] = rows
    return measured


def choose_legend_names(measured: dict[str, Rows]) -> dict[str, str]:
    """Return each device's legend entry; with more devices than colours, only outliers are named."""
    distance: dict[str, float] = {}
    for rows in measured.values():
        groups: dict[str, list[float]] = {}
        for row in rows:
            groups.setdefault(row["device"], []).append(row["y"])
        means = {device: fmean(group) for device, group in groups.items()}
        middle = median(means.values()) or 1.0
        for device, mean in means.items():
            distance[device] = max(distance.get(device, 0.0), abs(mean / middle - 1))
    if len(distance) <= len(PALETTE):
        return {device: device for device in distance}
    outliers = sorted(
        (device for device in distance if distance[device] > OUTLIER_DEVIATION), key=lambda device: -distance[device]
    )
    return {device: device if device in outliers[: len(PALETTE) - 1] else OTHERS for device in distance}
