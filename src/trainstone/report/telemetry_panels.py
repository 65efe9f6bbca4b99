"""The panels below the steps: what telemetry measured, device by device, and when devices were hindered."""

from statistics import fmean, median
from typing import Any

import altair as alt

from trainstone.report.charts import BLUE, GREY, LEFT, ORANGE, PALETTE, PURPLE, RED, height_of, round_sensibly, values
from trainstone.results.panels import TelemetryPoint
from trainstone.results.samples import HINDRANCES

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

Rows = list[dict[str, Any]]


def measured_rows(telemetry: dict[str, list[TelemetryPoint]]) -> dict[str, Rows]:
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


def name_devices(measured: dict[str, Rows]) -> dict[str, str]:
    """Return each device's name in the legend: its own; of more than there are colours only unlike ones have one."""
    devices = list(dict.fromkeys(row["device"] for rows in measured.values() for row in rows))
    if len(devices) <= len(PALETTE):
        return {device: device for device in devices}
    distance = dict.fromkeys(devices, 0.0)
    for rows in measured.values():
        means = {device: fmean(row["value"] for row in group) for device, group in _by_device(rows).items()}
        middle = median(means.values())
        for device, mean in means.items():
            distance[device] = max(distance[device], abs(mean / middle - 1) if middle else 0.0)
    unlike = sorted((device for device in devices if distance[device] > UNLIKE), key=lambda device: -distance[device])
    named = unlike[: len(PALETTE) - 1]
    return {device: device if device in named else OTHERS for device in devices}


def _by_device(rows: Rows) -> dict[str, Rows]:
    groups: dict[str, Rows] = {}
    for row in rows:
        groups.setdefault(row["device"], []).append(row)
    return groups


def draw_quantity(rows: Rows, title: str, shown: dict[str, str], legend: bool, axis: alt.X) -> Any:
    """One line a device; all in one colour where there is one device."""
    domain: dict[str, Any] = {"domain": [0, 100]} if title.endswith("(%)") else {"zero": False}
    scale = alt.Y("value:Q", title=title, scale=alt.Scale(**domain), axis=alt.Axis(**LEFT, tickCount=3))
    tooltip = [alt.Tooltip("device:N"), alt.Tooltip("t:Q", title="at second"), alt.Tooltip("value:Q", title=title)]
    named = [{**row, "shown": shown[row["device"]]} for row in rows]
    line = alt.Chart(values(named)).mark_line(strokeWidth=1.5, color=BLUE, point=len(rows) == 1)
    drawn = line.encode(x=axis, y=scale, tooltip=tooltip, detail="device:N")
    if len(shown) > 1:
        labels = sorted(set(shown.values()), key=lambda label: (label == OTHERS, label))
        colours = [GREY if label == OTHERS else PALETTE[place] for place, label in enumerate(labels)]
        order = alt.Scale(domain=labels, range=colours)
        names = alt.Legend(columns=2, symbolLimit=len(labels)) if legend else None
        drawn = drawn.encode(color=alt.Color("shown:N", title=None, scale=order, legend=names))
    return drawn.properties(width="container", height=80)


def throttle_rows(telemetry: dict[str, list[TelemetryPoint]]) -> Rows:
    """When a device was hindered, and why; a power cap is no hindrance."""
    return [
        {"t": round_sensibly(point.time_seconds), "reason": reason, "device": device}
        for device, points in telemetry.items()
        for point in points
        for reason in point.throttle
        if reason in HINDRANCES
    ]


def draw_throttling(rows: Rows, axis: alt.X) -> Any:
    """A tick at each sample, one line a reason."""
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
