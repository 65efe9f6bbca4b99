"""Numbers from step durations: the steady window, throughput with its interval, when to stop, spread, outliers.

Pure: no files, no clock, no torch. Durations are seconds in a 1-D array, first step first, and all of them count.
Student's t distribution is here, too: that saves a dependency on scipy. Warm-up is detected, never a fixed count. A run
that never settles is not refused: the window is then the best guess, and the trend says what went on (throttling: the
steps get slower).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainstone.errors import ResultError
from trainstone.units import format_count

Array = NDArray[np.float64]

MIN_STEADY_STEPS = 50
"""Below this no interval: with 17 steps and blocks of 10 a nominal 95 % covered 40 to 60 % in simulation."""
MIN_BLOCKS = 8  # with fewer blocks the long-run variance is a guess (Schmeiser 1982 advises 10 to 30 batches)
MAX_BINS = 10_000  # longer series are summed into bins first: the interval does not get better from more, only slower
TARGET_HALF_WIDTH = 0.01
MIN_JUDGED_STEPS = 20
"""A shorter window is not judged: with thirds of 5 steps a slope and correlated noise look the same."""
DRIFT_LIMIT = 0.02  # thirds of the window that differ by less do not matter, however sure it is (a linear drift of 3 %)
DRIFT_LEVEL = 0.01  # chance of calling white noise a drift. Simulated at 200 steps of AR(1) 0.8 noise: 2 to 3 %

_NUM_RESAMPLES = 2000
_SEED = 20040101  # fixed, so that the same steps always give the same interval
_Z975 = 1.959963984540054
# Below this the tail is integrated itself: 1 less the distribution would be rounding.
_SMALL_TAIL = 5e-4
_CLIP = 5.0  # robust standard deviations that a single step may pull
_SMALLEST_SCALE = 1e-3  # 0.1 %: less scatter than this is no reason to cut anything
_NUM_BATCHES = 40


@dataclass(frozen=True, slots=True)
class Throughput:
    images_per_second: float
    ci95: tuple[float, float] | None
    ci_covers: str  # "within this run", "between runs" or "not established: <why>"
    num_steps: int  # steps averaged; runs averaged when the interval is between runs


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """What an A/A test says about comparing on this machine; all are fractions (0.01 = 1 %)."""

    mean_difference: float
    ci95: tuple[float, float] | None
    noise_floor: float | None  # half-width of the 95 % interval of the mean difference
    detectable: float | None  # smallest true difference found in 80 % of such comparisons at the 5 % level
    num_pairs: int


def checked_seconds(step_seconds: ArrayLike) -> Array:
    seconds = np.asarray(step_seconds, dtype=np.float64)
    if seconds.ndim != 1:
        raise ValueError(f"step durations must be a 1-D array, not {seconds.ndim}-D")
    valid = np.isfinite(seconds) & (seconds >= 0)
    if not valid.all():
        step = int(np.argmin(valid))
        raise ResultError(f"step {step} took {seconds[step]} s; a duration is finite and not negative")
    return seconds


def sum_bins(x: Array, size: int) -> Array:
    return x if size == 1 else x[: x.size // size * size].reshape(-1, size).sum(axis=1)


def autocorrelation(x: ArrayLike, max_lag: int) -> Array:
    """Return the autocorrelation at lags 0..max_lag (at most n - 1); a constant series has 1, 0, 0, ..."""
    values = np.asarray(x, dtype=np.float64)
    max_lag = min(max_lag, values.size - 1)
    centred = values - values.mean()
    size = 1 << int(values.size + max_lag).bit_length()  # room for the lags: the FFT must not wrap round
    spectrum = np.fft.rfft(centred, size)
    covariance: Array = np.fft.irfft(spectrum.real**2 + spectrum.imag**2, size)[: max_lag + 1]
    # Rounding in the mean alone gives a "variance" of this order; correlating that would be noise.
    if covariance[0] <= values.size * (1e-14 * float(np.abs(values).max())) ** 2:
        covariance[:] = 0.0
        covariance[0] = 1.0
    return covariance / float(covariance[0])


def _choose_block_length(x: Array) -> int:
    """Pick the bootstrap's block length from the autocorrelation, but at least sqrt(n).

    The automatic choice is Politis & White 2004 as corrected by Patton, Politis & White 2009. Alone it misses
    slow noise buried in fast noise, where no single lag looks significant: simulated at n = 200 (white noise
    plus AR 0.95 of half its size) the interval covered 64 %, with the floor 79 %. The floor widens the
    interval of white noise by 3 to 10 %.
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
        # Blocks shorter than the optimum then make the interval too wide, not too narrow: safe to shorten.
        automatic = min(automatic, n // MIN_BLOCKS)
    return max(1, math.ceil(max(automatic, min(math.sqrt(n), float(n // MIN_BLOCKS)))))


def _block_variance(x: Array, length: int) -> float:
    """Return the long-run variance from all overlapping blocks (Meketon & Schmeiser 1984)."""
    sums = np.concatenate(([0.0], np.cumsum(x)))
    blocks = sums[length:] - sums[:-length]
    # A block deviates from the mean of a series it is part of: too little by (n - b) / n.
    return float(blocks @ blocks) / blocks.size / length * x.size / (x.size - length)


def _standard_error(residual: Array, length: int) -> float:
    """Return the standard error of the mean of a centred series from blocks of `length`.

    Blocks lose correlation across their edges, so the variance is too small by a term in 1 / length;
    extrapolating from length / 2 and length removes it ("lugsail", Vats & Flegal 2022). It may only widen.
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


def throughput_within(step_seconds: ArrayLike, images: ArrayLike) -> Throughput:
    """Return images over time of a run's steady window, with a 95 % interval that allows for autocorrelation.

    The bootstrap gives the shape (skew); the scale is the block standard error with Student's t, because with
    8 to 30 blocks the plain percentile interval is too narrow. Simulated coverage: test_stats.py.
    """
    seconds = checked_seconds(step_seconds)
    counts = np.broadcast_to(np.asarray(images, dtype=np.float64), seconds.shape)
    num_steps, total_seconds, total_images = seconds.size, float(seconds.sum()), float(counts.sum())
    if num_steps == 0 or total_seconds <= 0 or not counts.min() > 0:
        raise ResultError(f"no throughput from {num_steps} steps, {total_images} images, {total_seconds} s")
    rate = total_images / total_seconds
    if num_steps < MIN_STEADY_STEPS:
        why = f"not established: {format_count(num_steps, 'steady step')}, {MIN_STEADY_STEPS} needed"
        return Throughput(rate, None, why, num_steps)
    size = math.ceil(num_steps / MAX_BINS)
    seconds, counts = sum_bins(seconds, size), sum_bins(counts, size)
    n = seconds.size
    residual = seconds / seconds.mean() - counts / counts.mean()  # linearised log of seconds per image
    length = _choose_block_length(residual)
    if n < MIN_BLOCKS * length:
        why = f"not established: the steps depend on each other over {length * size} steps, which leaves"
        why += f" {n // length} independent blocks, {MIN_BLOCKS} needed"
        return Throughput(rate, None, why, num_steps)
    # Log of seconds per image, relative to what was measured, by moving blocks. The series is closed to a ring
    # (Politis & Romano 1992): otherwise the first and last steps count less.
    starts = np.random.default_rng(_SEED).integers(0, n, (_NUM_RESAMPLES, n // length))
    ratio = np.ones(_NUM_RESAMPLES)
    for values, power in ((seconds, 1), (counts, -1)):
        ring = np.concatenate((values, values[:length])) / values.mean()
        sums = np.concatenate(([0.0], np.cumsum(ring)))
        ratio *= (sums[starts + length] - sums[starts]).sum(axis=1) ** power
    drawn = np.log(np.maximum(ratio, 1e-300))  # blocks of zeros, from a clock that stood still
    deviation = float(drawn.std())
    # Without any spread there is no shape to take from the draws, and nothing to widen.
    shape = np.quantile(drawn, [0.025, 0.975]) / deviation if deviation > 1e-12 else np.array([-_Z975, _Z975])
    reach = shape * (_t_factor(n, length) / _Z975 * _standard_error(residual, length))
    low, high = float(rate * math.exp(-reach[1])), float(rate * math.exp(-reach[0]))
    return Throughput(rate, (low, high), "within this run", num_steps)


def half_width_quick(step_seconds: ArrayLike) -> float | None:
    """Return the relative 95 % half-width without resampling, or None when there are too few steps.

    The same blocks and corrections as throughput_within, for equal images in each step; cheap enough to ask
    while the run goes on.
    """
    seconds = checked_seconds(step_seconds)
    if seconds.size < MIN_STEADY_STEPS:
        return None
    seconds = sum_bins(seconds, math.ceil(seconds.size / MAX_BINS))
    mean = float(seconds.mean())
    length = _choose_block_length(seconds)
    if seconds.size < MIN_BLOCKS * length or mean <= 0:
        return None
    return _t_factor(seconds.size, length) * _standard_error(seconds / mean - 1, length)


def precise_enough(step_seconds: ArrayLike, half_width: float = TARGET_HALF_WIDTH) -> bool:
    """Say whether a run may stop: the steady window's interval is narrow enough, and not by luck.

    Asking again and again and stopping at the first yes prefers moments at which the variance looks small
    (Glynn & Whitt 1992). So the answer must be yes, as far as fewer steps allow, at 70 to 100 % of the window.
    """
    seconds = checked_seconds(step_seconds)
    for share in (1.0, 0.9, 0.8, 0.7):
        reached = half_width_quick(seconds[: round(share * seconds.size)])
        if reached is None or reached > half_width / math.sqrt(share):
            return False
    return True


def throughput_between(run_means: Sequence[float]) -> Throughput:
    """Return the mean of runs' images per second, with Student's t over runs (Kalibera & Jones 2013)."""
    rate = float(np.mean(run_means))
    if len(run_means) < 2:
        return Throughput(rate, None, "not established: 1 run, 2 needed", len(run_means))
    reach = student_t_reach(run_means)
    return Throughput(rate, (rate - reach, rate + reach), "between runs", len(run_means))


def student_t_reach(values: ArrayLike) -> float:
    """Return the half-width of Student's 95 % interval of the mean of at least two independent values."""
    sample = np.asarray(values, dtype=np.float64)
    return student_t_quantile(0.975, sample.size - 1) * float(sample.std(ddof=1)) / math.sqrt(sample.size)


def spread(step_seconds: ArrayLike) -> dict[str, float]:
    """Return median, p5, p95, p99 and the median absolute deviation (mad, not scaled); a mean hides the tails."""
    seconds = checked_seconds(step_seconds)
    quantiles = np.quantile(seconds, [0.5, 0.05, 0.95, 0.99]).tolist()
    mad = float(np.median(np.abs(seconds - quantiles[0])))
    return dict(zip(("median", "p5", "p95", "p99", "mad"), [*quantiles, mad], strict=True))


def minimum_detectable(differences: Sequence[float]) -> NoiseFloor:
    mean, pairs = float(np.mean(differences)), len(differences)
    if pairs < 2:
        return NoiseFloor(mean, None, None, None, pairs)
    floor = student_t_reach(differences)
    power = 1 + student_t_quantile(0.80, pairs - 1) / student_t_quantile(0.975, pairs - 1)
    return NoiseFloor(mean, (mean - floor, mean + floor), floor, power * floor, pairs)


@lru_cache(maxsize=4096)
def student_t_quantile(p: float, df: float) -> float:
    """Invert Student's t distribution for 0 < p < 1 and df >= 1, to about 1e-9 relative.

    The integrand falls, so the integral is concave and Newton's steps from a = 0 stay left of the root: no overshoot.
    """
    if p < 0.5:
        return -student_t_quantile(1.0 - p, df)
    scale = _scale(df)
    angle = 0.0
    for _ in range(200):
        step = (p - 0.5 - scale * _integrate(0.0, angle, df)) / (scale * math.cos(angle) ** (df - 1))
        angle += step
        if abs(step) <= 1e-12 * angle:
            break
    return math.sqrt(df) * math.tan(angle)


def student_t_tail(t: float, df: float) -> float:
    """Return P(T > t) for t >= 0 and df >= 1, small ones too: half of a two-sided p-value."""
    angle = math.atan2(t, math.sqrt(df))
    scale = _scale(df)
    # Where the integrand is 1e-18 of its largest value it is over; further out the nodes would miss what counts.
    end = math.acos(10 ** (-18 / (df - 1))) if df > 1 else math.pi / 2
    tail = 0.5 - scale * _integrate(0.0, min(angle, end), df)
    if tail > _SMALL_TAIL:
        return tail
    end = math.acos(math.cos(angle) * 10 ** (-18 / (df - 1))) if df > 1 else math.pi / 2
    return max(0.0, scale * _integrate(angle, end, df))


def _integrate(low: float, high: float, df: float) -> float:
    nodes, weights = _gauss_legendre()
    return 0.5 * (high - low) * float(weights @ np.cos(low + (high - low) * nodes) ** (df - 1))


def _scale(df: float) -> float:
    """Return C, the ratio of two gamma functions; large ones by their series: a difference of logs is noise."""
    if df > 1e4:
        return math.sqrt(df / 2) * (1 - 1 / (4 * df) + 1 / (32 * df**2)) / math.sqrt(math.pi)
    return math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(math.pi)


@lru_cache(maxsize=1)
def _gauss_legendre() -> tuple[Array, Array]:
    """Nodes on [0, 1] and weights that sum to 2."""
    nodes, weights = np.polynomial.legendre.leggauss(40)
    return (nodes + 1) / 2, weights


@dataclass(frozen=True, slots=True)
class Steady:
    from_step: int  # first step of the steady window
    steady: bool
    trend_percent: float | None
    """Change of the step time from the first to the last tenth of the window; positive = getting slower."""


@dataclass(frozen=True, slots=True)
class Outliers:
    steps: tuple[int, ...]
    kind: str  # none | isolated | periodic (checkpoint, loader refill) | clustered


def find_steady(step_seconds: ArrayLike) -> Steady:
    seconds = checked_seconds(step_seconds)
    n = seconds.size
    if n < 2:
        return Steady(0, False, None)
    # Logs around the usual level, clipped so that no single step decides. The usual level and scatter are those of the
    # second half, which no cut may touch: a long warm-up must not pass for scatter. Quantiles beside the MAD, because
    # the MAD of a bimodal series (t or 1.3 t) can be zero.
    floor = max(float(np.median(seconds)) * 1e-3, 1e-12)  # a clock may say 0, its log must not be -inf
    logs = np.log(np.maximum(seconds, floor))
    half = logs[n // 2 :]
    low, centre, high = (float(q) for q in np.quantile(half, [0.1, 0.5, 0.9]))
    limit = _CLIP * max(1.4826 * float(np.median(np.abs(half - centre))), (high - low) / 2.563, _SMALLEST_SCALE)
    level = np.clip(logs - centre, -limit, limit)
    start = _find_cut(level)
    if n - start >= MIN_JUDGED_STEPS and start > n // 10 and not _is_plateau(level, start):
        # MSER halves any series with a slope, and so the evidence for a drift. Take the slope out first and
        # cut only what is warm-up beside it; each round knows the slope better.
        for _ in range(3):
            steps = np.arange(level.size) - (start + level.size - 1) / 2
            inside = steps[start:]
            start = _find_cut(level - steps * (float(inside @ level[start:]) / float(inside @ inside)))
    while start < n // 2 and level[start] >= limit:
        start += 1
    window = level[start:]
    if window.size < MIN_JUDGED_STEPS:
        return Steady(start, False, None)
    tenth = max(1, window.size // 10)
    trend = 100 * math.expm1(float(window[-tenth:].mean() - window[:tenth].mean()))
    return Steady(start, not _is_drift(window), trend)


def _find_cut(level: Array) -> int:
    """Return the number of steps to leave out: step by step, then on batch means for a slow warm-up.

    A single slow step is seen best alone; a slope hidden in noise is seen best in means, whose noise is
    smaller (White, Cobb & Spratt 2000 use batches of 5 for the same reason).
    """
    most = level.size // 2
    cut = _minimise_mser(level, most)
    size = (level.size - cut) // _NUM_BATCHES
    if size > 1:
        batches = sum_bins(level[cut:], size) / size
        cut += size * _minimise_mser(batches, (most - cut) // size)
    # MSER stops where the rest of a decay drowns in the noise, where it still biases the mean (simulated: at 100
    # steps with 4 % noise the interval covered 91 to 93 % instead of 94 to 95). So cut half as much again.
    return min(cut + cut // 2, most)


def _minimise_mser(level: Array, most: int) -> int:
    """Return the d <= most with the least squared standard error of the mean of level[d:] (MSER, White 1997).

    Each step carries at least the variance of _SMALLEST_SCALE, so that a blip in a constant series cuts
    nothing, and what is cut must differ from the rest by 3 standard errors, as MSER alone cuts noise, too. In
    a very long series only every k-th step past the beginning is tried; the sums stay exact.
    """
    fine = min(most, MAX_BINS)
    coarse = np.linspace(fine, most, MAX_BINS if most > fine else 1)
    cuts = np.unique(np.concatenate((np.arange(fine + 1), coarse.astype(np.int64))))
    left = level.size - cuts
    total = np.cumsum(np.add.reduceat(level, cuts)[::-1])[::-1]
    squares = np.cumsum(np.add.reduceat(level * level, cuts)[::-1])[::-1]
    variance = (squares - total**2 / left) / left + _SMALLEST_SCALE**2
    best = int(np.argmin(variance / left))
    cut, rest = int(cuts[best]), int(left[best])
    if cut == 0:
        return 0
    usual, noise = total[best] / rest, variance[best]
    shift = level[:cut].mean() - usual
    scatter = np.square(level[:cut] - usual).mean()  # slow steps may be balanced by fast ones before a drift
    differs = abs(shift) > 3 * math.sqrt(noise * (1 / cut + 1 / rest)) or scatter > 4 * noise
    return cut if differs else 0


def _is_plateau(level: Array, start: int) -> bool:
    """Say whether the series levels off at `start`: it moves far less after the cut than across it.

    A straight line cut in the middle moves 2/3 as much after the cut (between thirds) as across it.
    """
    means = [float(third.mean()) for third in np.array_split(level[start:], 3)]
    return max(means) - min(means) <= abs(float(level[:start].mean() - level[start:].mean())) / 3


def _is_drift(window: Array) -> bool:
    """Say whether the largest difference between thirds of the window is a drift.

    It is one when it matters (DRIFT_LIMIT) and noise does not explain it. There is no limit "regardless of
    noise": thirds of 50 steps of t or 1.3 t differ by 5 % as a rule.
    """
    size = math.ceil(window.size / MAX_BINS)
    window = sum_bins(window, size) / size
    thirds = np.array_split(window, 3)
    means = [float(third.mean()) for third in thirds]
    difference = max(means) - min(means)
    # What is left around a curve (a drift) or around the two quieter thirds' own means (a jump in the other):
    # the better description tells the noise, or a drift would pass for correlated noise.
    steps = np.linspace(-1, 1, window.size)
    around_curve = window - np.polyval(np.polyfit(steps, window, 2), steps)
    around_means = sorted((third - third.mean() for third in thirds), key=lambda piece: float(piece @ piece))
    noise = min(around_curve, np.concatenate(around_means[:2]), key=lambda residual: float(residual.var()))
    return difference > max(DRIFT_LIMIT, _noise_of_thirds(noise, window.size))


def _noise_of_thirds(residual: Array, n: int) -> float:
    """Return the largest difference between thirds of n steps that AR(1) noise like `residual` explains.

    Student's t with Bonferroni for three differences. The lag-1 correlation is corrected for the bias of short
    pieces (Kendall 1954: (1 + 3 rho) / length, here three thirds).
    """
    # Below that scale what is left is the shape of a smooth curve: correlated, but no noise.
    rho = float(autocorrelation(residual, 1)[1]) if residual.std() > _SMALLEST_SCALE else 0.0
    rho = min(0.97, max(0.0, rho + 3 * (1 + 3 * rho) / n))
    independent = n * (1 - rho) / (1 + rho)
    variance = max(float(residual @ residual) / (residual.size - 2), _SMALLEST_SCALE**2)
    critical = student_t_quantile(1 - DRIFT_LEVEL / 6, max(1, math.floor(independent * 2 / 3) - 2))
    return critical * math.sqrt(variance * 6 / independent)


def find_outliers(step_seconds: ArrayLike) -> Outliers:
    """Flag steps more than 5 robust standard deviations off (Iglewicz & Hoaglin 1993); nothing is deleted.

    The floor of 1 % of the median and 50 us keeps a MAD near zero from firing (hyperfine issue 580). The
    quartiles keep a second mode from being flagged: what a quarter of all steps do is no outlier.
    """
    seconds = checked_seconds(step_seconds)
    if seconds.size == 0:
        return Outliers((), "none")
    low, median, high = (float(q) for q in np.quantile(seconds, [0.25, 0.5, 0.75]))
    distance = np.abs(seconds - median)
    scale = max(1.4826 * float(np.median(distance)), (high - low) / 1.349)
    flagged = np.flatnonzero(distance > max(5 * scale, 0.01 * median, 50e-6))
    return Outliers(tuple(flagged.tolist()), _name_pattern(flagged, seconds.size))


def _name_pattern(steps: NDArray[np.int64], n: int) -> str:
    if steps.size == 0:
        return "none"
    # Neighbours are one event: a checkpoint may slow two steps.
    events = steps[np.diff(steps, prepend=-2) > 1]
    if events.size >= 4:
        gaps = np.diff(events)
        usual = float(np.median(gaps))
        near = np.abs(gaps - usual) <= max(1.0 if usual >= 5 else 0.0, 0.1 * usual)
        if near.mean() >= 0.75:
            return "periodic"
    # Independent outliers have a median gap of 0.7 n / k; a tenth of the mean gap needs a cause.
    if steps.size >= 3 and float(np.median(np.diff(steps))) <= max(1.0, 0.1 * n / steps.size):
        return "clustered"
    return "isolated"
