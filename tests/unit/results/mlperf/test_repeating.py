"""The script of a package repeats the very runs: their seeds, ranks and nodes; a shell runs it."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from made_learning import make_training
from trainstone.results.mlperf.logged import LoggedRun
from trainstone.results.mlperf.repeating import write_readme, write_script
from trainstone.results.schema import Result, World


def make_run(seed: int | None) -> LoggedRun:
    absent: dict[str, Any] = dict.fromkeys(("division", "org", "platform", "status", "global_batch", "train_samples"))
    absent |= dict.fromkeys(("benchmark", "optimizer", "ended", "stop_ms", "epochs"))
    seeds = () if seed is None else (seed,)
    return LoggedRun(path=Path("log"), form="0.7", seeds=seeds, start_ms=0, accuracies=(), **absent)


def make_runs(seeds: Sequence[int | None], ranks: int = 1, nodes: int = 1) -> tuple[list[LoggedRun], list[Result]]:
    result = make_training("run")
    config = {key: value for key, value in result.config.items() if key != "seed"}
    changed = result.model_copy(update={"world": World(ranks=ranks, nodes=nodes), "config": config})
    return [make_run(seed) for seed in seeds], [changed] * len(seeds)


def run_script(folder: Path, text: str, *words: str, **variables: str) -> tuple[int, list[str], str]:
    """Run a script from elsewhere with programs that only tell how they were called."""
    script, programs = folder / "code/run_and_time.sh", folder / "bin"
    for place in (script.parent, programs):
        place.mkdir()
    script.write_text(text)
    script.chmod(0o755)
    for name in ("pip", "trainstone"):
        (programs / name).write_text(f'#!/bin/sh\necho "$(basename "$PWD"): {name} $*"\n')
        (programs / name).chmod(0o755)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", **variables}
    done = subprocess.run([script, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()[1:], done.stderr


@pytest.mark.parametrize(
    ("seeds", "ranks", "called"),
    [
        ((3, 4, 5), 1, ["trainstone train config.toml --runs 3 --seed 3 --data /d"]),
        ((7,), 1, ["trainstone train config.toml --seed 7 --data /d"]),
        ((1, 2, 9), 1, [f"trainstone train config.toml --seed {seed} --data /d" for seed in (1, 2, 9)]),
        (
            (1, 2),
            8,
            [f"trainstone launch local --ranks 8 -- train config.toml --seed {n} --data /d" for n in (1, 2)],
        ),
    ],
    ids=["counted up", "one", "any", "eight ranks"],
)
def test_the_script_repeats_the_runs(tmp_path, seeds, ranks, called):
    code, lines, _ = run_script(tmp_path, write_script(*make_runs(seeds, ranks)), "--data", "/d")
    assert code == 0
    assert lines == [f"code: {line}" for line in called]  # beside config.toml, wherever it was called from


@pytest.mark.parametrize(
    ("variables", "launch"),
    [({}, "slurm --nodes 2 --ranks-per-node 8"), ({"LAUNCH": "mpi -np 16 -H a:8,b:8"}, "mpi -np 16 -H a:8,b:8")],
)
def test_several_nodes_are_slurms_unless_said_otherwise(tmp_path, variables, launch):
    script = write_script(*make_runs((4, 2), 16, 2))
    assert "# 16 ranks on 2 nodes: started once, it submits a job to Slurm for each run." in script
    code, lines, _ = run_script(tmp_path, script, **variables)
    assert code == 0
    assert lines == [f"code: trainstone launch {launch} -- train config.toml --seed {seed}" for seed in (4, 2)]


def test_seeds_that_nobody_told_are_said_to_be_others():
    runs = make_runs((5, None))
    assert "# Not every run has told its seed: others are taken.\n" in write_script(*runs)
    assert "--runs 2 --seed 1 " in write_script(*runs)
    assert "2 runs of `config.toml`, seeds 5, unknown;" in write_readme(*runs)


def test_the_readme_counts_in_words():
    one = write_readme(*make_runs((7,), 16, 2))
    assert "\n1 run of `config.toml`, seed 7; `run_and_time.sh` repeats it.\n" in one
    assert "16 ranks on 2 nodes." in one
    assert "\n3 runs of `config.toml`, seeds 1, 2, 9; `run_and_time.sh` repeats them.\n" in write_readme(
        *make_runs((1, 2, 9))
    )
