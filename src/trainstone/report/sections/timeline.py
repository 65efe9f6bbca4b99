"""Step times over the run, and telemetry below them on the same time axis."""

from collections.abc import Callable
from functools import partial
from typing import Any

import altair as alt
import numpy as np

from trainstone.report.blocks import Section, Table
from trainstone.report.charts import figure
from trainstone.report.step_panel import draw_steps
from trainstone.report.telemetry_panels import (
    draw_quantity,
    draw_throttling,
    measured_rows,
    name_devices,
    throttle_rows,
)
from trainstone.report.view import RunView
from trainstone.results.series import StepSeries
from trainstone.units import format_seconds

NUM_STRETCHES = 20


def build(view: RunView) -> Section | None:
    """One figure of panels: steps, then each measured quantity, then throttling."""
    panels: list[Callable[[alt.X], Any]] = []
    told = []
    steps = view.steps
    if steps is not None:
        panels.append(partial(draw_steps, view, steps))
        told.append(_tell_steps(view, steps))
    measured = measured_rows(view.telemetry)
    shown = name_devices(measured)
    for title, rows in measured.items():
        panels.append(partial(draw_quantity, rows, title, shown, title == list(measured)[-1]))
        inside = [row["value"] for row in rows]
        told.append(f"{title} from {min(inside):.3g} to {max(inside):.3g}")
    if throttled := throttle_rows(view.telemetry):
        panels.append(partial(draw_throttling, throttled))
        told.append(f"throttled for {', '.join(sorted({row['reason'] for row in throttled}))}")
    if not panels:
        return None
    end = _end_seconds(view)
    drawn = [draw(_time_axis(end, labelled=draw is panels[-1])) for draw in panels]
    chart = alt.vconcat(*drawn, spacing=10).resolve_scale(x="shared", color="independent")
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
    axis = alt.Axis(grid=True, labels=labelled, ticks=labelled, labelOverlap=True)
    return alt.X("t:Q", title="seconds" if labelled else None, scale=alt.Scale(domain=[0, end], nice=False), axis=axis)


def _end_seconds(view: RunView) -> float:
    ends = [view.steps.end_seconds] if view.steps else []
    ends += [points[-1].time_seconds for points in view.telemetry.values()]
    return max(max(ends), 1e-6)


def _tell_steps(view: RunView, steps: StepSeries) -> str:
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
        rows.append(
            [f"{first} … {first + int(count) - 1}", format_seconds(mean), format_seconds(low), format_seconds(high)]
        )
    return Table(["steps", "mean", "fastest", "slowest"], rows, numeric=[False, True, True, True])
