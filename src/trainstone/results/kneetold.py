"""Says what a sweep means: the knee or why there is none, what a step costs, where memory ends it; the verdict."""

from collections.abc import Iterator, Sequence
from typing import Any

from trainstone.results.knee import (
    POOR_FIT,
    Measured,
    find_best,
    find_knee,
    fit_steps,
    have_intervals,
    is_behind,
    list_measured,
)
from trainstone.results.summary import describe_rate
from trainstone.results.sweep import (
    BATCH,
    Knee,
    StepFit,
    Sweep,
    SweepRow,
    format_setting,
    has_order,
    is_numeric,
    label_row,
    name_key,
    split_curves,
)
from trainstone.units import format_bytes, format_percent, format_seconds

SMALL_FIXED = 0.01
"""A fixed part below this share of the smallest step is none."""


def judge(sweep: Sweep) -> Sweep:
    """Return the sweep with knees, fits and sentences of the rows it has."""
    ordered = has_order(sweep)
    knees, fits, told = [], [], []
    for curve, rows in split_curves(sweep):
        points = list_measured(rows) if ordered else []
        knee = find_knee(points, curve)
        fit = fit_steps(points, curve) if sweep.key == BATCH else None
        sentences = tell_curve(sweep, rows, points, knee, fit) if ordered else tell_choice(sweep, rows)
        prefix = "" if sweep.curve_key is None else f"{name_key(sweep.curve_key)} {format_setting(curve)}: "
        told += [prefix + sentence for sentence in sentences]
        knees += [knee] if knee else []
        fits += [fit] if fit else []
    told += tell_doubts(sweep)
    return sweep.model_copy(update={"knees": knees, "fits": fits, "told": told})


def tell_curve(
    sweep: Sweep, rows: Sequence[SweepRow], points: Sequence[Measured], knee: Knee | None, fit: StepFit | None
) -> Iterator[str]:
    """Sentences on a curve whose values have an order."""
    if len(points) < 2:
        return
    name = name_key(sweep.key)
    if knee is None:
        yield f"No knee {tell_rising(sweep, rows, points)}."
    else:
        yield tell_knee(name, points, knee)
    at = next((point for point in points if knee and point.value == knee.value), points[-1])
    if fit is not None and fit.error <= POOR_FIT:
        where = "the knee" if knee else f"{name} {at.value}"
        yield tell_fit(fit, points[0].row, at.row, where)
    state = tell_state(at.row)
    if state:
        yield f"There it {state}."
    if knee is not None:
        yield from tell_end(name, rows, points)


def tell_knee(name: str, points: Sequence[Measured], knee: Knee) -> str:
    """Say where the knee is, and where else it could be."""
    best = tell_place(find_best(points))
    told = f"The knee is at {name} {knee.value}: the smallest within 5 % of the best ({best})."
    if knee.could_be:
        told += f" By the 95 % intervals it could also be {join_or([str(v) for v in knee.could_be])}."
    return told


def tell_rising(sweep: Sweep, rows: Sequence[SweepRow], points: Sequence[Measured], of: str = "") -> str:
    """Say up to where there is no knee, and what hides it: memory, or that nobody has tried."""
    name, last = name_key(sweep.key), points[-1]
    rate = describe_rate(last.rate, last.row.ci95)
    unsure = "" if have_intervals(*points[-2:]) else ", no interval"
    told = f"up to {name} {last.value}{of}: the speed still rises there ({rate} images/s{unsure})"
    full = list_full(rows, last)
    if full:
        return f"{told}; memory ends it: {name} {full[0]} does not fit"
    # Larger ones that are still to be run, or that failed, have been thought of
    return told if any(value > last.value for value in sweep.values) else f"{told}: try larger ones"


def list_full(rows: Sequence[SweepRow], last: Measured) -> list[Any]:
    """Return the values beyond the last point that were out of memory, smallest first."""
    return sorted(row.value for row in rows if row.status == "out_of_memory" and row.value > last.value)


def tell_rate(row: SweepRow) -> str:
    """Return 4.7 ± 1.0 % images/s, or that the ± is not known."""
    told = f"{describe_rate(row.images_per_second or 0, row.ci95)} images/s"
    return told if row.ci95 else f"{told} (no interval)"


def tell_place(point: Measured) -> str:
    """Return 4.7 ± 1.0 % images/s at 8, for brackets."""
    told = f"{describe_rate(point.rate, point.row.ci95)} images/s at {point.value}"
    return told if point.row.ci95 else f"{told}, no interval"


def tell_fit(fit: StepFit, smallest: SweepRow, at: SweepRow, where: str) -> str:
    """Say what a step costs apart from its images, and what share of it that is."""
    fitted = f"fitted to {fit.points} points within {format_percent(max(fit.error, 1e-3))}"
    shares = [_fixed_share(fit, row) for row in (smallest, at)]
    if shares[0] < SMALL_FIXED:
        per_image = format_seconds(fit.seconds_per_image)
        return f"The time of a step is proportional to its images ({per_image} an image; {fitted})."
    cost = f"{format_seconds(fit.fixed_seconds)} and {format_seconds(fit.seconds_per_image)} an image"
    told = f"A step costs {cost} ({fitted}): "
    told += f"at batch {smallest.value} the fixed part is {format_percent(shares[0], 0)} of the step"
    return told + (f", at {where} {format_percent(shares[1], 0)}." if at is not smallest else ".")


def _fixed_share(fit: StepFit, row: SweepRow) -> float:
    whole = fit.fixed_seconds + fit.seconds_per_image * (row.images_per_step or 0)
    return fit.fixed_seconds / whole if whole > 0 else 0.0


def tell_state(row: SweepRow) -> str:
    """Say how near to the peak a point is, and what memory it takes; nothing where neither is known."""
    peak = _tell_peak(row)
    memory = f"takes {format_bytes(row.memory_bytes)} at most" if row.memory_bytes else ""
    between = ", and " if "," in peak else " and "
    return between.join(part for part in (peak, memory) if part)


def _tell_peak(row: SweepRow) -> str:
    if row.mfu is None:
        return ""
    limit = f", limited by {row.limit}" if row.limit not in (None, "unknown") else ""
    return f"reaches {format_percent(row.mfu, 0)} of the measured peak{limit}"


def tell_end(name: str, rows: Sequence[SweepRow], points: Sequence[Measured]) -> Iterator[str]:
    """Say what happens at the upper end of a curve with a knee: memory ends it, or the speed falls."""
    best, last = find_best(points), points[-1]
    full = list_full(rows, last)
    if full:
        yield f"Memory ends it: {name} {full[0]} does not fit."
    if is_behind(last, best):
        share = format_percent(last.rate / best.rate, 0)
        unsure = "" if have_intervals(best, last) else " (no interval)"
        yield f"Beyond {best.value} it falls: {share} of the best at {name} {last.value}{unsure}."


def tell_choice(sweep: Sweep, rows: Sequence[SweepRow]) -> Iterator[str]:
    """Sentences on values without an order: the best, and how far the others are."""
    points = sorted(list_measured(rows), key=lambda point: -point.rate)
    if len(points) < 2:
        return
    # A number alone would not say what it is
    name = f"{name_key(sweep.key)} " if is_numeric([point.value for point in points]) else ""
    best, *others = points
    yield f"{name}{format_setting(best.value)} is the fastest: {tell_rate(best.row)}."
    for point in others:
        share = format_percent(point.rate / best.rate, 0)
        apart = "" if point.high < best.low else "; the intervals overlap: not told apart"
        if not have_intervals(point, best):
            apart = "; without intervals that is not judged"
        rate = describe_rate(point.rate, point.row.ci95)
        yield f"{name}{format_setting(point.value)} has {rate} images/s, {share} of it{apart}."


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
    curves = [(list_measured(rows), rows, curve) for curve, rows in split_curves(sweep)] if has_order(sweep) else []
    curves = [one for one in curves if len(one[0]) >= 2]
    if not curves:
        fastest = max(measured, key=lambda row: row.images_per_second or 0)
        return f"{title}: fastest with {label_row(sweep, fastest)}: {tell_rate(fastest)}{done}"
    curves.sort(key=lambda one: -find_best(one[0]).rate)
    told = [_tell_briefly(sweep, *one, alone=len(curves) == 1) for one in curves]
    return f"{title}: {'; '.join(told)}{done}"


def _tell_briefly(
    sweep: Sweep, points: Sequence[Measured], rows: Sequence[SweepRow], curve: Any, *, alone: bool
) -> str:
    """A curve in the verdict; how near to the peak it comes only where there is no other."""
    of = "" if sweep.curve_key is None else f" with {name_key(sweep.curve_key)} {format_setting(curve)}"
    best, knee = find_best(points), find_knee(points)
    if knee is None:
        at, told = best, f"no knee {tell_rising(sweep, rows, points, of)}"
    else:
        at = next(point for point in points if point.value == knee.value)
        told = f"knee at {name_key(sweep.key)} {at.value}{of}: {tell_rate(at.row)}"
        if alone:
            share = format_percent(knee.share_of_best, 0)
            told += ", the best" if at is best else f", {share} of the best ({tell_place(best)})"
    peak = _tell_peak(at.row) if alone else ""
    return "; ".join(part for part in (told, peak) if part)
