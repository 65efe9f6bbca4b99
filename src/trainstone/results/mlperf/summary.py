"""Summarise MLPerf logs: group them by system and benchmark, score them, compare them with MLPerf's reference.

MLPerf's reference convergence points (RCPs) are the epochs that the reference needs to the target, by batch size. Runs
are assessed like mlperf-logging's rcp_checker, in closed form: a mean below the limit of a one-sided t-test at 5 % is
rejected as implausibly fast. Points slower than the line between their neighbours are pruned.
"""

import itertools
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from trainstone.errors import ConfigError, DataError
from trainstone.results.mlperf.logs import LOG_NAME, LoggedRun
from trainstone.results.tables import Table
from trainstone.stats.student_t import student_t_quantile
from trainstone.text import printable
from trainstone.units import format_rate

NUM_RUNS = {"resnet": 5, "ssd": 5, "retinanet": 5, "maskrcnn": 5}  # runs that a result needs
ALPHA = 0.05
MISSED = 1e9  # epochs that rcp_checker counts for a run that missed the target
IMAGES = {"resnet": ("ImageNet", 1_281_167), "ssd": ("COCO", 117_266)}
"""Training images; for COCO those with boxes. (From 2.0.0 on ssd is RetinaNet, which trains on other images.)"""
OPTIMIZERS = ("lars", "sgd")
TARGETS = {"resnet": 0.759, "ssd": 0.23}

# mlperf-logging 4.1.68 (Apache-2.0): rcp_checker/training_4.0.0/rcps_resnet.json, training_1.0.0/rcps_ssd.json (SSD300;
# in later rulesets ssd is RetinaNet). Batch size -> epochs -> number of runs that needed them. A test compares these
# numbers with the installed files.
REFERENCES: dict[str, dict[int, dict[int, int]]] = {
    "resnet": {
        1632: {33: 1, 34: 4, 35: 9, 37: 3},
        3264: {34: 2, 35: 9, 36: 3, 37: 1},
        4096: {39: 4, 40: 3, 41: 2, 42: 1},
        8192: {41: 4, 42: 3, 43: 2, 44: 1},
        13056: {44: 1, 45: 4, 46: 5},
        32768: {55: 1, 56: 8, 57: 1},
        49152: {67: 2, 68: 6, 69: 2},
        58880: {78: 1, 79: 1, 80: 6, 81: 2},
        65536: {83: 2, 84: 2, 85: 5, 86: 1},
        67840: {85: 8, 86: 16, 87: 4},
    },
    "ssd": {
        1024: {50: 10},
        2048: {65: 58, 70: 2},
        4096: {85: 22, 90: 15},
    },
}
SOURCE = {
    "resnet": "mlperf-logging 4.1.68, rcps_resnet.json of ruleset 4.0.0",
    "ssd": "mlperf-logging 4.1.68, rcps_ssd.json of ruleset 1.0.0",
}

RUN_COLUMNS = {"log": False, "minutes": True, "epochs": True, "accuracy": True, "images/s": True, "": False}
TIME_COLUMNS = {
    "seconds": False,
    **dict.fromkeys(("gpus", "batch", "total", "converge", "init", "epoch1", "epoch_avg", "train", "last_eval"), True),
    "epoch: evaluation, accuracy": False,
}
"""The columns of the original SSD's mll-status, and whether each is aligned right."""
SHOWN_EVALUATIONS = 8  # the last ones
Rulesets = Mapping[str, Collection[str]]  # ruleset -> benchmarks it has rules for
OLD_FORM = "0.6.0"  # the only ruleset that reads :::MLL lines; it reads no others


class Score(NamedTuple):
    minutes: float | None  # the score; None if the rules give none
    note: str  # how it was computed, or why there is none
    mean_minutes: float | None  # plain mean over the runs that reached their target
    dropped: tuple[int, ...] = ()  # indices of the runs that the score drops


def score_runs(benchmark: str | None, minutes: Sequence[float | None]) -> Score:
    """Score runs by their minutes to the target; a run that missed it (None) counts as the slowest."""
    reached = [value for value in minutes if value is not None]
    mean = sum(reached) / len(reached) if reached else None
    needed, missed = NUM_RUNS.get(benchmark or ""), len(minutes) - len(reached)
    if needed is None:
        return Score(None, f"unknown number of runs for benchmark {benchmark or 'unnamed'}", mean)
    if len(minutes) != needed:
        return Score(None, f"{benchmark} needs {needed} runs, not {len(minutes)}", mean)
    if missed > 1:
        return Score(None, f"{missed} of {needed} runs missed the target; at most 1 may", mean)
    ranked = rank_times(minutes)
    kept = [value for at in ranked[1:-1] if (value := minutes[at]) is not None]
    note = f"mean of {len(kept)} of {needed} runs: the fastest and the slowest are dropped"
    return Score(sum(kept) / len(kept), note, mean, (ranked[0], ranked[-1]))


def rank_times(times: Sequence[float | None]) -> list[int]:
    """Return the indices of the times, fastest first; None (target not reached) is the slowest."""
    return sorted(range(len(times)), key=lambda at: math.inf if (value := times[at]) is None else value)


def olympic_mean(values: Sequence[float]) -> float:
    """Return the mean without the smallest and the largest value; of one or two values the plain mean."""
    ranked = sorted(values)
    kept = ranked[1:-1] or ranked
    return sum(kept) / len(kept)


class Expected(NamedTuple):
    batch: int
    mean: float
    stdev: float
    least: float  # a smaller mean of epochs is rejected
    how: str  # recorded, interpolated, or smallest (the batch is smaller than any recorded one)
    points: tuple[int, ...]  # batch sizes it is derived from


class Assessment(NamedTuple):
    expected: Expected
    epochs: float  # olympic mean of the runs
    passes: bool
    factor: float
    """By which MLPerf multiplies the time of runs that needed fewer epochs than the reference; else 1."""


def least_mean(mean: float, stdev: float, num_reference: int, num_runs: int) -> float:
    """Return the mean at which the t-test between runs and reference (equal variance) has a one-sided p of 5 %."""
    kept = num_runs - 2
    return mean + student_t_quantile(ALPHA, num_reference + kept - 2) * stdev * math.sqrt(1 / num_reference + 1 / kept)


def interpolate(batch: int, low: Expected, high: Expected, num_runs: int) -> Expected:
    share = (batch - low.batch) / (high.batch - low.batch)
    mean = low.mean + share * (high.mean - low.mean)
    stdev = low.stdev + share * (high.stdev - low.stdev)
    least = least_mean(mean, stdev, 2 * num_runs, num_runs)
    return Expected(batch, mean, stdev, least, "interpolated", (low.batch, high.batch))


def prune(points: Sequence[Expected], num_runs: int) -> list[Expected]:
    """Drop batches smaller than the fastest point's, then points above the line between their neighbours."""
    fastest = min(points, key=lambda point: point.mean)
    kept = [point for point in points if point.batch >= fastest.batch]
    at = 1
    while at < len(kept) - 1:
        if kept[at].mean > interpolate(kept[at].batch, kept[at - 1], kept[at + 1], num_runs).mean:
            del kept[at]
        else:
            at += 1
    return kept


def list_points(benchmark: str) -> list[Expected]:
    points = []
    for batch, runs in REFERENCES[benchmark].items():
        epochs = [value for value, count in runs.items() for _ in range(count)]
        mean, stdev = olympic_mean(epochs), statistics.pstdev(epochs)
        least = least_mean(mean, stdev, len(epochs) - 2, NUM_RUNS[benchmark])
        points.append(Expected(batch, mean, stdev, least, "recorded", (batch,)))
    return points


def expect(benchmark: str, batch: int) -> Expected | None:
    """Return the reference at a batch size: recorded, interpolated, or for a smaller batch the smallest recorded.

    None: the batch is larger than any recorded one.
    """
    pruned = prune(list_points(benchmark), NUM_RUNS[benchmark])
    if batch < pruned[0].batch:
        return pruned[0]._replace(how="smallest")
    for low, high in itertools.pairwise(pruned):
        if low.batch < batch < high.batch:
            return interpolate(batch, low, high, NUM_RUNS[benchmark])
    return next((point for point in pruned if point.batch == batch), None)


def assess_convergence(expected: Expected, epochs: Sequence[float | None]) -> Assessment | None:
    """Compare the epochs of runs (None: missed the target) with the reference.

    Returns None if two or more runs missed it, or one of fewer than three.
    """
    if sum(value is None for value in epochs) > (len(epochs) > 2):
        return None
    mean = olympic_mean([MISSED if value is None else value for value in epochs])
    return Assessment(expected, mean, mean >= expected.least, max(1.0, expected.mean / mean) if mean else 1.0)


def explain_missing_reference(runs: Sequence[LoggedRun]) -> str | None:
    first = runs[0]
    benchmark, batch, samples, optimizer = first.benchmark, first.global_batch, first.train_samples, first.optimizer
    if benchmark not in REFERENCES:
        return f"no reference points for {benchmark or 'an unnamed benchmark'}"
    if batch is None:
        return "the log has no global batch size"
    if benchmark == "resnet" and optimizer not in OPTIMIZERS:
        return f"the reference trains with {' or '.join(OPTIMIZERS)}, not with {optimizer or 'an unnamed optimizer'}"
    dataset, images = IMAGES[benchmark]
    if samples is None or abs(samples - images) >= batch:
        own = "an unknown number" if samples is None else f"{samples:,}"
        return f"the reference trains on {dataset}'s {images:,} images, this run on {own}"
    target = min((run.accuracy for run in runs if run.converged and run.accuracy is not None), default=None)
    if target is not None and target < TARGETS[benchmark]:
        return f"the reference trains to {TARGETS[benchmark]:g}, this run only to {target:g}"
    largest = max(REFERENCES[benchmark])
    return f"batch {batch:,} is larger than the largest reference batch, {largest:,}" if batch > largest else None


def assess_runs(runs: Sequence[LoggedRun]) -> tuple[Assessment | None, str]:
    reason = explain_missing_reference(runs)
    if reason is not None:
        return None, reason
    benchmark, batch = runs[0].benchmark or "", runs[0].global_batch or 0
    expected = expect(benchmark, batch)
    assert expected is not None  # checked by explain_missing_reference
    assessment = assess_convergence(expected, [run.epochs if run.converged else None for run in runs])
    if assessment is None:
        return None, f"{sum(run.converged for run in runs)} of {len(runs)} runs reached the target"
    batches = " and ".join(f"{batch:,}" for batch in expected.points)
    where = f"{'between batches' if expected.how == 'interpolated' else 'at batch'} {batches}"
    note = f"{assessment.epochs:.1f} epochs to the target; the reference needs {expected.mean:.1f} {where}: "
    longer = "" if assessment.factor == 1 else f"; MLPerf multiplies the time by {assessment.factor:.4f}"
    rejected = f"below the minimum of {expected.least:.1f}, which MLPerf rejects"
    note += f"passes{longer}" if assessment.passes else rejected
    needed = NUM_RUNS[benchmark]
    return assessment, note + ("" if len(runs) == needed else f" (a result needs {needed} runs, not {len(runs)})")


@dataclass(frozen=True)
class Group:
    name: str
    runs: tuple[LoggedRun, ...]
    score: Score
    assessment: Assessment | None
    reference_note: str  # the assessment as text, or why there is none


def group_runs(runs: Sequence[LoggedRun]) -> list[Group]:
    groups: dict[tuple[Any, ...], list[LoggedRun]] = {}
    for run in runs:
        key = (find_group_folder(run.path), run.benchmark, run.org, run.division, run.platform, run.global_batch)
        groups.setdefault(key, []).append(run)
    return [make_group(tuple(group)) for group in groups.values()]


def make_group(runs: tuple[LoggedRun, ...]) -> Group:
    first = runs[0]
    score = score_runs(first.benchmark, [run.minutes if run.converged else None for run in runs])
    assessment, note = assess_runs(runs)
    if repeated := find_duplicate(runs):
        score, assessment, note = Score(None, repeated, score.mean_minutes), None, f"none: {repeated}"
    folder = find_group_folder(first.path)
    # In a submission the folders are results/SYSTEM/BENCHMARK.
    in_results = folder.name == first.benchmark and folder.parent.parent.name == "results"
    name = folder.parent.name if in_results else first.platform or folder.name
    return Group(name, runs, score, assessment, note)


def find_duplicate(runs: Sequence[LoggedRun]) -> str | None:
    seen: dict[Any, LoggedRun] = {}
    for run in runs:
        for mark in (replace(run, path=Path()), ("seed", run.seeds) if run.seeds else object()):
            if mark in seen:
                names = " and ".join("/".join(one.path.absolute().parts[-2:]) for one in (seen[mark], run))
                return f"{names} are the same run, or have the same seed"
            seen[mark] = run
    return None


def find_group_folder(log: Path) -> Path:
    """Return the folder whose logs form a group: of result_*.txt their own, of mlperf.log the parent of the run."""
    return log.absolute().parent.parent if log.name == LOG_NAME else log.absolute().parent


def format_title(group: Group) -> str:
    first = group.runs[0]
    batch = f"batch {first.global_batch:,}" if first.global_batch else None
    return " · ".join(filter(None, (group.name, first.benchmark, first.org, first.division, batch)))


def build_run_table(group: Group) -> Table:
    decimals, rows = count_decimals(group), []
    for at, (run, name) in enumerate(zip(group.runs, name_runs(group.runs), strict=True)):
        notes = (
            {"success": "", None: "not ended"}.get(run.ended, run.ended),
            "dropped" if at in group.score.dropped else "",
            "resumed; the time includes the pause" if run.resumed else "",
        )
        cells = [
            _format(run.minutes, f".{decimals}f"),
            _format(run.epochs, "g"),
            _format(run.accuracy, ".4f"),
            "–" if run.images_per_second is None else format_rate(run.images_per_second),
        ]
        rows.append([name, *cells, ", ".join(filter(None, notes))])
    return Table(list(RUN_COLUMNS), rows, numeric=list(RUN_COLUMNS.values()))


def build_time_table(group: Group) -> Table | None:
    """Build a table of where the time of each run went; None if no log has epochs or evaluations."""
    if not any(run.times.train_seconds is not None or run.times.evaluations for run in group.runs):
        return None
    rows = []
    for run, name in zip(group.runs, name_runs(group.runs), strict=True):
        devices, total, converge, *parts, evaluations = run.times
        # A run that missed its target shows its status instead of a time.
        ended = _format(converge, ".1f") if run.converged else run.ended or "not ended"
        last = evaluations[-1].seconds if evaluations else None
        seconds = [_format(value, ".1f") for value in (*parts, last)]
        counts = [_format(devices, "d"), _format(run.global_batch, "d"), _format(total, ".1f")]
        shown = ["…"] * (len(evaluations) > SHOWN_EVALUATIONS)
        for one in evaluations[-SHOWN_EVALUATIONS:]:
            shown.append(f"{_format(one.epoch, 'g')}: {_format(one.seconds, '.1f')} {one.accuracy:.4f}")
        rows.append([name, *counts, ended, *seconds, "; ".join(shown)])
    return Table(list(TIME_COLUMNS), rows, numeric=list(TIME_COLUMNS.values()))


def format_score(group: Group) -> str:
    score, decimals = group.score, count_decimals(group)
    if score.minutes is not None:
        return f"{score.minutes:.{decimals}f} min, {score.note}"
    mean = "" if score.mean_minutes is None else f"; mean to the target {score.mean_minutes:.{decimals}f} min"
    return f"none: {score.note}{mean}"


def name_runs(runs: Sequence[LoggedRun]) -> list[str]:
    """Return a name per log; trainstone logs share one file name, so their seeds or else their folders."""
    if any(run.path.name != LOG_NAME for run in runs):
        return [run.path.name for run in runs]
    seeds = [run.seeds for run in runs]
    if len(set(seeds)) == len(seeds) and all(len(seed) == 1 for seed in seeds):
        return [f"seed {seed[0]}" for seed in seeds]
    return [run.path.absolute().parent.name for run in runs]


def count_decimals(group: Group) -> int:
    """Return the decimals for the minutes of a group: 2, or 4 if all runs are shorter than a minute."""
    return 2 if max(run.minutes or 0.0 for run in group.runs) >= 1 else 4


def _format(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def build_group_document(group: Group) -> dict[str, Any]:
    first, score, assessment = group.runs[0], group.score, group.assessment
    reference: dict[str, Any] | None = None
    if assessment is not None:
        expected = assessment.expected
        reference = {"epochs": assessment.epochs, "passes": assessment.passes, "factor": assessment.factor}
        reference |= {"reference_epochs": expected.mean, "least_epochs": expected.least, "how": expected.how}
        reference |= {"batches": expected.points, "source": SOURCE[first.benchmark or ""]}
    runs = []
    for at, run in enumerate(group.runs):
        evaluations = [_drop_absent(one._asdict()) for one in run.times.evaluations]
        best = max((one.accuracy for one in run.times.evaluations), default=None)
        entry = {
            "path": str(run.path),
            "log_form": run.form,
            **{name: getattr(run, name) for name in ("ended", "minutes", "epochs", "accuracy")},
            "best_accuracy": None if best == run.accuracy else best,
            **{name: getattr(run, name) for name in ("images_per_second", "seeds")},
            "resumed": run.resumed or None,
            "dropped": at in score.dropped,
            "times": _drop_absent(run.times._asdict() | {"evaluations": evaluations}),
        }
        runs.append(_drop_absent(entry))
    document = {
        "system": group.name,
        **{name: getattr(first, name) for name in ("benchmark", "division", "org", "platform")},
        "global_batch_size": first.global_batch,
        "score_minutes": score.minutes,
        "score_note": score.note,
        "mean_minutes": score.mean_minutes,
        "reference": reference,
        "reference_note": group.reference_note,
        "runs": runs,
    }
    return _drop_absent(document)


def _drop_absent(document: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if value is not None}


class Choice(NamedTuple):
    ruleset: str
    reason: str


CHOSEN = {
    "resnet": Choice("4.0.0", "the last with ResNet"),
    "ssd": Choice("1.0.0", "the last for SSD300 without a list of weights; from 2.0.0 on ssd is RetinaNet"),
}


def choose_ruleset(run: LoggedRun, known: Rulesets, requested: str | None = None) -> Choice:
    name = printable(str(run.path))
    rulesets = sorted(known, key=lambda name: [int(part) for part in name.split(".") if part.isdecimal()])
    if run.form == "0.5":
        message = f"{name}: no ruleset of mlperf-logging reads logs of MLPerf 0.5 (:::MLPv0.5.0)"
        raise DataError(message, hint=f"read it with trainstone mlperf summary; the oldest ruleset is {OLD_FORM}")
    having = [ruleset for ruleset in rulesets if run.benchmark in known[ruleset]]
    if not having:
        message = f"{name}: no ruleset has rules for benchmark {printable(str(run.benchmark))}"
        raise DataError(message, hint="trainstone logs have submission_benchmark resnet or ssd")
    usual = CHOSEN.get(run.benchmark or "", Choice(having[-1], f"the last with rules for {run.benchmark}"))
    if requested is None:
        return Choice(OLD_FORM, "the log is of MLPerf 0.6 (:::MLL)") if run.form == "0.6" else usual
    if requested not in known:
        raise ConfigError(f"unknown --ruleset {requested}", hint=f"choose one of {', '.join(rulesets)}")
    if (requested == OLD_FORM) != (run.form == "0.6"):
        wanted = OLD_FORM if run.form == "0.6" else "0.7.0 or later"
        message = f"{name}: ruleset {requested} does not read lines of MLPerf {run.form}"
        raise DataError(message, hint=f"use --ruleset {wanted}, or omit it")
    if requested not in having:
        message = f"--ruleset {requested} has no rules for {run.benchmark}; these have: {', '.join(having)}"
        raise ConfigError(message, hint=f"use --ruleset {usual.ruleset}")
    return Choice(requested, "requested")
