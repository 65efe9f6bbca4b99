"""What is said of a sweep: every sentence is true of the numbers it is said of."""

import pytest

from made_sweep import make_row, make_sweep, steps_of
from trainstone.results.sweep import Sweep
from trainstone.results.verdicts import write_sweep_verdict

FULL = make_row(4, status="out_of_memory", note="out of memory")
UNTRIED = make_row(8, status="not_tried")


def told(sweep: Sweep) -> str:
    return " ".join(sweep.told)


def test_the_verdict_has_the_knee_the_best_and_their_spread():
    rows = [make_row(1, 2.0), make_row(2, 3.5), make_row(4, 4.56), make_row(8, 4.7, 0.02), make_row(16, 4.65)]
    assert write_sweep_verdict(make_sweep(*rows), "ResNet-50") == (
        "ResNet-50: knee at batch 4: 4.56 ± 1.0 % images/s, 97 % of the best (4.7 ± 2.0 % images/s at 8); "
        "reaches 50 % of the measured peak, limited by compute"
    )
    assert "within 5 % of the best (4.7 ± 2.0 % images/s at 8)." in told(make_sweep(*rows))


def test_without_intervals_the_verdict_says_so():
    sweep = make_sweep(make_row(1, 4.56, None), make_row(2, 4.7, None))
    verdict = write_sweep_verdict(sweep, "X")
    assert verdict.startswith(
        "X: knee at batch 1: 4.56 images/s (no interval), 97 % of the best (4.7 images/s at 2, no interval)"
    )


def test_while_it_rises_the_verdict_and_the_first_sentence_say_so():
    sweep = make_sweep(make_row(4, 4.0), make_row(8, 4.9))
    rising = "no knee up to batch 8: the speed still rises there (4.9 ± 1.0 % images/s): try larger ones"
    assert sweep.told[0] == f"N{rising[1:]}."
    assert write_sweep_verdict(sweep, "X") == (f"X: {rising}; reaches 50 % of the measured peak, limited by compute")
    assert "The knee is at" not in told(sweep)


def test_a_rise_without_intervals_is_called_so():
    sweep = make_sweep(make_row(1, 1.0, None), make_row(2, 2.0))
    assert "the speed still rises there (2 ± 1.0 % images/s, no interval): try larger ones." in told(sweep)


def test_a_rise_within_the_intervals_is_none():
    assert "rises" not in told(make_sweep(make_row(1, 90.0, 0.06), make_row(2, 100.0, 0.06)))


def test_larger_ones_that_are_still_to_come_need_not_be_tried():
    sweep = make_sweep(make_row(1, 1.0), make_row(2, 2.0), values=[1, 2, 4])
    assert "the speed still rises there (2 ± 1.0 % images/s)." in told(sweep)
    assert "try" not in told(sweep)


def test_memory_ends_it():
    rising = make_sweep(make_row(1, 1.0), make_row(2, 2.0), FULL, UNTRIED)
    ends = "still rises there (2 ± 1.0 % images/s); memory ends it: batch 4 does not fit"
    assert f"{ends}." in told(rising)
    assert ends in write_sweep_verdict(rising, "X")
    flat = make_sweep(make_row(1, 2.0), make_row(2, 2.0), FULL, UNTRIED)
    assert "Memory ends it: batch 4 does not fit." in told(flat)


def test_falling_beyond_the_best():
    sweep = make_sweep(make_row(1, 1.0), make_row(2, 2.0), make_row(4, 1.5))
    assert "Beyond 2 it falls: 75 % of the best at batch 4." in told(sweep)
    unsure = make_sweep(make_row(1, 1.0), make_row(2, 2.0), make_row(4, 1.5, None))
    assert "Beyond 2 it falls: 75 % of the best at batch 4 (no interval)." in told(unsure)
    within = make_sweep(make_row(1, 1.0), make_row(2, 2.0, 0.2), make_row(4, 1.5, 0.2))
    assert "falls" not in told(within)


def test_what_else_could_be_the_knee_is_named():
    wide = make_sweep(make_row(1, 5.0), make_row(2, 9.3, 0.05), make_row(4, 10.0, 0.05), make_row(8, 10.1, 0.05))
    assert "it could also be 2 or 8" in told(wide)


def test_what_a_step_costs():
    sweep = make_sweep(*steps_of(0.062, 0.201, 1, 2, 4, 8))
    # 1/0.263 is 80 %, 4/0.866 is 97 % of 8/1.67
    assert sweep.knees[0].value == 4
    assert "A step costs 62 ms and 201 ms an image" in told(sweep)
    assert "at batch 1 the fixed part is 24 % of the step, at the knee 7 %." in told(sweep)
    rising = make_sweep(*steps_of(0.062, 0.201, 1, 2, 6))
    assert rising.knees == []
    assert "at batch 1 the fixed part is 24 % of the step, at batch 6 5 %." in told(rising)


def test_steps_without_a_fixed_part_are_proportional():
    for fixed in (0.0, 7.57e-17, 0.0009):
        sweep = make_sweep(*steps_of(fixed, 0.1, 1, 2, 4))
        assert "The time of a step is proportional to its images (100 ms an image; fitted to 3 points" in told(sweep)
        assert "A step costs" not in told(sweep)
    assert "A step costs 2 ms and 100 ms an image" in told(make_sweep(*steps_of(0.002, 0.1, 1, 2, 4)))


def test_a_poor_fit_is_not_told():
    sweep = make_sweep(make_row(1, 1.0), make_row(2, 6.0), make_row(4, 3.0), make_row(8, 30.0))
    assert "A step costs" not in told(sweep)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "There it reaches 50 % of the measured peak, limited by compute, and takes 1 GiB at most."),
        ({"memory_bytes": None}, "There it reaches 50 % of the measured peak, limited by compute."),
        ({"limit": "unknown"}, "There it reaches 50 % of the measured peak and takes 1 GiB at most."),
        ({"mfu": None}, "There it takes 1 GiB at most."),
    ],
)
def test_what_is_known_of_the_knee_is_one_sentence(changes: dict, sentence: str):
    assert sentence in make_sweep(make_row(1, 2.0, **changes), make_row(2, 2.0)).told


def test_one_point_has_neither_knee_nor_sentence():
    alone = make_sweep(make_row(1, 1.0))
    assert (alone.knees, alone.told) == ([], [])
    assert write_sweep_verdict(alone, "X") == "X: fastest with batch 1: 1 ± 1.0 % images/s"


def test_doubtful_points_are_marked_and_count():
    sweep = make_sweep(make_row(1, 1.0, None), make_row(2, 2.0, steady=False), make_row(4, 2.0))
    assert sweep.knees[0].value == 2
    assert "(no interval): batch 1." in told(sweep)
    assert "(not steady): batch 2." in told(sweep)


def test_values_without_an_order_are_a_choice():
    rows = [make_row("fp32", 10.0), make_row("bf16", 30.0), make_row("fp16", 29.9)]
    sweep = make_sweep(*rows, key="train.precision")
    assert sweep.knees == []
    assert sweep.told == [
        "bf16 is the fastest: 30 ± 1.0 % images/s.",
        "fp16 has 29.9 ± 1.0 % images/s, 100 % of it; the intervals overlap: not told apart.",
        "fp32 has 10 ± 1.0 % images/s, 33 % of it.",
    ]
    assert write_sweep_verdict(sweep, "X") == "X: fastest with train.precision bf16: 30 ± 1.0 % images/s"


def test_without_intervals_a_choice_is_not_judged():
    sweep = make_sweep(make_row(True, 10.0, None), make_row(False, 5.0), key="engine.channels_last")
    assert sweep.told[:2] == [
        "true is the fastest: 10 images/s (no interval).",
        "false has 5 ± 1.0 % images/s, 50 % of it; without intervals that is not judged.",
    ]


def test_a_curve_each():
    rows = [make_row(b, r, curve=c) for c, b, r in (("a", 1, 1.0), ("a", 2, 1.01), ("b", 1, 2.0), ("b", 2, 3.0))]
    sweep = make_sweep(*rows, curve_key="train.precision", curves=["a", "b"])
    assert [(knee.curve, knee.value) for knee in sweep.knees] == [("a", 1)]
    assert sweep.told[0].startswith("train.precision a: The knee is at batch 1")
    assert any(sentence.startswith("train.precision b: No knee up to batch 2") for sentence in sweep.told)
    assert write_sweep_verdict(sweep, "X") == (
        "X: no knee up to batch 2 with train.precision b: the speed still rises there (3 ± 1.0 % images/s): "
        "try larger ones; knee at batch 1 with train.precision a: 1 ± 1.0 % images/s"
    )


def test_a_sweep_without_numbers_has_no_verdict():
    sweep = make_sweep(make_row(1), make_row(2, status="out_of_memory"))
    assert write_sweep_verdict(sweep, "X") is None
    assert sweep.told == []


def test_an_unfinished_sweep_says_how_far_it_is():
    sweep = make_sweep(make_row(1, 1.0), make_row(2, 1.0), values=[1, 2, 4, 8])
    assert write_sweep_verdict(sweep, "X").endswith("(2 of 4 points)")
