"""Iteration durations as the SC22 study recorded them: original/resnet_iterdur_<seconds since 1970>_<host>.txt.

Forward and backward of each step on the first rank's device; at the end of all ranks' (iterdur_ranks.py), with the
tables that its scripts made of it.
"""

import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path

from trainstone.errors import DataError
from trainstone.files import write_atomically
from trainstone.formats.iterdur import (
    RANK,
    TRAINING_TIME,
    DeviceRow,
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
from trainstone.train.original.iterdur_ranks import name_file, read_end, step_file, write_ranks
from trainstone.train.original.lines import FileSink, LineFile, read_kept

log = logging.getLogger(__name__)


class DurationFile(FileSink):
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
        path = path or facts.place / name_file(str(int(wall())), self._host)
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
        train_seconds = self._find_time() if status in FINISHED else None
        if train_seconds is not None:
            self._file.write(format_training_time(train_seconds))
        self._file.flush()
        rows = self._write_all(train_seconds)
        if not rows:
            return
        write_atomically(self._facts.place / "all_data.csv", format_devices(rows))
        write_atomically(self._facts.place / "aggregated_data.csv", format_aggregated(rows))

    def _find_time(self) -> float | None:
        if self._began is not None and self._ended is not None:
            return self._ended - self._began
        # All steps were made by an earlier start, which may have told the time.
        try:
            told = read_iterdur(self._file.path).train_seconds
        except DataError:
            return None
        return read_end(step_file(self._facts.folder, 0)) if told is None else told

    def _write_all(self, train_seconds: float | None) -> list[DeviceRow]:
        """Let the file tell of all ranks, where there are several; return a row a device, none without a step."""
        if len(self._facts.seats) > 1:
            return write_ranks(self._facts, self._file.path, train_seconds)
        try:
            return summarise(read_iterdur(self._file.path), self._host)
        except DataError:
            return []


def find_before(folder: Path) -> Path | None:
    """Return the first rank's file of the start before."""
    files = (path for path in folder.glob("resnet_iterdur_*_*.txt") if not is_others(path))
    return max(files, default=None, key=lambda path: path.stat().st_mtime)


def is_others(path: Path) -> bool:
    """Say whether a file tells of ranks of another host than the first's."""
    first = next((RANK.search(line) for _, line in read_kept(path)), None)
    return first is not None and int(first[1]) > 0


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
