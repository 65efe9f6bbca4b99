"""Find where the steady state of a run begins, whether it drifts, and which steps are outliers."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainstone.stats.series import MAX_BINS, Array, autocorrelation, check_seconds, sum_bins
from trainstone.stats.student_t import student_t_quantile

MIN_ASSESSED_STEPS = 20
"""A shorter window is not assessed: with thirds of 5 steps a slope and correlated noise look the same."""
DRIFT_LIMIT = 0.02  # smaller differences between thirds of the window are ignored (a linear drift of 3 %)
DRIFT_LEVEL = 0.01  # false alarms for white noise. Simulated with 200 steps of AR(1) 0.8 noise: 2 to 3 %
_CLIP = 5.0  # robust standard deviations: limits the influence of a single step
_SMALLEST_SCALE = 1e-3  # 0.1 %: smaller variation does not justify a cut
_NUM_BATCHES = 40


@dataclass(frozen=True, slots=True)
class Steady:
    from_step: int  # first step of the steady window
    steady: bool
    trend_percent: float | None
    """Change of the step time from the first to the last tenth of the window; positive: steps get slower."""


@dataclass(frozen=True, slots=True)
class Outliers:
    steps: tuple[int, ...]
    kind: str  # none | isolated | periodic (checkpoint, loader refill) | clustered


def find_steady(step_seconds: ArrayLike) -> Steady:
    """Return the steady window: what remains after the warm-up, unless it drifts."""
    seconds = check_seconds(step_seconds)
    n = seconds.size
    if n < 2:
        return Steady(0, False, None)
    # Logs relative to the usual level, clipped so that no single step decides. Level and variation are those of the
    # second half, which is never cut: a long warm-up must not count as variation. Quantiles besides the MAD, because
    # the MAD of a bimodal series (t or 1.3 t) can be zero.
    floor = max(float(np.median(seconds)) * 1e-3, 1e-12)  # a clock may return 0, whose log is -inf
    logs = np.log(np.maximum(seconds, floor))
    half = logs[n // 2 :]
    low, centre, high = (float(q) for q in np.quantile(half, [0.1, 0.5, 0.9]))
    limit = _CLIP * max(1.4826 * float(np.median(np.abs(half - centre))), (high - low) / 2.563, _SMALLEST_SCALE)
    level = np.clip(logs - centre, -limit, limit)
    start = _find_cut(level)
    if n - start >= MIN_ASSESSED_STEPS and start > n // 10 and not _is_plateau(level, start):
        # MSER halves any series with a slope, and with it the evidence for a drift. Remove the slope first and
        # cut only the warm-up; each round estimates the slope better.
        for _ in range(3):
            steps = np.arange(level.size) - (start + level.size - 1) / 2
            inside = steps[start:]
            start = _find_cut(level - steps * (float(inside @ level[start:]) / float(inside @ inside)))
    while start < n // 2 and level[start] >= limit:
        start += 1
    window = level[start:]
    if window.size < MIN_ASSESSED_STEPS:
        return Steady(start, False, None)
    tenth = max(1, window.size // 10)
    trend = 100 * math.expm1(float(window[-tenth:].mean() - window[:tenth].mean()))
    return Steady(start, not _is_drift(window), trend)


def _find_cut(level: Array) -> int:
    """Return the number of steps to cut: first step by step, then on batch means for a slow warm-up.

    Single steps show a single slow step best; batch means, which have less noise, show a slope best (White, Cobb &
    Spratt 2000 use batches of 5 for the same reason).
    """
    most = level.size // 2
    cut = _minimise_mser(level, most)
    size = (level.size - cut) // _NUM_BATCHES
    if size > 1:
        batches = sum_bins(level[cut:], size) / size
        cut += size * _minimise_mser(batches, (most - cut) // size)
    # MSER stops where noise hides the rest of a decay, which still biases the mean (simulated: with 100 steps and 4 %
    # noise the interval covered 91 to 93 % instead of 94 to 95). So cut half as much again.
    return min(cut + cut // 2, most)


def _minimise_mser(level: Array, most: int) -> int:
    """Return the d <= most with the least squared standard error of the mean of level[d:] (MSER, White 1997).

    Each step has at least the variance of _SMALLEST_SCALE, so that a blip in a constant series cuts nothing. The cut
    steps must differ from the rest by 3 standard errors, since MSER alone also cuts noise. In a very long series only
    every k-th step past the beginning is tried; the sums stay exact.
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
    """Return whether the series levels off at `start`: it changes far less after the cut than across it.

    A straight line cut in the middle changes 2/3 as much after the cut (between thirds) as across it.
    """
    means = [float(third.mean()) for third in np.array_split(level[start:], 3)]
    return max(means) - min(means) <= abs(float(level[:start].mean() - level[start:].mean())) / 3


def _is_drift(window: Array) -> bool:
    """Return whether the largest difference between thirds of the window is a drift.

    It must exceed DRIFT_LIMIT and what noise explains. No limit is independent of noise: thirds of 50 steps of
    t or 1.3 t typically differ by 5 %.
    """
    size = math.ceil(window.size / MAX_BINS)
    window = sum_bins(window, size) / size
    thirds = np.array_split(window, 3)
    means = [float(third.mean()) for third in thirds]
    difference = max(means) - min(means)
    # Noise: the residuals around a curve (a drift) or around the means of the two quieter thirds (a jump in the other),
    # whichever fits better; otherwise a drift would look like correlated noise.
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
    # Smaller residuals are the shape of a smooth curve: correlated, but not noise.
    rho = float(autocorrelation(residual, 1)[1]) if residual.std() > _SMALLEST_SCALE else 0.0
    rho = min(0.97, max(0.0, rho + 3 * (1 + 3 * rho) / n))
    independent = n * (1 - rho) / (1 + rho)
    variance = max(float(residual @ residual) / (residual.size - 2), _SMALLEST_SCALE**2)
    critical = student_t_quantile(1 - DRIFT_LEVEL / 6, max(1, math.floor(independent * 2 / 3) - 2))
    return critical * math.sqrt(variance * 6 / independent)


def find_outliers(step_seconds: ArrayLike) -> Outliers:
    """Flag steps more than 5 robust standard deviations off (Iglewicz & Hoaglin 1993); nothing is deleted.

    The floor of 1 % of the median and 50 us prevents false flags when the MAD is near zero (hyperfine issue 580). The
    quartiles prevent flagging a second mode: a quarter of all steps are not outliers.
    """
    seconds = check_seconds(step_seconds)
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
    # Adjacent steps are one event: a checkpoint may slow two steps.
    events = steps[np.diff(steps, prepend=-2) > 1]
    if events.size >= 4:
        gaps = np.diff(events)
        usual = float(np.median(gaps))
        near = np.abs(gaps - usual) <= max(1.0 if usual >= 5 else 0.0, 0.1 * usual)
        if near.mean() >= 0.75:
            return "periodic"
    # Independent outliers have a median gap of 0.7 n / k; a tenth of the mean gap has a cause.
    if steps.size >= 3 and float(np.median(np.diff(steps))) <= max(1.0, 0.1 * n / steps.size):
        return "clustered"
    return "isolated"
