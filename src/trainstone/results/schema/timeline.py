"""What a profile says: the records of result.json's `timeline`, mean parts of a step, names of operators."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from trainstone.results.schema.record import Count, Record, Seconds
from trainstone.text import printable
from trainstone.units import format_percent, format_seconds

Lane = Literal["thread", "stream"]
Bound = Literal["compute", "memory"]
PIPES = ("fma", "fp16", "tensor", "sfu")
PARTS = {
    "compute": "compute_seconds",
    "optimiser": "optimizer_seconds",
    "communication": "communication_seconds",
    "copies": "copy_seconds",
    "waiting for data": "data_wait_seconds",
    "synchronising": "synchronisation_seconds",
    "launching": "launch_seconds",
    "Python": "host_seconds",
    "unaccounted": "unaccounted_seconds",
}
"""Name of each part that adds up -> its field of StepParts, in the order in which a moment is judged."""

ADDED_UP = "kernels, added up"
"""More than the step where streams run side by side; of a CPU's one stream of operators it says nothing new."""

BESIDE = {
    "anything runs": "busy_seconds",
    ADDED_UP: "kernel_seconds",
    "communication, hidden or not": "communication_total_seconds",
    "communication hidden behind compute": "overlap_seconds",
    "copies, hidden or not": "copy_total_seconds",
    "host waits for data": "data_wait_total_seconds",
    "host is in the optimiser": "optimizer_total_seconds",
}
"""What lies across the parts."""

MIN_SHARE = 0.0005  # a smaller part of a step is not worth a word

PLAIN_NAMES = {
    "convolution": "convolution",
    "convolution_backward": "convolution backward",
    **{f"{library}_batch_norm": "batch norm" for library in ("native", "cudnn", "miopen")},
    **{f"{library}_batch_norm_backward": "batch norm backward" for library in ("native", "cudnn", "miopen")},
    **dict.fromkeys(("relu", "relu_"), "ReLU"),
    "threshold_backward": "ReLU backward",
    "mm": "matrix multiplication",
    "addmm": "matrix multiplication with bias",
    "bmm": "batched matrix multiplication",
    "add": "addition",
    "add_": "addition in place",
    "max_pool2d_with_indices": "max pooling",
    "max_pool2d_with_indices_backward": "max pooling backward",
    "_log_softmax": "log-softmax",
    "_log_softmax_backward_data": "log-softmax backward",
    "_fused_sgd_": "optimiser (fused SGD)",
    "_fused_adam_": "optimiser (fused Adam)",
    "_fused_adamw_": "optimiser (fused AdamW)",
}


class StepParts(Record):
    """One profiled step. The first nine parts add up to `seconds`: each moment belongs to the first that holds.

    A device's moment is judged by what runs on it, and only while nothing runs by what the host does meanwhile.
    On a CPU the operators are what runs.
    """

    step: int
    seconds: Seconds
    compute_seconds: Seconds
    """A kernel runs (on a CPU: an operator) that is neither communication nor a part of the optimiser."""
    optimizer_seconds: Seconds  # a kernel or operator of the optimiser runs, and none of the above
    communication_seconds: Seconds  # communication that nothing above hides
    copy_seconds: Seconds  # memory is copied or set, and nothing above runs
    data_wait_seconds: Seconds  # nothing runs: the host waits for its batch
    synchronisation_seconds: Seconds  # nothing runs: the host waits for the device, so it cannot give it work
    launch_seconds: Seconds
    """Nothing runs: the host is on its way through operators and calls of the driver (launch-bound)."""
    host_seconds: Seconds
    """Nothing runs: the host is between operators, in Python, within forward, backward or optimiser."""
    unaccounted_seconds: Seconds  # none of these
    busy_seconds: Seconds  # anything runs on the device
    kernel_running_seconds: Seconds
    """A kernel (operator) runs, communication included: the numerator of compute utilisation."""
    kernel_seconds: Seconds  # sum of the kernels' durations; streams side by side may make it more than the step
    communication_total_seconds: Seconds  # communication runs, hidden or not
    overlap_seconds: Seconds  # communication runs while something computes
    copy_total_seconds: Seconds
    data_wait_total_seconds: Seconds  # the host waits for its batch, whether or not the device is busy meanwhile
    optimizer_total_seconds: Seconds  # the host is in the optimiser


class OperatorTime(Record):
    name: str
    calls: Count
    self_seconds: Seconds  # on the host, without the operators it called
    total_seconds: Seconds  # on the host, with them; recursion counted once
    device_seconds: Seconds | None = None  # of the kernels it launched itself; absent on a CPU
    share: float  # of the profiled steps: device time where there is a device, else its own time on the host


class KernelTime(Record):
    name: str
    kind: Literal["compute", "communication", "copy"]
    calls: Count
    seconds: Seconds
    share: float


class LaneTime(Record):
    name: str
    kind: Lane
    events: Count
    busy_seconds: Seconds


class Overhead(Record):
    plain_step_seconds: Seconds  # median of the steps before and after
    profiled_step_seconds: Seconds
    plain_steps: Count
    profiled_steps: Count
    share: float  # how much longer a profiled step takes; negative where noise is more than the cost
    noise: float  # robust spread of the unprofiled steps (1.4826 MAD / median): a smaller overhead is none


class RooflinePoint(Record):
    """An operator at one choice of shapes, or all of its shapes together (`shapes` empty)."""

    operator: str
    shapes: str = ""
    calls: Count  # per step
    seconds: Seconds  # per step, all calls
    flops: float  # per step, by torch's formulas; 0 where there is none, as for batch norm
    bytes_moved: float  # per step: each tensor read or written once
    bound: Bound
    """Which of the two bounds takes longer at the measured peaks; of several shapes, which makes up most of it."""
    share_of_bound: float
    """Time at the roof, of each choice of shapes its own / the time taken. More than 1: data came out of a cache."""


class RooflineChart(Record):
    peak_flops: float
    peak_source: str
    peak_bytes_per_second: float
    operators: list[RooflinePoint] = []  # by name, all shapes together; most time first
    points: list[RooflinePoint] = []  # by name and shapes
    covered_share: float  # how much of the profiled step these operators take
    told: list[str] = []  # sentences


class CoreUse(Record):
    """How busy the pipes of the cores were, by ncu: percent of the peak, weighted by each kernel's cycles."""

    pipes_percent: dict[str, float]  # of fma, fp16, tensor, sfu those that were measured
    kernels: Count
    processes: Count
    cycles: float
    told: list[str] = []  # which metrics were taken, and what was left out
    file: str = ""  # ncu's table, in the run folder


class Timeline(Record):
    trace: str = ""
    device: str  # cpu, or the kind of device whose kernels were seen
    rank: Count | None = None
    steps: list[StepParts]
    compute_utilisation: float  # share of the steps' time with a kernel (on a CPU: an operator) running
    accounted_share: float  # 1 - unaccounted time / time
    cores_used: float | None = None  # processor time / time of the profiled steps: how many cores worked
    operators: list[OperatorTime] = []
    kernels: list[KernelTime] = []
    lanes: list[LaneTime] = []
    told: list[str] = []  # what the gaps come from, in sentences
    overhead: Overhead | None = None
    roofline: RooflineChart | None = None
    cores: CoreUse | None = None
    events: Count = 0


class Part(NamedTuple):
    name: str
    seconds: float
    share: float


def mean_step(timeline: Timeline) -> float:
    return _mean(timeline.steps, "seconds")


def average_parts(timeline: Timeline, names: dict[str, str] = PARTS) -> list[Part]:
    whole = mean_step(timeline)
    found = [(name, _mean(timeline.steps, field)) for name, field in names.items()]
    return [Part(name, seconds, seconds / whole) for name, seconds in found if seconds > 0 and whole > 0]


def tell_overhead(overhead: Overhead) -> str:
    """Return +3.1 % a step (244 ms without it, 252 ms with it; steps scatter by 1.2 %), or that none is seen."""
    plain, profiled = format_seconds(overhead.plain_step_seconds), format_seconds(overhead.profiled_step_seconds)
    scatter = f"steps scatter by {format_percent(overhead.noise)}"
    share = f"{100 * overhead.share:+.1f} %"
    if overhead.share <= overhead.noise:
        return f"no cost seen: {share} a step, {scatter} ({plain} without it, {profiled} with it)"
    return f"{share} a step ({plain} without it, {profiled} with it; {scatter})"


def format_calls(calls: int, num_steps: int) -> str:
    a_step = calls / max(1, num_steps)
    return f"{a_step:,.0f}" if a_step == round(a_step) or a_step >= 1000 else f"{a_step:.3g}"


def shorten(text: str, most: int) -> str:
    """Return the text made printable, without its middle where it is longer: both ends of a C++ name tell something."""
    text = printable(text)
    if len(text) <= most:
        return text
    head = math.ceil((most - 1) / 2)
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def share_of(steps: Sequence[StepParts], part: str) -> float:
    taken = sum(getattr(step, f"{part}_seconds") for step in steps)
    return float(taken / sum(step.seconds for step in steps))


def name_plainly(name: str) -> str:
    space, _, bare = name.partition("::")
    return PLAIN_NAMES.get(bare, name) if space == "aten" else name


def _mean(steps: list[StepParts], field: str) -> float:
    return sum(getattr(step, field) for step in steps) / len(steps) if steps else 0.0
