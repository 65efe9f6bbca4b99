"""Writers of the TBD suite's ResNet-50 logs: TimeHistory lines of a bench, and the training loop's log."""

import logging
import os
from datetime import datetime

from trainstone.formats.timehistory import FEW_STEPS, Intervals, choose_log_steps, format_line, format_prefix
from trainstone.originals.output_file import OriginalFile, RunFacts
from trainstone.results.schema.quality import Evaluation
from trainstone.results.schema.run import FINISHED, Status
from trainstone.results.steps import StepRecord, as_stored

log = logging.getLogger(__name__)

GAP = " " * 8
"""Separator within a line of TensorFlow's training loop."""
METRICS = {"loss": "test_loss", "top1": "test_accuracy"}


class ThroughputLog(OriginalFile):
    """Writes TimeHistory lines of a bench: original/throughput_data/batch_<n>.log.

    The file is always as if the run ended now: from FEW_STEPS steps on it has fewer lines of more steps each.
    """

    def __init__(self, facts: RunFacts) -> None:
        self.file = f"throughput_data/batch_{facts.config.train.batch_size}.log"
        self._records: list[StepRecord] = []
        self._intervals = Intervals(choose_log_steps(facts.config.original.every_steps, 0))
        super().__init__(facts)

    def render_step(self, record: StepRecord) -> str:
        times = (record.start_seconds, record.step_seconds)
        return self._intervals.format_step(*times, record.images, self.facts.began, os.getpid())

    def step(self, record: StepRecord) -> None:
        if record.step < FEW_STEPS:
            self._records.append(as_stored(record))
        if record.step + 1 == FEW_STEPS:
            self._intervals = Intervals(choose_log_steps(self.facts.config.original.every_steps, FEW_STEPS))
            self.rewrite(self._records)
        else:
            super().step(record)


class LoopLog(OriginalFile):
    """Writes the training loop's log, original/training.log: TimeHistory lines, losses and evaluations.

    Intervals are sums of step times: pauses between steps are not included.
    """

    file = "training.log"

    def __init__(self, facts: RunFacts) -> None:
        self._intervals = Intervals(choose_log_steps(facts.config.original.every_steps, facts.steps or FEW_STEPS))
        self._losses: list[float] = []
        self._stats: dict[str, object] = {}
        self._stamps: list[str] = []
        self._steps, self._seconds = 0, 0.0
        self._ended = 0.0
        """End of the last step or evaluation on the run's clock."""
        super().__init__(facts)

    def render_step(self, record: StepRecord) -> str:
        """Return two lines when an interval is complete."""
        began, global_batch = self.facts.began, self.facts.global_batch
        if not self._stamps:  # not step 0 if a resumed run has lost its step file
            self._intervals = Intervals(self._intervals.every, record.step)
            self._stamp(record.step, record.start_seconds)
        self._losses.append(record.loss)
        interval = self._intervals.add(self._seconds, record.step_seconds, global_batch)
        self._steps += 1
        self._seconds += record.step_seconds
        self._ended = record.start_seconds + record.step_seconds
        if interval is None:
            return ""
        loss = {"train_loss": sum(self._losses) / len(self._losses)}
        self._stats |= loss
        self._losses = []
        self._stamp(interval.last_step, self._ended)
        per_second = (interval.last_step - interval.first_step) / interval.seconds
        line = format_line(interval, datetime.fromtimestamp(began + self._ended), os.getpid())
        return f"{line}\nstep: {interval.last_step}{GAP}steps_per_second: {per_second:.2f}{GAP}{loss}\n"

    def render_evaluation(self, evaluation: Evaluation) -> str:
        metrics, self._ended = evaluation.metrics, evaluation.seconds
        found = {name: metrics[ours] for ours, name in METRICS.items() if ours in metrics}
        renamed = {name.replace("test_", "eval_").replace("accuracy", "acc"): value for name, value in found.items()}
        self._stats = renamed | {name: value for name, value in self._stats.items() if name not in renamed}
        return f"step: {evaluation.step}{GAP}evaluation metric: {found}\n"

    def render_end(self, status: Status) -> str:
        """Return the run's statistics; nothing for an unfinished run."""
        if status not in FINISHED:
            return ""
        now = self.facts.began + self._ended
        stats = self._stats | {"step_timestamp_log": self._stamps, "train_finish_time": now}
        if self._seconds > 0:
            stats["avg_exp_per_second"] = self._steps * self.facts.global_batch / self._seconds
        return f"{format_prefix(datetime.fromtimestamp(now), os.getpid())}Run stats:\n{stats}\n"

    def _stamp(self, step: int, seconds: float) -> None:
        self._stamps.append(f"BatchTimestamp<batch_index: {step}, timestamp: {self.facts.began + seconds}>")
