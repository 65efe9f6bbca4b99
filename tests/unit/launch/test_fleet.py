"""Nodes of a fleet, the script that submits it, and what is gathered from its nodes."""

from pathlib import Path

import pytest

from trainstone.errors import LaunchError
from trainstone.launch import slurm_job
from trainstone.launch.slurm_job import (
    FORGOTTEN,
    Job,
    RefusedError,
    delayed_interrupt,
    gather_members,
    list_nodes,
    submit,
    write_submit,
)

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
echo "$*" >> "${0%/*}/said"
case "$*" in
  *reservation*) echo 'ReservationName=ours Nodes=n[2-5] NodeCnt=4';;
  *_1*) eval "$PINNING";;
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


def test_list_nodes_skips_nodes_that_are_down_and_knows_reservations():
    assert list_nodes(None) == (["n1", "n3", "n5"], {"n2": "down*", "n4": "drain", "n6": "alloc*"})
    assert list_nodes("held", "ours") == (["n2", "n3", "n4"], {"n5": "down$"})
    assert list_nodes("held")[0] == ["n1"]


def test_list_nodes_without_a_usable_node_or_partition_raises():
    with pytest.raises(LaunchError, match="no usable node in partition urgent: n9 down"):
        list_nodes("urgent")
    with pytest.raises(LaunchError, match="Slurm has no partition nope") as raised:
        list_nodes("nope")
    assert raised.value.hint == "--partition: batch*, urgent, held"


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "launch dir" / "submit.sh"
    path.parent.mkdir()
    path.write_text(write_submit(["n1", "x; touch hacked"]))
    return str(path)


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


def test_gather_members_keeps_codes_and_names_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slurm_job, "VISIBLE_SECONDS", 0.0)
    for node, code in (("n1", "8"), ("n2", "75")):
        (tmp_path / node / "launch").mkdir(parents=True)
        (tmp_path / node / "launch/code").write_text(code)
    ended = {
        "n1": Job("7", "FAILED", exit_code=8),
        "n2": Job("8", "CANCELLED", nodes="n2"),
        "n3": Job("9", FORGOTTEN),
        "n4": Job("9", "NODE_FAIL", nodes="n4"),
    }
    members = gather_members(tmp_path, "7", ended)
    assert [member.code for member in members] == [8, 75, None, None]
    assert [member.failure for member in members[2:]] == [
        "job 9 ended with exit code 0",
        "Slurm ended job 9 on n4: NODE_FAIL, one of its nodes failed",
    ]
