"""Which nodes make a fleet, and how it is submitted again."""

import subprocess
from pathlib import Path

import pytest

from trainstone.errors import LaunchError
from trainstone.launch import fleet
from trainstone.launch.fleet import list_nodes, submit_fleet, write_resubmit
from trainstone.launch.slurm_queue import Job

SINFO = r"""#!/bin/bash
case "$*" in
  *%P*) printf 'batch*\nurgent\nheld\n';;
  *"-p batch"*) printf 'n1 idle\nn2 down*\nn3 mix\nn4 drain\nn5 idle~\nn6 alloc*\n';;
  *"-p held"*) printf 'n1 idle\nn2 resv\nn3 maint\nn4 idle$\nn5 down$\n';;
  *) printf 'n9 down\n';;
esac
"""
SCONTROL = r"""#!/bin/bash
echo "$*" >> "${0%/*}/said"
case "$*" in
  *reservation*) echo 'ReservationName=ours Nodes=n[2-5] NodeCnt=4';;
  *hostnames*) printf 'n2\nn3\nn4\nn5\n';;
  *_1*) eval "$PINNING";;
esac
"""


@pytest.fixture(autouse=True)
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs instead of Slurm's, and where they note their words."""
    note = '#!/bin/bash\necho "${0##*/} $*" >> "${0%/*}/said"\n'
    programs = {"sinfo": SINFO, "scontrol": SCONTROL, "sbatch": f"{note}echo 7", "scancel": note}
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "said"


def test_nodes_that_cannot_work_are_left_out_by_name():
    nodes = list_nodes(None)
    assert nodes.usable == ["n1", "n3", "n5"]
    assert nodes.left_out == {"n2": "down*", "n4": "drain", "n6": "alloc*"}


def test_a_reservation_has_its_own_nodes():
    nodes = list_nodes("held", "ours")
    assert nodes.usable == ["n2", "n3", "n4"]
    assert nodes.left_out == {"n5": "down$"}
    assert list_nodes("held").usable == ["n1"]


def test_an_array_is_held_until_each_task_has_its_node(said: Path):
    assert submit_fleet(Path("job.sh"), ["n1", "n2"]) == "7"
    assert said.read_text().splitlines() == [
        "sbatch --parsable --hold job.sh",
        "update JobId=7_0 ReqNodeList=n1",
        "update JobId=7_1 ReqNodeList=n2",
        "release 7",
    ]


@pytest.mark.parametrize(
    ("pinning", "error"), [("exit 1", LaunchError), ("kill -INT $PPID; sleep 0.1", KeyboardInterrupt)]
)
def test_an_array_that_was_not_let_go_is_cancelled(
    said: Path, monkeypatch: pytest.MonkeyPatch, pinning: str, error: type[BaseException]
):
    monkeypatch.setenv("PINNING", pinning)
    with pytest.raises(error):
        submit_fleet(Path("job.sh"), ["n1", "n2"])
    assert said.read_text().splitlines()[-1] == "scancel 7"


def test_ctrl_c_while_slurm_takes_the_array_waits_for_its_number(said: Path):
    (said.parent / "sbatch").write_text("#!/bin/bash\nkill -INT $PPID; sleep 0.2; echo 7\n")
    with pytest.raises(KeyboardInterrupt):
        submit_fleet(Path("job.sh"), ["n1"])
    assert said.read_text().splitlines() == ["scancel 7"]


def test_an_orderly_end_of_a_node_keeps_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fleet, "SEEN_SECONDS", 0.0)
    for node, code in (("n1", "8"), ("n2", "75")):
        (tmp_path / node / "launch").mkdir(parents=True)
        (tmp_path / node / "launch/code").write_text(code)
    ended = {"n1": Job("7", "FAILED", exit_code=8), "n2": Job("8", "CANCELLED", nodes="n2"), "n3": Job("9", "GONE")}
    one, two, three = fleet.gather_members(tmp_path, ended)
    assert [one.code, two.code, three.code] == [8, 75, None]
    assert three.failure == "its job 9 ended with exit code 0"


def test_a_partition_without_a_working_node_is_refused():
    with pytest.raises(LaunchError, match="no node of partition urgent can work: n9 down"):
        list_nodes("urgent")


def test_an_unknown_partition_is_told_with_those_there_are():
    with pytest.raises(LaunchError, match="Slurm has no partition nope") as raised:
        list_nodes("nope")
    assert raised.value.hint == "--partition: batch*, urgent, held"


def test_the_script_that_submits_again_pins_each_task():
    script = write_resubmit(["n1", "x; touch hacked"])
    assert 'scontrol update JobId="${job}_0" ReqNodeList=n1\n' in script
    assert "ReqNodeList='x; touch hacked'\n" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True).stderr == ""
