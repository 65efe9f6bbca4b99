"""Judges the curves of a sweep by numbers alone: rising, falling, the knee and what else it could be, the fit. Pure.

What is said of them stands in results/verdicts.py.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from trainstone.results.sweep import Knee, StepFit, Sweep, SweepRow, format_setting, is_numeric, split_curves

NEAR = 0.05
"""What is within this share of the best is as good: more of the key would cost memory and give little."""
MIN_FIT_POINTS = 3
POOR_FIT = 0.10


class Measured(NamedTuple):
    """A point with a number."""

    value: Any
    rate: float
    low: float
    high: float
    row: SweepRow


def list_measured(rows: Sequence[SweepRow]) -> list[Measured]:
    """Return the points that have a number, smallest value first; without an interval the number is all there is."""
    points = []
    for row in rows:
        if row.images_per_second is not None:
            low, high = row.ci95 or (row.images_per_second, row.images_per_second)
            points.append(Measured(row.value, row.images_per_second, low, high, row))
    return sorted(points, key=lambda point: point.value) if is_numeric([p.value for p in points]) else points


def have_intervals(*points: Measured) -> bool:
    """Say whether the intervals of all are known."""
    return all(point.row.ci95 is not None for point in points)


def is_behind(slow: Measured, fast: Measured) -> bool:
    """Say whether a point is more than 5 % slower, and by its interval not only by chance."""
    return slow.rate < (1 - NEAR) * fast.rate and slow.high < fast.low


def find_best(points: Sequence[Measured]) -> Measured:
    """Return the fastest point."""
    return max(points, key=lambda point: point.rate)


def is_rising(points: Sequence[Measured]) -> bool:
    """Say whether the speed still rises at the largest value: the knee is not in sight then."""
    return len(points) >= 2 and find_best(points) is points[-1] and is_behind(points[-2], points[-1])


def find_knee(points: Sequence[Measured], curve: Any = None) -> Knee | None:
    """The smallest value within 5 % of the best; none of fewer than two points, nor where the speed still rises."""
    if len(points) < 2 or is_rising(points):
        return None
    best = find_best(points)
    knee = next(point for point in points if point.rate >= (1 - NEAR) * best.rate)
    others = [point.value for point in points if point is not knee and could_be_knee(points, point)]
    return Knee(
        curve=curve,
        value=knee.value,
        images_per_second=knee.rate,
        share_of_best=knee.rate / best.rate,
        best_value=best.value,
        best_images_per_second=best.rate,
        could_be=others if have_intervals(*points) else [],
    )


def could_be_knee(points: Sequence[Measured], candidate: Measured) -> bool:
    """Say whether some rates inside all intervals make it the knee: it near the best, and no smaller one.

    The best is one rate for all of them: no lower than any interval's low end, within reach of the candidate or a
    larger one, near enough to the candidate and far enough from each smaller one.
    """
    smaller = [point.low for point in points if point.value < candidate.value]
    reach = max(point.high for point in points if point.value >= candidate.value)
    most = min(reach, candidate.high / (1 - NEAR))
    return most >= max(point.low for point in points) and all(low < (1 - NEAR) * most for low in smaller)


def fit_steps(points: Sequence[Measured], curve: Any = None) -> StepFit | None:
    """Fit step time = fixed + per image x images, neither below 0; relative errors count, so that no size dominates."""
    known = [(p.row.images_per_step, p.row.images_per_step / p.rate) for p in points if p.row.images_per_step]
    if len(known) < MIN_FIT_POINTS:
        return None
    images, seconds = (np.array(column, dtype=np.float64) for column in zip(*known, strict=True))
    # Each equation is divided by its step time: the residual is then relative, and the right side 1.
    both = np.stack((1 / seconds, images / seconds), axis=1)
    solved, *_ = np.linalg.lstsq(both, np.ones(len(known)), rcond=None)
    fixed, per_image = float(solved[0]), float(solved[1])
    if fixed < 0:
        fixed, per_image = 0.0, _fit_one(both[:, 1])
    elif per_image < 0:
        fixed, per_image = _fit_one(both[:, 0]), 0.0
    residual = both @ np.array([fixed, per_image]) - 1
    error = float(np.sqrt(np.mean(residual**2)))
    if not all(map(math.isfinite, (fixed, per_image, error))):
        return None
    return StepFit(curve=curve, fixed_seconds=fixed, seconds_per_image=per_image, error=error, points=len(known))


def _fit_one(column: Any) -> float:
    return float(column.sum() / (column @ column))


def find_row(sweep: Sweep, knee: Knee) -> SweepRow | None:
    """Return the row that a knee stands for."""
    rows = next(
        (rows for curve, rows in split_curves(sweep) if format_setting(curve) == format_setting(knee.curve)), []
    )
    return next((row for row in rows if is_numeric([row.value]) and row.value == knee.value), None)
