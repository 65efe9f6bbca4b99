"""Format the sentences of result.json: verdicts, explanations of sweeps and profiles, notes of tables.

Pure: numbers in, text out. Findings are in results/findings.py.
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
"""Threads that keep a smaller share of their cores busy wait for something else; more cores would not help."""
OUTCOMES: tuple[RatioOutcome, ...] = ("faster", "slower", "no difference shown", "not assessed")
IDLE = {
    "launch": "launch-bound (the host launches work too slowly; larger batches, engine.compile or "
    "engine.cuda_graphs help)",
    "data_wait": "waiting for data",
    "synchronisation": "synchronising (the host waits for the device before it launches more work)",
    "host": "Python between operators",
    "unaccounted": "unaccounted",
}
BETWEEN = {"host": "is Python between them", "data_wait": "is waiting for data", "unaccounted": "is unaccounted"}
LONG_SHARE = 0.05  # operators with a smaller share of the step get no sentence
MAX_SENTENCES = 5
NAME_LENGTH = 40
FAR_FROM_ROOF = 0.3  # below this share neither compute nor memory limits: threads, caches, latency or overhead do


def format_verdict(
    title: str,
    throughput: schema.Throughput,
    utilisation: schema.Utilisation | None,
    noise: Noise | None,
    *,
    peak: str = "",
    loader: str = "",
    ranks: int = 1,
) -> str:
    """Format a run's verdict; with several ranks the throughput is the sum of all, the utilisation rank 0's.

    `peak`: what the utilisation is a share of, such as "CPU's measured bf16 peak".
    `loader`: how the input pipeline compares, such as "not data-bound: ...".
    """
    on_ranks = f" on {ranks} ranks" if ranks > 1 else ""
    rate = f"{title}: {units.format_rate(throughput.images_per_second)} images/s{on_ranks}"
    parts = [f"{rate} {describe_interval(throughput)}"]
    if utilisation is not None and utilisation.mfu is not None:
        share = units.format_percent(utilisation.mfu, 0)
        parts.append(f"{share} of this {peak}" if ranks == 1 else f"{share} of the {peak} on rank 0")
    if utilisation is not None and utilisation.limit not in (None, "unknown"):
        parts.append(f"limited by {utilisation.limit}")
    if not throughput.steady and throughput.trend_percent is not None:
        parts.append("not steady")
    parts += [loader] if loader else []
    parts += [f"noise grade {noise.grade}"] if noise else []
    return "; ".join(parts)


def format_profile_verdict(title: str, timeline: Timeline) -> str:
    runs = "operators run" if timeline.device == "cpu" else "a kernel runs"
    parts = [f"{title}: {runs} for {units.format_percent(timeline.compute_utilisation)} of the step"]
    roofline = timeline.roofline.sentences if timeline.roofline else []
    parts += [sentence[:1].lower() + sentence[1:] for sentence in roofline[:1] or timeline.sentences[1:2]]
    if timeline.overhead is not None:
        share, noise = timeline.overhead.share, timeline.overhead.noise
        cost = units.format_percent(share) if share > noise else f"less than the noise ({units.format_percent(noise)})"
        parts.append(f"profiling costs {cost}")
    return "; ".join(part.rstrip(".") for part in parts)


def format_runs_verdict(
    title: str, combined: schema.Throughput, loaders: Sequence[schema.LoaderResult], noise: Noise | None
) -> str:
    verdict = f"{title}: {units.format_rate(combined.images_per_second)} images/s {describe_interval(combined)}"
    if loaders:
        verdict += f"; data-bound in {sum(loader.data_bound for loader in loaders)} of {len(loaders)} runs"
    return verdict if noise is None else f"{verdict}; worst noise grade {noise.grade}"


def format_eval_verdict(title: str, evaluation: Evaluation, metric: str, origin: str) -> str:
    """Format e.g. ResNet-18: 92.4 % top-1, 99.1 % top-5 on 1,000 images (from step 1,250 of RUN)."""
    shown = [metric, *(name for name in evaluation.metrics if name in training.SENTENCE_METRICS and name != metric)]
    metrics = ", ".join(training.describe_metric(name, evaluation.metrics[name]) for name in shown)
    return f"{title}: {metrics} on {units.format_count(evaluation.images, 'image')} (from {origin})"


def format_training_verdict(
    quality: Quality | None,
    status: schema.Status,
    phases: schema.Phases | None,
    title: str,
    *,
    stopped_by: str = "a signal",
    run: str = "RUN",
) -> str:
    """Format a training run's verdict: the best value, how the run ended, and how to resume an unfinished one."""
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


def describe_target(quality: Quality) -> str:
    assert quality.target is not None
    return f"{training.format_target(quality.metric, quality.target)} {training.name_metric(quality.metric)}"


def format_repeated_verdict(repeated: Repeated, quality: Quality | None, title: str) -> str:
    """Format the verdict of train --runs: how many runs reached the target and when, or the median best value."""
    finished = [run for run in repeated.runs if run.status in schema.FINISHED]
    if quality is None or not finished:
        return f"{title}: none of {repeated.num_runs} runs has finished"
    values = [run.value for run in finished if run.value is not None and not run.reached]
    if quality.target is None:
        message = f"trained {training.format_epochs(quality.epochs)} in {units.format_count(len(finished), 'run')}"
        if values and quality.value is not None:
            low, high = (training.format_metric(quality.metric, value) for value in (min(values), max(values)))
            message += f", best {training.describe_metric(quality.metric, quality.value)} ({low} to {high})"
    else:
        times = [run.seconds_to_target for run in finished if run.seconds_to_target is not None]
        message = f"{len(times)} of {len(finished)} runs reached {describe_target(quality)}"
        if times:
            middle, least, most = (units.format_seconds(pick(times)) for pick in (median, min, max))
            olympic = repeated.score_seconds
            score = "" if olympic is None else f"; olympic mean {units.format_seconds(olympic)}"
            message += f", in {middle} ({least} to {most}{score})"
        if values:
            best = training.format_metric(quality.metric, max(values), quality.target)
            message += f"; best run below the target: {best}"
    progress = "" if training.is_complete(repeated) else f"{len(finished)} of {repeated.num_runs} runs finished: "
    return f"{title}: {progress}{message}"


def format_data_verdict(bench: DataBenchResult, workload: str = "") -> str:
    """Format the verdict of `data bench`; `workload`: the model that trains, such as ResNet-50."""
    best, stage = loader_speed.find_best_point(bench), loader_speed.find_largest_stage(bench)
    where = f"{units.format_count(best.threads, 'thread')} on {units.format_count(bench.cores, 'core')}"
    per_core = units.format_rate(best.images_per_second_per_core)
    parts = [f"{units.format_rate(best.images_per_second)} images/s with {where} ({per_core} per core)"]
    usable = min(best.threads, bench.cores)
    if best.cpu_cores is not None and best.cpu_cores < BUSY_SHARE * usable:
        parts.append(f"only {best.cpu_cores:.1f} of {units.format_count(usable, 'core')} busy")
    if stage is not None:
        parts.append(
            f"{loader_speed.WORK.get(stage.name, stage.name)} takes {units.format_percent(stage.share, 0)} of the time"
        )
    if bench.demand is not None:
        parts.append(loader_speed.describe_demand(bench, bench.demand, workload or "training"))
    return "; ".join(parts)


def format_row_verdict(row: schema.ComparisonRow) -> str:
    """Format e.g. A (x=1) is 1.062 times as fast as B (x=2) (1.041 … 1.083; 95 %, interleaved blocks): faster."""
    claim = f"A ({row.a.label}) is {units.format_ratio(row.ratio)} times as fast as B ({row.b.label})"
    if row.ci95 is None:
        return f"{claim} (interval {row.ci_covers}): {row.outcome}"
    ends = units.format_interval(row.ci95, units.format_ratio)
    return f"{claim} ({ends}; 95 %, {row.ci_covers}): {row.outcome}"


def format_comparison_verdict(rows: Sequence[schema.ComparisonRow], mean: float | None) -> str:
    """Format the verdict of a comparison: its one row, or how many rows had each outcome."""
    measured, published = [row for row in rows if not is_published(row)], [row for row in rows if is_published(row)]
    sentences = []
    if len(measured) == 1:
        sentences.append(format_row_verdict(measured[0]))
    elif measured and mean is not None:
        counts = Counter(row.outcome for row in measured)
        outcomes = ", ".join(f"{counts[name]} {name}" for name in OUTCOMES if counts[name])
        sentences.append(f"{len(measured)} rows: {outcomes}; geometric mean {units.format_ratio(mean)}")
    if len(published) == 1:
        (row,) = published
        figure = f"the published {row.b.label} figure, {units.format_rate(row.b.images_per_second)} images/s per device"
        sentences.append(f"A ({row.a.label}) reaches {describe_share(row)} of {figure}: not assessed")
    elif published:
        least, most = (units.format_share(pick(row.ratio for row in published)) for pick in (min, max))
        sentences.append(f"A reaches {least} to {most} of {len(published)} published figures, per device")
    return "; ".join(sentences)


def assess_sweep(sweep: Sweep) -> Sweep:
    """Return the sweep with the knee, the fit and the sentences of each curve."""
    ordered = has_order(sweep)
    knees, fits, explanations = [], [], []
    for curve, rows in split_curves(sweep):
        points = list_measured(rows)
        found = find_knee(points, curve) if ordered else None
        fit = fit_steps(points, curve) if ordered and sweep.key == swept.BATCH else None
        prefix = "" if sweep.curve_key is None else f"{label_point(sweep.curve_key, curve)}: "
        if len(points) > 1:
            sentences = _explain_curve(sweep, rows, found, fit) if ordered else _explain_choice(sweep, points)
            explanations += [prefix + sentence for sentence in sentences]
        knees += [found] if found else []
        fits += [fit] if fit else []
    return sweep.model_copy(update={"knees": knees, "fits": fits, "sentences": explanations})


def format_sweep_verdict(sweep: Sweep, title: str) -> str | None:
    if not list_measured(sweep.rows):
        return None
    curves = [(curve, list_measured(rows)) for curve, rows in split_curves(sweep)]
    curves = [(curve, points) for curve, points in curves if len(points) > 1 and has_order(sweep)]
    parts = []
    for curve, points in sorted(curves, key=lambda item: -find_fastest(item[1]).rate):
        prefix = "" if sweep.curve_key is None else f"{label_point(sweep.curve_key, curve)}: "
        parts.append(prefix + _describe_knee(sweep, points, find_knee(points, curve)))
    if not parts:
        fastest = find_fastest(sweep.rows)
        parts = [f"fastest with {label_row(sweep, fastest)}: {_describe_rate(fastest)}"]
    done = "" if len(sweep.rows) >= sweep.num_points else f" ({len(sweep.rows)} of {sweep.num_points} points)"
    return f"{title}: {'; '.join(parts)}{done}"


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
    """Explain a curve of at least two points whose values have an order."""
    points = list_measured(rows)
    found = _describe_knee(sweep, points, knee)
    yield f"{found[:1].upper()}{found[1:]}."
    if knee and knee.could_be:
        yield f"Within the 95 % intervals, the knee could also be at {', '.join(map(str, knee.could_be))}."
    at = next((point for point in points if knee and point.value == knee.value), points[-1])
    if fit is not None and fit.error <= POOR_FIT:
        cost = f"{units.format_seconds(fit.fixed_seconds)} plus {units.format_seconds(fit.seconds_per_image)} per image"
        fitted = f"fitted to {fit.points} points within {units.format_percent(max(fit.error, 1e-3))}"
        shares = []
        for row in (points[0], at):
            step = fit.fixed_seconds + fit.seconds_per_image * (row.images_per_step or 0)
            share = units.format_percent(fit.fixed_seconds / step if step > 0 else 0.0, 0)
            shares.append(f"{share} at {label_point(sweep.key, row.value)}")
        yield f"A step costs {cost} ({fitted}); the fixed part is {' and '.join(dict.fromkeys(shares))}."
    if at.mfu is not None:
        limit = f", limited by {at.limit}" if at.limit not in (None, "unknown") else ""
        reached = f"{units.format_percent(at.mfu, 0)} of the measured peak{limit}"
        yield f"At {label_point(sweep.key, at.value)} it reaches {reached}."
    full = [row.value for row in rows if row.status == "out_of_memory" and row.value > points[-1].value]
    if full:
        yield f"Out of memory: {label_point(sweep.key, min(full))} does not fit."
    best = find_fastest(points)
    if is_behind(points[-1], best):
        share = units.format_percent(points[-1].rate / best.rate, 0)
        yield f"The speed falls beyond {best.value}: {share} of the best at {label_point(sweep.key, points[-1].value)}."


def _explain_choice(sweep: Sweep, points: Sequence[SweepRow]) -> Iterator[str]:
    best, *others = sorted(points, key=lambda point: -point.rate)
    yield f"{label_point(sweep.key, best.value)} is the fastest: {_describe_rate(best)}."
    for point in others:
        share = units.format_percent(point.rate / best.rate, 0)
        separate = point.ci95 and best.ci95 and point.ci95[1] < best.ci95[0]
        unclear = "" if separate else "; the intervals do not separate them"
        yield f"{label_point(sweep.key, point.value)}: {_describe_rate(point)}, {share} of the fastest{unclear}."


def join_labels(sweep: Sweep, rows: Sequence[SweepRow]) -> str:
    return ", ".join(label_row(sweep, row) for row in rows)


def describe_trace(
    steps: Sequence[StepParts], *, device: str | None, marked: bool, has_phases: bool, num_devices: int
) -> list[str]:
    """Describe how busy the evaluated device (None: a CPU) is, what its gaps come from, and what the trace lacks."""
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
        sentences.append("The trace has no step marks (ProfilerStep#); it counts as one step.")
    if not has_phases and step_parts.share_of(steps, "unaccounted") > step_parts.MIN_SHARE:
        python = "unaccounted time includes Python between operators"
        sentences.append(f"The trace has no forward and backward marks: {python}.")
    if num_devices > 1:
        others = units.format_count(num_devices - 1, "other device")
        sentences.append(f"The numbers are of device {device}, the busiest; the trace has {others}.")
    return sentences


def describe_roofline(operators: Sequence[RooflinePoint], step_seconds: float) -> list[str]:
    """Describe how close the longest operators are to their roofs, and how long all would take at their roofs."""
    longest = [point for point in operators if point.seconds >= LONG_SHARE * step_seconds][:MAX_SENTENCES]
    spent = sum(point.seconds for point in operators)
    # An operator above its roof, thanks to caches, would not get slower: it keeps its time.
    ideal = sum(point.seconds * min(1.0, point.share_of_bound) for point in operators)
    sentences = []
    for point in longest:
        reached, name = (
            point.share_of_bound,
            step_parts.shorten(step_parts.describe_operator(point.operator), NAME_LENGTH),
        )
        roof = "peak" if point.bound == "compute" else "memory bandwidth"
        if "::" not in name:  # names of a trace keep their spelling
            name = name[:1].upper() + name[1:]
        only = "only " if reached < FAR_FROM_ROOF else ""
        speed = f"reaches {only}{_percent(reached)} of the measured {roof}"
        if reached > 1:
            speed = f"runs at {reached:.3g} times the measured {roof}: through caches or a cheaper algorithm, or "
            speed += "because the roof was measured too low"
        sentences.append(f"{name} takes {_percent(point.seconds / step_seconds)} of the step and {speed}.")
    share = _percent(spent / step_seconds)
    return [
        *sentences,
        f"At their roofs, these operators ({share} of the step) would take {_percent(ideal / spent)} of their time.",
    ]


def describe_counters(
    num_kernels: int, num_weighed: int, cycles: str, taken: Mapping[str, tuple[str | None, int]]
) -> list[str]:
    """Describe what ncu's file lacks; `taken`: each pipe's metric, None for the usual one, and its kernel count."""
    notes = []
    if skipped := num_kernels - num_weighed:
        notes.append(f"{skipped} of {units.format_count(num_kernels, 'kernel')} skipped: no {cycles}")
    for pipe, (metric, measured) in taken.items():
        if metric is not None:
            notes.append(f"{pipe} is {metric}")
        if measured < num_weighed:
            notes.append(f"{pipe}: mean of the {measured} of {num_weighed} kernels that were measured")
    return notes


def describe_box_tables(
    counted: tuple[int, int, int], evaluator: str, *, all_sizes: bool, most_found: int, classes: tuple[int, int]
) -> dict[str, str]:
    """Format the notes of a detector's tables; `counted`: images, true and detected boxes; `classes`: shown and all."""
    images, num_true, num_found = counted
    what = f"{units.format_count(images, 'image')} with {num_true:,} true and {num_found:,} detected boxes"
    shown = f" Shown are the {classes[0]} of {classes[1]} classes with the most true boxes."
    return {
        "coco": f"{what}; scored by {evaluator}." + ("" if all_sizes else " Empty: no true box of that size."),
        "precision-recall": "Mean of all classes that have true boxes. A detected box is correct if its overlap "
        "(intersection over union) with a true box of its class is at least the value in the line's name. The area "
        "below a line is its average precision.",
        "ap-by-size": "Size: the area of the object, in pixels of its image. "
        f"Recall: with at most {most_found} detected boxes per image and class.",
        "ap-by-class": "AP: mean of the overlaps 0.50 to 0.95. AP50: overlap 0.50." + shown * (classes[0] < classes[1]),
    }


def _percent(share: float) -> str:
    return units.format_percent(share, 0 if share >= 0.0995 else 1)
