"""Writer of the training lines that MLPerf's MXNet SSD printed: original/training.log."""

import logging
import math

from trainstone.originals.output_file import OriginalFile, RunFacts
from trainstone.results.schema.quality import Evaluation
from trainstone.results.steps import StepRecord

log = logging.getLogger(__name__)

SSD_LOG_STEPS = 100
"""Default --log-interval of MLPerf's SSD."""


class SsdLog(OriginalFile):
    """Writes the training lines that MLPerf's MXNet SSD printed, to original/training.log and log.txt.

    [Training] lines every 100 iterations and at the end of an epoch, [Validation] lines. Iterations and epochs count
    from 1; the first interval of an epoch begins with the epoch, as in the original. Times are sums of step times:
    pauses between steps are not included.
    """

    file = "training.log"
    in_log = True

    def __init__(self, facts: RunFacts) -> None:
        self._every = facts.choose_log_interval(SSD_LOG_STEPS)
        self._epoch: list[tuple[float, float]] = []
        """Seconds and loss of the steps of this epoch."""
        self._interval: list[float] = []
        """Seconds of the steps since the last line."""
        super().__init__(facts)

    def render_step(self, record: StepRecord) -> str:
        """Return a line when an interval or an epoch is complete."""
        self._epoch.append((record.step_seconds, record.loss))
        self._interval.append(record.step_seconds)
        iteration, text = record.step + 1, ""
        images, global_batch = self.facts.train_images, self.facts.global_batch
        epoch, next_epoch = (step * global_batch // images + 1 for step in (record.step, iteration))
        if iteration % self._every == 0:
            first, length = (math.ceil(epochs * images / global_batch) for epochs in (epoch - 1, 1))
            seconds, steps = sum(self._interval), len(self._interval)
            text += (
                f"[Training][Iteration {iteration}][Epoch {epoch}, Batch {iteration - first}/{length}] "
                f"lr: {record.lr:.5f}, training time: {1000 * seconds / steps:.3f} [ms], "
                f"speed: {compute_speed(steps * global_batch, seconds):.3f} [imgs/sec], loss={record.loss:.3f}\n"
            )
            self._interval = []
        if next_epoch > epoch:
            seconds, steps = sum(seconds for seconds, _ in self._epoch), len(self._epoch)
            text += (
                f"[Training][Epoch {epoch}] training time: {seconds:.3f} [sec],"
                f"avg speed: {compute_speed(steps * global_batch, seconds):.3f} [imgs/sec],"
                f"loss={sum(loss for _, loss in self._epoch) / steps:.3f}\n"
            )
            self._epoch, self._interval = [], []
        return text

    def render_evaluation(self, evaluation: Evaluation) -> str:
        """Return the line of an evaluation; its time ends when training can continue. The original's parts that are
        not measured separately here (save_parameters, allgather, asnumpy) are missing."""
        seconds = evaluation.eval_seconds
        speed = compute_speed(evaluation.images, seconds)
        return f"[Validation] inference: {1000 * seconds:.3f} [ms], speed: {speed:.3f} [imgs/sec]\n"


def compute_speed(images: int, seconds: float) -> float:
    return images / seconds if seconds > 0 else 0.0
