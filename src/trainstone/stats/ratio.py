"""Estimate the speed ratio of two sides, with interval and p-value, and decide whether a difference is claimed.

Pure. Computed on logarithms, so that a ratio and its inverse are treated alike. False claims and power were simulated:
docs/explanation/comparing.md, tests/unit/stats/test_ratio.py.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainstone.machine.noise import Grade
from trainstone.stats.student_t import student_t_quantile, student_t_tail
from trainstone.stats.throughput import MIN_BLOCKS
from trainstone.text import printable
from trainstone.units import format_count

Array = NDArray[np.float64]
RatioOutcome = Literal["faster", "slower", "no difference shown", "not assessed"]


class MeasuredRate(Protocol):
    """A measured speed with its interval."""

    @property
    def images_per_second(self) -> float: ...
    @property
    def ci95(self) -> tuple[float, float] | None: ...
    @property
    def ci_covers(self) -> str: ...


NOISE_FLOORS: dict[Grade | None, float] = {"A": 0.01, "B": 0.02, "C": 0.05, None: 0.02}
"""Smaller differences are never claimed, however narrow the interval, which does not cover changes between runs. The
noisiest run sets the floor.

`doctor --aa` on a shared virtual machine with two cores, grade B, found a floor of 1.7 % in 60 s; A is what the rule
for stopping a run aims at (half-width 1 %); C is SuperBench's rule for a defect, 5 %. None: not graded, taken as B.
"""
LEVEL = 0.05
ORDER = "ABBA"
MIN_ROUNDS = 6  # with fewer rounds no interval: one disturbed round would weigh a fifth or more, and t exceed 2.7
OUTER, INNER = [0, 3], [1, 2]
# The fewest degrees of freedom of an interval from blocks (throughput._t_factor). The p-value is derived from that
# interval with these tails, the heaviest possible. Below 50 steps there are fewer, but the interval is wide: of equal
# runs of 20 steps with AR(1) 0.7 noise 1.6 % had p < 0.05 and 0.3 % p < 0.01 (AR(1) 0.8: 7 % and 1.6 %).
_WITHIN_DF = math.floor(1.5 * (MIN_BLOCKS - 1))


@dataclass(frozen=True, slots=True)
class Estimate:
    ratio: float
    ci95: tuple[float, float] | None
    ci_covers: str
    p_value: float | None  # two-sided, for a ratio of 1; below 0.05 exactly if the interval excludes 1


def estimate_ratio(a: Sequence[MeasuredRate], b: Sequence[MeasuredRate]) -> Estimate:
    """Compare the runs of two sides; what the interval covers depends on the number of runs.

    Several with several: Welch's t with Satterthwaite's degrees of freedom, since the sides may vary differently.
    That estimate is too high if the spread of a few runs happens to be small compared with that of many: 2 and 10 equal
    runs were called different in 10 % of simulations. With n runs on the smaller side, n - 1 is always safe (Mickey &
    Brown 1966), but then 2 and 5 runs find less than 2 and 2. So unequal sides get at most 1.5 (n - 1), half-way to the
    2 (n - 1) of two sides of n: at most 5.4 % false claims with a noise floor of 2 % (docs/explanation/comparing.md).

    One with several: is it outside their distribution (Crawford & Howell 1998)? It is assumed to have their spread.
    """
    if len(a) == len(b) == 1:
        return _within_runs(a[0], b[0])
    logs = _logs(a), _logs(b)
    difference = statistics.fmean(logs[0]) - statistics.fmean(logs[1])
    if len(a) == 1 or len(b) == 1:
        several, where = (logs[0], "A") if len(a) > 1 else (logs[1], "B")
        error = statistics.stdev(several) * math.sqrt(1 + 1 / len(several))
        covers = f"between runs; the spread of the {len(several)} runs of {where} is assumed for the single run"
        return from_error(difference, error, len(several) - 1, covers)
    parts = [statistics.stdev(side) ** 2 / len(side) for side in logs]
    variance = sum(parts)
    spread_of_variance = sum(part**2 / (len(side) - 1) for part, side in zip(parts, logs, strict=True))
    df = max(1.0, variance**2 / spread_of_variance) if spread_of_variance > 0 else 1.0
    if len(a) != len(b):
        df = min(df, 1.5 * (min(len(a), len(b)) - 1))
    return from_error(difference, math.sqrt(variance), df, "between runs")


def estimate_share(runs: Sequence[MeasuredRate], published: float, *, per: int = 1) -> Estimate:
    """Return runs / per as a share of a published figure; only the runs have an interval, without p-value."""
    centre = statistics.fmean(_logs(runs)) - math.log(per * published)
    if len(runs) > 1:
        error = statistics.stdev(_logs(runs)) / math.sqrt(len(runs))
        covers = "between runs; the published figure has none"
        return replace(from_error(centre, error, len(runs) - 1, covers), p_value=None)
    (run,) = runs
    if run.ci95 is None:
        return Estimate(math.exp(centre), None, printable(run.ci_covers), None)
    low, high = (end / per / published for end in run.ci95)
    return Estimate(math.exp(centre), (low, high), "of the run; the published figure has none", None)


def from_error(difference: float, error: float, df: float, covers: str) -> Estimate:
    """Compute Student's interval and p-value from a difference of logarithms and its standard error."""
    quantile = student_t_quantile(0.975, df)
    half_width = quantile * error
    ends = math.exp(difference - half_width), math.exp(difference + half_width)
    return Estimate(math.exp(difference), ends, covers, _p_value(abs(difference), half_width, quantile, df))


def correct_holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct p-values for their number (Holm 1979); None stays None."""
    order = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        corrected[index] = largest
    return corrected


def assess_ratio(ratio: float, ci95: tuple[float, float] | None, p_holm: float | None, floor: float) -> RatioOutcome:
    """Claim a difference if the interval excludes 1, the corrected p-value agrees and it exceeds the noise floor."""
    if ci95 is None or p_holm is None:
        return "not assessed"
    excludes_one = ci95[0] > 1 or ci95[1] < 1
    if excludes_one and p_holm < LEVEL and abs(math.log(ratio)) > math.log1p(floor):
        return "faster" if ratio > 1 else "slower"
    return "no difference shown"


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean, the right one for ratios: of 2 and 1/2 it is 1 (Hoefler & Belli 2015, rule 4)."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def _within_runs(a: MeasuredRate, b: MeasuredRate) -> Estimate:
    """Combine two intervals, which may be asymmetric (MOVER, Zou & Donner 2008)."""
    rates = a.images_per_second, b.images_per_second
    difference = math.log(rates[0]) - math.log(rates[1])
    if a.ci95 is None or b.ci95 is None:
        sides = [(name, run) for name, run in (("A", a), ("B", b)) if run.ci95 is None]
        why = "; ".join(f"{name}: {run.ci_covers.removeprefix('not established: ')}" for name, run in sides)
        return Estimate(math.exp(difference), None, printable(f"not established: {why}"), None)
    below_a, below_b = (math.log(rate / ci95[0]) for rate, ci95 in zip(rates, (a.ci95, b.ci95), strict=True))
    above_a, above_b = (math.log(ci95[1] / rate) for rate, ci95 in zip(rates, (a.ci95, b.ci95), strict=True))
    low, high = math.hypot(below_a, above_b), math.hypot(above_a, below_b)
    ends = math.exp(difference - low), math.exp(difference + high)
    half_width = low if difference > 0 else high
    p_value = _p_value(abs(difference), half_width, student_t_quantile(0.975, _WITHIN_DF), _WITHIN_DF)
    covered = {a.ci_covers, b.ci_covers}
    covers = "within each run" if covered == {"within this run"} else f"A: {a.ci_covers}; B: {b.ci_covers}"
    return Estimate(math.exp(difference), ends, printable(covers), p_value)


def _p_value(distance: float, half_width: float, quantile: float, df: float) -> float:
    """Return the two-sided p-value of an interval with this half-width on the side of a ratio of 1."""
    if half_width <= 0:
        return 1.0 if distance == 0 else 0.0
    return min(1.0, 2 * student_t_tail(quantile * distance / half_width, df))


def _logs(runs: Sequence[MeasuredRate]) -> list[float]:
    return [math.log(run.images_per_second) for run in runs]


@dataclass(frozen=True, slots=True)
class Paired(Estimate):
    noise_floor: float | None
    outcome: RatioOutcome
    rates: dict[str, float]  # images/s of A and of B over these rounds


def compare_blocks(images: ArrayLike, seconds: ArrayLike) -> Paired:
    """Compare A with B: a row per round, with the four blocks A B B A as columns.

    The ratio is the geometric mean over rounds of the rate of both A blocks / the rate of both B blocks; the interval
    is Student's t on the logarithms.

    The noise floor is the half-width of the same interval for changes within a variant: half of A's change from its
    first to its last block plus half of B's. With independent blocks it has the variance of a round's log ratio; with
    a drifting machine it has more, since A's blocks are three apart. No difference of A and B enters it.
    """
    counts, times = (np.asarray(values, dtype=np.float64).reshape(-1, 4) for values in (images, seconds))
    rounds = len(times)
    if rounds == 0:
        raise ValueError("no complete round A B B A")
    ratios = _log_rates(counts, times, OUTER) - _log_rates(counts, times, INNER)
    mean = float(ratios.mean())
    pairs = zip("AB", (OUTER, INNER), strict=True)
    rates = {arm: float(counts[:, blocks].sum() / times[:, blocks].sum()) for arm, blocks in pairs}
    if rounds < MIN_ROUNDS:
        why = f"not established: {format_count(rounds, 'complete round')} A B B A, {MIN_ROUNDS} needed"
        return Paired(math.exp(mean), None, why, None, None, "not assessed", rates)
    levels = np.log(counts / times)
    changes = (levels[:, 3] - levels[:, 0] + levels[:, 2] - levels[:, 1]) / 2
    estimate = from_error(mean, _standard_error(ratios), rounds - 1, "interleaved blocks")
    floor = math.expm1(student_t_quantile(0.975, rounds - 1) * _standard_error(changes))
    outcome = assess_ratio(estimate.ratio, estimate.ci95, estimate.p_value, floor)
    return Paired(**asdict(estimate), noise_floor=floor, outcome=outcome, rates=rates)


def _log_rates(counts: Array, times: Array, blocks: list[int]) -> Array:
    return np.asarray(np.log(counts[:, blocks].sum(axis=1) / times[:, blocks].sum(axis=1)))


def _standard_error(values: Array) -> float:
    return float(values.std(ddof=1)) / math.sqrt(values.size)
