"""Operators, kernels and lanes of a trace: who called and launched what, and how long it took."""

import re
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainstone.formats.kineto import Kind, Trace
from trainstone.results.schema.timeline import KernelTime, LaneTime, OperatorTime
from trainstone.trace.spans import NS, Flags, Floats, Ints, Places, contains, lengths
from trainstone.trace.view import TraceView, find_named

TOP = 40
_SLICE = 1 << 16
_KERNEL_KINDS: tuple[Any, ...] = ("compute", "communication", "copy")
# Operators and marks of a CPU
COMMUNICATION = re.compile(r"\A((gloo|nccl|mpi|ucc|xccl):|c10d::)")
COMMUNICATION_KERNEL = re.compile(
    r"nccl|rccl|oneccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce", re.IGNORECASE
)


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


def find_callers(view: TraceView, counted: Collection[str]) -> Calling:
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


def list_operators(view: TraceView, calling: Calling, total_ns: float) -> list[OperatorTime]:
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


def count_calls(view: TraceView, calling: Calling) -> list[OperatorCalls]:
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


def list_kernels(view: TraceView, total_ns: float) -> list[KernelTime]:
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


def list_lanes(view: TraceView) -> list[LaneTime]:
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
