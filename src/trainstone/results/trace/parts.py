"""What each moment of a training step belongs to, by a trace: the sets of moments, and their lengths in each step."""

import numpy as np

from trainstone.formats.kineto import Kind
from trainstone.results.profiled import StepParts
from trainstone.results.trace import view as names
from trainstone.results.trace.intervals import (
    EMPTY,
    Ints,
    Spans,
    contains,
    intersect,
    join,
    lengths,
    subtract,
    sums_within,
)
from trainstone.results.trace.tables import Calling
from trainstone.results.trace.view import View

DEVICE_ORDER = ("compute", "optimizer", "communication", "copy", "data_wait", "synchronisation", "launch", "host")
# On a CPU whoever waits for data may run operators meanwhile, to put the batch together: that is a wait all the same.
PROCESSOR_ORDER = ("data_wait", "compute", "optimizer", "communication", "copy", "synchronisation", "launch", "host")
NS = 1e9


Moments = dict[str, Spans]
"""When each part holds, whatever else does; with "running", "busy" and "in_optimizer"."""


def judge_device(view: View, calling: Calling) -> tuple[Moments, Spans]:
    """Judge by what runs on the device, and by what the host does; return also all kernels, overlapping or not."""
    trace, kind = view.trace, view.trace.kind
    kernel = (kind == Kind.KERNEL) & view.of_device
    communicates = kernel & view.named(names.COMMUNICATION_KERNEL)
    copies = (kind == Kind.COPY) & view.of_device
    marks = view.marks(names.OPTIMIZER)
    of_optimizer = np.zeros(len(kind), np.bool_)
    source = calling.rows[calling.by]
    by_host = trace.lane[source] == view.host_lane
    of_optimizer[calling.launched[by_host & contains(marks, trace.start_ns[source])]] = True
    of_optimizer &= kernel & ~communicates
    calls = (kind == Kind.CALL) & view.of_host
    operators = (kind == Kind.OPERATOR) & view.of_host
    waits = (calls & view.named(names.WAITING_CALL)) | (operators & view.named(names.WAITING_OPERATOR))
    waits |= (kind == Kind.SYNC) & view.of_device & ~view.named(names.STREAM_WAIT)
    moments = {
        "compute": view.spans(kernel & ~communicates & ~of_optimizer),
        "optimizer": view.spans(of_optimizer),
        "communication": view.spans(communicates),
        "copy": view.spans(copies),
        "data_wait": view.marks(names.DATA),
        "synchronisation": view.spans(waits),
        "launch": view.spans(calls | operators),
        "host": view.marks(names.PHASE),
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
    communicates = ((view.trace.kind == Kind.MARK) & view.of_host | operators) & view.named(names.COMMUNICATION)
    copies = operators & view.named(names.COPYING_OPERATOR)
    marks = view.marks(names.OPTIMIZER)
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
        "data_wait": view.marks(names.DATA),
        "synchronisation": EMPTY,
        "launch": EMPTY,
        "host": view.marks(names.PHASE),
        "running": anything,
        "busy": anything,
        "in_optimizer": marks,
    }
    starts = np.concatenate([EMPTY.starts, *(spans.starts for spans in running)])
    return moments, Spans(starts, np.concatenate([EMPTY.ends, *(spans.ends for spans in running)]))


def split_steps(view: View, moments: Moments, kernels: Spans) -> list[StepParts]:
    """Give each moment of each step to the first part that holds."""
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
