"""Runs that are no one result are refused, with the first thing that tells them apart."""

import json
from pathlib import Path
from typing import Any

import pytest

from hostile import EVIL, hidden
from made_submission import closed_log, write_mlperf_run, write_mlperf_runs
from trainstone.errors import ConfigError
from trainstone.results.mlperf.package import make_plan

MORE = "trainstone train RECIPE --runs 5; many ranks, 5 times: trainstone launch ... -- train RECIPE --seed N"


@pytest.fixture
def repeated(tmp_path):
    return write_mlperf_runs(tmp_path, mlperf__division="open")


def set_key(run: Path, value: Any, *names: str) -> None:
    document = json.loads((run / "result.json").read_text())
    table = document["config"]
    for name in names[:-1]:
        table = table[name]
    table[names[-1]] = value
    (run / "result.json").write_text(json.dumps(document))


def test_logs_must_agree(repeated, tmp_path):
    other = write_mlperf_run(tmp_path, 9, batch=4096, mlperf__division="open")
    with pytest.raises(ConfigError, match="the logs differ in global_batch: 3264, 4096"):
        make_plan([repeated, other], {})
    with pytest.raises(ConfigError, match="the logs differ in division: open, closed"):
        make_plan([repeated, write_mlperf_run(tmp_path, 10)], {})


def test_runs_of_other_devices_are_no_one_result(repeated):
    path = repeated / "points/run-2/result.json"
    path.write_text(path.read_text().replace('"name": "Intel Xeon"', '"name": "Other"'))
    with pytest.raises(ConfigError, match="different devices"):
        make_plan([repeated], {})


@pytest.mark.parametrize(
    ("names", "value", "told"),
    [
        (("train", "mixup"), 0.5, r"run-1 and run-3 differ in train\.mixup: .*, 0\.5"),
        (("model", "depth"), 18, r"differ in model\.depth: 50, 18"),
        (("optimizer", "new_key"), 1, r"differ in optimizer\.new_key: not there, 1"),
        (("train", "precision"), EVIL, r"differ in train\.precision"),
    ],
)
def test_runs_of_other_configurations_are_no_one_result(repeated, names, value, told):
    set_key(repeated / "points/run-3", value, *names)
    with pytest.raises(ConfigError, match=told) as caught:
        make_plan([repeated], {})
    assert not hidden(caught.value.message)


@pytest.mark.parametrize(
    "names", [("device",), ("data", "root"), ("loader", "threads"), ("tracking", "mlflow"), ("name",)]
)
def test_what_is_bound_to_the_machine_may_differ(repeated, names):
    set_key(repeated / "points/run-3", "other", *names)
    assert len(make_plan([repeated], {}).runs) == 5


def test_equal_seeds_are_refused_in_the_open_division_too(repeated):
    (repeated / "points/run-5/mlperf.log").write_text(closed_log(2, 35.0, mlperf__division="open"))
    with pytest.raises(ConfigError) as caught:
        make_plan([repeated], {})
    assert caught.value.message == (
        "run-2/mlperf.log and run-5/mlperf.log have the same seed 2: every run needs its own"
    )
    assert caught.value.hint == "train again with a seed that is not among them: --seed N"


@pytest.mark.parametrize(
    ("seeds", "told", "hint"),
    [
        ((1,), "resnet needs 5 runs, here is 1", MORE),
        ((1, 2), "resnet needs 5 runs, here are 2", MORE),
        ((1, 2, 3, 4, 5, 6), "resnet needs 5 runs, here are 6", "give 5, not the fastest ones"),
    ],
)
@pytest.mark.parametrize("division", ["open", "closed"])
def test_another_number_of_runs_than_the_benchmark_needs_is_refused(tmp_path, seeds, told, hint, division):
    runs = write_mlperf_runs(tmp_path, seeds, (28.0,) * len(seeds), mlperf__division=division)
    with pytest.raises(ConfigError) as caught:
        make_plan([runs], {})
    assert (caught.value.message, caught.value.hint) == (told, hint)
