import pytest

from trainstone.results.exchange import judge_exchange, tell_exchange
from trainstone.results.schema import Communication

SIZES = Communication(gradient_bytes=102_000_000, bucket_bytes=25 * 2**20)


def test_what_drifts_evenly_is_no_exchange():
    rounds = [[1.2 + 4 * n / 100, 1.01 + 4 * n / 100, 1.02 + 4 * n / 100, 1.23 + 4 * n / 100] for n in range(7)]
    told = judge_exchange(SIZES, [rounds])
    assert told.exposed_seconds == pytest.approx(0.2)
    assert told.exposed_ci95 == pytest.approx((0.2, 0.2))
    assert told.share == pytest.approx(0.2 / 1.335)


def test_a_slower_rank_is_no_exchange():
    quick, slow = [1.5, 0.9, 0.9, 1.5], [1.5, 1.4, 1.4, 1.5]
    told = judge_exchange(SIZES, [[quick] * 2, [slow] * 2])
    assert told.exposed_seconds == pytest.approx(0.1)
    assert told.exposed_ci95 is None  # of two rounds


def test_one_disturbed_round_of_few_does_not_decide():
    rounds = [[1.1, 1.0, 1.0, 1.1], [1.1, 1.0, 1.0, 1.1], [9.0, 1.0, 1.0, 9.0]]
    assert judge_exchange(SIZES, [rounds]).exposed_seconds == pytest.approx(0.1)


def test_what_noise_hides_stays_below_zero_and_is_told_so():
    told = judge_exchange(SIZES, [[[1.0, 1.1, 1.1, 1.0]] * 2])
    assert told.exposed_seconds == pytest.approx(-0.1)
    assert "it costs less than the noise" in tell_exchange(told)
    wide = SIZES.model_copy(update={"exposed_seconds": 0.01, "exposed_ci95": (-0.01, 0.03), "share": 0.01})
    assert "less than the noise (at most 30 ms)" in tell_exchange(wide)


def test_it_is_told_with_its_interval_and_what_was_not_measured_is_not():
    told = SIZES.model_copy(update={"exposed_seconds": 0.031, "exposed_ci95": (0.03, 0.032), "share": 0.081})
    assert tell_exchange(told) == (
        "97.3 MiB of gradients a step; it makes a step 31 ms longer (30 ms … 32 ms), 8.1 % of it"
    )
    assert tell_exchange(SIZES) == "97.3 MiB of gradients a step; what it costs was not measured"
