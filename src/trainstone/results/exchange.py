"""What the exchange of gradients costs, from blocks of steps with it and without it in turn, A B B A. Pure.

Who runs them: train/exchange.py.
"""

import statistics
from collections.abc import Sequence

import numpy as np

from trainstone.results.paired import INNER, MIN_ROUNDS, OUTER
from trainstone.results.schema import Communication
from trainstone.results.student import student_t_quantile
from trainstone.units import format_bytes, format_percent, format_seconds


def judge_exchange(sizes: Communication, seconds: Sequence[Sequence[Sequence[float]]]) -> Communication:
    """Hold steps with exchange (A) against those without (B): ranks, rounds, seconds of the four blocks A B B A.

    Of each block the slowest rank counts: with exchange all wait for it, so that it takes longer is no communication.
    A round is one observation; the interval is Student's t over rounds, from six on.
    """
    slowest = np.asarray(seconds, dtype=np.float64).reshape(len(seconds), -1, 4).max(axis=0)
    with_it, without = slowest[:, OUTER].mean(axis=1), slowest[:, INNER].mean(axis=1)
    exposed = with_it - without
    interval, rounds = None, len(exposed)
    if rounds >= MIN_ROUNDS:
        error = statistics.stdev(exposed.tolist()) / rounds**0.5 * student_t_quantile(0.975, rounds - 1)
        interval = float(exposed.mean()) - error, float(exposed.mean()) + error
    # With an interval its middle; of few rounds the median, which one disturbed round moves less.
    cost = float(exposed.mean()) if interval else float(np.median(exposed))
    return sizes.model_copy(
        update={"exposed_seconds": cost, "exposed_ci95": interval, "share": cost / float(np.median(with_it))}
    )


def tell_exchange(communication: Communication) -> str:
    """Return 102 MB of gradients a step; 31 ms of it not hidden, 8.1 % of a step."""
    size = f"{format_bytes(communication.gradient_bytes)} of gradients a step"
    exposed, share, interval = communication.exposed_seconds, communication.share, communication.exposed_ci95
    if exposed is None or share is None:
        return f"{size}; what it costs was not measured"
    if exposed <= 0 or (interval is not None and interval[0] <= 0):
        most = f" (at most {format_seconds(interval[1])})" if interval and interval[1] > 0 else ""
        return f"{size}; it costs less than the noise{most}"
    spread = f" ({format_seconds(interval[0])} … {format_seconds(interval[1])})" if interval else ""
    return f"{size}; it makes a step {format_seconds(exposed)} longer{spread}, {format_percent(share)} of it"
