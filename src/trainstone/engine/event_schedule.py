"""Schedule of a training run: after which steps it evaluates, writes a checkpoint and ends. Pure."""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from trainstone.config.schema import CheckpointConfig, EvalConfig, StopConfig


def to_fraction(epochs: float) -> Fraction:
    """Return the exact decimal value: 1/10 for 0.1, whose float is slightly more."""
    return Fraction(str(epochs))


@dataclass(frozen=True)
class EventSchedule:
    """After which steps a run evaluates, writes a checkpoint and ends."""

    images: int
    """Images per epoch."""
    global_batch: int
    """Images per step, of all ranks."""
    eval: EvalConfig
    stop: StopConfig
    checkpoint: CheckpointConfig

    @cached_property
    def last_step(self) -> int:
        """Steps after which training ends, with or without reaching the target."""
        steps = self._steps_for(to_fraction(self.stop.epochs))
        return min(steps, self.stop.steps or steps)

    @cached_property
    def evaluations(self) -> list[int]:
        """Steps that are followed by an evaluation."""
        last = self.last_step
        due = {step for step in map(self._steps_for, self._epochs_due) if step <= last}
        # A run that ends early, or has no other evaluation, is evaluated at its end.
        full_length = last == self._steps_for(to_fraction(self.stop.epochs))
        if self.eval.at_end or not (full_length and due):
            due.add(last)
        return sorted(due)

    def epochs_after(self, done: int) -> float:
        return done * self.global_batch / self.images

    def whole_epochs_after(self, done: int) -> int:
        return done * self.global_batch // self.images

    def evaluates_after(self, done: int) -> bool:
        return min(done, self.last_step) in self.evaluations

    def next_evaluation(self, epochs: int) -> int:
        """Return the step of the first evaluation that is due after more than `epochs` epochs, or at the end."""
        later = (self._steps_for(epoch) for epoch in self._epochs_due if epoch > epochs)
        return min(next(later, self.last_step), self.last_step)

    def checkpoints_after(self, done: int) -> bool:
        return done == self.last_step or done == min(self._next_checkpoints(done - 1), default=None)

    def next_event(self, done: int) -> int:
        """Return the next step after which an event may be due: the loop runs until there."""
        evaluation = next((step for step in self.evaluations if step > done), self.last_step)
        return min(self.last_step, evaluation, self._next_end(done, 1.0), *self._next_checkpoints(done))

    @cached_property
    def _epochs_due(self) -> list[Fraction]:
        """Epochs that are followed by an evaluation, by the recipe."""
        every = self.eval.every_epochs
        if self.eval.at_epochs or not every:
            return [to_fraction(epoch) for epoch in self.eval.at_epochs]
        offset = every - 1 if self.eval.offset is None else self.eval.offset
        return [Fraction(epoch) for epoch in range(offset + 1, self.whole_epochs_after(self.last_step) + 1, every)]

    def _next_checkpoints(self, done: int) -> list[int]:
        """Return the next checkpoint that is due by epochs and the next that is due by steps."""
        by_epochs, by_steps = self.checkpoint.every_epochs, self.checkpoint.every_steps
        due = [self._next_end(done, by_epochs)] if by_epochs else []
        return due + ([(done // by_steps + 1) * by_steps] if by_steps else [])

    def _next_end(self, done: int, epochs: float) -> int:
        """Return the first step after `done` that completes a multiple of `epochs`."""
        unit = to_fraction(epochs)
        return self._steps_for((Fraction(done * self.global_batch, self.images) // unit + 1) * unit)

    def _steps_for(self, epochs: Fraction) -> int:
        return math.ceil(epochs * self.images / self.global_batch)
