"""After which steps a training run evaluates, writes a checkpoint, ends: whole-number arithmetic of pictures.

Steps are counted as done: after the first there is 1. An epoch ends with the step that takes its last picture.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from trainstone.config.learning import CheckpointConfig, EvalConfig, StopConfig


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
