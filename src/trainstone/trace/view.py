"""Find the steps, the host thread and the device in a trace."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from trainstone.errors import DataError
from trainstone.formats.kineto import Kind, Trace
from trainstone.trace.spans import EMPTY, Indices, Ints, Masks, Spans, lengths, union

# Patterns of event names.
STEP = re.compile(r"\AProfilerStep#(\d{1,18})\Z")
DATA = re.compile(r"\A(data\Z|enumerate\(DataLoader\)#)")
OPTIMIZER = re.compile(r"\A(optimizer\Z|Optimizer\.(step|zero_grad)#)")
PASS = re.compile(r"(?i:(?<![a-z])(forward|backward)(?![a-z]))")
PHASE = re.compile(f"{PASS.pattern}|{OPTIMIZER.pattern}")
# Old traces record these marks as operators.
MARK = re.compile(rf"{STEP.pattern}|{DATA.pattern}|{OPTIMIZER.pattern}|\A(forward|backward)\Z")


@dataclass(frozen=True)
class TraceView:
    trace: Trace  # marks have kind MARK, also in old traces
    steps: list[int]
    starts: Ints  # of the steps, in order
    ends: Ints
    windows: Spans  # union of the steps
    marked: bool  # the trace has step marks; otherwise all of it is one step
    host_lane: int  # the thread with the step marks; -1 if there is none
    of_host: Masks  # per event: on a thread of the host lane's process
    device: str | None  # number of the analysed device; None on a CPU
    of_device: Masks
    devices: dict[str, int]  # number -> nanoseconds of kernels and copies within the steps

    def spans(self, wanted: Masks | Indices) -> Spans:
        return union(self.trace.start_ns[wanted], self.trace.end_ns[wanted])

    def marks(self, pattern: re.Pattern[str]) -> Spans:
        on_host = (self.trace.kind == Kind.MARK) & (self.trace.lane == self.host_lane)
        return self.spans(on_host & find_named(self.trace, pattern))

    def within(self, rows: Indices) -> Ints:
        return lengths(self.windows, self.trace.start_ns[rows], self.trace.end_ns[rows])

    def touching(self, rows: Indices) -> Masks:
        """Return for each event whether it overlaps the steps; an event of length 0, whether it starts in one."""
        starts = self.trace.start_ns[rows]
        return lengths(self.windows, starts, np.maximum(self.trace.end_ns[rows], starts + 1)) > 0

    def by_lane(self, rows: Indices) -> Iterator[tuple[int, Indices]]:
        order = rows[np.argsort(self.trace.lane[rows], kind="stable")]
        lanes, firsts = np.unique(self.trace.lane[order], return_index=True)
        yield from zip(lanes.tolist(), np.split(order, firsts[1:]), strict=False)


def find_named(trace: Trace, pattern: re.Pattern[str]) -> Masks:
    """Return for each event whether its name matches; each distinct name is searched once."""
    return np.array([pattern.search(name) is not None for name in trace.names], np.bool_)[trace.name]


def build_trace_view(trace: Trace, file: str) -> TraceView:
    """Find steps, host and device; raise DataError if the trace has none."""
    if not len(trace.kind):
        message = f"{file}: no operator or kernel among {trace.num_events:,} events"
        raise DataError(message, hint="give a trace of `trainstone profile` or torch.profiler")
    old_marks = find_named(trace, MARK) & (trace.kind == Kind.OPERATOR)
    trace = replace(trace, kind=np.where(old_marks, np.int8(Kind.MARK), trace.kind))
    host_lane, steps, starts, ends = _find_steps(trace)
    marked = len(steps) > 0
    if not marked:
        steps, starts, ends = [0], trace.start_ns.min(keepdims=True), trace.end_ns.max(keepdims=True)
        kinds = (trace.kind == wanted for wanted in (Kind.OPERATOR, Kind.CALL, Kind.MARK))
        host_events = next((mask for mask in kinds if mask.any()), None)
        if host_events is not None:  # else the trace has no thread
            busy = np.bincount(trace.lane[host_events], trace.duration_ns[host_events])
            lanes = set(trace.lane[host_events].tolist())
            host_lane = max(lanes, key=lambda lane: (busy[lane], trace.lanes[lane][:2]))
    windows = union(starts, ends)
    if not len(windows.starts):
        raise DataError(f"{file}: the steps take no time", hint="profile at least one complete step")
    process = trace.lanes[host_lane].process if host_lane >= 0 else None
    threads = np.array([lane.device is None and lane.process == process for lane in trace.lanes])
    ran = np.flatnonzero(trace.kind >= Kind.KERNEL)
    taken = np.bincount(trace.lane[ran], lengths(windows, trace.start_ns[ran], trace.end_ns[ran]))
    devices: dict[str, int] = {}
    for number in set(trace.lane[ran].tolist()):
        if (of_lane := trace.lanes[number].device) is not None:  # else it was written without a device
            devices[of_lane] = devices.get(of_lane, 0) + int(taken[number])
    device = max(devices, key=lambda number: (devices[number], number)) if devices else None
    streams = np.array([lane.device is not None and lane.device == device for lane in trace.lanes])
    return TraceView(
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
    """Return the thread with the most step marks, and its steps in order of start."""
    number_of_name = [int(found[1]) if (found := STEP.search(name)) else -1 for name in trace.names]
    numbers = np.array(number_of_name, np.int64)[trace.name]
    marks = np.flatnonzero((trace.kind == Kind.MARK) & (numbers >= 0))
    if not len(marks):
        return -1, [], EMPTY.starts, EMPTY.ends
    lanes, counts = np.unique(trace.lane[marks], return_counts=True)
    best = max(range(len(lanes)), key=lambda index: (counts[index], trace.lanes[lanes[index]][:2]))
    marks = marks[trace.lane[marks] == lanes[best]]
    marks = marks[np.lexsort((numbers[marks], trace.end_ns[marks], trace.start_ns[marks]))]
    return int(lanes[best]), numbers[marks].tolist(), trace.start_ns[marks], trace.end_ns[marks]
