import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from launching import make_verb
from trainstone.config.schema import LaunchConfig, System
from trainstone.errors import ConfigError, MachineError
from trainstone.launch import engines
from trainstone.launch.engines import (
    Options,
    check_room,
    check_start,
    choose_ranks,
    plan_local,
    plan_mpi,
    read_hostfile,
    read_hosts,
)
from trainstone.machine.cpus import Cores


def test_choose_ranks_takes_one_per_cuda_device(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engines, "count_cuda_devices", lambda: 2)
    assert choose_ranks(None) == 2
    assert "TRAINSTONE_BIND" not in plan_local(make_verb(device="cuda"), Path("/r"), "x", ranks=2).environment
    monkeypatch.setattr(engines, "count_cuda_devices", lambda: 0)
    with pytest.raises(ConfigError, match="no CUDA devices"):
        choose_ranks(None)


def set_machine(monkeypatch: pytest.MonkeyPatch, *, cores: int, memory_ranks: int, devices: int = 0) -> None:
    monkeypatch.setattr(engines, "available_cores", lambda: Cores(cores, 1, None, 1))
    monkeypatch.setattr(engines, "memory_available_bytes", lambda: memory_ranks * engines.RANK_MEMORY_BYTES + 1)
    monkeypatch.setattr(engines, "count_cuda_devices", lambda: devices)


@pytest.mark.parametrize(("cores", "memory_ranks", "fitting"), [(4, 100, 4), (100, 3, 3)])
def test_check_room_refuses_more_ranks_than_cores_or_memory(
    monkeypatch: pytest.MonkeyPatch, cores: int, memory_ranks: int, fitting: int
):
    set_machine(monkeypatch, cores=cores, memory_ranks=memory_ranks)
    verb = make_verb("demo-classify", "--set", "name='a b'")
    check_room(verb, fitting)
    with pytest.raises(MachineError) as raised:
        check_room(verb, fitting + 1, 2)
    message, hint = raised.value.message, str(raised.value.hint).splitlines()
    assert message.startswith(f"cannot start {fitting + 1} ranks on ")
    assert f"it has {cores} CPUs and " in message
    assert f"; {fitting} fit, with one CPU and at least 1.27 GiB each" in message
    words = ["--ranks", str(fitting), "--max-restarts", "2", "--", "train", "demo-classify", "--set", "name='a b'"]
    assert shlex.split(hint[0]) == ["trainstone", "launch", "local", *words]
    assert hint[1] == "--oversubscribe starts them nevertheless"
    check_room(verb, fitting + 1, oversubscribe=True)


def test_check_room_never_gives_two_ranks_one_cuda_device(monkeypatch: pytest.MonkeyPatch):
    set_machine(monkeypatch, cores=1, memory_ranks=100, devices=2)
    check_room(make_verb(device="auto"), 2)
    with pytest.raises(MachineError, match=r"it has 2 CUDA devices and .*; 2 fit") as raised:
        check_room(make_verb(device="auto"), 3, oversubscribe=True)
    assert raised.value.hint == "trainstone launch local --ranks 2 -- train"
    with pytest.raises(MachineError, match="it has 1 CPU and "):
        check_room(make_verb(), 2)


def test_hosts_and_slots(tmp_path: Path):
    assert read_hosts("a:4,b") == [("a", 4), ("b", None)]
    file = tmp_path / "hosts"
    file.write_text("# ours\nn1 slots=4 max-slots=8\n\nme@n2:2  # two\n#me@n4\nn3\n")
    assert read_hostfile(file) == [("n1", 4), ("n2", 2), ("n3", None)]
    for wrong in ("a:x", "", "-a"):
        with pytest.raises(ConfigError):
            read_hosts(wrong)


def test_words_of_mpirun(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engines.os, "geteuid", lambda: 1000)
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
    monkeypatch.setattr(engines.shutil, "which", lambda name: None)
    with pytest.raises(MachineError, match="no mpirun"):
        check_start(plan, options, make_verb())
    monkeypatch.setattr(engines.shutil, "which", lambda name: name if name == "mpirun" else None)
    with pytest.raises(MachineError, match="Apptainer"):
        check_start(plan, options, make_verb())
