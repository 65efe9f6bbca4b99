"""Warm-up, drift, noise and outliers with known answers for results/steady.py. Simulations are seeded."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_results import draw_ar1
from trainstone.results.stats import half_width_quick
from trainstone.results.steady import find_outliers, find_steady


def noisy(shape: np.ndarray, *, sd: float = 0.01) -> np.ndarray:
    return shape * np.exp(np.random.default_rng(1).normal(0, sd, shape.size))


def marked(n: int, marks: dict[int, float]) -> np.ndarray:
    shape = np.ones(n)
    shape[list(marks)] = list(marks.values())
    return shape


@pytest.mark.parametrize("n", [0, 1, 2, 3, 10, 19])
def test_few_steps_are_not_judged_but_lose_their_slow_first_one(n):
    got = find_steady(np.ones(n))
    assert (got.from_step, got.steady, got.trend_percent) == (0, False, None)
    if n > 1:
        assert find_steady([60.0] + [0.1] * (n - 1)).from_step == 1


@pytest.mark.parametrize("n", [20, 21, 200])
def test_a_constant_series_is_steady_from_the_start(n):
    got = find_steady(np.full(n, 0.1))
    assert (got.from_step, got.steady, got.trend_percent) == (0, True, 0.0)


STEPS = np.arange(1000)
MODES = np.where(np.random.default_rng(2).random(1000) < 0.5, 1.0, 1.3)


@pytest.mark.parametrize(
    ("seconds", "first", "last"),
    [
        *((noisy(marked(n, {0: 50.0})), 1, 4) for n in (50, 200, 1000, 30_000)),
        # A decaying warm-up: at step 26 it is 1 % slow, as much as the noise.
        *((noisy(1 + 2 * np.exp(-STEPS[:n] / 5)), 20, 60) for n in (100, 200, 1000)),
        (noisy(np.where(STEPS[:300] < 20, 1.5, 1.0)), 20, 40),
        (MODES * (1 + 0.3 * np.exp(-STEPS / 80)), 80, 500),  # hidden in bimodal noise
        (noisy(np.where(STEPS[:300] < 90, 1.0, 1.15)), 90, 140),  # throttled to a level where it stays
        (noisy(marked(200, {0: 30.0, 1: 3.0, 90: 500.0})), 2, 6),  # one late outlier moves nothing
        (0.1 * marked(100, {30: 2.0}), 0, 0),
    ],
)
def test_warm_up_is_cut_where_it_ends(seconds, first, last):
    got = find_steady(seconds)
    assert got.steady
    assert first <= got.from_step <= last


@pytest.mark.parametrize(
    ("seconds", "least", "most"),
    [
        (noisy(1 + np.exp(-STEPS[:100] / 60)), -math.inf, -5),  # a warm-up longer than half
        *((noisy(1 + 0.1 * np.linspace(0, 1, n), sd=0.005), 7.5, 12.5) for n in (60, 200, 1000)),
        *((noisy(1 - 0.1 * np.linspace(0, 1, n), sd=0.005), -12.5, -7.5) for n in (60, 200, 1000)),
        (noisy((1 + 2 * np.exp(-STEPS[:300] / 5)) * (1 + 0.1 * STEPS[:300] / 300)), 5, 12.5),  # behind a warm-up
        *((noisy(np.where(STEPS[:200] < share * 200, 1.0, 1.15)), 13, 17) for share in (2 / 3, 0.9)),  # a late change
        *((np.linspace(0.5, 0.5 * (1 + drift), 200), *sorted((0, 150 * drift))) for drift in (0.05, 0.1, 0.2, -0.1)),
    ],
)
def test_a_drift_is_seen_with_its_size(seconds, least, most):
    got = find_steady(seconds)
    assert not got.steady
    assert least <= got.trend_percent <= most
    assert got.from_step <= max(len(seconds) // 2, 100)


def test_a_hump_in_the_middle_is_not_steady():
    got = find_steady(noisy(np.where((STEPS[:300] > 120) & (STEPS[:300] < 180), 1.2, 1.0)))
    assert not got.steady or got.from_step >= 120


# Measured with 1000 replications, false alarms in percent at n = 50 / 100 / 200 (1000: below 1):
# phi 0.5, 3 % noise: 6.1 2.5 1.8; phi 0.8, 2 %: 7.6 4.9 2.6; phi 0.8, 3 %: 9.2 7.2 2.6; t or 1.3 t: 1.2 0.6 1.1.
# A drift of 10 % is found at n = 50 / 100 / 200 / 1000: white 1 % noise: 100 100 100 100; phi 0.5, 3 %: 47 80 88 97;
# phi 0.8, 2 %: 33 51 77 98; phi 0.8, 3 %: 31 31 66 95; t or 1.3 t: 6 9 36 91.
@pytest.mark.parametrize(
    ("series", "alarms"),
    [
        *((np.exp(sd * draw_ar1(4, 400, 200, phi)), 0.05) for phi, sd in ((0.5, 0.03), (0.8, 0.02), (0.8, 0.03))),
        *((np.exp(0.03 * draw_ar1(5, 100, n, 0.0)), 0.05) for n in (30, 200, 2000)),
        (np.where(np.random.default_rng(3).random((200, 200)) < 0.5, 0.1, 0.13), 0.03),
    ],
)
def test_noise_is_nearly_always_steady_and_hardly_cut(series, alarms):
    got = [find_steady(seconds) for seconds in series]
    assert np.mean([not result.steady for result in got]) <= alarms
    assert np.median([result.from_step for result in got]) < 0.1 * series.shape[1]


def test_the_interval_of_the_window_that_was_found_still_covers():
    series = (1 + 0.04 * draw_ar1(6, 300, 200, 0.3)) * (1 + 2 * np.exp(-np.arange(200) / 4))
    windows = [seconds[find_steady(seconds).from_step :] for seconds in series]
    reach = [half_width_quick(window) or math.nan for window in windows]
    assert np.mean([abs(window.mean() - 1) <= one for window, one in zip(windows, reach, strict=True)]) >= 0.90


def test_a_million_steps():
    seconds = np.random.default_rng(7).normal(0.1, 0.003, 1_000_000)
    seconds[[0, 2]] = 60.0
    got = find_steady(seconds)
    assert got.steady
    assert 3 <= got.from_step <= 10


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([0.0, 1e-9, 0.1, 0.1001, 0.13, 7.0, 1e6]), max_size=120))
def test_any_durations_are_judged_without_warnings(seconds):
    got = find_steady(seconds)
    assert 0 <= got.from_step <= len(seconds) // 2
    assert got.trend_percent is None or math.isfinite(got.trend_percent)
    find_outliers(seconds)


@pytest.mark.parametrize(
    "seconds",
    [
        np.ones(0),
        np.ones(1),
        np.full(50, 0.1),
        noisy(np.ones(300)),
        0.1 * marked(100, {7: 1.009}),  # a MAD of zero: 0.9 % does not count
        1e-4 * marked(100, {7: 1.4}),  # nor do 40 us
        np.where(np.random.default_rng(8).random(200) < 0.4, 0.13, 0.1),  # a second mode
    ],
)
def test_series_without_outliers(seconds):
    got = find_outliers(seconds)
    assert (got.steps, got.kind) == ((), "none")


@pytest.mark.parametrize(
    ("steps", "kind"),
    [
        ([50], "isolated"),
        ([20, 170], "isolated"),
        ([13, 60, 71, 150, 190], "isolated"),
        ([20, 60, 100, 140, 180], "periodic"),
        ([20, 61, 100, 139, 180], "periodic"),
        ([20, 21, 60, 61, 100, 101, 140, 141], "periodic"),
        (list(range(7, 200, 8)), "periodic"),
        ([90, 91, 92, 93], "clustered"),
        ([90, 92, 93, 95, 99], "clustered"),
    ],
)
@pytest.mark.parametrize("factor", [1.5, 0.5])
def test_outliers_are_flagged_and_named(steps, kind, factor):
    got = find_outliers(noisy(marked(200, dict.fromkeys(steps, factor))))
    assert (got.steps, got.kind) == (tuple(steps), kind)


def test_random_outliers_are_seldom_called_periodic_or_clustered():
    rng = np.random.default_rng(9)
    drawn = [marked(400, dict.fromkeys(rng.choice(400, 8, replace=False), 2.0)) for _ in range(200)]
    assert sum(find_outliers(shape).kind == "isolated" for shape in drawn) >= 190
