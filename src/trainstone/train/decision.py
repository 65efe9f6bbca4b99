"""Decides what a training run does next: train, evaluate, collect scores, write a checkpoint, end.

Pure: no clock, no torch, no file. train/learn.py carries out one action, then asks for the next decision.
Steps are counted as done: after the first there is 1. An epoch ends with the step that takes its last picture.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

from trainstone.config.learning import CheckpointConfig, EvalConfig, StopConfig

Action = Literal["train", "evaluate", "collect", "checkpoint", "fail", "end"]
EndReason = Literal["target", "stop", "time", "last step"]


def as_written(epochs: float) -> Fraction:
    """Return 1/10 for 0.1, which itself is a little more."""
    return Fraction(str(epochs))


@dataclass(frozen=True)
class Cadence:
    """The rhythm of one run."""

    pictures: int
    """An epoch's."""
    global_batch: int
    """Pictures a step, of all ranks."""
    eval: EvalConfig
    stop: StopConfig
    checkpoint: CheckpointConfig

    @property
    def last_step(self) -> int:
        """Steps after which training ends, target or not."""
        steps = self._steps_for(as_written(self.stop.epochs))
        return min(steps, self.stop.steps or steps)

    def epochs_after(self, done: int) -> float:
        """Return the epochs of so many steps, with their fraction."""
        return done * self.global_batch / self.pictures

    def whole_epochs_after(self, done: int) -> int:
        """Return how many epochs are complete after so many steps."""
        return done * self.global_batch // self.pictures

    def evaluates_after(self, done: int) -> bool:
        """Say whether the validation pictures are due after so many steps."""
        every = self.eval.every_epochs
        if done >= self.last_step and self._judges_the_end:
            return True
        if self.eval.at_epochs:
            return done in self._listed
        ended = range(self.whole_epochs_after(done - 1), self.whole_epochs_after(done))
        return bool(every) and any(epoch % every == self._offset for epoch in ended)

    def next_evaluation(self, epochs: int) -> int:
        """Return the steps of the first evaluation that is due after more than so many whole epochs, or at the end."""
        dues = [self.last_step]
        every = self.eval.every_epochs
        if self.eval.at_epochs:
            later = [epoch for epoch in map(as_written, self.eval.at_epochs) if epoch > epochs]
            dues += [self._steps_for(later[0])] if later else []
        elif every:
            dues.append(self._steps_for(Fraction(epochs + 1 + (self._offset - epochs) % every)))
        return min(dues)

    @property
    def _listed(self) -> list[int]:
        """Steps that eval.at_epochs end with."""
        return [self._steps_for(as_written(epoch)) for epoch in self.eval.at_epochs]

    @property
    def _offset(self) -> int:
        return self.eval.every_epochs - 1 if self.eval.offset is None else self.eval.offset

    @property
    def _judges_the_end(self) -> bool:
        """Always, but for a whole run that was to be judged in its rhythm alone and was."""
        whole = self.last_step == self._steps_for(as_written(self.stop.epochs))
        rhythmic = bool(self.eval.every_epochs) and self.whole_epochs_after(self.last_step) > self._offset
        if self.eval.at_epochs:
            rhythmic = self._listed[0] <= self.last_step
        return self.eval.at_end or not (whole and rhythmic)

    def checkpoints_after(self, done: int) -> bool:
        """Say whether a checkpoint is due after so many steps."""
        by_epochs, by_steps = self.checkpoint.every_epochs, self.checkpoint.every_steps
        if done == self.last_step or (by_steps and done % by_steps == 0):
            return True
        unit = as_written(by_epochs)
        return bool(unit) and self._parts(done - 1, unit) < self._parts(done, unit)

    def next_event(self, done: int) -> int:
        """Return after how many steps something may be due next: the loop runs until there."""
        units = [Fraction(1)] + ([as_written(self.checkpoint.every_epochs)] if self.checkpoint.every_epochs else [])
        ends = [self._steps_for((self._parts(done, unit) + 1) * unit) for unit in units]
        if self.checkpoint.every_steps:
            ends.append((done // self.checkpoint.every_steps + 1) * self.checkpoint.every_steps)
        ends += [step for step in self._listed if step > done][:1]
        return min(self.last_step, *ends)

    def _parts(self, done: int, unit: Fraction) -> int:
        """How many times `unit` epochs are complete."""
        return math.floor(Fraction(done * self.global_batch, self.pictures) / unit)

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


class Decision(NamedTuple):
    """The next action, and for the end its reason."""

    action: Action
    reason: EndReason | None = None


def decide(state: State, agreed: Agreed, cadence: Cadence) -> Decision:
    """Return the next action; call it again after each one.

    After steps, `agreed` holds what was agreed on during them. After an evaluation the ranks agree again, because it
    may have taken long or a signal may have broken it off. An evaluation that is due but was lost to a signal is made
    before the first step of the next start.
    """
    if agreed.nan_step:
        return Decision("fail" if state.pending is None else "collect")
    reason = find_end(state, agreed, cadence)
    saves = bool(agreed.checkpoint) or checkpoints_now(state, cadence)
    evaluates = bool(agreed.time_over) or (state.done > 0 and cadence.evaluates_after(state.done))
    if state.pending is not None:
        epoch_ended = cadence.whole_epochs_after(state.done) > cadence.whole_epochs_after(state.pending)
        # Nothing that comes after an evaluation is saved or evaluated before its scores are known.
        if reason or (state.pending < state.done and (saves or evaluates or epoch_ended)):
            return Decision("collect")
    has_scores = state.evaluated or state.pending == state.done
    if evaluates and state.has_validation and not (has_scores or state.reached or agreed.stop):
        return Decision("evaluate")
    if not state.saved and (reason or saves):
        return Decision("checkpoint")
    return Decision("end", reason) if reason else Decision("train")


def find_end(state: State, agreed: Agreed, cadence: Cadence) -> EndReason | None:
    """Return why the run ends now, or None; a target that was reached counts even if a signal came as well."""
    if state.reached:
        return "target"
    if agreed.stop:
        return "stop"
    if agreed.time_over:
        return "time"
    return "last step" if state.done >= cadence.last_step else None


def checkpoints_now(state: State, cadence: Cadence) -> bool:
    """Return whether a checkpoint is due by schedule, or because this model is or may turn out to be the best."""
    best = cadence.checkpoint.best and (state.is_best or state.pending == state.done)
    return best or cadence.checkpoints_after(state.done)
