"""Results of interleaved blocks: two variants compared, and the cost of the gradient all-reduce."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from trainstone.results.schema.run import Communication, Comparison, ComparisonRow, Finding, Side
from trainstone.results.verdicts import format_row_verdict
from trainstone.stats.ratio import INNER, MIN_ROUNDS, OUTER, Paired
from trainstone.stats.student_t import student_t_half_width
from trainstone.units import format_bytes, format_interval, format_percent, format_seconds


def build_comparison(
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
    return Comparison(rows=[row], verdict=format_row_verdict(row))


def assess_gradient_sync(sizes: Communication, seconds: Sequence[Sequence[Sequence[float]]]) -> Communication:
    """Compare steps with gradient all-reduce (A) and without (B); `seconds`: ranks, rounds, four blocks A B B A.

    Of each block the slowest rank counts: with all-reduce the others wait for it, which is not communication.
    A round is one observation; from six rounds on there is an interval, Student's t over rounds.
    """
    slowest = np.asarray(seconds, dtype=np.float64).reshape(len(seconds), -1, 4).max(axis=0)
    synced, unsynced = slowest[:, OUTER].mean(axis=1), slowest[:, INNER].mean(axis=1)
    exposed = synced - unsynced
    interval, rounds = None, len(exposed)
    if rounds >= MIN_ROUNDS:
        error = student_t_half_width(exposed)
        interval = float(exposed.mean()) - error, float(exposed.mean()) + error
    # With few rounds the median, which one disturbed round moves less.
    cost = float(exposed.mean()) if interval else float(np.median(exposed))
    share = cost / float(np.median(synced))
    return sizes.model_copy(update={"exposed_seconds": cost, "exposed_ci95": interval, "share": share})


def describe_gradient_sync(communication: Communication) -> str:
    """Format e.g. 97.3 MiB of gradients per step; all-reduce adds 31 ms per step, 8.1 % of the step time."""
    size = f"{format_bytes(communication.gradient_bytes)} of gradients per step"
    exposed, share, interval = communication.exposed_seconds, communication.share, communication.exposed_ci95
    if exposed is None or share is None:
        return f"{size}; the cost of all-reduce was not measured"
    if exposed <= 0 or (interval is not None and interval[0] <= 0):
        most = f" (at most {format_seconds(interval[1])})" if interval and interval[1] > 0 else ""
        return f"{size}; all-reduce costs less than the noise{most}"
    spread = f" ({format_interval(interval, format_seconds)})" if interval else ""
    added = f"{format_seconds(exposed)} per step{spread}"
    return f"{size}; all-reduce adds {added}, {format_percent(share)} of the step time"


def gather_findings(by_arm: Mapping[str, Sequence[Finding]]) -> list[Finding]:
    """List the findings of both arms, prefixed with the arm's name; one that both have is listed once."""
    arms: dict[Finding, list[str]] = {}
    for arm, findings in by_arm.items():
        for found in findings:
            arms.setdefault(found, []).append(arm)
    return [
        found.model_copy(update={"message": f"{' and '.join(named)}: {found.message}"}) for found, named in arms.items()
    ]
