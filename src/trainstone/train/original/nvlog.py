"""What NVIDIA's and IBM's TensorFlow ResNet-50 logged: original/nvlog.txt while the run goes on, and its JSON.

train is their mode train_and_evaluate (training.json), bench their training_benchmark (training_benchmark.json).
"""

import logging
import math
import time
from array import array
from collections.abc import Callable, Iterator

from trainstone.formats.nvlog import ENDING_EVALUATION, ENDING_TRAINING, STARTING_EVALUATION, Entry, parse_lines
from trainstone.results.quality import Evaluation
from trainstone.results.schema import Status
from trainstone.results.steps import StepRecord
from trainstone.train.original.facts import Facts
from trainstone.train.original.lines import FileSink, read_kept
from trainstone.train.original.nvlog_file import (
    BENCHMARK_KEYS,
    BENCHMARK_PLACES,
    EPOCH_KEYS,
    EVALUATION_DECAY,
    TRAINING_KEYS,
    NvlogFile,
)
from trainstone.train.original.nvlog_run import list_named, list_unnamed

log = logging.getLogger(__name__)

EVERY = 10
"""The original's --display_every."""


def choose_every(facts: Facts) -> int:
    """Return how many steps lie between two lines."""
    asked = facts.config.original.every_steps
    return EVERY if asked == "auto" else asked


def start_log(file: NvlogFile, facts: Facts) -> None:
    """Say what is run; the model has its name from where the original's hook gave it."""
    for key, value in list_unnamed(facts):
        file.say(key, value, model=None)
    for key in list_named(facts.config):
        file.say(key)


class TrainingLog(FileSink):
    """Every so many steps, every epoch, every evaluation."""

    def __init__(
        self, facts: Facts, *, wall: Callable[[], float] = time.time, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._facts, self._wall = facts, wall
        self._every = choose_every(facts)
        self._epoch = 0
        self._idle, self._ended = True, False
        keys = [key for key in TRAINING_KEYS if key != "l2_loss" or has_decay(facts)]
        epoch_keys = [key for key in EPOCH_KEYS if key != "final_l2_loss" or has_decay(facts)]
        self._file = NvlogFile(facts.place, "training.json", keys, epoch_keys, wall=wall, now=now)
        if facts.first_step:
            self._take_up()
        if self._file.is_new:
            start_log(self._file, facts)

    def step(self, record: StepRecord) -> None:
        """Write every so many, and an epoch's last."""
        self._idle = False
        told = tell_losses(record)
        if record.step % self._every == 0:
            self._file.say("iteration", record.step)
            if record.step_seconds > 0:
                self._file.say("imgs_per_sec", self._facts.global_batch / record.step_seconds)
            for key, value in told.items():
                self._file.say(key, value)
        done = record.step + 1
        # Told with the last step that the epoch has room for. The original's rule, global_batch x (step + 1) >
        # (epoch + 1) x pictures with steps from 0, holds a step later, which is the next epoch's first.
        if self._facts.global_batch * (done + 1) > (self._epoch + 1) * self._facts.train_pictures:
            self._file.say("epoch", self._epoch)
            for key, value in told.items():
                self._file.say(f"final_{key}", value)
            self._file.end_epoch(done)
            self._epoch += 1
        self._file.tick()

    def evaluation(self, evaluation: Evaluation) -> None:
        """Write what it found."""
        self._idle = False
        began, batch = self._wall() - evaluation.eval_seconds, count_eval_batch(self._facts)
        if self._facts.steps is not None and evaluation.step >= self._facts.steps:
            self._end_training(began)
        steps = math.ceil(evaluation.images / batch)
        self._file.say(STARTING_EVALUATION, when=began)
        block = {"Evaluation Epochs": 1, "Evaluation Steps": steps, EVALUATION_DECAY: steps, "Global Batch Size": batch}
        for key, value in block.items():
            self._file.say(key, value, when=began)
        for name, title in (("top1", "Top-1 Accuracy"), ("top5", "Top-5 Accuracy")):
            if name in evaluation.metrics:
                self._file.say(f"{title}: {100 * evaluation.metrics[name]:.3f}")
        self._file.say(ENDING_EVALUATION)
        self._file.tick()

    def finish(self, status: Status) -> None:
        """Write the end; nothing where a resumed run had nothing left to do."""
        if self._idle and self._facts.first_step:
            return
        if status != "failed":
            self._end_training()
        self._file.write_json()

    def _end_training(self, when: float | None = None) -> None:
        if not self._ended:
            self._file.say(ENDING_TRAINING, when=when)
        self._ended = True

    def _take_up(self) -> None:
        """Go on behind what an earlier start told of the steps before the first of this one."""
        for end, entry in list_kept(self._facts):
            self._file.take_up(entry, end)
            if entry.key == f"final_{TRAINING_KEYS[-1]}":
                self._file.begin_epoch(end_of_epoch(self._facts, self._epoch))
                self._epoch += 1


def has_decay(facts: Facts) -> bool:
    """Say whether weight decay is a part of the loss; else there is no l2_loss."""
    return facts.config.optimizer.decay_in == "loss" and facts.config.optimizer.weight_decay > 0


def tell_losses(record: StepRecord) -> dict[str, float]:
    """Return the loss and its parts; no l2_loss where weight decay is no part of it."""
    parts: dict[str, float] = {"cross_entropy": record.loss}
    if record.decay_loss is not None:
        parts = {"cross_entropy": record.loss - record.decay_loss, "l2_loss": record.decay_loss}
    return {**parts, "total_loss": record.loss, "learning_rate": record.lr}


def count_eval_batch(facts: Facts) -> int:
    """Return how many pictures are judged at a time, on all ranks."""
    batch, trained = facts.config.eval.batch_size, facts.config.train.batch_size
    a_rank = batch if batch != "auto" else max(32, trained if trained != "auto" else 0)
    return a_rank * facts.ranks


def end_of_epoch(facts: Facts, epoch: int) -> int:
    """Return after how many steps an epoch is over."""
    return max(epoch + 1, (epoch + 1) * facts.train_pictures // facts.global_batch)


def list_kept(facts: Facts) -> Iterator[tuple[int, Entry]]:
    """Yield what an earlier start told of the steps before the first of this one, with the byte behind it."""
    for end, line in read_kept(facts.place / "nvlog.txt"):
        for entry in parse_lines([line]):
            number = entry.value if isinstance(entry.value, int) else 0
            late_step = entry.key == "iteration" and number >= facts.first_step
            late_epoch = entry.key == "epoch" and end_of_epoch(facts, number) > facts.first_step
            if late_step or late_epoch or entry.key == ENDING_TRAINING:
                return
            yield end, entry


class BenchmarkLog(FileSink):
    """Rates after the warm-up, and their average.

    A run that ends within its warm-up takes the first half of its steps for it, and is written at its end.
    """

    def __init__(
        self, facts: Facts, *, wall: Callable[[], float] = time.time, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._facts = facts
        self._every = choose_every(facts)
        self._warm_up = bear_warm_up(facts.config.original.warm_up_steps, facts.steps)
        self._early = array("d")
        self._counted, self._seconds, self._rates = 0, 0.0, 0.0
        name = "training_benchmark.json"
        self._file = NvlogFile(facts.place, name, BENCHMARK_KEYS, places=BENCHMARK_PLACES, wall=wall, now=now)
        start_log(self._file, facts)

    def step(self, record: StepRecord) -> None:
        """Count it, unless it is warm-up."""
        if record.step < self._warm_up:
            self._early.append(record.step_seconds)
        else:
            self._count(record.step, record.step_seconds)
        self._file.tick()

    def _count(self, step: int, seconds: float) -> None:
        if seconds <= 0:
            return
        rate = self._facts.global_batch / seconds
        if not self._counted:
            self._file.first_step = step
        if self._counted % self._every == 0:
            self._file.say("iteration", step)
            self._file.say("total_ips", rate)
        self._counted += 1
        self._seconds += seconds
        self._rates += rate

    def finish(self, status: Status) -> None:
        """Write the average: images / time, or the original's mean of rates where its defects are asked for."""
        del status
        if not self._counted:
            self._warm_up = len(self._early) // 2
            for step in range(self._warm_up, len(self._early)):
                self._count(step, self._early[step])
        log.info("nvlog.txt averages %d steps after %d of warm-up", self._counted, self._warm_up)
        if self._counted:
            right = self._facts.global_batch * self._counted / self._seconds
            mean = self._rates / self._counted
            self._file.say("Average total_ips", mean if self._facts.config.original_defects else right)
        self._file.say(ENDING_TRAINING)
        self._file.write_json()


def bear_warm_up(asked: int, steps: int | None) -> int:
    """Return the steps of warm-up: as asked, but at most half of a run whose length is known."""
    return asked if steps is None else min(asked, steps // 2)
