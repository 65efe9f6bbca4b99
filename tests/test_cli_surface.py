"""The verbs and flags, frozen: other people's scripts hang on them, so a change here is a decision."""

import os
import re
import subprocess
import sys
from typing import Any

import pytest
import typer.main

from trainstone.cli.main import app

COMMON = {"--set", "--system", "--out", "--seconds", "--runs", "--seed", "--device", "--strict", "--dry-run", "--json"}
LOUDNESS = {"--verbose", "-v", "--quiet", "-q"}
LAUNCH = {"--max-restarts", "--system", "--dry-run", "--verbose", "-v"}
WORK = {"--workers", "--json", "--quiet", "-q"}
TREATMENT = {"--limit", "--resize", "--quality", "--shards", "--no-repair", "--on-bad"}
SURFACE = {
    "bench": (["recipe"], COMMON | LOUDNESS | {"--iterations", "--against", "--data"}),
    "compare": (["runs"], {"--to", "--force", "--fail-below", "--page", "--json"}),
    "data bench": (
        ["path"],
        {
            "--recipe",
            "--set",
            "--threads",
            "--seconds",
            "--demand",
            "--out",
            "--seed",
            "--device",
            "--json",
            "--quiet",
            "-q",
        },
    ),
    "data coco": ([], WORK | {"--from", "--to", "--download", "--on-bad"}),
    "data convert": (
        ["source", "target"],
        WORK | TREATMENT | {"--format", "--shuffle", "--skip-empty", "--first-label"},
    ),
    "data imagenet": (
        [],
        WORK | TREATMENT | {"--from", "--to", "--format", "--dataset", "--val-labels", "--boxes"},
    ),
    "data info": (["path"], {"--page", "--json", "--quiet", "-q"}),
    "data make": (
        ["kind"],
        WORK | {"--to", "--format", "--count", "--val", "--size", "--classes", "--seed", "--shards"},
    ),
    "data verify": (["path"], WORK),
    "doctor": (["recipe"], {"--aa", "--set", "--seconds", "--device", "--out", "--json"} | LOUDNESS),
    "eval": (
        ["checkpoint"],
        (COMMON | LOUDNESS | {"--recipe", "--data", "--predict", "--top", "--bench", "--export"})
        - {"--system", "--runs", "--seed", "--strict"},
    ),
    "launch local": (["words"], LAUNCH | {"--ranks", "-np", "--oversubscribe"}),
    "launch mpi": (
        ["words"],
        LAUNCH | {"--ranks", "-np", "--host", "-H", "--hostfile", "--container", "--mpirun"},
    ),
    "launch slurm": (
        ["words"],
        {
            "--nodes",
            "--ranks-per-node",
            "--partition",
            "--time",
            "--account",
            "--gres",
            "--container",
            "--requeue",
            "--prologue",
            "--fleet",
            "--sbatch",
            "--max-restarts",
            "--detach",
            "--system",
            "--dry-run",
        },
    ),
    "mlperf check": (["paths"], {"--ruleset", "--keep", "--json"}),
    "mlperf summary": (["paths"], {"--json"}),
    "profile": (
        ["recipe"],
        COMMON - {"--runs", "--seconds"} | LOUDNESS | {"--data", "--start", "--iterations", "--cores", "--nvtx"},
    ),
    "recipes": (["name"], {"--from", "--json"}),
    "report": (["runs"], {"--page", "--png", "--svg", "--pdf", "--json"}),
    "sweep": (
        ["recipe"],
        COMMON - {"--runs"}
        | {"--data", "--batch-sizes", "--over", "--profile", "--cores", "--resume", "--quiet", "-q"},
    ),
    "train": (
        ["recipe"],
        COMMON | {"--iterations", "--data", "--resume", "--require-target", "--quiet", "-q"},
    ),
    "weights convert": (["source", "target"], {"--sha256", "--json", "--quiet", "-q"}),
}


def commands() -> dict[str, Any]:
    """Every verb; those below another by both their names."""
    found = {}
    for name, command in typer.main.get_command(app).commands.items():
        below = getattr(command, "commands", None)
        found |= {name: command} if below is None else {f"{name} {verb}": inner for verb, inner in below.items()}
    return found


def test_verbs():
    assert set(commands()) == set(SURFACE)


@pytest.mark.parametrize("verb", SURFACE)
def test_flags_of(verb: str):
    arguments, flags = SURFACE[verb]
    parameters = commands()[verb].params
    assert [p.name for p in parameters if p.param_type_name == "argument"] == arguments
    assert {name for p in parameters if p.param_type_name == "option" for name in p.opts} == flags


@pytest.mark.parametrize("verb", SURFACE)
def test_verb_has_at_most_ten_flags_of_its_own(verb: str):
    options = [p for p in commands()[verb].params if p.param_type_name == "option"]
    shared = COMMON | LOUDNESS | WORK | TREATMENT | {"--data"}
    own = [p for p in options if not set(p.opts) & shared]
    assert len(own) <= (13 if verb == "launch slurm" else 10)  # sbatch's most used options have names of their own


@pytest.mark.parametrize("verb", SURFACE)
def test_every_flag_is_explained(verb: str):
    unexplained = [p.name for p in commands()[verb].params if p.name != "help" and not getattr(p, "help", None)]
    assert not unexplained


def test_help_names_the_verbs():
    done = subprocess.run([sys.executable, "-m", "trainstone", "--help"], capture_output=True, text=True, check=True)
    assert re.search(r"bench\s+Measure how fast", done.stdout)


def test_completion_is_offered():
    command = [sys.executable, "-m", "trainstone", "--show-completion", "bash"]
    # Typer looks for a shell among its ancestors, of which a detached process has none.
    env = os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert "complete" in done.stdout
