"""The knee of a sweep, what else it could be, and why it is there: from numbers alone."""

import pytest

from made_sweep import make_row, make_sweep, steps_of
from trainstone.results.knee import POOR_FIT, could_be_knee, find_knee, fit_steps, list_measured, write_sweep_verdict
from trainstone.results.sweep import Sweep


def told(sweep: Sweep) -> str:
    return " ".join(sweep.told)


def test_the_knee_is_the_smallest_within_five_percent_of_the_best():
    sweep = make_sweep(make_row(1, 2.0), make_row(2, 3.5), make_row(4, 4.56), make_row(8, 4.7), make_row(16, 4.65))
    (knee,) = sweep.knees
    assert (knee.value, knee.best_value) == (4, 8)
    assert knee.share_of_best == pytest.approx(4.56 / 4.7)
    verdict = write_sweep_verdict(sweep, "ResNet-50")
    assert verdict == (
        "ResNet-50: knee at batch 4: 4.56 images/s, 97 % of the best (4.7 at 8); "
        "reaches 50 % of the measured peak, limited by compute"
    )


def test_exactly_five_percent_below_is_within():
    assert find_knee(list_measured([make_row(1, 95.0), make_row(2, 100.0)])).value == 1
    assert find_knee(list_measured([make_row(1, 94.9), make_row(2, 100.0)])).value == 2


def test_the_order_of_rows_does_not_matter():
    rows = [make_row(8, 10.0), make_row(1, 3.0), make_row(4, 9.9)]
    assert make_sweep(*rows).knees == make_sweep(*reversed(rows)).knees


def test_intervals_say_what_else_could_be_the_knee():
    narrow = make_sweep(make_row(1, 5.0), make_row(2, 9.3), make_row(4, 10.0), make_row(8, 10.1))
    assert narrow.knees[0].value == 4
    assert narrow.knees[0].could_be == []
    wide = make_sweep(make_row(1, 5.0), make_row(2, 9.3, 0.05), make_row(4, 10.0, 0.05), make_row(8, 10.1, 0.05))
    assert wide.knees[0].could_be == [2, 8]
    assert "it could also be 2 or 8" in told(wide)


def test_a_knee_is_always_one_of_those_that_could_be():
    points = list_measured([make_row(1, 3.0), make_row(2, 4.0, None), make_row(4, 4.1, 0.2)])
    knee = find_knee(points)
    assert could_be_knee(points, next(point for point in points if point.value == knee.value))


def test_the_fit_finds_what_a_step_costs():
    sweep = make_sweep(*steps_of(0.062, 0.201, 1, 2, 4, 8))
    (fit,) = sweep.fits
    assert fit.fixed_seconds == pytest.approx(0.062)
    assert fit.seconds_per_image == pytest.approx(0.201)
    assert fit.error < 1e-9
    # 1/0.263 is 80 %, 4/0.866 is 97 % of 8/1.67
    assert sweep.knees[0].value == 4
    assert "A step costs 62 ms and 201 ms an image" in told(sweep)
    assert "at batch 1 the fixed part is 24 % of the step, at the knee 7 %." in told(sweep)


def test_no_part_of_a_step_is_negative():
    better = [make_row(1, 1.0), make_row(2, 1.8), make_row(4, 3.0)]  # convex: the larger, the slower
    assert fit_steps(list_measured(better)).fixed_seconds >= 0
    concave = [make_row(1, 1.0), make_row(2, 1.9), make_row(4, 2.0)]
    fit = fit_steps(list_measured(concave))
    assert (fit.fixed_seconds, fit.seconds_per_image) >= (0, 0)
    falling = [make_row(1, 1.0), make_row(2, 3.0), make_row(4, 9.0)]
    assert fit_steps(list_measured(falling)).seconds_per_image == 0


def test_a_poor_fit_is_kept_and_not_told():
    sweep = make_sweep(make_row(1, 1.0), make_row(2, 6.0), make_row(4, 3.0), make_row(8, 30.0))
    assert sweep.fits[0].error > POOR_FIT
    assert "A step costs" not in told(sweep)


def test_two_points_are_not_fitted_and_one_has_no_knee():
    assert make_sweep(make_row(1, 1.0), make_row(2, 1.5)).fits == []
    alone = make_sweep(make_row(1, 1.0))
    assert (alone.knees, alone.told) == ([], [])
    assert write_sweep_verdict(alone, "X") == "X: fastest with batch 1: 1 images/s"


def test_still_rising():
    sweep = make_sweep(make_row(1, 1.0), make_row(2, 2.0))
    assert "The speed still rises at batch 2: try larger ones." in told(sweep)


def test_memory_ends_it():
    full = make_row(4, status="out_of_memory", note="out of memory")
    untried = make_row(8, status="not_tried")
    rising = make_sweep(make_row(1, 1.0), make_row(2, 2.0), full, untried)
    assert "still rises at batch 2; memory ends it: 4 does not fit." in told(rising)
    flat = make_sweep(make_row(1, 2.0), make_row(2, 2.0), full, untried)
    assert "Memory ends it: batch 4 does not fit." in told(flat)


def test_falling_beyond_the_best():
    sweep = make_sweep(make_row(1, 1.0), make_row(2, 2.0), make_row(4, 1.5))
    assert "Beyond 2 it falls: 75 % of the best at batch 4." in told(sweep)


def test_doubtful_points_are_marked_and_count():
    sweep = make_sweep(make_row(1, 1.0, None), make_row(2, 2.0, steady=False), make_row(4, 2.0))
    assert sweep.knees[0].value == 2
    assert "(no interval): batch 1." in told(sweep)
    assert "(not steady): batch 2." in told(sweep)


def test_values_without_an_order_have_no_knee():
    rows = [make_row("fp32", 10.0), make_row("bf16", 30.0), make_row("fp16", 29.9)]
    sweep = make_sweep(*rows, key="train.precision")
    assert sweep.knees == []
    assert sweep.told == [
        "bf16 is the fastest: 30 images/s.",
        "fp16 has 29.9 images/s, 100 % of it; the intervals overlap: not told apart.",
        "fp32 has 10 images/s, 33 % of it.",
    ]
    assert write_sweep_verdict(sweep, "X") == "X: fastest with train.precision bf16: 30 images/s"


def test_without_intervals_a_choice_is_not_judged():
    sweep = make_sweep(make_row(True, 10.0, None), make_row(False, 5.0), key="engine.channels_last")
    assert sweep.told[:2] == [
        "true is the fastest: 10 images/s.",
        "false has 5 images/s, 50 % of it; without intervals that is not judged.",
    ]


def test_a_curve_each():
    rows = [make_row(b, r, curve=c) for c, b, r in (("a", 1, 1.0), ("a", 2, 1.01), ("b", 1, 2.0), ("b", 2, 3.0))]
    sweep = make_sweep(*rows, curve_key="train.precision", curves=["a", "b"])
    assert [(knee.curve, knee.value) for knee in sweep.knees] == [("a", 1), ("b", 2)]
    assert sweep.told[0].startswith("train.precision a: The knee is at batch 1")
    assert write_sweep_verdict(sweep, "X") == (
        "X: knee at batch 2 with train.precision b: 3 images/s; knee at batch 1 with train.precision a: 1 images/s"
    )


def test_true_is_no_one():
    rows = [make_row(b, float(b), curve=c) for c in (True, 1) for b in (1, 2)]
    sweep = make_sweep(*rows, curve_key="x", curves=[True, 1])
    assert [knee.curve for knee in sweep.knees] == [True, 1]
    assert len(sweep.fits) == 0


def test_a_sweep_without_numbers_has_no_verdict():
    sweep = make_sweep(make_row(1), make_row(2, status="out_of_memory"))
    assert write_sweep_verdict(sweep, "X") is None
    assert sweep.told == []


def test_an_unfinished_sweep_says_how_far_it_is():
    sweep = make_sweep(make_row(1, 1.0), make_row(2, 1.0), values=[1, 2, 4, 8])
    assert write_sweep_verdict(sweep, "X").endswith("(2 of 4 points)")


@pytest.mark.parametrize("value", [10**400, float("inf"), {"a": 1}, None, [1]])
def test_values_from_a_damaged_file_are_no_numbers(value):
    sweep = make_sweep(make_row(1, 1.0), make_row(2, 2.0), values=[1, 2, value])
    assert sweep.knees == []
