"""Writer of the log that MLPerf's run_and_time.sh produced: mlperf.log and the RESULT line."""

import getpass
import logging
import os
from datetime import datetime

from trainstone.files import write_atomically
from trainstone.measure.recorder import Sink
from trainstone.originals.mlperf.training_log import read_events
from trainstone.originals.mlperf_ssd.training_lines import SsdLog
from trainstone.originals.output_file import RunFacts
from trainstone.results.schema.run import FINISHED, Status
from trainstone.text import printable

log = logging.getLogger(__name__)

LATEST_MS = 10**14
"""Later than any run: larger times come from a damaged log."""
DATE = "%Y-%m-%d %I:%M:%S %p"


class ResultLine(Sink):
    """Log of MLPerf's MXNet programs as run_and_time.sh wrote it: all of mlperf.log, then the RESULT line.

    The file is original/<yymmddHHMMSSNNNNNNNNN>_1.log, named after the program's start (init_start). The seconds of the
    RESULT line count from there to the last event, initialisation included. A detector's training lines are included.
    It is written at the end, when mlperf.log is complete; an unfinished run has none.
    """

    def __init__(self, facts: RunFacts) -> None:
        self._facts = facts

    def finish(self, status: Status) -> None:
        if status not in FINISHED:
            return
        facts = self._facts
        source, lines = facts.folder / "mlperf.log", facts.original_folder / SsdLog.file
        text = source.read_text(encoding="utf-8", errors="replace") if source.is_file() else ""
        events = [event for event in read_events(source) if event.time_ms < LATEST_MS] if text else []
        if not events:
            log.warning("no RESULT line written: %s has no events", source)
            return
        milliseconds = next((event for event in events if event.key == "init_start"), events[0]).time_ms
        start, end = milliseconds // 1000, events[-1].time_ms // 1000
        began, ended = datetime.fromtimestamp(start), datetime.fromtimestamp(end)
        benchmark, printed = "IMAGE_CLASSIFICATION", ""
        try:
            user = getpass.getuser()
        except (KeyError, OSError, ImportError):  # the user id has no name
            user = str(os.getuid())
        if facts.config.original.name == "mlperf_ssd":
            benchmark, user = "SINGLE_STAGE_DETECTOR", facts.config.mlperf.org
            printed = lines.read_text(encoding="utf-8", errors="replace") if lines.is_file() else ""
        path = facts.original_folder / f"{began:%y%m%d%H%M%S}{milliseconds % 1000:03d}000000_1.log"
        path.parent.mkdir(exist_ok=True)
        runner = printable(user).replace(",", " ")  # commas separate the fields
        pieces = [
            text,
            "" if text.endswith("\n") else "\n",
            printed,
            f"ENDING TIMING RUN AT {ended.strftime(DATE)}\n",
            f"RESULT,{benchmark},,{end - start},{runner},{began.strftime(DATE)}\n",
        ]
        write_atomically(path, pieces)
