"""Record a few steps with torch.profiler as a gzipped Chrome trace, or mark them for an external nsys or ncu.

The trace is analysed in trace/breakdown.py. To limit its size, shapes are recorded but stacks and memory are not, and
only the requested steps are kept.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple, Self

import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile

from trainstone.machine.ranks import Rank
from trainstone.measure.devices import synchronize

# By default Kineto prints a line at each start and stop.
LOG_LEVEL = ("KINETO_LOG_LEVEL", "6")
DEVICE_ACTIVITIES = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}


class ProfileWindow(NamedTuple):
    """Step numbers: the profiler warms up from `begin`, and records from `first` until before `end`."""

    begin: int
    first: int
    end: int


class Capture:
    """Context manager that records the steps of a window and writes the trace on exit.

    Enter it before the warm-up steps, and call `step()` after each step.
    """

    def __init__(self, target: Path, device: torch.device, rank: Rank, window: ProfileWindow) -> None:
        os.environ.setdefault(*LOG_LEVEL)
        self._target, self._device, self._rank, self._window = target, device, rank, window
        activities = [ProfilerActivity.CPU]
        if device.type in DEVICE_ACTIVITIES:
            activities.append(DEVICE_ACTIVITIES[device.type])
        self._profiler = profile(activities=activities, schedule=self._choose_action, record_shapes=True)
        # ProfilerStep#N in the trace has the run's step number.
        self._profiler.step_num, self._profiler.current_action = window.begin, self._choose_action(window.begin)

    def _choose_action(self, step: int) -> ProfilerAction:
        if step < self._window.first:
            return ProfilerAction.WARMUP
        if step >= self._window.end:
            return ProfilerAction.NONE
        return ProfilerAction.RECORD if step < self._window.end - 1 else ProfilerAction.RECORD_AND_SAVE

    def __enter__(self) -> Self:
        synchronize(self._device)  # earlier work must not be in the trace
        self._profiler.start()
        return self

    def step(self, number: int) -> None:
        """Call after each step; the device must have finished the one before `first` and the last one."""
        if number == self._window.end - 1 and not torch.distributed.is_initialized():  # otherwise torch writes it
            info = {"rank": self._rank.number, "world_size": self._rank.world}
            self._profiler.add_metadata_json("distributedInfo", json.dumps(info))
        self._profiler.step()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._profiler.stop()
        if kind is None:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            partial = self._target.with_name(f"partial-{self._target.name}")
            self._profiler.export_chrome_trace(str(partial))
            partial.replace(self._target)


class OuterCapture:
    """Context manager for the range that nsys or ncu records around this process; it writes nothing itself."""

    def __enter__(self) -> Self:
        start_profiler()
        return self

    def step(self, number: int) -> None:
        """Do nothing: the end of the range synchronises the device."""

    def __exit__(self, *_: object) -> None:
        stop_profiler()


def start_profiler() -> None:
    torch.cuda.synchronize()  # earlier work must not be in the range
    torch.cuda.profiler.start()


def stop_profiler() -> None:
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


@contextmanager
def profiler_range(
    steps: tuple[int, int] | None, start: Callable[[], None] = start_profiler, stop: Callable[[], None] = stop_profiler
) -> Iterator[Callable[[], bool]]:
    """Turn the CUDA profiler on before the first step of a range and off after the last.

    `steps` is (first, count), or None for never on.
    Yield a function that must be called before each further step is submitted (not when its times are read, which is
    some steps later); it always returns True.
    """
    step, on, failed = 0, False, True

    def switch() -> None:
        nonlocal on
        inside = steps is not None and 0 <= step - steps[0] < steps[1]
        if inside != on:
            on = inside
            (start if inside else stop)()

    def advance() -> bool:
        nonlocal step
        step += 1
        switch()
        return True

    switch()
    try:
        yield advance
        failed = False
    finally:
        if on:
            # A failed device would raise the error that is already propagating.
            with suppress(RuntimeError) if failed else nullcontext():
                stop()
