"""Throughput and its confidence interval from step durations, the stop rule, spread and noise floor.

Pure: no files, no clock, no torch. Durations are seconds in a 1-D array, in order; all of them count. The steady window
comes from steady_state.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from trainstone.errors import ResultError
from trainstone.stats.series import MAX_BINS, Array, autocorrelation, check_seconds, sum_bins
from trainstone.stats.student_t import student_t_half_width, student_t_quantile
from trainstone.units import format_count

MIN_STEADY_STEPS = 20
"""With fewer steps no interval: they do not show how correlated they are."""
MIN_BLOCK_STEPS = 50
"""With fewer steps no blocks: with 17 steps and blocks of 10 a nominal 95 % covered 40 to 60 % in simulation."""
MIN_INDEPENDENT_STEPS = 3  # with fewer the interval exceeds ± 3 standard deviations of a single step
MIN_BLOCKS = 8  # with fewer blocks the long-run variance is a guess (Schmeiser 1982 advises 10 to 30 batches)
TARGET_HALF_WIDTH = 0.01

_NUM_RESAMPLES = 2000
_SEED = 20040101  # fixed: the same steps always give the same interval
_Z975 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class ThroughputEstimate:
    images_per_second: float
    ci95: tuple[float, float] | None
    ci_covers: str  # "within this run", "between runs" or "not established: <why>"
    num_steps: int  # number of steps, or of runs if the interval is between runs


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """Result of an A/A test on this machine; all values are fractions (0.01 = 1 %)."""

    mean_difference: float
    ci95: tuple[float, float] | None
    noise_floor: float | None  # half-width of the 95 % interval of the mean difference
    detectable: float | None  # smallest true difference found in 80 % of such comparisons at the 5 % level
    num_pairs: int


def _choose_block_length(x: Array) -> int:
    """Choose the bootstrap's block length from the autocorrelation, but at least sqrt(n).

    The automatic choice is Politis & White 2004 as corrected by Patton, Politis & White 2009. It misses slow noise
    hidden in fast noise, where no single lag is significant: simulated with n = 200 (white noise plus AR 0.95 of half
    its size) the interval covered 64 %, with the minimum of sqrt(n) 79 %. The minimum widens the interval of white
    noise by 3 to 10 %.
    """
    n = x.size
    run = max(5, math.ceil(math.sqrt(math.log10(n))))
    rho = autocorrelation(x, math.ceil(math.sqrt(n)) + 2 * run)
    significant = np.flatnonzero(np.abs(rho[1:]) >= 2 * math.sqrt(math.log10(n) / n)) + 1
    # Last lag before `run` insignificant ones in a row.
    gaps = np.diff(significant, prepend=0, append=n + run)
    last = int(np.concatenate(([0], significant))[np.argmax(gaps > run)])
    window = min(2 * max(last, 1), rho.size - 1)
    lags = np.arange(1, window + 1)
    weighted = np.minimum(1.0, 2 * (1 - lags / window)) * rho[1 : window + 1]  # flat-top lag window
    spectral = max(1 + 2 * float(weighted.sum()), 0.01)
    slope = 2 * float(lags @ weighted)
    automatic = min(math.cbrt(1.5 * slope**2 / spectral**2 * n), 3 * math.sqrt(n), n / 3)
    if slope < 0:
        # Blocks shorter than the optimum then widen the interval, which is safe.
        automatic = min(automatic, n // MIN_BLOCKS)
    return max(1, math.ceil(max(automatic, min(math.sqrt(n), float(n // MIN_BLOCKS)))))


def _block_variance(x: Array, length: int) -> float:
    """Return the long-run variance from all overlapping blocks (Meketon & Schmeiser 1984)."""
    sums = np.concatenate(([0.0], np.cumsum(x)))
    blocks = sums[length:] - sums[:-length]
    # A block is part of the series whose mean it is compared with, so its deviation is too small by (n - b) / n.
    return float(blocks @ blocks) / blocks.size / length * x.size / (x.size - length)


def _standard_error(residual: Array, length: int) -> float:
    """Return the standard error of the mean of a centred series from blocks of `length`.

    Blocks lose correlation across their edges, so the variance is too small by a term in 1 / length;
    extrapolating from length / 2 and length removes it ("lugsail", Vats & Flegal 2022). It only widens.
    """
    variance = _block_variance(residual, length)
    half = length // 2
    if half:
        ratio = length / half
        variance = max(variance, (ratio * variance - _block_variance(residual, half)) / (ratio - 1))
    return math.sqrt(variance / residual.size)


def _t_factor(n: int, length: int) -> float:
    # Overlapping blocks carry 1.5 times the degrees of freedom of disjoint ones (Meketon & Schmeiser 1984).
    return student_t_quantile(0.975, max(1, math.floor(1.5 * (n / length - 1))))


def _count_independent(residual: Array) -> float:
    """Return how many independent steps would know the mean as well as these 20 to 49 do; at most sqrt(n).

    As for AR(1) noise whose lag-1 correlation is corrected for the bias of short series (Marriott & Pope 1954, Kendall
    1954: (1 + 4 rho) / n). The limit is for what so few steps do not show: slow noise hidden in fast noise, rare slow
    steps. It corresponds to the blocks of at least sqrt(n) steps of longer series.
    """
    n = residual.size
    rho = float(autocorrelation(residual, 1)[1])
    rho = min(1.0, max(0.0, rho + (1 + 4 * rho) / n))
    return min(math.sqrt(n), n * (1 - rho) / (1 + rho))


def _half_width_of_few(residual: Array) -> float | None:
    """Return the relative half-width for 20 to 49 steps, by Student's t; None if too few of them are independent.

    Wide on purpose: about 3.4 times as wide as for independent steps. Coverage: benchmarks/coverage.py.
    """
    independent = _count_independent(residual)
    if independent < MIN_INDEPENDENT_STEPS:
        return None
    # Correlated steps share a part of the mean's error, which their spread does not show: hence minus 1.
    variance = float(residual @ residual) / residual.size / (independent - 1)
    return student_t_quantile(0.975, independent - 1) * math.sqrt(variance)


def estimate_within_run(step_seconds: ArrayLike, images: ArrayLike) -> ThroughputEstimate:
    """Return images over time of a run's steady window, with a 95 % interval that allows for autocorrelation.

    From MIN_BLOCK_STEPS on, the bootstrap gives the shape (skew); the scale is the block standard error with Student's
    t, because with 8 to 30 blocks the plain percentile interval is too narrow. Fewer steps: _half_width_of_few.
    Simulated coverage: tests/unit/stats/test_throughput.py, benchmarks/coverage.py.
    """
    seconds = check_seconds(step_seconds)
    counts = np.broadcast_to(np.asarray(images, dtype=np.float64), seconds.shape)
    num_steps, total_seconds, total_images = seconds.size, float(seconds.sum()), float(counts.sum())
    if num_steps == 0 or total_seconds <= 0 or not counts.min() > 0:
        raise ResultError(f"no throughput from {num_steps} steps, {total_images} images, {total_seconds} s")
    rate = total_images / total_seconds
    if num_steps < MIN_STEADY_STEPS:
        why = f"not established: {format_count(num_steps, 'steady step')}, {MIN_STEADY_STEPS} needed"
        return ThroughputEstimate(rate, None, why, num_steps)
    size = math.ceil(num_steps / MAX_BINS)
    seconds, counts = sum_bins(seconds, size), sum_bins(counts, size)
    n = seconds.size
    residual = seconds / seconds.mean() - counts / counts.mean()  # linearised log of seconds per image
    if n < MIN_BLOCK_STEPS:
        half_width = _half_width_of_few(residual)
        if half_width is None:
            left = format_count(math.floor(_count_independent(residual)), "independent step")
            why = f"not established: step times are correlated, which leaves {left}, {MIN_INDEPENDENT_STEPS} needed"
            return ThroughputEstimate(rate, None, why, num_steps)
        ends = rate * math.exp(-half_width), rate * math.exp(half_width)
        return ThroughputEstimate(rate, ends, "within this run", num_steps)
    length = _choose_block_length(residual)
    if n < MIN_BLOCKS * length:
        why = f"not established: step times are correlated over {length * size} steps, which leaves"
        why += f" {n // length} independent blocks, {MIN_BLOCKS} needed"
        return ThroughputEstimate(rate, None, why, num_steps)
    # Log of seconds per image relative to the measured one, by moving blocks. The series is circular (Politis &
    # Romano 1992): otherwise the first and last steps would count less.
    starts = np.random.default_rng(_SEED).integers(0, n, (_NUM_RESAMPLES, n // length))
    ratio = np.ones(_NUM_RESAMPLES)
    for values, power in ((seconds, 1), (counts, -1)):
        ring = np.concatenate((values, values[:length])) / values.mean()
        sums = np.concatenate(([0.0], np.cumsum(ring)))
        ratio *= (sums[starts + length] - sums[starts]).sum(axis=1) ** power
    drawn = np.log(np.maximum(ratio, 1e-300))  # blocks of zeros, from a coarse clock
    deviation = float(drawn.std())
    # Without spread the draws have no shape.
    shape = np.quantile(drawn, [0.025, 0.975]) / deviation if deviation > 1e-12 else np.array([-_Z975, _Z975])
    offsets = shape * (_t_factor(n, length) / _Z975 * _standard_error(residual, length))
    low, high = float(rate * math.exp(-offsets[1])), float(rate * math.exp(-offsets[0]))
    return ThroughputEstimate(rate, (low, high), "within this run", num_steps)


def estimate_half_width(step_seconds: ArrayLike) -> float | None:
    """Return the relative 95 % half-width without resampling, or None when there are too few steps.

    The same methods and corrections as estimate_within_run, for equal images in each step; cheap enough to call
    during the run.
    """
    seconds = check_seconds(step_seconds)
    if seconds.size < MIN_STEADY_STEPS:
        return None
    seconds = sum_bins(seconds, math.ceil(seconds.size / MAX_BINS))
    mean = float(seconds.mean())
    if mean <= 0:
        return None
    if seconds.size < MIN_BLOCK_STEPS:
        return _half_width_of_few(seconds / mean - 1)
    length = _choose_block_length(seconds)
    if seconds.size < MIN_BLOCKS * length:
        return None
    return _t_factor(seconds.size, length) * _standard_error(seconds / mean - 1, length)


def is_precise_enough(step_seconds: ArrayLike, half_width: float = TARGET_HALF_WIDTH) -> bool:
    """Return whether a run may stop: the interval of the steady window is narrow enough, and not by chance.

    Repeated checks that stop at the first success favour moments at which the variance looks small (Glynn & Whitt
    1992). So the interval by blocks, scaled to the number of steps, must be narrow enough at 70 to 100 % of the window.
    With the method of fewer steps at 70 %, runs stopped from 50 steps on, and covered 4 % less (AR(1) 0.7).
    """
    seconds = check_seconds(step_seconds)
    for share in (1.0, 0.9, 0.8, 0.7):
        part = seconds[: round(share * seconds.size)]
        width = estimate_half_width(part) if part.size >= MIN_BLOCK_STEPS else None
        if width is None or width > half_width / math.sqrt(share):
            return False
    return True


def estimate_between_runs(run_means: Sequence[float]) -> ThroughputEstimate:
    """Return the mean of the runs' images/s, with Student's t over runs (Kalibera & Jones 2013)."""
    rate = float(np.mean(run_means))
    if len(run_means) < 2:
        return ThroughputEstimate(rate, None, "not established: 1 run, 2 needed", len(run_means))
    half_width = student_t_half_width(run_means)
    return ThroughputEstimate(rate, (rate - half_width, rate + half_width), "between runs", len(run_means))


def spread(step_seconds: ArrayLike) -> dict[str, float]:
    """Return the median, p5, p95, p99 and the unscaled median absolute deviation (mad)."""
    seconds = check_seconds(step_seconds)
    quantiles = np.quantile(seconds, [0.5, 0.05, 0.95, 0.99]).tolist()
    mad = float(np.median(np.abs(seconds - quantiles[0])))
    return dict(zip(("median", "p5", "p95", "p99", "mad"), [*quantiles, mad], strict=True))


def estimate_noise_floor(differences: Sequence[float]) -> NoiseFloor:
    mean, pairs = float(np.mean(differences)), len(differences)
    if pairs < 2:
        return NoiseFloor(mean, None, None, None, pairs)
    floor = student_t_half_width(differences)
    power = 1 + student_t_quantile(0.80, pairs - 1) / student_t_quantile(0.975, pairs - 1)
    return NoiseFloor(mean, (mean - floor, mean + floor), floor, power * floor, pairs)
