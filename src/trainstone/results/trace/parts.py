"""What each moment of a training step belongs to, by a trace: the sets of moments, and their lengths in each step."""

from typing import NamedTuple

import numpy as np

from trainstone.formats.eventcolumns import Kind
from trainstone.results.profiled import StepParts
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
from trainstone.results.trace.launches import Launches
from trainstone.results.trace.view import (
    View,
    is_communication,
    is_communication_kernel,
    is_copying_operator,
    is_data,
    is_optimizer,
    is_phase,
    is_waiting_call,
    is_waiting_operator,
    is_waiting_record,
)

DEVICE_ORDER = ("compute", "optimizer", "communication", "copy", "data_wait", "synchronisation", "launch", "host")
# On a CPU whoever waits for data may run operators meanwhile, to put the batch together: that is a wait all the same.
PROCESSOR_ORDER = ("data_wait", "compute", "optimizer", "communication", "copy", "synchronisation", "launch", "host")
NS = 1e9


class Moments(NamedTuple):
    """When which of the parts holds, whatever else does; and the intervals whose durations make kernel_seconds."""

    compute: Spans
    optimizer: Spans
    communication: Spans
    copy: Spans
    data_wait: Spans
    synchronisation: Spans
    launch: Spans
    host: Spans
    running: Spans
    busy: Spans
    in_optimizer: Spans
    kernel_starts: Ints
    kernel_ends: Ints


def judge_device(view: View, launches: Launches) -> Moments:
    """Judge by what runs on the device, and by what the host does."""
    trace, kind = view.trace, view.kind
    kernel = (kind == Kind.KERNEL) & view.of_device
    communicates = kernel & view.named(is_communication_kernel)
    copies = (kind == Kind.COPY) & view.of_device
    marks = view.marks(is_optimizer)
    of_optimizer = np.zeros(len(kind), np.bool_)
    by_host = launches.lane == view.host_lane
    of_optimizer[launches.kernel[by_host & contains(marks, launches.time)]] = True
    of_optimizer &= kernel & ~communicates
    calls = (kind == Kind.CALL) & view.of_host
    operators = (kind == Kind.OPERATOR) & view.of_host
    waits = (calls & view.named(is_waiting_call)) | (operators & view.named(is_waiting_operator))
    waits |= (kind == Kind.SYNC) & view.of_device & view.named(is_waiting_record)
    return Moments(
        compute=view.spans(kernel & ~communicates & ~of_optimizer),
        optimizer=view.spans(of_optimizer),
        communication=view.spans(communicates),
        copy=view.spans(copies),
        data_wait=view.marks(is_data),
        synchronisation=view.spans(waits),
        launch=view.spans(calls | operators),
        host=view.marks(is_phase),
        running=view.spans(kernel),
        busy=view.spans(kernel | copies),
        in_optimizer=marks,
        kernel_starts=trace.start_ns[kernel],
        kernel_ends=view.end_ns[kernel],
    )


def judge_processor(view: View) -> Moments:
    """Judge by the operators of all threads of the host's process; what is within a copy or communication is it."""
    operators = (view.kind == Kind.OPERATOR) & view.of_host
    communicates = ((view.kind == Kind.MARK) & view.of_host | operators) & view.named(is_communication)
    copies = operators & view.named(is_copying_operator)
    marks = view.marks(is_optimizer)
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
    return Moments(
        compute=join(*compute),
        optimizer=join(*optimizer),
        communication=view.spans(communicates),
        copy=join(*copy),
        data_wait=view.marks(is_data),
        synchronisation=EMPTY,
        launch=EMPTY,
        host=view.marks(is_phase),
        running=anything,
        busy=anything,
        in_optimizer=marks,
        kernel_starts=np.concatenate([EMPTY.starts, *(spans.starts for spans in running)]),
        kernel_ends=np.concatenate([EMPTY.ends, *(spans.ends for spans in running)]),
    )


def split_steps(view: View, moments: Moments) -> list[StepParts]:
    """Give each moment of each step to the first part that holds."""
    starts, ends = view.starts, view.ends
    columns: dict[str, Ints] = {}
    until = EMPTY
    taken = np.zeros(len(starts), np.int64)
    for part in PROCESSOR_ORDER if view.device is None else DEVICE_ORDER:
        until = join(until, getattr(moments, part))
        reached = lengths(until, starts, ends)
        columns[part] = reached - taken
        taken = reached
    columns["unaccounted"] = ends - starts - taken
    computes = join(moments.compute, moments.optimizer)
    communication = lengths(moments.communication, starts, ends)
    either = lengths(join(computes, moments.communication), starts, ends)
    columns |= {
        "busy": lengths(moments.busy, starts, ends),
        "kernel_running": lengths(moments.running, starts, ends),
        "kernel": sums_within(moments.kernel_starts, moments.kernel_ends, starts, ends).clip(0),
        "communication_total": communication,
        "overlap": lengths(computes, starts, ends) + communication - either,
        "copy_total": lengths(moments.copy, starts, ends),
        "data_wait_total": lengths(moments.data_wait, starts, ends),
        "optimizer_total": lengths(moments.in_optimizer, starts, ends),
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    names = [f"{name}_seconds" for name in columns]
    return [
        StepParts(step=step, seconds=seconds / NS, **dict(zip(names, (value / NS for value in row), strict=True)))
        for step, seconds, row in zip(view.steps, (ends - starts).tolist(), rows, strict=True)
    ]
