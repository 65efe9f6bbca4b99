"""The log of MLPerf's MXNet programs as run_and_time.sh left it: all of mlperf.log, then the RESULT line.

original/<yymmddHHMMSSNNNNNNNNN>_1.log, after the program's start (init_start), as its seconds are counted from there:
initialisation is in them. A run that did not come to its end has none.
"""

import getpass
import logging
import os
import time
from collections.abc import Callable
from datetime import datetime

from trainstone.files import write_atomically
from trainstone.measure.sink import Sink
from trainstone.results.quality import Evaluation
from trainstone.results.schema import FINISHED, Status
from trainstone.results.steps import StepRecord
from trainstone.text import printable
from trainstone.train.original.facts import Facts
from trainstone.train.original.mllog_resume import read_whole
from trainstone.train.original.ssd_lines import FILE_NAME

log = logging.getLogger(__name__)

LATEST_MS = 10**14
"""Later than any run; a damaged log may say anything."""
DATE = "%Y-%m-%d %I:%M:%S %p"


class ResultLine(Sink):
    """Writes the file at the end, when mlperf.log is complete; `lines`: a file beside it whose lines are in it, too."""

    def __init__(
        self,
        facts: Facts,
        *,
        wall: Callable[[], float] = time.time,
        user: str | None = None,
        benchmark: str = "IMAGE_CLASSIFICATION",
        lines: str | None = None,
    ) -> None:
        self._facts, self._wall, self._benchmark = facts, wall, benchmark
        self._user = find_user() if user is None else user
        self._lines = facts.place / lines if lines else None
        self._idle = True

    def step(self, record: StepRecord) -> None:
        """Steps are not in it."""
        del record
        self._idle = False

    def evaluation(self, evaluation: Evaluation) -> None:
        """mlperf.log has it."""
        del evaluation
        self._idle = False

    def finish(self, status: Status) -> None:
        """Write all of it; where a resumed run had nothing left to do, the end is that of its last event."""
        if status not in FINISHED:
            return
        source = self._facts.folder / "mlperf.log"
        text = source.read_text(encoding="utf-8", errors="replace") if source.is_file() else ""
        events = [event for event in read_whole(source) if event.time_ms < LATEST_MS] if text else []
        if not events:
            log.warning("no RESULT line: %s has no event", source)
            return
        milliseconds = next((event for event in events if event.key == "init_start"), events[0]).time_ms
        was_over = self._idle and self._facts.first_step > 0
        end = events[-1].time_ms // 1000 if was_over else int(self._wall())
        start = milliseconds // 1000
        began, ended = datetime.fromtimestamp(start), datetime.fromtimestamp(end)
        user = printable(self._user).replace(",", " ")  # commas part the fields
        lines = [
            f"ENDING TIMING RUN AT {ended.strftime(DATE)}",
            f"RESULT,{self._benchmark},,{end - start},{user},{began.strftime(DATE)}",
        ]
        path = self._facts.place / f"{began:%y%m%d%H%M%S}{milliseconds % 1000:03d}000000_1.log"
        if was_over and path.exists():
            return
        path.parent.mkdir(exist_ok=True)
        newline = "" if text.endswith("\n") else "\n"
        write_atomically(path, [text, newline, self._read_lines(), *(f"{line}\n" for line in lines)])

    def _read_lines(self) -> str:
        if self._lines is None or not self._lines.is_file():
            return ""
        return self._lines.read_text(encoding="utf-8", errors="replace")


def open_detector_result(facts: Facts, *, wall: Callable[[], float] = time.time) -> ResultLine:
    """Return the log of an SSD: its lines are in it, and the organisation stands in place of a user."""
    return ResultLine(
        facts, wall=wall, user=facts.config.mlperf.org, benchmark="SINGLE_STAGE_DETECTOR", lines=FILE_NAME
    )


def find_user() -> str:
    """Return who runs this; a number where the system has no name for it, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return str(os.getuid())
