"""What interleaved blocks say in a result: of two variants, and of steps with and without gradient all-reduce."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from trainstone.results.schema.run import Communication, Comparison, ComparisonRow, Finding, Side
from trainstone.results.verdicts import write_row_verdict
from trainstone.stats.ratio import INNER, MIN_ROUNDS, OUTER, Paired
from trainstone.stats.student_t import student_t_reach
from trainstone.units import format_bytes, format_interval, format_percent, format_seconds


def write_comparison(
    paired: Paired, name: str, labels: Mapping[str, str], runs: Mapping[str, str], differences: Sequence[str]
) -> Comparison:
    a, b = (Side(label=labels[arm], runs=[runs[arm]], images_per_second=paired.rates[arm]) for arm in "AB")
    row = ComparisonRow(
        label=name,
        a=a,
        b=b,
        **{name: value for name, value in asdict(paired).items() if name != "rates"},
        p_holm=paired.p_value,  # there is one row, so nothing to correct for
        differences=list(differences),
    )
    return Comparison(rows=[row], verdict=write_row_verdict(row))


def assess_gradient_sync(sizes: Communication, seconds: Sequence[Sequence[Sequence[float]]]) -> Communication:
    """Hold steps with exchange (A) against those without (B): ranks, rounds, seconds of the four blocks A B B A.

    Of each block the slowest rank counts: with exchange all wait for it, so that it takes longer is no communication.
    A round is one observation; the interval is Student's t over rounds, from six on.
    """
    slowest = np.asarray(seconds, dtype=np.float64).reshape(len(seconds), -1, 4).max(axis=0)
    with_it, without = slowest[:, OUTER].mean(axis=1), slowest[:, INNER].mean(axis=1)
    exposed = with_it - without
    interval, rounds = None, len(exposed)
    if rounds >= MIN_ROUNDS:
        error = student_t_reach(exposed)
        interval = float(exposed.mean()) - error, float(exposed.mean()) + error
    # With an interval its middle; of few rounds the median, which one disturbed round moves less.
    cost = float(exposed.mean()) if interval else float(np.median(exposed))
    share = cost / float(np.median(with_it))
    return sizes.model_copy(update={"exposed_seconds": cost, "exposed_ci95": interval, "share": share})


def describe_gradient_sync(communication: Communication) -> str:
    """Return 102 MB of gradients a step; 31 ms of it not hidden, 8.1 % of a step."""
    size = f"{format_bytes(communication.gradient_bytes)} of gradients a step"
    exposed, share, interval = communication.exposed_seconds, communication.share, communication.exposed_ci95
    if exposed is None or share is None:
        return f"{size}; what it costs was not measured"
    if exposed <= 0 or (interval is not None and interval[0] <= 0):
        most = f" (at most {format_seconds(interval[1])})" if interval and interval[1] > 0 else ""
        return f"{size}; it costs less than the noise{most}"
    spread = f" ({format_interval(interval, format_seconds)})" if interval else ""
    return f"{size}; it makes a step {format_seconds(exposed)} longer{spread}, {format_percent(share)} of it"


def gather_findings(by_arm: Mapping[str, Sequence[Finding]]) -> list[Finding]:
    """List the findings of both arms, each with the arm's name before it; what both have stands once."""
    arms: dict[Finding, list[str]] = {}
    for arm, findings in by_arm.items():
        for found in findings:
            arms.setdefault(found, []).append(arm)
    return [
        found.model_copy(update={"message": f"{' and '.join(named)}: {found.message}"}) for found, named in arms.items()
    ]
