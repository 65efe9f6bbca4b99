"""Writes a run's steps as the TBD suite's throughput log: original/throughput_data/batch_<n>.log of a sweep."""

import logging
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from trainstone.errors import ResultError
from trainstone.files import write_atomically
from trainstone.formats.timehistory import Interval, format_line
from trainstone.results.intervals import Intervals, choose_every
from trainstone.results.schema import Result
from trainstone.results.steps import Columns, read_columns
from trainstone.results.store import read_result

log = logging.getLogger(__name__)


def write_timehistory(run: Path, target: Path) -> None:
    """Write the log of a run; none where it has too few steps for a line."""
    steps = run / "steps-rank0000.csv"
    try:
        columns = read_columns(steps, ("start_seconds", "step_seconds", "images")) if steps.is_file() else {}
        result = read_result(run)
    except ResultError as err:
        log.warning("no throughput log: %s", err)
        return
    if not columns:
        return
    # The step file was written last when the last step ended.
    ended, process = datetime.fromtimestamp(steps.stat().st_mtime), result.process.pid
    measured = measure(columns, read_every(result))
    lines = [format_line(interval, ended - timedelta(seconds=left), process) for interval, left in measured]
    if lines:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, "".join(f"{line}\n" for line in lines))


def read_every(result: Result) -> int | Literal["auto"]:
    """Return original.every_steps of a run."""
    section = result.config.get("original")
    asked = section.get("every_steps") if isinstance(section, dict) else None
    return asked if isinstance(asked, int) and asked > 0 else "auto"


def measure(columns: Columns, every: int | Literal["auto"] = "auto") -> Iterator[tuple[Interval, float]]:
    """Yield intervals, and the time that was left after each."""
    rows = list(zip(*(columns[name].tolist() for name in ("start_seconds", "step_seconds", "images")), strict=True))
    intervals = Intervals(choose_every(every, len(rows)))
    for start, seconds, images in rows:
        if interval := intervals.add(start, seconds, images):
            yield interval, rows[-1][0] + rows[-1][1] - (start + seconds)
