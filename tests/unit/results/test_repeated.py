"""Runs of one training put together: MLPerf's olympic mean, medians, and the sentence."""

from typing import Any

import pytest

from made_learning import FIRST_SEED, make_child, make_children, make_quality, make_repeated
from made_results import make_result
from trainstone.results.checks import finding
from trainstone.results.combine import combine_runs, list_repeated_facts
from trainstone.results.learning import format_metric
from trainstone.results.schema import Result
from trainstone.results.summary import describe_repeat

TIMES = (41.0, 38.0, 47.0, 40.0, 42.6)


def test_the_fastest_and_the_slowest_are_dropped():
    result = make_repeated(make_children(TIMES))
    assert result.repeated.score_seconds == pytest.approx((41 + 40 + 42.6) / 3)
    assert [run.counted for run in result.repeated.runs] == [True, False, False, True, True]
    assert [run.seed for run in result.repeated.runs] == [7, 8, 9, 10, 11]
    assert result.repeated.score_epochs == 4.0  # of 4, 4, 5, 4, 4


def test_one_that_missed_is_the_slowest():
    result = make_repeated(make_children((41.0, 38.0, None, 40.0, 42.6)))
    assert result.repeated.score_seconds == pytest.approx((41 + 40 + 42.6) / 3)
    assert [run.counted for run in result.repeated.runs] == [True, False, False, True, True]
    assert result.status == "target_missed"
    assert result.quality.seconds_to_target is None


@pytest.mark.parametrize("times", [(41.0, None, None, 40.0, 42.0), (41.0, 40.0), (None, None, None)])
def test_there_is_no_score_of_two_that_missed_or_of_two_runs(times: tuple[float | None, ...]):
    repeated = make_repeated(make_children(times)).repeated
    assert (repeated.score_seconds, repeated.score_epochs) == (None, None)
    assert not any(run.counted for run in repeated.runs)


def test_there_is_no_score_before_the_last_run_is_over():
    result = make_repeated(make_children(TIMES[:4]), num_runs=5)
    assert result.repeated.score_seconds is None
    assert result.quality.seconds_to_target is None
    stopped = [*make_children(TIMES[:4]), make_child(FIRST_SEED + 4, None, status="interrupted")]
    assert make_repeated(stopped).repeated.score_seconds is None


def test_quality_is_the_median_of_runs_that_are_over():
    result = make_repeated(make_children(TIMES))
    assert result.quality.seconds_to_target == 41.0
    assert result.quality.value == pytest.approx(0.9 + 9 / 1000)
    assert (result.quality.epochs, result.quality.target, result.quality.history) == (4, 0.9, [])
    assert result.throughput.ci_covers == "between runs"


@pytest.mark.parametrize(
    ("times", "num_runs", "told"),
    [
        (TIMES, 5, "5 of 5 runs reached 90 % top-1, in 41 s (38 s to 47 s; olympic mean 41.2 s)"),
        (TIMES[:2], 5, "2 of 5 runs are over: 2 of 2 runs reached 90 % top-1, in 39.5 s (38 s to 41 s)"),
        (
            (41.0, None, 39.0),
            3,
            "2 of 3 runs reached 90 % top-1, in 40 s (39 s to 41 s; olympic mean 41 s); "
            "the best that missed it found 87.8 %",
        ),
        ((None, None), 2, "0 of 2 runs reached 90 % top-1; the best that missed it found 87.8 %"),
        ((), 3, "none of 3 runs has come to its end"),
    ],
)
def test_the_verdict(times: tuple[float | None, ...], num_runs: int, told: str):
    result = make_repeated(make_children(times), num_runs=num_runs)
    assert result.verdict == f"{'ResNet-18' if times else 'resnet50'}: {told}"


def test_without_a_target_quality_is_told():
    def drop_target(result: Result) -> Result:
        quality = result.quality.model_copy(update={"target": None, "seconds_to_target": None})
        return result.model_copy(update={"quality": quality, "status": "ok"})

    children = [child._replace(result=drop_target(child.result)) for child in make_children(TIMES)]
    result = make_repeated(children)
    assert result.verdict == "ResNet-18: trained 4 epochs in 5 runs, best 90.9 % top-1 (90.7 % to 91.1 %)"
    assert (result.status, result.repeated.score_seconds) == ("ok", None)
    assert dict(list_repeated_facts(result.repeated, result.quality)) == {
        "runs": "5",
        "best top-1, median": "90.9 %",
        "epochs, median": "4",
    }


def test_a_run_that_is_not_over_has_a_row_and_counts_for_nothing():
    going = make_child(FIRST_SEED + 1, None, status="interrupted")
    result = make_repeated([make_child(FIRST_SEED, 40.0), going])
    assert [run.status for run in result.repeated.runs] == ["target_reached", "interrupted"]
    assert result.quality.value == pytest.approx(0.907)
    assert result.throughput.ci_covers == "not established: 1 run, 2 needed"


def test_runs_that_are_never_evaluated_tell_their_epochs():
    unjudged = {"history": [], "value": None, "target": None, "seconds_to_target": None, "epochs": 12.5, "steps": 500}
    children = [
        child._replace(result=child.result.model_copy(update={"quality": make_quality(**unjudged), "status": "ok"}))
        for child in make_children((None, None, None))
    ]
    result = make_repeated(children)
    assert (result.status, result.quality.value) == ("ok", None)
    assert result.verdict == "ResNet-18: trained 12.5 epochs in 3 runs"
    assert list_repeated_facts(result.repeated, result.quality) == [("runs", "3"), ("epochs, median", "12.5")]


def test_tiles():
    result = make_repeated(make_children(TIMES))
    assert list_repeated_facts(result.repeated, result.quality) == [
        ("runs", "5"),
        ("reached 90 % top-1", "5 of 5"),
        ("time to target, median", "41 s"),
        ("olympic mean", "41.2 s"),
        ("top-1, median", format_metric("top1", 0.909)),
        ("epochs, median", "4"),
    ]


def test_the_next_command(tmp_path):
    whole, stopped = (make_repeated(make_children((40.0, 41.0)), num_runs=number) for number in (2, 3))
    assert describe_repeat(whole, tmp_path) == f"trainstone train {tmp_path}/config.toml --runs 2"
    assert describe_repeat(stopped, tmp_path) == f"trainstone train --resume {tmp_path}"


def combine(*rates: float | None, **changes: Any) -> dict[str, Any]:
    return combine_runs([make_result(f"run {rate}", rate, verdict="ResNet-50: x", **changes) for rate in rates])


def test_throughput_between_runs_is_students_interval():
    combined = combine(9.0, 10.0, 11.0)
    low, high = combined["throughput"].ci95
    assert combined["throughput"].images_per_second == pytest.approx(10.0)
    # t(0.975, 2) = 4.3027, standard error 1/sqrt(3)
    assert (high - low) / 2 == pytest.approx(4.3027 / 3**0.5, rel=1e-4)
    assert combined["throughput"].ci_covers == "between runs"
    assert combined["verdict"].startswith("ResNet-50: 10 images/s ± 24.8 % (95 %, between runs)")
    assert combine(9.0)["throughput"].ci95 is None
    assert combine(None) == {"findings": []}


def test_findings_are_listed_once_with_their_number_and_the_worst_noise_counts():
    noisy = make_result("noisy", grade="C", findings=[finding("noisy-machine", "busy")])
    combined = combine_runs([make_result("quiet", grade="A"), noisy, noisy])
    assert [found.message for found in combined["findings"]] == ["2 of 3 runs: busy"]
    assert combined["noise"].grade == "C"
