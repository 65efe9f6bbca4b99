from itertools import pairwise
from pathlib import Path

import pytest

from launching import make_verb
from trainstone.config.schema import LaunchConfig, System
from trainstone.errors import ConfigError, MachineError
from trainstone.launch import mpi
from trainstone.launch.mpi import Options, check_start, plan_mpi, read_hostfile, read_hosts


def test_hosts_and_slots(tmp_path: Path):
    assert read_hosts("a:4,b") == [("a", 4), ("b", None)]
    file = tmp_path / "hosts"
    file.write_text("# ours\nn1 slots=4 max-slots=8\n\nme@n2:2  # two\n#me@n4\nn3\n")
    assert read_hostfile(file) == [("n1", 4), ("n2", 2), ("n3", None)]
    for wrong in ("a:x", "", "-a"):
        with pytest.raises(ConfigError):
            read_hosts(wrong)


def test_words_of_mpirun(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mpi.os, "geteuid", lambda: 1000)
    plan = plan_mpi(make_verb("x; y"), Path("/r/run"), "mpi-1", Options(host="n1:4,n2:4", words="--mca btl 'tcp,self'"))
    words = list(plan.command)
    assert words[:5] == ["mpirun", "-np", "8", "--host", "n1:4,n2:4"]
    assert words[words.index("--bind-to") + 1] == "none"
    assert "--allow-run-as-root" not in words
    assert words[words.index("--mca") :][:3] == ["--mca", "btl", "tcp,self"]
    assert words[-2:] == ["train", "x; y"]
    passed = {after for word, after in pairwise(words) if word == "-x"}
    assert {"TRAINSTONE_RUN", "TRAINSTONE_LAUNCH", "TRAINSTONE_BIND", "MASTER_ADDR"} <= passed
    assert plan.environment["MASTER_ADDR"] == "n1"


def test_ranks_of_the_system_and_an_image():
    system = System(name="s", summary="s", nodes=2, devices_per_node=4, launch=LaunchConfig(container="a.sif"))
    plan = plan_mpi(make_verb(system=system), Path("/r/run"), "x", Options(max_restarts=2))
    assert plan.command[2] == "8"
    assert plan.attempts == 3
    inside = plan.command[plan.command.index("exec") + 1 :]
    assert "/r" in inside
    assert inside[inside.index("a.sif") + 1 :][:4] == ("python3", "-P", "-m", "trainstone")


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match="number of ranks is not known"):
        plan_mpi(make_verb(), Path("/r"), "x", Options())
    with pytest.raises(ConfigError, match="both name hosts"):
        plan_mpi(make_verb(), Path("/r"), "x", Options(ranks=2, host="a", hostfile=Path("b")))
    options = Options(ranks=2, container="a.sif")
    plan = plan_mpi(make_verb(), Path("/r"), "x", options)
    monkeypatch.setattr(mpi.shutil, "which", lambda name: None)
    with pytest.raises(MachineError, match="no mpirun"):
        check_start(plan, options, make_verb())
    monkeypatch.setattr(mpi.shutil, "which", lambda name: name if name == "mpirun" else None)
    with pytest.raises(MachineError, match="Apptainer"):
        check_start(plan, options, make_verb())
