"""MLPerf's reference convergence points (RCPs): how many epochs the reference needs to the target, by batch size.

Assesses as mlperf-logging's rcp_checker does, in closed form: a mean of epochs below what a one-sided t-test at 5 %
lets pass is too good to be true. Points slower than the line between their neighbours do not count ("pruned").
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trainstone.results.mlperf.logged import LoggedRun
from trainstone.results.stats import student_t_quantile

NUM_RUNS = {"resnet": 5, "ssd": 5, "retinanet": 5, "maskrcnn": 5}  # runs that a result of the benchmark needs


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


ALPHA = 0.05
MISSED = 1e9  # epochs of a run that missed the target, as the checker counts it
PICTURES = {"resnet": ("ImageNet", 1_281_167), "ssd": ("COCO", 117_266)}
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


def summarise(batch: int, runs: Mapping[int, int], num_runs: int) -> Expected:
    epochs = [value for value, count in runs.items() for _ in range(count)]
    mean, stdev = olympic_mean(epochs), statistics.pstdev(epochs)
    return Expected(batch, mean, stdev, least_mean(mean, stdev, len(epochs) - 2, num_runs), "recorded", (batch,))


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
    return [summarise(batch, runs, NUM_RUNS[benchmark]) for batch, runs in REFERENCES[benchmark].items()]


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
    dataset, pictures = PICTURES[benchmark]
    if samples is None or abs(samples - pictures) >= batch:
        here = "an unknown number" if samples is None else f"{samples:,}"
        return f"the reference trains on {dataset}'s {pictures:,} pictures, this run on {here}"
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
