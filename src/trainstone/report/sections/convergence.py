"""Epochs to the target against MLPerf's reference convergence points, where these are a measure for the run."""

import itertools
import os
from typing import Any

import altair as alt

from trainstone.report.blocks import Block, Figure, Section
from trainstone.report.charts import BLUE, GREY, ORANGE, figure, round_sensibly, values
from trainstone.report.view import RunView
from trainstone.results.mlperf import convergence
from trainstone.results.mlperf.convergence import Expected
from trainstone.results.mlperf.logged import LoggedRun, find_run_logs, read_logs
from trainstone.results.mlperf.score import NUM_RUNS
from trainstone.results.tables import Table

MOST_LOGS = 100
HEIGHT = 260
PARTS = 12
MEAN, LEFT_OUT, REACHED, MISSED = "reference", "reference, not counted", "reached the target", "missed it"


def build(view: RunView) -> Section | None:
    """Only of a training whose log is of a benchmark, data and optimiser that the reference has."""
    runs = read_runs(view) if view.result.kind == "train" else []
    if not runs or convergence.find_reason(runs) is not None:
        return None
    benchmark, batch = runs[0].benchmark or "", runs[0].global_batch or 0
    expected = convergence.expect(benchmark, batch)
    assert expected is not None  # or there was a reason
    lead = format_lead(runs, expected)
    blocks: list[Block] = [draw_convergence(runs, benchmark, batch, expected), tabulate(benchmark, expected)]
    return Section("convergence", "Convergence against MLPerf's reference", blocks, lead)


def read_runs(view: RunView) -> list[LoggedRun]:
    """Read the run's log, or those of its points; what cannot be read is a doubt, what is elsewhere is left."""
    inside = os.path.realpath(view.path)
    logs = [log for log in find_run_logs(view.path) if os.path.realpath(log).startswith(f"{inside}{os.sep}")]
    runs, errors = read_logs(logs[:MOST_LOGS])
    view.doubts.extend(err.message for err in errors)
    return runs


def format_lead(runs: list[LoggedRun], expected: Expected) -> str:
    """Return how it compares; of runs that missed the target, what the reference would have needed."""
    assessment, note = convergence.assess_runs(runs)
    if assessment is None:
        note = f"{note}; the reference needs {expected.mean:.1f} epochs at a batch of {expected.batch:,}"
    return f"{note[0].upper()}{note[1:]}."


def tabulate(benchmark: str, expected: Expected) -> Table:
    """The reference's points; the ones this batch is compared with are marked."""
    points = convergence.list_points(benchmark)
    counted = convergence.prune(points, NUM_RUNS[benchmark])
    rows = [
        [
            f"{point.batch:,}",
            f"{point.mean:.2f}",
            f"{point.least:.2f}",
            f"{point.stdev:.2f}",
            "compared with" if point.batch in expected.points else "" if point in counted else "not counted",
        ]
        for point in points
    ]
    caption = (
        f"{convergence.SOURCE[benchmark]}. Mean without the fastest and the slowest run; "
        "fewer epochs than the least are refused. Not counted: slower than the line between its neighbours."
    )
    heads = ["global batch", "epochs, mean", "least", "scatter", ""]
    return Table(heads, rows, caption=caption, numeric=[True] * 4 + [False])


def draw_convergence(runs: list[LoggedRun], benchmark: str, batch: int, expected: Expected) -> Figure:
    """The reference's mean as a line over its least as a band; runs as points."""
    points = convergence.list_points(benchmark)
    counted = convergence.prune(points, NUM_RUNS[benchmark])
    curve = trace(counted, NUM_RUNS[benchmark])
    reference = [make_row(point.batch, point.mean, MEAN if point in counted else LEFT_OUT) for point in points]
    trained = [(run.epochs, REACHED if run.converged else MISSED) for run in runs if run.epochs is not None]
    kinds = {MEAN: BLUE, LEFT_OUT: GREY, REACHED: ORANGE}
    if any(what == MISSED for _, what in trained):
        kinds[MISSED] = "var(--chart-5)"
    low, high = 0.9 * min(batch, points[0].batch), 1.1 * max(batch, points[-1].batch)
    x = alt.X(
        "batch:Q",
        title="images a step (global batch)",
        scale=alt.Scale(type="log", domain=[low, high], nice=False),
        axis=alt.Axis(values=[2**n for n in range(31) if low <= 2**n <= high], format=",d", labelOverlap=True),
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
    ]
    for rows, size in ((reference, 30), ([make_row(batch, epochs, what) for epochs, what in trained], 90)):
        dots = alt.Chart(values(rows)).mark_point(filled=True, size=size, opacity=1)
        layers.append(dots.encode(x=x, y=y, color=colour, tooltip=tooltip))
    shown = sorted({f"{epochs:g}" for epochs, _ in trained}, key=float)
    span = " to ".join(dict.fromkeys((shown[0], shown[-1]))) if shown else "no"
    sentence = f"At a batch of {batch:,} the runs trained for {span} epochs; the reference needs {expected.mean:.1f}."
    chart = alt.layer(*layers).properties(width="container", height=HEIGHT)
    return figure("convergence", "Epochs to the target by batch size", sentence, chart)


def trace(counted: list[Expected], num_runs: int) -> list[dict[str, Any]]:
    """Return the reference between its points: straight by batch size, so bent on this axis."""
    points = []
    for low, high in itertools.pairwise(counted):
        between = [round(low.batch * (high.batch / low.batch) ** (part / PARTS)) for part in range(1, PARTS)]
        points += [low, *(convergence.interpolate(batch, low, high, num_runs) for batch in between)]
    return [
        make_row(point.batch, point.mean, MEAN, least=round_sensibly(point.least)) for point in (*points, counted[-1])
    ]


def make_row(batch: int, epochs: float, what: str, **more: float) -> dict[str, Any]:
    """Return one point."""
    return {"batch": batch, "epochs": round_sensibly(epochs), "what": what, **more}
