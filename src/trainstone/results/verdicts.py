"""Every sentence that result.json holds but for findings: verdicts, and what a sweep, a profile or a table means.

Pure: numbers in, text out. Findings are made beside what they judge (results/findings.py).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from trainstone import units
from trainstone.machine.noise import Noise
from trainstone.results import loader_speed, step_parts, training
from trainstone.results.knee import (
    POOR_FIT,
    find_fastest,
    find_knee,
    fit_steps,
    has_order,
    is_behind,
    label_point,
    label_row,
    list_measured,
    split_curves,
)
from trainstone.results.published import describe_share, is_published
from trainstone.results.schema import run as schema
from trainstone.results.schema import sweep as swept
from trainstone.results.schema.data_bench import DataBenchResult
from trainstone.results.schema.quality import Evaluation, Quality, Repeated
from trainstone.results.schema.sweep import Knee, StepFit, Sweep, SweepRow
from trainstone.results.schema.timeline import RooflinePoint, StepParts, Timeline
from trainstone.results.step_summary import describe_interval, describe_rate
from trainstone.stats.ratio import RatioOutcome

BUSY_SHARE = 0.8
"""Threads that keep less of their cores busy than this wait for something else, and more cores would not help."""
OUTCOMES: tuple[RatioOutcome, ...] = ("faster", "slower", "no difference shown", "not assessed")
IDLE = {
    "launch": "launch-bound (the host is not fast enough in giving out work: larger batches, engine.compile or "
    "engine.cuda_graphs help)",
    "data_wait": "waiting for data",
    "synchronisation": "synchronising (the host waits for the device before it gives out more)",
    "host": "Python between operators",
    "unaccounted": "not accounted for",
}
BETWEEN = {"host": "is Python between them", "data_wait": "is waiting for data", "unaccounted": "is not accounted for"}
LONG_SHARE = 0.05  # operators that take less of the step have no sentence
MOST_SENTENCES = 5
NAME_LENGTH = 40
FAR_FROM_ROOF = 0.3  # what is so far below its roof is bound by neither: by threads, caches, latency, overhead


def write_verdict(
    title: str,
    throughput: schema.Throughput,
    utilisation: schema.Utilisation | None,
    noise: Noise | None,
    *,
    peak: str = "",
    feeding: str = "",
    ranks: int = 1,
) -> str:
    """One sentence that can be quoted; of several ranks the throughput is that of all, the utilisation rank 0's.

    `peak`: what the utilisation is a share of, such as "CPU's measured bf16 peak".
    """
    on_ranks, whose = (f" on {ranks} ranks", "the first") if ranks > 1 else ("", "this")
    rate = f"{title}: {units.format_rate(throughput.images_per_second)} images/s{on_ranks}"
    parts = [f"{rate} {describe_interval(throughput)}"]
    if utilisation is not None and utilisation.mfu is not None:
        share = units.format_percent(utilisation.mfu, 0)
        parts.append(f"{share} of {whose} {peak}")
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
    roofline = timeline.roofline.sentences if timeline.roofline else []
    parts += [message[:1].lower() + message[1:] for message in roofline[:1] or timeline.sentences[1:2]]
    if timeline.overhead is not None:
        share, noise = timeline.overhead.share, timeline.overhead.noise
        cost = units.format_percent(share) if share > noise else f"less than the noise ({units.format_percent(noise)})"
        parts.append(f"profiling costs {cost}")
    return "; ".join(part.rstrip(".") for part in parts)


def write_runs_verdict(
    title: str, combined: schema.Throughput, loaders: Sequence[schema.LoaderResult], noise: Noise | None
) -> str:
    verdict = f"{title}: {units.format_rate(combined.images_per_second)} images/s {describe_interval(combined)}"
    if loaders:
        verdict += f"; data-bound in {sum(loader.data_bound for loader in loaders)} of {len(loaders)} runs"
    return verdict if noise is None else f"{verdict}; worst noise grade {noise.grade}"


def write_eval_verdict(title: str, evaluation: Evaluation, metric: str, origin: str) -> str:
    """Return ResNet-18: 92.4 % top-1, 99.1 % top-5 on 1,000 images (from step 1,250 of RUN)."""
    shown = [metric, *(name for name in evaluation.metrics if name in training.MESSAGE and name != metric)]
    message = ", ".join(training.describe_metric(name, evaluation.metrics[name]) for name in shown)
    return f"{title}: {message} on {units.format_count(evaluation.images, 'image')} (from {origin})"


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
    message, resume = "not evaluated yet", f"resume it with trainstone train --resume {run}"
    endings = {
        "interrupted": f"; stopped by {stopped_by}; {resume}",
        "killed": f"; killed; {resume}",
        "failed": "; failed",
        "running": "; still running",
    }
    if quality is not None and quality.value is None:
        steps = "" if quality.steps is None else f"{units.format_count(quality.steps, 'step')}, "
        message = f"trained {steps}{training.format_epochs(quality.epochs)}; not evaluated"
    elif quality is not None and quality.value is not None and quality.history:
        value = training.describe_metric(quality.metric, quality.value, quality.target)
        target = "" if quality.target is None else training.format_target(quality.metric, quality.target)
        message = f"{value} (target {target})" if status == "target_reached" else f"best {value}"
        message += f" after {training.format_epochs(quality.epochs)}"
        endings["target_missed"] = f"; the target of {target} was not reached"
    if status in endings:
        message += endings[status]
    elif quality is not None and quality.value is not None and phases is not None:
        total = training.total_time(quality, phases)
        message += f", in {units.format_seconds(total)}: {training.describe_split(phases, total)}"
    return f"{title}: {message}"


def describe_goal(quality: Quality) -> str:
    assert quality.target is not None
    return f"{training.format_target(quality.metric, quality.target)} {training.name_metric(quality.metric)}"


def write_repeated_verdict(repeated: Repeated, quality: Quality | None, title: str) -> str:
    """One sentence that can be quoted: how many runs reached the target and when, or the median of the best values."""
    over = [run for run in repeated.runs if run.status in schema.FINISHED]
    if quality is None or not over:
        return f"{title}: none of {repeated.num_runs} runs has come to its end"
    values = [run.value for run in over if run.value is not None and not run.reached]
    if quality.target is None:
        message = f"trained {training.format_epochs(quality.epochs)} in {units.format_count(len(over), 'run')}"
        if values and quality.value is not None:
            low, high = (training.format_metric(quality.metric, value) for value in (min(values), max(values)))
            message += f", best {training.describe_metric(quality.metric, quality.value)} ({low} to {high})"
    else:
        times = [run.seconds_to_target for run in over if run.seconds_to_target is not None]
        message = f"{len(times)} of {len(over)} runs reached {describe_goal(quality)}"
        if times:
            middle, least, most = (units.format_seconds(pick(times)) for pick in (median, min, max))
            olympic = repeated.score_seconds
            score = "" if olympic is None else f"; olympic mean {units.format_seconds(olympic)}"
            message += f", in {middle} ({least} to {most}{score})"
        if values:
            best = training.format_metric(quality.metric, max(values), quality.target)
            message += f"; the best that missed it found {best}"
    under_way = "" if training.is_complete(repeated) else f"{len(over)} of {repeated.num_runs} runs are over: "
    return f"{title}: {under_way}{message}"


def write_data_verdict(feeding: DataBenchResult, workload: str = "") -> str:
    """One sentence that can be quoted; `workload` is what trains ("ResNet-50")."""
    best, stage = loader_speed.best_point(feeding), loader_speed.largest_stage(feeding)
    where = f"{units.format_count(best.threads, 'thread')} on {units.format_count(feeding.cores, 'core')}"
    per_core = units.format_rate(best.images_per_second_per_core)
    parts = [f"{units.format_rate(best.images_per_second)} images/s with {where} ({per_core} a core)"]
    usable = min(best.threads, feeding.cores)
    if best.cpu_cores is not None and best.cpu_cores < BUSY_SHARE * usable:
        parts.append(f"only {best.cpu_cores:.1f} of {units.format_count(usable, 'core')} busy")
    if stage is not None:
        parts.append(
            f"{loader_speed.WORK.get(stage.name, stage.name)} takes {units.format_percent(stage.share, 0)} of the time"
        )
    if feeding.demand is not None:
        parts.append(loader_speed.describe_demand(feeding, feeding.demand, workload or "training"))
    return "; ".join(parts)


def write_row_verdict(row: schema.ComparisonRow) -> str:
    """Return e.g. A (x=1) is 1.062 times as fast as B (x=2) (1.041 … 1.083; 95 %, interleaved blocks): faster."""
    claim = f"A ({row.a.label}) is {units.format_ratio(row.ratio)} times as fast as B ({row.b.label})"
    if row.ci95 is None:
        return f"{claim} (interval {row.ci_covers}): {row.outcome}"
    ends = units.format_interval(row.ci95, units.format_ratio)
    return f"{claim} ({ends}; 95 %, {row.ci_covers}): {row.outcome}"


def write_comparison_verdict(rows: Sequence[schema.ComparisonRow], mean: float | None) -> str:
    """One sentence that can be quoted: the row, or of several how many were judged how."""
    evaluated, published = [row for row in rows if not is_published(row)], [row for row in rows if is_published(row)]
    sentences = []
    if len(evaluated) == 1:
        sentences.append(write_row_verdict(evaluated[0]))
    elif evaluated and mean is not None:
        counts = Counter(row.outcome for row in evaluated)
        message = ", ".join(f"{counts[name]} {name}" for name in OUTCOMES if counts[name])
        sentences.append(f"{len(evaluated)} rows: {message}; geometric mean {units.format_ratio(mean)}")
    if len(published) == 1:
        (row,) = published
        figure = f"the published {row.b.label} figure, {units.format_rate(row.b.images_per_second)} images/s a device"
        sentences.append(f"A ({row.a.label}) reaches {describe_share(row)} of {figure}: not assessed")
    elif published:
        least, most = (units.format_share(pick(row.ratio for row in published)) for pick in (min, max))
        sentences.append(f"A reaches {least} to {most} of {len(published)} published figures, device by device")
    return "; ".join(sentences)


def assess_sweep(sweep: Sweep) -> Sweep:
    ordered = has_order(sweep)
    knees, fits, message = [], [], []
    for curve, rows in split_curves(sweep):
        points = list_measured(rows)
        found = find_knee(points, curve) if ordered else None
        fit = fit_steps(points, curve) if ordered and sweep.key == swept.BATCH else None
        prefix = "" if sweep.curve_key is None else f"{label_point(sweep.curve_key, curve)}: "
        if len(points) > 1:
            sentences = _explain_curve(sweep, rows, found, fit) if ordered else _explain_choice(sweep, points)
            message += [prefix + sentence for sentence in sentences]
        knees += [found] if found else []
        fits += [fit] if fit else []
    return sweep.model_copy(update={"knees": knees, "fits": fits, "sentences": message})


def write_sweep_verdict(sweep: Sweep, title: str) -> str | None:
    if not list_measured(sweep.rows):
        return None
    curves = [(curve, list_measured(rows)) for curve, rows in split_curves(sweep)]
    curves = [(curve, points) for curve, points in curves if len(points) > 1 and has_order(sweep)]
    message = []
    for curve, points in sorted(curves, key=lambda item: -find_fastest(item[1]).rate):
        of = "" if sweep.curve_key is None else f"{label_point(sweep.curve_key, curve)}: "
        message.append(of + _describe_knee(sweep, points, find_knee(points, curve)))
    if not message:
        fastest = find_fastest(sweep.rows)
        message = [f"fastest with {label_row(sweep, fastest)}: {_describe_rate(fastest)}"]
    done = "" if len(sweep.rows) >= sweep.num_points else f" ({len(sweep.rows)} of {sweep.num_points} points)"
    return f"{title}: {'; '.join(message)}{done}"


def _describe_rate(row: SweepRow) -> str:
    return f"{describe_rate(row.rate, row.ci95)} images/s" + ("" if row.ci95 else " (no interval)")


def _describe_knee(sweep: Sweep, points: Sequence[SweepRow], knee: Knee | None) -> str:
    if knee is None:
        last = points[-1]
        return f"no knee up to {label_point(sweep.key, last.value)}: {_describe_rate(last)}, still rising"
    at = next(point for point in points if point.value == knee.value)
    fastest, share = find_fastest(points), units.format_percent(knee.share_of_best, 0)
    best = f"{share} of the best ({describe_rate(fastest.rate, fastest.ci95)} at {knee.best_value})"
    return f"knee at {label_point(sweep.key, knee.value)}: {_describe_rate(at)}, {best}"


def _explain_curve(sweep: Sweep, rows: Sequence[SweepRow], knee: Knee | None, fit: StepFit | None) -> Iterator[str]:
    """Sentences on a curve of at least two points whose values have an order."""
    points = list_measured(rows)
    message = _describe_knee(sweep, points, knee)
    yield f"{message[:1].upper()}{message[1:]}."
    if knee and knee.could_be:
        yield f"By the 95 % intervals the knee could also be at {', '.join(map(str, knee.could_be))}."
    at = next((point for point in points if knee and point.value == knee.value), points[-1])
    if fit is not None and fit.error <= POOR_FIT:
        cost = f"{units.format_seconds(fit.fixed_seconds)} and {units.format_seconds(fit.seconds_per_image)} an image"
        fitted = f"fitted to {fit.points} points within {units.format_percent(max(fit.error, 1e-3))}"
        shares = []
        for row in (points[0], at):
            whole = fit.fixed_seconds + fit.seconds_per_image * (row.images_per_step or 0)
            share = units.format_percent(fit.fixed_seconds / whole if whole > 0 else 0.0, 0)
            shares.append(f"{share} at {label_point(sweep.key, row.value)}")
        yield f"A step costs {cost} ({fitted}); the fixed part is {' and '.join(dict.fromkeys(shares))}."
    if at.mfu is not None:
        limit = f", limited by {at.limit}" if at.limit not in (None, "unknown") else ""
        yield f"There it reaches {units.format_percent(at.mfu, 0)} of the measured peak{limit}."
    full = [row.value for row in rows if row.status == "out_of_memory" and row.value > points[-1].value]
    if full:
        yield f"Memory ends it: {label_point(sweep.key, min(full))} does not fit."
    best = find_fastest(points)
    if is_behind(points[-1], best):
        share = units.format_percent(points[-1].rate / best.rate, 0)
        yield f"Beyond {best.value} it falls: {share} of the best at {label_point(sweep.key, points[-1].value)}."


def _explain_choice(sweep: Sweep, points: Sequence[SweepRow]) -> Iterator[str]:
    best, *others = sorted(points, key=lambda point: -point.rate)
    yield f"{label_point(sweep.key, best.value)} is the fastest: {_describe_rate(best)}."
    for point in others:
        share = units.format_percent(point.rate / best.rate, 0)
        apart = point.ci95 and best.ci95 and point.ci95[1] < best.ci95[0]
        unclear = "" if apart else "; the intervals do not tell them apart"
        yield f"{label_point(sweep.key, point.value)} has {_describe_rate(point)}, {share} of it{unclear}."


def join_labels(sweep: Sweep, rows: Sequence[SweepRow]) -> str:
    return ", ".join(label_row(sweep, row) for row in rows)


def describe_trace(
    steps: Sequence[StepParts], *, device: str | None, marked: bool, has_phases: bool, num_devices: int
) -> list[str]:
    """Say how busy the judged device is, or a CPU (None), what its gaps come from, and what the trace lacks."""
    runs = f"Operators run for {units.format_percent(step_parts.share_of(steps, 'kernel_running'))} of the step"
    busy = step_parts.share_of(steps, "busy")
    causes = [
        f"{units.format_share(share)} {words}"
        for part, words in (IDLE if device is not None else BETWEEN).items()
        if (share := step_parts.share_of(steps, part)) > step_parts.MIN_SHARE
    ]
    if device is None:
        sentences = ["; ".join([runs, *causes]) + "."]
    elif 1 - busy > step_parts.MIN_SHARE and causes:
        sentences = [f"The device is idle for {units.format_share(1 - busy)} of the step: {', '.join(causes)}."]
    else:
        sentences = [f"The device is busy for {units.format_percent(busy)} of the step."]
    if (total := step_parts.share_of(steps, "communication_total")) > step_parts.MIN_SHARE:
        hidden, exposed = step_parts.share_of(steps, "overlap") / total, step_parts.share_of(steps, "communication")
        rest = f"; the rest takes {units.format_share(exposed)} of the step" if exposed > step_parts.MIN_SHARE else ""
        sentences.append(f"{units.format_percent(hidden, 0)} of communication is hidden behind compute{rest}.")
    if not marked:
        sentences.append("The trace has no marks of steps (ProfilerStep#), so all of it counts as one.")
    if not has_phases and step_parts.share_of(steps, "unaccounted") > step_parts.MIN_SHARE:
        python = "Python between operators is in what is not accounted for"
        sentences.append(f"It has no marks of forward and backward: {python}.")
    if num_devices > 1:
        others = units.format_count(num_devices - 1, "other device")
        sentences.append(f"Judged is device {device}, which works most; {others} in the trace, too.")
    return sentences


def describe_roofline(operators: Sequence[RooflinePoint], step_seconds: float) -> list[str]:
    """Say how near to their roofs the operators are that take most of the step, and what all would take there."""
    longest = [point for point in operators if point.seconds >= LONG_SHARE * step_seconds][:MOST_SENTENCES]
    spent = sum(point.seconds for point in operators)
    # What is above its roof, by caches, would not get slower: it is taken as it is.
    ideal = sum(point.seconds * min(1.0, point.share_of_bound) for point in operators)
    message = []
    for point in longest:
        reached, name = point.share_of_bound, step_parts.shorten(step_parts.name_plainly(point.operator), NAME_LENGTH)
        roof = "peak" if point.bound == "compute" else "memory bandwidth"
        if "::" not in name:  # names of a trace keep their spelling
            name = name[:1].upper() + name[1:]
        only = "only " if reached < FAR_FROM_ROOF else ""
        speed = f"reaches {only}{_percent(reached)} of the measured {roof}"
        if reached > 1:
            speed = f"works at {reached:.3g} times the measured {roof}: caches or a cheaper algorithm explain it, or "
            speed += "the roof was measured too low"
        message.append(f"{name} takes {_percent(point.seconds / step_seconds)} of the step and {speed}.")
    evaluated = f"the operators judged here, {_percent(spent / step_seconds)} of the step,"
    return [*message, f"At their roofs {evaluated} would take {_percent(ideal / spent)} of their time."]


def describe_counters(
    num_kernels: int, num_weighed: int, cycles: str, taken: Mapping[str, tuple[str | None, int]]
) -> list[str]:
    """Say what ncu's file lacks; `taken` has each pipe's metric, if it is not the usual one, and its kernels."""
    message = []
    if skipped := num_kernels - num_weighed:
        message.append(f"{units.format_count(skipped, 'kernel')} of {num_kernels} without {cycles} left out")
    for pipe, (metric, measured) in taken.items():
        if metric is not None:
            message.append(f"{pipe} is {metric}")
        if measured < num_weighed:
            message.append(f"{pipe} was measured of {measured} of {num_weighed} kernels: the mean is theirs")
    return message


def describe_box_tables(
    counted: tuple[int, int, int], evaluator: str, *, all_sizes: bool, most_found: int, classes: tuple[int, int]
) -> dict[str, str]:
    """Return the notes of a detector's tables; `counted`: images, true and found boxes; `classes`: shown and all."""
    images, num_true, num_found = counted
    what = f"{units.format_count(images, 'image')} with {num_true:,} true and {num_found:,} found boxes"
    shown = f" Shown are the {classes[0]} of {classes[1]} classes with the most true boxes."
    return {
        "coco": f"{what}; counted by {evaluator}."
        + ("" if all_sizes else " Without a value: no true box of that size."),
        "precision-recall": "Mean of all classes that have true boxes. A found box is right if its overlap with a true "
        "one of its class (intersection over union) is at least what the line is called. The area below a line is its "
        "average precision.",
        "ap-by-size": "Size: the thing's own area, in pixels of its image. "
        f"Recall: of at most {most_found} found boxes an image and class.",
        "ap-by-class": "AP: mean of the overlaps 0.50 to 0.95. AP50: overlap 0.50." + shown * (classes[0] < classes[1]),
    }


def _percent(share: float) -> str:
    return units.format_percent(share, 0 if share >= 0.0995 else 1)
