"""What `trainstone mlperf` calls runs and how it writes minutes."""

from pathlib import Path
from typing import Any

import pytest

from trainstone.cli.mlperfing import format_minutes, name_runs
from trainstone.results.mlperf.logged import LoggedRun


def make_run(path: str, seeds: tuple[int, ...] = ()) -> LoggedRun:
    absent: dict[str, Any] = dict.fromkeys(("division", "org", "platform", "status", "global_batch", "train_samples"))
    absent |= dict.fromkeys(("benchmark", "optimizer", "ended", "stop_ms", "epochs"))
    return LoggedRun(path=Path(path), form="0.7", seeds=seeds, start_ms=0, accuracies=(), **absent)


@pytest.mark.parametrize(
    ("runs", "names"),
    [
        ([make_run("x/result_0.txt"), make_run("x/result_1.txt")], ["result_0.txt", "result_1.txt"]),
        ([make_run("a/mlperf.log", (1,)), make_run("b/mlperf.log", (2,))], ["seed 1", "seed 2"]),
        ([make_run("a/mlperf.log", (1,)), make_run("b/mlperf.log", (1,))], ["a", "b"]),
        ([make_run("a/mlperf.log", (1, 2)), make_run("b/mlperf.log")], ["a", "b"]),
    ],
)
def test_runs_have_names_that_tell_them_apart(runs, names):
    assert name_runs(runs) == names


@pytest.mark.parametrize(
    ("minutes", "told"), [(39.7797, "39.78"), (1146.58345, "1146.58"), (0.01234, "0.0123"), (0, "0")]
)
def test_minutes_of_short_runs_keep_three_digits(minutes, told):
    assert format_minutes(minutes) == told
