"""Epochs to the target against MLPerf's reference convergence points, where these are a measure for the run."""

import itertools
import os
from typing import Any

from trainstone.report import charts
from trainstone.report.blocks import Figure, Section
from trainstone.report.view import RunView
from trainstone.results.mlperf import summary
from trainstone.results.mlperf.logged import LoggedRun, find_run_logs, read_logs
from trainstone.results.mlperf.summary import NUM_RUNS, Expected
from trainstone.results.tables import Table

MOST_LOGS = 100
HEIGHT = 260
PARTS = 12
MEAN, LEFT_OUT, REACHED, MISSED = "reference", "reference, not counted", "reached the target", "missed it"


def build(view: RunView) -> Section | None:
    """Only of a training whose log is of a benchmark, data and optimiser that the reference has."""
    runs = read_runs(view) if view.result.kind == "train" else []
    if not runs or summary.find_reason(runs) is not None:
        return None
    benchmark, batch = runs[0].benchmark or "", runs[0].global_batch or 0
    expected = summary.expect(benchmark, batch)
    assert expected is not None  # or there was a reason
    points = summary.list_points(benchmark)
    counted = summary.prune(points, NUM_RUNS[benchmark])
    lead = format_lead(runs, expected)
    table = tabulate(points, counted, expected, summary.SOURCE[benchmark])
    blocks = (draw_convergence(runs, points, counted, lead), table)
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
    assessment, note = summary.assess_runs(runs)
    if assessment is None:
        note = f"{note}; the reference needs {expected.mean:.1f} epochs at a batch of {expected.batch:,}"
    return f"{note[0].upper()}{note[1:]}."


def tabulate(points: list[Expected], counted: list[Expected], expected: Expected, source: str) -> Table:
    """The reference's points; the ones this batch is compared with are marked."""
    rows = [
        [
            *(f"{point.batch:,}", f"{point.mean:.2f}", f"{point.least:.2f}", f"{point.stdev:.2f}"),
            "compared with" if point.batch in expected.points else "" if point in counted else "not counted",
        ]
        for point in points
    ]
    caption = (
        f"{source}. Mean without the fastest and the slowest run; "
        "fewer epochs than the least are refused. Not counted: slower than the line between its neighbours."
    )
    heads = ["global batch", "epochs, mean", "least", "scatter", ""]
    return Table(heads, rows, caption=caption, numeric=[True] * 4 + [False])


def draw_convergence(runs: list[LoggedRun], points: list[Expected], counted: list[Expected], text: str) -> Figure:
    batch, num_runs = runs[0].global_batch or 0, NUM_RUNS[runs[0].benchmark or ""]
    curve = trace(counted, num_runs)
    reference = [make_row(point.batch, point.mean, MEAN if point in counted else LEFT_OUT) for point in points]
    trained = [
        make_row(batch, run.epochs, REACHED if run.converged else MISSED) for run in runs if run.epochs is not None
    ]
    kinds = {MEAN: charts.BLUE, LEFT_OUT: charts.GREY, REACHED: charts.ORANGE, MISSED: charts.RED}
    low, high = 0.9 * min(batch, points[0].batch), 1.1 * max(batch, points[-1].batch)
    powers = [2**n for n in range(31) if low <= 2**n <= high]
    scale = {"type": "log", "domain": [low, high], "nice": False}
    x = charts.across("images per step (global batch)", "batch", **scale, values=powers, format=",d")
    y = charts.up("epochs to the target", "epochs", zero=True, tickCount=6)
    color, tooltip = charts.colours(kinds, columns=2, symbolType="circle"), charts.tips("what", "batch:Q", "epochs:Q")
    layers = [
        charts.mark("area", curve, {"opacity": 0.25, "color": charts.BLUE}, x=x, y=y, y2="least:Q"),
        charts.mark("line", curve, {"strokeWidth": 1.5}, x=x, y=y, color=color),
        *(
            charts.points(rows, size, x=x, y=y, color=color, tooltip=tooltip)
            for rows, size in ((reference, 30), (trained, 90))
        ),
    ]
    return charts.figure("convergence", "Epochs to the target by batch size", text, layers, height=HEIGHT)


def trace(counted: list[Expected], num_runs: int) -> list[dict[str, Any]]:
    """Return the reference between its points: straight by batch size, so bent on this axis."""
    found = []
    for low, high in itertools.pairwise(counted):
        between = [round(low.batch * (high.batch / low.batch) ** (part / PARTS)) for part in range(1, PARTS)]
        found += [low, *(summary.interpolate(batch, low, high, num_runs) for batch in between)]
    return [make_row(one.batch, one.mean, MEAN) | {"least": one.least} for one in (*found, counted[-1])]


def make_row(batch: int, epochs: float, what: str) -> dict[str, Any]:
    return {"batch": batch, "epochs": charts.round_sensibly(epochs), "what": what}
