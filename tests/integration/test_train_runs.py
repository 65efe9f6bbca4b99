"""`trainstone train --runs`: several trainings combined; stopped or killed and resumed, they give the same weights."""

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from support.builders.training_runs import assert_same, read_trained_run, set_arguments
from support.processes.command import Finished, find_run
from support.processes.forked import Child, Nursery, wait_until
from trainstone.results.combine import StartedRun
from trainstone.results.run_folder import read_result

pytestmark = pytest.mark.slow

# 240 steps take some seconds, so that polling once per second finds the run in progress.
LONG = set_arguments(stop__epochs=20.0, eval__every_epochs=5, checkpoint__every_steps=20)


def find_children(run: Path) -> dict[int, Path]:
    return {read_result(path.parent).config["seed"]: path.parent for path in run.glob("points/*/result.json")}


def start(nursery: Nursery, out: Path, *arguments: str) -> Child:
    return nursery.start("train", "demo-classify", *LONG, "--runs", "2", "--seed", "3", "--out", str(out), *arguments)


def wait_for_checkpoint(out: Path, num_children: int = 1) -> None:
    """Wait until this many runs have started and the newest has a checkpoint."""
    wait_until(lambda: len(list(out.glob("*/points/*"))) == num_children)
    newest = max(out.glob("*/points/*"))
    wait_until(lambda: any(newest.glob("checkpoints/step-*.safetensors")))


@pytest.fixture(scope="module")
def whole(nursery: Nursery) -> tuple[Path, Finished]:
    out = nursery.folder / "whole-runs"
    ended = start(nursery, out, "--json", "--require-target").wait()
    return find_run(out), ended


def test_train_runs_combines_runs_that_equal_single_runs(nursery: Nursery, whole: tuple[Path, Finished]):
    run, ended = whole
    assert ended.code == 8, ended.err
    children = find_children(run)
    assert sorted(children) == [3, 4]
    out = nursery.folder / "single"
    single = nursery.run("train", "demo-classify", *LONG, "--seed", "4", "--out", str(out))
    assert single.code == 0
    assert_same(read_trained_run(children[4]), read_trained_run(find_run(out)))
    assert read_trained_run(children[3]).evaluated != read_trained_run(children[4]).evaluated
    document = json.loads(ended.out)
    assert document == json.loads((run / "result.json").read_text())
    result = read_result(run)
    assert (result.kind, result.status) == ("train", "target_missed")
    assert result.throughput.ci_covers == "between runs"
    assert [point.label for point in result.points] == ["seed 3", "seed 4"]
    rows = result.repeated.runs
    assert [(row.seed, row.status, row.reached, row.epochs) for row in rows] == [
        (seed, "target_missed", False, 20.0) for seed in (3, 4)
    ]
    third, fourth = (read_result(run / row.run) for row in rows)
    assert [row.value for row in rows] == [third.quality.value, fourth.quality.value]
    assert result.quality.value == pytest.approx((third.quality.value + fourth.quality.value) / 2)
    assert result.config == third.config == fourth.config | {"seed": 3}
    assert "0 of 2 runs reached 90 % top-1" in result.verdict


def test_train_runs_stopped_and_resumed_equals_uninterrupted_runs(nursery: Nursery, whole: tuple[Path, Finished]):
    out = nursery.folder / "signalled-runs"
    going = start(nursery, out)
    wait_for_checkpoint(out)
    going.send(signal.SIGUSR1)
    ended = going.wait()
    run = find_run(out)
    assert ended.code == 75, ended.err
    result = read_result(run)
    assert result.status == "interrupted"
    assert [finding.message for finding in result.findings if finding.code == "interrupted"] == [
        "stopped by SIGUSR1 after 0 of 2 runs"
    ]
    assert [StartedRun("", read_result(child)).is_finished for child in find_children(run).values()] == [False]

    going = nursery.start("train", "--resume", str(run))
    wait_for_checkpoint(out, 2)
    os.killpg(going.pid, signal.SIGINT)  # as a terminal does
    ended = going.wait()
    assert ended.code == 130, ended.err
    assert "stopped by SIGINT after 1 of 2 runs" in " ".join(ended.out.split())
    assert "Traceback" not in ended.err

    refused = nursery.run("train", "--resume", str(run), "--set", "stop.epochs=30")
    assert (refused.code, "--resume cannot change it" in refused.err) == (2, True)
    assert nursery.start("train", "--resume", str(run)).wait().code == 0
    assert read_result(run).status == "target_missed"
    assert [row.starts for row in read_result(run).repeated.runs] == [2, 2]
    compare_children(run, whole[0])


def test_train_runs_killed_leaves_no_child_and_resumes(nursery: Nursery, whole: tuple[Path, Finished]):
    out = nursery.folder / "killed-runs"
    going = start(nursery, out)
    wait_for_checkpoint(out)
    run = find_run(out)
    (child,) = find_children(run).values()
    orphan = psutil.Process(read_result(child).process.pid)
    refused = nursery.run("train", "--resume", str(run))
    going.send(signal.SIGKILL)
    assert going.wait().code == -signal.SIGKILL
    assert refused.code == 7
    assert f"is in use by process {going.pid} on " in refused.err
    assert read_result(run).status == "killed"
    resumed = nursery.start("train", "--resume", str(run))
    wait_until(lambda: read_result(run).status == "running" and not alive(orphan))
    assert resumed.wait().code == 0
    assert read_result(run).process.starts == 2
    assert len(find_children(run)) == len(list(run.glob("points/*"))) == 2
    compare_children(run, whole[0])


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def compare_children(run: Path, other: Path) -> None:
    ours, theirs = find_children(run), find_children(other)
    assert ours.keys() == theirs.keys()
    for seed, path in ours.items():
        assert_same(read_trained_run(path), read_trained_run(theirs[seed]))


def test_train_runs_names_failed_run(nursery: Nursery, tmp_path: Path):
    broken = set_arguments(optimizer__learning_rate=1e12)
    ended = nursery.run("train", "demo-classify", *broken, "--runs", "3", "--out", str(tmp_path))
    assert ended.code == 6
    assert "error: run 1 of 3: loss became NaN or infinite at step " in ended.err
    result = read_result(find_run(tmp_path))
    assert result.status == "failed"
    assert [finding.code for finding in result.findings] == ["run-failed"]
    assert [row.status for row in result.repeated.runs] == ["failed"]
