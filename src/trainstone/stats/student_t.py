"""Student's t distribution without scipy: quantiles, tails, half-width of the interval of a mean."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from trainstone.stats.series import Array

# Smaller tails are integrated directly: 1 minus the distribution would be rounding error.
_SMALL_TAIL = 5e-4


def student_t_half_width(values: ArrayLike) -> float:
    """Return the half-width of Student's 95 % interval of the mean of at least two independent values."""
    sample = np.asarray(values, dtype=np.float64)
    return student_t_quantile(0.975, sample.size - 1) * float(sample.std(ddof=1)) / math.sqrt(sample.size)


@lru_cache(maxsize=4096)
def student_t_quantile(p: float, df: float) -> float:
    """Return the quantile of Student's t distribution for 0 < p < 1 and df >= 1, to about 1e-9 relative.

    The integrand decreases, so the integral is concave and Newton's method from 0 never overshoots.
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
    """Return P(T > t) for t >= 0 and df >= 1, accurate for small tails: half of a two-sided p-value."""
    angle = math.atan2(t, math.sqrt(df))
    scale = _scale(df)
    # Stop where the integrand is 1e-18 of its maximum: on a longer range the nodes would miss the peak.
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
    """Return C, the ratio of two gamma functions; for large df by series, since a difference of logs loses digits."""
    if df > 1e4:
        return math.sqrt(df / 2) * (1 - 1 / (4 * df) + 1 / (32 * df**2)) / math.sqrt(math.pi)
    return math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(math.pi)


@lru_cache(maxsize=1)
def _gauss_legendre() -> tuple[Array, Array]:
    """Nodes on [0, 1] and weights that sum to 2."""
    nodes, weights = np.polynomial.legendre.leggauss(40)
    return (nodes + 1) / 2, weights
