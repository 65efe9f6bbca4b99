"""Training results: verdicts, split of time, thinned evaluations, and the score of several runs."""

from typing import Any

import pytest

from support.builders.results import make_result
from support.builders.training_results import (
    FIRST_SEED,
    make_child,
    make_children,
    make_evaluations,
    make_phases,
    make_quality,
    make_repeated,
)
from trainstone.results import training
from trainstone.results.combine import combine_runs, list_repeated_facts
from trainstone.results.findings import finding
from trainstone.results.schema.run import Phases, Result
from trainstone.results.step_summary import format_repeat_command
from trainstone.results.verdicts import format_training_verdict

MISSED = make_quality(history=make_evaluations((0.3, 0.612, 0.55)), target=0.65, seconds_to_target=None)
BEST_MISSED = "best 61.2 % top-1 after 3 epochs"
SPLIT = "in 2 min 27 s: training 76 %, data wait 5 %, evaluation 16 %, checkpoints 2 %"
WITHOUT_TARGET = make_quality(target=None, seconds_to_target=None)
UNEVALUATED = make_quality(history=[], value=None, target=None, seconds_to_target=None, epochs=12.5, steps=500)


@pytest.mark.parametrize(
    ("quality", "status", "phases", "message"),
    [
        (make_quality(), "target_reached", make_phases(), f"92.4 % top-1 (target 90 %) after 8 epochs, {SPLIT}"),
        (
            MISSED,
            "target_missed",
            make_phases(),
            "best 61.2 % top-1 after 3 epochs; the target of 65 % was not reached",
        ),
        (WITHOUT_TARGET, "ok", make_phases(), f"best 92.4 % top-1 after 8 epochs, {SPLIT}"),
        (WITHOUT_TARGET, "ok", None, "best 92.4 % top-1 after 8 epochs"),
        (UNEVALUATED, "ok", make_phases(), "trained 500 steps, 12.5 epochs; not evaluated"),
        (make_quality(history=[], epochs=0.4), "failed", None, "not evaluated yet; failed"),
        (None, "running", None, "not evaluated yet; still running"),
    ],
)
def test_format_training_verdict_contains_known_value_epochs_and_time(quality, status, phases, message):
    assert format_training_verdict(quality, status, phases, "ResNet-18") == f"ResNet-18: {message}"


@pytest.mark.parametrize("status", ["interrupted", "killed"])
def test_format_training_verdict_of_unfinished_run_has_resume_command(status: str):
    message = format_training_verdict(MISSED, status, None, "ResNet-18", stopped_by="SIGTERM", run="runs/x")
    assert message.startswith(f"ResNet-18: {BEST_MISSED}; ")
    assert message.endswith("trainstone train --resume runs/x")
    assert ("SIGTERM" in message) == (status == "interrupted")


def test_list_facts_without_evaluation_has_target_and_epochs():
    empty = make_quality(history=[], epochs=0.4)
    assert training.list_facts(empty, "failed") == [("target 90 %", "not reached yet"), ("epochs", "0.4")]
    assert training.list_facts(UNEVALUATED, "ok") == [("epochs", "12.5")]


@pytest.mark.parametrize(
    ("value", "target", "message"),
    [
        (0.924, None, "92.4 %"),
        (0.89996, 0.9, "89.996 %"),
        (0.7594, 0.7594, "75.94 %"),
        (0.9, 0.9, "90.0 %"),
        (1.0, 0.9, "100.0 %"),
        (0.8999999999, 0.9, "90.0000 %"),  # at most 4 digits
    ],
)
def test_format_metric_is_not_rounded_across_target(value: float, target: float | None, message: str):
    assert training.format_metric("top1", value, target) == message


def test_format_metric_shows_map_without_percent():
    assert training.format_metric("mAP", 0.2312) == "0.231"
    assert training.format_target("mAP", 0.23) == "0.23"
    assert training.format_target("top1", 0.759) == "75.9 %"


@pytest.mark.parametrize(
    ("epochs", "message"),
    [(6.0, "6 epochs"), (1.0, "1 epoch"), (3.42, "3.4 epochs"), (0.042, "0.042 epochs"), (1234.0, "1,234 epochs")],
)
def test_format_epochs_rounds_and_adds_plural(epochs: float, message: str):
    assert training.format_epochs(epochs) == message


def test_split_time_parts_sum_to_total():
    parts = training.split_time(make_phases(), 170.0)
    assert list(parts) == ["training", "data wait", "evaluation", "checkpoints", "other"]
    assert sum(parts.values()) == pytest.approx(170)
    assert parts["training"] == pytest.approx(112)
    assert training.describe_split(Phases(), 0.0) == ""


@pytest.mark.parametrize(
    "phases",
    [
        Phases(),
        Phases(train_seconds=10, data_wait_seconds=12),
        Phases(train_seconds=200, eval_seconds=5),
        Phases(train_seconds=-1, eval_seconds=-5, checkpoint_seconds=-2),
    ],
)
def test_split_time_has_no_negative_part(phases: Phases):
    parts = training.split_time(phases, 20.0)
    assert all(seconds >= 0 for seconds in parts.values())
    assert sum(parts.values()) >= 20 - 1e-9


def test_find_best_and_find_reached_return_first_index():
    quality = make_quality(history=make_evaluations((0.3, 0.91, 0.95, 0.95, 0.8)))
    assert (training.find_best(quality), training.find_reached(quality)) == (2, 1)
    assert training.find_reached(MISSED) is None
    assert training.find_best(make_quality(metric="mAP")) is None


@pytest.mark.parametrize("number", [1, 60, 61, 100, 5000])
def test_thin_history_keeps_first_best_and_last(number: int):
    values = [0.5] * number
    values[number // 3] = 0.95
    history = make_evaluations(tuple(values))
    shown = training.thin_history(make_quality(history=history), 60)
    assert len(shown) <= 60
    assert {history[0].step, history[number // 3].step, history[-1].step} <= {found.step for found in shown}
    assert [found.step for found in shown] == sorted(found.step for found in shown)
    assert len(shown) >= min(number, 50)


TIMES = (41.0, 38.0, 47.0, 40.0, 42.6)


def test_score_runs_drops_fastest_and_slowest():
    result = make_repeated(make_children(TIMES))
    assert result.repeated.score_seconds == pytest.approx((41 + 40 + 42.6) / 3)
    assert [run.counted for run in result.repeated.runs] == [True, False, False, True, True]
    assert [run.seed for run in result.repeated.runs] == [7, 8, 9, 10, 11]
    assert result.repeated.score_epochs == 4.0  # of 4, 4, 5, 4, 4

    missed = make_repeated(make_children((41.0, 38.0, None, 40.0, 42.6)))  # the third counts as the slowest
    assert missed.repeated.score_seconds == result.repeated.score_seconds
    assert [run.counted for run in missed.repeated.runs] == [True, False, False, True, True]
    assert (missed.status, missed.quality.seconds_to_target) == ("target_missed", None)


@pytest.mark.parametrize("times", [(41.0, None, None, 40.0, 42.0), (41.0, 40.0), (None, None, None)])
def test_score_runs_with_two_missed_or_two_runs_is_none(times: tuple[float | None, ...]):
    repeated = make_repeated(make_children(times)).repeated
    assert (repeated.score_seconds, repeated.score_epochs) == (None, None)
    assert not any(run.counted for run in repeated.runs)


def test_score_runs_before_all_runs_finished_is_none():
    result = make_repeated(make_children(TIMES[:4]), num_runs=5)
    assert result.repeated.score_seconds is None
    assert result.quality.seconds_to_target is None
    stopped = [*make_children(TIMES[:4]), make_child(FIRST_SEED + 4, None, status="interrupted")]
    assert make_repeated(stopped).repeated.score_seconds is None


def test_combine_quality_is_median_of_finished_runs():
    result = make_repeated(make_children(TIMES))
    assert result.quality.seconds_to_target == 41.0
    assert result.quality.value == pytest.approx(0.9 + 9 / 1000)
    assert (result.quality.epochs, result.quality.target, result.quality.history) == (4, 0.9, [])
    assert result.throughput.ci_covers == "between runs"
    assert list_repeated_facts(result.repeated, result.quality) == [
        *(("runs", "5"), ("reached 90 % top-1", "5 of 5"), ("time to target, median", "41 s")),
        *(
            ("olympic mean", "41.2 s"),
            ("top-1, median", training.format_metric("top1", 0.909)),
            ("epochs, median", "4"),
        ),
    ]


@pytest.mark.parametrize(
    ("times", "num_runs", "message"),
    [
        (TIMES, 5, "5 of 5 runs reached 90 % top-1, in 41 s (38 s to 47 s; olympic mean 41.2 s)"),
        (TIMES[:2], 5, "2 of 5 runs finished: 2 of 2 runs reached 90 % top-1, in 39.5 s (38 s to 41 s)"),
        (
            (41.0, None, 39.0),
            3,
            "2 of 3 runs reached 90 % top-1, in 40 s (39 s to 41 s; olympic mean 41 s); "
            "best run below the target: 87.8 %",
        ),
        ((None, None), 2, "0 of 2 runs reached 90 % top-1; best run below the target: 87.8 %"),
        ((), 3, "none of 3 runs has finished"),
    ],
)
def test_format_repeated_verdict_counts_runs_at_target(times: tuple[float | None, ...], num_runs: int, message: str):
    result = make_repeated(make_children(times), num_runs=num_runs)
    assert result.verdict == f"{'ResNet-18' if times else 'resnet50'}: {message}"


def test_format_repeated_verdict_without_target_names_quality():
    def drop_target(result: Result) -> Result:
        quality = result.quality.model_copy(update={"target": None, "seconds_to_target": None})
        return result.model_copy(update={"quality": quality, "status": "ok"})

    children = [child._replace(result=drop_target(child.result)) for child in make_children(TIMES)]
    result = make_repeated(children)
    assert result.verdict == "ResNet-18: trained 4 epochs in 5 runs, best 90.9 % top-1 (90.7 % to 91.1 %)"
    assert (result.status, result.repeated.score_seconds) == ("ok", None)
    facts = [("runs", "5"), ("best top-1, median", "90.9 %"), ("epochs, median", "4")]
    assert list_repeated_facts(result.repeated, result.quality) == facts


def test_combine_trainings_lists_unfinished_run_without_counting_it():
    going = make_child(FIRST_SEED + 1, None, status="interrupted")
    result = make_repeated([make_child(FIRST_SEED, 40.0), going])
    assert [run.status for run in result.repeated.runs] == ["target_reached", "interrupted"]
    assert result.quality.value == pytest.approx(0.907)
    assert result.throughput.ci_covers == "not established: 1 run, 2 needed"


def test_format_repeated_verdict_without_evaluation_names_epochs():
    unevaluated = {
        "history": [],
        "value": None,
        "target": None,
        "seconds_to_target": None,
        "epochs": 12.5,
        "steps": 500,
    }
    changes = {"quality": make_quality(**unevaluated), "status": "ok"}
    children = make_children((None, None, None))
    children = [child._replace(result=child.result.model_copy(update=changes)) for child in children]
    result = make_repeated(children)
    assert (result.status, result.quality.value) == ("ok", None)
    assert result.verdict == "ResNet-18: trained 12.5 epochs in 3 runs"
    assert list_repeated_facts(result.repeated, result.quality) == [("runs", "3"), ("epochs, median", "12.5")]


def test_format_repeat_command_repeats_or_resumes_runs(tmp_path):
    whole, stopped = (make_repeated(make_children((40.0, 41.0)), num_runs=number) for number in (2, 3))
    assert format_repeat_command(whole, tmp_path) == f"trainstone train {tmp_path}/config.toml --runs 2"
    assert format_repeat_command(stopped, tmp_path) == f"trainstone train --resume {tmp_path}"


def combine(*rates: float | None, **changes: Any) -> dict[str, Any]:
    return combine_runs([make_result(f"run {rate}", rate, verdict="ResNet-50: x", **changes) for rate in rates])


def test_combine_runs_uses_students_interval_between_runs():
    combined = combine(9.0, 10.0, 11.0)
    low, high = combined["throughput"].ci95
    assert combined["throughput"].images_per_second == pytest.approx(10.0)
    # t(0.975, 2) = 4.3027, standard error 1/sqrt(3)
    assert (high - low) / 2 == pytest.approx(4.3027 / 3**0.5, rel=1e-4)
    assert combined["throughput"].ci_covers == "between runs"
    assert combined["verdict"].startswith("ResNet-50: 10 images/s ± 24.8 % (95 %, between runs)")
    assert combine(9.0)["throughput"].ci95 is None
    assert combine(None) == {"findings": []}


def test_combine_runs_counts_findings_and_takes_worst_noise():
    noisy = make_result("noisy", grade="C", findings=[finding("noisy-machine", "busy")])
    combined = combine_runs([make_result("quiet", grade="A"), noisy, noisy])
    assert [found.message for found in combined["findings"]] == ["2 of 3 runs: busy"]
    assert combined["noise"].grade == "C"
