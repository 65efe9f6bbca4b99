"""Judges a sweep: the knee and what else it could be, why it is there, where memory ends it. Pure."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from trainstone.results.sweep import (
    BATCH,
    Knee,
    StepFit,
    Sweep,
    SweepRow,
    format_setting,
    is_numeric,
    label_row,
    name_key,
    split_curves,
)
from trainstone.units import format_bytes, format_percent, format_rate, format_seconds

NEAR = 0.05
"""What is within this share of the best is as good: more of the key would cost memory and give little."""
MIN_FIT_POINTS = 3
POOR_FIT = 0.10


class Measured(NamedTuple):
    """A point with a number."""

    value: int | float
    rate: float
    low: float
    high: float
    row: SweepRow


def judge(sweep: Sweep) -> Sweep:
    """Return the sweep with knees, fits and sentences of the rows it has."""
    numeric = is_numeric(sweep.values)
    knees, fits, told = [], [], []
    for curve, rows in split_curves(sweep):
        points = list_measured(rows) if numeric else []
        knee = find_knee(points, curve)
        fit = fit_steps(points, curve) if sweep.key == BATCH else None
        sentences = tell_numbers(sweep, rows, points, knee, fit) if numeric else tell_choice(rows)
        prefix = "" if sweep.curve_key is None else f"{name_key(sweep.curve_key)} {format_setting(curve)}: "
        told += [prefix + sentence for sentence in sentences]
        knees += [knee] if knee else []
        fits += [fit] if fit else []
    told += tell_doubts(sweep)
    return sweep.model_copy(update={"knees": knees, "fits": fits, "told": told})


def list_measured(rows: Sequence[SweepRow]) -> list[Measured]:
    """Return the points that have a number, smallest value first; without an interval the number is all there is."""
    points = []
    for row in rows:
        if row.images_per_second is not None:
            low, high = row.ci95 or (row.images_per_second, row.images_per_second)
            points.append(Measured(row.value, row.images_per_second, low, high, row))
    return sorted(points, key=lambda point: point.value) if is_numeric([p.value for p in points]) else points


def find_knee(points: Sequence[Measured], curve: Any = None) -> Knee | None:
    """The smallest value within 5 % of the best; with fewer than two points there is none."""
    if len(points) < 2:
        return None
    best = max(points, key=lambda point: point.rate)
    knee = next(point for point in points if point.rate >= (1 - NEAR) * best.rate)
    others = [point.value for point in points if point.value != knee.value and could_be_knee(points, point)]
    return Knee(
        curve=curve,
        value=knee.value,
        images_per_second=knee.rate,
        share_of_best=knee.rate / best.rate,
        best_value=best.value,
        best_images_per_second=best.rate,
        could_be=others,
    )


def could_be_knee(points: Sequence[Measured], candidate: Measured) -> bool:
    """Say whether some rates inside all intervals make it the knee: it near the best, and no smaller one."""

    def may_be_near(point: Measured) -> bool:
        return point.high >= (1 - NEAR) * max(other.low for other in points if other is not point)

    def may_be_off(point: Measured) -> bool:
        return point.low < (1 - NEAR) * max(other.high for other in points if other is not point)

    return may_be_near(candidate) and all(may_be_off(point) for point in points if point.value < candidate.value)


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


def tell_numbers(
    sweep: Sweep, rows: Sequence[SweepRow], points: Sequence[Measured], knee: Knee | None, fit: StepFit | None
) -> Iterator[str]:
    """Sentences on a curve whose values have an order."""
    name = name_key(sweep.key)
    if knee is None:
        return
    best = f"{format_rate(knee.best_images_per_second)} images/s at {knee.best_value}"
    told = f"The knee is at {name} {knee.value}: the smallest within 5 % of the best ({best})."
    if knee.could_be:
        told += f" By the 95 % intervals it could also be {join_or([str(v) for v in knee.could_be])}."
    yield told
    if fit is not None and fit.error <= POOR_FIT:
        yield tell_fit(fit, points, knee)
    at_knee = next(point.row for point in points if point.value == knee.value)
    state = [*_tell_peak(at_knee)]
    if at_knee.memory_bytes:
        state.append(f"takes {format_bytes(at_knee.memory_bytes)} at most")
    if state:
        yield f"There it {' and '.join(state)}."
    yield from tell_ends(name, rows, points, knee)


def tell_fit(fit: StepFit, points: Sequence[Measured], knee: Knee) -> str:
    """Say what a step costs apart from its images, and what share of it that is."""
    cost = f"{format_seconds(fit.fixed_seconds)} and {format_seconds(fit.seconds_per_image)} an image"
    told = f"A step costs {cost} (fitted to {fit.points} points within {format_percent(max(fit.error, 1e-3))})"
    shares: list[tuple[str, str]] = []
    for place, value in (("batch {}", points[0].value), ("the knee", knee.value)):
        images = next(point.row.images_per_step for point in points if point.value == value) or 0
        whole = fit.fixed_seconds + fit.seconds_per_image * images
        if whole > 0 and (not shares or value != points[0].value):
            where = place.format(value)
            shares.append((where, format_percent(fit.fixed_seconds / whole, 0)))
    if not shares:
        return f"{told}."
    first, *rest = shares
    return (
        f"{told}: at {first[0]} the fixed part is {first[1]} of the step"
        + "".join(f", at {where} {share}" for where, share in rest)
        + "."
    )


def _tell_peak(row: SweepRow) -> Iterator[str]:
    if row.mfu is not None:
        limit = f", limited by {row.limit}," if row.limit not in (None, "unknown") else ""
        yield f"reaches {format_percent(row.mfu, 0)} of the measured peak{limit}"


def tell_ends(name: str, rows: Sequence[SweepRow], points: Sequence[Measured], knee: Knee) -> Iterator[str]:
    """Say what happens at the upper end: still rising, falling, or memory ends it."""
    last, before = points[-1], points[-2]
    beyond = sorted(row.value for row in rows if row.status == "out_of_memory" and row.value > last.value)
    rising = knee.best_value == last.value and before.rate < (1 - NEAR) * last.rate
    if beyond and rising:
        yield f"The speed still rises at {name} {last.value}; memory ends it: {beyond[0]} does not fit."
    elif beyond:
        yield f"Memory ends it: {name} {beyond[0]} does not fit."
    elif rising:
        yield f"The speed still rises at {name} {last.value}: try larger ones."
    if last.rate < (1 - NEAR) * knee.best_images_per_second:
        share = format_percent(last.rate / knee.best_images_per_second, 0)
        yield f"Beyond {knee.best_value} it falls: {share} of the best at {name} {last.value}."


def tell_choice(rows: Sequence[SweepRow]) -> Iterator[str]:
    """Sentences on values without an order: the best, and how far the others are."""
    points = sorted(list_measured(rows), key=lambda point: -point.rate)
    if len(points) < 2:
        return
    best, *others = points
    yield f"{format_setting(best.value)} is the fastest: {format_rate(best.rate)} images/s."
    for point in others:
        share = format_percent(point.rate / best.rate, 0)
        apart = "" if point.high < best.low else "; the intervals overlap: not told apart"
        if point.row.ci95 is None or best.row.ci95 is None:
            apart = "; without intervals that is not judged"
        yield f"{format_setting(point.value)} has {format_rate(point.rate)} images/s, {share} of it{apart}."


def tell_doubts(sweep: Sweep) -> Iterator[str]:
    """Name the points whose numbers are doubtful; they count all the same."""
    measured = [row for row in sweep.rows if row.images_per_second is not None]
    for what, doubtful in (
        ("no interval", [row for row in measured if row.ci95 is None]),
        ("not steady", [row for row in measured if row.ci95 is not None and not row.steady]),
    ):
        if doubtful:
            yield f"Measured too short or too noisily ({what}): {join_labels(sweep, doubtful)}."


def join_labels(sweep: Sweep, rows: Sequence[SweepRow]) -> str:
    """Return batch 4, 8 and 16; with curves each in full."""
    if sweep.curve_key is None:
        return f"{name_key(sweep.key)} {join_or([format_setting(row.value) for row in rows], 'and')}"
    return "; ".join(label_row(sweep, row) for row in rows)


def join_or(words: Sequence[str], conjunction: str = "or") -> str:
    """Return 1, 2 or 4."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {conjunction} {words[-1]}"


def write_sweep_verdict(sweep: Sweep, title: str) -> str | None:
    """One sentence that can be quoted; None without any number."""
    measured = [row for row in sweep.rows if row.images_per_second is not None]
    if not measured:
        return None
    done = "" if len(sweep.rows) >= sweep.num_points else f" ({len(sweep.rows)} of {sweep.num_points} points)"
    fastest = max(measured, key=lambda row: row.images_per_second or 0)
    if not sweep.knees:
        best = f"{format_rate(fastest.images_per_second or 0)} images/s"
        return f"{title}: fastest with {label_row(sweep, fastest)}: {best}{done}"
    ranked = sorted(sweep.knees, key=lambda knee: -knee.best_images_per_second)
    told = [_tell_knee(sweep, knee, brief=len(ranked) > 1) for knee in ranked]
    at_knee = find_row(sweep, ranked[0])
    if at_knee and len(ranked) == 1:
        told += _tell_peak(at_knee)
        told = [part.rstrip(",") for part in told]
    return f"{title}: {'; '.join(told)}{done}"


def _tell_knee(sweep: Sweep, knee: Knee, *, brief: bool) -> str:
    of = "" if sweep.curve_key is None else f" with {name_key(sweep.curve_key)} {format_setting(knee.curve)}"
    told = f"knee at {name_key(sweep.key)} {knee.value}{of}: {format_rate(knee.images_per_second)} images/s"
    if brief:
        return told
    if knee.value == knee.best_value:
        return f"{told}, the best"
    best = f"{format_rate(knee.best_images_per_second)} at {knee.best_value}"
    return f"{told}, {format_percent(knee.share_of_best, 0)} of the best ({best})"


def find_row(sweep: Sweep, knee: Knee) -> SweepRow | None:
    """Return the row that a knee stands for."""
    rows = next(
        (rows for curve, rows in split_curves(sweep) if format_setting(curve) == format_setting(knee.curve)), []
    )
    return next((row for row in rows if is_numeric([row.value]) and row.value == knee.value), None)
