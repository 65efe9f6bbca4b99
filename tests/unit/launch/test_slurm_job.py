"""Jobs of Slurm: submitted, described, concluded; nodes of a fleet, the script that submits it, what comes of it."""

from pathlib import Path

import pytest

from flows import drain
from trainstone.errors import DataError, LaunchError, MachineError
from trainstone.launch import slurm as slurm_job
from trainstone.launch.slurm import (
    FORGOTTEN,
    Job,
    RefusedError,
    conclude_job,
    delayed_interrupt,
    describe_job,
    follow_job,
    gather_members,
    list_nodes,
    read_job,
    require_slurm,
    submit,
    write_submit,
)

LINE = (
    "JobId=12 ArrayJobId=11 ArrayTaskId=1 JobName=trainstone-x UserId=me(1) JobState=PENDING Reason=Resources "
    "Dependency=(null) Requeue=1 Restarts=2 BatchFlag=1 ExitCode=0:0 NodeList=n[1-2] Comment=x JobState=FAILED"
)
# One line after the other; an empty one stands for a controller that does not answer.
ANSWERS = """JobId=3 JobState=PENDING Reason=Priority
JobId=3 JobState=PENDING Reason=Priority

JobId=3 JobState=RUNNING Reason=None NodeList=n1
JobId=3 JobState=PENDING Reason=BeginTime Restarts=1
JobId=3 JobState=COMPLETED Restarts=1 NodeList=n1
"""
SINFO = r"""#!/bin/bash
case "$*" in
  *%P*) printf 'batch*\nurgent\nheld\n';;
  *"-p batch"*) printf 'n1 idle\nn2 down*\nn3 mix\nn4 drain\nn5 idle~\nn6 alloc*\n';;
  *"-p held -n n[2-5]"*) printf 'n2 resv\nn3 maint\nn4 idle$\nn5 down$\n';;
  *"-p held"*) printf 'n1 idle\nn2 resv\nn3 maint\nn4 idle$\nn5 down$\n';;
  *) printf 'n9 down\n';;
esac
"""
SCONTROL = r"""#!/bin/bash
cd "${0%/*}"
echo "$*" >> said
case "$*" in
  *reservation*) echo 'ReservationName=ours Nodes=n[2-5] NodeCnt=4';;
  *_1*) eval "$PINNING";;
  "show job"*)
    line=$(head -n 1 answers); sed -i 1d answers
    if [ -z "$line" ]; then echo "Unable to contact slurm controller" >&2; exit 1; fi
    echo "$line";;
esac
"""


@pytest.fixture(autouse=True)
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    note = '#!/bin/bash\necho "${0##*/} $*" >> "${0%/*}/said"\n'
    programs = {"sinfo": SINFO, "scontrol": SCONTROL, "sbatch": f"{note}echo 7", "scancel": note}
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "said"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(slurm_job, "VISIBLE_SECONDS", 0.05)
    monkeypatch.setattr(slurm_job, "LOOK_SECONDS", 0.01)
    (tmp_path / "launch").mkdir()
    return tmp_path


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "launch dir" / "submit.sh"
    path.parent.mkdir()
    path.write_text(write_submit(["n1", "x; touch hacked"]))
    return str(path)


def test_require_slurm_without_slurm_raises(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(MachineError, match="sbatch not found on "):
        require_slurm()


def test_submit_without_a_confirmation_is_not_refused():
    with pytest.raises(RefusedError, match="Slurm refused the job: invalid account"):
        submit("bash", "-c", "echo 'sbatch: error: invalid account' >&2; exit 1")
    said = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    with pytest.raises(LaunchError, match="Socket timed out") as raised:
        submit("bash", "-c", f"echo '{said}' >&2; exit 1")
    assert not isinstance(raised.value, RefusedError)


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
    (tmp_path / "answers").write_text(ANSWERS)
    lines, end = drain(follow_job("3", tmp_path))
    assert end == [Job("3", "COMPLETED", restarts=1, nodes="n1")]
    assert [line.partition(";")[0] for line in lines] == [
        "job 3 is pending: Priority",
        "Slurm does not answer: Unable to contact slurm controller",
        "job 3 is running on n1",
        "job 3 is pending (start 2): BeginTime",
    ]


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


def test_list_nodes_skips_nodes_that_are_down_and_knows_reservations():
    assert list_nodes(None) == (["n1", "n3", "n5"], {"n2": "down*", "n4": "drain", "n6": "alloc*"})
    assert list_nodes("held", "ours") == (["n2", "n3", "n4"], {"n5": "down$"})
    assert list_nodes("held")[0] == ["n1"]
    with pytest.raises(LaunchError, match="no usable node in partition urgent: n9 down"):
        list_nodes("urgent")
    with pytest.raises(LaunchError, match="Slurm has no partition nope") as raised:
        list_nodes("nope")
    assert raised.value.hint == "--partition: batch*, urgent, held"


def test_submit_script_holds_the_array_until_each_task_has_its_node(said: Path, script: str):
    assert submit("bash", script) == "7"
    assert said.read_text().splitlines() == [
        f"sbatch --parsable --hold {Path(script).parent}/job.sh",
        "update JobId=7_0 ReqNodeList=n1",
        "update JobId=7_1 ReqNodeList=x; touch hacked",
        "release 7",
    ]


def test_submit_script_cancels_an_array_that_it_cannot_pin(said: Path, script: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PINNING", "echo 'slurm_update error: Invalid node name specified' >&2; exit 1")
    with pytest.raises(RefusedError, match="Invalid node name"):
        submit("bash", script)
    assert said.read_text().splitlines()[-1] == "scancel 7"


def test_interrupt_while_submitting_waits_for_the_number(said: Path, script: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PINNING", 'kill -INT $PPID "$(ps -o ppid= -p $PPID)"')
    number = ""
    with pytest.raises(KeyboardInterrupt), delayed_interrupt():
        number = submit("bash", script)
    assert number == "7"
    assert said.read_text().splitlines()[-1] == "release 7"


def test_gather_members_keeps_codes_and_names_failures(run: Path):
    for node, code in (("n1", "8"), ("n2", "75")):
        (run / node / "launch").mkdir(parents=True)
        (run / node / "launch/code").write_text(code)
    ended = [
        Job("7", "FAILED", exit_code=8),
        Job("8", "CANCELLED", nodes="n2"),
        Job("9", FORGOTTEN),
        Job("9", "NODE_FAIL", nodes="n4"),
    ]
    members = gather_members(run, "7", ["n1", "n2", "n3", "n4"], ended)
    assert [member.code for member in members] == [8, 75, None, None]
    assert [member.failure for member in members[2:]] == [
        "job 9 ended with exit code 0",
        "Slurm ended job 9 on n4: NODE_FAIL, one of its nodes failed",
    ]
