"""Records a few steps with torch.profiler into a Chrome trace, gzipped, or marks them for an nsys or ncu around us.

It analyses nothing: trace/breakdown.py does. Bounded: shapes are recorded, stacks and memory are not, and no more than
the requested steps are kept.
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

# Kineto prints a line at each start and stop unless told otherwise.
LOG_LEVEL = ("KINETO_LOG_LEVEL", "6")
DEVICE_ACTIVITIES = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}


class ProfileWindow(NamedTuple):
    """Numbers of steps: the profiler is on from `begin`, what it sees counts from `first` until before `end`."""

    begin: int
    first: int
    end: int


class Capture:
    """Records the steps of a window. Used by `with` around them and those before that only warm up the profiler;
    `step()` is called after each. Leaving it writes the trace."""

    def __init__(self, target: Path, device: torch.device, rank: Rank, window: ProfileWindow) -> None:
        os.environ.setdefault(*LOG_LEVEL)
        self._target, self._device, self._rank, self._window = target, device, rank, window
        activities = [ProfilerActivity.CPU]
        if device.type in DEVICE_ACTIVITIES:
            activities.append(DEVICE_ACTIVITIES[device.type])
        self._profiler = profile(activities=activities, schedule=self._choose_action, record_shapes=True)
        # The trace's ProfilerStep#N are the run's own numbers.
        self._profiler.step_num, self._profiler.current_action = window.begin, self._choose_action(window.begin)

    def _choose_action(self, step: int) -> ProfilerAction:
        if step < self._window.first:
            return ProfilerAction.WARMUP
        if step >= self._window.end:
            return ProfilerAction.NONE
        return ProfilerAction.RECORD if step < self._window.end - 1 else ProfilerAction.RECORD_AND_SAVE

    def __enter__(self) -> Self:
        synchronize(self._device)  # what was given out before has no place in the trace
        self._profiler.start()
        return self

    def step(self, number: int) -> None:
        """This step was given out; the device ends the last one before the recording ends."""
        if number == self._window.end - 1:
            synchronize(self._device)
            if not torch.distributed.is_initialized():  # torch writes it itself then
                where = {"rank": self._rank.number, "world_size": self._rank.world}
                self._profiler.add_metadata_json("distributedInfo", json.dumps(where))
        self._profiler.step()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._profiler.stop()
        if kind is None:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            partial = self._target.with_name(f"partial-{self._target.name}")
            self._profiler.export_chrome_trace(str(partial))
            partial.replace(self._target)


class OuterCapture:
    """Opens and closes the range that an nsys or ncu around this process records; it writes nothing itself."""

    def __enter__(self) -> Self:
        start_profiler()
        return self

    def step(self, number: int) -> None:
        """Do nothing: the end of the range waits for the device."""

    def __exit__(self, *_: object) -> None:
        stop_profiler()


def start_profiler() -> None:
    torch.cuda.synchronize()  # no work given out before belongs to the range
    torch.cuda.profiler.start()


def stop_profiler() -> None:
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


@contextmanager
def profiler_range(
    steps: tuple[int, int] | None, start: Callable[[], None] = start_profiler, stop: Callable[[], None] = stop_profiler
) -> Iterator[Callable[[], bool]]:
    """Follow the steps of a bench: on before the first of the range, off after the last. None: never on.

    Gives a function to be called when the next step is about to begin, which always returns True: it switches between
    the steps as the host gives them to the device; they are yielded some steps later.
    """
    step, on, failed = 0, False, True

    def switch() -> None:
        nonlocal on
        inside = steps is not None and 0 <= step - steps[0] < steps[1]
        if inside != on:
            on = inside
            (start if inside else stop)()

    def pass_to_next_step() -> bool:
        nonlocal step
        step += 1
        switch()
        return True

    switch()
    try:
        yield pass_to_next_step
        failed = False
    finally:
        if on:
            # A device in error answers with the error that is on its way up already.
            with suppress(RuntimeError) if failed else nullcontext():
                stop()
