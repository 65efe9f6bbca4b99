"""Step durations with autocorrelated noise."""

import math

import numpy as np


def draw_ar1(seed: int, num: int, n: int, phi: float, *, skewed: bool = False) -> np.ndarray:
    """Return `num` series of unit variance; skewed ones are driven by exponential noise."""
    rng = np.random.default_rng(seed)
    kicks = rng.exponential(size=(num, n + 100)) - 1 if skewed else rng.standard_normal((num, n + 100))
    for step in range(1, n + 100):
        kicks[:, step] += phi * kicks[:, step - 1]
    return kicks[:, 100:] * math.sqrt(1 - phi**2)
