"""The knee of a sweep, what else it could be, and the fit of step time: from numbers alone."""

import itertools
import random

import pytest

from made_sweep import make_row, make_sweep, steps_of
from trainstone.results.knee import (
    NEAR,
    POOR_FIT,
    Measured,
    could_be_knee,
    find_knee,
    fit_steps,
    is_behind,
    is_rising,
    list_measured,
)


def between(*intervals: tuple[float, float]) -> list[Measured]:
    """Points at 1, 2, 3 ... with these intervals."""
    rows = [make_row(value, (low + high) / 2, ci95=(low, high)) for value, (low, high) in enumerate(intervals, start=1)]
    return list_measured(rows)


def test_the_knee_is_the_smallest_within_five_percent_of_the_best():
    sweep = make_sweep(make_row(1, 2.0), make_row(2, 3.5), make_row(4, 4.56), make_row(8, 4.7), make_row(16, 4.65))
    (knee,) = sweep.knees
    assert (knee.value, knee.best_value) == (4, 8)
    assert knee.share_of_best == pytest.approx(4.56 / 4.7)


def test_exactly_five_percent_below_is_within():
    for rate, value in ((95.0, 1), (94.9, 2)):
        points = list_measured([make_row(1, rate), make_row(2, 100.0), make_row(4, 100.0)])
        assert find_knee(points).value == value


def test_the_order_of_rows_does_not_matter():
    rows = [make_row(8, 10.0), make_row(1, 3.0), make_row(4, 9.9)]
    assert make_sweep(*rows).knees == make_sweep(*reversed(rows)).knees != []


def test_while_the_speed_rises_there_is_no_knee():
    rising = [make_row(1, 1.0), make_row(2, 2.0)]
    assert is_rising(list_measured(rising))
    assert make_sweep(*rising).knees == []
    # A third point as fast ends it
    assert find_knee(list_measured([*rising, make_row(4, 2.05)])).value == 2
    assert not is_rising(list_measured([make_row(1, 1.0)]))
    assert not is_rising(list_measured([make_row(1, 96.0, 0.001), make_row(2, 100.0, 0.001)]))


def test_only_intervals_that_are_apart_make_a_rise_or_a_fall():
    slow, fast = (list_measured([make_row(1, rate, 0.06)])[0] for rate in (90.0, 100.0))
    assert not is_behind(slow, fast)
    slow, fast = (list_measured([make_row(1, rate, 0.04)])[0] for rate in (90.0, 100.0))
    assert is_behind(slow, fast)
    unsure = list_measured([make_row(1, 90.0, 0.06), make_row(2, 100.0, 0.06)])
    assert not is_rising(unsure)
    assert (find_knee(unsure).value, find_knee(unsure).could_be) == (2, [1])


def test_intervals_say_what_else_could_be_the_knee():
    narrow = make_sweep(make_row(1, 5.0), make_row(2, 9.3), make_row(4, 10.0), make_row(8, 10.1))
    assert narrow.knees[0].value == 4
    assert narrow.knees[0].could_be == []
    wide = make_sweep(make_row(1, 5.0), make_row(2, 9.3, 0.05), make_row(4, 10.0, 0.05), make_row(8, 10.1, 0.05))
    assert wide.knees[0].could_be == [2, 8]


def test_what_could_be_the_knee_needs_one_best_for_all():
    points = between((99, 101), (96, 98.9), (90, 130))
    assert [could_be_knee(points, point) for point in points] == [True, False, True]
    # A best that only the smaller one can have does not make it slow
    points = between((97, 130), (95, 100))
    assert [could_be_knee(points, point) for point in points] == [True, False]


def test_what_could_be_is_what_some_rates_inside_the_intervals_make():
    chance = random.Random(1)
    for _ in range(60):
        ends = [sorted(chance.uniform(80, 130) for _ in range(2)) for _ in range(3)]
        points = between(*((low, high) for low, high in ends))
        steps = [[p.low + (p.high - p.low) * share / 8 for share in range(9)] for p in points]
        found = set()
        for rates in itertools.product(*steps):
            found.add(next(place for place, rate in enumerate(rates) if rate >= (1 - NEAR) * max(rates)))
        assert found <= {place for place, point in enumerate(points) if could_be_knee(points, point)}


def test_without_all_intervals_nothing_else_is_named():
    rows = [make_row(1, 5.0), make_row(2, 9.3, 0.05), make_row(4, 10.0, 0.05), make_row(8, 10.1, None)]
    assert make_sweep(*rows).knees[0].could_be == []


def test_a_knee_is_always_one_of_those_that_could_be():
    points = list_measured([make_row(1, 3.0), make_row(2, 4.0, None), make_row(4, 4.1, 0.2)])
    knee = find_knee(points)
    assert could_be_knee(points, next(point for point in points if point.value == knee.value))


def test_the_fit_finds_what_a_step_costs():
    (fit,) = make_sweep(*steps_of(0.062, 0.201, 1, 2, 4, 8)).fits
    assert fit.fixed_seconds == pytest.approx(0.062)
    assert fit.seconds_per_image == pytest.approx(0.201)
    assert fit.error < 1e-9


def test_no_part_of_a_step_is_negative():
    better = [make_row(1, 1.0), make_row(2, 1.8), make_row(4, 3.0)]  # convex: the larger, the slower
    assert fit_steps(list_measured(better)).fixed_seconds >= 0
    concave = [make_row(1, 1.0), make_row(2, 1.9), make_row(4, 2.0)]
    fit = fit_steps(list_measured(concave))
    assert (fit.fixed_seconds, fit.seconds_per_image) >= (0, 0)
    falling = [make_row(1, 1.0), make_row(2, 3.0), make_row(4, 9.0)]
    assert fit_steps(list_measured(falling)).seconds_per_image == 0


def test_two_points_are_not_fitted():
    assert make_sweep(make_row(1, 1.0), make_row(2, 1.5)).fits == []


def test_a_poor_fit_is_kept():
    sweep = make_sweep(make_row(1, 1.0), make_row(2, 6.0), make_row(4, 3.0), make_row(8, 30.0))
    assert sweep.fits[0].error > POOR_FIT


@pytest.mark.parametrize("key", ["train.batch_size", "data.image_size", "model.width", "engine.threads"])
def test_more_of_some_keys_is_more_work_or_means(key: str):
    assert len(make_sweep(make_row(1, 1.0), make_row(2, 1.0), key=key).knees) == 1


@pytest.mark.parametrize("key", ["seed", "optimizer.learning_rate", "measure.seconds"])
def test_numbers_of_other_keys_have_no_knee(key: str):
    sweep = make_sweep(make_row(1, 1.0), make_row(2, 0.5), key=key)
    assert (sweep.knees, sweep.fits) == ([], [])
    assert sweep.told == [
        f"{key} 1 is the fastest: 1 ± 1.0 % images/s.",
        f"{key} 2 has 0.5 ± 1.0 % images/s, 50 % of it.",
    ]


def test_true_is_no_one():
    rows = [make_row(b, 1.0, curve=c) for c in (True, 1) for b in (1, 2)]
    sweep = make_sweep(*rows, curve_key="x", curves=[True, 1])
    assert [knee.curve for knee in sweep.knees] == [True, 1]
    assert len(sweep.fits) == 0


@pytest.mark.parametrize("value", [10**400, float("inf"), {"a": 1}, None, [1]])
def test_values_from_a_damaged_file_are_no_numbers(value):
    sweep = make_sweep(make_row(1, 1.0), make_row(2, 1.0), values=[1, 2, value])
    assert sweep.knees == []
