"""Devices side by side, where there are several."""

import altair as alt
import numpy as np

from trainstone.report.blocks import Figure, Section, Table
from trainstone.report.charts import BLUE, ORANGE, figure, height_of, values
from trainstone.report.view import RunView
from trainstone.results.exchange import tell_exchange
from trainstone.results.schema import Device
from trainstone.units import format_count, format_rate, format_seconds

TELEMETRY = {"clock_mhz": "clock (MHz)", "power_watts": "power (W)", "temp_celsius": "temperature (°C)"}


def build(view: RunView) -> Section | None:
    """Each device's step time against the median device."""
    devices = view.result.devices
    if len(devices) < 2:
        return None
    medians = [device.step_seconds_median for device in devices if device.step_seconds_median is not None]
    blocks = [draw_devices(devices, float(np.median(medians)))] if len(medians) > 1 else []
    lead = f"{len(devices)} devices on {format_count(len({device.host for device in devices}), 'host')}."
    if len(medians) > 1:
        lead += f" The slowest takes {max(medians) / min(medians):.2f} times as long a step as the fastest."
    if view.result.communication:
        lead += f" They exchange {tell_exchange(view.result.communication)}."
    return Section("devices", "Devices", [*blocks, tabulate(devices)], lead)


def draw_devices(devices: list[Device], middle: float) -> Figure:
    """Points on one line each; more than 5 % slower than the median device is marked."""
    rows = [
        {
            "device": name(device),
            "percent": 100 * (device.step_seconds_median / middle - 1),
            "colour": ORANGE if device.step_seconds_median > 1.05 * middle else BLUE,
        }
        for device in devices
        if device.step_seconds_median is not None
    ]
    chart = (
        alt.Chart(values(rows))
        .mark_point(filled=True, size=70, opacity=1)
        .encode(
            x=alt.X("percent:Q", title="step time against the median device (%)"),
            y=alt.Y("device:N", title=None, sort=None),
            color=alt.Color("colour:N", scale=None),
            tooltip=["device:N", alt.Tooltip("percent:Q", format="+.2f")],
        )
        .properties(width="container", height=height_of(len(rows), 20))
    )
    told = "; ".join(f"{row['device']} {row['percent']:+.1f} %" for row in rows[:32])
    return figure("devices", "Devices against their median", f"Step time: {told}.", chart)


def name(device: Device) -> str:
    """Host and label, as people call it."""
    return f"{device.host} {device.label}"


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else ""


def tabulate(devices: list[Device]) -> Table:
    """All that was measured of each."""
    extra = {key: title for key, title in TELEMETRY.items() if any(key in device.telemetry for device in devices)}
    rows = [
        [
            name(device),
            device.name,
            "" if device.images_per_second is None else format_rate(device.images_per_second),
            "" if device.step_seconds_median is None else format_seconds(device.step_seconds_median),
            *(_number(device.telemetry.get(key)) for key in extra),
        ]
        for device in devices
    ]
    columns = ["device", "name", "images/s", "median step", *extra.values()]
    return Table(columns, rows, numeric=[False, False, *[True] * (len(columns) - 2)], sortable=True)
