"""Runs that did not come to their end, judged from what they left."""

import json
from pathlib import Path

from trainstone.results.recover import recover
from trainstone.results.steps import read_columns
from trainstone.results.store import read_result
from trainstone.results.summary import summarise_steps


def test_a_finished_run_is_left_as_it_is(golden):
    path = golden("good")
    assert recover(path) == read_result(path)
    assert recover(path / "result.json") == read_result(path)


def test_a_killed_run_gets_the_numbers_of_its_steps(golden):
    path = golden("killed")
    assert read_result(path).throughput is None
    result = recover(path)
    expected = summarise_steps(read_columns(path / "steps-rank0000.csv"), compiled=False)
    assert result.throughput == expected.throughput
    assert result.step_seconds == expected.step_seconds
    assert "killed" in [found.code for found in result.findings]
    assert result.verdict is not None
    assert "killed after 79 steps" in result.verdict


def test_a_killed_run_without_a_whole_step_has_no_number(golden):
    path = golden("killed")
    steps = path / "steps-rank0000.csv"
    steps.write_text(steps.read_text().splitlines()[0] + "\n0,0,0.")
    result = recover(path)
    assert result.throughput is None
    steps.unlink()
    assert recover(path).throughput is None


def test_a_damaged_step_file_is_a_finding(golden):
    path = golden("killed")
    (path / "steps-rank0000.csv").write_text("step,what\n1,2\n")
    assert [found.code for found in recover(path).findings][-1] == "damaged-file"


def test_durations_that_are_none_are_a_finding(golden):
    path = golden("killed")
    steps = path / "steps-rank0000.csv"
    lines = steps.read_text().splitlines()[:20]
    cells = lines[5].split(",")
    cells[4] = "nan"
    lines[5] = ",".join(cells)
    steps.write_text("\n".join(lines) + "\n")
    assert [found.code for found in recover(path).findings][-1] == "damaged-file"


def test_points_speak_for_their_run(golden):
    path = golden("killed")
    document = json.loads((path / "result.json").read_text())
    (path / "result.json").write_text(json.dumps(document | {"points": [{"label": "a", "run": "points/a"}]}))
    assert Path(path / "steps-rank0000.csv").exists()
    assert recover(path).throughput is None
