"""Ends of waiting: ranks that meet have one for all that they do, whatever hangs."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Self, TypeVar

Answer = TypeVar("Answer")
# With 45 s for coming, all is told within a minute. Who gives more time has a larger world: more for the rest too.
REST_SECONDS, REST_SHARE = 12.0, 0.25


class Deadline(NamedTuple):
    """A time of the monotonic clock."""

    end: float

    @classmethod
    def after(cls, seconds: float) -> Self:
        """Return the one that is so far away."""
        return cls(time.monotonic() + seconds)

    @property
    def left(self) -> float:
        """Return the seconds until then; 0: it is over."""
        return max(0.0, self.end - time.monotonic())


def rest_after(coming_seconds: float) -> float:
    """Return how long all that follows may take once all have come."""
    return max(REST_SECONDS, REST_SHARE * coming_seconds)


def call_within(seconds: float, function: Callable[[], Answer]) -> Answer:
    """Return what a function returns, or raise what it raises; TimeoutError: it goes on, but nobody waits for it."""
    answers: list[Answer] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            answers.append(function())
        except BaseException as err:  # noqa: BLE001 -- raised again by the one who waits
            errors.append(err)

    # What hangs in C++ or in a file system cannot be ended; as a daemon it does not keep the process.
    worker = threading.Thread(target=call, daemon=True)
    worker.start()
    worker.join(seconds)
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError
    return answers[0]
