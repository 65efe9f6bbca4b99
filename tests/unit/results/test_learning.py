"""What is said of a training: verdicts of every end, the split of its time, evaluations thinned."""

import pytest

from made_learning import make_evaluations, make_phases, make_quality
from trainstone.results.learning import (
    describe_split,
    find_best,
    find_reached,
    format_epochs,
    format_metric,
    format_target,
    list_facts,
    split_time,
    thin_history,
)
from trainstone.results.schema import Phases
from trainstone.results.verdicts import write_learning_verdict

MISSED = make_quality(history=make_evaluations((0.3, 0.612, 0.55)), target=0.65, seconds_to_target=None)


SPLIT = "in 2 min 27 s: training 76 %, data wait 5 %, evaluation 16 %, checkpoints 2 %"
AIMLESS = make_quality(target=None, seconds_to_target=None)
UNJUDGED = make_quality(history=[], value=None, target=None, seconds_to_target=None, epochs=12.5, steps=500)


@pytest.mark.parametrize(
    ("quality", "status", "phases", "told"),
    [
        (make_quality(), "target_reached", make_phases(), f"92.4 % top-1 (target 90 %) after 8 epochs, {SPLIT}"),
        (
            MISSED,
            "target_missed",
            make_phases(),
            "best 61.2 % top-1 after 3 epochs; the target of 65 % was not reached",
        ),
        (AIMLESS, "ok", make_phases(), f"best 92.4 % top-1 after 8 epochs, {SPLIT}"),
        (AIMLESS, "ok", None, "best 92.4 % top-1 after 8 epochs"),
        (UNJUDGED, "ok", make_phases(), "trained 500 steps, 12.5 epochs; not evaluated"),
        (make_quality(history=[], epochs=0.4), "failed", None, "not evaluated yet; failed"),
        (None, "running", None, "not evaluated yet; still running"),
    ],
)
def test_verdict_tells_value_epochs_and_time_as_far_as_they_are_known(quality, status, phases, told):
    assert write_learning_verdict(quality, status, phases, "ResNet-18") == f"ResNet-18: {told}"


@pytest.mark.parametrize("status", ["interrupted", "killed"])
def test_an_unfinished_run_says_how_to_resume(status: str):
    told = write_learning_verdict(MISSED, status, None, "ResNet-18", stopped_by="SIGTERM", run="runs/x")
    assert told.startswith("ResNet-18: best 61.2 % top-1 after 3 epochs; ")
    assert told.endswith("trainstone train --resume runs/x")
    assert ("SIGTERM" in told) == (status == "interrupted")


def test_facts_of_a_run_without_an_evaluation():
    empty = make_quality(history=[], epochs=0.4)
    assert list_facts(empty, "failed") == [("target 90 %", "not reached yet"), ("epochs", "0.4")]
    assert list_facts(UNJUDGED, "ok") == [("epochs", "12.5")]


@pytest.mark.parametrize(
    ("value", "target", "told"),
    [
        (0.924, None, "92.4 %"),
        (0.89996, 0.9, "89.996 %"),
        (0.7594, 0.7594, "75.94 %"),
        (0.9, 0.9, "90.0 %"),
        (1.0, 0.9, "100.0 %"),
        (0.8999999999, 0.9, "90.0000 %"),  # no more digits than anybody reads
    ],
)
def test_a_value_is_not_rounded_across_its_target(value: float, target: float | None, told: str):
    assert format_metric("top1", value, target) == told


def test_other_metrics_are_no_percent():
    assert format_metric("mAP", 0.2312) == "0.231"
    assert format_target("mAP", 0.23) == "0.23"
    assert format_target("top1", 0.759) == "75.9 %"


@pytest.mark.parametrize(
    ("epochs", "told"),
    [(6.0, "6 epochs"), (1.0, "1 epoch"), (3.42, "3.4 epochs"), (0.042, "0.042 epochs"), (1234.0, "1,234 epochs")],
)
def test_epochs(epochs: float, told: str):
    assert format_epochs(epochs) == told


def test_parts_sum_up_to_the_total():
    parts = split_time(make_phases(), 170.0)
    assert list(parts) == ["training", "data wait", "evaluation", "checkpoints", "other"]
    assert sum(parts.values()) == pytest.approx(170)
    assert parts["training"] == pytest.approx(112)


@pytest.mark.parametrize(
    "phases",
    [
        Phases(),
        Phases(train_seconds=10, data_wait_seconds=12),
        Phases(train_seconds=200, eval_seconds=5),
        Phases(train_seconds=-1, eval_seconds=-5, checkpoint_seconds=-2),
    ],
)
def test_no_part_is_negative(phases: Phases):
    parts = split_time(phases, 20.0)
    assert all(seconds >= 0 for seconds in parts.values())
    assert sum(parts.values()) >= 20 - 1e-9


def test_nothing_measured_is_no_split():
    assert describe_split(Phases(), 0.0) == ""


def test_the_best_and_the_one_that_reached_it_are_found():
    quality = make_quality(history=make_evaluations((0.3, 0.91, 0.95, 0.95, 0.8)))
    assert (find_best(quality), find_reached(quality)) == (2, 1)
    assert find_reached(MISSED) is None
    assert find_best(make_quality(metric="mAP")) is None


@pytest.mark.parametrize("number", [1, 60, 61, 100, 5000])
def test_many_evaluations_are_thinned_and_those_that_count_stay(number: int):
    values = [0.5] * number
    values[number // 3] = 0.95
    history = make_evaluations(tuple(values))
    shown = thin_history(make_quality(history=history), 60)
    assert len(shown) <= 60
    assert {history[0].step, history[number // 3].step, history[-1].step} <= {found.step for found in shown}
    assert [found.step for found in shown] == sorted(found.step for found in shown)
    assert len(shown) >= min(number, 50)
