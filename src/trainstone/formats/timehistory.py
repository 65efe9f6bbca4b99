"""TimeHistory lines, the throughput log of TensorFlow's official models: written as they were, read from any log.

I1116 14:05:43.123456 140234 trainstone.py:1] TimeHistory: 12.34 seconds, 259.32 examples/second between steps 0 and 100
"""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple

from trainstone.formats.files import read_log

LOG_STEPS = 100
"""The original's --log_steps."""
FEW_LOG_STEPS = 10
FEW_STEPS = 200
# What stands before it is anybody's: absl's prefix, a time, a container's name.
LINE = re.compile(
    r"TimeHistory: ([0-9]{1,12}(?:\.[0-9]{1,9})?) seconds, ([0-9]{1,12}(?:\.[0-9]{1,9})?) examples/second "
    r"between steps ([0-9]{1,18}) and ([0-9]{1,18})(?![0-9])"
)
# Of absl: severity, month, day and time, thread, file and line.
STAMP = re.compile(r"[IWEF]([0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}) ")


class Interval(NamedTuple):
    """Some steps in a row: those from first_step (counted from 0) to before last_step."""

    seconds: float
    examples_per_second: float
    first_step: int
    last_step: int
    stamp: str | None = None
    """mmdd hh:mm:ss.us of the log line; absl writes no year."""


def choose_every(requested: int | Literal["auto"], num_steps: int) -> int:
    """Return how many steps a line is of: 100 as the original, 10 where a run has fewer than 200."""
    if requested != "auto":
        return requested
    return LOG_STEPS if num_steps >= FEW_STEPS else FEW_LOG_STEPS


class Intervals:
    """Gathers steps into intervals, each to a multiple of `every` steps; the first may be shorter.

    An interval lasts from the beginning of its first step to the end of its last: what lies between steps is in it,
    and the slow first step, as in the original.
    """

    def __init__(self, every: int, first_step: int = 0) -> None:
        self.every = every
        self._first = self._next = first_step
        self._began = self._images = 0.0

    def add(self, start_seconds: float, step_seconds: float, images: float) -> Interval | None:
        """Take in a step; return an interval when it is complete, unless it took no time."""
        if self._next == self._first:
            self._began, self._images = start_seconds, 0.0
        self._next += 1
        self._images += images
        if self._next % self.every:
            return None
        seconds = start_seconds + step_seconds - self._began
        first, self._first = self._first, self._next
        return Interval(seconds, self._images / seconds, first, self._next) if seconds > 0 else None

    def format_step(self, start_seconds: float, step_seconds: float, images: float, began: float, process: int) -> str:
        """Take in a step; return its line when an interval is complete. `began`: when the run's clock was at 0."""
        interval = self.add(start_seconds, step_seconds, images)
        when = datetime.fromtimestamp(began + start_seconds + step_seconds)
        return f"{format_line(interval, when, process)}\n" if interval else ""


def format_line(interval: Interval, when: datetime, process: int) -> str:
    rate = f"{interval.seconds:.2f} seconds, {interval.examples_per_second:.2f} examples/second"
    steps = f"between steps {interval.first_step} and {interval.last_step}"
    return f"{format_prefix(when, process)}TimeHistory: {rate} {steps}"


def format_prefix(when: datetime, process: int) -> str:
    return f"I{when:%m%d %H:%M:%S.%f} {process:5d} trainstone.py:1] "


def parse_lines(lines: Iterable[str]) -> Iterator[Interval]:
    """Yield the intervals of a log; lines of anything else are passed over."""
    for line in lines:
        if found := LINE.search(line):
            stamp = STAMP.search(line[: found.start()])
            seconds, rate, first, last = found.groups()
            yield Interval(float(seconds), float(rate), int(first), int(last), stamp[1] if stamp else None)


def read_timehistory(path: Path) -> list[Interval]:
    hint = "TensorFlow logs them to stderr every log_steps steps: redirect both, as in `python ... |& tee FILE`"
    return read_log(path, parse_lines, "TimeHistory line", hint)
