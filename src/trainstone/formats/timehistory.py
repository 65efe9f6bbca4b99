"""TimeHistory lines, the throughput log of TensorFlow's official models: written as they were, read from any log.

I1116 14:05:43.123456 140234 trainstone.py:1] TimeHistory: 12.34 seconds, 259.32 examples/second between steps 0 and 100
"""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from trainstone.errors import DataError
from trainstone.formats.files import read_lines
from trainstone.text import printable

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


def format_line(interval: Interval, when: datetime, process: int) -> str:
    """Return the line as absl logged it at a (local) time."""
    rate = f"{interval.seconds:.2f} seconds, {interval.examples_per_second:.2f} examples/second"
    steps = f"between steps {interval.first_step} and {interval.last_step}"
    return f"{format_prefix(when, process)}TimeHistory: {rate} {steps}"


def format_prefix(when: datetime, process: int) -> str:
    """Return what absl writes before each message."""
    return f"I{when:%m%d %H:%M:%S.%f} {process:5d} trainstone.py:1] "


def parse_lines(lines: Iterable[str]) -> Iterator[Interval]:
    """Yield the intervals of a log; lines of anything else are passed over."""
    for line in lines:
        if found := LINE.search(line):
            stamp = STAMP.search(line[: found.start()])
            seconds, rate, first, last = found.groups()
            yield Interval(float(seconds), float(rate), int(first), int(last), stamp[1] if stamp else None)


def read_timehistory(path: Path) -> list[Interval]:
    """Read all TimeHistory lines of a log file."""
    intervals = list(parse_lines(text for _, text in read_lines(path)))
    if not intervals:
        raise DataError(
            f"{printable(str(path))}: no TimeHistory line in it",
            hint="TensorFlow logs them to stderr every log_steps steps: redirect both, as in `python ... |& tee FILE`",
        )
    return intervals
