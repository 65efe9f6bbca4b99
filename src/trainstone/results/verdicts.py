"""Every sentence about a whole run: the verdict of each kind, and what a sweep means. Pure: numbers in, text out."""

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median

from trainstone import units
from trainstone.machine.health import Noise
from trainstone.results import feeding as fed
from trainstone.results import learning, schema
from trainstone.results import sweep as swept
from trainstone.results.anchors import describe_share, is_published
from trainstone.results.feeding import Feeding
from trainstone.results.profiled import Timeline
from trainstone.results.quality import Evaluation, Quality, Repeated
from trainstone.results.summary import describe_interval, describe_rate
from trainstone.results.sweep import Knee, StepFit, Sweep, SweepRow

BUSY_SHARE = 0.8
"""Threads that keep less of their cores busy than this wait for something else, and more cores would not help."""
JUDGEMENTS: tuple[schema.Judgement, ...] = ("faster", "slower", "no difference shown", "not judged")


def write_verdict(
    title: str,
    throughput: schema.Throughput,
    utilisation: schema.Utilisation | None,
    noise: Noise | None,
    *,
    device_kind: str,
    precision: str,
    feeding: str = "",
    ranks: int = 1,
) -> str:
    """One sentence that can be quoted; of several ranks the throughput is that of all, the utilisation rank 0's."""
    on_ranks, whose = (f" on {ranks} ranks", "the first") if ranks > 1 else ("", "this")
    rate = f"{title}: {units.format_rate(throughput.images_per_second)} images/s{on_ranks}"
    parts = [f"{rate} {describe_interval(throughput)}"]
    if utilisation is not None and utilisation.mfu is not None:
        share = units.format_percent(utilisation.mfu, 0)
        parts.append(f"{share} of {whose} {device_kind}'s measured {precision} peak")
    if utilisation is not None and utilisation.limit not in (None, "unknown"):
        parts.append(f"limited by {utilisation.limit}")
    if not throughput.steady and throughput.trend_percent is not None:
        parts.append("not steady")
    parts += [feeding] if feeding else []
    parts += [f"noise grade {noise.grade}"] if noise else []
    return "; ".join(parts)


def write_profile_verdict(title: str, timeline: Timeline) -> str:
    runs = "operators run" if timeline.device == "cpu" else "a kernel runs"
    parts = [f"{title}: {runs} for {units.format_percent(timeline.compute_utilisation)} of the step"]
    roofline = timeline.roofline.told if timeline.roofline else []
    parts += [told[:1].lower() + told[1:] for told in roofline[:1] or timeline.told[1:2]]
    if timeline.overhead is not None:
        share, noise = timeline.overhead.share, timeline.overhead.noise
        cost = units.format_percent(share) if share > noise else f"less than the noise ({units.format_percent(noise)})"
        parts.append(f"profiling costs {cost}")
    return "; ".join(part.rstrip(".") for part in parts)


def write_runs_verdict(
    title: str, combined: schema.Throughput, loaders: Sequence[schema.Loader], noise: Noise | None
) -> str:
    verdict = f"{title}: {units.format_rate(combined.images_per_second)} images/s {describe_interval(combined)}"
    if loaders:
        verdict += f"; data-bound in {sum(loader.data_bound for loader in loaders)} of {len(loaders)} runs"
    return verdict if noise is None else f"{verdict}; worst noise grade {noise.grade}"


def write_eval_verdict(title: str, evaluation: Evaluation, metric: str, origin: str) -> str:
    """Return ResNet-18: 92.4 % top-1, 99.1 % top-5 on 1,000 pictures (from step 1,250 of RUN)."""
    shown = [metric, *(name for name in evaluation.metrics if name in learning.TOLD and name != metric)]
    told = ", ".join(learning.describe_metric(name, evaluation.metrics[name]) for name in shown)
    return f"{title}: {told} on {units.format_count(evaluation.images, 'picture')} (from {origin})"


def write_learning_verdict(
    quality: Quality | None,
    status: schema.Status,
    phases: schema.Phases | None,
    title: str,
    *,
    stopped_by: str = "a signal",
    run: str = "RUN",
) -> str:
    """One sentence that can be quoted: the best value, how the run ended, and how to resume it where it did not."""
    told, resume = "not evaluated yet", f"resume it with trainstone train --resume {run}"
    endings = {
        "interrupted": f"; stopped by {stopped_by}; {resume}",
        "killed": f"; killed; {resume}",
        "failed": "; failed",
        "running": "; still running",
    }
    if quality is not None and quality.value is None:
        steps = "" if quality.steps is None else f"{units.format_count(quality.steps, 'step')}, "
        told = f"trained {steps}{learning.format_epochs(quality.epochs)}; not evaluated"
    elif quality is not None and quality.value is not None and quality.history:
        value = learning.describe_metric(quality.metric, quality.value, quality.target)
        target = "" if quality.target is None else learning.format_target(quality.metric, quality.target)
        told = f"{value} (target {target})" if status == "target_reached" else f"best {value}"
        told += f" after {learning.format_epochs(quality.epochs)}"
        endings["target_missed"] = f"; the target of {target} was not reached"
    if status in endings:
        told += endings[status]
    elif quality is not None and quality.value is not None and phases is not None:
        total = learning.total_time(quality, phases)
        told += f", in {units.format_seconds(total)}: {learning.describe_split(phases, total)}"
    return f"{title}: {told}"


def describe_goal(quality: Quality) -> str:
    assert quality.target is not None
    return f"{learning.format_target(quality.metric, quality.target)} {learning.name_metric(quality.metric)}"


def write_repeated_verdict(repeated: Repeated, quality: Quality | None, title: str) -> str:
    """One sentence that can be quoted: how many runs reached the target and when, or the median of the best values."""
    over = [run for run in repeated.runs if run.status in schema.FINISHED]
    if quality is None or not over:
        return f"{title}: none of {repeated.num_runs} runs has come to its end"
    values = [run.value for run in over if run.value is not None and not run.reached]
    if quality.target is None:
        told = f"trained {learning.format_epochs(quality.epochs)} in {units.format_count(len(over), 'run')}"
        if values and quality.value is not None:
            low, high = (learning.format_metric(quality.metric, value) for value in (min(values), max(values)))
            told += f", best {learning.describe_metric(quality.metric, quality.value)} ({low} to {high})"
    else:
        times = [run.seconds_to_target for run in over if run.seconds_to_target is not None]
        told = f"{len(times)} of {len(over)} runs reached {describe_goal(quality)}"
        if times:
            middle, least, most = (units.format_seconds(pick(times)) for pick in (median, min, max))
            olympic = repeated.score_seconds
            score = "" if olympic is None else f"; olympic mean {units.format_seconds(olympic)}"
            told += f", in {middle} ({least} to {most}{score})"
        if values:
            best = learning.format_metric(quality.metric, max(values), quality.target)
            told += f"; the best that missed it found {best}"
    under_way = "" if learning.is_complete(repeated) else f"{len(over)} of {repeated.num_runs} runs are over: "
    return f"{title}: {under_way}{told}"


def write_data_verdict(feeding: Feeding, workload: str = "") -> str:
    """One sentence that can be quoted; `workload` is what trains ("ResNet-50")."""
    best, stage = fed.best_point(feeding), fed.largest_stage(feeding)
    where = f"{units.format_count(best.threads, 'thread')} on {units.format_count(feeding.cores, 'core')}"
    per_core = units.format_rate(best.images_per_second_per_core)
    parts = [f"{units.format_rate(best.images_per_second)} images/s with {where} ({per_core} a core)"]
    usable = min(best.threads, feeding.cores)
    if best.cpu_cores is not None and best.cpu_cores < BUSY_SHARE * usable:
        parts.append(f"only {best.cpu_cores:.1f} of {units.format_count(usable, 'core')} busy")
    if stage is not None:
        parts.append(f"{fed.WORK.get(stage.name, stage.name)} takes {units.format_percent(stage.share, 0)} of the time")
    if feeding.demand is not None:
        parts.append(fed.describe_demand(feeding, feeding.demand, workload or "training"))
    return "; ".join(parts)


def write_row_verdict(row: schema.ComparisonRow) -> str:
    """Return e.g. A (x=1) is 1.062 times as fast as B (x=2) (1.041 … 1.083; 95 %, interleaved blocks): faster."""
    claim = f"A ({row.a.label}) is {units.format_ratio(row.ratio)} times as fast as B ({row.b.label})"
    if row.ci95 is None:
        return f"{claim} (interval {row.ci_covers}): {row.judgement}"
    ends = units.format_interval(row.ci95, units.format_ratio)
    return f"{claim} ({ends}; 95 %, {row.ci_covers}): {row.judgement}"


def write_comparison_verdict(rows: Sequence[schema.ComparisonRow], mean: float | None) -> str:
    """One sentence that can be quoted: the row, or of several how many were judged how."""
    judged, published = [row for row in rows if not is_published(row)], [row for row in rows if is_published(row)]
    sentences = []
    if len(judged) == 1:
        sentences.append(write_row_verdict(judged[0]))
    elif judged and mean is not None:
        counts = Counter(row.judgement for row in judged)
        told = ", ".join(f"{counts[name]} {name}" for name in JUDGEMENTS if counts[name])
        sentences.append(f"{len(judged)} rows: {told}; geometric mean {units.format_ratio(mean)}")
    if len(published) == 1:
        (row,) = published
        figure = f"the published {row.b.label} figure, {units.format_rate(row.b.images_per_second)} images/s a device"
        sentences.append(f"A ({row.a.label}) reaches {describe_share(row)} of {figure}: not judged")
    elif published:
        least, most = (units.format_share(pick(row.ratio for row in published)) for pick in (min, max))
        sentences.append(f"A reaches {least} to {most} of {len(published)} published figures, device by device")
    return "; ".join(sentences)


def judge_sweep(sweep: Sweep) -> Sweep:
    ordered = swept.has_order(sweep)
    knees, fits, told = [], [], []
    for curve, rows in swept.split_curves(sweep):
        points = swept.list_measured(rows)
        knee = swept.find_knee(points, curve) if ordered else None
        fit = swept.fit_steps(points, curve) if ordered and sweep.key == swept.BATCH else None
        prefix = "" if sweep.curve_key is None else f"{swept.label_point(sweep.curve_key, curve)}: "
        if len(points) > 1:
            sentences = _explain_curve(sweep, rows, knee, fit) if ordered else _explain_choice(sweep, points)
            told += [prefix + sentence for sentence in sentences]
        knees += [knee] if knee else []
        fits += [fit] if fit else []
    return sweep.model_copy(update={"knees": knees, "fits": fits, "told": told})


def write_sweep_verdict(sweep: Sweep, title: str) -> str | None:
    if not swept.list_measured(sweep.rows):
        return None
    curves = [(curve, swept.list_measured(rows)) for curve, rows in swept.split_curves(sweep)]
    curves = [(curve, points) for curve, points in curves if len(points) > 1 and swept.has_order(sweep)]
    told = []
    for curve, points in sorted(curves, key=lambda item: -swept.find_fastest(item[1]).rate):
        of = "" if sweep.curve_key is None else f"{swept.label_point(sweep.curve_key, curve)}: "
        told.append(of + _describe_knee(sweep, points, swept.find_knee(points, curve)))
    if not told:
        fastest = swept.find_fastest(sweep.rows)
        told = [f"fastest with {swept.label_row(sweep, fastest)}: {_describe_rate(fastest)}"]
    done = "" if len(sweep.rows) >= sweep.num_points else f" ({len(sweep.rows)} of {sweep.num_points} points)"
    return f"{title}: {'; '.join(told)}{done}"


def _describe_rate(row: SweepRow) -> str:
    return f"{describe_rate(row.rate, row.ci95)} images/s" + ("" if row.ci95 else " (no interval)")


def _describe_knee(sweep: Sweep, points: Sequence[SweepRow], knee: Knee | None) -> str:
    if knee is None:
        last = points[-1]
        return f"no knee up to {swept.label_point(sweep.key, last.value)}: {_describe_rate(last)}, still rising"
    at = next(point for point in points if point.value == knee.value)
    fastest, share = swept.find_fastest(points), units.format_percent(knee.share_of_best, 0)
    best = f"{share} of the best ({describe_rate(fastest.rate, fastest.ci95)} at {knee.best_value})"
    return f"knee at {swept.label_point(sweep.key, knee.value)}: {_describe_rate(at)}, {best}"


def _explain_curve(sweep: Sweep, rows: Sequence[SweepRow], knee: Knee | None, fit: StepFit | None) -> Iterator[str]:
    """Sentences on a curve of at least two points whose values have an order."""
    points = swept.list_measured(rows)
    told = _describe_knee(sweep, points, knee)
    yield f"{told[:1].upper()}{told[1:]}."
    if knee and knee.could_be:
        yield f"By the 95 % intervals the knee could also be at {', '.join(map(str, knee.could_be))}."
    at = next((point for point in points if knee and point.value == knee.value), points[-1])
    if fit is not None and fit.error <= swept.POOR_FIT:
        cost = f"{units.format_seconds(fit.fixed_seconds)} and {units.format_seconds(fit.seconds_per_image)} an image"
        fitted = f"fitted to {fit.points} points within {units.format_percent(max(fit.error, 1e-3))}"
        shares = []
        for row in (points[0], at):
            whole = fit.fixed_seconds + fit.seconds_per_image * (row.images_per_step or 0)
            share = units.format_percent(fit.fixed_seconds / whole if whole > 0 else 0.0, 0)
            shares.append(f"{share} at {swept.label_point(sweep.key, row.value)}")
        yield f"A step costs {cost} ({fitted}); the fixed part is {' and '.join(dict.fromkeys(shares))}."
    if at.mfu is not None:
        limit = f", limited by {at.limit}" if at.limit not in (None, "unknown") else ""
        yield f"There it reaches {units.format_percent(at.mfu, 0)} of the measured peak{limit}."
    full = [row.value for row in rows if row.status == "out_of_memory" and row.value > points[-1].value]
    if full:
        yield f"Memory ends it: {swept.label_point(sweep.key, min(full))} does not fit."
    best = swept.find_fastest(points)
    if swept.is_behind(points[-1], best):
        share = units.format_percent(points[-1].rate / best.rate, 0)
        yield f"Beyond {best.value} it falls: {share} of the best at {swept.label_point(sweep.key, points[-1].value)}."


def _explain_choice(sweep: Sweep, points: Sequence[SweepRow]) -> Iterator[str]:
    best, *others = sorted(points, key=lambda point: -point.rate)
    yield f"{swept.label_point(sweep.key, best.value)} is the fastest: {_describe_rate(best)}."
    for point in others:
        share = units.format_percent(point.rate / best.rate, 0)
        apart = point.ci95 and best.ci95 and point.ci95[1] < best.ci95[0]
        unclear = "" if apart else "; the intervals do not tell them apart"
        yield f"{swept.label_point(sweep.key, point.value)} has {_describe_rate(point)}, {share} of it{unclear}."


def join_labels(sweep: Sweep, rows: Sequence[SweepRow]) -> str:
    return ", ".join(swept.label_row(sweep, row) for row in rows)
