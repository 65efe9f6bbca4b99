"""Where the time of training steps went, by a trace of torch.profiler: the record `timeline` of result.json.

How traces are read is in formats/kineto.py; its steps, threads and devices are found in results/trace/view.py.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainstone.formats.kineto import Kind, read_trace
from trainstone.results.breakdown import MIN_SHARE, describe_steps, share_of
from trainstone.results.profiled import StepParts, Timeline
from trainstone.results.trace.tables import (
    Calling,
    OperatorCalls,
    count_calls,
    find_callers,
    list_kernels,
    list_lanes,
    list_operators,
)
from trainstone.results.trace.view import (
    COMMUNICATION,
    COMMUNICATION_KERNEL,
    DATA,
    EMPTY,
    OPTIMIZER,
    PASS,
    PHASE,
    Ints,
    Spans,
    View,
    contains,
    intersect,
    join,
    lengths,
    look_at,
    subtract,
    sums_within,
)
from trainstone.text import printable
from trainstone.units import format_count

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
NS = 1e9


Moments = dict[str, Spans]  # when each part holds, whatever else does; with "running", "busy" and "in_optimizer"


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
    timeline = Timeline(
        trace=path.name,
        device=_name_device(view),
        rank=view.trace.rank,
        steps=steps,
        compute_utilisation=min(1.0, share_of(steps, "kernel_running")),  # rounding may make the whole a little more
        accounted_share=1 - min(1.0, share_of(steps, "unaccounted")),
        operators=list_operators(view, calling, total_ns),
        kernels=[] if view.device is None else list_kernels(view, total_ns),
        lanes=list_lanes(view),
        told=_describe_time(view, steps),
        events=view.trace.num_events,
    )
    return TraceReport(timeline, count_calls(view, calling))


def _name_device(view: View) -> str:
    if view.device is None:
        return "cpu"
    seen = {view.trace.names[name] for name in set(view.trace.name[view.trace.kind == Kind.CALL].tolist())}
    if any(name.startswith("hip") for name in seen):
        return "rocm"
    return "xpu" if any(name.startswith(("ze", "ur")) for name in seen) else "cuda"


def _describe_time(view: View, steps: list[StepParts]) -> list[str]:
    told = describe_steps(steps, on_device=view.device is not None)
    if not view.marked:
        told.append("The trace has no marks of steps (ProfilerStep#), so all of it counts as one.")
    if not len(view.marks(PASS).starts) and share_of(steps, "unaccounted") > MIN_SHARE:
        told.append(
            "It has no marks of forward and backward: Python between operators is in what is not accounted for."
        )
    if len(view.devices) > 1:
        others = format_count(len(view.devices) - 1, "other device")
        told.append(f"Judged is device {view.device}, which works most; {others} in the trace, too.")
    return told


def judge_device(view: View, calling: Calling) -> tuple[Moments, Spans]:
    """Judge by what runs on the device, and by what the host does; return also all kernels, overlapping or not."""
    trace, kind = view.trace, view.trace.kind
    kernel = (kind == Kind.KERNEL) & view.of_device
    communicates = kernel & view.named(COMMUNICATION_KERNEL)
    copies = (kind == Kind.COPY) & view.of_device
    marks = view.marks(OPTIMIZER)
    of_optimizer = np.zeros(len(kind), np.bool_)
    source = calling.rows[calling.by]
    by_host = trace.lane[source] == view.host_lane
    of_optimizer[calling.launched[by_host & contains(marks, trace.start_ns[source])]] = True
    of_optimizer &= kernel & ~communicates
    calls = (kind == Kind.CALL) & view.of_host
    operators = (kind == Kind.OPERATOR) & view.of_host
    waits = (calls & view.named(WAITING_CALL)) | (operators & view.named(WAITING_OPERATOR))
    waits |= (kind == Kind.SYNC) & view.of_device & ~view.named(STREAM_WAIT)
    moments = {
        "compute": view.spans(kernel & ~communicates & ~of_optimizer),
        "optimizer": view.spans(of_optimizer),
        "communication": view.spans(communicates),
        "copy": view.spans(copies),
        "data_wait": view.marks(DATA),
        "synchronisation": view.spans(waits),
        "launch": view.spans(calls | operators),
        "host": view.marks(PHASE),
        "running": view.spans(kernel),
        "busy": view.spans(kernel | copies),
        "in_optimizer": marks,
    }
    return moments, Spans(trace.start_ns[kernel], trace.end_ns[kernel])


def judge_processor(view: View) -> tuple[Moments, Spans]:
    """Judge by the operators of all threads of the host's process; what is within a copy or communication is it.

    Return also what runs on each thread.
    """
    operators = (view.trace.kind == Kind.OPERATOR) & view.of_host
    communicates = ((view.trace.kind == Kind.MARK) & view.of_host | operators) & view.named(COMMUNICATION)
    copies = operators & view.named(COPYING_OPERATOR)
    marks = view.marks(OPTIMIZER)
    compute, optimizer, copy, running = [], [], [], []
    for lane, here in view.by_lane(np.flatnonzero(operators | communicates)):
        talk = view.spans(here[communicates[here]])
        runs = view.spans(here[operators[here]])
        alone = subtract(runs, talk)
        of_optimizer = intersect(alone, marks) if lane == view.host_lane else EMPTY
        others = subtract(alone, of_optimizer)
        moves = intersect(others, view.spans(here[copies[here]]))
        compute.append(subtract(others, moves))
        optimizer.append(of_optimizer)
        copy.append(moves)
        running.append(join(runs, talk))
    anything = join(*running)
    moments = {
        "compute": join(*compute),
        "optimizer": join(*optimizer),
        "communication": view.spans(communicates),
        "copy": join(*copy),
        "data_wait": view.marks(DATA),
        "synchronisation": EMPTY,
        "launch": EMPTY,
        "host": view.marks(PHASE),
        "running": anything,
        "busy": anything,
        "in_optimizer": marks,
    }
    starts = np.concatenate([EMPTY.starts, *(spans.starts for spans in running)])
    return moments, Spans(starts, np.concatenate([EMPTY.ends, *(spans.ends for spans in running)]))


def split_steps(view: View, moments: Moments, kernels: Spans) -> list[StepParts]:
    starts, ends = view.starts, view.ends

    def within(spans: Spans) -> Ints:
        return lengths(spans, starts, ends)

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
        "overlap": within(intersect(computes, moments["communication"])),
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
