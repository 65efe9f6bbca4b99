"""A run's steps as the original's throughput log."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from made_results import make_result, write_run
from trainstone.formats.timehistory import read_timehistory
from trainstone.launch.timehistory import measure, read_every, write_timehistory
from trainstone.results.steps import StepRecord, StepWriter


def write_steps(folder: Path, number: int, first_seconds: float = 0.1) -> Path:
    run = write_run(folder, make_result("x"))
    with StepWriter(run / "steps-rank0000.csv", split_phases=False) as steps:
        start = 5.0
        for step in range(number):
            seconds = first_seconds if step == 0 else 0.1
            steps.add(StepRecord(step, 0, start, 0.0, seconds, 32, 1.0, 0.1))
            start += seconds
    return run


@pytest.mark.parametrize(("number", "every", "lines"), [(200, 100, 2), (399, 100, 3), (199, 10, 19), (10, 10, 1)])
def test_every_hundred_steps_or_every_ten_of_few(tmp_path: Path, number: int, every: int, lines: int):
    target = tmp_path / "original/batch_32.log"
    write_timehistory(write_steps(tmp_path, number), target)
    log = read_timehistory(target)
    assert [(one.first_step, one.last_step) for one in log] == [(n * every, (n + 1) * every) for n in range(lines)]
    assert {one.examples_per_second for one in log} == {320.0}


def test_the_first_interval_holds_the_slow_first_step(tmp_path: Path):
    target = tmp_path / "batch_32.log"
    write_timehistory(write_steps(tmp_path, 200, first_seconds=10.1), target)
    first, second = read_timehistory(target)
    assert (first.seconds, second.seconds) == (20.0, 10.0)
    assert first.examples_per_second == 160.0


def test_lines_have_the_times_they_would_have_been_logged_at(tmp_path: Path):
    run = write_steps(tmp_path, 200)
    os.utime(run / "steps-rank0000.csv", (1e9, 1e9))
    write_timehistory(run, tmp_path / "x.log")
    stamps = [one.stamp for one in read_timehistory(tmp_path / "x.log")]
    seconds = [float(stamp[11:]) for stamp in stamps]
    assert (seconds[1] - seconds[0]) % 60 == pytest.approx(10.0, abs=0.001)


@pytest.mark.parametrize("number", [0, 9])
def test_too_few_steps_give_no_file(tmp_path: Path, number: int):
    write_timehistory(write_steps(tmp_path, number), tmp_path / "x.log")
    assert not (tmp_path / "x.log").exists()


def test_a_run_without_steps_or_with_damaged_ones_gives_no_file(tmp_path: Path):
    run = write_run(tmp_path, make_result("x"))
    write_timehistory(run, tmp_path / "x.log")
    (run / "steps-rank0000.csv").write_text("nonsense\n1,2\n")
    write_timehistory(run, tmp_path / "x.log")
    assert not (tmp_path / "x.log").exists()


def test_steps_between_lines_are_those_of_the_run(tmp_path: Path):
    run = write_steps(tmp_path, 200)
    document = json.loads((run / "result.json").read_text())
    document["config"]["original"] = {"every_steps": 50}
    (run / "result.json").write_text(json.dumps(document))
    write_timehistory(run, tmp_path / "x.log")
    assert [one.last_step for one in read_timehistory(tmp_path / "x.log")] == [50, 100, 150, 200]


@pytest.mark.parametrize("section", [None, {}, 5, {"every_steps": "auto"}, {"every_steps": 0}, {"every_steps": []}])
def test_a_run_that_does_not_say_has_the_original_s(section: object):
    result = make_result("x")
    assert read_every(result.model_copy(update={"config": {**result.config, "original": section}})) == "auto"


def test_steps_that_take_no_time_give_no_line():
    zeros = np.zeros(10)
    assert list(measure({"start_seconds": zeros, "step_seconds": zeros, "images": zeros + 1})) == []
