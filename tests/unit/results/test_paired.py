import math

import numpy as np
import pytest

from made_series import draw_ar1
from trainstone.results.checks import finding
from trainstone.results.ratio import MIN_ROUNDS, Paired, compare_blocks, gather_findings, write_comparison

LABELS, RUNS = {"A": "x=1", "B": "x=2"}, {"A": "points/a", "B": "points/b"}


def rounds_of(*log_ratios: float) -> Paired:
    """Rounds of 100 images a block whose A takes exp(-ratio) seconds a block, B one second."""
    seconds = [[math.exp(-ratio), 1.0, 1.0, math.exp(-ratio)] for ratio in log_ratios]
    return compare_blocks(np.full((len(seconds), 4), 100.0), seconds)


def test_a_known_answer():
    """Log ratios 1 to 6 %: mean 0.035, standard deviation sqrt(3.5) %, t(0.975, 5) = 2.570582, t = 4.5826."""
    paired = rounds_of(0.01, 0.02, 0.03, 0.04, 0.05, 0.06)
    reach = 2.570581836 * 0.0187082869 / math.sqrt(6)
    assert paired.ratio == pytest.approx(math.exp(0.035))
    assert paired.ci95 == pytest.approx((math.exp(0.035 - reach), math.exp(0.035 + reach)))
    angle = math.atan(0.035 / 0.0187082869 * math.sqrt(6) / math.sqrt(5))
    # Student's t with 5 degrees of freedom has a closed form (Abramowitz & Stegun 26.7.3).
    inside = 2 / math.pi * (angle + math.sin(angle) * (math.cos(angle) + 2 / 3 * math.cos(angle) ** 3))
    assert paired.p_value == pytest.approx(1 - inside, rel=1e-6)
    assert paired.ci_covers == "interleaved blocks"
    assert paired.noise_floor == pytest.approx(0.0, abs=1e-12)  # nothing changes within an arm
    assert paired.judgement == "faster"


@pytest.mark.parametrize(
    ("ratio", "p_value", "judgement"), [(0.1, 0.0, "faster"), (-0.1, 0.0, "slower"), (0.0, 1.0, "no difference shown")]
)
def test_a_constant_difference_is_certain(ratio: float, p_value: float, judgement: str):
    paired = rounds_of(*[ratio] * 8)
    assert (paired.p_value, paired.judgement) == (pytest.approx(p_value, abs=1e-12), judgement)


def test_the_noise_floor_is_known_and_holds_a_claim_back():
    """Within each round both arms get slower by +-c; A is 1 % faster in every round, with no scatter at all."""
    changes = np.array([1, -1, 1, -1, 1, -1]) * 0.03
    levels = np.stack([0.01 - changes / 2, -changes / 2, changes / 2, 0.01 + changes / 2], axis=1)
    paired = compare_blocks(np.ones((6, 4)), np.exp(-levels))
    floor = 2.570581836 * float(np.std(changes, ddof=1)) / math.sqrt(6)
    assert paired.noise_floor == pytest.approx(math.expm1(floor))
    assert paired.ci95 is not None
    assert paired.ci95[0] > 1  # the interval alone would claim it
    assert paired.judgement == "no difference shown"


def test_an_even_drift_cancels_also_with_blocks_of_unlike_length():
    """Each image takes a little longer than the one before; A's blocks have 6 images, B's 8."""
    costs = iter(1 + 0.004 * np.arange(1000))
    images = [6, 8, 8, 6] * 10
    seconds = [sum(next(costs) for _ in range(count)) for count in images]
    paired = compare_blocks(images, seconds)
    assert seconds[-1] > 2 * seconds[0]
    assert paired.ratio == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(("num_rounds", "told"), [(1, "1 complete round"), (MIN_ROUNDS - 1, "5 complete rounds")])
def test_too_few_rounds_are_not_judged(num_rounds: int, told: str):
    paired = rounds_of(*[0.5] * num_rounds)
    assert paired.ratio == pytest.approx(math.exp(0.5))
    assert (paired.ci95, paired.p_value, paired.noise_floor) == (None, None, None)
    assert paired.ci_covers == f"not established: {told} A B B A, 6 needed"
    assert paired.judgement == "not judged"


def test_no_round_at_all_is_our_own_mistake():
    with pytest.raises(ValueError, match="no complete round"):
        compare_blocks([], [])


@pytest.mark.parametrize(("rho", "drift"), [(0.0, 0.0), (0.0, 0.3), (0.5, 0.3), (0.9, 0.3)])
@pytest.mark.parametrize(("effect", "judgement", "share"), [(0.0, "no difference shown", 0.95), (0.05, "faster", 0.9)])
def test_simulated_claims(rho: float, drift: float, effect: float, judgement: str, share: float):
    """20 rounds of 4-step blocks: AR(1) noise of 5 % per step, a linear drift over the run, B slower by `effect`.

    Of the same thing twice at most one in twenty is claimed to differ; a real 5 % is found.
    """
    steps = np.exp(0.05 * draw_ar1(5, 300, 20 * 4 * 4, rho) + np.linspace(0, drift, 20 * 4 * 4))
    seconds = steps.reshape(300, 20, 4, 4).sum(axis=3)
    seconds[:, :, 1:3] *= 1 + effect
    judged = [compare_blocks(np.ones((20, 4)), run).judgement for run in seconds]
    assert judged.count(judgement) / 300 >= share
    assert not effect or "slower" not in judged


def test_the_row_and_its_verdict():
    paired = rounds_of(0.01, 0.02, 0.03, 0.04, 0.05, 0.06)
    comparison = write_comparison(paired, "resnet50", LABELS, RUNS, ["train.batch_size: 2 and 1"])
    (row,) = comparison.rows
    assert (row.label, row.a.label, row.b.runs) == ("resnet50", "x=1", ["points/b"])
    assert row.p_holm == row.p_value
    assert row.differences == ["train.batch_size: 2 and 1"]
    assert comparison.geometric_mean is None
    assert comparison.verdict == (
        "A (x=1) is 1.036 times as fast as B (x=2) (1.015 … 1.056; 95 %, interleaved blocks): faster"
    )


def test_findings_name_their_arms():
    chosen, slow = finding("precision-chosen", "took fp32"), finding("precision-slow", "bf16 crawls")
    gathered = gather_findings({"A": [chosen], "B": [chosen, slow]})
    assert [found.message for found in gathered] == ["A and B: took fp32", "B: bf16 crawls"]
    assert [found.code for found in gathered] == ["precision-chosen", "precision-slow"]
