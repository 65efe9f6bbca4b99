"""Marks in time on a device. A mark never makes a CUDA device wait: events are recorded now and read some steps later.

Devices without timing events are synchronised at each mark. The host clock is injected, so tests bring their own.
"""

import time
from collections.abc import Callable
from typing import Any

import torch


class HostTimer:
    """Host clock, after waiting for the device if there is one (CPU, MPS, XPU ...)."""

    lag = 0
    """Steps that may be under way before the oldest one's marks are read."""

    def __init__(
        self, now: Callable[[], float] = time.perf_counter, synchronize: Callable[[], None] | None = None
    ) -> None:
        self.now = now
        self._synchronize = synchronize

    def mark(self) -> Any:
        """Note this point of the device's work: here, wait for the device and read the clock."""
        if self._synchronize is not None:
            self._synchronize()
        return self.now()

    def wait(self, mark: Any) -> None:
        """Return when the device has reached the mark; mark() has waited already."""

    def seconds(self, earlier: Any, later: Any) -> float:
        """Return the device seconds between two marks that were waited for."""
        return float(later - earlier)


class CudaTimer(HostTimer):
    """CUDA events on the current stream, read two steps late so that the host stays ahead of the device."""

    lag = 2

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
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
