"""Read and write TimeHistory lines, the throughput log of TensorFlow's official models.

I1116 14:05:43.123456 140234 trainstone.py:1] TimeHistory: 12.34 seconds, 259.32 examples/second between steps 0 and 100
"""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple

from trainstone.formats.files import read_log

LOG_STEPS = 100
"""Default of the original's --log_steps."""
FEW_LOG_STEPS = 10
FEW_STEPS = 200
# Any text may precede it: absl's prefix, a time, a container's name.
LINE = re.compile(
    r"TimeHistory: ([0-9]{1,12}(?:\.[0-9]{1,9})?) seconds, ([0-9]{1,12}(?:\.[0-9]{1,9})?) examples/second "
    r"between steps ([0-9]{1,18}) and ([0-9]{1,18})(?![0-9])"
)
# absl's prefix: severity, month, day and time.
STAMP = re.compile(r"[IWEF]([0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}) ")


class Interval(NamedTuple):
    """Consecutive steps from first_step (counted from 0), excluding last_step."""

    seconds: float
    examples_per_second: float
    first_step: int
    last_step: int
    stamp: str | None = None
    """mmdd hh:mm:ss.us of the log line (absl writes no year)."""


def choose_log_steps(requested: int | Literal["auto"], num_steps: int) -> int:
    """Return the steps per line: 100 as in the original, 10 if a run has fewer than 200 steps."""
    if requested != "auto":
        return requested
    return LOG_STEPS if num_steps >= FEW_STEPS else FEW_LOG_STEPS


class Intervals:
    """Group steps into intervals that end at multiples of `every` steps; the first may be shorter.

    As in the original, an interval lasts from the start of its first step to the end of its last, gaps and the slow
    first step included.
    """

    def __init__(self, every: int, first_step: int = 0) -> None:
        self.every = every
        self._first = self._next = first_step
        self._began = self._images = 0.0

    def add(self, start_seconds: float, step_seconds: float, images: float) -> Interval | None:
        """Add a step; return its interval if it is complete and took any time."""
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
        """Add a step; return a log line if an interval is complete, else "". `began`: epoch time of the run's start."""
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
    """Yield the intervals of a log; other lines are skipped."""
    for line in lines:
        if found := LINE.search(line):
            stamp = STAMP.search(line[: found.start()])
            seconds, rate, first, last = found.groups()
            yield Interval(float(seconds), float(rate), int(first), int(last), stamp[1] if stamp else None)


def read_timehistory(path: Path) -> list[Interval]:
    hint = "TensorFlow logs them to stderr every log_steps steps; redirect stdout and stderr: `python ... |& tee FILE`"
    return read_log(path, parse_lines, "TimeHistory line", hint)
