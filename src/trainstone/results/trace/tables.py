"""Tables of a profile: operators, kernels, lanes, and the calls of operators whose work is counted."""

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainstone.formats.eventcolumns import Kind, Lane
from trainstone.results.profiled import KernelTime, LaneTime, OperatorTime
from trainstone.results.trace.intervals import Flags, Places, contains, lengths
from trainstone.results.trace.launches import Launches
from trainstone.results.trace.nesting import Floats, Nesting, nest, own_times
from trainstone.results.trace.view import View, flag_names, is_communication, is_communication_kernel

TOP = 40
NS = 1e9
_KERNEL_KINDS: tuple[Any, ...] = ("compute", "communication", "copy")


class OperatorCalls(NamedTuple):
    """Calls of one operator with inputs of the same sizes, that began within the profiled steps."""

    name: str
    dims: tuple[tuple[int, ...], ...]
    calls: int
    host_seconds: float
    """With all it called, to its end."""
    device_seconds: float | None
    """Of all kernels launched within it; None on a CPU."""


class Calling(NamedTuple):
    """The operators of the host's process and the calls that launched something, one below the other."""

    rows: Places
    """In the trace."""
    leaf: Flags
    nesting: Nesting
    launched: Places
    """The kernels, rows of the trace ..."""
    by: Places
    """... and for each the place in `rows` of the call or operator that launched it."""


def find_callers(view: View, launches: Launches, counted: Collection[str]) -> Calling:
    """Find who called whom."""
    trace = view.trace
    operators = np.flatnonzero((view.kind == Kind.OPERATOR) & view.of_host)
    calls = np.unique(launches.source[view.kind[launches.source] == Kind.CALL])
    rows = np.concatenate((operators, calls))
    leaf = np.arange(len(rows)) >= len(operators)
    wanted = frozenset(counted)
    nesting = nest(
        trace.start_ns[rows],
        view.end_ns[rows],
        trace.lane[rows],
        trace.name[rows],
        trace.external[rows],
        leaf=leaf,
        counted=flag_names(trace, wanted.__contains__),
    )
    place = np.full(len(trace.kind), -1, np.intp)
    place[rows] = np.arange(len(rows))
    return Calling(rows, leaf, nesting, launches.kernel, place[launches.source])


def list_operators(view: View, calling: Calling, total_ns: float) -> list[OperatorTime]:
    """Return the operators that take most: of the device, or on a CPU of the host by their own time."""
    trace, rows, parent = view.trace, calling.rows, calling.nesting.parent
    with_called, own = own_times(trace.start_ns[rows], view.end_ns[rows], parent, calling.leaf, view.windows)
    launcher = np.where(calling.leaf[calling.by], parent[calling.by], calling.by)
    known = launcher >= 0
    device = _sum_by(launcher, known, view.within(calling.launched).astype(np.float64), len(rows))
    there = view.touching(rows) & ~calling.leaf
    there |= (device > 0) & ~calling.leaf  # launched just before a step, ran in it
    names = trace.name[rows]
    calls = _sum_by(names, there, there.astype(np.float64))
    own_sum, device_sum = _sum_by(names, there, own), _sum_by(names, there, device)
    total = _sum_by(names, there & calling.nesting.outermost, with_called, len(calls))
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
    """Return the outermost counted operators by name and sizes of inputs, most host time first."""
    trace, rows, root = view.trace, calling.rows, calling.nesting.counted_root
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
    """Return the kernels and copies that take most of the device's time."""
    trace = view.trace
    rows = np.flatnonzero(((view.kind == Kind.KERNEL) | (view.kind == Kind.COPY)) & view.of_device)
    rows = rows[view.touching(rows)]
    communicates = flag_names(trace, is_communication_kernel)[trace.name[rows]]
    sort = np.where(view.kind[rows] == Kind.COPY, 2, communicates.astype(np.int64))
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
    """Return all threads with operators, calls or communication and all streams, the busiest first."""
    trace, kind = view.trace, view.kind
    wanted = (kind == Kind.OPERATOR) | (kind == Kind.CALL) | (kind == Kind.KERNEL) | (kind == Kind.COPY)
    wanted |= (kind == Kind.MARK) & view.named(is_communication)
    rows = np.flatnonzero(wanted)
    rows = rows[view.touching(rows)]
    shown = dict(view.by_lane(rows))
    lanes = [trace.lanes[number] for number in shown]
    several = len({lane.process for lane in lanes if lane.device is None}) > 1
    found = []
    for number, here in shown.items():
        lane = trace.lanes[number]
        busy = lengths(view.spans(here), view.windows.starts, view.windows.ends).sum()
        found.append(
            LaneTime(
                name=_name_lane(view, lane, several),
                kind="thread" if lane.device is None else "stream",
                events=len(here),
                busy_seconds=float(busy) / NS,
            )
        )
    return sorted(found, key=lambda each: (each.kind, -each.busy_seconds, each.name))


def _name_lane(view: View, lane: Lane, several_processes: bool) -> str:
    if lane.device is not None:
        return f"device {lane.device} stream {lane.thread}" if len(view.devices) > 1 else f"stream {lane.thread}"
    name = view.trace.lane_names.get((lane.process, lane.thread)) or f"thread {lane.thread}"
    return f"process {lane.process} {name}" if several_processes else name


def _sum_by(names: npt.NDArray[np.integer[Any]], wanted: Flags, values: Floats, size: int = 0) -> Floats:
    return np.bincount(names[wanted], values[wanted], minlength=size).astype(np.float64)  # of nothing: whole zeros
