"""A run's steps as the throughput log of the TBD suite: a TimeHistory line for every so many. Writes nothing."""

from datetime import datetime
from typing import Literal

from trainstone.formats.timehistory import Interval, format_line
from trainstone.results.steps import StepRecord

LOG_STEPS = 100
"""The original's --log_steps."""
FEW_LOG_STEPS = 10
FEW_STEPS = 200


def choose_every(requested: int | Literal["auto"], num_steps: int) -> int:
    """Return how many steps a line is of: 100 as the original, 10 where a run has fewer than 200."""
    if requested != "auto":
        return requested
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

    def format_step(self, record: StepRecord, began: float, process: int) -> str:
        """Take in a step; returns its line when an interval is complete. `began`: when the run's clock was at 0."""
        interval = self.add(record.start_seconds, record.step_seconds, record.images)
        when = began + record.start_seconds + record.step_seconds
        return f"{format_line(interval, datetime.fromtimestamp(when), process)}\n" if interval else ""
