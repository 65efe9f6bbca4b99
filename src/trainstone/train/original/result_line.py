"""The log of MLPerf's MXNet programs as run_and_time.sh left it: all of mlperf.log, then the RESULT line.

original/<yymmddHHMMSSNNNNNNNNN>_1.log, after the program's start (init_start), as its seconds are counted from there to
the last event: initialisation is in them. A run that did not come to its end has none.
"""

import getpass
import logging
import os
from datetime import datetime

from trainstone.files import write_atomically
from trainstone.measure.recorder import Sink
from trainstone.results.schema import FINISHED, Status
from trainstone.text import printable
from trainstone.train.original.lines import Facts
from trainstone.train.original.mllog import read_whole
from trainstone.train.original.ssd_lines import TrainingLines

log = logging.getLogger(__name__)

LATEST_MS = 10**14
"""Later than any run; a damaged log may say anything."""
DATE = "%Y-%m-%d %I:%M:%S %p"


class ResultLine(Sink):
    """Writes the file at the end, when mlperf.log is complete. Of a detector its lines are in it, too."""

    def __init__(self, facts: Facts) -> None:
        self._facts, self._is_detector = facts, facts.config.original.name == "mlperf_ssd"

    def finish(self, status: Status) -> None:
        """Write all of it."""
        if status not in FINISHED:
            return
        source = self._facts.folder / "mlperf.log"
        text = source.read_text(encoding="utf-8", errors="replace") if source.is_file() else ""
        events = [event for event in read_whole(source) if event.time_ms < LATEST_MS] if text else []
        if not events:
            log.warning("no RESULT line: %s has no event", source)
            return
        milliseconds = next((event for event in events if event.key == "init_start"), events[0]).time_ms
        start, end = milliseconds // 1000, events[-1].time_ms // 1000
        began, ended = datetime.fromtimestamp(start), datetime.fromtimestamp(end)
        benchmark = "SINGLE_STAGE_DETECTOR" if self._is_detector else "IMAGE_CLASSIFICATION"
        path = self._facts.place / f"{began:%y%m%d%H%M%S}{milliseconds % 1000:03d}000000_1.log"
        path.parent.mkdir(exist_ok=True)
        pieces = [
            text,
            "" if text.endswith("\n") else "\n",
            self._read_lines(),
            f"ENDING TIMING RUN AT {ended.strftime(DATE)}\n",
            f"RESULT,{benchmark},,{end - start},{self._find_user()},{began.strftime(DATE)}\n",
        ]
        write_atomically(path, pieces)

    def _read_lines(self) -> str:
        lines = self._facts.place / TrainingLines.file
        return lines.read_text(encoding="utf-8", errors="replace") if self._is_detector and lines.is_file() else ""

    def _find_user(self) -> str:
        """Return who runs this, a number where the system has no name for it; of a detector the organisation."""
        try:
            user = self._facts.config.mlperf.org if self._is_detector else getpass.getuser()
        except (KeyError, OSError, ImportError):
            user = str(os.getuid())
        return printable(user).replace(",", " ")  # commas part the fields
