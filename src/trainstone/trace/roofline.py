"""Operators against the roofs measured in the same run: the counted work of a step joined with the times of a trace.

Only like things are divided: an operator is judged where the trace has as many calls a step as were counted, else it
is left out altogether and `covered_share` is smaller. Nothing is measured or counted here.
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

MOST_CALLS_APART = 0.01
"""Calls a step, counted against traced: further apart than this share they are not the same calls."""
MOST_POINTS = 300
MOST_SHAPES = 3


@dataclass(frozen=True)
class WorkedOp:
    """What the calls of one operator at one choice of shapes do in one step, `count` of them together."""

    name: str  # as the dispatcher says it: aten.convolution_backward.default
    shapes: Shapes  # of all tensors it is given, those in lists included
    count: int
    flops: float
    bytes_moved: float


Group = tuple[list[WorkedOp], list[tuple[float, float]]]  # counted work; calls and seconds per step, as traced


def place_on_roofline(
    ops: Iterable[WorkedOp],
    calls: Iterable[OperatorCalls],
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
    operators: list[RooflinePoint] = []
    points: list[RooflinePoint] = []
    place = partial(_place_shape, peak_flops=peak_flops, peak_bytes_per_second=peak_bytes_per_second)
    for name, groups in _group(ops, calls, steps).items():
        every_op = [op for worked, _ in groups.values() for op in worked]
        whole = place(name, (), (every_op, [time for _, times in groups.values() for time in times]))
        if whole is None:
            continue
        operators.append(whole)
        evaluated = [place(name, shapes, group) for shapes, group in groups.items()]
        # A trace does not know the shapes of lists of tensors: then there is one point for all.
        points += [point for point in evaluated if point is not None] or [whole]
    if not operators:
        return None
    operators.sort(key=_by_time)
    return RooflineChart(
        peak_flops=peak_flops,
        peak_source=peak_source,
        peak_bytes_per_second=peak_bytes_per_second,
        operators=operators,
        points=sorted(points, key=_by_time)[:MOST_POINTS],
        covered_share=sum(point.seconds for point in operators) / step_seconds,
        sentences=describe_roofline(operators, step_seconds),
    )


def name_in_trace(name: str) -> str:
    """Return what a trace calls an operator of the dispatcher: aten.add_.Tensor is aten::add_, as other overloads."""
    space, _, rest = name.partition(".")
    return f"{space}::{rest.partition('.')[0]}" if rest else name


def _place_shape(
    name: str, shapes: Shapes, group: Group, *, peak_flops: float, peak_bytes_per_second: float
) -> RooflinePoint | None:
    ops, times = group
    counted = sum(op.count for op in ops)
    seconds = math.fsum(seconds for _, seconds in times)
    if abs(math.fsum(calls for calls, _ in times) - counted) > MOST_CALLS_APART * counted:
        return None
    bounds = [(op.flops / peak_flops, op.bytes_moved / peak_bytes_per_second) for op in ops]
    least = math.fsum(max(bound) for bound in bounds)
    arithmetic = math.fsum(compute for compute, traffic in bounds if compute > traffic)
    if not _positive(seconds) or not _positive(least / seconds):
        return None
    # The first few are images and weights: 8×64×56×56, 64×64×3×3.
    shown = ["×".join(map(str, shape)) for shape in shapes[:MOST_SHAPES]] + ["…"] * (len(shapes) > MOST_SHAPES)
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


def _group(ops: Iterable[WorkedOp], calls: Iterable[OperatorCalls], steps: int) -> dict[str, dict[Shapes, Group]]:
    """Group by the trace's name, overloads together, and by shapes.

    Names that have any time on the device are timed there, others on the host.
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
    """Without empty shapes: a trace has them for whatever is no tensor, a count for numbers kept in tensors."""
    return tuple(tuple(shape) for shape in shapes if shape)


def _by_time(point: RooflinePoint) -> tuple[float, str, str]:
    return -point.seconds, point.operator, point.shapes


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0
