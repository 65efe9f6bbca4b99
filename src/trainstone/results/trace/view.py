"""A trace looked at for training steps: which events are marks, where the steps lie, which thread and device count."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainstone.errors import DataError
from trainstone.formats.kineto import Kind, Trace

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]


class Spans(NamedTuple):
    """Sorted, disjoint, none empty."""

    starts: Ints
    ends: Ints


EMPTY = Spans(np.empty(0, np.int64), np.empty(0, np.int64))


def union(starts: Ints, ends: Ints) -> Spans:
    there = ends > starts
    order = np.argsort(starts[there], kind="stable")
    starts, ends = starts[there][order], ends[there][order]
    if not len(starts):
        return EMPTY
    reached = np.maximum.accumulate(ends)
    first = np.concatenate(([True], starts[1:] > reached[:-1]))
    last = np.concatenate((first[1:], [True]))
    return Spans(starts[first], reached[last])


def join(*parts: Spans) -> Spans:
    starts = np.concatenate([EMPTY.starts, *(part.starts for part in parts)])
    return union(starts, np.concatenate([EMPTY.ends, *(part.ends for part in parts)]))


def contains(spans: Spans, times: Ints) -> Flags:
    if not len(spans.starts):
        return np.zeros(len(times), np.bool_)
    place = np.searchsorted(spans.starts, times, "right") - 1
    return np.asarray((place >= 0) & (times < spans.ends[place.clip(0)]))


def intersect(one: Spans, other: Spans) -> Spans:
    edges = _edges(one, other)
    return _keep(edges, contains(one, edges[:-1]) & contains(other, edges[:-1]))


def subtract(one: Spans, other: Spans) -> Spans:
    edges = _edges(one, other)
    return _keep(edges, contains(one, edges[:-1]) & ~contains(other, edges[:-1]))


def covered(spans: Spans, times: Ints) -> Ints:
    """Return how much is covered before each moment: a clock that stands still outside the set."""
    if not len(spans.starts):
        return np.zeros(len(times), np.int64)
    before = np.concatenate(([0], np.cumsum(spans.ends - spans.starts)))
    place = np.searchsorted(spans.starts, times, "right")
    open_end = spans.ends[(place - 1).clip(0)]
    return np.asarray(before[place] - np.where(place > 0, (open_end - times).clip(0), 0))


def lengths(spans: Spans, starts: Ints, ends: Ints) -> Ints:
    return covered(spans, ends) - covered(spans, starts)


def sums_within(starts: Ints, ends: Ints, window_starts: Ints, window_ends: Ints) -> Ints:
    """Return for each window the sum of all intervals' parts in it; what runs side by side counts each by itself."""
    if not len(starts) or not len(window_starts):
        return np.zeros(len(window_starts), np.int64)
    first, last = window_starts.min(), window_ends.max()
    begun = np.sort(starts.clip(first, last) - first)
    ended = np.sort(ends.clip(first, last) - first)

    def passed(times: Ints) -> Ints:
        return _sum_since(begun, times - first) - _sum_since(ended, times - first)

    return passed(window_ends) - passed(window_starts)


def _sum_since(sorted_times: Ints, moments: Ints) -> Ints:
    """Return for each moment the sum of how long ago all earlier times are."""
    place = np.searchsorted(sorted_times, moments)
    before = np.concatenate(([0], np.cumsum(sorted_times)))
    return np.asarray(place * moments - before[place])


def _edges(one: Spans, other: Spans) -> Ints:
    return np.unique(np.concatenate((one.starts, one.ends, other.starts, other.ends)))


def _keep(edges: Ints, wanted: Flags) -> Spans:
    return union(edges[:-1][wanted], edges[1:][wanted])


# What names mean; all are searched for.
STEP = re.compile(r"\AProfilerStep#(\d{1,18})\Z")
DATA = re.compile(r"\A(data\Z|enumerate\(DataLoader\)#)")
OPTIMIZER = re.compile(r"\A(optimizer\Z|Optimizer\.(step|zero_grad)#)")
PASS = re.compile(r"(?i:(?<![a-z])(forward|backward)(?![a-z]))")
PHASE = re.compile(f"{PASS.pattern}|{OPTIMIZER.pattern}")
# In old traces marks are called operators.
MARK = re.compile(rf"{STEP.pattern}|{DATA.pattern}|{OPTIMIZER.pattern}|\A(forward|backward)\Z")
# Operators and marks of a CPU
COMMUNICATION = re.compile(r"\A((gloo|nccl|mpi|ucc|xccl):|c10d::)")
COMMUNICATION_KERNEL = re.compile(
    r"nccl|rccl|oneccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce", re.IGNORECASE
)


@dataclass(frozen=True)
class View:
    trace: Trace  # its marks are marks, in old traces too
    steps: list[int]
    starts: Ints  # of the steps, in their order
    ends: Ints
    windows: Spans  # the steps' time
    marked: bool  # the trace has marks of steps; else all of it is taken as one
    host_lane: int  # the thread that holds the marks; -1 if there is no thread
    of_host: Flags  # of each event: on a thread of that process
    device: str | None  # number of the device that is judged; None on a CPU
    of_device: Flags
    devices: dict[str, int]  # number -> nanoseconds of kernels and copies within the steps

    def named(self, pattern: re.Pattern[str]) -> Flags:
        return find_named(self.trace, pattern)

    def spans(self, wanted: Flags | Places) -> Spans:
        return union(self.trace.start_ns[wanted], self.trace.end_ns[wanted])

    def marks(self, pattern: re.Pattern[str]) -> Spans:
        on_host = (self.trace.kind == Kind.MARK) & (self.trace.lane == self.host_lane)
        return self.spans(on_host & self.named(pattern))

    def within(self, rows: Places) -> Ints:
        return lengths(self.windows, self.trace.start_ns[rows], self.trace.end_ns[rows])

    def touching(self, rows: Places) -> Flags:
        """Say of each event whether any of it lies within the steps; one without length, whether it starts there."""
        starts = self.trace.start_ns[rows]
        return lengths(self.windows, starts, np.maximum(self.trace.end_ns[rows], starts + 1)) > 0

    def by_lane(self, rows: Places) -> Iterator[tuple[int, Places]]:
        order = rows[np.argsort(self.trace.lane[rows], kind="stable")]
        lanes, firsts = np.unique(self.trace.lane[order], return_index=True)
        yield from zip(lanes.tolist(), np.split(order, firsts[1:]), strict=False)


def find_named(trace: Trace, pattern: re.Pattern[str]) -> Flags:
    """Return of each event whether the pattern is found in its name; each name is searched once."""
    return np.array([pattern.search(name) is not None for name in trace.names], np.bool_)[trace.name]


def look_at(trace: Trace, file: str) -> View:
    """Find steps, host and device; raise DataError where there is nothing to see."""
    if not len(trace.kind):
        raise DataError(
            f"{file}: {trace.num_events:,} events, none of them an operator or a kernel of torch's profiler",
            hint="a trace of trainstone profile, or of torch.profiler, is wanted",
        )
    old_mark = find_named(trace, MARK) & (trace.kind == Kind.OPERATOR)
    trace = replace(trace, kind=np.where(old_mark, np.int8(Kind.MARK), trace.kind))
    host_lane, steps, starts, ends = _find_steps(trace)
    marked = len(steps) > 0
    if not marked:
        steps, starts, ends = [0], trace.start_ns.min(keepdims=True), trace.end_ns.max(keepdims=True)
        host_lane = _find_host(trace)
    windows = union(starts, ends)
    if not len(windows.starts):
        raise DataError(f"{file}: the steps take no time", hint="profile at least one whole step")
    process = trace.lanes[host_lane].process if host_lane >= 0 else None
    threads = np.array([lane.device is None and lane.process == process for lane in trace.lanes])
    devices = _time_devices(trace, windows)
    device = max(devices, key=lambda number: (devices[number], number)) if devices else None
    streams = np.array([lane.device is not None and lane.device == device for lane in trace.lanes])
    return View(
        trace=trace,
        steps=steps,
        starts=starts,
        ends=ends,
        windows=windows,
        marked=marked,
        host_lane=host_lane,
        of_host=threads[trace.lane],
        device=device,
        of_device=streams[trace.lane],
        devices=devices,
    )


def _find_steps(trace: Trace) -> tuple[int, list[int], Ints, Ints]:
    """Return the thread with most marks of steps, and its steps in the order of their start."""
    number_of_name = [int(found[1]) if (found := STEP.search(name)) else -1 for name in trace.names]
    numbers = np.array(number_of_name, np.int64)[trace.name]
    marks = np.flatnonzero((trace.kind == Kind.MARK) & (numbers >= 0))
    if not len(marks):
        return -1, [], EMPTY.starts, EMPTY.ends
    lanes, counts = np.unique(trace.lane[marks], return_counts=True)
    best = max(range(len(lanes)), key=lambda place: (counts[place], trace.lanes[lanes[place]][:2]))
    marks = marks[trace.lane[marks] == lanes[best]]
    marks = marks[np.lexsort((numbers[marks], trace.end_ns[marks], trace.start_ns[marks]))]
    return int(lanes[best]), numbers[marks].tolist(), trace.start_ns[marks], trace.end_ns[marks]


def _find_host(trace: Trace) -> int:
    for wanted in (Kind.OPERATOR, Kind.CALL, Kind.MARK):
        there = trace.kind == wanted
        if there.any():
            lanes = trace.lane[there]
            busy = np.bincount(lanes, trace.duration_ns[there])
            return int(max(set(lanes.tolist()), key=lambda lane: (busy[lane], trace.lanes[lane][:2])))
    return -1


def _time_devices(trace: Trace, windows: Spans) -> dict[str, int]:
    """Return each device's time of kernels and copies within the steps; one that has none there is named with 0."""
    there = np.flatnonzero(trace.kind >= Kind.KERNEL)
    taken = np.bincount(trace.lane[there], lengths(windows, trace.start_ns[there], trace.end_ns[there]))
    devices: dict[str, int] = {}
    for number in set(trace.lane[there].tolist()):
        device = trace.lanes[number].device
        if device is not None:  # it was written without one
            devices[device] = devices.get(device, 0) + int(taken[number])
    return devices
