"""The log of MLPerf's MXNet ResNet-50 as run_and_time.sh left it: all of mlperf.log, then the RESULT line.

original/<yymmddHHMMSSNNNNNNNNN>_1.log, after the time of the first event. A run that did not come to its end has none.
"""

import getpass
import logging
import os
import re
import time
from collections.abc import Callable
from datetime import datetime

from trainstone.files import write_atomically
from trainstone.results.quality import Evaluation
from trainstone.results.schema import FINISHED, Status
from trainstone.results.steps import StepRecord
from trainstone.text import printable
from trainstone.train.original.facts import Facts

log = logging.getLogger(__name__)

TIME = re.compile(r'"time_ms": ?([0-9]{1,15})')
DATE = "%Y-%m-%d %I:%M:%S %p"


class ResultLine:
    """Writes the file at the end, when mlperf.log is complete."""

    def __init__(self, facts: Facts, *, wall: Callable[[], float] = time.time, user: str | None = None) -> None:
        self._facts, self._wall = facts, wall
        self._user = find_user() if user is None else user

    def step(self, record: StepRecord) -> None:
        """Nothing: steps are not in it."""

    def evaluation(self, evaluation: Evaluation) -> None:
        """Nothing: mlperf.log has it."""

    def finish(self, status: Status) -> None:
        """Write all of it."""
        if status not in FINISHED:
            return
        source = self._facts.folder / "mlperf.log"
        text = source.read_text(encoding="utf-8", errors="replace") if source.is_file() else ""
        found = TIME.search(text)
        if found is None:
            log.warning("no RESULT line: %s has no event", source)
            return
        milliseconds, end = int(found[1]), int(self._wall())
        start = milliseconds // 1000
        began, ended = datetime.fromtimestamp(start), datetime.fromtimestamp(end)
        user = printable(self._user).replace(",", " ")  # commas part the fields
        lines = [
            f"ENDING TIMING RUN AT {ended.strftime(DATE)}",
            f"RESULT,IMAGE_CLASSIFICATION,,{end - start},{user},{began.strftime(DATE)}",
        ]
        self._facts.place.mkdir(exist_ok=True)
        name = f"{began:%y%m%d%H%M%S}{milliseconds % 1000:03d}000000_1.log"
        newline = "" if text.endswith("\n") else "\n"
        write_atomically(self._facts.place / name, [text, newline, *(f"{line}\n" for line in lines)])

    def flush(self) -> None:
        """Nothing is open."""

    def close(self) -> None:
        """Nothing is open."""


def find_user() -> str:
    """Return who runs this; a number where the system has no name for it, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return str(os.getuid())
