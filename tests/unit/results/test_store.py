import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from made_learning import make_training, write_training
from made_results import change_result
from trainstone.config.load import load_config
from trainstone.errors import ResultError
from trainstone.results.schema import FORMAT
from trainstone.results.store import create_run, find_runs, read_result, reopen_run


@pytest.fixture
def run(tmp_path: Path):
    return create_run(tmp_path / "runs", "bench", load_config("resnet50"), "trainstone bench")


def test_a_new_run_is_readable_at_once_and_updates_are_read_back(run):
    result = read_result(run.path)
    assert (result.status, result.format, result.recipe.name) == ("running", FORMAT, "resnet50")
    assert run.path.name.split("-")[2] == "resnet50"
    assert not run.undo()  # there is nothing to go back to
    run.update(status="ok", verdict="fine")
    change_result(run.path, something_new={"a": 1})  # by a newer version
    result = read_result(run.path / "result.json")
    assert (result.status, result.verdict) == ("ok", "fine")
    assert result.files == ["config.toml", "result.json"]
    document = json.loads((run.path / "result.json").read_text())
    assert "throughput" not in document
    assert None not in document.values()


def test_a_run_whose_process_is_gone_reads_as_killed(run):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    # The second: its number has gone to a younger process.
    for changes in ({"pid": gone.pid}, {"started_utc": "2020-01-01T00:00:00+00:00"}):
        change_result(run.path, process={**run.result.process.model_dump(), **changes})
        assert read_result(run.path).status == "killed"


def test_on_another_host_still_files_mean_dead(run):
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
        ('{"format": 999}', "reads up to"),
        ('{"format": 1}', "damaged at kind"),
    ],
)
def test_other_documents_are_refused(tmp_path: Path, content: str | None, words: str):
    if content is not None:
        (tmp_path / "result.json").write_text(content)
    with pytest.raises(ResultError, match=words):
        read_result(tmp_path)


def test_names_that_are_no_file_names(tmp_path: Path):
    config = load_config("resnet50", settings=['name="../../x y"'])
    run = create_run(tmp_path, "bench", config, "")
    assert run.path.parent == tmp_path
    assert run.path.is_dir()


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
def test_numbers_that_cannot_be_are_damage(run, changes: dict):
    change_result(run.path, **changes)
    with pytest.raises(ResultError, match=r"damaged|cannot read"):
        read_result(run.path)


def test_a_run_that_is_taken_up_forgets_the_numbers_of_its_last_start(tmp_path: Path):
    path = write_training(tmp_path, make_training(verdict="fine"))
    run = reopen_run(path, "train", "trainstone train --resume x")
    result = read_result(path)
    assert (result.status, result.verdict, result.findings) == ("running", None, [])
    assert (result.throughput, result.step_seconds, result.noise, result.devices) == (None, None, None, [])
    assert (result.process.starts, result.process.pid) == (2, os.getpid())
    assert result.quality == run.result.quality is not None
    with pytest.raises(ResultError, match="is still running: process"):
        reopen_run(path, "train", "x")


def test_a_run_that_was_taken_up_in_vain_is_as_it_was(tmp_path: Path):
    path = write_training(tmp_path, make_training(verdict="fine"))
    (path / "config.toml").write_text("# as it was\n")
    before = read_result(path)
    run = reopen_run(path, "train", "x")
    run.write_config(load_config("demo-classify"))
    run.update(quality=None, phases=None)
    assert run.undo()
    assert (path / "config.toml").read_text() == "# as it was\n"
    assert read_result(path).model_copy(update={"files": []}) == before.model_copy(update={"files": []})
    assert not run.undo()


def test_a_run_that_has_done_something_is_not_undone(tmp_path: Path):
    run = reopen_run(write_training(tmp_path), "train", "x")
    run.begin()
    assert not run.undo()
    assert read_result(run.path).status == "running"


def test_find_runs_skips_folders_that_the_user_may_not_read():
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
            assert find_runs(shared) == [runs[1]]  # the other is not hidden
            with pytest.raises(ResultError, match=r"cannot look for runs in .*Permission denied"):
                find_runs(shared / "closed/runs")
        finally:
            os.seteuid(user)
            for folder in (shared / "closed", runs[0]):
                folder.chmod(0o755)
