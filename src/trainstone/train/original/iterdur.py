"""Iteration durations as the SC22 study recorded them: original/resnet_iterdur_<seconds since 1970>_<host>.txt.

Forward and backward of each step on this rank's device; at the end also the tables that its scripts made of it.
"""

import logging
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

from trainstone.errors import DataError
from trainstone.files import write_atomically
from trainstone.formats.iterdur import (
    TRAINING_TIME,
    Duration,
    RankPlace,
    format_aggregated,
    format_devices,
    format_duration,
    format_rank,
    format_training_time,
    parse_durations,
    read_iterdur,
    summarise,
)
from trainstone.results.quality import Evaluation
from trainstone.results.schema import FINISHED, Status
from trainstone.results.steps import StepRecord
from trainstone.train.original.facts import Facts
from trainstone.train.original.lines import LineFile, read_kept

log = logging.getLogger(__name__)


class DurationFile:
    """Writes a line for each step."""

    def __init__(
        self,
        facts: Facts,
        *,
        host: str | None = None,
        wall: Callable[[], float] = time.time,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._facts = facts
        self._host = socket.gethostname() if host is None else host
        self._told = False
        self._began: float | None = None
        self._ended: float | None = None
        path = find_before(facts.place)
        kept = find_cut(path, facts.first_step) if path and facts.first_step else 0
        name = re.sub(r"[^A-Za-z0-9.-]+", "-", self._host) or "host"
        path = path or facts.place / f"resnet_iterdur_{int(wall())}_{name}.txt"
        self._file = LineFile(path, keep_bytes=kept, now=now)
        if not kept:
            self._file.write(format_rank(RankPlace(0, facts.ranks, facts.device)))

    def step(self, record: StepRecord) -> None:
        """Write its duration."""
        if self._began is None:
            # A resumed run's clock goes on: it was 0 when training began.
            self._began = 0.0 if self._facts.first_step else record.start_seconds
        self._ended = record.start_seconds + record.step_seconds
        self._file.write(format_duration(Duration(record.step, self._facts.device, self._measure(record))))
        self._file.tick()

    def _measure(self, record: StepRecord) -> float:
        if record.forward_seconds is not None and record.backward_seconds is not None:
            return record.forward_seconds + record.backward_seconds
        if not self._told:
            log.info("iteration durations hold the update, too: engine.split_phases=true would time it apart")
            self._told = True
        return record.step_seconds - record.data_seconds

    def evaluation(self, evaluation: Evaluation) -> None:
        """Take in only when it began: the original had none."""
        if self._ended is None:  # all steps were made by an earlier start
            self._began, self._ended = 0.0, evaluation.seconds - evaluation.eval_seconds

    def finish(self, status: Status) -> None:
        """Write the training time and the tables; without the time where the run did not come to its end."""
        if status in FINISHED and self._began is not None and self._ended is not None:
            self._file.write(format_training_time(self._ended - self._began))
        self._file.flush()
        try:
            rows = summarise(read_iterdur(self._file.path), self._host)
        except DataError:  # no step has ended
            return
        write_atomically(self._facts.place / "all_data.csv", format_devices(rows))
        write_atomically(self._facts.place / "aggregated_data.csv", format_aggregated(rows))

    def flush(self) -> None:
        """Let nothing be unwritten."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def find_before(folder: Path) -> Path | None:
    """Return the file of the start before."""
    return max(folder.glob("resnet_iterdur_*_*.txt"), default=None, key=lambda path: path.stat().st_mtime)


def find_cut(path: Path, first_step: int) -> int:
    """Return how many bytes tell of what came before a step."""
    end = 0
    for behind, line in read_kept(path):
        durations = list(parse_durations(line))
        if TRAINING_TIME.search(line) or any(one.iteration >= first_step for one in durations):
            break
        if line.strip():  # the empty line before a duration goes with it
            end = behind
    return end
