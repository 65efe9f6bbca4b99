"""The second table of `trainstone mlperf summary`: where the time of each run went, as MLPerf's mll-status told it."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from trainstone.results.mlperf.logged import LoggedRun
from trainstone.results.mlperf.times import JudgedAt
from trainstone.text import printable

COLUMNS = ("gpus", "batch", "total", "converge", "init", "epoch1", "epoch_avg", "train", "last_eval")
SHOWN_EVALUATIONS = 8
"""Of many the last."""


def make_times_table(runs: Sequence[LoggedRun], names: Sequence[str]) -> Table | None:
    """One row a run, in seconds; None where no log tells an epoch or an evaluation."""
    if not any(run.times.train is not None or run.times.evaluations for run in runs):
        return None
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("seconds", no_wrap=True)
    for head in COLUMNS:
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("epoch: evaluation, accuracy", no_wrap=True)
    for run, name in zip(runs, names, strict=True):
        table.add_row(Text(printable(name)), *list_cells(run), Text(tell_evaluations(run.times.evaluations)))
    return table


def list_cells(run: LoggedRun) -> list[str]:
    """Return the cells in the order of COLUMNS; a run that missed its target has its status in place of a time."""
    times = run.times
    last = times.evaluations[-1].seconds if times.evaluations else None
    converge = _tell(times.converge) if run.converged else printable(run.ended or "not ended")
    return [
        "–" if times.devices is None else str(times.devices),
        "–" if run.global_batch is None else str(run.global_batch),
        _tell(times.total),
        converge,
        *map(_tell, (times.init, times.first_epoch, times.epoch, times.train, last)),
    ]


def tell_evaluations(evaluations: Sequence[JudgedAt]) -> str:
    """Return 40: 5.2 0.1816; 50: 5.1 0.2302."""
    told = [
        f"{'–' if one.epoch is None else f'{one.epoch:g}'}: {_tell(one.seconds)} {one.accuracy:.4f}"
        for one in evaluations[-SHOWN_EVALUATIONS:]
    ]
    return "; ".join(["…"] * (len(evaluations) > SHOWN_EVALUATIONS) + told)


def _tell(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.1f}"
