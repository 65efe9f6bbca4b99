"""Operators against the roofs measured in the same run: the counted work of a step joined with the times of a trace.

Only like things are divided: an operator is judged where the trace has as many calls a step as were counted, else it
is left out altogether and `covered_share` is smaller. Nothing is measured or counted here.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from trainstone.results.breakdown import shorten
from trainstone.results.profiled import Bound, RooflineChart, RooflinePoint
from trainstone.units import format_percent

Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]

MOST_CALLS_APART = 0.01
"""Calls a step, counted against traced: further apart than this share they are not the same calls."""
MOST_POINTS = 300
TOLD_SHARE = 0.05
MOST_TOLD = 5
TOLD_LENGTH = 40
FAR_FROM_ROOF = 0.3
"""What is so far below its roof is bound by neither: by threads, caches, latency, overhead."""
MOST_SHAPES = 3

PLAIN_NAMES = {
    "convolution": "convolution",
    "convolution_backward": "convolution backward",
    "native_batch_norm": "batch norm",
    "native_batch_norm_backward": "batch norm backward",
    "cudnn_batch_norm": "batch norm",
    "cudnn_batch_norm_backward": "batch norm backward",
    "miopen_batch_norm": "batch norm",
    "miopen_batch_norm_backward": "batch norm backward",
    "relu": "ReLU",
    "relu_": "ReLU",
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


@dataclass(frozen=True)
class WorkedOp:
    """What the calls of one operator at one choice of shapes do in one step, `count` of them together."""

    name: str
    """As the dispatcher says it: aten.convolution_backward.default."""
    shapes: Shapes
    """Of all tensors it is given, those in lists included."""
    count: int
    flops: float
    bytes_moved: float


class TimedCalls(Protocol):
    """What a trace says of an operator at one choice of shapes, summed over the profiled steps."""

    @property
    def name(self) -> str:
        """As the profiler says it: aten::convolution_backward."""

    @property
    def dims(self) -> Shapes:
        """Shapes of the tensors; empty for numbers, and for lists of tensors."""

    @property
    def calls(self) -> int: ...

    @property
    def host_seconds(self) -> float: ...

    @property
    def device_seconds(self) -> float | None: ...


class _Work(NamedTuple):
    calls: float
    flops: float
    bytes_moved: float
    least_seconds: float
    """At the roofs: each choice of shapes by the bound that takes longer for it."""
    arithmetic_seconds: float
    """Of those, where arithmetic is that bound."""


class _Time(NamedTuple):
    """A step's."""

    calls: float
    seconds: float


class _Roofs(NamedTuple):
    flops: float
    bytes_per_second: float


def judge_roofline(
    ops: Iterable[WorkedOp],
    calls: Iterable[TimedCalls],
    *,
    steps: int,
    step_seconds: float,
    peak_flops: float,
    peak_source: str,
    peak_bytes_per_second: float,
) -> RooflineChart | None:
    """Hold each operator against the peaks; None where nothing can be joined or a peak is missing.

    `ops` is the work of one step, `calls` the times of all `steps` profiled ones, `step_seconds` their mean length.
    """
    if steps <= 0 or not all(_positive(value) for value in (step_seconds, peak_flops, peak_bytes_per_second)):
        return None
    roofs = _Roofs(peak_flops, peak_bytes_per_second)
    worked, timed = _group_work(ops, roofs), _group_times(calls, steps)
    operators: list[RooflinePoint] = []
    points: list[RooflinePoint] = []
    for name in worked.keys() & timed.keys():
        whole = _judge(name, "", _add_work(worked[name].values()), _add_times(timed[name].values()))
        if whole is not None:
            operators.append(whole)
            points += _judge_shapes(name, worked[name], timed[name]) or [whole]
    if not operators:
        return None
    operators.sort(key=_by_time)
    covered = sum(point.seconds for point in operators) / step_seconds
    return RooflineChart(
        peak_flops=peak_flops,
        peak_source=peak_source,
        peak_bytes_per_second=peak_bytes_per_second,
        operators=operators,
        points=sorted(points, key=_by_time)[:MOST_POINTS],
        covered_share=covered,
        told=tell_roofline(operators, step_seconds),
    )


def name_in_trace(name: str) -> str:
    """Return what a trace calls an operator of the dispatcher: aten.add_.Tensor is aten::add_, as other overloads."""
    space, _, rest = name.partition(".")
    return f"{space}::{rest.partition('.')[0]}" if rest else name


def name_plainly(name: str) -> str:
    """Return what people call an operator of a trace; its own name where there is no such word."""
    space, _, bare = name.partition("::")
    return PLAIN_NAMES.get(bare, name) if space == "aten" else name


def write_shapes(shapes: Sequence[Shape]) -> str:
    """Return 8×64×56×56, 64×64×3×3: the first few, which are pictures and weights."""
    told = ["×".join(str(size) for size in shape) for shape in shapes[:MOST_SHAPES]]
    return ", ".join([*told, *(["…"] if len(shapes) > MOST_SHAPES else [])])


def tell_roofline(operators: Sequence[RooflinePoint], step_seconds: float) -> list[str]:
    """Say how near to their roofs the operators are that take most of the step, and what all would take there."""
    longest = [point for point in operators if point.seconds >= TOLD_SHARE * step_seconds][:MOST_TOLD]
    told = [_capital(_tell_operator(point, point.seconds / step_seconds)) for point in longest]
    return [*told, _tell_ideal(operators, step_seconds)]


def _tell_operator(point: RooflinePoint, share_of_step: float) -> str:
    reached = point.share_of_bound
    told = f"{shorten(name_plainly(point.operator), TOLD_LENGTH)} takes {_percent(share_of_step)} of the step and"
    times = f"{reached:.3g} times"
    if point.bound == "compute":
        if reached <= 1:
            only = "only " if reached < FAR_FROM_ROOF else ""
            return f"{told} reaches {only}{_percent(reached)} of the measured peak."
        cause = "its algorithm needs less arithmetic than is counted, or the peak was measured too low"
        return f"{told} does its counted work at {times} the measured peak: {cause}."
    if reached < FAR_FROM_ROOF:
        told = told.removesuffix(" and")
        return f"{told} at {_percent(reached)} of the measured bandwidth, its roof: something else holds it back."
    if reached <= 1:
        return f"{told} is memory-bound at {_percent(reached)} of the measured bandwidth."
    cause = "much of it comes from the caches, or the bandwidth was measured too low"
    return f"{told} moves its data at {times} the measured memory bandwidth: {cause}."


def _tell_ideal(operators: Sequence[RooflinePoint], step_seconds: float) -> str:
    """What is above its roof, by caches, would not get slower: it is taken as it is."""
    spent = sum(point.seconds for point in operators)
    ideal = sum(point.seconds * min(1.0, point.share_of_bound) for point in operators)
    judged = f"the operators judged here, {_percent(spent / step_seconds)} of the step,"
    return f"At their roofs {judged} would take {_percent(ideal / spent)} of their time."


def _judge_shapes(name: str, worked: dict[Shapes, _Work], timed: dict[Shapes, _Time]) -> list[RooflinePoint]:
    """Judge each choice of shapes that both sides know; none where the trace does not know them (lists of tensors)."""
    judged = (
        _judge(name, write_shapes(shapes), work, timed[shapes]) for shapes, work in worked.items() if shapes in timed
    )
    return [point for point in judged if point is not None]


def _judge(name: str, shapes: str, work: _Work, time: _Time) -> RooflinePoint | None:
    """Return a point, unless the two sides are not the same calls, or took no time, or did no work."""
    least = work.least_seconds
    if abs(time.calls - work.calls) > MOST_CALLS_APART * work.calls or not _positive(time.seconds):
        return None
    if not _positive(least) or not math.isfinite(least / time.seconds):
        return None
    bound: Bound = "compute" if work.arithmetic_seconds > least / 2 else "memory"
    return RooflinePoint(
        operator=name,
        shapes=shapes,
        calls=round(work.calls),
        seconds=time.seconds,
        flops=work.flops,
        bytes_moved=work.bytes_moved,
        bound=bound,
        share_of_bound=least / time.seconds,
    )


def _bound_work(op: WorkedOp, roofs: _Roofs) -> _Work:
    """Return the work of some calls, with the least time it takes."""
    arithmetic, traffic = op.flops / roofs.flops, op.bytes_moved / roofs.bytes_per_second
    return _Work(
        op.count, op.flops, op.bytes_moved, max(arithmetic, traffic), arithmetic if arithmetic > traffic else 0.0
    )


def _group_work(ops: Iterable[WorkedOp], roofs: _Roofs) -> dict[str, dict[Shapes, _Work]]:
    """By the trace's name, overloads together, and by shapes; calls that differ in what a trace omits come together."""
    found: dict[str, dict[Shapes, list[_Work]]] = defaultdict(lambda: defaultdict(list))
    for op in ops:
        found[name_in_trace(op.name)][_strip(op.shapes)].append(_bound_work(op, roofs))
    return {
        name: {shapes: _add_work(parts) for shapes, parts in by_shapes.items()} for name, by_shapes in found.items()
    }


def _group_times(calls: Iterable[TimedCalls], steps: int) -> dict[str, dict[Shapes, _Time]]:
    """The same of the trace, for one step: time on the device of names that have any there, else on the host."""
    by_name: dict[str, list[TimedCalls]] = defaultdict(list)
    for call in calls:
        by_name[call.name].append(call)
    grouped = {}
    for name, inside in by_name.items():
        on_device = any(call.device_seconds is not None for call in inside)
        found: dict[Shapes, list[_Time]] = defaultdict(list)
        for call in inside:
            seconds = (call.device_seconds or 0.0) if on_device else call.host_seconds
            found[_strip(call.dims)].append(_Time(call.calls / steps, seconds / steps))
        grouped[name] = {shapes: _add_times(parts) for shapes, parts in found.items()}
    return grouped


def _add_work(parts: Iterable[_Work]) -> _Work:
    return _Work(*(math.fsum(values) for values in zip(*parts, strict=True)))


def _add_times(parts: Iterable[_Time]) -> _Time:
    calls, seconds = (math.fsum(values) for values in zip(*parts, strict=True))
    return _Time(calls, seconds)


def _strip(shapes: Iterable[Shape]) -> Shapes:
    """Without empty shapes: a trace has them for whatever is no tensor, a count for numbers kept in tensors."""
    return tuple(tuple(shape) for shape in shapes if shape)


def _by_time(point: RooflinePoint) -> tuple[float, str, str]:
    return -point.seconds, point.operator, point.shapes


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _percent(share: float) -> str:
    return format_percent(share, 0 if share >= 0.0995 else 1)


def _capital(sentence: str) -> str:
    """Names of a trace keep their spelling."""
    return sentence if "::" in sentence.partition(" ")[0] else sentence[:1].upper() + sentence[1:]
