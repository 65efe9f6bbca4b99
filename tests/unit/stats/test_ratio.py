"""Ratios with known answers, and simulated rates of false and missed claims.

Simulations are seeded; docs/explanation/comparing.md has the table they belong to.
"""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from support.builders.results import draw_ar1
from trainstone.results.findings import finding
from trainstone.results.interleaved import build_comparison, gather_findings
from trainstone.results.schema.run import Throughput
from trainstone.stats import ratio, throughput
from trainstone.stats.ratio import MIN_ROUNDS, Paired, compare_blocks

CLAIMS = ("faster", "slower")
IMAGES = 32
RATES = st.lists(st.floats(10, 1000), min_size=1, max_size=6)


def make(rate: float, ci95: tuple[float, float] | None = None, covers: str = "within this run") -> Throughput:
    return Throughput.model_construct(images_per_second=rate, ci95=ci95, ci_covers=covers)  # fast: not checked


def estimate(a: list[float], b: list[float]) -> ratio.Estimate:
    spread = [[make(rate, (rate * 0.99, rate * 1.01)) for rate in side] for side in (a, b)]
    return ratio.estimate_ratio(*spread)


def share_claimed(
    seed: int, sizes: tuple[int, int], deviations: tuple[float, float], floor=0.02, effect=1.0, tails=None
):
    """Return how often a difference is claimed in 1000 comparisons.

    Run means of A and B are log-normal with these deviations; `tails`: degrees of freedom of Student's t instead.
    """
    rng = np.random.default_rng(seed)

    def draw(n: int, centre: float, deviation: float) -> list[Throughput]:
        kicks = rng.standard_t(tails, n) / math.sqrt(tails / (tails - 2)) if tails else rng.standard_normal(n)
        return [make(rate) for rate in (centre * np.exp(deviation * kicks)).tolist()]

    claimed = 0
    for _ in range(1000):
        got = ratio.estimate_ratio(draw(sizes[0], 100 * effect, deviations[0]), draw(sizes[1], 100, deviations[1]))
        claimed += ratio.assess_ratio(got.ratio, got.ci95, got.p_value, floor) in CLAIMS
    return claimed / 1000


@pytest.mark.parametrize(
    ("sizes", "deviations", "more"),
    [
        ((5, 5), (0.005, 0.005), {"floor": 0.01}),
        ((5, 5), (0.03, 0.03), {}),
        ((5, 5), (0.03, 0.03), {"tails": 3}),
        ((2, 2), (0.03, 0.03), {}),
        ((1, 5), (0.03, 0.03), {}),
        # Few and many. Plain Welch: 9.6 % with 2 and 10, 6.2 % with 2 and 5.
        ((2, 5), (0.03, 0.03), {}),
        ((2, 10), (0.03, 0.03), {}),
        ((10, 2), (0.01, 0.03), {}),
        ((3, 10), (0.03, 0.01), {}),
    ],
)
def test_estimate_ratio_of_equal_runs_rarely_claims_difference(sizes, deviations, more):
    assert share_claimed(6, sizes, deviations, **more) <= 0.06


def test_estimate_ratio_with_more_runs_finds_at_least_as_much():
    """With n - 1 degrees of freedom only 1 % would be found with 2 and 5 runs, 35 % with 3 and 5."""
    sizes = ((2, 2), (2, 5), (3, 3), (3, 5), (5, 5))
    found = [share_claimed(7, one, (0.02, 0.02), effect=1.05) for one in sizes]
    assert found[1] > found[0] > 0.10
    assert found[3] > found[2] > 0.45
    assert found[4] >= 0.85


@pytest.mark.parametrize(("phi", "most"), [(0.0, 0.05), (0.5, 0.07)])
def test_estimate_ratio_of_equal_single_runs_rarely_claims_difference(phi, most):
    """Noise within runs only: single runs cannot show changes between runs."""
    claimed = []
    for pair in 1 + 0.05 * draw_ar1(4, 300, 200, phi).reshape(150, 2, 200):
        within = [throughput.estimate_within_run(seconds, IMAGES) for seconds in pair]
        got = ratio.estimate_ratio(*[[make(run.images_per_second, run.ci95)] for run in within])
        claimed.append(ratio.assess_ratio(got.ratio, got.ci95, got.p_value, 0.01) in CLAIMS)
    assert np.mean(claimed) <= most


@pytest.mark.parametrize(
    ("b", "most"), [([90.0, 91.0, 95.0], math.inf), ([90.0, 91.0, 95.0, 96.0], 3.0), ([90.0, 95.0], 1.5)]
)
def test_estimate_ratio_matches_scipy_welch_with_limited_df(b, most):
    """Unequal sides get at most 1.5 (n - 1), n the smaller number."""
    a = [100.0, 104.0, 108.0]
    got = estimate(a, b)
    welch = scipy.stats.ttest_ind(np.log(a), np.log(b), equal_var=False)
    df, difference = min(welch.df, most), np.log(a).mean() - np.log(b).mean()
    half = scipy.stats.t.ppf(0.975, df) * difference / welch.statistic
    assert got.ratio == pytest.approx(math.exp(difference))
    assert got.ci95 == pytest.approx((math.exp(difference - half), math.exp(difference + half)))
    assert got.p_value == pytest.approx(2 * scipy.stats.t.sf(welch.statistic, df))
    assert got.ci_covers == "between runs"


def test_estimate_ratio_of_one_and_several_is_crawford_howell():
    b = [99.0, 100.0, 101.0, 102.0]
    got = estimate([110.0], b)
    half = scipy.stats.t.ppf(0.975, 3) * np.log(b).std(ddof=1) * math.sqrt(1 + 1 / 4)
    assert got.ratio == pytest.approx(110 / math.exp(np.log(b).mean()))
    assert got.ci95[1] == pytest.approx(got.ratio * math.exp(half))
    assert got.ci_covers == "between runs; the spread of the 4 runs of B is assumed for the single run"
    assert "4 runs of A" in estimate(b, [110.0]).ci_covers


def test_estimate_ratio_of_single_runs_adds_half_widths_in_quadrature():
    a, b = make(110.0, (107.0, 112.0)), make(100.0, (99.0, 103.0))
    got = ratio.estimate_ratio([a], [b])
    low = math.hypot(math.log(110 / 107), math.log(103 / 100))
    high = math.hypot(math.log(112 / 110), math.log(100 / 99))
    assert got.ci95 == pytest.approx((1.1 * math.exp(-low), 1.1 * math.exp(high)))
    assert got.ci_covers == "within each run"


NO_INTERVAL = make(100.0, None, "not established: 13 steady steps, 20 needed")


@pytest.mark.parametrize(
    ("a", "b", "covers"),
    [
        (make(1.0, (0.9, 1.1), "between runs"), make(1.0, (0.9, 1.1)), "A: between runs; B: within this run"),
        (NO_INTERVAL, make(90.0, (89.0, 91.0)), "not established: A: 13 steady steps, 20 needed"),
        (NO_INTERVAL, NO_INTERVAL, "not established: A: 13 steady steps, 20 needed; B: 13 steady steps, 20 needed"),
    ],
)
def test_estimate_ratio_describes_interval_or_why_it_is_missing(a, b, covers):
    got = ratio.estimate_ratio([a], [b])
    assert got.ci_covers == covers
    assert (got.ci95 is None) == (got.p_value is None) == covers.startswith("not")
    # Several runs have a spread of their own.
    assert ratio.estimate_ratio([a], [make(90.0), make(91.0)]).ci95 is not None


@given(a=RATES, b=RATES)
def test_estimate_ratio_swapped_is_inverse_and_p_value_matches_interval(a, b):
    there, back = estimate(a, b), estimate(b, a)
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert there.ci95[0] == pytest.approx(1 / back.ci95[1], rel=1e-6)
    assert there.p_value == pytest.approx(back.p_value, abs=1e-9)
    if min(abs(math.log(end)) for end in there.ci95) > 1e-9:
        assert (there.p_value < 0.05) == (there.ci95[0] > 1 or there.ci95[1] < 1)


def test_estimate_ratio_of_runs_without_spread_is_certain():
    assert estimate([100.0, 100.0], [100.0, 100.0]).p_value == 1.0
    got = estimate([110.0, 110.0], [100.0, 100.0])
    assert (got.p_value, got.ci95) == (0.0, pytest.approx((1.1, 1.1)))


def test_estimate_share_returns_share_per_device():
    one = ratio.estimate_share([make(800.0, (790.0, 810.0))], 200.0, per=8)
    assert one.ratio == pytest.approx(0.5)
    assert one.ci95 == pytest.approx((790 / 1600, 810 / 1600))
    assert (one.ci_covers, one.p_value) == ("of the run; the published figure has none", None)
    several = ratio.estimate_share([make(99.0), make(101.0)], 100.0)
    assert several.ci95[0] < several.ratio < several.ci95[1]
    assert ratio.estimate_share([make(99.0, None, "not established: why")], 100.0).ci95 is None


def test_correct_holm_matches_hand_calculation():
    # Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1 is 0.04, 0.06, 0.06, 0.04; never less than the one before.
    assert ratio.correct_holm([0.03, 0.01, None, 0.04, 0.02]) == pytest.approx([0.06, 0.04, None, 0.06, 0.06])
    assert ratio.correct_holm([0.7, 0.8]) == pytest.approx([1.0, 1.0])
    assert ratio.correct_holm([]) == []


@pytest.mark.parametrize(
    ("value", "ci95", "p_holm", "floor", "expected"),
    [
        (1.05, (1.02, 1.08), 0.01, 0.02, "faster"),
        (0.95, (0.92, 0.98), 0.01, 0.02, "slower"),
        (1.05, (0.99, 1.11), 0.06, 0.02, "no difference shown"),
        (1.05, (1.02, 1.08), 0.06, 0.02, "no difference shown"),  # one of many rows
        (1.015, (1.01, 1.02), 0.001, 0.02, "no difference shown"),  # within the noise of the machine
        (0.985, (0.98, 0.99), 0.001, 0.02, "no difference shown"),
        (1.05, None, None, 0.02, "not assessed"),
    ],
)
def test_assess_needs_interval_p_value_and_noise_floor(value, ci95, p_holm, floor, expected):
    assert ratio.assess_ratio(value, ci95, p_holm, floor) == expected


def test_correct_holm_limits_false_claims_of_many_rows():
    rng = np.random.default_rng(5)
    wrong = 0
    for _ in range(100):
        drawn = 100 * np.exp(0.03 * rng.standard_normal((20, 2, 5)))
        rows = [ratio.estimate_ratio(*[[make(rate) for rate in side] for side in pair]) for pair in drawn]
        corrected = ratio.correct_holm([row.p_value for row in rows])
        outcomes = [ratio.assess_ratio(row.ratio, row.ci95, p, 0.02) for row, p in zip(rows, corrected, strict=True)]
        wrong += any(outcome in CLAIMS for outcome in outcomes)
    assert wrong / 100 <= 0.07  # 20 rows without the correction: 0.6


LABELS, RUNS = {"A": "x=1", "B": "x=2"}, {"A": "points/a", "B": "points/b"}


def rounds_of(*log_ratios: float) -> Paired:
    """Rounds of 100 images per block; a block of A takes exp(-ratio) seconds, one of B one second."""
    seconds = [[math.exp(-ratio), 1.0, 1.0, math.exp(-ratio)] for ratio in log_ratios]
    return compare_blocks(np.full((len(seconds), 4), 100.0), seconds)


def test_compare_blocks_matches_hand_calculation():
    """Log ratios 1 to 6 %: mean 0.035, standard deviation sqrt(3.5) %, t(0.975, 5) = 2.570582, t = 4.5826."""
    paired = rounds_of(0.01, 0.02, 0.03, 0.04, 0.05, 0.06)
    half = 2.570581836 * 0.0187082869 / math.sqrt(6)
    assert paired.ratio == pytest.approx(math.exp(0.035))
    assert paired.ci95 == pytest.approx((math.exp(0.035 - half), math.exp(0.035 + half)))
    angle = math.atan(0.035 / 0.0187082869 * math.sqrt(6) / math.sqrt(5))
    # Student's t with 5 degrees of freedom has a closed form (Abramowitz & Stegun 26.7.3).
    inside = 2 / math.pi * (angle + math.sin(angle) * (math.cos(angle) + 2 / 3 * math.cos(angle) ** 3))
    assert paired.p_value == pytest.approx(1 - inside, rel=1e-6)
    assert paired.ci_covers == "interleaved blocks"
    assert paired.noise_floor == pytest.approx(0.0, abs=1e-12)  # no change within a variant
    assert paired.outcome == "faster"


@pytest.mark.parametrize(
    ("ratio", "p_value", "outcome"), [(0.1, 0.0, "faster"), (-0.1, 0.0, "slower"), (0.0, 1.0, "no difference shown")]
)
def test_compare_blocks_of_constant_difference_is_certain(ratio: float, p_value: float, outcome: str):
    paired = rounds_of(*[ratio] * 8)
    assert (paired.p_value, paired.outcome) == (pytest.approx(p_value, abs=1e-12), outcome)


def test_compare_blocks_below_noise_floor_shows_no_difference():
    """Within each round both variants get slower by +-c; A is exactly 1 % faster in every round."""
    changes = np.array([1, -1, 1, -1, 1, -1]) * 0.03
    levels = np.stack([0.01 - changes / 2, -changes / 2, changes / 2, 0.01 + changes / 2], axis=1)
    paired = compare_blocks(np.ones((6, 4)), np.exp(-levels))
    floor = 2.570581836 * float(np.std(changes, ddof=1)) / math.sqrt(6)
    assert paired.noise_floor == pytest.approx(math.expm1(floor))
    assert paired.ci95 is not None
    assert paired.ci95[0] > 1  # the interval alone would claim it
    assert paired.outcome == "no difference shown"


def test_compare_blocks_cancels_linear_drift():
    """Each image takes slightly longer than the previous one; A's blocks have 6 images, B's 8."""
    costs = iter(1 + 0.004 * np.arange(1000))
    images = [6, 8, 8, 6] * 10
    seconds = [sum(next(costs) for _ in range(count)) for count in images]
    paired = compare_blocks(images, seconds)
    assert seconds[-1] > 2 * seconds[0]
    assert paired.ratio == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(("num_rounds", "message"), [(1, "1 complete round"), (MIN_ROUNDS - 1, "5 complete rounds")])
def test_compare_blocks_with_few_rounds_has_no_interval(num_rounds: int, message: str):
    paired = rounds_of(*[0.5] * num_rounds)
    assert paired.ratio == pytest.approx(math.exp(0.5))
    assert (paired.ci95, paired.p_value, paired.noise_floor) == (None, None, None)
    assert paired.ci_covers == f"not established: {message} A B B A, 6 needed"
    assert paired.outcome == "not assessed"


def test_compare_blocks_without_rounds_raises_value_error():
    with pytest.raises(ValueError, match="no complete round"):
        compare_blocks([], [])


@pytest.mark.parametrize(("rho", "drift"), [(0.0, 0.0), (0.0, 0.3), (0.5, 0.3), (0.9, 0.3)])
@pytest.mark.parametrize(("effect", "outcome", "share"), [(0.0, "no difference shown", 0.95), (0.05, "faster", 0.9)])
def test_compare_blocks_simulated_claims_are_reliable(
    rho: float, drift: float, effect: float, outcome: str, share: float
):
    """20 rounds of 4-step blocks: AR(1) noise of 5 % per step, a linear drift over the run, B slower by `effect`.

    At most 1 in 20 comparisons of equal variants claims a difference; a real 5 % is found.
    """
    steps = np.exp(0.05 * draw_ar1(5, 300, 20 * 4 * 4, rho) + np.linspace(0, drift, 20 * 4 * 4))
    seconds = steps.reshape(300, 20, 4, 4).sum(axis=3)
    seconds[:, :, 1:3] *= 1 + effect
    outcomes = [compare_blocks(np.ones((20, 4)), run).outcome for run in seconds]
    assert outcomes.count(outcome) / 300 >= share
    assert not effect or "slower" not in outcomes


def test_build_comparison_has_row_and_verdict():
    paired = rounds_of(0.01, 0.02, 0.03, 0.04, 0.05, 0.06)
    comparison = build_comparison(paired, "resnet50", LABELS, RUNS, ["train.batch_size: 2 and 1"])
    (row,) = comparison.rows
    assert (row.label, row.a.label, row.b.runs) == ("resnet50", "x=1", ["points/b"])
    assert row.p_holm == row.p_value
    assert row.differences == ["train.batch_size: 2 and 1"]
    assert comparison.geometric_mean is None
    assert comparison.verdict == (
        "A (x=1) is 1.036 times as fast as B (x=2) (1.015 … 1.056; 95 %, interleaved blocks): faster"
    )


def test_gather_findings_names_arms():
    chosen, slow = finding("precision-chosen", "took fp32"), finding("precision-slow", "bf16 crawls")
    gathered = gather_findings({"A": [chosen], "B": [chosen, slow]})
    assert [found.message for found in gathered] == ["A and B: took fp32", "B: bf16 crawls"]
    assert [found.code for found in gathered] == ["precision-chosen", "precision-slow"]
