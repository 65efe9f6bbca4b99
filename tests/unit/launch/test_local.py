import subprocess
from pathlib import Path

import pytest

from small_training import make_config
from trainstone.config.system import LaunchConfig, System
from trainstone.errors import ConfigError, MachineError
from trainstone.launch import local
from trainstone.launch.engine import write_script
from trainstone.launch.local import choose_ranks, plan_local
from trainstone.launch.verb import Verb


def make_verb(device: str = "cpu", *words: str, system: System | None = None) -> Verb:
    config = make_config(device=device)
    return Verb("train", words, config, Path("runs"), None, system, as_json=False, quiet=False, dry_run=False)


def test_torchrun_starts_ranks_that_bind_themselves(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(local, "count_cuda_devices", lambda: 0)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    plan = plan_local(make_verb(), Path("/r"), "local-1", ranks=1000, max_restarts=3)
    words = " ".join(plan.command)
    assert "torch.distributed.run --standalone --nproc-per-node 1000 --max-restarts 3 --no-python -- " in words
    assert words.endswith("-m trainstone train")
    assert plan.environment["OMP_NUM_THREADS"] == "1"
    assert plan.environment["TRAINSTONE_BIND"] == "cores"
    assert "1000 ranks share" in plan.notes[0]


def test_devices_decide(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(local, "count_cuda_devices", lambda: 2)
    assert choose_ranks(None) == 2
    assert "TRAINSTONE_BIND" not in plan_local(make_verb("cuda"), Path("/r"), "x", ranks=2).environment
    with pytest.raises(MachineError, match="has 2 CUDA devices: too few for 3 ranks"):
        plan_local(make_verb("auto"), Path("/r"), "x", ranks=3)
    assert plan_local(make_verb("cpu"), Path("/r"), "x", ranks=3)
    monkeypatch.setattr(local, "count_cuda_devices", lambda: 0)
    with pytest.raises(ConfigError, match="no CUDA devices"):
        choose_ranks(None)


def test_the_script_quotes_and_has_the_prologue(tmp_path: Path):
    launch = LaunchConfig(prologue=("echo $GREETING",), environment={"GREETING": "a $(touch hacked) 'b'"})
    system = System(name="s", summary="s", launch=launch)
    plan = plan_local(make_verb("cpu", "x; touch hacked", system=system), Path("/r"), "x", ranks=2)
    script = write_script(plan)
    assert "'x; touch hacked'" in script
    lines = script.splitlines()
    assert lines[-2] == "echo $GREETING"
    told = subprocess.run(
        ["bash"], input="\n".join(lines[:-1]), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert told.stdout == "a $(touch hacked) 'b'\n"
    assert list(tmp_path.iterdir()) == []
