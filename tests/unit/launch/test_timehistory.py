"""A run's steps as the original's throughput log."""

import json
from pathlib import Path

import pytest

from made_results import make_result, write_run
from trainstone.formats.timehistory import read_timehistory
from trainstone.launch.timehistory import write_timehistory
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


def test_a_run_without_steps_or_with_damaged_ones_gives_no_file(tmp_path: Path):
    run = write_run(tmp_path, make_result("x"))
    write_timehistory(run, tmp_path / "x.log")
    (run / "steps-rank0000.csv").write_text("nonsense\n1,2\n")
    write_timehistory(run, tmp_path / "x.log")
    assert not (tmp_path / "x.log").exists()


@pytest.mark.parametrize(
    ("section", "last_steps"),
    [
        ({"every_steps": 50}, [50, 100, 150, 200]),
        *((odd, [100, 200]) for odd in ({}, {"every_steps": "auto"}, {"every_steps": 0}, {"every_steps": []})),
    ],
)
def test_steps_between_lines_are_those_of_the_run_else_the_original_s(tmp_path: Path, section, last_steps: list[int]):
    run = write_steps(tmp_path, 200)
    document = json.loads((run / "result.json").read_text())
    document["config"]["original"] = section
    (run / "result.json").write_text(json.dumps(document))
    write_timehistory(run, tmp_path / "x.log")
    assert [one.last_step for one in read_timehistory(tmp_path / "x.log")] == last_steps
