"""What a profile says: the records of result.json's `timeline`, mean parts of a step, names of operators."""

from typing import Literal

from trainstone.results.schema.record import Count, Record, Seconds

Lane = Literal["thread", "stream"]
Bound = Literal["compute", "memory"]
PIPES = ("fma", "fp16", "tensor", "sfu")


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
    sentences: list[str] = []  # sentences


class CoreUse(Record):
    """How busy the pipes of the cores were, by ncu: percent of the peak, weighted by each kernel's cycles."""

    pipes_percent: dict[str, float]  # of fma, fp16, tensor, sfu those that were measured
    kernels: Count
    processes: Count
    cycles: float
    sentences: list[str] = []  # which metrics were taken, and what was left out
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
    sentences: list[str] = []  # what the gaps come from, in sentences
    overhead: Overhead | None = None
    roofline: RooflineChart | None = None
    cores: CoreUse | None = None
    events: Count = 0
