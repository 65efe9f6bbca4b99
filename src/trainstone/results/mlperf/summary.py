"""Several MLPerf logs as results: grouped by system and benchmark, scored, compared with the reference.

MLPerf's reference convergence points (RCPs): how many epochs the reference needs to the target, by batch size. Runs
are assessed as mlperf-logging's rcp_checker does, in closed form: a mean of epochs below what a one-sided t-test at 5 %
lets pass is too good to be true. Points slower than the line between their neighbours do not count ("pruned").
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

NUM_RUNS = {"resnet": 5, "ssd": 5, "retinanet": 5, "maskrcnn": 5}  # runs that a result of the benchmark needs
ALPHA = 0.05
MISSED = 1e9  # epochs of a run that missed the target, as the checker counts it
IMAGES = {"resnet": ("ImageNet", 1_281_167), "ssd": ("COCO", 117_266)}
"""What is trained on: COCO's are those with boxes. (ssd as RetinaNet, from 2.0.0 on, trains on others.)"""
OPTIMIZERS = ("lars", "sgd")
TARGETS = {"resnet": 0.759, "ssd": 0.23}

# mlperf-logging 4.1.68 (Apache-2.0): rcp_checker/training_4.0.0/rcps_resnet.json, training_1.0.0/rcps_ssd.json (SSD300;
# later rulesets mean RetinaNet by ssd). By batch size, how
# many runs needed how many epochs. A test compares them with the installed files.
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
"""The columns of the original SSD's mll-status; of each whether it is flush right."""
SHOWN_EVALUATIONS = 8  # of many the last
Rulesets = Mapping[str, Collection[str]]  # of each ruleset the benchmarks it has rules for
OLD_FORM = "0.6.0"  # the one ruleset that reads :::MLL lines, and reads no others


class Score(NamedTuple):
    minutes: float | None  # the score; None where the rules give none
    note: str  # how it came about, or why there is none
    mean_minutes: float | None  # plain mean over the runs that reached their target
    dropped: tuple[int, ...] = ()  # positions of the runs that the score leaves out


def score_runs(benchmark: str | None, minutes: Sequence[float | None]) -> Score:
    """Score runs by the minutes each took to its target; None: it did not reach it, which counts as slowest."""
    reached = [value for value in minutes if value is not None]
    mean = sum(reached) / len(reached) if reached else None
    needed, missed = NUM_RUNS.get(benchmark or ""), len(minutes) - len(reached)
    if needed is None:
        return Score(None, f"how many runs a score of {benchmark or 'this'} needs is not known here", mean)
    if len(minutes) != needed:
        return Score(None, f"{benchmark} needs {needed} runs, not {len(minutes)}", mean)
    if missed > 1:
        return Score(None, f"{missed} of {needed} runs missed the target, one may", mean)
    ranked = rank_times(minutes)
    kept = [value for at in ranked[1:-1] if (value := minutes[at]) is not None]
    note = f"mean of {len(kept)} of {needed} runs: the fastest and the slowest are left out"
    return Score(sum(kept) / len(kept), note, mean, (ranked[0], ranked[-1]))


def rank_times(times: Sequence[float | None]) -> list[int]:
    """Return the positions of times, the fastest first; None, which did not reach its target, is the slowest."""
    return sorted(range(len(times)), key=lambda at: math.inf if (value := times[at]) is None else value)


def olympic_mean(values: Sequence[float]) -> float:
    """Return the mean without the smallest and the largest; of one or two values their mean."""
    ranked = sorted(values)
    kept = ranked[1:-1] or ranked
    return sum(kept) / len(kept)


class Expected(NamedTuple):
    batch: int
    mean: float
    stdev: float
    least: float  # fewer epochs than this on average are refused
    how: str  # recorded, interpolated, or smallest: the batch is smaller than any that was recorded
    points: tuple[int, ...]  # batch sizes it was taken from


class Assessment(NamedTuple):
    expected: Expected
    epochs: float  # mean of the runs, without the fastest and the slowest where there are three or more
    passes: bool
    factor: float
    """By which MLPerf lengthens the time of runs that needed fewer epochs than the reference; 1: not at all."""


def least_mean(mean: float, stdev: float, num_reference: int, num_runs: int) -> float:
    """Return the mean at which the t-test between both, of equal scatter, has a one-sided p-value of 5 %."""
    kept = num_runs - 2
    return mean + student_t_quantile(ALPHA, num_reference + kept - 2) * stdev * math.sqrt(1 / num_reference + 1 / kept)


def interpolate(batch: int, low: Expected, high: Expected, num_runs: int) -> Expected:
    share = (batch - low.batch) / (high.batch - low.batch)
    mean = low.mean + share * (high.mean - low.mean)
    stdev = low.stdev + share * (high.stdev - low.stdev)
    least = least_mean(mean, stdev, 2 * num_runs, num_runs)
    return Expected(batch, mean, stdev, least, "interpolated", (low.batch, high.batch))


def prune(points: Sequence[Expected], num_runs: int) -> list[Expected]:
    """Leave out batches smaller than the fastest point's, then points above the line between their neighbours."""
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
    """Return what the reference needs at a batch: recorded, interpolated, or for small ones the smallest's.

    None: the batch is larger than any that was recorded.
    """
    pruned = prune(list_points(benchmark), NUM_RUNS[benchmark])
    if batch < pruned[0].batch:
        return pruned[0]._replace(how="smallest")
    for low, high in itertools.pairwise(pruned):
        if low.batch < batch < high.batch:
            return interpolate(batch, low, high, NUM_RUNS[benchmark])
    return next((point for point in pruned if point.batch == batch), None)


def assess(expected: Expected, epochs: Sequence[float | None]) -> Assessment | None:
    """Compare the epochs of runs with the reference; None for a run that missed the target.

    None: more than one run missed it, or the only ones.
    """
    if sum(value is None for value in epochs) > (len(epochs) > 2):
        return None
    mean = olympic_mean([MISSED if value is None else value for value in epochs])
    return Assessment(expected, mean, mean >= expected.least, max(1.0, expected.mean / mean) if mean else 1.0)


def find_reason(runs: Sequence[LoggedRun]) -> str | None:
    first = runs[0]
    benchmark, batch, samples, optimizer = first.benchmark, first.global_batch, first.train_samples, first.optimizer
    if benchmark not in REFERENCES:
        return f"there are no reference points of {benchmark or 'an unnamed benchmark'} here"
    if batch is None:
        return "the log does not say the global batch size"
    if benchmark == "resnet" and optimizer not in OPTIMIZERS:
        return f"the reference trains with {' or '.join(OPTIMIZERS)}, not with {optimizer or 'an unnamed optimizer'}"
    dataset, images = IMAGES[benchmark]
    if samples is None or abs(samples - images) >= batch:
        here = "an unknown number" if samples is None else f"{samples:,}"
        return f"the reference trains on {dataset}'s {images:,} images, this run on {here}"
    target = min((run.accuracy for run in runs if run.converged and run.accuracy is not None), default=None)
    if target is not None and target < TARGETS[benchmark]:
        return f"the reference trains to {TARGETS[benchmark]:g}, this run only to {target:g}"
    largest = max(REFERENCES[benchmark])
    return f"the largest batch with a reference is {largest:,}, here it is {batch:,}" if batch > largest else None


def assess_runs(runs: Sequence[LoggedRun]) -> tuple[Assessment | None, str]:
    reason = find_reason(runs)
    if reason is not None:
        return None, reason
    benchmark, batch = runs[0].benchmark or "", runs[0].global_batch or 0
    expected = expect(benchmark, batch)
    assert expected is not None  # or there was a reason
    assessment = assess(expected, [run.epochs if run.converged else None for run in runs])
    if assessment is None:
        return None, f"{sum(run.converged for run in runs)} of {len(runs)} runs reached the target"
    batches = " and ".join(f"{batch:,}" for batch in expected.points)
    where = f"{'between batches' if expected.how == 'interpolated' else 'at batch'} {batches}"
    note = f"{assessment.epochs:.1f} epochs to the target; the reference needs {expected.mean:.1f} {where}: "
    longer = "" if assessment.factor == 1 else f"; MLPerf multiplies the time by {assessment.factor:.4f}"
    refused = f"fewer than its least of {expected.least:.1f}, which MLPerf refuses"
    note += f"passes{longer}" if assessment.passes else refused
    needed = NUM_RUNS[benchmark]
    return assessment, note + ("" if len(runs) == needed else f" (a result needs {needed} runs, not {len(runs)})")


@dataclass(frozen=True)
class Group:
    name: str
    runs: tuple[LoggedRun, ...]
    score: Score
    assessment: Assessment | None
    reference_note: str  # why there is no assessment, or what it says


def group_runs(runs: Sequence[LoggedRun]) -> list[Group]:
    places: dict[tuple[Any, ...], list[LoggedRun]] = {}
    for run in runs:
        key = (find_place(run.path), run.benchmark, run.org, run.division, run.platform, run.global_batch)
        places.setdefault(key, []).append(run)
    return [make_group(tuple(group)) for group in places.values()]


def make_group(runs: tuple[LoggedRun, ...]) -> Group:
    first = runs[0]
    score = score_runs(first.benchmark, [run.minutes if run.converged else None for run in runs])
    assessment, note = assess_runs(runs)
    if repeated := find_repetition(runs):
        score, assessment, note = Score(None, repeated, score.mean_minutes), None, f"none: {repeated}"
    folder = find_place(first.path)
    # In a submission the folders are results/SYSTEM/BENCHMARK.
    in_results = folder.name == first.benchmark and folder.parent.parent.name == "results"
    name = folder.parent.name if in_results else first.platform or folder.name
    return Group(name, runs, score, assessment, note)


def find_repetition(runs: Sequence[LoggedRun]) -> str | None:
    seen: dict[Any, LoggedRun] = {}
    for run in runs:
        for mark in (replace(run, path=Path()), ("seed", run.seeds) if run.seeds else object()):
            if mark in seen:
                names = " and ".join("/".join(one.path.absolute().parts[-2:]) for one in (seen[mark], run))
                return f"{names} are the same run, or have the same seed"
            seen[mark] = run
    return None


def find_place(log: Path) -> Path:
    """Return the folder of a result_*.txt; a run's own folder holds one log only: that of its neighbours."""
    return log.absolute().parent.parent if log.name == LOG_NAME else log.absolute().parent


def format_title(group: Group) -> str:
    first = group.runs[0]
    batch = f"batch {first.global_batch:,}" if first.global_batch else None
    return " · ".join(filter(None, (group.name, first.benchmark, first.org, first.division, batch)))


def run_table(group: Group) -> Table:
    decimals, rows = count_decimals(group), []
    for at, (run, name) in enumerate(zip(group.runs, name_runs(group.runs), strict=True)):
        notes = (
            {"success": "", None: "not ended"}.get(run.ended, run.ended),
            "left out" if at in group.score.dropped else "",
            "resumed: the pause is counted" if run.resumed else "",
        )
        cells = [
            _format(run.minutes, f".{decimals}f"),
            _format(run.epochs, "g"),
            _format(run.accuracy, ".4f"),
            "–" if run.images_per_second is None else format_rate(run.images_per_second),
        ]
        rows.append([name, *cells, ", ".join(filter(None, notes))])
    return Table(list(RUN_COLUMNS), rows, numeric=list(RUN_COLUMNS.values()))


def time_table(group: Group) -> Table | None:
    """Where the time of each run went; None where no log tells an epoch or evaluation."""
    if not any(run.times.train_seconds is not None or run.times.evaluations for run in group.runs):
        return None
    rows = []
    for run, name in zip(group.runs, name_runs(group.runs), strict=True):
        devices, total, converge, *parts, evaluations = run.times
        # A run that missed its target has its status in place of a time.
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
    """Return names of logs; runs of trainstone all call theirs the same, so their seeds, else their folders."""
    if any(run.path.name != LOG_NAME for run in runs):
        return [run.path.name for run in runs]
    seeds = [run.seeds for run in runs]
    if len(set(seeds)) == len(seeds) and all(len(seed) == 1 for seed in seeds):
        return [f"seed {seed[0]}" for seed in seeds]
    return [run.path.absolute().parent.name for run in runs]


def count_decimals(group: Group) -> int:
    """Return the decimals of all minutes of a group: 39.78; four where all runs are shorter than a minute."""
    return 2 if max(run.minutes or 0.0 for run in group.runs) >= 1 else 4


def _format(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def document_group(group: Group) -> dict[str, Any]:
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
        message = {
            "path": str(run.path),
            "log_form": run.form,
            **{name: getattr(run, name) for name in ("ended", "minutes", "epochs", "accuracy")},
            "best_accuracy": None if best == run.accuracy else best,
            **{name: getattr(run, name) for name in ("images_per_second", "seeds")},
            "resumed": run.resumed or None,
            "dropped": at in score.dropped,
            "times": _drop_absent(run.times._asdict() | {"evaluations": evaluations}),
        }
        runs.append(_drop_absent(message))
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
        message = f"{name}: a log of MLPerf 0.5 (:::MLPv0.5.0), which no ruleset of mlperf-logging reads"
        raise DataError(message, hint=f"trainstone mlperf summary reads it; the oldest ruleset is {OLD_FORM}")
    having = [ruleset for ruleset in rulesets if run.benchmark in known[ruleset]]
    if not having:
        message = f"{name}: no ruleset has rules for benchmark {printable(str(run.benchmark))}"
        raise DataError(message, hint="submission_benchmark is resnet or ssd in logs of trainstone")
    usual = CHOSEN.get(run.benchmark or "", Choice(having[-1], f"the last with rules for {run.benchmark}"))
    if requested is None:
        return Choice(OLD_FORM, "the log is of MLPerf 0.6 (:::MLL)") if run.form == "0.6" else usual
    if requested not in known:
        raise ConfigError(f"unknown --ruleset {requested}", hint=f"one of {', '.join(rulesets)}")
    if (requested == OLD_FORM) != (run.form == "0.6"):
        wanted = OLD_FORM if run.form == "0.6" else "0.7.0 or later"
        message = f"{name}: ruleset {requested} does not read lines of MLPerf {run.form}"
        raise DataError(message, hint=f"--ruleset {wanted}, or none")
    if requested not in having:
        message = f"--ruleset {requested} has no {run.benchmark}: rules are in {', '.join(having)}"
        raise ConfigError(message, hint=f"--ruleset {usual.ruleset}")
    return Choice(requested, "requested")
