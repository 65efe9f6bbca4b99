"""Series of step durations: validation, binning, autocorrelation."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainstone.errors import ResultError

Array = NDArray[np.float64]
MAX_BINS = 10_000  # longer series are binned first: more points make the interval slower, not better


def check_seconds(step_seconds: ArrayLike) -> Array:
    seconds = np.asarray(step_seconds, dtype=np.float64)
    if seconds.ndim != 1:
        raise ValueError(f"step durations must be a 1-D array, not {seconds.ndim}-D")
    valid = np.isfinite(seconds) & (seconds >= 0)
    if not valid.all():
        step = int(np.argmin(valid))
        raise ResultError(f"invalid duration of step {step}: {seconds[step]} s; expected a finite value of at least 0")
    return seconds


def sum_bins(x: Array, size: int) -> Array:
    return x if size == 1 else x[: x.size // size * size].reshape(-1, size).sum(axis=1)


def autocorrelation(x: ArrayLike, max_lag: int) -> Array:
    """Return the autocorrelation at lags 0..max_lag (at most n - 1); a constant series has 1, 0, 0, ..."""
    values = np.asarray(x, dtype=np.float64)
    max_lag = min(max_lag, values.size - 1)
    centred = values - values.mean()
    size = 1 << int(values.size + max_lag).bit_length()  # zero padding, so that the FFT does not wrap around
    spectrum = np.fft.rfft(centred, size)
    covariance: Array = np.fft.irfft(spectrum.real**2 + spectrum.imag**2, size)[: max_lag + 1]
    # Rounding of the mean alone gives a variance of this order; its autocorrelation is meaningless.
    if covariance[0] <= values.size * (1e-14 * float(np.abs(values).max())) ** 2:
        covariance[:] = 0.0
        covariance[0] = 1.0
    return covariance / float(covariance[0])
