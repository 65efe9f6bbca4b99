"""The chart of epochs to the target by batch size: MLPerf's reference, and the runs."""

import itertools
from typing import Any

import altair as alt

from trainstone.report.blocks import Figure
from trainstone.report.charts import BLUE, GREY, ORANGE, figure, round_sensibly, values
from trainstone.results.mlperf.convergence import Expected, expect, interpolate, list_points, prune
from trainstone.results.mlperf.logged import LoggedRun
from trainstone.results.mlperf.score import NUM_RUNS

HEIGHT = 260
PARTS = 12
MEAN, LEFT_OUT, REACHED, MISSED = "reference", "reference, not counted", "reached the target", "missed it"


def draw_convergence(runs: list[LoggedRun], benchmark: str, batch: int) -> Figure:
    """The reference's mean as a line over its least as a band; runs as points."""
    points = list_points(benchmark)
    counted = prune(points, NUM_RUNS[benchmark])
    line = [make_row(point.batch, point.mean, MEAN) for point in counted]
    curve = trace(counted, NUM_RUNS[benchmark])
    others = [make_row(point.batch, point.mean, LEFT_OUT) for point in points if point not in counted]
    ours = [make_row(batch, run.epochs, REACHED if run.converged else MISSED) for run in runs if run.epochs is not None]
    kinds = {MEAN: BLUE, LEFT_OUT: GREY, REACHED: ORANGE}
    if any(row["what"] == MISSED for row in ours):
        kinds[MISSED] = "var(--chart-5)"
    ends = [min(batch, points[0].batch), max(batch, points[-1].batch)]
    x = alt.X(
        "batch:Q",
        title="images a step (global batch)",
        scale=alt.Scale(type="log", domain=[0.9 * ends[0], 1.1 * ends[1]], nice=False),
        axis=alt.Axis(values=choose_ticks(ends), format=",d", labelOverlap=True),
    )
    y = alt.Y("epochs:Q", title="epochs to the target", scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=6))
    legend = alt.Legend(columns=2, labelLimit=260, symbolType="circle")
    colour = alt.Color(
        "what:N", title=None, scale=alt.Scale(domain=list(kinds), range=list(kinds.values())), legend=legend
    )
    tooltip = [alt.Tooltip("what:N", title="is"), alt.Tooltip("batch:Q", format=",d"), alt.Tooltip("epochs:Q")]
    layers = [
        alt.Chart(values(curve)).mark_area(opacity=0.25, color=BLUE).encode(x=x, y=y, y2="least:Q"),
        alt.Chart(values(curve)).mark_line(strokeWidth=1.5).encode(x=x, y=y, color=colour),
        mark_points(line + others, 30).encode(x=x, y=y, color=colour, tooltip=tooltip),
        mark_points(ours, 90).encode(x=x, y=y, color=colour, tooltip=tooltip),
    ]
    chart = alt.layer(*layers).properties(width="container", height=HEIGHT)
    return figure("convergence", "Epochs to the target by batch size", tell(runs, benchmark, batch), chart)


def trace(counted: list[Expected], num_runs: int) -> list[dict[str, Any]]:
    """Return the reference between its points: straight by batch size, so bent on this axis."""
    rows = []
    for low, high in itertools.pairwise(counted):
        for part in range(PARTS):
            batch = round(low.batch * (high.batch / low.batch) ** (part / PARTS))
            point = low if part == 0 else interpolate(batch, low, high, num_runs)
            rows.append(make_row(batch, point.mean, MEAN, least=round_sensibly(point.least)))
    return [*rows, make_row(counted[-1].batch, counted[-1].mean, MEAN, least=round_sensibly(counted[-1].least))]


def make_row(batch: int, epochs: float, what: str, **more: float) -> dict[str, Any]:
    """Return one point."""
    return {"batch": batch, "epochs": round_sensibly(epochs), "what": what, **more}


def mark_points(rows: list[dict[str, Any]], size: int) -> Any:
    """Filled points."""
    return alt.Chart(values(rows)).mark_point(filled=True, size=size, opacity=1)


def choose_ticks(ends: list[int]) -> list[int]:
    """Return powers of two that lie within."""
    return [2**power for power in range(31) if 0.9 * ends[0] <= 2**power <= 1.1 * ends[1]]


def tell(runs: list[LoggedRun], benchmark: str, batch: int) -> str:
    """Say what the chart shows."""
    expected = expect(benchmark, batch)
    shown = sorted({f"{run.epochs:g}" for run in runs if run.epochs is not None}, key=float)
    trained = " to ".join(dict.fromkeys((shown[0], shown[-1]))) if shown else "no"
    needed = f"the reference needs {expected.mean:.1f}" if expected else "there is no reference"
    return f"At a batch of {batch:,} the runs trained for {trained} epochs; {needed}."
