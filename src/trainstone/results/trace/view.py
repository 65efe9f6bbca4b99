"""A trace looked at for training steps: which events are marks, where the steps lie, which thread and device count."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainstone.errors import DataError
from trainstone.formats.eventcolumns import Kind
from trainstone.formats.kineto import Trace
from trainstone.results.trace.intervals import EMPTY, Flags, Ints, Places, Spans, lengths, union

_STEP = re.compile(r"ProfilerStep#(\d{1,18})")
_DATA = re.compile(r"data|enumerate\(DataLoader\)#.*", re.DOTALL)
_OPTIMIZER = re.compile(r"optimizer|Optimizer\.(step|zero_grad)#.*", re.DOTALL)
_PASS = re.compile(r"(?<![a-z])(forward|backward)(?![a-z])", re.IGNORECASE)
_COMMUNICATION = re.compile(r"(gloo|nccl|mpi|ucc|xccl):.*|c10d::.*", re.DOTALL)
_COMMUNICATION_KERNEL = re.compile(
    r"nccl|rccl|oneccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce", re.IGNORECASE
)
_WAITING_CALL = re.compile(
    r"(cuda|hip|cu)(Stream|Device|Event|Ctx)Synchronize\w*|(cuda|hip)Memcpy(2D|3D|ToSymbol|FromSymbol)?"
    r"|hipMemcpyWithStream|ze\w+Synchronize"
)
_WAITING_OPERATORS = {"aten::item", "aten::_local_scalar_dense"}
_COPYING_OPERATORS = {
    f"aten::{name}" for name in ("copy_", "_to_copy", "to", "clone", "contiguous", "_foreach_copy_", "fill_", "zero_")
}
_NO_WAIT_OF_THE_HOST = "Stream Wait Event"


@dataclass(frozen=True)
class View:
    """A trace with what is needed to judge each moment of its steps."""

    trace: Trace
    end_ns: Ints
    kind: npt.NDArray[np.int8]
    """As in the trace, but old traces' marks are marks."""
    steps: list[int]
    starts: Ints
    """Of the steps, in their order."""
    ends: Ints
    windows: Spans
    """The steps' time."""
    marked: bool
    """The trace has marks of steps; else all of it is taken as one."""
    host_lane: int
    """The thread that holds the marks; -1 if there is no thread."""
    of_host: Flags
    """Of each event: on a thread of that process."""
    device: str | None
    """Number of the device that is judged; None on a CPU."""
    of_device: Flags
    devices: dict[str, int]
    """Number -> nanoseconds of kernels and copies within the steps."""

    def named(self, wanted: Callable[[str], object]) -> Flags:
        """Say of each event whether its name is wanted; each name is asked for once."""
        return flag_names(self.trace, wanted)[self.trace.name]

    def spans(self, wanted: Flags | Places) -> Spans:
        """Return what these events cover."""
        return union(self.trace.start_ns[wanted], self.end_ns[wanted])

    def marks(self, wanted: Callable[[str], object]) -> Spans:
        """Return what marks of the host's thread with such names cover."""
        on_host = (self.kind == Kind.MARK) & (self.trace.lane == self.host_lane)
        return self.spans(on_host & self.named(wanted))

    def within(self, rows: Places) -> Ints:
        """Return how much of each event lies within the steps."""
        return lengths(self.windows, self.trace.start_ns[rows], self.end_ns[rows])

    def touching(self, rows: Places) -> Flags:
        """Say of each event whether any of it lies within the steps; one without length, whether it starts there."""
        starts = self.trace.start_ns[rows]
        return lengths(self.windows, starts, np.maximum(self.end_ns[rows], starts + 1)) > 0

    def by_lane(self, rows: Places) -> Iterator[tuple[int, Places]]:
        """Yield each lane that has some of the events, with these."""
        order = rows[np.argsort(self.trace.lane[rows], kind="stable")]
        lanes, firsts = np.unique(self.trace.lane[order], return_index=True)
        yield from zip(lanes.tolist(), np.split(order, firsts[1:]), strict=False)


def is_data(name: str) -> bool:
    """Say whether a mark is a wait for data: ours, or torch's."""
    return _DATA.fullmatch(name) is not None


def is_optimizer(name: str) -> bool:
    """Say whether a mark is the optimiser's."""
    return _OPTIMIZER.fullmatch(name) is not None


def is_pass(name: str) -> bool:
    """Say whether a mark is forward or backward."""
    return _PASS.search(name) is not None


def is_phase(name: str) -> bool:
    """Say whether a mark is forward, backward or optimiser."""
    return is_pass(name) or is_optimizer(name)


def is_communication(name: str) -> bool:
    """Say whether an operator or a mark of a CPU communicates."""
    return _COMMUNICATION.fullmatch(name) is not None


def is_communication_kernel(name: str) -> bool:
    """Say whether a kernel communicates."""
    return _COMMUNICATION_KERNEL.search(name) is not None


def is_waiting_call(name: str) -> bool:
    """Say whether a call of the driver, or CUPTI's record of one, keeps the host until the device is done."""
    return _WAITING_CALL.fullmatch(name) is not None


def is_waiting_operator(name: str) -> bool:
    """Say whether an operator fetches a number from the device."""
    return name in _WAITING_OPERATORS


def is_waiting_record(name: str) -> bool:
    """Say whether CUPTI's record of a wait is the host's; a stream may wait for another, too."""
    return name != _NO_WAIT_OF_THE_HOST


def is_copying_operator(name: str) -> bool:
    """Say whether an operator only copies or sets memory."""
    return name in _COPYING_OPERATORS


def flag_names(trace: Trace, wanted: Callable[[str], object]) -> Flags:
    """Say of each name in the trace's table whether it is wanted."""
    return np.array([bool(wanted(name)) for name in trace.names], np.bool_)


def look_at(trace: Trace, file: str) -> View:
    """Find steps, host and device; raise DataError where there is nothing to see."""
    if not len(trace.kind):
        raise DataError(
            f"{file}: {trace.num_events:,} events, none of them an operator or a kernel of torch's profiler",
            hint="a trace of trainstone profile, or of torch.profiler, is wanted",
        )
    end_ns = trace.start_ns + trace.duration_ns
    old_mark = flag_names(trace, _is_mark)[trace.name] & (trace.kind == Kind.OPERATOR)
    kind = np.where(old_mark, np.int8(Kind.MARK), trace.kind)
    host_lane, steps, starts, ends = _find_steps(trace, kind, end_ns)
    marked = len(steps) > 0
    if not marked:
        steps, starts, ends = [0], trace.start_ns.min(keepdims=True), end_ns.max(keepdims=True)
        host_lane = _find_host(trace, kind, end_ns)
    windows = union(starts, ends)
    if not len(windows.starts):
        raise DataError(f"{file}: the steps take no time", hint="profile at least one whole step")
    process = trace.lanes[host_lane].process if host_lane >= 0 else None
    threads = np.array([lane.device is None and lane.process == process for lane in trace.lanes])
    devices = _time_devices(trace, kind, end_ns, windows)
    device = max(devices, key=lambda number: (devices[number], number)) if devices else None
    streams = np.array([lane.device is not None and lane.device == device for lane in trace.lanes])
    return View(
        trace=trace,
        end_ns=end_ns,
        kind=kind,
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


def _is_mark(name: str) -> bool:
    """Say whether a name is a mark's even in old traces, where marks are called operators."""
    return bool(_STEP.fullmatch(name)) or is_data(name) or is_optimizer(name) or name in ("forward", "backward")


def _find_steps(trace: Trace, kind: npt.NDArray[np.int8], end_ns: Ints) -> tuple[int, list[int], Ints, Ints]:
    """Return the thread with most marks of steps, and its steps in the order of their start."""
    number_of_name = [int(found[1]) if (found := _STEP.fullmatch(name)) else -1 for name in trace.names]
    numbers = np.array(number_of_name, np.int64)[trace.name]
    marks = np.flatnonzero((kind == Kind.MARK) & (numbers >= 0))
    if not len(marks):
        return -1, [], EMPTY.starts, EMPTY.ends
    lanes, counts = np.unique(trace.lane[marks], return_counts=True)
    best = max(range(len(lanes)), key=lambda place: (counts[place], trace.lanes[lanes[place]][:2]))
    marks = marks[trace.lane[marks] == lanes[best]]
    marks = marks[np.lexsort((numbers[marks], end_ns[marks], trace.start_ns[marks]))]
    return int(lanes[best]), numbers[marks].tolist(), trace.start_ns[marks], end_ns[marks]


def _find_host(trace: Trace, kind: npt.NDArray[np.int8], end_ns: Ints) -> int:
    """Return the thread with most operators' time, or most calls'."""
    for wanted in (Kind.OPERATOR, Kind.CALL, Kind.MARK):
        there = kind == wanted
        if there.any():
            lanes = trace.lane[there]
            busy = np.bincount(lanes, (end_ns - trace.start_ns)[there])
            return int(max(set(lanes.tolist()), key=lambda lane: (busy[lane], trace.lanes[lane][:2])))
    return -1


def _time_devices(trace: Trace, kind: npt.NDArray[np.int8], end_ns: Ints, windows: Spans) -> dict[str, int]:
    """Return each device's time of kernels and copies within the steps; one that has none there is named with 0."""
    there = np.flatnonzero((kind == Kind.KERNEL) | (kind == Kind.COPY))
    taken = np.bincount(
        trace.lane[there], lengths(windows, trace.start_ns[there], end_ns[there]), minlength=len(trace.lanes)
    )
    seen = set(trace.lane[there].tolist())
    devices: dict[str, int] = {}
    for number, lane in enumerate(trace.lanes):
        if lane.device is not None and number in seen:
            devices[lane.device] = devices.get(lane.device, 0) + int(taken[number])
    return devices
