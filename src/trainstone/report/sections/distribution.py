"""How the steady steps' durations are spread."""

import math
from typing import Any

import altair as alt
import numpy as np

from trainstone.report.blocks import Facts, Figure, Section, Table
from trainstone.report.charts import BLUE, ORANGE, figure, round_sensibly, values
from trainstone.report.view import RunView
from trainstone.results.schema import StepSeconds
from trainstone.results.series import BIN_WIDTH, Array, StepSeries
from trainstone.units import format_seconds

NUM_BARS = 40


def build(view: RunView) -> Section | None:
    """A histogram with median and tails."""
    steps, found = view.steps, view.result.step_seconds
    if steps is None or found is None or not len(steps.bin_count):
        return None
    rows = [
        ("fastest twentieth below (p5)", format_seconds(found.p5)),
        ("median", format_seconds(found.median)),
        ("slowest twentieth above (p95)", format_seconds(found.p95)),
        ("slowest hundredth above (p99)", format_seconds(found.p99)),
        ("first step of all, not in the picture", format_seconds(found.first)),
        ("outliers", f"{found.num_outliers}, {found.outlier_kind}" if found.num_outliers else "none"),
    ]
    throughput = view.result.throughput
    which = "steady steps" if throughput is None or throughput.steady else "steps of the window (not steady)"
    lead = f"Half of the {which} took less than {format_seconds(found.median)}."
    return Section("distribution", "Distribution of step times", [draw_histogram(steps, found), Facts(rows)], lead)


def draw_histogram(steps: StepSeries, found: StepSeconds) -> Figure:
    """Sum the fine bins into bars; what lies far above p99 is counted in the last one."""
    low, counts, width = sum_bars(steps, 1.5 * found.p99)
    edges = low * np.exp(width * np.arange(len(counts) + 1))
    factor, unit = (1e3, "ms") if edges[-1] < 1 else (1.0, "s")
    rows: list[dict[str, Any]] = [
        {"from": round_sensibly(a * factor), "to": round_sensibly(b * factor), "steps": int(count)}
        for a, b, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]
    axis = alt.X("from:Q", bin=alt.Bin(binned=True), title=f"step ({unit})", scale=alt.Scale(zero=False))
    bars = alt.Chart(values(rows)).mark_bar(color=BLUE, binSpacing=1)
    layers = [bars.encode(x=axis, x2="to:Q", y=alt.Y("steps:Q", title="steps"), tooltip=["from:Q", "to:Q", "steps:Q"])]
    layers += mark_values({"median": found.median, "p99": found.p99}, float(edges[0]), float(edges[-1]), factor)
    slowest = float(steps.bin_seconds[-1]) * math.exp(BIN_WIDTH)
    told = f"Histogram of {int(steps.bin_count.sum())} steps"
    told += f" from {format_seconds(low)} to {format_seconds(slowest)}"
    beyond = int(steps.bin_count[steps.bin_seconds >= edges[-1] * (1 - 1e-9)].sum())
    if beyond:
        told += f"; the last bar holds {beyond} slower than {format_seconds(float(edges[-1]))}"
    cells = [[f"{row['from']:g}", f"{row['to']:g}", str(row["steps"])] for row in rows if row["steps"]]
    if beyond:
        cells[-1][1] = "and more"
    table = Table([f"from ({unit})", f"to ({unit})", "steps"], cells, numeric=[True] * 3)
    chart = alt.layer(*layers).properties(width="container", height=200)
    return figure("distribution", "Distribution of step times", f"{told}.", chart, table)


def sum_bars(steps: StepSeries, most: float) -> tuple[float, Array, float]:
    """Return the lower edge of the first bar, the bars' counts and their width in logarithms.

    A bar is a whole number of the series' fine bins: other widths would draw a comb.
    """
    low = float(steps.bin_seconds[0])
    place = np.rint(np.log(steps.bin_seconds / low) / BIN_WIDTH).astype(np.int64)
    last = min(int(place[-1]), max(0, math.floor(math.log(max(most, low) / low) / BIN_WIDTH)))
    merged = math.ceil((last + 1) / NUM_BARS)
    num_bars = last // merged + 1
    bars = np.minimum(place // merged, num_bars - 1)
    counts: Array = np.bincount(bars, weights=steps.bin_count, minlength=num_bars).astype(np.float64)
    return low, counts, merged * BIN_WIDTH


def mark_values(marks: dict[str, float], low: float, high: float, factor: float) -> list[Any]:
    """Dashed lines with their names, as far as they lie in the picture."""
    rows = [{"at": value * factor, "what": name} for name, value in marks.items() if low <= value <= high]
    if not rows:
        return []
    layers: list[Any] = [alt.Chart(values(rows)).mark_rule(color=ORANGE, strokeDash=[4, 3]).encode(x="at:Q")]
    for number, row in enumerate(rows):  # the first name stands left of its line, so that close ones stay apart
        side: dict[str, Any] = {"align": "right", "dx": -3} if number == 0 else {"align": "left", "dx": 3}
        name = alt.Chart(values([row])).mark_text(dy=8, y=0, color=ORANGE, **side)
        layers.append(name.encode(x="at:Q", text="what:N"))
    return layers
