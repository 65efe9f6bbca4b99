"""`trainstone launch` through real torchrun and mpirun: same bits, ranks killed, launchers stopped, quoting."""

import os
import random
import shutil
import signal
from pathlib import Path

import pytest

from support.builders.training_runs import TrainedRun, assert_same, assert_trained_alike, read_trained_run
from support.processes.command import find_run
from support.processes.forked import Nursery, wait_until
from support.processes.launches import (
    STEPS,
    draw_steps,
    find_launched,
    find_ranks,
    find_step,
    finish,
    kill_at,
    kill_rank,
    start_launch,
    train_words,
    wait_for_training,
)
from trainstone.machine.cpus import available_cores
from trainstone.results.run_folder import read_result

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).parents[2] / "src/trainstone/config/recipes"


ENDLESS = {"stop__epochs": 1000.0}
needs_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs openmpi-bin")
ENGINES = ["local", pytest.param("mpi", marks=needs_mpirun)]


@pytest.fixture(scope="module")
def undisturbed(nursery: Nursery) -> TrainedRun:
    out = nursery.folder / "direct"
    assert nursery.run(*train_words(out), world=2).code == 0
    return read_trained_run(find_run(out), 2)


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_learn_the_same_whatever_the_recipe_is_called(tmp_path: Path, engine: str, undisturbed: TrainedRun):
    shutil.copy(RECIPES / "demo-classify.toml", tmp_path / "x; touch hacked.toml")
    out = tmp_path / "runs"
    words = train_words(out, "x; touch hacked.toml")
    launched = start_launch(tmp_path, engine, "-np", "2", "--", *words, "--json")
    output, errors = finish(launched)
    assert output.startswith("{")
    assert "training ·" in errors
    assert not (tmp_path / "hacked").exists()
    assert not (tmp_path / "hacked.toml").exists()
    assert (find_run(out) / "report.html").exists()
    assert_same(read_trained_run(find_run(out), 2), undisturbed)


def test_a_rank_killed_three_times_changes_nothing(tmp_path: Path, undisturbed: TrainedRun):
    seed = random.randrange(1000)
    print(f"steps of seed {seed}")
    out, chance = tmp_path / "runs", random.Random(seed)
    launched = start_launch(tmp_path, "local", "--ranks", "2", "--max-restarts", "3", *train_words(out))
    for step in draw_steps(chance, 3, STEPS):
        kill_at(out, step, chance)
    finish(launched)
    learned = read_trained_run(find_run(out), 2)
    assert learned.document["step"] == STEPS
    assert learned.result.quality is not None
    assert learned.result.quality.starts == 4
    assert_same(learned, undisturbed)
    assert not find_launched(out)


@pytest.mark.parametrize(("engine", "restarts"), [("local", 0), pytest.param("mpi", 1, marks=needs_mpirun)])
def test_a_killed_rank_is_named_and_nobody_is_left(tmp_path: Path, engine: str, restarts: int):
    out, words = tmp_path / "runs", train_words(tmp_path / "runs", **ENDLESS)
    launched = start_launch(tmp_path, engine, "-np", "2", "--max-restarts", str(restarts), "--", *words, "-q")
    for _ in range(1 + restarts):
        wait_for_training(out, find_step(out) + 1)
        kill_rank(out, 1)
    _, errors = finish(launched, 5)
    *before, last = errors.splitlines()[:-1]
    assert last.startswith("error: rank 1 on ")
    assert last.endswith(" was ended by SIGKILL")
    assert [line.partition("; ")[2] for line in before] == ["restarting, attempt 2 of at most 2"] * restarts
    assert not find_launched(out)
    result = read_result(find_run(out))
    assert result.status == "failed"
    assert [one.code for one in result.findings if one.severity == "error"] == ["rank-failed"]


@needs_mpirun
@pytest.mark.parametrize(
    ("engine", "number", "code", "other"), [("local", signal.SIGINT, 130, "mpi"), ("mpi", signal.SIGTERM, 75, "local")]
)
def test_a_stopped_launch_goes_on_under_another_engine(
    tmp_path: Path, engine: str, number: signal.Signals, code: int, other: str, undisturbed: TrainedRun
):
    out = tmp_path / "runs"
    launched = start_launch(tmp_path, engine, "-np", "2", "--", *train_words(out))
    wait_for_training(out)
    launched.send_signal(number)
    finish(launched, code)
    assert not find_launched(out)
    run = find_run(out)
    assert read_result(run).status == "interrupted"
    resumed = start_launch(tmp_path, other, "-np", "2", "--", "train", "--resume", str(run))
    finish(resumed)
    assert_trained_alike(read_trained_run(run, 2), undisturbed)


def test_ranks_have_cores_of_their_own_and_do_not_outlive_a_killed_launcher(tmp_path: Path):
    out = tmp_path / "runs"
    launched = start_launch(tmp_path, "local", "--ranks", "2", "--", *train_words(out, **ENDLESS))
    wait_for_training(out)
    mine, other = (set(rank.cpu_affinity() or []) for rank in find_ranks(out).values())
    if len(os.sched_getaffinity(0)) > 1:
        assert mine.isdisjoint(other)
    launched.kill()
    launched.communicate()
    wait_until(lambda: not find_launched(out))


def test_launch_local_oversubscribe_trains_more_ranks_than_cores(tmp_path: Path):
    ranks = available_cores().logical + 1
    words = train_words(tmp_path / "runs", engine__threads="auto", stop__epochs=1.0)
    launched = start_launch(tmp_path, "local", "--ranks", str(ranks), "--oversubscribe", "--", *words)
    _, errors = finish(launched)
    assert f"note:  {ranks} ranks share {available_cores().threads} cores of " in errors
    result = read_result(find_run(tmp_path / "runs"))
    assert result.world.ranks == ranks


@needs_mpirun
def test_mpiruns_own_refusal_is_one_message(tmp_path: Path):
    words = ["-np", "3", "--host", "localhost:2", "--max-restarts", "0", "--", *train_words(tmp_path / "runs")]
    launched = start_launch(tmp_path, "mpi", *words)
    _, errors = finish(launched, 5)
    assert errors.startswith("error: mpirun ended with exit code 1: there are not enough slots")
    assert errors.count("\n") == 2
    assert "--oversubscribe" in errors.splitlines()[1]
