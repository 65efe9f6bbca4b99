"""Runs that did not come to their end, judged from what they left."""

import os
from pathlib import Path

import pytest

from made_learning import make_phases, make_quality, make_steps, make_training, write_training
from made_results import change_result
from trainstone.results.quality import Quality
from trainstone.results.schema import Finding, Phases
from trainstone.results.steps import read_columns
from trainstone.results.store import read_result, recover
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


def test_a_killed_run_of_two_ranks_counts_the_images_of_both(golden):
    path = golden("killed")
    alone = recover(path)
    change_result(path, world={"ranks": 2, "nodes": 1})
    both = recover(path)
    assert both.throughput.images_per_second == pytest.approx(2 * alone.throughput.images_per_second)
    assert "images/s on 2 ranks" in both.verdict


def test_a_killed_run_without_a_whole_step_has_no_number(golden):
    path = golden("killed")
    steps = path / "steps-rank0000.csv"
    steps.write_text(steps.read_text().splitlines()[0] + "\n0,0,0.")
    assert recover(path).throughput is None
    steps.unlink()
    assert recover(path).throughput is None


@pytest.mark.parametrize(("line", "cell", "text"), [(0, 1, "what"), (5, 4, "nan"), (5, 0, "x")])
def test_a_damaged_step_file_is_a_finding(golden, line, cell, text):
    path = golden("killed")
    steps = path / "steps-rank0000.csv"
    rows = [row.split(",") for row in steps.read_text().splitlines()]
    rows[line][cell] = text
    steps.write_text("\n".join(",".join(row) for row in rows) + "\n")
    assert [found.code for found in recover(path).findings][-1] == "damaged-file"


def test_points_speak_for_their_run(golden):
    path = golden("killed")
    change_result(path, points=[{"label": "a", "run": "points/a"}])
    assert Path(path / "steps-rank0000.csv").exists()
    assert recover(path).throughput is None


def write_cut_short(folder: Path, status: str, quality: Quality | None = None, **changes: object) -> Path:
    """A training that ended after 120 steps, 100 of them before its last evaluation; its writer is long dead."""
    known = Phases(train_seconds=30.0, data_wait_seconds=2.0, eval_seconds=6.0, checkpoint_seconds=0.8)
    given = {"throughput": None, "verdict": None, "phases": known, "quality": quality, "status": status} | changes
    path = write_training(folder, make_training(**given), make_steps()[:120])
    os.utime(path / "result.json", (0, 0))
    os.utime(path / "steps-rank0000.csv", (0, 0))
    return path


def find(findings: list[Finding], code: str) -> Finding:
    return next(found for found in findings if found.code == code)


def test_a_killed_training_says_what_it_had_learned_and_how_to_go_on(tmp_path: Path):
    quality = make_quality(history=make_quality().history[:2], epochs=2.0, seconds_to_target=None)
    result = recover(write_cut_short(tmp_path, "running", quality))
    assert result.status == "killed"
    told = "best 40.5 % top-1 after 2 epochs; killed; resume it with trainstone train --resume RUN"
    assert result.verdict == f"resnet50: {told}"
    assert find(result.findings, "killed").hint.startswith("resume it: trainstone train --resume RUN")
    assert result.throughput is not None
    assert result.phases is not None
    assert result.phases.train_seconds == pytest.approx(36.0)
    assert (result.phases.eval_seconds, result.phases.checkpoint_seconds) == (6.0, 0.8)
    assert {found.severity for found in result.findings if found.code != "killed"} <= {"info"}


def test_steps_that_were_set_aside_still_count(tmp_path: Path):
    result = recover(write_cut_short(tmp_path, "running", phases=make_phases()))
    assert result.phases == make_phases()


@pytest.mark.parametrize(("status", "told"), [("failed", "failed"), ("interrupted", "stopped by a signal")])
def test_a_training_that_failed_says_what_it_had_learned(tmp_path: Path, status: str, told: str):
    path = write_cut_short(tmp_path, status)
    assert f"best 92.4 % top-1 after 8 epochs; {told}" in str(recover(path).verdict)
    (path / "steps-rank0000.csv").unlink()
    assert f"best 92.4 % top-1 after 8 epochs; {told}" in str(recover(path).verdict)


def test_a_training_killed_while_its_speed_was_judged_has_come_to_its_end(tmp_path: Path):
    path = write_cut_short(tmp_path, "target_reached", make_quality(), verdict="done", phases=make_phases())
    result = recover(path)
    assert (result.status, result.verdict, result.phases) == ("target_reached", "done", make_phases())
    assert result.throughput is not None
