"""What the TBD suite's ResNet-50 logged: TimeHistory lines of a bench, in training also losses and evaluations.

bench: original/throughput_data/batch_<n>.log; train: original/training.log.
"""

import os
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from trainstone.formats.timehistory import Interval, format_line, parse_lines
from trainstone.results.intervals import FEW_STEPS, LOG_STEPS, Intervals, choose_every
from trainstone.results.quality import Evaluation
from trainstone.results.schema import FINISHED, Status
from trainstone.results.steps import StepRecord
from trainstone.train.original.earlier import read_earlier
from trainstone.train.original.facts import Facts
from trainstone.train.original.lines import FileSink, LineFile, read_kept

GAP = " " * 8
"""Between the parts of a line of TensorFlow's training loop."""
METRICS = {"loss": "test_loss", "top1": "test_accuracy"}
RUN_STATS = "Run stats:"


class ThroughputLog(FileSink):
    """The TimeHistory lines of a bench: at any moment those that a run which ended now would have."""

    def __init__(
        self,
        facts: Facts,
        *,
        wall: Callable[[], float] = time.time,
        now: Callable[[], float] = time.monotonic,
        process: int | None = None,
    ) -> None:
        self._wall, self._process = wall, os.getpid() if process is None else process
        asked = facts.config.original.every_steps
        self._intervals = Intervals(choose_every(asked, 0))
        # Any run may end early: from some length on it has fewer lines, for more steps each.
        self._longer = Intervals(LOG_STEPS) if asked == "auto" else None
        self._longer_lines: list[str] = []
        name = f"batch_{facts.config.train.batch_size}.log"
        self._file = LineFile(facts.place / "throughput_data" / name, now=now)

    def step(self, record: StepRecord) -> None:
        """Write a line when an interval is complete."""
        times = record.start_seconds, record.step_seconds, record.images
        if interval := self._intervals.add(*times):
            self._file.write(self._format(interval))
        if self._longer:
            if interval := self._longer.add(*times):
                self._longer_lines.append(self._format(interval))
            if record.step + 1 == FEW_STEPS:
                self._intervals, self._longer = self._longer, None
                self._file.empty()
                for line in self._longer_lines:
                    self._file.write(line)
                self._file.flush()
        self._file.tick()

    def _format(self, interval: Interval) -> str:
        return f"{format_line(interval, datetime.fromtimestamp(self._wall()), self._process)}\n"


class LoopLog(FileSink):
    """The log of the training loop. Run stats tell of this start of the run."""

    def __init__(
        self,
        facts: Facts,
        *,
        wall: Callable[[], float] = time.time,
        now: Callable[[], float] = time.monotonic,
        process: int | None = None,
    ) -> None:
        self._wall, self._process = wall, os.getpid() if process is None else process
        self._global_batch = facts.global_batch
        every = choose_every(facts.config.original.every_steps, facts.steps or FEW_STEPS)
        self._earlier = read_earlier(facts, facts.first_step - facts.first_step % every)
        """Steps of an earlier start, whose line is still to come."""
        self._intervals = Intervals(every, facts.first_step - len(self._earlier))
        self._losses: list[float] = []
        self._loss: float | None = None
        self._judged: dict[str, float] = {}
        self._stamps: list[str] = []
        self._steps, self._seconds = 0, 0.0
        self._paused = 0.0
        """Seconds of evaluations, which are no part of any interval."""
        path = facts.place / "training.log"
        kept = find_cut(path, facts.first_step) if facts.first_step else 0
        self._file = LineFile(path, keep_bytes=kept, now=now)

    def step(self, record: StepRecord) -> None:
        """Write two lines when an interval is complete."""
        if not self._stamps:
            self._stamp(record.step, self._wall() - record.step_seconds)
            self._take_up(record.start_seconds - self._paused)
        self._losses.append(record.loss)
        self._steps += 1
        self._seconds += record.step_seconds
        # The rate is that of all ranks.
        interval = self._intervals.add(record.start_seconds - self._paused, record.step_seconds, self._global_batch)
        if interval:
            now = self._wall()
            self._file.write(f"{format_line(interval, datetime.fromtimestamp(now), self._process)}\n")
            self._loss = sum(self._losses) / len(self._losses)
            per_second = (interval.last_step - interval.first_step) / interval.seconds
            told = f"steps_per_second: {per_second:.2f}{GAP}{ {'train_loss': self._loss} }"
            self._file.write(f"step: {interval.last_step}{GAP}{told}\n")
            self._stamp(interval.last_step, now)
            self._losses = []
        self._file.tick()

    def evaluation(self, evaluation: Evaluation) -> None:
        """Write its loss and accuracy."""
        self._paused += evaluation.eval_seconds
        metrics = evaluation.metrics
        self._judged = {told: metrics[name] for name, told in METRICS.items() if name in metrics}
        self._file.write(f"step: {evaluation.step}{GAP}evaluation metric: {self._judged}\n")
        self._file.tick()

    def finish(self, status: Status) -> None:
        """Write the run's statistics, where it came to its end."""
        now, idle = self._wall(), not (self._steps or self._judged)
        if status in FINISHED and not idle:  # else an earlier start has told them
            stats: dict[str, object] = {
                name.replace("test_", "eval_").replace("accuracy", "acc"): value for name, value in self._judged.items()
            }
            if self._loss is not None:
                stats["train_loss"] = self._loss
            stats |= {"step_timestamp_log": self._stamps, "train_finish_time": now}
            if self._seconds > 0:
                stats["avg_exp_per_second"] = self._steps * self._global_batch / self._seconds
            prefix = f"I{datetime.fromtimestamp(now):%m%d %H:%M:%S.%f} {self._process:5d} trainstone.py:1] "
            self._file.write(f"{prefix}{RUN_STATS}\n{stats}\n")
        self._file.flush()

    def _take_up(self, until_seconds: float) -> None:
        """Count the steps of an earlier start as if the last had ended now: what lay between them is not known."""
        began = until_seconds - sum(seconds for seconds, _ in self._earlier)
        for seconds, loss in self._earlier:
            self._intervals.add(began, seconds, self._global_batch)
            self._losses.append(loss)
            began += seconds

    def _stamp(self, step: int, when: float) -> None:
        self._stamps.append(f"BatchTimestamp<batch_index: {step}, timestamp: {when}>")


def find_cut(path: Path, first_step: int) -> int:
    """Return how many bytes tell of what came before a step."""
    end = 0
    for behind, line in read_kept(path):
        if RUN_STATS in line or find_step(line) > first_step:
            break
        end = behind
    return end


def find_step(line: str) -> int:
    """Return after how many steps a line was written; 0 where it does not say."""
    for interval in parse_lines([line]):
        return interval.last_step
    number = line.removeprefix("step: ").partition(" ")[0]
    return int(number) if line.startswith("step: ") and number.isdecimal() and len(number) < 19 else 0
