"""Test that verbs and flags match a frozen list, because scripts of users depend on them."""

import os
import re
import subprocess
import sys
from typing import Any

import pytest
import typer.main

from trainstone.cli.main import app

COMMON = "--set --system --out --seconds --runs --seed --device --strict --dry-run --json"
QUIET = "--quiet -q"
LOUDNESS = f"--verbose -v {QUIET}"
LAUNCH = "--max-restarts --system --dry-run --verbose -v"
WORK = f"--workers --json {QUIET}"
TREATMENT = "--limit --resize --quality --shards --no-repair --on-bad"
# Arguments and flags of each verb.
SURFACE = {
    "bench": ("recipe", f"{COMMON} {LOUDNESS} --iterations --against --data"),
    "compare": ("runs", "--to --force --fail-below --page --json"),
    "data bench": ("path", f"--recipe --set --threads --seconds --demand --out --seed --device --json {QUIET}"),
    "data coco": ("", f"{WORK} --from --to --download --on-bad"),
    "data convert": ("source target", f"{WORK} {TREATMENT} --format --shuffle --skip-empty --first-label"),
    "data imagenet": ("", f"{WORK} {TREATMENT} --from --to --format --dataset --val-labels --boxes"),
    "data info": ("path", f"--page --json {QUIET}"),
    "data make": ("kind", f"{WORK} --to --format --count --val --size --classes --seed --shards"),
    "data verify": ("path", WORK),
    "doctor": ("recipe", f"--aa --gpu-selftest --set --seconds --device --out --json {LOUDNESS}"),
    "eval": (
        "checkpoint",
        f"--set --out --seconds --device --dry-run --json {LOUDNESS} --recipe --data --predict --top --bench --export",
    ),
    "launch local": ("words", f"{LAUNCH} --ranks -np --oversubscribe"),
    "launch mpi": ("words", f"{LAUNCH} --ranks -np --host -H --hostfile --container --mpirun"),
    "launch slurm": (
        "words",
        "--nodes --ranks-per-node --partition --time --account --gres --container --requeue --prologue --fleet "
        "--sbatch --max-restarts --detach --system --dry-run",
    ),
    "mlperf check": ("paths", "--ruleset --keep --json"),
    "mlperf summary": ("paths", "--json"),
    "profile": (
        "recipe",
        f"--set --system --out --seed --device --strict --dry-run --json {LOUDNESS} --data --start --iterations "
        "--cores --nvtx",
    ),
    "recipes": ("name", "--from --json"),
    "report": ("runs", "--page --png --svg --pdf --json"),
    "sweep": (
        "recipe",
        "--set --system --out --seconds --seed --device --strict --dry-run --json --data --batch-sizes --over "
        f"--profile --cores --resume {QUIET}",
    ),
    "train": ("recipe", f"{COMMON} --iterations --data --resume --require-target {QUIET}"),
    "weights convert": ("source target", f"--sha256 --json {QUIET}"),
}


def list_commands() -> dict[str, Any]:
    found = {}
    for name, command in typer.main.get_command(app).commands.items():
        below = getattr(command, "commands", None)
        found |= {name: command} if below is None else {f"{name} {verb}": inner for verb, inner in below.items()}
    return found


def test_verbs_match_frozen_list():
    assert set(list_commands()) == set(SURFACE)


@pytest.mark.parametrize("verb", SURFACE)
def test_flags_of_verb_are_frozen_few_and_documented(verb: str):
    arguments, flags = (words.split() for words in SURFACE[verb])
    parameters = list_commands()[verb].params
    options = [p for p in parameters if p.param_type_name == "option"]
    assert [p.name for p in parameters if p.param_type_name == "argument"] == arguments
    assert {name for p in options for name in p.opts} == set(flags)
    shared = f"{COMMON} {LOUDNESS} {WORK} {TREATMENT} --data".split()
    own = [p for p in options if not set(p.opts) & set(shared)]
    assert len(own) <= (13 if verb == "launch slurm" else 10)  # slurm has flags for the common sbatch options
    assert [p.name for p in parameters if p.name != "help" and not getattr(p, "help", None)] == []


def test_help_lists_verbs():
    done = subprocess.run([sys.executable, "-m", "trainstone", "--help"], capture_output=True, text=True, check=True)
    assert re.search(r"bench\s+Measure how fast", done.stdout)


def test_show_completion_prints_script():
    command = [sys.executable, "-m", "trainstone", "--show-completion", "bash"]
    # Typer looks for a shell among the parent processes, which a detached process lacks.
    env = os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert "complete" in done.stdout
