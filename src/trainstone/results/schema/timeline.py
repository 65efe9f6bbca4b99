"""Result of `trainstone profile`: the parts of each step, operators, kernels, roofline."""

from typing import Literal

from trainstone.results.schema.record import Count, Record, Seconds

Lane = Literal["thread", "stream"]
Bound = Literal["compute", "memory"]
PIPES = ("fma", "fp16", "tensor", "sfu")


class StepParts(Record):
    """One profiled step. The first nine parts add up to `seconds`: each moment counts for the first one that applies.

    What runs on the device decides; while nothing runs, what the host does. On a CPU, operators are what runs.
    """

    step: int
    seconds: Seconds
    compute_seconds: Seconds
    """A kernel (on a CPU: an operator) runs that is neither communication nor part of the optimizer."""
    optimizer_seconds: Seconds  # a kernel or operator of the optimizer runs
    communication_seconds: Seconds  # communication that no computation overlaps
    copy_seconds: Seconds  # memory is copied or set
    data_wait_seconds: Seconds  # nothing runs: the host waits for its batch
    synchronisation_seconds: Seconds  # nothing runs: the host waits for the device
    launch_seconds: Seconds
    """Nothing runs: the host executes operators and driver calls (launch-bound)."""
    host_seconds: Seconds
    """Nothing runs: the host executes Python between operators."""
    unaccounted_seconds: Seconds  # none of the above
    busy_seconds: Seconds  # anything runs on the device
    kernel_running_seconds: Seconds
    """A kernel (operator) runs, communication included."""
    kernel_seconds: Seconds  # sum of the kernel durations; with concurrent streams it can exceed the step
    communication_total_seconds: Seconds  # communication runs, overlapped or not
    overlap_seconds: Seconds  # communication overlapped by computation
    copy_total_seconds: Seconds
    data_wait_total_seconds: Seconds  # the host waits for its batch, even while the device is busy
    optimizer_total_seconds: Seconds  # the host is in the optimizer


class OperatorTime(Record):
    name: str
    calls: Count
    self_seconds: Seconds  # on the host, without called operators
    total_seconds: Seconds  # on the host, with called operators; recursion counted once
    device_seconds: Seconds | None = None  # of the kernels it launched; absent on a CPU
    share: float  # of the profiled steps: device time, or self time on a CPU


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
    plain_step_seconds: Seconds  # median of the steps before and after, without profiler
    profiled_step_seconds: Seconds
    plain_steps: Count
    profiled_steps: Count
    share: float  # how much longer a profiled step is; negative: noise is larger
    noise: float  # robust spread of the unprofiled steps (1.4826 MAD / median)


class RooflinePoint(Record):
    """An operator with certain shapes, or with all of its shapes together (`shapes` empty)."""

    operator: str
    shapes: str = ""
    calls: Count  # per step
    seconds: Seconds  # per step, all calls
    flops: float  # per step, by torch's formulas; 0 if there is none, as for batch norm
    bytes_moved: float  # per step: each tensor read or written once
    bound: Bound
    """Which bound takes longer at the measured peaks; of several shapes, the one with most of the time."""
    share_of_bound: float
    """Time at the measured peaks / time taken. More than 1: data came from a cache."""


class RooflineChart(Record):
    peak_flops: float
    peak_source: str
    peak_bytes_per_second: float
    operators: list[RooflinePoint] = []  # by name, all shapes together; most time first
    points: list[RooflinePoint] = []  # by name and shapes
    covered_share: float  # share of the profiled step that these operators take
    sentences: list[str] = []  # what the roofline shows


class CoreUse(Record):
    """Utilisation of the cores' pipes by ncu: percent of the peak, weighted by each kernel's cycles."""

    pipes_percent: dict[str, float]  # fma, fp16, tensor, sfu, as far as measured
    kernels: Count
    processes: Count
    cycles: float
    sentences: list[str] = []  # which metrics were used, and what is missing
    file: str = ""  # ncu's table, in the run folder


class Timeline(Record):
    trace: str = ""
    device: str  # cpu, or the kind of device that ran kernels
    rank: Count | None = None
    steps: list[StepParts]
    compute_utilisation: float  # share of the steps' time with a kernel (on a CPU: an operator) running
    accounted_share: float  # 1 - unaccounted time / time
    cores_used: float | None = None  # processor time / time of the profiled steps
    operators: list[OperatorTime] = []
    kernels: list[KernelTime] = []
    lanes: list[LaneTime] = []
    sentences: list[str] = []  # what causes the gaps
    overhead: Overhead | None = None
    roofline: RooflineChart | None = None
    cores: CoreUse | None = None
    events: Count = 0
