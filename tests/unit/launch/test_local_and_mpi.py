"""The words of engines and what they refuse; the verb that is launched: its words, its system, its folder."""

import shlex
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from support.builders.training_runs import make_config
from support.processes.launches import make_verb
from trainstone.config.schema import Config, LaunchConfig, System
from trainstone.errors import ConfigError, MachineError, ResultError
from trainstone.launch import local, mpi, verb
from trainstone.launch.local import check_room, choose_ranks, plan_local
from trainstone.launch.mpi import MpiOptions, check_start, plan_mpi, read_hostfile, read_hosts
from trainstone.launch.verb import prepare_folder, read_verb
from trainstone.machine.cpus import Cores
from trainstone.results.run_folder import create_run


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
    train = make_verb("demo-classify", "--set", "name='a b'")
    check_room(train, fitting)
    with pytest.raises(MachineError) as raised:
        check_room(train, fitting + 1, 2)
    message, hint = raised.value.message, str(raised.value.hint).splitlines()
    assert message.startswith(f"cannot start {fitting + 1} ranks on ")
    assert f"it has {cores} CPUs and " in message
    assert f"; {fitting} fit, with one CPU and at least 1.27 GiB each" in message
    words = ["--ranks", str(fitting), "--max-restarts", "2", "--", "train", "demo-classify", "--set", "name='a b'"]
    assert shlex.split(hint[0]) == ["trainstone", "launch", "local", *words]
    assert hint[1] == "--oversubscribe starts them nevertheless"
    check_room(train, fitting + 1, oversubscribe=True)


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
    monkeypatch.setattr(local.os, "geteuid", lambda: 1000)
    plan = plan_mpi(
        make_verb("x; y"), Path("/r/run"), "mpi-1", MpiOptions(host="n1:4,n2:4", words="--mca btl 'tcp,self'")
    )
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
    plan = plan_mpi(make_verb(system=system), Path("/r/run"), "x", MpiOptions(max_restarts=2))
    assert plan.command[2] == "8"
    assert plan.attempts == 3
    inside = plan.command[plan.command.index("exec") + 1 :]
    assert "/r" in inside
    assert inside[inside.index("a.sif") + 1 :][:4] == ("python3", "-P", "-m", "trainstone")


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match="number of ranks is not known"):
        plan_mpi(make_verb(), Path("/r"), "x", MpiOptions())
    with pytest.raises(ConfigError, match="both name hosts"):
        plan_mpi(make_verb(), Path("/r"), "x", MpiOptions(ranks=2, host="a", hostfile=Path("b")))
    options = MpiOptions(ranks=2, container="a.sif")
    plan = plan_mpi(make_verb(), Path("/r"), "x", options)
    monkeypatch.setattr(mpi.shutil, "which", lambda name: None)
    with pytest.raises(MachineError, match="no mpirun"):
        check_start(plan, options, make_verb())
    monkeypatch.setattr(mpi.shutil, "which", lambda name: name if name == "mpirun" else None)
    with pytest.raises(MachineError, match="Apptainer"):
        check_start(plan, options, make_verb())


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    lines: list[list[str]] = []

    def resolve_plan(name: str, arguments: Sequence[str]) -> Config:
        lines.append([name, *arguments])
        return make_config()

    monkeypatch.setattr(verb, "resolve_plan", resolve_plan)
    return lines


def test_what_concerns_the_launcher_is_taken_out(requested: list[list[str]]):
    words = ["train", "x; y", "--json", "-q", "--out", "there", "--system=bede-1x4", "--dry-run"]
    read = read_verb(words, system=None)
    assert read.arguments == ("x; y", "--out", "there", "--system=bede-1x4")
    assert requested == [["train", *read.arguments]]
    assert (read.as_json, read.quiet, read.dry_run) == (True, True, True)
    assert (read.out, read.resume) == (Path("there"), None)
    assert read.system is not None
    assert read.system.devices_per_node == 4
    assert read.command("python3")[-5:] == ["train", *read.arguments]


def test_the_launchers_system_is_the_verbs_too_but_eval_takes_only_its_geometry(requested: list[list[str]]):
    assert read_verb(["bench", "x"], system="bede-1x4").arguments == ("x", "--system", "bede-1x4")
    with pytest.raises(ConfigError, match="--system bede-1x1 and --system bede-1x4"):
        read_verb(["bench", "--system", "bede-1x4"], system="bede-1x1")
    read = read_verb(["eval", "RUN"], system="bede-4x4")
    assert read.arguments == ("RUN",)
    assert read.system is not None
    assert read.system.nodes == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing cannot be launched"),
        (["doctor"], "'doctor' cannot be launched"),
        (["sweep", "x"], "'sweep' cannot be launched"),
        (["train", "x", "--runs", "5"], "--runs starts worlds of its own"),
        (["eval", "RUN", "--predict", "a.jpg"], "--predict is the work of one process"),
        (["eval", "RUN", "--export=x"], "--export is the work of one process"),
    ],
)
def test_what_ranks_cannot_do_together(requested: list[list[str]], words: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        read_verb(words, system=None)
    assert not requested
    if words[:1] == ["sweep"]:
        assert read_verb(words, system=None, ranks=1).name == "sweep"


def test_a_verbs_own_mistake_keeps_its_message_and_code():
    with pytest.raises(ConfigError, match="no-such-recipe"):
        read_verb(["bench", "no-such-recipe"], system=None)


def test_prepare_folder_keeps_that_of_a_resumed_run_or_says_what_is_wrong(tmp_path: Path):
    begun = create_run(tmp_path, "train", make_config(), "x")
    run = begun.path
    with pytest.raises(ResultError, match="is still running"):
        prepare_folder(make_verb(resume=run))
    begun.update(status="interrupted")
    (run / "launch").mkdir()
    (run / "launch/code").write_text("75\n")
    assert prepare_folder(make_verb(resume=run)) == run
    assert not (run / "launch/code").exists()
    (tmp_path / "file").touch()
    with pytest.raises(ResultError, match="cannot write run folder"):
        prepare_folder(make_verb(out=tmp_path / "file"))
    with pytest.raises(ResultError, match="no result in"):
        prepare_folder(make_verb(resume=tmp_path / "none"))
