"""What Slurm says of a job, in our words."""

from pathlib import Path

import pytest

from trainstone.errors import DataError, LaunchError
from trainstone.launch import slurm_job
from trainstone.launch.slurm_job import Watch, conclude_job, describe_job, explain_end
from trainstone.launch.slurm_queue import ENDED, GONE, Job


def test_reasons_in_words():
    def told(reason: str) -> str:
        return describe_job(Job("3", "PENDING", reason))

    assert told("Resources") == "job 3 waits: Resources (for nodes to become free)"
    assert told("None") == "job 3 waits"
    assert told("ReqNodeNotAvail,_UnavailableNodes:n2") == (
        "job 3 waits: ReqNodeNotAvail, UnavailableNodes:n2 (a node that it needs is down, reserved or busy)"
    )
    assert told("SomethingNew") == "job 3 waits: SomethingNew"
    assert describe_job(Job("3", "RUNNING", nodes="n[1-2]")) == "job 3 runs on n[1-2]"


def test_news_are_told_once():
    watch = Watch()
    assert watch.note(Job("3", "PENDING", "Priority")) == "job 3 waits: Priority (for jobs that go before it)"
    assert watch.note(Job("3", "PENDING", "Priority")) is None
    assert watch.note(Job("3", "RUNNING", "None", nodes="n1")) == "job 3 runs on n1"
    again = watch.note(Job("3", "PENDING", "BeginTime", restarts=1))
    assert again is not None
    assert again.startswith("job 3 goes back into the queue, start 2; job 3 waits: BeginTime")
    assert watch.note(Job("3", "PENDING", "BeginTime", restarts=1)) is None
    assert watch.note(Job("3", "COMPLETED", restarts=1)) is None


def test_an_end_by_slurm_has_its_state_and_the_next_step():
    error = explain_end(Job("3", "TIMEOUT", nodes="n1"))
    assert error.message == "Slurm ended job 3 on n1: TIMEOUT, its time limit was over"
    assert "--requeue" in str(error.hint)
    assert error.exit_code == 5
    assert set(slurm_job.HINTS) < set(ENDED)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(slurm_job, "SEEN_SECONDS", 0.05)
    monkeypatch.setattr(slurm_job, "LOOK_SECONDS", 0.01)
    (tmp_path / "launch").mkdir()
    return tmp_path


@pytest.mark.parametrize(("state", "code"), [("COMPLETED", 0), ("FAILED", 8), ("FAILED", 75)])
def test_the_code_of_the_script_counts_where_the_files_are_not_seen(run: Path, state: str, code: int):
    assert conclude_job(Job("3", state, exit_code=code), run, run / "log") == code


def test_what_is_seen_late_is_waited_for(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slurm_job, "SEEN_SECONDS", 60.0)
    monkeypatch.setattr("time.sleep", lambda _seconds: (run / "launch/code").write_text("8\n"))
    assert conclude_job(Job("3", GONE), run, run / "log") == 8


def test_a_failure_of_which_nothing_is_seen_has_the_class_of_its_code(run: Path):
    with pytest.raises(DataError, match="job 3 ended with exit code 3"):
        conclude_job(Job("3", "FAILED", exit_code=3), run, run / "log")
    with pytest.raises(LaunchError):  # accounting knows that it failed, but not its code
        conclude_job(Job("3", "FAILED"), run, run / "log")


def test_a_job_that_never_began_is_not_waited_for(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slurm_job, "SEEN_SECONDS", 1e9)
    with pytest.raises(LaunchError, match="it was cancelled"):
        conclude_job(Job("3", "CANCELLED", nodes="(null)"), run, run / "log")
