"""Steps gathered into the intervals of a throughput log, as the TBD suite's TimeHistory did. Writes nothing."""

from typing import Literal

from trainstone.formats.timehistory import Interval

LOG_STEPS = 100
"""The original's --log_steps."""
FEW_LOG_STEPS = 10
FEW_STEPS = 200


def choose_every(asked: int | Literal["auto"], num_steps: int) -> int:
    """Return how many steps a line tells of: 100 as the original, 10 where a run has fewer than 200."""
    if asked != "auto":
        return asked
    return LOG_STEPS if num_steps >= FEW_STEPS else FEW_LOG_STEPS


class Intervals:
    """Counts steps from first_step on; each interval ends at a multiple of `every`, so the first may be shorter.

    An interval lasts from the beginning of its first step to the end of its last: what lies between steps is in it,
    and the slow first step, as in the original.
    """

    def __init__(self, every: int, first_step: int = 0) -> None:
        self.every = every
        self._first = self._next = first_step
        self._began = 0.0
        self._images = 0.0

    def add(self, start_seconds: float, step_seconds: float, images: float) -> Interval | None:
        """Take in a step; returns an interval when it is complete, unless it took no time."""
        if self._next == self._first:
            self._began, self._images = start_seconds, 0.0
        self._next += 1
        self._images += images
        if self._next % self.every:
            return None
        seconds = start_seconds + step_seconds - self._began
        first, self._first = self._first, self._next
        return Interval(seconds, self._images / seconds, first, self._next) if seconds > 0 else None
