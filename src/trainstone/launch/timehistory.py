"""Writes a run's steps as the TBD suite's throughput log: original/throughput_data/batch_<n>.log."""

import logging
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from trainstone.errors import ResultError
from trainstone.files import write_atomically
from trainstone.formats.timehistory import Interval, format_line
from trainstone.results.steps import Columns, read_columns
from trainstone.results.store import read_result

log = logging.getLogger(__name__)

LOG_STEPS = 100
"""The original's --log_steps."""
FEW_LOG_STEPS = 10
FEW_STEPS = 200


def write_timehistory(run: Path, target: Path) -> None:
    """Write the log of a run; none where it has too few steps for a line."""
    steps = run / "steps-rank0000.csv"
    try:
        columns = read_columns(steps, ("start_seconds", "step_seconds", "images")) if steps.is_file() else {}
        process = read_result(run).process.pid
    except ResultError as err:
        log.warning("no throughput log: %s", err)
        return
    if not columns:
        return
    # The step file was written last when the last step ended.
    ended = datetime.fromtimestamp(steps.stat().st_mtime)
    lines = [format_line(interval, ended - timedelta(seconds=left), process) for interval, left in measure(columns)]
    if lines:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, "".join(f"{line}\n" for line in lines))


def measure(columns: Columns) -> Iterator[tuple[Interval, float]]:
    """Yield intervals from the beginning of their first step to the end of their last, and the time left after them.

    Steps are counted as the original did: the first interval goes from 0 to 100 and holds the slow first step.
    """
    starts, ends = columns["start_seconds"], columns["start_seconds"] + columns["step_seconds"]
    every = LOG_STEPS if len(starts) >= FEW_STEPS else FEW_LOG_STEPS
    for first in range(0, len(starts) - every + 1, every):
        last = first + every
        seconds = float(ends[last - 1] - starts[first])
        if seconds > 0:
            rate = float(columns["images"][first:last].sum()) / seconds
            yield Interval(seconds, rate, first, last), float(ends[-1] - ends[last - 1])
