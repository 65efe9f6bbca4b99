"""Run folders: create, update, read, resume, and recover results of unfinished runs."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from support.builders.results import change_result
from support.builders.training_results import make_phases, make_quality, make_steps, make_training, write_training
from trainstone.config.load import load_config
from trainstone.errors import ResultError
from trainstone.results.run_folder import create_run, find_runs, read_result, recover, reopen_run
from trainstone.results.schema.quality import Quality
from trainstone.results.schema.run import FORMAT, Phases
from trainstone.results.step_summary import summarise_steps
from trainstone.results.steps import read_columns


@pytest.fixture
def run(tmp_path: Path):
    return create_run(tmp_path / "runs", "bench", load_config("resnet50"), "trainstone bench")


def test_create_run_writes_readable_result_and_update_changes_it(run):
    result = read_result(run.path)
    assert (result.status, result.format, result.recipe.name) == ("running", FORMAT, "resnet50")
    assert run.path.name.split("-")[2] == "resnet50"
    assert not run.rollback()  # not a resumed run
    run.update(status="ok", verdict="fine")
    change_result(run.path, something_new={"a": 1})  # by a newer version
    result = read_result(run.path / "result.json")
    assert (result.status, result.verdict) == ("ok", "fine")
    assert result.files == ["config.toml", "result.json"]
    document = json.loads((run.path / "result.json").read_text())
    assert "throughput" not in document
    assert None not in document.values()
    odd = create_run(run.path, "bench", load_config("resnet50", settings=['name="../../x y"']), "")
    assert odd.path.parent == run.path  # a name that is not a valid file name
    assert odd.path.is_dir()


def test_read_result_of_dead_process_is_killed(run):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    # The second change: a younger process has the same pid.
    for changes in ({"pid": gone.pid}, {"started_utc": "2020-01-01T00:00:00+00:00"}):
        change_result(run.path, process={**run.result.process.model_dump(), **changes})
        assert read_result(run.path).status == "killed"
    # A run on another host counts as dead if its files are old.
    change_result(run.path, process={**run.result.process.model_dump(), "host": "elsewhere"})
    assert read_result(run.path).status == "running"
    for path in run.path.iterdir():
        os.utime(path, (0, 0))
    assert read_result(run.path).status == "killed"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, r"result\.json is missing"),
        ("", "cannot read"),
        ("[]", "not a trainstone result"),
        ('{"format": "x"}', "not a trainstone result"),
        ('{"format": 999}', "has format 999: this version of trainstone reads format 2"),
        ('{"format": 1}', "has format 1: this version of trainstone reads format 2"),
        ('{"format": 2}', "damaged at kind"),
    ],
)
def test_read_result_rejects_other_documents(tmp_path: Path, content: str | None, words: str):
    if content is not None:
        (tmp_path / "result.json").write_text(content)
    with pytest.raises(ResultError, match=words):
        read_result(tmp_path)


THROUGHPUT = {"images_per_second": 1, "ci_covers": "", "steady": True, "steady_from_step": 0, "num_steps": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {"throughput": {**THROUGHPUT, "images_per_second": 0}},
        {"world": {"ranks": 0}},
        {"config": {"train": [1]}},
        {"memory": {"peak_host_bytes": 10**400}},
        {"energy": {"joules_per_image": float("nan"), "average_watts": 1, "meter": "x"}},
    ],
)
def test_read_result_rejects_impossible_numbers(run, changes: dict):
    change_result(run.path, **changes)
    with pytest.raises(ResultError, match=r"damaged|cannot read"):
        read_result(run.path)


def test_reopen_run_clears_numbers_of_last_start(tmp_path: Path):
    path = write_training(tmp_path, make_training(verdict="fine"))
    run = reopen_run(path, "train", "trainstone train --resume x")
    result = read_result(path)
    assert (result.status, result.verdict, result.findings) == ("running", None, [])
    assert (result.throughput, result.step_seconds, result.noise, result.devices) == (None, None, None, [])
    assert (result.process.starts, result.process.pid) == (2, os.getpid())
    assert result.quality == run.result.quality is not None
    with pytest.raises(ResultError, match="is still running: process"):
        reopen_run(path, "train", "x")


def test_rollback_restores_resumed_run_before_commit(tmp_path: Path):
    path = write_training(tmp_path, make_training(verdict="fine"))
    (path / "config.toml").write_text("# as it was\n")
    before = read_result(path)
    run = reopen_run(path, "train", "x")
    run.write_config(load_config("demo-classify"))
    run.update(quality=None, phases=None)
    assert run.rollback()
    assert (path / "config.toml").read_text() == "# as it was\n"
    assert read_result(path).model_copy(update={"files": []}) == before.model_copy(update={"files": []})
    assert not run.rollback()
    run = reopen_run(path, "train", "x")
    run.commit()  # the run has made progress
    assert not run.rollback()
    assert read_result(path).status == "running"


def test_find_runs_skips_folders_without_read_permission():
    user = os.geteuid()
    with tempfile.TemporaryDirectory(prefix="trainstone-shared-") as name:  # other users cannot reach pytest's folders
        shared = Path(name)
        shared.chmod(0o755)
        (shared / "closed/runs").mkdir(parents=True)
        runs = [create_run(shared, "bench", load_config("resnet50"), "trainstone bench").path for _ in range(2)]
        for folder in (shared / "closed", runs[0]):
            folder.chmod(0)
        if user == 0:
            os.seteuid(65534)  # root may read everything
        try:
            assert find_runs(shared) == [runs[1]]  # the readable run is still found
            with pytest.raises(ResultError, match=r"cannot list the runs in .*Permission denied"):
                find_runs(shared / "closed/runs")
        finally:
            os.seteuid(user)
            for folder in (shared / "closed", runs[0]):
                folder.chmod(0o755)


def test_recover_returns_finished_run_unchanged(golden):
    path = golden("good")
    assert recover(path) == read_result(path)
    assert recover(path / "result.json") == read_result(path)


def test_recover_computes_throughput_of_killed_run(golden):
    path = golden("killed")
    assert read_result(path).throughput is None
    single, steps = recover(path), path / "steps-rank0000.csv"
    expected = summarise_steps(read_columns(steps), compiled=False)
    assert (single.throughput, single.step_seconds) == (expected.throughput, expected.step_seconds)
    assert "killed" in [found.code for found in single.findings]
    assert "killed after 79 steps" in single.verdict
    change_result(path, world={"ranks": 2, "nodes": 1})
    both = recover(path)  # images of both ranks count
    assert both.throughput.images_per_second == pytest.approx(2 * single.throughput.images_per_second)
    assert "images/s on 2 ranks" in both.verdict
    change_result(path, points=[{"label": "a", "run": "points/a"}])
    assert recover(path).throughput is None  # the points have the results
    change_result(path, points=[])
    steps.write_text(steps.read_text().splitlines()[0] + "\n0,0,0.")
    assert recover(path).throughput is None
    steps.unlink()
    assert recover(path).throughput is None


@pytest.mark.parametrize(("line", "cell", "text"), [(0, 1, "what"), (5, 4, "nan"), (5, 0, "x")])
def test_recover_reports_damaged_step_file_as_finding(golden, line, cell, text):
    path = golden("killed")
    steps = path / "steps-rank0000.csv"
    rows = [row.split(",") for row in steps.read_text().splitlines()]
    rows[line][cell] = text
    steps.write_text("\n".join(",".join(row) for row in rows) + "\n")
    assert [found.code for found in recover(path).findings][-1] == "damaged-file"


def write_cut_short(folder: Path, status: str, quality: Quality | None = None, **changes: object) -> Path:
    """Write a training run that ended after 120 steps, 100 of them before its last evaluation; its process is gone."""
    known = Phases(train_seconds=30.0, data_wait_seconds=2.0, eval_seconds=6.0, checkpoint_seconds=0.8)
    given = {"throughput": None, "verdict": None, "phases": known, "quality": quality, "status": status} | changes
    path = write_training(folder, make_training(**given), make_steps()[:120])
    os.utime(path / "result.json", (0, 0))
    os.utime(path / "steps-rank0000.csv", (0, 0))
    return path


def test_recover_killed_training_has_verdict_and_resume_hint(tmp_path: Path):
    quality = make_quality(history=make_quality().history[:2], epochs=2.0, seconds_to_target=None)
    result = recover(write_cut_short(tmp_path, "running", quality))
    assert result.status == "killed"
    message = "best 40.5 % top-1 after 2 epochs; killed; resume it with trainstone train --resume RUN"
    assert result.verdict == f"resnet50: {message}"
    (killed,) = (found for found in result.findings if found.code == "killed")
    assert killed.hint.startswith("resume it: trainstone train --resume RUN")
    assert result.throughput is not None
    assert result.phases.train_seconds == pytest.approx(36.0)
    assert (result.phases.eval_seconds, result.phases.checkpoint_seconds) == (6.0, 0.8)
    assert {found.severity for found in result.findings if found.code != "killed"} <= {"info"}
    moved = write_cut_short(tmp_path / "other", "running", phases=make_phases())
    assert recover(moved).phases == make_phases()  # steps in moved files still count


@pytest.mark.parametrize(("status", "message"), [("failed", "failed"), ("interrupted", "stopped by a signal")])
def test_recover_failed_training_has_verdict(tmp_path: Path, status: str, message: str):
    path = write_cut_short(tmp_path, status)
    assert f"best 92.4 % top-1 after 8 epochs; {message}" in str(recover(path).verdict)
    (path / "steps-rank0000.csv").unlink()
    assert f"best 92.4 % top-1 after 8 epochs; {message}" in str(recover(path).verdict)


def test_recover_training_killed_after_target_keeps_verdict(tmp_path: Path):
    path = write_cut_short(tmp_path, "target_reached", make_quality(), verdict="done", phases=make_phases())
    result = recover(path)
    assert (result.status, result.verdict, result.phases) == ("target_reached", "done", make_phases())
    assert result.throughput is not None
