"""The lines that MLPerf's MXNet SSD printed while it trained: original/training.log, and log.txt.

[Training] lines every 100 iterations and at the end of an epoch, [Validation] lines. Times are those of steps: pauses
between them are not in. Of an evaluation one time is known, from its beginning until steps could go on.
"""

import math

from trainstone.results.quality import Evaluation
from trainstone.results.steps import StepRecord
from trainstone.train.original.lines import Facts, Lines

LOG_STEPS = 100
"""The original's --log-interval."""


class TrainingLines(Lines):
    """Iterations and epochs are counted from 1; the first interval of an epoch begins with it, as there."""

    file = "training.log"
    in_log = True

    def __init__(self, facts: Facts) -> None:
        self._pictures, self._global_batch = facts.train_pictures, facts.global_batch
        self._every = facts.choose_every(LOG_STEPS)
        self._epoch: list[tuple[float, float]] = []
        """Seconds and loss of the steps of this epoch."""
        self._interval: list[float] = []
        """Seconds of the steps since the last line."""

    def step(self, record: StepRecord) -> str:
        """Return a line when an interval or an epoch is complete."""
        self._epoch.append((record.step_seconds, record.loss))
        self._interval.append(record.step_seconds)
        iteration, text = record.step + 1, ""
        epoch = self._find_epoch(record.step)
        if iteration % self._every == 0:
            first = math.ceil((epoch - 1) * self._pictures / self._global_batch)
            length = math.ceil(self._pictures / self._global_batch)
            seconds, steps = sum(self._interval), len(self._interval)
            text += (
                f"[Training][Iteration {iteration}][Epoch {epoch}, Batch {iteration - first}/{length}] "
                f"lr: {record.lr:.5f}, training time: {1000 * seconds / steps:.3f} [ms], "
                f"speed: {self._find_speed(steps, seconds):.3f} [imgs/sec], loss={record.loss:.3f}\n"
            )
            self._interval = []
        if self._find_epoch(iteration) > epoch:
            seconds, steps = sum(seconds for seconds, _ in self._epoch), len(self._epoch)
            text += (
                f"[Training][Epoch {epoch}] training time: {seconds:.3f} [sec],"
                f"avg speed: {self._find_speed(steps, seconds):.3f} [imgs/sec],"
                f"loss={sum(loss for _, loss in self._epoch) / steps:.3f}\n"
            )
            self._epoch, self._interval = [], []
        return text

    def evaluation(self, evaluation: Evaluation) -> str:
        """Return its time; what was not measured by itself (save_parameters, allgather, asnumpy) is not in it."""
        seconds = evaluation.eval_seconds
        speed = evaluation.images / seconds if seconds > 0 else 0.0
        return f"[Validation] inference: {1000 * seconds:.3f} [ms], speed: {speed:.3f} [imgs/sec]\n"

    def _find_epoch(self, step: int) -> int:
        """Return the epoch that a step begins in."""
        return step * self._global_batch // self._pictures + 1

    def _find_speed(self, steps: int, seconds: float) -> float:
        return steps * self._global_batch / seconds if seconds > 0 else 0.0
