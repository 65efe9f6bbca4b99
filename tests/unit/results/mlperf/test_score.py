"""The olympic score: fastest and slowest left out, one run may miss the target, anything else is no score."""

import pytest

from trainstone.results.mlperf.score import olympic_mean, score_runs


def test_the_fastest_and_the_slowest_of_five_are_left_out():
    score = score_runs("resnet", [39.44, 39.42, 39.33, 40.57, 40.47])
    assert score.minutes == pytest.approx((39.44 + 39.42 + 40.47) / 3)
    assert score.dropped == (2, 3)
    assert score.mean_minutes == pytest.approx(39.846)
    assert score.note == "mean of 3 of 5 runs: the fastest and the slowest are left out"


def test_one_run_that_missed_the_target_is_the_slowest():
    score = score_runs("ssd", [10.0, None, 12.0, 11.0, 13.0])
    assert score.minutes == pytest.approx(12.0)
    assert score.dropped == (0, 1)
    assert score.mean_minutes == pytest.approx(11.5)
    assert "which missed the target" in score.note


@pytest.mark.parametrize(
    ("benchmark", "minutes", "note", "mean"),
    [
        ("resnet", [1.0, None, None, 2.0, 3.0], "no score: 2 of 5 runs missed the target, one may", 2.0),
        ("resnet", [1.0, 2.0, 3.0, 4.0], "no score: resnet needs 5 runs, here are 4", 2.5),
        ("resnet", [1.0] * 6, "no score: resnet needs 5 runs, here are 6", 1.0),
        ("ssd", [None], "no score: ssd needs 5 runs, here is 1", None),
        ("bert", [1.0] * 10, "how many runs a score of bert needs is not known here", 1.0),
        (None, [1.0] * 5, "how many runs a score of this needs is not known here", 1.0),
    ],
)
def test_where_there_is_no_score_it_says_why(benchmark, minutes, note, mean):
    score = score_runs(benchmark, minutes)
    assert (score.minutes, score.note, score.mean_minutes, score.dropped) == (None, note, mean, ())


@pytest.mark.parametrize(("values", "mean"), [([3.0], 3.0), ([1.0, 2.0], 1.5), ([9.0, 1.0, 2.0], 2.0)])
def test_olympic_mean_of_few_values(values, mean):
    assert olympic_mean(values) == mean
