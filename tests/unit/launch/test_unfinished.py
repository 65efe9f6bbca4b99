"""Sweeps that are gone on with: found, checked against what was changed since, held by one process at a time."""

import json
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from made_sweep import count_points, plan_small, run_fake, statuses
from stranger import be_stranger, make_shared_folder
from trainstone.errors import ResultError
from trainstone.launch.unfinished import end_orphans, find_due, find_unfinished, hold, plan_again
from trainstone.results.schema import Result
from trainstone.results.store import RunFolder, read_result, reopen_run


def change_result(path: Path, **changes: object) -> None:
    document = json.loads((path / "result.json").read_text())
    (path / "result.json").write_text(json.dumps(document | changes))


def change_sweep(path: Path, **changes: object) -> None:
    change_result(path, sweep=json.loads((path / "result.json").read_text())["sweep"] | changes)


def stop(run: RunFolder, keep: int = 1) -> Result:
    """Make a sweep that is done one that was stopped after some points."""
    rows = json.loads((run.path / "result.json").read_text())["sweep"]["rows"]
    change_sweep(run.path, rows=sorted(rows, key=lambda row: row["order"])[:keep])
    change_result(run.path, status="interrupted")
    return read_result(run.path)


def test_a_sweep_that_was_killed_is_gone_on_with(monkeypatch, tmp_path: Path):
    plan = plan_small("1,2,4", profile=True)
    run = run_fake(monkeypatch, plan, tmp_path)
    # As a kill after the bench of the second point leaves it.
    second, third = plan.points[1].value, plan.points[2].value
    rows = json.loads((run.path / "result.json").read_text())["sweep"]["rows"]
    rows = [row for row in rows if row["value"] != third]
    row = next(row for row in rows if row["value"] == second)
    for key in ("profile", "profile_run", "compute_utilisation"):
        del row[key]
    sweep = json.loads((run.path / "result.json").read_text())["sweep"] | {"rows": rows}
    change_result(run.path, status="interrupted", sweep=sweep)
    left = read_result(run.path)
    assert find_due(run.path, left, plan) == {f"batch {second}": ["profile"], f"batch {third}": ["bench", "profile"]}
    assert find_unfinished(tmp_path, plan) == run.path
    again = plan_again(run.path, left)
    assert [point.label for point in again.points] == [point.label for point in plan.points]
    before = {path.name for path in (run.path / "points").iterdir()}
    run_fake(monkeypatch, again, tmp_path, reopen_run(run.path, "sweep", "x"))
    result = read_result(run.path)
    assert result.status == "ok"
    assert len(result.sweep.rows) == 3
    assert all(row.compute_utilisation for row in result.sweep.rows)
    new = [path for path in (run.path / "points").iterdir() if path.name not in before]
    assert sorted(read_result(path).kind for path in new) == ["bench", "profile", "profile"]
    assert result.process.starts == 2
    assert result.sweep.plan_sha256 == plan.sweep.plan_sha256


def test_what_failed_or_is_gone_is_run_again(monkeypatch, tmp_path: Path):
    plan = plan_small("1,2,4")
    run = run_fake(monkeypatch, plan, tmp_path, batch_2="loss")
    gone = next(row.run for row in read_result(run.path).sweep.rows if row.value == 4)
    (run.path / gone / "result.json").unlink()
    change_result(run.path, status="interrupted")
    run_fake(monkeypatch, plan, tmp_path, reopen_run(run.path, "sweep", "x"))
    assert statuses(read_result(run.path)) == {1: "ok", 2: "ok", 4: "ok"}
    assert count_points(run.path) == 5


def test_only_an_unfinished_sweep_of_the_same_plan_is_found(monkeypatch, tmp_path: Path):
    plan = plan_small("1,2")
    run = run_fake(monkeypatch, plan, tmp_path)
    assert find_unfinished(tmp_path, plan) is None  # it is finished
    with pytest.raises(ResultError, match="has come to its end"):
        plan_again(run.path, read_result(run.path))
    change_result(run.path, status="interrupted")
    assert find_unfinished(tmp_path, plan) == run.path
    assert find_unfinished(tmp_path, plan_small("1,2", strict=True)) is None
    assert find_unfinished(tmp_path / "nowhere", plan) is None
    change_result(run.path, status="running")  # by this very process, which lives
    assert find_unfinished(tmp_path, plan) is None
    with pytest.raises(ResultError, match="still running"):
        plan_again(run.path, read_result(run.path))
    change_result(run.path, status="failed")  # with nothing left to do: it would fail again
    assert find_unfinished(tmp_path, plan) is None
    (run.path / "result.json").write_text("{")
    assert find_unfinished(tmp_path, plan) is None


def test_a_sweep_from_elsewhere_is_not_gone_on_with(monkeypatch, tmp_path: Path):
    run = run_fake(monkeypatch, plan_small("1,2"), tmp_path)
    change_result(run.path, status="interrupted", software={"trainstone": "0.0.1", "torch": "1.0"})
    with pytest.raises(ResultError, match=r"cannot be gone on with: trainstone 0\.0\.1 there, .*; torch 1\.0 there"):
        plan_again(run.path, read_result(run.path))


def test_one_process_at_a_time_holds_a_sweep(tmp_path: Path):
    with hold(tmp_path) as first, hold(tmp_path) as second:
        assert (first, second) == (True, False)
    with hold(tmp_path) as again:
        assert again


def test_a_changed_configuration_is_not_mixed_with_the_old_one(monkeypatch, tmp_path: Path):
    plan = plan_small("1,2")
    run = run_fake(monkeypatch, plan, tmp_path)
    left = stop(run)
    assert plan_again(run.path, left).points == plan.points
    file = run.path / "config.toml"
    before = file.read_text()
    for old, new, told in (
        ("image_size = 224", "image_size = 64", "data.image_size was 224, is 64"),
        ("seed = 0", "seed = 7", "seed was 0, is 7"),
        ('precision = "fp32"', 'precision = "auto"', "train.precision was fp32, is auto"),
    ):
        assert old in before
        file.write_text(before.replace(old, new))
        with pytest.raises(ResultError, match="is not what the points of this sweep were run with") as caught:
            plan_again(run.path, left)
        assert told in caught.value.message
        assert caught.value.hint.startswith("restore it, or start anew: ")


def test_a_kill_while_the_first_point_settled_the_configuration_is_none(monkeypatch, tmp_path: Path):
    plan = plan_small("1,2")
    run = run_fake(monkeypatch, plan, tmp_path)
    asked = plan.config.model_dump(mode="json", exclude_none=True)
    # config.toml is written before result.json, which then has no machine
    change_result(run.path, config=asked, machine={})
    assert plan_again(run.path, stop(run, keep=0)).config.train.precision == "fp32"


@pytest.mark.parametrize("damage", [{"values": []}, {"curve_key": "seed", "curves": []}])
def test_a_plan_without_points_is_damaged(monkeypatch, tmp_path: Path, damage: dict):
    run = run_fake(monkeypatch, plan_small("1,2"), tmp_path)
    stop(run)
    change_sweep(run.path, **damage)
    with pytest.raises(ResultError, match="names no values to sweep"):
        plan_again(run.path, read_result(run.path))


def test_a_finished_sweep_names_the_command_it_was_started_with(monkeypatch, tmp_path: Path):
    run = run_fake(monkeypatch, plan_small("1,2"), tmp_path)
    change_result(run.path, command="trainstone sweep --batch-sizes 1,2")
    with pytest.raises(ResultError, match="has come to its end") as caught:
        plan_again(run.path, read_result(run.path))
    assert caught.value.hint.startswith("start anew: trainstone sweep --batch-sizes 1,2; or see it: ")


def test_points_whose_runs_are_gone_are_not_done(monkeypatch, tmp_path: Path):
    plan = plan_small("1,2")
    run = run_fake(monkeypatch, plan, tmp_path)
    left = stop(run, keep=2)
    assert find_due(run.path, left, plan) == {}
    (run.path / left.sweep.rows[0].run / "result.json").unlink()
    assert find_due(run.path, left, plan) == {"batch 1": ["bench"]}
    # Even of one that failed: then there is something to do
    change_result(run.path, status="failed")
    assert find_unfinished(tmp_path, plan) == run.path


def test_a_sweep_of_somebody_else_is_passed_over(monkeypatch):
    plan = plan_small("1,2")
    with make_shared_folder() as shared:
        run = run_fake(monkeypatch, plan, shared / "runs")
        stop(run)
        run.path.chmod(0o555)
        with be_stranger():
            assert read_result(run.path).status == "interrupted"
            assert find_unfinished(shared / "runs", plan) is None
            with pytest.raises(ResultError, match=r"cannot write into .*Permission denied"), hold(run.path):
                pass
        run.path.chmod(0o755)
        assert find_unfinished(shared / "runs", plan) == run.path


def test_a_lock_of_somebody_else_is_passed_over(monkeypatch):
    plan = plan_small("1,2")
    with make_shared_folder() as shared:
        run = run_fake(monkeypatch, plan, shared / "runs")
        stop(run)
        run.path.chmod(0o777)
        (run.path / "launch").chmod(0o555)
        with be_stranger():
            assert find_unfinished(shared / "runs", plan) is None
        (run.path / "launch").chmod(0o755)


def test_a_file_in_the_place_of_the_launch_folder(monkeypatch, tmp_path: Path):
    plan = plan_small("1,2")
    run = run_fake(monkeypatch, plan, tmp_path)
    stop(run)
    (run.path / "launch").rename(run.path / "other")
    (run.path / "launch").write_text("")
    assert find_unfinished(tmp_path, plan) is None
    with pytest.raises(ResultError, match=r"cannot write into .*Not a directory"), hold(run.path):
        pass


WAIT = "import sys, time; print(flush=True); time.sleep(60)"


def start_orphan(folder: Path, *words: str) -> "subprocess.Popen[bytes]":
    """A process that might be a point: it has its command line."""
    command = [sys.executable, "-I", "-S", "-c", WAIT, "trainstone", *words]
    child = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    return child


def test_points_that_outlived_their_run_are_stopped_and_others_left_alone(tmp_path: Path):
    (tmp_path / "runs").mkdir()
    ours = [("bench", "--out", "runs/a/points"), ("train", "--resume", str(tmp_path / "runs/a/points/x"))]
    others = [("train", "--resume", "runs/a"), ("report", "runs/a/points/x"), ("bench", "--out", "runs/b/points")]
    with ExitStack() as started:
        children = [started.enter_context(start_orphan(tmp_path, *words)) for words in (*ours, *others)]
        try:
            end_orphans(tmp_path / "runs" / "a")
            assert [child.poll() for child in children] == [-signal.SIGTERM] * 2 + [None] * 3
        finally:
            for child in children:
                child.kill()
