"""The lines that MLPerf's MXNet SSD printed while it trained: original/training.log, and log.txt.

[Training] lines every 100 iterations and at the end of an epoch, [Validation] lines. Times are those of steps: pauses
between them are not in. Of an evaluation one time is known, from its beginning until steps could go on.
"""

import logging
import math
import re
import time
from collections.abc import Callable
from pathlib import Path

from trainstone.results.quality import Evaluation
from trainstone.results.steps import StepRecord
from trainstone.train.original.earlier import read_earlier
from trainstone.train.original.facts import Facts
from trainstone.train.original.lines import FileSink, LineFile, read_kept

log = logging.getLogger(__name__)

FILE_NAME = "training.log"
LOG_STEPS = 100
"""The original's --log-interval."""
VALIDATION = "[Validation]"
ITERATION = re.compile(r"\[Training\]\[Iteration ([0-9]{1,18})\]")
EPOCH = re.compile(r"\[Training\]\[Epoch ([0-9]{1,18})\]")


class TrainingLines(FileSink):
    """Iterations and epochs are counted from 1; the first interval of an epoch begins with it, as there."""

    def __init__(self, facts: Facts, *, now: Callable[[], float] = time.monotonic) -> None:
        self._pictures, self._global_batch = facts.train_pictures, facts.global_batch
        asked = facts.config.original.every_steps
        self._every = LOG_STEPS if asked == "auto" else asked
        self._epoch: list[tuple[float, float]] = []
        """Seconds and loss of the steps of this epoch."""
        self._interval: list[float] = []
        """Seconds of the steps since the last line."""
        path = facts.place / FILE_NAME
        kept = find_cut(path, facts) if facts.first_step else 0
        self._file = LineFile(path, keep_bytes=kept, now=now)
        self._take_up(facts)

    def step(self, record: StepRecord) -> None:
        """Write a line when an interval or an epoch is complete."""
        self._epoch.append((record.step_seconds, record.loss))
        self._interval.append(record.step_seconds)
        iteration = record.step + 1
        epoch = self._find_epoch(record.step)
        if iteration % self._every == 0:
            first, length = self._begin_epoch(epoch), math.ceil(self._pictures / self._global_batch)
            seconds, steps = sum(self._interval), len(self._interval)
            self._write(
                f"[Training][Iteration {iteration}][Epoch {epoch}, Batch {iteration - first}/{length}] "
                f"lr: {record.lr:.5f}, training time: {1000 * seconds / steps:.3f} [ms], "
                f"speed: {self._find_speed(steps, seconds):.3f} [imgs/sec], loss={record.loss:.3f}"
            )
            self._interval = []
        if self._find_epoch(iteration) > epoch:
            seconds, steps = sum(seconds for seconds, _ in self._epoch), len(self._epoch)
            self._write(
                f"[Training][Epoch {epoch}] training time: {seconds:.3f} [sec],"
                f"avg speed: {self._find_speed(steps, seconds):.3f} [imgs/sec],"
                f"loss={sum(loss for _, loss in self._epoch) / steps:.3f}"
            )
            self._epoch, self._interval = [], []
        self._file.tick()

    def evaluation(self, evaluation: Evaluation) -> None:
        """Write its time; what was not measured by itself (save_parameters, allgather, asnumpy) is not told."""
        seconds = evaluation.eval_seconds
        speed = evaluation.images / seconds if seconds > 0 else 0.0
        self._write(f"{VALIDATION} inference: {1000 * seconds:.3f} [ms], speed: {speed:.3f} [imgs/sec]")
        self._file.tick()

    def _write(self, line: str) -> None:
        self._file.write(f"{line}\n")
        log.info("%s", line)

    def _find_epoch(self, step: int) -> int:
        """Return the epoch that a step begins in."""
        return step * self._global_batch // self._pictures + 1

    def _begin_epoch(self, epoch: int) -> int:
        """Return the first step that begins in an epoch."""
        return math.ceil((epoch - 1) * self._pictures / self._global_batch)

    def _find_speed(self, steps: int, seconds: float) -> float:
        return steps * self._global_batch / seconds if seconds > 0 else 0.0

    def _take_up(self, facts: Facts) -> None:
        """Count the steps of an earlier start in the epoch that goes on."""
        if not facts.first_step:
            return
        first = self._begin_epoch(self._find_epoch(facts.first_step))
        self._epoch = read_earlier(facts, first)
        begin = max(first, facts.first_step - facts.first_step % self._every)
        open_steps = facts.first_step - begin
        self._interval = [seconds for seconds, _ in self._epoch[-open_steps:]] if open_steps else []


def find_cut(path: Path, facts: Facts) -> int:
    """Return how many bytes tell of what came before this start: its steps, and as many evaluations as it knows."""
    end, evaluations = 0, 0
    for behind, line in read_kept(path):
        evaluations += line.startswith(VALIDATION)
        if find_step(line, facts) > facts.first_step or evaluations > facts.evaluations:
            break
        end = behind
    return end


def find_step(line: str, facts: Facts) -> int:
    """Return after how many steps a line was written; 0 where it does not say."""
    if iteration := ITERATION.match(line):
        return int(iteration[1])
    if epoch := EPOCH.match(line):
        return math.ceil(int(epoch[1]) * facts.train_pictures / facts.global_batch)
    return 0
