"""Judges two variants that ran in turn, A B B A, block by block: ratio, interval, noise floor, verdict. Pure.

A round is four blocks in that order. What drifts evenly slows the outer two (A) as much as the inner two (B), so only
whole rounds count, and a round is one observation. Who runs them: train/interleave.py.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainstone.results.ratio import Estimate, from_error, judge
from trainstone.results.schema import Communication, Comparison, ComparisonRow, Finding, Judgement, Side
from trainstone.results.stats import student_t_quantile, student_t_reach
from trainstone.results.verdicts import write_row_verdict
from trainstone.units import format_bytes, format_count, format_interval, format_percent, format_seconds

Array = NDArray[np.float64]

ORDER = "ABBA"
MIN_ROUNDS = 6
"""Below this no interval: one disturbed round would be a fifth of the evidence or more, and t beyond 2.7."""
OUTER, INNER = [0, 3], [1, 2]


@dataclass(frozen=True, slots=True)
class Paired(Estimate):
    """What the rounds say."""

    noise_floor: float | None
    judgement: Judgement
    rates: dict[str, float]
    """Images a second of A and of B over these rounds."""
    num_rounds: int


def compare_blocks(images: ArrayLike, seconds: ArrayLike) -> Paired:
    """Compare A with B: one row a round, four columns, the blocks A B B A.

    The ratio is the geometric mean over rounds of images / time of both A blocks over the same of both B blocks, the
    interval Student's t on the logarithms.

    The noise floor is the half-width of the same interval made of changes within an arm: half of A's change from its
    first to its last block plus half of B's. Where blocks are independent that has the variance of a round's log ratio;
    where the machine wanders it has more, since A's blocks lie three apart; and no difference of A and B is in it.
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
        return Paired(math.exp(mean), None, why, None, None, "not judged", rates, rounds)
    levels = np.log(counts / times)
    changes = (levels[:, 3] - levels[:, 0] + levels[:, 2] - levels[:, 1]) / 2
    estimate = from_error(mean, _standard_error(ratios), rounds - 1, "interleaved blocks")
    floor = math.expm1(student_t_quantile(0.975, rounds - 1) * _standard_error(changes))
    judgement = judge(estimate.ratio, estimate.ci95, estimate.p_value, floor)
    return Paired(**asdict(estimate), noise_floor=floor, judgement=judgement, rates=rates, num_rounds=rounds)


def write_comparison(
    paired: Paired, name: str, labels: Mapping[str, str], runs: Mapping[str, str], differences: Sequence[str]
) -> Comparison:
    """Make the one row of `bench --against`; labels and runs are those of A and B."""
    a, b = (Side(label=labels[arm], runs=[runs[arm]], images_per_second=paired.rates[arm]) for arm in "AB")
    row = ComparisonRow(
        label=name,
        a=a,
        b=b,
        ratio=paired.ratio,
        ci95=paired.ci95,
        ci_covers=paired.ci_covers,
        p_value=paired.p_value,
        p_holm=paired.p_value,  # there is one row, so nothing to correct for
        noise_floor=paired.noise_floor,
        judgement=paired.judgement,
        differences=list(differences),
    )
    return Comparison(rows=[row], verdict=write_row_verdict(row))


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
        error = student_t_reach(exposed)
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


def _log_rates(counts: Array, times: Array, blocks: list[int]) -> Array:
    """Return a round's log images per second over two of its blocks."""
    return np.asarray(np.log(counts[:, blocks].sum(axis=1) / times[:, blocks].sum(axis=1)))


def _standard_error(values: Array) -> float:
    return float(values.std(ddof=1)) / math.sqrt(values.size)
