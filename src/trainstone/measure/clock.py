"""Timers for device work. CUDA events are recorded now and read some steps later, so timing never stalls the device.

Devices without timing events are synchronised at each mark. The host clock is injected, so that tests can replace it.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class StepBegin(NamedTuple):
    """Begin of a step: host time and mark, and the mark from which the step waits for its batch."""

    seconds: float
    mark: Any
    waits_from: Any


class HostTimer:
    """Timer by the host clock, after a device synchronisation if needed (CPU, MPS, XPU ...)."""

    lag = 0
    """Number of steps in flight before the oldest step's marks are read."""

    def __init__(
        self, now: Callable[[], float] = time.perf_counter, synchronize: Callable[[], None] | None = None
    ) -> None:
        self.now = now
        self._synchronize = synchronize
        self._last_end: tuple[float, Any] | None = None

    def mark(self) -> Any:
        """Mark this point in the device's work: here, synchronise the device and read the clock."""
        if self._synchronize is not None:
            self._synchronize()
        return self.now()

    def wait(self, mark: Any) -> None:
        """Block until the device has reached the mark; here mark() has already waited."""

    def seconds(self, earlier: Any, later: Any) -> float:
        """Return the device seconds between two marks; call wait() on both before."""
        return float(later - earlier)

    def begin_step(self) -> StepBegin:
        """Begin a step now; if the timer reads late, where the last step ended, unless pause() was called since.

        A device with a lag works while the host records: where it waits for the host, that time is part of a step.
        """
        if self._last_end is None:
            started, begin = self.now(), self.mark()
            return StepBegin(started, begin, begin)
        return StepBegin(*self._last_end, self.mark())

    def end_step(self) -> Any:
        """Mark the end of a step."""
        mark = self.mark()
        if self.lag:
            self._last_end = self.now(), mark
        return mark

    def pause(self) -> None:
        """Leave the time since the last step out of the next one: other work was done between the two."""
        self._last_end = None


class CudaTimer(HostTimer):
    """Timer by CUDA events on the current stream, read two steps late so that the host stays ahead of the device."""

    lag = 2

    def mark(self) -> torch.cuda.Event:
        # blocking: a host that waits for the device sleeps, and the loader has its core; two steps are still queued.
        event = torch.cuda.Event(enable_timing=True, blocking=True)
        event.record()
        return event

    def wait(self, mark: torch.cuda.Event) -> None:
        mark.synchronize()

    def seconds(self, earlier: torch.cuda.Event, later: torch.cuda.Event) -> float:
        return float(earlier.elapsed_time(later)) / 1000


Timer = HostTimer


def choose_timer(device: torch.device) -> Timer:
    if device.type == "cuda":
        return CudaTimer()
    return HostTimer(synchronize=None if device.type == "cpu" else torch.accelerator.synchronize)
