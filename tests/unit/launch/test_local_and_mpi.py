"""Launch with torchrun and mpirun: commands, capacity checks, and the parsed verb with its run folder."""

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
from trainstone.launch.local import check_capacity, choose_ranks, plan_local
from trainstone.launch.mpi import MpiOptions, check_start, parse_hosts, plan_mpi, read_hostfile
from trainstone.launch.verb import parse_verb, prepare_folder
from trainstone.machine.cpus import Cores
from trainstone.results.run_folder import create_run


def test_choose_ranks_takes_one_per_cuda_device(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(local, "count_cuda_devices", lambda: 2)
    assert choose_ranks(None) == 2
    plan = plan_local(make_verb(device="cuda"), Path("/r"), "x", ranks=2)
    assert plan.environment["TRAINSTONE_BIND"] == "cores"  # near their GPUs
    monkeypatch.setattr(local, "count_cuda_devices", lambda: 0)
    with pytest.raises(ConfigError, match="has no CUDA devices"):
        choose_ranks(None)


def set_machine(monkeypatch: pytest.MonkeyPatch, *, cores: int, memory_ranks: int, devices: int = 0) -> None:
    monkeypatch.setattr(local, "available_cores", lambda: Cores(cores, 1, None, 1))
    monkeypatch.setattr(local, "memory_available_bytes", lambda: memory_ranks * local.RANK_MEMORY_BYTES + 1)
    monkeypatch.setattr(local, "count_cuda_devices", lambda: devices)


@pytest.mark.parametrize(("cores", "memory_ranks", "fitting"), [(4, 100, 4), (100, 3, 3)])
def test_check_capacity_rejects_more_ranks_than_cores_or_memory(
    monkeypatch: pytest.MonkeyPatch, cores: int, memory_ranks: int, fitting: int
):
    set_machine(monkeypatch, cores=cores, memory_ranks=memory_ranks)
    train = make_verb("demo-classify", "--set", "name='a b'")
    check_capacity(train, fitting)
    with pytest.raises(MachineError) as raised:
        check_capacity(train, fitting + 1, 2)
    message, hint = raised.value.message, str(raised.value.hint).splitlines()
    assert message.startswith(f"cannot start {fitting + 1} ranks on ")
    assert f"it has {cores} CPUs and " in message
    assert f"; at most {fitting} fit, with one CPU and at least 1.27 GiB each" in message
    words = ["--ranks", str(fitting), "--max-restarts", "2", "--", "train", "demo-classify", "--set", "name='a b'"]
    assert shlex.split(hint[0]) == ["trainstone", "launch", "local", *words]
    assert hint[1] == "--oversubscribe starts them anyway"
    check_capacity(train, fitting + 1, oversubscribe=True)


def test_check_capacity_with_oversubscribe_rejects_two_ranks_per_cuda_device(monkeypatch: pytest.MonkeyPatch):
    set_machine(monkeypatch, cores=1, memory_ranks=100, devices=2)
    check_capacity(make_verb(device="auto"), 2)
    with pytest.raises(MachineError, match=r"it has 2 CUDA devices and .*; at most 2 fit") as raised:
        check_capacity(make_verb(device="auto"), 3, oversubscribe=True)
    assert raised.value.hint == "trainstone launch local --ranks 2 -- train"
    with pytest.raises(MachineError, match="it has 1 CPU and "):
        check_capacity(make_verb(), 2)


def test_parse_hosts_and_read_hostfile_return_slots(tmp_path: Path):
    assert parse_hosts("a:4,b") == [("a", 4), ("b", None)]
    file = tmp_path / "hosts"
    file.write_text("# ours\nn1 slots=4 max-slots=8\n\nme@n2:2  # two\n#me@n4\nn3\n")
    assert read_hostfile(file) == [("n1", 4), ("n2", 2), ("n3", None)]
    for wrong in ("a:x", "", "-a"):
        with pytest.raises(ConfigError):
            parse_hosts(wrong)


def test_plan_mpi_builds_the_mpirun_command(monkeypatch: pytest.MonkeyPatch):
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


def test_plan_mpi_uses_ranks_and_container_of_the_system():
    system = System(name="s", summary="s", nodes=2, devices_per_node=4, launch=LaunchConfig(container="a.sif"))
    plan = plan_mpi(make_verb(system=system), Path("/r/run"), "x", MpiOptions(max_restarts=2))
    assert plan.command[2] == "8"
    assert plan.attempts == 3
    inside = plan.command[plan.command.index("exec") + 1 :]
    assert "/r" in inside
    assert inside[inside.index("a.sif") + 1 :][:4] == ("python3", "-P", "-m", "trainstone")


def test_plan_mpi_and_check_start_report_what_is_missing(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match="unknown number of ranks"):
        plan_mpi(make_verb(), Path("/r"), "x", MpiOptions())
    with pytest.raises(ConfigError, match="--host and --hostfile are both given"):
        plan_mpi(make_verb(), Path("/r"), "x", MpiOptions(ranks=2, host="a", hostfile=Path("b")))
    options = MpiOptions(ranks=2, container="a.sif")
    plan = plan_mpi(make_verb(), Path("/r"), "x", options)
    monkeypatch.setattr(mpi.shutil, "which", lambda name: None)
    with pytest.raises(MachineError, match="mpirun not found"):
        check_start(plan, options, make_verb())
    monkeypatch.setattr(mpi.shutil, "which", lambda name: name if name == "mpirun" else None)
    with pytest.raises(MachineError, match="Apptainer"):
        check_start(plan, options, make_verb())


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    lines: list[list[str]] = []

    def resolve_plan(name: str, arguments: Sequence[str]) -> Config:
        lines.append([name, *arguments])
        return make_config()

    monkeypatch.setattr(verb, "resolve_plan", resolve_plan)
    return lines


def test_parse_verb_removes_options_for_the_launcher(planned: list[list[str]]):
    words = ["train", "x; y", "--json", "-q", "--out", "there", "--system=bede-1x4", "--dry-run"]
    parsed = parse_verb(words, system=None)
    assert parsed.arguments == ("x; y", "--out", "there", "--system=bede-1x4")
    assert planned == [["train", *parsed.arguments]]
    assert (parsed.as_json, parsed.quiet, parsed.dry_run) == (True, True, True)
    assert (parsed.out, parsed.resume) == (Path("there"), None)
    assert parsed.system is not None
    assert parsed.system.devices_per_node == 4
    assert parsed.command("python3")[-5:] == ["train", *parsed.arguments]


def test_parse_verb_passes_the_system_on_except_to_eval(planned: list[list[str]]):
    assert parse_verb(["bench", "x"], system="bede-1x4").arguments == ("x", "--system", "bede-1x4")
    with pytest.raises(ConfigError, match="bede-1x1 for launch, bede-1x4 for bench"):
        parse_verb(["bench", "--system", "bede-1x4"], system="bede-1x1")
    parsed = parse_verb(["eval", "RUN"], system="bede-4x4")
    assert parsed.arguments == ("RUN",)
    assert parsed.system is not None
    assert parsed.system.nodes == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no verb to launch"),
        (["doctor"], "cannot launch 'doctor'"),
        (["sweep", "x"], "cannot launch 'sweep'"),
        (["train", "x", "--runs", "5"], "cannot launch train --runs"),
        (["eval", "RUN", "--predict", "a.jpg"], "--predict: it runs in one process"),
        (["eval", "RUN", "--export=x"], "--export: it runs in one process"),
    ],
)
def test_parse_verb_rejects_verbs_for_one_process(planned: list[list[str]], words: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        parse_verb(words, system=None)
    assert not planned
    if words[:1] == ["sweep"]:
        assert parse_verb(words, system=None, ranks=1).name == "sweep"


def test_parse_verb_keeps_the_error_of_the_verb():
    with pytest.raises(ConfigError, match="no-such-recipe"):
        parse_verb(["bench", "no-such-recipe"], system=None)


def test_prepare_folder_reuses_the_folder_of_a_resumed_run_or_raises(tmp_path: Path):
    existing = create_run(tmp_path, "train", make_config(), "x")
    run = existing.path
    with pytest.raises(ResultError, match="is still running"):
        prepare_folder(make_verb(resume=run))
    existing.update(status="interrupted")
    (run / "launch").mkdir()
    (run / "launch/code").write_text("75\n")
    assert prepare_folder(make_verb(resume=run)) == run
    assert not (run / "launch/code").exists()
    (tmp_path / "file").touch()
    with pytest.raises(ResultError, match="cannot write run folder"):
        prepare_folder(make_verb(out=tmp_path / "file"))
    with pytest.raises(ResultError, match="no such run folder"):
        prepare_folder(make_verb(resume=tmp_path / "none"))
