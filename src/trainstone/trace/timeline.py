"""Where the time of training steps went, by a trace of torch.profiler: the record `timeline` of result.json.

How traces are read is in formats/kineto.py. Here: sets of spans of time; the steps, host and device that a trace shows
(View); who called and launched what; tables of operators, kernels and lanes; and the parts of each step.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainstone.errors import DataError
from trainstone.formats.kineto import Kind, Trace, read_trace
from trainstone.results.schema.timeline import KernelTime, LaneTime, OperatorTime, StepParts, Timeline, share_of
from trainstone.results.verdicts import describe_trace
from trainstone.text import printable

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]
NS = 1e9
TOP = 40
_SLICE = 1 << 16
_KERNEL_KINDS: tuple[Any, ...] = ("compute", "communication", "copy")

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
# Calls of the driver that keep the host until the device is done, and operators that fetch a number from the device
WAITING_CALL = re.compile(
    r"\A((cuda|hip|cu)(Stream|Device|Event|Ctx)Synchronize\w*|(cuda|hip)Memcpy(2D|3D|ToSymbol|FromSymbol)?"
    r"|hipMemcpyWithStream|ze\w+Synchronize)\Z"
)
WAITING_OPERATOR = re.compile(r"\Aaten::(item|_local_scalar_dense)\Z")
# CUPTI's record of a wait of one stream for another; the host does not wait.
STREAM_WAIT = re.compile(r"\AStream Wait Event\Z")
COPYING_OPERATOR = re.compile(r"\Aaten::(copy_|_to_copy|to|clone|contiguous|_foreach_copy_|fill_|zero_)\Z")
DEVICE_ORDER = ("compute", "optimizer", "communication", "copy", "data_wait", "synchronisation", "launch", "host")
# On a CPU whoever waits for data may run operators meanwhile, to put the batch together: that is a wait all the same.
PROCESSOR_ORDER = ("data_wait", "compute", "optimizer", "communication", "copy", "synchronisation", "launch", "host")


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
    return union(*np.concatenate((EMPTY, *parts), axis=1))


def contains(spans: Spans, times: Ints) -> Flags:
    if not len(spans.starts):
        return np.zeros(len(times), np.bool_)
    place = np.searchsorted(spans.starts, times, "right") - 1
    return np.asarray((place >= 0) & (times < spans.ends[place.clip(0)]))


def divide(one: Spans, other: Spans) -> tuple[Spans, Spans]:
    """Return the parts of `one` that are inside and outside of `other`."""
    edges = np.unique(np.concatenate((*one, *other)))
    starts, ends = edges[:-1], edges[1:]
    here, inside = contains(one, starts), contains(other, starts)
    return union(starts[here & inside], ends[here & inside]), union(starts[here & ~inside], ends[here & ~inside])


def lengths(spans: Spans, starts: Ints, ends: Ints) -> Ints:
    """Return for each interval how much of it the spans cover."""
    if not len(spans.starts):
        return np.zeros(len(starts), np.int64)
    before = np.concatenate(([0], np.cumsum(spans.ends - spans.starts)))

    def covered(times: Ints) -> Ints:  # before each moment: a clock that stands still outside the spans
        place = np.searchsorted(spans.starts, times, "right")
        open_end = spans.ends[(place - 1).clip(0)]
        return np.asarray(before[place] - np.where(place > 0, (open_end - times).clip(0), 0))

    return covered(ends) - covered(starts)


def sums_within(starts: Ints, ends: Ints, window_starts: Ints, window_ends: Ints) -> Ints:
    """Return for each window the sum of all intervals' parts in it; what runs side by side counts each by itself."""
    if not len(starts) or not len(window_starts):
        return np.zeros(len(window_starts), np.int64)
    first, last = window_starts.min(), window_ends.max()
    moments = np.stack((window_starts, window_ends)) - first

    def passed(times: Ints) -> Ints:
        """Return for each window how much it adds to the sum of how long ago all earlier times are."""
        ordered = np.sort(times.clip(first, last) - first)
        place = np.searchsorted(ordered, moments)
        ago = place * moments - np.concatenate(([0], np.cumsum(ordered)))[place]
        return np.asarray(ago[1] - ago[0])

    return passed(starts) - passed(ends)


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

    def spans(self, wanted: Flags | Places) -> Spans:
        return union(self.trace.start_ns[wanted], self.trace.end_ns[wanted])

    def marks(self, pattern: re.Pattern[str]) -> Spans:
        on_host = (self.trace.kind == Kind.MARK) & (self.trace.lane == self.host_lane)
        return self.spans(on_host & find_named(self.trace, pattern))

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
        told = f"{file}: {trace.num_events:,} events, none of them an operator or a kernel of torch's profiler"
        raise DataError(told, hint="a trace of trainstone profile, or of torch.profiler, is wanted")
    old_mark = find_named(trace, MARK) & (trace.kind == Kind.OPERATOR)
    trace = replace(trace, kind=np.where(old_mark, np.int8(Kind.MARK), trace.kind))
    host_lane, steps, starts, ends = _find_steps(trace)
    marked = len(steps) > 0
    if not marked:
        steps, starts, ends = [0], trace.start_ns.min(keepdims=True), trace.end_ns.max(keepdims=True)
        kinds = (trace.kind == wanted for wanted in (Kind.OPERATOR, Kind.CALL, Kind.MARK))
        there = next((there for there in kinds if there.any()), None)
        if there is not None:  # else there is no thread
            busy = np.bincount(trace.lane[there], trace.duration_ns[there])
            lanes = set(trace.lane[there].tolist())
            host_lane = max(lanes, key=lambda lane: (busy[lane], trace.lanes[lane][:2]))
    windows = union(starts, ends)
    if not len(windows.starts):
        raise DataError(f"{file}: the steps take no time", hint="profile at least one whole step")
    process = trace.lanes[host_lane].process if host_lane >= 0 else None
    threads = np.array([lane.device is None and lane.process == process for lane in trace.lanes])
    ran = np.flatnonzero(trace.kind >= Kind.KERNEL)
    taken = np.bincount(trace.lane[ran], lengths(windows, trace.start_ns[ran], trace.end_ns[ran]))
    devices: dict[str, int] = {}
    for number in set(trace.lane[ran].tolist()):
        if (of_lane := trace.lanes[number].device) is not None:  # it was written without one
            devices[of_lane] = devices.get(of_lane, 0) + int(taken[number])
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


class OperatorCalls(NamedTuple):
    """Calls of one operator with inputs of the same sizes, that began within the profiled steps."""

    name: str
    dims: tuple[tuple[int, ...], ...]
    calls: int
    host_seconds: float  # with all it called, to its end
    device_seconds: float | None  # of all kernels launched within it; None on a CPU


class Calling(NamedTuple):
    """The operators of the host's process, and the calls that launched something, one below the other."""

    rows: Places  # in the trace
    leaf: Flags  # calls of the driver: they call nothing
    parent: Places  # place of the caller in `rows`; -1 for none
    outermost: Flags  # no caller, direct or not, has the same name
    root: Places  # place of the outermost counted operator that it is, or is within; -1 for none
    launched: Places  # kernels and copies of the device whose launch is known, rows of the trace ...
    by: Places
    """... and for each the place in `rows` of the call that launched it, or of the operator if the call is missing."""


def find_callers(view: View, counted: Collection[str]) -> Calling:
    """Find the caller of each operator: the last begun operator of its lane that is still open when it starts.

    Of two with the same times the one of smaller external id is the caller. Kernels are matched to calls by
    correlation, else to operators by external id.
    """
    trace = view.trace
    operators = np.flatnonzero((trace.kind == Kind.OPERATOR) & view.of_host)
    launched = np.flatnonzero((trace.kind >= Kind.KERNEL) & view.of_device)
    source = _match(trace, np.flatnonzero((trace.kind == Kind.CALL) & view.of_host), trace.correlation, launched)
    left = source < 0
    source[left] = _match(trace, operators, trace.external, launched[left])
    launched, source = launched[source >= 0], source[source >= 0]
    calls = np.unique(source[trace.kind[source] == Kind.CALL])
    rows = np.concatenate((operators, calls))
    leaf = np.arange(len(rows)) >= len(operators)
    place = np.full(len(trace.kind), -1, np.intp)
    place[rows] = np.arange(len(rows))

    start, end, lane, name = (column[rows] for column in (trace.start_ns, trace.end_ns, trace.lane, trace.name))
    order = np.lexsort((name, trace.external[rows], leaf, -end, start, lane))
    # Some thousand rows of Python numbers at a time: all of them would fill more memory than the trace.
    slices = (order[first : first + _SLICE] for first in range(0, len(order), _SLICE))
    columns = ([column[part].tolist() for column in (start, end, lane, name, leaf)] for part in slices)
    in_order = (row for part in columns for row in zip(*part, strict=True))
    walked = _walk(in_order, [name in counted for name in trace.names])
    fields = np.dtype([("parent", np.intp), ("outermost", np.bool_), ("root", np.intp)])
    found = np.empty(len(order), fields)
    found[order] = np.fromiter(walked, fields, len(order))
    back = np.append(order, -1)  # a place in sorted order -> a place in the arrays; -1 stays -1
    return Calling(rows, leaf, back[found["parent"]], found["outermost"], back[found["root"]], launched, place[source])


def _match(trace: Trace, sources: Places, identity: Ints, wanted: Places) -> Places:
    """Return for each wanted row the earliest source of the same identity; -1 where there is none, 0 is none's."""
    sources = sources[identity[sources] > 0]
    if not len(sources):
        return np.full(len(wanted), -1, np.intp)
    sources = sources[np.lexsort((trace.end_ns[sources], trace.start_ns[sources], identity[sources]))]
    known = identity[sources]
    place = np.searchsorted(known, identity[wanted]).clip(max=len(known) - 1)
    return np.where(known[place] == identity[wanted], sources[place], -1)


def _walk(rows: Iterator[tuple[Any, ...]], counted: list[bool]) -> Iterator[tuple[int, bool, int]]:
    stack: list[tuple[float, int, int, int]] = [(float("inf"), -1, -1, -1)]  # end, place, name, root
    times_open = [0] * len(counted)
    current = None
    for place, (start, end, lane, name, leaf) in enumerate(rows):
        if lane != current:
            current, stack, times_open = lane, stack[:1], [0] * len(counted)
        while stack[-1][0] <= start:
            times_open[stack.pop()[2]] -= 1
        _, caller, _, root = stack[-1]
        if leaf:
            yield caller, True, root
            continue
        if root < 0 and counted[name]:
            root = place
        yield caller, times_open[name] == 0, root
        stack.append((end, place, name, root))
        times_open[name] += 1


def list_operators(view: View, calling: Calling, total_ns: float) -> list[OperatorTime]:
    """Return the operators that take most: of the device, or on a CPU of the host by their own time."""
    trace, rows, parent = view.trace, calling.rows, calling.parent
    start, end = trace.start_ns[rows], trace.end_ns[rows]
    with_called = view.within(rows).astype(np.float64)
    called = np.flatnonzero((parent >= 0) & ~calling.leaf)
    cut = np.minimum(end[called], end[parent[called]])  # rounded times may let a child outlive its caller
    own = with_called - np.bincount(parent[called], lengths(view.windows, start[called], cut), minlength=len(rows))
    launcher = np.where(calling.leaf[calling.by], parent[calling.by], calling.by)
    known = launcher >= 0
    device = _sum_by(launcher, known, view.within(calling.launched).astype(np.float64), len(rows))
    there = view.touching(rows) & ~calling.leaf
    there |= (device > 0) & ~calling.leaf  # launched just before a step, ran in it
    names = trace.name[rows]
    calls = _sum_by(names, there, there.astype(np.float64))
    own_sum, device_sum = _sum_by(names, there, own), _sum_by(names, there, device)
    total = _sum_by(names, there & calling.outermost, with_called, len(calls))
    on_device = view.device is not None
    ranked = device_sum if on_device else own_sum
    found = np.flatnonzero(calls)
    best = sorted(found.tolist(), key=lambda name: (-ranked[name], -own_sum[name], trace.names[name]))[:TOP]
    return [
        OperatorTime(
            name=trace.names[name],
            calls=int(calls[name]),
            self_seconds=own_sum[name] / NS,
            total_seconds=total[name] / NS,
            device_seconds=device_sum[name] / NS if on_device else None,
            share=ranked[name] / total_ns,
        )
        for name in best
    ]


def count_calls(view: View, calling: Calling) -> list[OperatorCalls]:
    trace, rows, root = view.trace, calling.rows, calling.root
    begun = contains(view.windows, trace.start_ns[rows]) & ~calling.leaf
    chosen = np.flatnonzero((root == np.arange(len(rows))) & begun)
    around = root[calling.by]
    known = around >= 0
    ran = trace.duration_ns[calling.launched[known]]
    device = np.bincount(around[known], ran, minlength=len(rows))
    keys, group = np.unique(np.stack((trace.name[rows[chosen]], trace.dims[rows[chosen]])), axis=1, return_inverse=True)
    calls = np.bincount(group)
    host_sum = np.bincount(group, trace.duration_ns[rows[chosen]]) / NS
    device_sum = np.bincount(group, device[chosen]) / NS
    found = [
        OperatorCalls(
            name=trace.names[name],
            dims=trace.shapes[dims],
            calls=int(calls[number]),
            host_seconds=float(host_sum[number]),
            device_seconds=None if view.device is None else float(device_sum[number]),
        )
        for number, (name, dims) in enumerate(keys.T.tolist())
    ]
    return sorted(found, key=lambda each: (-each.host_seconds, each.name, each.dims))


def list_kernels(view: View, total_ns: float) -> list[KernelTime]:
    trace = view.trace
    rows = np.flatnonzero((trace.kind >= Kind.KERNEL) & view.of_device)
    rows = rows[view.touching(rows)]
    communicates = find_named(view.trace, COMMUNICATION_KERNEL)[rows]
    sort = np.where(trace.kind[rows] == Kind.COPY, 2, communicates.astype(np.int64))
    keys, group = np.unique(np.stack((trace.name[rows], sort)), axis=1, return_inverse=True)
    calls, taken = np.bincount(group), np.bincount(group, view.within(rows))
    found = [
        KernelTime(
            name=trace.names[name],
            kind=_KERNEL_KINDS[which],
            calls=int(calls[number]),
            seconds=float(taken[number]) / NS,
            share=float(taken[number]) / total_ns,
        )
        for number, (name, which) in enumerate(keys.T.tolist())
    ]
    return sorted(found, key=lambda each: (-each.seconds, each.name, each.kind))[:TOP]


def list_lanes(view: View) -> list[LaneTime]:
    trace, kind = view.trace, view.trace.kind
    wanted = (kind == Kind.OPERATOR) | (kind == Kind.CALL) | (kind >= Kind.KERNEL)
    wanted |= (kind == Kind.MARK) & find_named(view.trace, COMMUNICATION)
    rows = np.flatnonzero(wanted)
    rows = rows[view.touching(rows)]
    shown = dict(view.by_lane(rows))
    lanes = [trace.lanes[number] for number in shown]
    several = len({lane.process for lane in lanes if lane.device is None}) > 1
    found = []
    for lane, here in zip(lanes, shown.values(), strict=True):
        if lane.device is None:
            name = trace.lane_names.get((lane.process, lane.thread)) or f"thread {lane.thread}"
            name = f"process {lane.process} {name}" if several else name
        else:
            name = f"stream {lane.thread}"
            name = f"device {lane.device} {name}" if len(view.devices) > 1 else name
        busy = float(lengths(view.spans(here), *view.windows).sum()) / NS
        kind_of_lane: Any = "thread" if lane.device is None else "stream"
        found.append(LaneTime(name=name, kind=kind_of_lane, events=len(here), busy_seconds=busy))
    return sorted(found, key=lambda each: (each.kind, -each.busy_seconds, each.name))


def _sum_by(names: npt.NDArray[np.integer[Any]], wanted: Flags, values: Floats, size: int = 0) -> Floats:
    return np.bincount(names[wanted], values[wanted], minlength=size).astype(np.float64)  # of nothing: whole zeros


DRIVERS = {"rocm": "hip", "xpu": ("ze", "ur")}  # how the names of their calls begin; all others are CUDA's
Moments = dict[str, Spans]  # when each part that is no mark holds, whatever else does; with "running" and "busy"


@dataclass(frozen=True)
class TraceReport:
    timeline: Timeline
    calls: list[OperatorCalls]  # of the counted operators


def analyse_trace(path: Path, *, counted: Collection[str] = ()) -> TraceReport:
    """Read a trace, plain or gzip, and say where the time of its steps went.

    Steps are torch's ProfilerStep marks; without any the whole trace is one. Of operators named in `counted`, as
    "aten::convolution", each outermost call is summed up by the sizes of its inputs. Raises DataError.
    """
    view = look_at(read_trace(path), printable(str(path)))
    calling = find_callers(view, counted)
    judged = judge_processor(view) if view.device is None else judge_device(view, calling)
    steps = split_steps(view, *judged)
    total_ns = float((view.ends - view.starts).sum())
    seen = {view.trace.names[name] for name in set(view.trace.name[view.trace.kind == Kind.CALL].tolist())}
    makers = (maker for maker, prefixes in DRIVERS.items() if any(name.startswith(prefixes) for name in seen))
    timeline = Timeline(
        trace=path.name,
        device="cpu" if view.device is None else next(makers, "cuda"),
        rank=view.trace.rank,
        steps=steps,
        # Rounding may make the whole a little more.
        compute_utilisation=min(1.0, share_of(steps, "kernel_running")),
        accounted_share=1 - min(1.0, share_of(steps, "unaccounted")),
        operators=list_operators(view, calling, total_ns),
        kernels=[] if view.device is None else list_kernels(view, total_ns),
        lanes=list_lanes(view),
        told=describe_trace(
            steps,
            device=view.device,
            marked=view.marked,
            has_phases=len(view.marks(PASS).starts) > 0,
            num_devices=len(view.devices),
        ),
        events=view.trace.num_events,
    )
    return TraceReport(timeline, count_calls(view, calling))


def judge_device(view: View, calling: Calling) -> tuple[Moments, Spans]:
    """Judge by what runs on the device, and by what the host does; return also all kernels, overlapping or not."""
    trace, kind = view.trace, view.trace.kind
    kernel = (kind == Kind.KERNEL) & view.of_device
    communicates = kernel & find_named(view.trace, COMMUNICATION_KERNEL)
    copies = (kind == Kind.COPY) & view.of_device
    marks = view.marks(OPTIMIZER)
    of_optimizer = np.zeros(len(kind), np.bool_)
    source = calling.rows[calling.by]
    by_host = trace.lane[source] == view.host_lane
    of_optimizer[calling.launched[by_host & contains(marks, trace.start_ns[source])]] = True
    of_optimizer &= kernel & ~communicates
    calls = (kind == Kind.CALL) & view.of_host
    operators = (kind == Kind.OPERATOR) & view.of_host
    waits = (calls & find_named(view.trace, WAITING_CALL)) | (operators & find_named(view.trace, WAITING_OPERATOR))
    waits |= (kind == Kind.SYNC) & view.of_device & ~find_named(view.trace, STREAM_WAIT)
    moments = {
        "compute": view.spans(kernel & ~communicates & ~of_optimizer),
        "optimizer": view.spans(of_optimizer),
        "communication": view.spans(communicates),
        "copy": view.spans(copies),
        "synchronisation": view.spans(waits),
        "launch": view.spans(calls | operators),
        "running": view.spans(kernel),
        "busy": view.spans(kernel | copies),
    }
    return moments, Spans(trace.start_ns[kernel], trace.end_ns[kernel])


def judge_processor(view: View) -> tuple[Moments, Spans]:
    """Judge by the operators of all threads of the host's process; what is within a copy or communication is it.

    Return also what runs on each thread.
    """
    operators = (view.trace.kind == Kind.OPERATOR) & view.of_host
    communicates = ((view.trace.kind == Kind.MARK) & view.of_host | operators) & find_named(view.trace, COMMUNICATION)
    copies = operators & find_named(view.trace, COPYING_OPERATOR)
    marks = view.marks(OPTIMIZER)
    compute, optimizer, copy, running = [], [], [], []
    for lane, here in view.by_lane(np.flatnonzero(operators | communicates)):
        talk = view.spans(here[communicates[here]])
        runs = view.spans(here[operators[here]])
        _, alone = divide(runs, talk)
        of_optimizer, others = divide(alone, marks) if lane == view.host_lane else (EMPTY, alone)
        moves, computes = divide(others, view.spans(here[copies[here]]))
        compute.append(computes)
        optimizer.append(of_optimizer)
        copy.append(moves)
        running.append(join(runs, talk))
    anything = join(*running)
    moments = {"compute": join(*compute), "optimizer": join(*optimizer), "communication": view.spans(communicates)}
    moments |= {"copy": join(*copy), "running": anything, "busy": anything, "synchronisation": EMPTY, "launch": EMPTY}
    return moments, Spans(*np.concatenate((EMPTY, *running), axis=1))


def split_steps(view: View, moments: Moments, kernels: Spans) -> list[StepParts]:
    starts, ends = view.starts, view.ends

    def within(spans: Spans) -> Ints:
        return lengths(spans, starts, ends)

    moments |= {"data_wait": view.marks(DATA), "host": view.marks(PHASE), "in_optimizer": view.marks(OPTIMIZER)}
    columns: dict[str, Ints] = {}
    until = EMPTY
    taken = np.zeros(len(starts), np.int64)
    for part in PROCESSOR_ORDER if view.device is None else DEVICE_ORDER:
        until = join(until, moments[part])
        columns[part] = within(until) - taken
        taken = taken + columns[part]
    columns["unaccounted"] = ends - starts - taken
    computes = join(moments["compute"], moments["optimizer"])
    columns |= {
        "busy": within(moments["busy"]),
        "kernel_running": within(moments["running"]),
        "kernel": sums_within(*kernels, starts, ends).clip(0),
        "communication_total": within(moments["communication"]),
        "overlap": within(divide(computes, moments["communication"])[0]),
        "copy_total": within(moments["copy"]),
        "data_wait_total": within(moments["data_wait"]),
        "optimizer_total": within(moments["in_optimizer"]),
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    names = [f"{name}_seconds" for name in columns]
    return [
        StepParts(step=step, seconds=seconds / NS, **dict(zip(names, (value / NS for value in row), strict=True)))
        for step, seconds, row in zip(view.steps, (ends - starts).tolist(), rows, strict=True)
    ]
