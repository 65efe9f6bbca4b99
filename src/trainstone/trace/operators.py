"""Tables of the operators, kernels and lanes in a trace, and the call graph of operators."""

import re
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainstone.formats.kineto import Kind, Trace
from trainstone.results.schema.timeline import KernelTime, LaneTime, OperatorTime
from trainstone.trace.spans import NS, Floats, Indices, Ints, Masks, contains, lengths
from trainstone.trace.view import TraceView, find_named

TOP = 40
_SLICE = 1 << 16
_KERNEL_KINDS: tuple[Any, ...] = ("compute", "communication", "copy")
# Operators and marks on a CPU
COMMUNICATION = re.compile(r"\A((gloo|nccl|mpi|ucc|xccl):|c10d::)")
COMMUNICATION_KERNEL = re.compile(
    r"nccl|rccl|oneccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce", re.IGNORECASE
)


class OperatorCalls(NamedTuple):
    """Calls of one operator with the same input shapes that started within the profiled steps."""

    name: str
    dims: tuple[tuple[int, ...], ...]
    calls: int
    host_seconds: float  # with callees
    device_seconds: float | None  # of all kernels it launched; None on a CPU


class CallGraph(NamedTuple):
    """The call graph: operators of the host's process, followed by the driver calls that launched kernels."""

    rows: Indices  # indexes into the trace
    leaf: Masks  # driver calls, which have no callees
    parent: Indices  # index of the caller in `rows`; -1 for none
    outermost: Masks  # no direct or indirect caller has the same name
    root: Indices  # index of the outermost counted operator that contains it or is it; -1 for none
    launched: Indices  # kernels and copies with a known launch, as rows of the trace
    by: Indices
    """For each of `launched`, the index in `rows` of the call that launched it, or of the operator if there is none."""


def build_call_graph(view: TraceView, counted: Collection[str]) -> CallGraph:
    """Find the caller of each operator: the operator of its lane that started last and is still running.

    Of two with the same times, the one with the smaller external id is the caller. Kernels are matched to calls by
    correlation id, else to operators by external id.
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
    index = np.full(len(trace.kind), -1, np.intp)
    index[rows] = np.arange(len(rows))

    start, end, lane, name = (column[rows] for column in (trace.start_ns, trace.end_ns, trace.lane, trace.name))
    order = np.lexsort((name, trace.external[rows], leaf, -end, start, lane))
    # Converted to Python numbers in slices: all at once would need more memory than the trace.
    slices = (order[first : first + _SLICE] for first in range(0, len(order), _SLICE))
    columns = ([column[part].tolist() for column in (start, end, lane, name, leaf)] for part in slices)
    in_order = (row for part in columns for row in zip(*part, strict=True))
    walked = _walk(in_order, [name in counted for name in trace.names])
    fields = np.dtype([("parent", np.intp), ("outermost", np.bool_), ("root", np.intp)])
    found = np.empty(len(order), fields)
    found[order] = np.fromiter(walked, fields, len(order))
    back = np.append(order, -1)  # index in sorted order -> index in the arrays; -1 stays -1
    return CallGraph(
        rows, leaf, back[found["parent"]], found["outermost"], back[found["root"]], launched, index[source]
    )


def _match(trace: Trace, sources: Indices, identity: Ints, wanted: Indices) -> Indices:
    """Return the earliest source with the same id for each wanted row, -1 for none; id 0 means unknown."""
    sources = sources[identity[sources] > 0]
    if not len(sources):
        return np.full(len(wanted), -1, np.intp)
    sources = sources[np.lexsort((trace.end_ns[sources], trace.start_ns[sources], identity[sources]))]
    known = identity[sources]
    index = np.searchsorted(known, identity[wanted]).clip(max=len(known) - 1)
    return np.where(known[index] == identity[wanted], sources[index], -1)


def _walk(rows: Iterator[tuple[Any, ...]], counted: list[bool]) -> Iterator[tuple[int, bool, int]]:
    stack: list[tuple[float, int, int, int]] = [(float("inf"), -1, -1, -1)]  # end, index, name, root
    times_open = [0] * len(counted)
    current = None
    for index, (start, end, lane, name, leaf) in enumerate(rows):
        if lane != current:
            current, stack, times_open = lane, stack[:1], [0] * len(counted)
        while stack[-1][0] <= start:
            times_open[stack.pop()[2]] -= 1
        _, caller, _, root = stack[-1]
        if leaf:
            yield caller, True, root
            continue
        if root < 0 and counted[name]:
            root = index
        yield caller, times_open[name] == 0, root
        stack.append((end, index, name, root))
        times_open[name] += 1


def list_operators(view: TraceView, graph: CallGraph, total_ns: float) -> list[OperatorTime]:
    """Return the operators with the most device time, or on a CPU with the most self time on the host."""
    trace, rows, parent = view.trace, graph.rows, graph.parent
    start, end = trace.start_ns[rows], trace.end_ns[rows]
    with_callees = view.within(rows).astype(np.float64)
    callees = np.flatnonzero((parent >= 0) & ~graph.leaf)
    cut = np.minimum(end[callees], end[parent[callees]])  # by rounding, a callee may end after its caller
    self_time = with_callees - np.bincount(
        parent[callees], lengths(view.windows, start[callees], cut), minlength=len(rows)
    )
    launcher = np.where(graph.leaf[graph.by], parent[graph.by], graph.by)
    known = launcher >= 0
    device = _sum_by(launcher, known, view.within(graph.launched).astype(np.float64), len(rows))
    inside = view.touching(rows) & ~graph.leaf
    inside |= (device > 0) & ~graph.leaf  # launched before a step, ran in it
    names = trace.name[rows]
    calls = _sum_by(names, inside, inside.astype(np.float64))
    self_sum, device_sum = _sum_by(names, inside, self_time), _sum_by(names, inside, device)
    total = _sum_by(names, inside & graph.outermost, with_callees, len(calls))
    on_device = view.device is not None
    ranked = device_sum if on_device else self_sum
    found = np.flatnonzero(calls)
    best = sorted(found.tolist(), key=lambda name: (-ranked[name], -self_sum[name], trace.names[name]))[:TOP]
    return [
        OperatorTime(
            name=trace.names[name],
            calls=int(calls[name]),
            self_seconds=self_sum[name] / NS,
            total_seconds=total[name] / NS,
            device_seconds=device_sum[name] / NS if on_device else None,
            share=ranked[name] / total_ns,
        )
        for name in best
    ]


def count_calls(view: TraceView, graph: CallGraph) -> list[OperatorCalls]:
    trace, rows, root = view.trace, graph.rows, graph.root
    started = contains(view.windows, trace.start_ns[rows]) & ~graph.leaf
    chosen = np.flatnonzero((root == np.arange(len(rows))) & started)
    root_of_launch = root[graph.by]
    known = root_of_launch >= 0
    ran = trace.duration_ns[graph.launched[known]]
    device = np.bincount(root_of_launch[known], ran, minlength=len(rows))
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
        lane_kind: Any = "thread" if lane.device is None else "stream"
        found.append(LaneTime(name=name, kind=lane_kind, events=len(here), busy_seconds=busy))
    return sorted(found, key=lambda each: (each.kind, -each.busy_seconds, each.name))


def _sum_by(names: npt.NDArray[np.integer[Any]], wanted: Masks, values: Floats, size: int = 0) -> Floats:
    # bincount of nothing returns integers
    return np.bincount(names[wanted], values[wanted], minlength=size).astype(np.float64)
