"""Sweeps that are resumed: what is still due, and what was changed since is refused."""

import json
from pathlib import Path

import pytest

from made_sweep import count_points, plan_small, run_fake, statuses
from trainstone.cli.sweep import check_unfinished
from trainstone.errors import ResultError
from trainstone.launch.points import Plan, resume_plan
from trainstone.launch.sweep import find_due
from trainstone.results.schema import Result
from trainstone.results.store import RunFolder, read_result, reopen_run


def change_result(path: Path, **changes: object) -> None:
    document = json.loads((path / "result.json").read_text())
    (path / "result.json").write_text(json.dumps(document | changes))


def change_sweep(path: Path, **changes: object) -> None:
    change_result(path, sweep=json.loads((path / "result.json").read_text())["sweep"] | changes)


def stop(run: RunFolder, keep: int = 1) -> Result:
    """Make a finished sweep one that was stopped after some points."""
    rows = json.loads((run.path / "result.json").read_text())["sweep"]["rows"]
    change_sweep(run.path, rows=sorted(rows, key=lambda row: row["order"])[:keep])
    change_result(run.path, status="interrupted")
    return read_result(run.path)


def plan_resumed(path: Path) -> Plan:
    """Plan as `sweep --resume` does."""
    check_unfinished(path, read_result(path))
    return resume_plan(path, read_result(path))


def test_resumed_sweep_runs_only_what_is_due(monkeypatch, tmp_path: Path):
    plan = plan_small("1,2,4", profile=True)
    run = run_fake(monkeypatch, plan, tmp_path)
    # As a kill after the bench of the second point leaves it.
    second, third = plan.points[1].value, plan.points[2].value
    rows = json.loads((run.path / "result.json").read_text())["sweep"]["rows"]
    rows = [row for row in rows if row["value"] != third]
    row = next(row for row in rows if row["value"] == second)
    for key in ("profile", "profile_run", "compute_utilisation"):
        del row[key]
    change_sweep(run.path, rows=rows)
    change_result(run.path, status="interrupted")
    left = read_result(run.path)
    assert find_due(run.path, left, plan) == {f"batch {second}": ["profile"], f"batch {third}": ["bench", "profile"]}
    again = plan_resumed(run.path)
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


def test_resumed_sweep_runs_failed_and_lost_points_again(monkeypatch, tmp_path: Path):
    plan = plan_small("1,2,4")
    run = run_fake(monkeypatch, plan, tmp_path, batch_2="loss")
    gone = next(row.run for row in read_result(run.path).sweep.rows if row.value == 4)
    (run.path / gone / "result.json").unlink()
    change_result(run.path, status="interrupted")
    assert find_due(run.path, read_result(run.path), plan) == {"batch 2": ["bench"], "batch 4": ["bench"]}
    run_fake(monkeypatch, plan, tmp_path, reopen_run(run.path, "sweep", "x"))
    assert statuses(read_result(run.path)) == {1: "ok", 2: "ok", 4: "ok"}
    assert count_points(run.path) == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "has come to its end: its status is ok"),
        ({"status": "running"}, "is still running: process"),
        ({"status": "interrupted", "kind": "bench"}, "is a bench run, not a sweep"),
        (
            {"status": "interrupted", "software": {"trainstone": "0.0.1", "torch": "1.0"}},
            r"cannot resume .*: trainstone 0\.0\.1 there, .*; torch 1\.0 there",
        ),
    ],
)
def test_resume_refuses_what_is_not_an_unfinished_sweep_of_here(monkeypatch, tmp_path: Path, changes: dict, message):
    run = run_fake(monkeypatch, plan_small("1,2"), tmp_path)
    change_result(run.path, **changes)
    with pytest.raises(ResultError, match=message):
        plan_resumed(run.path)


def test_resume_of_a_finished_sweep_says_how_to_start_again(monkeypatch, tmp_path: Path):
    run = run_fake(monkeypatch, plan_small("1,2"), tmp_path)
    with pytest.raises(ResultError) as caught:
        plan_resumed(run.path)
    assert caught.value.hint.endswith(f"or start again: trainstone sweep {run.path}/config.toml --batch-sizes 1,2")


def test_resume_refuses_a_changed_configuration(monkeypatch, tmp_path: Path):
    plan = plan_small("1,2")
    run = run_fake(monkeypatch, plan, tmp_path)
    stop(run)
    assert plan_resumed(run.path).points == plan.points
    file = run.path / "config.toml"
    before = file.read_text()
    for old, new, message in (
        ("image_size = 224", "image_size = 64", "data.image_size was 224, is 64"),
        ("seed = 0", "seed = 7", "seed was 0, is 7"),
        ('precision = "fp32"', 'precision = "auto"', "train.precision was fp32, is auto"),
    ):
        assert old in before
        file.write_text(before.replace(old, new))
        with pytest.raises(ResultError, match="is not what the points of this sweep were run with") as caught:
            plan_resumed(run.path)
        assert message in caught.value.message
        assert caught.value.hint.startswith("restore it, or start again: ")


def test_resume_after_a_kill_while_the_first_point_settled_the_configuration(monkeypatch, tmp_path: Path):
    plan = plan_small("1,2")
    run = run_fake(monkeypatch, plan, tmp_path)
    # config.toml is written before result.json, which then has no machine
    change_result(run.path, config=plan.config.model_dump(mode="json", exclude_none=True), machine={})
    stop(run, keep=0)
    assert plan_resumed(run.path).config.train.precision == "fp32"


@pytest.mark.parametrize("damage", [{"values": []}, {"curve_key": "seed", "curves": []}])
def test_resume_refuses_a_plan_without_points(monkeypatch, tmp_path: Path, damage: dict):
    run = run_fake(monkeypatch, plan_small("1,2"), tmp_path)
    stop(run)
    change_sweep(run.path, **damage)
    with pytest.raises(ResultError, match="names no values to sweep"):
        plan_resumed(run.path)
