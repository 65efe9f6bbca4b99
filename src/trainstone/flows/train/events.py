"""Decides what a training run does next: train, evaluate, collect scores, write a checkpoint, end.

Pure: no clock, no torch, no file. flows/train/loop.py carries out one action, then asks for the next decision.
Steps are counted as done: after the first there is 1. An epoch ends with the step that takes its last picture.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal, NamedTuple

from trainstone.config.schema import CheckpointConfig, EvalConfig, StopConfig

Action = Literal["train", "evaluate", "collect", "checkpoint", "fail", "end"]


def as_written(epochs: float) -> Fraction:
    """Return 1/10 for 0.1, which itself is a little more."""
    return Fraction(str(epochs))


@dataclass(frozen=True)
class Cadence:
    """After which steps a run evaluates, writes a checkpoint and ends."""

    pictures: int
    """Images per epoch."""
    global_batch: int
    """Images per step, of all ranks."""
    eval: EvalConfig
    stop: StopConfig
    checkpoint: CheckpointConfig

    @cached_property
    def last_step(self) -> int:
        """Steps after which training ends, target or not."""
        steps = self._steps_for(as_written(self.stop.epochs))
        return min(steps, self.stop.steps or steps)

    @cached_property
    def evaluations(self) -> list[int]:
        """Steps that are followed by an evaluation."""
        last = self.last_step
        due = {step for step in map(self._steps_for, self._epochs_due) if step <= last}
        # A run that ends early, or would never be evaluated, is evaluated at its end all the same.
        whole = last == self._steps_for(as_written(self.stop.epochs))
        if self.eval.at_end or not (whole and due):
            due.add(last)
        return sorted(due)

    def epochs_after(self, done: int) -> float:
        return done * self.global_batch / self.pictures

    def whole_epochs_after(self, done: int) -> int:
        return done * self.global_batch // self.pictures

    def evaluates_after(self, done: int) -> bool:
        return min(done, self.last_step) in self.evaluations

    def next_evaluation(self, epochs: int) -> int:
        """Return the steps of the first evaluation that is due after more than so many whole epochs, or at the end."""
        later = (self._steps_for(epoch) for epoch in self._epochs_due if epoch > epochs)
        return min(next(later, self.last_step), self.last_step)

    def checkpoints_after(self, done: int) -> bool:
        return done == self.last_step or done == min(self._next_checkpoints(done - 1), default=None)

    def next_event(self, done: int) -> int:
        """Return after how many steps something may be due next: the loop runs until there."""
        evaluation = next((step for step in self.evaluations if step > done), self.last_step)
        return min(self.last_step, evaluation, self._next_end(done, 1.0), *self._next_checkpoints(done))

    @cached_property
    def _epochs_due(self) -> list[Fraction]:
        """Epochs that are followed by an evaluation, whether the run ends there or not."""
        every = self.eval.every_epochs
        if self.eval.at_epochs or not every:
            return [as_written(epoch) for epoch in self.eval.at_epochs]
        offset = every - 1 if self.eval.offset is None else self.eval.offset
        return [Fraction(epoch) for epoch in range(offset + 1, self.whole_epochs_after(self.last_step) + 1, every)]

    def _next_checkpoints(self, done: int) -> list[int]:
        """Return the next step that is due by epochs, and the next by steps."""
        by_epochs, by_steps = self.checkpoint.every_epochs, self.checkpoint.every_steps
        due = [self._next_end(done, by_epochs)] if by_epochs else []
        return due + ([(done // by_steps + 1) * by_steps] if by_steps else [])

    def _next_end(self, done: int, epochs: float) -> int:
        """Return the first step after `done` that completes another so many epochs."""
        unit = as_written(epochs)
        return self._steps_for((Fraction(done * self.global_batch, self.pictures) // unit + 1) * unit)

    def _steps_for(self, epochs: Fraction) -> int:
        return math.ceil(epochs * self.pictures / self.global_batch)


class Agreed(NamedTuple):
    """What the ranks have agreed on since the last steps began; 0 is no."""

    nan_step: int = 0
    """1 + the step whose loss is NaN or infinite."""
    stop: int = 0
    """A signal requests the end."""
    time_over: int = 0
    """stop.seconds have passed."""
    checkpoint: int = 0
    """checkpoint.every_seconds have passed."""


@dataclass(frozen=True)
class State:
    """What a decision depends on, the same on every rank."""

    done: int
    """Steps, of all starts."""
    has_validation: bool = True
    evaluated: bool = False
    """The model as it is now has its scores."""
    is_best: bool = False
    """And they are the best so far."""
    pending: int | None = None
    """Steps done at the evaluation whose scores are still to be collected (eval.async)."""
    reached: bool = False
    """Collected scores have reached the target."""
    saved: bool = True
    """Nothing was done since the last checkpoint or since this start."""


def decide(state: State, agreed: Agreed, cadence: Cadence) -> Action:
    """Return the next action; call it again after each one.

    After steps, `agreed` holds what was agreed on during them. After an evaluation the ranks agree again, because it
    may have taken long or a signal may have broken it off. An evaluation that is due but was lost to a signal is made
    before the first step of the next start.
    """
    if agreed.nan_step:
        return "fail" if state.pending is None else "collect"
    # A target that was reached counts even if a signal came as well.
    ends = state.reached or bool(agreed.stop or agreed.time_over) or state.done >= cadence.last_step
    # By schedule, or because this model is or may turn out to be the best.
    best = cadence.checkpoint.best and (state.is_best or state.pending == state.done)
    saves = bool(agreed.checkpoint) or best or cadence.checkpoints_after(state.done)
    evaluates = bool(agreed.time_over) or cadence.evaluates_after(state.done)
    if state.pending is not None:
        epoch_ended = cadence.whole_epochs_after(state.done) > cadence.whole_epochs_after(state.pending)
        # Nothing that comes after an evaluation is saved or evaluated before its scores are known.
        if ends or (state.pending < state.done and (saves or evaluates or epoch_ended)):
            return "collect"
    has_scores = state.evaluated or state.pending == state.done
    if evaluates and state.has_validation and not (has_scores or state.reached or agreed.stop):
        return "evaluate"
    if not state.saved and (ends or saves):
        return "checkpoint"
    return "end" if ends else "train"
