"""Launch commands of each shipped system, as its original's scripts had them; hostile names stay quoted."""

import itertools
import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from support.processes.command import LIMIT
from trainstone.cli.launch import app
from trainstone.config.load import list_shipped, load_config, read_source
from trainstone.config.schema import Config
from trainstone.flows.child_runs import TRAINSTONE
from trainstone.launch import local, verb
from trainstone.launch.mpi import FORWARDED

HOSTILE = "x; touch hacked"
ONE, FOUR = {"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "4"}
MODULE = ["module load slurm/dflt"]
DELL = {"exclusive": None, "mem": "0"}
ROOT_WORDS = ["--allow-run-as-root"] if os.geteuid() == 0 else []


class ExpectedLaunch(NamedTuple):
    """Ranks and sbatch options of a system; None: unknown, so the option is not set."""

    recipe: str
    nodes: int
    ranks: int
    partition: str | None = None
    gres: str | None = None
    time: str | None = None
    sbatch: dict[str, str | None] = {}
    prologue: Sequence[str] = ()
    environment: dict[str, str] = {}


# Bede: -p gpu --gres=gpu:4 -t 4:20:00, module, threads; its 4 hours are 16 on one GPU.
# Longhorn, Frontera: run-resnet.sh's threads. C4140: run.slurm. DSS 8440, DGX-1: docker. The rest: Horovod's variables.
TABLE = {
    "bede-1x1": ExpectedLaunch("resnet50-wmlce", 1, 1, "gpu", "gpu:1", "17:20:00", prologue=MODULE, environment=ONE),
    "bede-1x4": ExpectedLaunch("resnet50-wmlce", 1, 4, "gpu", "gpu:4", "4:20:00", prologue=MODULE, environment=ONE),
    "bede-4x4": ExpectedLaunch("resnet50-wmlce", 4, 4, "gpu", "gpu:4", "4:20:00", prologue=MODULE, environment=ONE),
    "bede-8x4": ExpectedLaunch("resnet50-wmlce", 8, 4, "gpu", "gpu:4", "4:20:00", prologue=MODULE, environment=ONE),
    "bede-16x4": ExpectedLaunch("resnet50-wmlce", 16, 4, "gpu", "gpu:4", "4:20:00", prologue=MODULE, environment=ONE),
    "c4140": ExpectedLaunch("ssd300-mlperf", 1, 4, "dedicateq", "gpu:4", "12:00:00", sbatch=DELL, environment=ONE),
    "2xc4140": ExpectedLaunch("ssd300-mlperf", 2, 4, "dedicateq", "gpu:4", "12:00:00", sbatch=DELL, environment=ONE),
    "4xc4140": ExpectedLaunch("ssd300-mlperf", 4, 4, "dedicateq", "gpu:4", "12:00:00", sbatch=DELL, environment=ONE),
    "dss8440": ExpectedLaunch("ssd300-mlperf", 1, 8, environment=ONE),
    "dgx1": ExpectedLaunch("ssd300-mlperf", 1, 8, environment=ONE),
    "longhorn": ExpectedLaunch("resnet50-sc22", 1, 4, environment=FOUR),
    "frontera": ExpectedLaunch("resnet50-sc22", 1, 4, environment=FOUR),
    "any-4gpu": ExpectedLaunch("resnet50-sc22", 1, 4, environment=FOUR),
    "tbd-4gpu": ExpectedLaunch("resnet50-tbd", 1, 4),
    "backendai-1x2": ExpectedLaunch("resnet50-mlperf", 1, 2),
    "a30-1x2": ExpectedLaunch("resnet50-mlperf", 1, 2),
    "dgxa100": ExpectedLaunch("resnet50-mlperf", 1, 8),
    "dgxa100-4gpu": ExpectedLaunch("resnet50-mlperf", 1, 4),
    "dgxa100-8x8": ExpectedLaunch("resnet50-mlperf", 8, 8),
    "dgxa100-128x8": ExpectedLaunch("resnet50-mlperf", 128, 8),
    "dgxa100-527x8": ExpectedLaunch("resnet50-mlperf", 527, 8),
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty folder; plan the verb in this process, which is faster than a child process."""

    def plan(name: str, arguments: Sequence[str]) -> Config:
        options = dict(itertools.pairwise(arguments))
        return load_config(arguments[0], system=options.get("--system"))

    monkeypatch.setattr(verb, "resolve_plan", plan)
    monkeypatch.setattr(local, "count_cuda_devices", lambda: 0)  # with fewer devices than ranks, the launch is refused
    for name in [name for name in os.environ if name.startswith(FORWARDED)]:
        monkeypatch.delenv(name)
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def dry_run(engine: str, *words: str) -> str:
    before = sorted(Path.cwd().iterdir())
    done = CliRunner().invoke(app, [engine, "--dry-run", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert sorted(Path.cwd().iterdir()) == before
    subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=True)
    return done.stdout


def read_exports(script: str) -> dict[str, str]:
    found = [shlex.split(line)[1] for line in script.splitlines() if line.startswith("export ")]
    return dict(word.split("=", 1) for word in found)


def parse_directives(script: str) -> dict[str, str | None]:
    lines = re.findall(r"^#SBATCH --(.*)$", script, re.MULTILINE)
    parts = [line.partition("=") for line in lines]
    return {name: value if equals else None for name, equals, value in parts}


def find_command(script: str, program: str) -> list[str]:
    (line,) = [line for line in script.splitlines() if line.strip().startswith(f"{program} ")]
    return shlex.split(line)


def test_table_lists_every_shipped_system():
    assert sorted(TABLE) == list_shipped("systems")


@pytest.mark.parametrize("system", TABLE)
def test_launch_of_a_system_builds_the_commands_of_its_original(system: str, here: Path):
    expected = TABLE[system]
    verb_words = ["bench", expected.recipe, "--system", system]
    script = dry_run("slurm", "--system", system, "--", "bench", expected.recipe)
    known = {"partition": expected.partition, "gres": expected.gres, "time": expected.time}
    assert parse_directives(script) == {
        "job-name": f"trainstone-{expected.recipe}",
        "nodes": str(expected.nodes),
        "ntasks-per-node": str(expected.ranks),
        **{name: value for name, value in known.items() if value is not None},
        "signal": "USR1@90",
        "chdir": str(here),
        "output": f"{here}/runs/RUN/launch/engine-%j.log",
        "open-mode": "append",
        "no-requeue": None,
        **expected.sbatch,
    }
    unbound = ["--cpu-bind=none"] if expected.gres and expected.ranks > 1 else []  # the ranks bind themselves
    assert find_command(script, "srun") == ["srun", "--kill-on-bad-exit=1", *unbound, *TRAINSTONE, *verb_words]
    exports = read_exports(script)
    assert exports.pop("SLURM_EXPORT_ENV") == "ALL"
    assert {name: exports[name] for name in exports if not name.startswith("TRAINSTONE_")} == expected.environment
    assert set(expected.prologue) <= set(script.splitlines())
    assert ("module" in script) == bool(expected.prologue)

    script = dry_run("mpi", "--system", system, "--", "bench", expected.recipe)
    names = sorted(
        ["TRAINSTONE_BIND", "TRAINSTONE_LAUNCH", "TRAINSTONE_RANKS", "TRAINSTONE_RUN", *expected.environment]
    )
    passed = [word for name in names for word in ("-x", name)]
    assert find_command(script, "exec") == [
        *("exec", "mpirun", "-np", str(expected.nodes * expected.ranks)),
        *("--bind-to", "none", "--wdir", str(here), *ROOT_WORDS, *passed, *TRAINSTONE, *verb_words),
    ]
    assert read_exports(script).items() >= expected.environment.items()

    if expected.nodes > 1:
        return
    options = ["--ranks", str(expected.ranks), "--oversubscribe", "--system", system]
    script = dry_run("local", *options, "--", "bench", expected.recipe)
    assert find_command(script, "exec") == [
        *("exec", *TRAINSTONE[:-1], "torch.distributed.run", "--standalone"),
        *(
            "--nproc-per-node",
            str(expected.ranks),
            "--max-restarts",
            "0",
            "--no-python",
            "--",
            *TRAINSTONE,
            *verb_words,
        ),
    ]
    assert read_exports(script).items() >= expected.environment.items()


def test_launch_slurm_prefers_options_over_the_system_file():
    options = ["--partition", "short", "--time", "10", "--gres", "gpu:2", "--ranks-per-node", "2", "--account", "ab1"]
    script = dry_run("slurm", "--system", "c4140", *options, "--sbatch", "mem=8G", "--", "bench", "resnet50")
    requested = {"partition": "short", "time": "10", "gres": "gpu:2", "ntasks-per-node": "2", "account": "ab1"}
    assert parse_directives(script).items() >= (requested | {"mem": "8G", "exclusive": None}).items()


@pytest.mark.parametrize("engine", ["local", "mpi"])
def test_launch_script_quotes_hostile_names(here: Path, engine: str):
    text, _ = read_source("recipes", "resnet50")
    (here / f"{HOSTILE}.toml").write_text(text)
    words = ["bench", f"{HOSTILE}.toml", "--out", "o $(touch hacked) `touch hacked`", "--set", "seed=1 '; touch hacked"]
    options = ["--oversubscribe"] if engine == "local" else ["--container", "i $(touch hacked).sif"]
    script = dry_run(engine, "-np", "2", *options, "--", *words)
    assert find_command(script, "exec")[-len(words) :] == words
    # A shell splits that line into the same words.
    printed = script.replace("\nexec ", "\nprintf '%s\\0' ")
    shown = subprocess.run(["bash"], input=printed, text=True, capture_output=True, timeout=LIMIT).stdout
    assert shown.split("\0")[:-1] == find_command(script, "exec")[1:]
    assert not list(here.rglob("hacked*"))
