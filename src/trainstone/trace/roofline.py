"""Build the roofline of operators: counted work per step, times from a trace, and the peaks measured in the same run.

An operator is skipped, which lowers `covered_share`, if its number of calls per step differs between the counts and the
trace. Nothing is measured or counted here.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from trainstone.results.schema.timeline import RooflineChart, RooflinePoint
from trainstone.results.verdicts import describe_roofline
from trainstone.trace.operators import OperatorCalls

Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]

MAX_CALL_DIFFERENCE = 0.01
"""Largest relative difference between counted and traced calls per step."""
MAX_POINTS = 300
MAX_SHAPES = 3


@dataclass(frozen=True)
class OperatorWork:
    """Work of one operator with one combination of input shapes in one step, summed over `count` calls."""

    name: str  # name in the dispatcher: aten.convolution_backward.default
    shapes: Shapes  # of all input tensors, those in lists included
    count: int
    flops: float
    bytes_moved: float


Group = tuple[list[OperatorWork], list[tuple[float, float]]]  # counted work; traced calls and seconds per step


def compute_roofline(
    ops: Iterable[OperatorWork],
    calls: Iterable[OperatorCalls],
    *,
    steps: int,
    step_seconds: float,
    peak_flops: float,
    peak_source: str,
    peak_bytes_per_second: float,
) -> RooflineChart | None:
    """Compare each operator with the peaks; None if no operator matches or a peak is missing.

    `ops` is the work of one step, `calls` are the calls of all `steps` profiled steps of `step_seconds` on average.
    """
    if steps <= 0 or not all(_positive(value) for value in (step_seconds, peak_flops, peak_bytes_per_second)):
        return None
    operators: list[RooflinePoint] = []
    points: list[RooflinePoint] = []
    build_point = partial(_build_point, peak_flops=peak_flops, peak_bytes_per_second=peak_bytes_per_second)
    for name, groups in _group(ops, calls, steps).items():
        every_op = [op for worked, _ in groups.values() for op in worked]
        combined = build_point(name, (), (every_op, [time for _, times in groups.values() for time in times]))
        if combined is None:
            continue
        operators.append(combined)
        by_shape = [build_point(name, shapes, group) for shapes, group in groups.items()]
        # Traces lack the shapes of tensor lists; then all calls are one point.
        points += [point for point in by_shape if point is not None] or [combined]
    if not operators:
        return None
    operators.sort(key=_by_time)
    return RooflineChart(
        peak_flops=peak_flops,
        peak_source=peak_source,
        peak_bytes_per_second=peak_bytes_per_second,
        operators=operators,
        points=sorted(points, key=_by_time)[:MAX_POINTS],
        covered_share=sum(point.seconds for point in operators) / step_seconds,
        sentences=describe_roofline(operators, step_seconds),
    )


def name_in_trace(name: str) -> str:
    """Return an operator's name in a trace, which has no overloads: aten::add_ for aten.add_.Tensor."""
    space, _, rest = name.partition(".")
    return f"{space}::{rest.partition('.')[0]}" if rest else name


def _build_point(
    name: str, shapes: Shapes, group: Group, *, peak_flops: float, peak_bytes_per_second: float
) -> RooflinePoint | None:
    ops, times = group
    counted = sum(op.count for op in ops)
    seconds = math.fsum(seconds for _, seconds in times)
    if abs(math.fsum(calls for calls, _ in times) - counted) > MAX_CALL_DIFFERENCE * counted:
        return None
    bounds = [(op.flops / peak_flops, op.bytes_moved / peak_bytes_per_second) for op in ops]
    least = math.fsum(max(bound) for bound in bounds)
    arithmetic = math.fsum(compute for compute, traffic in bounds if compute > traffic)
    if not _positive(seconds) or not _positive(least / seconds):
        return None
    # The first inputs are activations and weights: 8×64×56×56, 64×64×3×3.
    shown = ["×".join(map(str, shape)) for shape in shapes[:MAX_SHAPES]] + ["…"] * (len(shapes) > MAX_SHAPES)
    return RooflinePoint(
        operator=name,
        shapes=", ".join(shown),
        calls=counted,
        seconds=seconds,
        flops=math.fsum(op.flops for op in ops),
        bytes_moved=math.fsum(op.bytes_moved for op in ops),
        bound="compute" if arithmetic > least / 2 else "memory",
        share_of_bound=least / seconds,
    )


def _group(ops: Iterable[OperatorWork], calls: Iterable[OperatorCalls], steps: int) -> dict[str, dict[Shapes, Group]]:
    """Group work and calls by trace name (without overloads) and shapes.

    Operators with any device time use device time, others host time.
    """
    groups: dict[str, dict[Shapes, Group]] = defaultdict(lambda: defaultdict(lambda: ([], [])))
    for op in ops:
        groups[name_in_trace(op.name)][_strip(op.shapes)][0].append(op)
    calls = list(calls)
    on_device = {call.name for call in calls if call.device_seconds is not None}
    for call in calls:
        seconds = (call.device_seconds or 0.0) if call.name in on_device else call.host_seconds
        groups[call.name][_strip(call.dims)][1].append((call.calls / steps, seconds / steps))
    return groups


def _strip(shapes: Iterable[Shape]) -> Shapes:
    """Drop empty shapes: traces have them for other inputs than tensors, counts for scalar tensors."""
    return tuple(tuple(shape) for shape in shapes if shape)


def _by_time(point: RooflinePoint) -> tuple[float, str, str]:
    return -point.seconds, point.operator, point.shapes


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0
