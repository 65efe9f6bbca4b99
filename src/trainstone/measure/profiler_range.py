"""Brackets some steps by cudaProfilerStart and cudaProfilerStop: what ncu and nsys then look at, and nothing else.

It stands between the steps as the host gives them to the device, not as they are yielded: those come some steps late.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Self

import torch


def start_profiler() -> None:
    """Wait for the device, so that no work given before is looked at, and start."""
    torch.cuda.synchronize()
    torch.cuda.profiler.start()


def stop_profiler() -> None:
    """Wait for all work of the range, and stop."""
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


class ProfilerRange:
    """While in force it follows the steps: on before the first of the range, off behind the last. None: never on."""

    def __init__(
        self,
        steps: tuple[int, int] | None,
        start: Callable[[], None] = start_profiler,
        stop: Callable[[], None] = stop_profiler,
    ) -> None:
        self._steps = steps
        self._start, self._stop = start, stop
        self._step = 0
        self._on = False

    def __enter__(self) -> Self:
        self._switch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._on:
            return
        self._on = False
        try:
            self._stop()
        except RuntimeError:  # a device in error answers with the error that is on its way up already
            if kind is None:
                raise

    def pass_to_next_step(self) -> bool:
        """Be told that the next step is about to begin; the loop asks whether it may, and it always may."""
        self._step += 1
        self._switch()
        return True

    def _switch(self) -> None:
        if self._steps is None:
            return
        first, count = self._steps
        inside = first <= self._step < first + count
        if inside != self._on:
            self._on = inside
            (self._start if inside else self._stop)()
