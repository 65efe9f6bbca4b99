"""Writes a run's steps as the TBD suite's throughput log: original/throughput_data/batch_<n>.log of a sweep."""

import logging
from pathlib import Path

from trainstone.errors import ResultError
from trainstone.files import write_atomically
from trainstone.formats.timehistory import Intervals, choose_every
from trainstone.results.steps import read_records
from trainstone.results.store import read_result

log = logging.getLogger(__name__)


def write_timehistory(run: Path, target: Path) -> None:
    """Write the log of a run; none where it has too few steps for a line."""
    steps = run / "steps-rank0000.csv"
    try:
        records = list(read_records(steps)) if steps.is_file() else []
        result = read_result(run)
    except ResultError as err:
        log.warning("no throughput log: %s", err)
        return
    if not records:
        return
    requested = result.config.get("original", {}).get("every_steps")
    known = isinstance(requested, int) and requested > 0
    intervals = Intervals(choose_every(requested if known else "auto", len(records)))
    # The step file was written last when the last step ended.
    began = steps.stat().st_mtime - (records[-1].start_seconds + records[-1].step_seconds)
    text = "".join(
        intervals.format_step(r.start_seconds, r.step_seconds, r.images, began, result.process.pid) for r in records
    )
    if text:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, text)
