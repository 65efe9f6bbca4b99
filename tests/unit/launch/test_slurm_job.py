"""Jobs of Slurm: submitted, described, concluded."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from trainstone.errors import DataError, LaunchError, MachineError
from trainstone.launch import slurm_job
from trainstone.launch.slurm_job import (
    FORGOTTEN,
    Job,
    RefusedError,
    conclude_job,
    describe_job,
    explain_refusal,
    follow_job,
    read_job,
    require_slurm,
)

LINE = (
    "JobId=12 ArrayJobId=11 ArrayTaskId=1 JobName=trainstone-x UserId=me(1) JobState=PENDING Reason=Resources "
    "Dependency=(null) Requeue=1 Restarts=2 BatchFlag=1 ExitCode=0:0 NodeList=n[1-2] Comment=x JobState=FAILED"
)
ANSWERS = [
    "JobId=3 JobState=PENDING Reason=Priority",
    "JobId=3 JobState=PENDING Reason=Priority",
    "",
    "JobId=3 JobState=RUNNING Reason=None NodeList=n1",
    "JobId=3 JobState=PENDING Reason=BeginTime Restarts=1",
    "JobId=3 JobState=COMPLETED Restarts=1 NodeList=n1",
]
# Answers one line after the other; an empty one stands for a controller that does not answer.
SCONTROL = """#!/bin/bash
cd "${0%/*}"
line=$(head -n 1 answers); sed -i 1d answers
if [ -z "$line" ]; then echo "Unable to contact slurm controller" >&2; exit 1; fi
echo "$line"
"""


def place_scontrol(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (folder / "scontrol").write_text(text)
    (folder / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_require_slurm_without_slurm_raises(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineError, match="sbatch not found on "):
        require_slurm()


def test_explain_refusal_of_timeout_is_not_a_refusal():
    assert isinstance(explain_refusal("sbatch: error: invalid account"), RefusedError)
    unsure = explain_refusal("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")
    assert not isinstance(unsure, RefusedError)
    assert "Socket timed out" in unsure.message


def test_read_job_takes_the_first_value_of_a_name():
    assert read_job(LINE) == Job("12", "PENDING", "Resources", 2, 0, "n[1-2]", 1)
    killed = read_job("JobId=3 JobState=FAILED ExitCode=0:9 NodeList=(null)")
    assert (killed.exit_code, killed.task, killed.nodes) == (137, None, "")


def test_describe_job_names_state_nodes_and_start():
    assert describe_job(Job("3", "PENDING", "Resources")) == "job 3 is pending: Resources; cancel it with: scancel 3"
    assert describe_job(Job("3", "RUNNING", nodes="n[1-2]", restarts=1)) == "job 3 is running on n[1-2] (start 2)"


def test_follow_job_yields_changes_and_survives_a_controller_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(slurm_job, "POLL_SECONDS", 0.0)
    (tmp_path / "answers").write_text("\n".join(ANSWERS) + "\n")
    place_scontrol(tmp_path, monkeypatch, SCONTROL)
    ends: list[Job] = []

    def follow() -> Iterator[str]:
        ends.append((yield from follow_job("3", tmp_path)))

    lines = list(follow())
    assert ends == [Job("3", "COMPLETED", restarts=1, nodes="n1")]
    assert [line.partition(";")[0] for line in lines] == [
        "job 3 is pending: Priority",
        "Slurm does not answer: Unable to contact slurm controller",
        "job 3 is running on n1",
        "job 3 is pending (start 2): BeginTime",
    ]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(slurm_job, "VISIBLE_SECONDS", 0.05)
    monkeypatch.setattr(slurm_job, "LOOK_SECONDS", 0.01)
    (tmp_path / "launch").mkdir()
    return tmp_path


def test_conclude_job_that_slurm_ended_has_state_and_hint(run: Path):
    with pytest.raises(LaunchError) as raised:
        conclude_job(Job("3", "TIMEOUT", nodes="n1"), run, run / "log")
    assert raised.value.message == "Slurm ended job 3 on n1: TIMEOUT, it reached its time limit"
    assert "--requeue" in str(raised.value.hint)
    assert "TIMEOUT" in (run / "launch/cause.txt").read_text()


@pytest.mark.parametrize(("state", "code"), [("COMPLETED", 0), ("FAILED", 8), ("FAILED", 75)])
def test_conclude_job_without_visible_files_returns_the_code_of_the_script(run: Path, state: str, code: int):
    assert conclude_job(Job("3", state, exit_code=code, nodes="n1"), run, run / "log") == code


@pytest.mark.parametrize("state", [FORGOTTEN, "CANCELLED"])
def test_conclude_job_waits_for_files_that_become_visible_late(run: Path, monkeypatch: pytest.MonkeyPatch, state: str):
    monkeypatch.setattr(slurm_job, "VISIBLE_SECONDS", 60.0)
    monkeypatch.setattr("time.sleep", lambda _seconds: (run / "launch/code").write_text("8\n"))
    assert conclude_job(Job("3", state, nodes="n1"), run, run / "log") == 8


def test_conclude_job_that_failed_without_visible_files_has_the_class_of_its_code(run: Path):
    with pytest.raises(DataError, match="job 3 ended with exit code 3"):
        conclude_job(Job("3", "FAILED", exit_code=3, nodes="n1"), run, run / "log")
    with pytest.raises(LaunchError, match="job 3 ended with exit code 0"):  # Slurm could not start it
        conclude_job(Job("3", "FAILED"), run, run / "log")


def test_conclude_job_that_never_started_does_not_wait(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slurm_job, "VISIBLE_SECONDS", 1e9)
    with pytest.raises(LaunchError, match="it was cancelled"):
        conclude_job(Job("3", "CANCELLED"), run, run / "log")
