"""Where the time of training steps went, by a trace of torch.profiler: the record `timeline` of result.json.

How traces are read is in formats/kineto.py. Here: sets of spans of time; the steps, host and device that a trace shows
(View); who called and launched what; tables of operators, kernels and lanes; and the parts of each step.
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
    Calling,
    OperatorCalls,
    count_calls,
    find_callers,
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
    sums_within,
)
from trainstone.trace.view import DATA, OPTIMIZER, PASS, PHASE, TraceView, find_named, look_at

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
    evaluated = break_down_cpu(view) if view.device is None else break_down_device(view, calling)
    steps = split_steps(view, *evaluated)
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
        sentences=describe_trace(
            steps,
            device=view.device,
            marked=view.marked,
            has_phases=len(view.marks(PASS).starts) > 0,
            num_devices=len(view.devices),
        ),
        events=view.trace.num_events,
    )
    return TraceReport(timeline, count_calls(view, calling))


def break_down_device(view: TraceView, calling: Calling) -> tuple[Moments, Spans]:
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


def break_down_cpu(view: TraceView) -> tuple[Moments, Spans]:
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


def split_steps(view: TraceView, moments: Moments, kernels: Spans) -> list[StepParts]:
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
