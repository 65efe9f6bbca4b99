"""Every sentence about a whole run: the verdict of each kind, and what a sweep means. Pure: numbers in, text out.

What a profile says of its parts is in results/breakdown.py.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from trainstone.machine.health import Noise
from trainstone.results.anchors import describe_share, is_published
from trainstone.results.feeding import WORK, Feeding, best_point, describe_demand, largest_stage
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
from trainstone.results.learning import (
    TOLD,
    describe_metric,
    describe_split,
    format_epoch,
    format_epochs,
    format_metric,
    format_target,
    is_complete,
    name_metric,
    total_time,
)
from trainstone.results.profiled import Timeline
from trainstone.results.quality import Evaluation, Quality, Repeated, TrainedRun
from trainstone.results.schema import (
    FINISHED,
    ComparisonRow,
    Judgement,
    Loader,
    Phases,
    Status,
    Throughput,
    Utilisation,
)
from trainstone.results.summary import describe_interval, describe_rate
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
from trainstone.units import (
    format_bytes,
    format_count,
    format_interval,
    format_percent,
    format_rate,
    format_ratio,
    format_seconds,
    format_share,
)

BUSY_SHARE = 0.8
"""Threads that keep less of their cores busy than this wait for something else, and more cores would not help."""
SMALL_FIXED = 0.01
"""A fixed part below this share of the smallest step is none."""


def write_verdict(
    title: str,
    throughput: Throughput,
    utilisation: Utilisation | None,
    noise: Noise | None,
    *,
    device_kind: str,
    precision: str,
    feeding: str = "",
    ranks: int = 1,
) -> str:
    """One sentence that can be quoted; of several ranks the throughput is that of all, the utilisation the first's."""
    rate = f"{title}: {format_rate(throughput.images_per_second)} images/s"
    whose = f"this {device_kind}"
    if ranks > 1:
        rate, whose = f"{rate} on {ranks} ranks", f"the first {device_kind}"
    parts = [f"{rate} {describe_interval(throughput)}"]
    if utilisation is not None and utilisation.mfu is not None:
        parts.append(f"{format_percent(utilisation.mfu, 0)} of {whose}'s measured {precision} peak")
    if utilisation is not None and utilisation.limit not in (None, "unknown"):
        parts.append(f"limited by {utilisation.limit}")
    if not throughput.steady and throughput.trend_percent is not None:
        parts.append("not steady")
    if feeding:
        parts.append(feeding)
    if noise is not None:
        parts.append(f"noise grade {noise.grade}")
    return "; ".join(parts)


def write_profile_verdict(title: str, timeline: Timeline) -> str:
    """One sentence: where the time of a step goes."""
    runs = "operators run" if timeline.device == "cpu" else "a kernel runs"
    parts = [f"{title}: {runs} for {format_percent(timeline.compute_utilisation)} of the step"]
    roofline = timeline.roofline.told if timeline.roofline else []
    parts += [told[:1].lower() + told[1:] for told in roofline[:1] or timeline.told[1:2]]
    if timeline.overhead is not None:
        share, noise = timeline.overhead.share, timeline.overhead.noise
        cost = format_percent(share) if share > noise else f"less than the noise ({format_percent(noise)})"
        parts.append(f"profiling costs {cost}")
    return "; ".join(part.rstrip(".") for part in parts)


def write_runs_verdict(title: str, combined: Throughput, loaders: Sequence[Loader], noise: Noise | None) -> str:
    """One sentence about runs of the same thing: the throughput between them."""
    verdict = f"{title}: {format_rate(combined.images_per_second)} images/s {describe_interval(combined)}"
    if loaders:
        verdict += f"; data-bound in {sum(loader.data_bound for loader in loaders)} of {len(loaders)} runs"
    return verdict if noise is None else f"{verdict}; worst noise grade {noise.grade}"


def write_eval_verdict(title: str, evaluation: Evaluation, metric: str, origin: str) -> str:
    """Return ResNet-18: 92.4 % top-1, 99.1 % top-5 on 1,000 pictures (from step 1,250 of RUN)."""
    shown = [metric, *(name for name in evaluation.metrics if name in TOLD and name != metric)]
    told = ", ".join(describe_metric(name, evaluation.metrics[name]) for name in shown)
    return f"{title}: {told} on {format_count(evaluation.images, 'picture')} (from {origin})"


def write_learning_verdict(
    quality: Quality | None,
    status: Status,
    phases: Phases | None,
    title: str,
    *,
    stopped_by: str = "a signal",
    run: str = "RUN",
) -> str:
    """One sentence that can be quoted; of an interrupted run with what to type to go on."""
    best = _describe_best(quality, status)
    how = _describe_ending(quality, status, stopped_by, run)
    if not how and quality is not None and phases is not None:
        how = _describe_time(quality, phases)
        return f"{title}: {best}{how}"
    return f"{title}: {best}; {how}" if how else f"{title}: {best}"


def _describe_best(quality: Quality | None, status: Status) -> str:
    if quality is not None and quality.value is None:
        return _describe_trained(quality)
    if quality is None or quality.value is None or not quality.history:
        return "not evaluated yet"
    value = describe_metric(quality.metric, quality.value, quality.target)
    if status == "target_reached" and quality.target is not None:
        target = format_target(quality.metric, quality.target)
        return f"{value} (target {target}) after {format_epochs(quality.epochs)}"
    after = f" after {format_epochs(quality.epochs)}" if status in ("ok", "target_missed") else ""
    return f"best {value}{after}"


def _describe_trained(quality: Quality) -> str:
    """Return trained 500 steps, 12.5 epochs."""
    steps = "" if quality.steps is None else f"{format_count(quality.steps, 'step')}, "
    return f"trained {steps}{format_epochs(quality.epochs)}"


def _describe_ending(quality: Quality | None, status: Status, stopped_by: str, run: str) -> str:
    """Say how it ended where that is not the usual end."""
    where = f" after epoch {format_epoch(quality.epochs)}" if quality is not None else ""
    if status == "target_missed" and quality is not None and quality.target is not None:
        return f"the target of {format_target(quality.metric, quality.target)} was not reached"
    if status == "interrupted":
        return f"stopped by {stopped_by}{where}; go on with trainstone train --resume {run}"
    if status == "killed":
        return f"killed{where}; go on with trainstone train --resume {run}"
    if status == "failed":
        return f"failed{where}"
    if status == "ok" and quality is not None and quality.value is None:
        return "not evaluated"
    return f"going on{where}" if status == "running" else ""


def _describe_time(quality: Quality, phases: Phases) -> str:
    total = total_time(quality, phases)
    split = describe_split(phases, total)
    reached = "reached in" if quality.seconds_to_target is not None else "in"
    return f", {reached} {format_seconds(total)}: {split}" if split else ""


def describe_score(repeated: Repeated) -> str:
    """Return olympic mean 41.2 s."""
    assert repeated.score_seconds is not None
    return f"olympic mean {format_seconds(repeated.score_seconds)}"


def describe_goal(quality: Quality) -> str:
    """Return 90 % top-1: the target."""
    assert quality.target is not None
    return f"{format_target(quality.metric, quality.target)} {name_metric(quality.metric)}"


def write_repeated_verdict(repeated: Repeated, quality: Quality | None, title: str) -> str:
    """One sentence that can be quoted."""
    over = [run for run in repeated.runs if run.status in FINISHED]
    if quality is None or not over:
        return f"{title}: none of {repeated.num_runs} runs has come to its end"
    if quality.target is None:
        told = _describe_values(over, quality)
    elif all(run.reached for run in over):
        runs = f"{len(over)} runs, " if is_complete(repeated) else ""
        told = f"reached {describe_goal(quality)} in {_describe_times(repeated, over, runs)}"
    else:
        told = _describe_missed(repeated, over, quality)
    under_way = "" if is_complete(repeated) else f"{len(over)} of {repeated.num_runs} runs are over: "
    return f"{title}: {under_way}{told}"


def _describe_missed(repeated: Repeated, over: Sequence[TrainedRun], quality: Quality) -> str:
    reached = [run for run in over if run.reached]
    told = f"{len(reached)} of {len(over)} runs reached {describe_goal(quality)}"
    if reached:
        told += f", in {_describe_times(repeated, reached)}"
    values = [run.value for run in over if run.value is not None and not run.reached]
    best = f"; the best that missed it found {format_metric(quality.metric, max(values), quality.target)}"
    return told + (best if values else "")


def _describe_times(repeated: Repeated, reached: Sequence[TrainedRun], runs: str = "") -> str:
    """Return 41 s (5 runs, 38 s to 47 s; olympic mean 41.2 s)."""
    times = [run.seconds_to_target for run in reached if run.seconds_to_target is not None]
    middle = format_seconds(median(times))
    score = f"; {describe_score(repeated)}" if repeated.score_seconds is not None else ""
    return f"{middle} ({runs}{format_seconds(min(times))} to {format_seconds(max(times))}{score})"


def _describe_values(over: Sequence[TrainedRun], quality: Quality) -> str:
    values = [run.value for run in over if run.value is not None]
    if not values or quality.value is None:
        return f"trained {format_epochs(quality.epochs)} ({format_count(len(over), 'run')}); not evaluated"
    low, high = (format_metric(quality.metric, value) for value in (min(values), max(values)))
    middle = describe_metric(quality.metric, quality.value)
    return f"best {middle} in {format_epochs(quality.epochs)} ({len(over)} runs, {low} to {high})"


def write_data_verdict(feeding: Feeding, workload: str = "") -> str:
    """One sentence that can be quoted; `workload` is what trains ("ResNet-50")."""
    best, stage = best_point(feeding), largest_stage(feeding)
    where = f"{format_count(best.threads, 'thread')} on {format_count(feeding.cores, 'core')}"
    per_core = format_rate(best.images_per_second_per_core)
    parts = [f"{format_rate(best.images_per_second)} images/s with {where} ({per_core} a core)"]
    usable = min(best.threads, feeding.cores)
    if best.cpu_cores is not None and best.cpu_cores < BUSY_SHARE * usable:
        parts.append(f"only {best.cpu_cores:.1f} of {format_count(usable, 'core')} busy")
    if stage is not None:
        parts.append(f"{WORK.get(stage.name, stage.name)} takes {format_percent(stage.share, 0)} of the time")
    if feeding.demand is not None:
        parts.append(describe_demand(feeding, feeding.demand, workload or "training"))
    return "; ".join(parts)


def write_row_verdict(row: ComparisonRow) -> str:
    """Return e.g. A (x=1) is 1.062 times as fast as B (x=2) (1.041 … 1.083; 95 %, interleaved blocks): faster."""
    claim = f"A ({row.a.label}) is {format_ratio(row.ratio)} times as fast as B ({row.b.label})"
    if row.ci95 is None:
        return f"{claim} (interval {row.ci_covers}): {row.judgement}"
    ends = format_interval(row.ci95, format_ratio)
    return f"{claim} ({ends}; 95 %, {row.ci_covers}): {row.judgement}"


def write_comparison_verdict(rows: Sequence[ComparisonRow], mean: float | None, own: Sequence[ComparisonRow]) -> str:
    """Return the verdict: one sentence that can be quoted."""
    judged, published = [row for row in rows if not is_published(row)], [row for row in rows if is_published(row)]
    sentences = []
    if len(judged) == 1:
        sentences.append(write_row_verdict(judged[0]))
    elif judged and mean is not None:
        counts = Counter(row.judgement for row in judged)
        order: tuple[Judgement, ...] = ("faster", "slower", "no difference shown", "not judged")
        told = ", ".join(f"{counts[name]} {name}" for name in order if counts[name])
        sentences.append(f"{len(judged)} rows: {told}; geometric mean {format_ratio(mean)}")
    if len(published) == 1:
        row = published[0]
        figure = f"the published {row.b.label} figure, {format_rate(row.b.images_per_second)} images/s a device"
        told = f"A ({row.a.label}) reaches {describe_share(row)} of {figure}"
        sentences.append(f"{told} (95 % interval: {row.ci_covers}): not judged")
    elif published:
        least, most = (format_share(pick(row.ratio for row in published)) for pick in (min, max))
        told = f"A reaches {least} to {most} of {len(published)} published figures, device by device"
        best = max(own, key=lambda row: row.b.images_per_second, default=None)
        told += f", {format_share(best.ratio)} of the best one of its own kind ({best.b.label})" if best else ""
        sentences.append(f"{told}: not judged")
    return "; ".join(sentences)


def judge_sweep(sweep: Sweep) -> Sweep:
    """Return the sweep with knees, fits and sentences of the rows it has."""
    ordered = has_order(sweep)
    knees, fits, told = [], [], []
    for curve, rows in split_curves(sweep):
        points = list_measured(rows) if ordered else []
        knee = find_knee(points, curve)
        fit = fit_steps(points, curve) if sweep.key == BATCH else None
        sentences = _describe_curve(sweep, rows, points, knee, fit) if ordered else _describe_choice(sweep, rows)
        prefix = "" if sweep.curve_key is None else f"{name_key(sweep.curve_key)} {format_setting(curve)}: "
        told += [prefix + sentence for sentence in sentences]
        knees += [knee] if knee else []
        fits += [fit] if fit else []
    told += _describe_doubts(sweep)
    return sweep.model_copy(update={"knees": knees, "fits": fits, "told": told})


def _describe_curve(
    sweep: Sweep, rows: Sequence[SweepRow], points: Sequence[Measured], knee: Knee | None, fit: StepFit | None
) -> Iterator[str]:
    """Sentences on a curve whose values have an order."""
    if len(points) < 2:
        return
    name = name_key(sweep.key)
    if knee is None:
        yield f"No knee {_describe_rising(sweep, rows, points)}."
    else:
        yield _describe_knee(name, points, knee)
    at = next((point for point in points if knee and point.value == knee.value), points[-1])
    if fit is not None and fit.error <= POOR_FIT:
        where = "the knee" if knee else f"{name} {at.value}"
        yield _describe_fit(fit, points[0].row, at.row, where)
    state = _describe_state(at.row)
    if state:
        yield f"There it {state}."
    if knee is not None:
        yield from _describe_end(name, rows, points)


def _describe_knee(name: str, points: Sequence[Measured], knee: Knee) -> str:
    """Say where the knee is, and where else it could be."""
    best = _describe_place(find_best(points))
    told = f"The knee is at {name} {knee.value}: the smallest within 5 % of the best ({best})."
    if knee.could_be:
        told += f" By the 95 % intervals it could also be {join_or([str(v) for v in knee.could_be])}."
    return told


def _describe_rising(sweep: Sweep, rows: Sequence[SweepRow], points: Sequence[Measured], of: str = "") -> str:
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


def _describe_point_rate(row: SweepRow) -> str:
    """Return 4.7 ± 1.0 % images/s, or that the ± is not known."""
    told = f"{describe_rate(row.images_per_second or 0, row.ci95)} images/s"
    return told if row.ci95 else f"{told} (no interval)"


def _describe_place(point: Measured) -> str:
    """Return 4.7 ± 1.0 % images/s at 8, for brackets."""
    told = f"{describe_rate(point.rate, point.row.ci95)} images/s at {point.value}"
    return told if point.row.ci95 else f"{told}, no interval"


def _describe_fit(fit: StepFit, smallest: SweepRow, at: SweepRow, where: str) -> str:
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


def _describe_state(row: SweepRow) -> str:
    """Say how near to the peak a point is, and what memory it takes; nothing where neither is known."""
    peak = _describe_peak(row)
    memory = f"takes {format_bytes(row.memory_bytes)} at most" if row.memory_bytes else ""
    between = ", and " if "," in peak else " and "
    return between.join(part for part in (peak, memory) if part)


def _describe_peak(row: SweepRow) -> str:
    if row.mfu is None:
        return ""
    limit = f", limited by {row.limit}" if row.limit not in (None, "unknown") else ""
    return f"reaches {format_percent(row.mfu, 0)} of the measured peak{limit}"


def _describe_end(name: str, rows: Sequence[SweepRow], points: Sequence[Measured]) -> Iterator[str]:
    """Say what happens at the upper end of a curve with a knee: memory ends it, or the speed falls."""
    best, last = find_best(points), points[-1]
    full = list_full(rows, last)
    if full:
        yield f"Memory ends it: {name} {full[0]} does not fit."
    if is_behind(last, best):
        share = format_percent(last.rate / best.rate, 0)
        unsure = "" if have_intervals(best, last) else " (no interval)"
        yield f"Beyond {best.value} it falls: {share} of the best at {name} {last.value}{unsure}."


def _describe_choice(sweep: Sweep, rows: Sequence[SweepRow]) -> Iterator[str]:
    """Sentences on values without an order: the best, and how far the others are."""
    points = sorted(list_measured(rows), key=lambda point: -point.rate)
    if len(points) < 2:
        return
    # A number alone would not say what it is
    name = f"{name_key(sweep.key)} " if is_numeric([point.value for point in points]) else ""
    best, *others = points
    yield f"{name}{format_setting(best.value)} is the fastest: {_describe_point_rate(best.row)}."
    for point in others:
        share = format_percent(point.rate / best.rate, 0)
        apart = "" if point.high < best.low else "; the intervals overlap: not told apart"
        if not have_intervals(point, best):
            apart = "; without intervals that is not judged"
        rate = describe_rate(point.rate, point.row.ci95)
        yield f"{name}{format_setting(point.value)} has {rate} images/s, {share} of it{apart}."


def _describe_doubts(sweep: Sweep) -> Iterator[str]:
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
        return f"{title}: fastest with {label_row(sweep, fastest)}: {_describe_point_rate(fastest)}{done}"
    curves.sort(key=lambda one: -find_best(one[0]).rate)
    told = [_describe_briefly(sweep, *one, alone=len(curves) == 1) for one in curves]
    return f"{title}: {'; '.join(told)}{done}"


def _describe_briefly(
    sweep: Sweep, points: Sequence[Measured], rows: Sequence[SweepRow], curve: Any, *, alone: bool
) -> str:
    """A curve in the verdict; how near to the peak it comes only where there is no other."""
    of = "" if sweep.curve_key is None else f" with {name_key(sweep.curve_key)} {format_setting(curve)}"
    best, knee = find_best(points), find_knee(points)
    if knee is None:
        at, told = best, f"no knee {_describe_rising(sweep, rows, points, of)}"
    else:
        at = next(point for point in points if point.value == knee.value)
        told = f"knee at {name_key(sweep.key)} {at.value}{of}: {_describe_point_rate(at.row)}"
        if alone:
            share = format_percent(knee.share_of_best, 0)
            told += ", the best" if at is best else f", {share} of the best ({_describe_place(best)})"
    peak = _describe_peak(at.row) if alone else ""
    return "; ".join(part for part in (told, peak) if part)
