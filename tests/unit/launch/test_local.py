import shlex
from pathlib import Path

import pytest

from launching import make_verb
from trainstone.errors import ConfigError, MachineError
from trainstone.launch import local
from trainstone.launch.local import check_room, choose_ranks, plan_local
from trainstone.machine.cpus import Cores


def test_choose_ranks_takes_one_per_cuda_device(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(local, "count_cuda_devices", lambda: 2)
    assert choose_ranks(None) == 2
    assert "TRAINSTONE_BIND" not in plan_local(make_verb(device="cuda"), Path("/r"), "x", ranks=2).environment
    monkeypatch.setattr(local, "count_cuda_devices", lambda: 0)
    with pytest.raises(ConfigError, match="no CUDA devices"):
        choose_ranks(None)


def set_machine(monkeypatch: pytest.MonkeyPatch, *, cores: int, memory_ranks: int, devices: int = 0) -> None:
    monkeypatch.setattr(local, "available_cores", lambda: Cores(cores, 1, None, 1))
    monkeypatch.setattr(local, "memory_available_bytes", lambda: memory_ranks * local.RANK_MEMORY_BYTES + 1)
    monkeypatch.setattr(local, "count_cuda_devices", lambda: devices)


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
