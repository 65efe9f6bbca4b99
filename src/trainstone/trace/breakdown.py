"""Break down the time of training steps by a torch.profiler trace, for the record `timeline` of result.json.

formats/kineto.py reads the trace, trace/view.py finds steps, host and device, trace/operators.py builds the tables of
operators, kernels and lanes. This module splits each step into parts.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainstone.formats.kineto import Kind, read_trace
from trainstone.results.schema.timeline import StepParts, Timeline
from trainstone.results.step_parts import share_of
from trainstone.results.verdicts import describe_trace
from trainstone.text import printable
from trainstone.trace.operators import (
    COMMUNICATION,
    COMMUNICATION_KERNEL,
    CallGraph,
    OperatorCalls,
    build_call_graph,
    count_calls,
    list_kernels,
    list_lanes,
    list_operators,
)
from trainstone.trace.spans import (
    EMPTY,
    NS,
    Ints,
    Spans,
    contains,
    divide,
    join,
    lengths,
    sum_within,
)
from trainstone.trace.view import DATA, OPTIMIZER, PASS, PHASE, TraceView, build_trace_view, find_named

# Driver calls that block the host until the device is done, and operators that fetch a number from the device
WAITING_CALL = re.compile(
    r"\A((cuda|hip|cu)(Stream|Device|Event|Ctx)Synchronize\w*|(cuda|hip)Memcpy(2D|3D|ToSymbol|FromSymbol)?"
    r"|hipMemcpyWithStream|ze\w+Synchronize)\Z"
)
WAITING_OPERATOR = re.compile(r"\Aaten::(item|_local_scalar_dense)\Z")
# CUPTI's record of one stream waiting for another; the host does not wait.
STREAM_WAIT = re.compile(r"\AStream Wait Event\Z")
COPYING_OPERATOR = re.compile(r"\Aaten::(copy_|_to_copy|to|clone|contiguous|_foreach_copy_|fill_|zero_)\Z")
DEVICE_ORDER = ("compute", "optimizer", "communication", "copy", "data_wait", "synchronisation", "launch", "host")
# On a CPU, a thread may run operators to assemble the batch during a data wait; this still counts as waiting.
CPU_ORDER = ("data_wait", "compute", "optimizer", "communication", "copy", "synchronisation", "launch", "host")


DRIVERS = {"rocm": "hip", "xpu": ("ze", "ur")}  # prefixes of driver calls; all others are CUDA's
PartSpans = dict[str, Spans]  # spans of each part by name (they may overlap), with "running" and "busy"


@dataclass(frozen=True)
class TraceReport:
    timeline: Timeline
    calls: list[OperatorCalls]  # of the counted operators


def analyse_trace(path: Path, *, counted: Collection[str] = ()) -> TraceReport:
    """Read a trace, plain or gzip, and break down the time of its steps.

    Steps are torch's ProfilerStep marks; without any, the whole trace is one step. Outermost calls of the operators in
    `counted`, e.g. "aten::convolution", are summed by input shapes. Raises DataError.
    """
    view = build_trace_view(read_trace(path), printable(str(path)))
    graph = build_call_graph(view, counted)
    parts = break_down_cpu(view) if view.device is None else break_down_device(view, graph)
    steps = split_steps(view, *parts)
    total_ns = float((view.ends - view.starts).sum())
    seen = {view.trace.names[name] for name in set(view.trace.name[view.trace.kind == Kind.CALL].tolist())}
    device_types = (device for device, prefixes in DRIVERS.items() if any(name.startswith(prefixes) for name in seen))
    timeline = Timeline(
        trace=path.name,
        device="cpu" if view.device is None else next(device_types, "cuda"),
        rank=view.trace.rank,
        steps=steps,
        # Rounding may make it slightly larger than 1.
        compute_utilisation=min(1.0, share_of(steps, "kernel_running")),
        accounted_share=1 - min(1.0, share_of(steps, "unaccounted")),
        operators=list_operators(view, graph, total_ns),
        kernels=[] if view.device is None else list_kernels(view, total_ns),
        lanes=list_lanes(view),
        sentences=describe_trace(
            steps,
            device=view.device,
            marked=view.marked,
            has_phases=len(view.marks(PASS).starts) > 0,
            num_devices=len(view.devices),
        ),
        events=view.trace.num_events,
    )
    return TraceReport(timeline, count_calls(view, graph))


def break_down_device(view: TraceView, graph: CallGraph) -> tuple[PartSpans, Spans]:
    """Return the spans of each part from the events of device and host, and all kernels, which may overlap."""
    trace, kind = view.trace, view.trace.kind
    kernel = (kind == Kind.KERNEL) & view.of_device
    communicates = kernel & find_named(view.trace, COMMUNICATION_KERNEL)
    copies = (kind == Kind.COPY) & view.of_device
    marks = view.marks(OPTIMIZER)
    of_optimizer = np.zeros(len(kind), np.bool_)
    source = graph.rows[graph.by]
    by_host = trace.lane[source] == view.host_lane
    of_optimizer[graph.launched[by_host & contains(marks, trace.start_ns[source])]] = True
    of_optimizer &= kernel & ~communicates
    calls = (kind == Kind.CALL) & view.of_host
    operators = (kind == Kind.OPERATOR) & view.of_host
    waits = (calls & find_named(view.trace, WAITING_CALL)) | (operators & find_named(view.trace, WAITING_OPERATOR))
    waits |= (kind == Kind.SYNC) & view.of_device & ~find_named(view.trace, STREAM_WAIT)
    part_spans = {
        "compute": view.spans(kernel & ~communicates & ~of_optimizer),
        "optimizer": view.spans(of_optimizer),
        "communication": view.spans(communicates),
        "copy": view.spans(copies),
        "synchronisation": view.spans(waits),
        "launch": view.spans(calls | operators),
        "running": view.spans(kernel),
        "busy": view.spans(kernel | copies),
    }
    return part_spans, Spans(trace.start_ns[kernel], trace.end_ns[kernel])


def break_down_cpu(view: TraceView) -> tuple[PartSpans, Spans]:
    """Return the spans of each part from the operators of all threads, and the operators of each thread.

    Operators within a copy or a communication count as that.
    """
    operators = (view.trace.kind == Kind.OPERATOR) & view.of_host
    communicates = ((view.trace.kind == Kind.MARK) & view.of_host | operators) & find_named(view.trace, COMMUNICATION)
    copies = operators & find_named(view.trace, COPYING_OPERATOR)
    marks = view.marks(OPTIMIZER)
    compute, optimizer, copy, running = [], [], [], []
    for lane, here in view.by_lane(np.flatnonzero(operators | communicates)):
        communicating = view.spans(here[communicates[here]])
        runs = view.spans(here[operators[here]])
        _, outside = divide(runs, communicating)
        of_optimizer, others = divide(outside, marks) if lane == view.host_lane else (EMPTY, outside)
        moves, computes = divide(others, view.spans(here[copies[here]]))
        compute.append(computes)
        optimizer.append(of_optimizer)
        copy.append(moves)
        running.append(join(runs, communicating))
    anything = join(*running)
    part_spans = {"compute": join(*compute), "optimizer": join(*optimizer), "communication": view.spans(communicates)}
    part_spans |= {
        "copy": join(*copy),
        "running": anything,
        "busy": anything,
        "synchronisation": EMPTY,
        "launch": EMPTY,
    }
    return part_spans, Spans(*np.concatenate((EMPTY, *running), axis=1))


def split_steps(view: TraceView, part_spans: PartSpans, kernels: Spans) -> list[StepParts]:
    starts, ends = view.starts, view.ends

    def within(spans: Spans) -> Ints:
        return lengths(spans, starts, ends)

    part_spans |= {"data_wait": view.marks(DATA), "host": view.marks(PHASE), "in_optimizer": view.marks(OPTIMIZER)}
    columns: dict[str, Ints] = {}
    until = EMPTY
    taken = np.zeros(len(starts), np.int64)
    for part in CPU_ORDER if view.device is None else DEVICE_ORDER:
        until = join(until, part_spans[part])
        columns[part] = within(until) - taken
        taken = taken + columns[part]
    columns["unaccounted"] = ends - starts - taken
    computes = join(part_spans["compute"], part_spans["optimizer"])
    columns |= {
        "busy": within(part_spans["busy"]),
        "kernel_running": within(part_spans["running"]),
        "kernel": sum_within(*kernels, starts, ends).clip(0),
        "communication_total": within(part_spans["communication"]),
        "overlap": within(divide(computes, part_spans["communication"])[0]),
        "copy_total": within(part_spans["copy"]),
        "data_wait_total": within(part_spans["data_wait"]),
        "optimizer_total": within(part_spans["in_optimizer"]),
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    names = [f"{name}_seconds" for name in columns]
    return [
        StepParts(step=step, seconds=seconds / NS, **dict(zip(names, (value / NS for value in row), strict=True)))
        for step, seconds, row in zip(view.steps, (ends - starts).tolist(), rows, strict=True)
    ]
