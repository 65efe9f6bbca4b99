"""Epochs to the target against MLPerf's reference convergence points, where these are a measure for the run."""

import os

from trainstone.errors import DataError
from trainstone.report.blocks import Block, Section, Table
from trainstone.report.convergence_charts import draw_convergence
from trainstone.report.view import RunView
from trainstone.results.mlperf.convergence import SOURCE, expect, list_points, prune
from trainstone.results.mlperf.find import find_run_logs
from trainstone.results.mlperf.logged import LoggedRun, read_logged
from trainstone.results.mlperf.score import NUM_RUNS
from trainstone.results.mlperf.summary import find_reason, judge_runs

MOST_LOGS = 100


def build(view: RunView) -> Section | None:
    """Only of a training whose log is of a benchmark, data and optimiser that the reference has."""
    if view.result.kind != "train":
        return None
    runs = read_runs(view)
    if not runs or find_reason(runs) is not None:
        return None
    benchmark, batch = runs[0].benchmark, runs[0].global_batch
    assert benchmark is not None  # or there was a reason
    assert batch is not None
    blocks: list[Block] = [draw_convergence(runs, benchmark, batch), tabulate(benchmark, batch)]
    return Section("convergence", "Convergence against MLPerf's reference", blocks, tell_lead(runs, benchmark, batch))


def read_runs(view: RunView) -> list[LoggedRun]:
    """Read the run's log, or those of its points; what cannot be read is a doubt, what lies elsewhere is left."""
    inside = os.path.realpath(view.path)
    runs = []
    for log in find_run_logs(view.path)[:MOST_LOGS]:
        if not os.path.realpath(log).startswith(f"{inside}{os.sep}"):
            continue
        try:
            runs.append(read_logged(log))
        except DataError as err:
            view.doubts.append(err.message)
    return runs


def tell_lead(runs: list[LoggedRun], benchmark: str, batch: int) -> str:
    """Say how it compares; of runs that missed the target, what the reference would have needed."""
    judgement, note = judge_runs(runs)
    if judgement is not None:
        return f"{note[0].upper()}{note[1:]}."
    expected = expect(benchmark, batch)
    assert expected is not None  # or there was a reason
    trained = max((run.epochs for run in runs if run.epochs is not None), default=0.0)
    return (
        f"{note[0].upper()}{note[1:]}, in up to {trained:g} epochs; "
        f"the reference needs {expected.mean:.1f} at a batch of {expected.batch:,}."
    )


def tabulate(benchmark: str, batch: int) -> Table:
    """The reference's points; the ones this batch is held against are marked."""
    points, expected = list_points(benchmark), expect(benchmark, batch)
    counted = {point.batch for point in prune(points, NUM_RUNS[benchmark])}
    marked = expected.points if expected else ()
    rows = [
        [
            f"{point.batch:,}",
            f"{point.mean:.2f}",
            f"{point.least:.2f}",
            f"{point.stdev:.2f}",
            "held against" if point.batch in marked else "" if point.batch in counted else "not counted",
        ]
        for point in points
    ]
    caption = (
        f"{SOURCE[benchmark]}. Mean without the fastest and the slowest run; "
        "fewer epochs than the least are refused. Not counted: slower than the line between its neighbours."
    )
    heads = ["global batch", "epochs, mean", "least", "scatter", ""]
    return Table(heads, rows, caption=caption, numeric=[True] * 4 + [False])
