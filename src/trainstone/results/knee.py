"""The knee of a sweep, its alternatives within the intervals, and the fit of step time. Pure."""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from trainstone.results.schema.sweep import BATCH, Knee, StepFit, Sweep, SweepRow, format_setting, is_numeric

TAKES_MEMORY = (BATCH, "data.image_size", "model.width", "model.depth")  # keys whose larger values need more memory
ORDERED = (*TAKES_MEMORY, "train.accumulate", "engine.threads", "loader.threads")
"""Keys whose values have an order; numbers of other keys, such as seeds, only name a choice."""
NEAR = 0.05  # rates within this share of the best count as equal: larger values cost memory and gain little
MIN_FIT_POINTS = 3
POOR_FIT = 0.10


def quote_setting(value: Any) -> str:
    """Format a value for --over: text in quotes where it could be read as another type."""
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w./:@-]*", value) and value not in ("true", "false")
    return str(value) if plain else json.dumps(value)


def name_key(key: str) -> str:
    return "batch" if key == BATCH else key


def label_point(key: str, value: Any, curve_key: str | None = None, curve: Any = None) -> str:
    """Format batch 16, or batch 16, train.precision bf16."""
    label = f"{name_key(key)} {format_setting(value)}"
    return label if curve_key is None else f"{label}, {name_key(curve_key)} {format_setting(curve)}"


def label_row(sweep: Sweep, row: SweepRow) -> str:
    return label_point(sweep.key, row.value, sweep.curve_key, row.curve)


def name_file(label: str) -> str:
    """Format batch_16 for `batch 16`: characters that every file system accepts."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", label.replace(", ", "_"))[:100].strip("_.") or "point"


def has_order(sweep: Sweep) -> bool:
    return sweep.key in ORDERED and is_numeric([*sweep.values, *(row.value for row in sweep.rows)])


def split_curves(sweep: Sweep) -> list[tuple[Any, list[SweepRow]]]:
    if sweep.curve_key is None:
        return [(None, sweep.rows)]
    # By their text, since True == 1 in Python
    return [
        (curve, [row for row in sweep.rows if format_setting(row.curve) == format_setting(curve)])
        for curve in sweep.curves
    ]


def list_measured(rows: Sequence[SweepRow]) -> list[SweepRow]:
    """Return the measured points, sorted by value where values are numbers."""
    measured = [row for row in rows if row.images_per_second is not None]
    return sorted(measured, key=lambda row: row.value) if is_numeric([row.value for row in measured]) else measured


def find_fastest(rows: Sequence[SweepRow]) -> SweepRow:
    return max(rows, key=lambda row: row.rate)


def is_behind(slow: SweepRow, fast: SweepRow) -> bool:
    return slow.rate < (1 - NEAR) * fast.rate and slow.ends[1] < fast.ends[0]


def find_knee(points: Sequence[SweepRow], curve: Any = None) -> Knee | None:
    """Return the smallest value within 5 % of the best; None for fewer than two points, or if the speed still rises."""
    best = find_fastest(points) if points else None
    if best is None or len(points) < 2 or (best is points[-1] and is_behind(points[-2], best)):
        return None
    knee = next(point for point in points if point.rate >= (1 - NEAR) * best.rate)
    others = [point.value for point in points if point is not knee and could_be_knee(points, point)]
    return Knee(
        curve=curve,
        value=knee.value,
        images_per_second=knee.rate,
        share_of_best=knee.rate / best.rate,
        best_value=best.value,
        best_images_per_second=best.rate,
        could_be=others if all(point.ci95 for point in points) else [],
    )


def could_be_knee(points: Sequence[SweepRow], candidate: SweepRow) -> bool:
    """Return whether rates inside all intervals exist that make the candidate the knee.

    Then it is near the best rate and no smaller point is. The best rate is at least every interval's low end, within
    the interval of the candidate or a larger point, near the candidate and far from each smaller point.
    """
    smaller = [point.ends[0] for point in points if point.value < candidate.value]
    reach = max(point.ends[1] for point in points if point.value >= candidate.value)
    most = min(reach, candidate.ends[1] / (1 - NEAR))
    return most >= max(point.ends[0] for point in points) and all(low < (1 - NEAR) * most for low in smaller)


def find_knee_row(sweep: Sweep, knee: Knee) -> SweepRow | None:
    curves = (rows for curve, rows in split_curves(sweep) if format_setting(curve) == format_setting(knee.curve))
    return next((row for row in next(curves, []) if row.status == "ok" and row.value == knee.value), None)


def fit_steps(points: Sequence[SweepRow], curve: Any = None) -> StepFit | None:
    """Fit step time = fixed + per image x images, neither negative; minimise relative errors, so no size dominates."""
    known = [(row.images_per_step, row.images_per_step / row.rate) for row in points if row.images_per_step]
    if len(known) < MIN_FIT_POINTS:
        return None
    images, seconds = (np.array(column, dtype=np.float64) for column in zip(*known, strict=True))
    # Each equation is divided by its step time: the residual is then relative, and the right side 1.
    both = np.stack((1 / seconds, images / seconds), axis=1)
    solved = np.linalg.lstsq(both, np.ones(len(known)), rcond=None)[0]
    if solved.min() < 0:  # one of them would be negative: fit the other
        other = int(np.argmax(solved))
        solved = np.zeros(2)
        solved[other] = both[:, other].sum() / (both[:, other] @ both[:, other])
    error = float(np.sqrt(np.mean((both @ solved - 1) ** 2)))
    fixed, per_image = solved.tolist()
    if not all(map(math.isfinite, (fixed, per_image, error))):
        return None
    return StepFit(curve=curve, fixed_seconds=fixed, seconds_per_image=per_image, error=error, points=len(known))
