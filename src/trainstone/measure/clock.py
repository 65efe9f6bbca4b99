"""Marks in time on a device. A mark never makes a CUDA device wait: events are recorded now and read some steps later.

Devices without timing events are synchronised at each mark. The host clock is injected, so tests bring their own.
"""

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Timer(Protocol):
    """What the loop needs of a clock."""

    lag: int
    """Steps that may be under way before the oldest one's marks are read."""

    def now(self) -> float:
        """Host seconds."""

    def mark(self) -> Any:
        """Note this point of the device's work."""

    def wait(self, mark: Any) -> None:
        """Return when the device has reached the mark."""

    def seconds(self, earlier: Any, later: Any) -> float:
        """Device seconds between two marks that were waited for."""


class HostTimer:
    """Host clock, after waiting for the device if there is one (CPU, MPS, XPU ...)."""

    lag = 0

    def __init__(
        self, now: Callable[[], float] = time.perf_counter, synchronize: Callable[[], None] | None = None
    ) -> None:
        self.now = now
        self._synchronize = synchronize

    def mark(self) -> float:
        """Wait for the device and read the clock."""
        if self._synchronize is not None:
            self._synchronize()
        return self.now()

    def wait(self, mark: float) -> None:
        """Do nothing: mark() has waited."""

    def seconds(self, earlier: float, later: float) -> float:
        """Return the difference."""
        return later - earlier


class CudaTimer:
    """CUDA events on the current stream, read two steps late so that the host stays ahead of the device."""

    lag = 2

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now

    def mark(self) -> torch.cuda.Event:
        """Record an event."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self, mark: torch.cuda.Event) -> None:
        """Block until the device has passed the event."""
        mark.synchronize()

    def seconds(self, earlier: torch.cuda.Event, later: torch.cuda.Event) -> float:
        """Return the device time between two events."""
        return float(earlier.elapsed_time(later)) / 1000


def choose_timer(device: torch.device) -> Timer:
    """Events where the device has them, the synchronised host clock otherwise."""
    if device.type == "cuda":
        return CudaTimer()
    if device.type == "cpu":
        return HostTimer()
    return HostTimer(synchronize=torch.accelerator.synchronize)
