"""`trainstone train` on several ranks: same weights and metrics as on one rank, output of rank 0 only."""

import signal
from pathlib import Path

import pytest

from support.builders.training_runs import TrainedRun, max_difference, read_trained_run, set_arguments
from support.processes.command import Finished, find_run
from support.processes.forked import Nursery, wait_until
from trainstone.flows.train.checkpoint import list_checkpoints, read_checkpoint
from trainstone.results.run_folder import read_result


def train(nursery: Nursery, ranks: int, name: str, **changes: object) -> TrainedRun:
    """Train 6 steps of 16 images per step in total on `ranks` ranks."""
    changes = {"train.batch_size": 16 // ranks, "stop.epochs": 1.0, **changes}
    ended = run_all(nursery, ranks, name, **changes)
    assert {one.code for one in ended} == {0}, ended
    return read_trained_run(find_run(nursery.folder / name), ranks)


def run_all(nursery: Nursery, ranks: int, name: str, **changes: object) -> list[Finished]:
    arguments = ["train", "demo-classify", *set_arguments(**changes), "--out", str(nursery.folder / name)]
    return [child.wait() for child in nursery.start_ranks(ranks, *arguments)]


def mean_losses(learned: TrainedRun) -> list[float]:
    return [sum(losses) / len(losses) for losses in zip(*(c["loss"].tolist() for c in learned.steps), strict=True)]


@pytest.fixture(scope="module")
def grouped(nursery: Nursery) -> TrainedRun:
    return train(nursery, 1, "one-group", model__norm="group")


def test_train_on_two_ranks_equals_one_rank_and_only_rank_0_prints(nursery: Nursery, grouped: TrainedRun):
    first, second = run_all(nursery, 2, "two-group", model__norm="group", train__batch_size=8, stop__epochs=1.0)
    assert (first.code, second.code) == (0, 0), first.err
    assert "ResNet-18: best" in first.out
    assert (second.out, second.err) == ("", "")
    run = find_run(nursery.folder / "two-group")
    learned = read_trained_run(run, 2)
    assert len(grouped.steps[0]["step"]) == 6
    assert max_difference(grouped, learned) < 1e-5
    assert mean_losses(learned) == pytest.approx(mean_losses(grouped), abs=1e-5)
    assert learned.evaluated[-1][3]["loss"] == pytest.approx(grouped.evaluated[-1][3]["loss"], abs=1e-5)
    result = learned.result
    assert (result.world.ranks, result.world.nodes) == (2, 1)
    assert [device.rank for device in result.devices] == [0, 1]
    assert {"steps-rank0001.csv", "log-rank0001.txt"} <= set(result.files)
    assert "top1" in (run / "log-rank0001.txt").read_text()
    assert learned.steps[0]["images"].tolist() == learned.steps[1]["images"].tolist() == [8] * 6
    assert result.quality.global_batch == 16
    assert len([name for name in result.files if name.startswith("telemetry-")]) == 2


def test_train_with_accumulation_equals_one_large_batch(nursery: Nursery, grouped: TrainedRun):
    learned = train(nursery, 1, "accumulated", model__norm="group", train__batch_size=8, train__accumulate=2)
    assert max_difference(grouped, learned) < 1e-5
    assert mean_losses(learned) == pytest.approx(mean_losses(grouped), abs=1e-5)
    assert learned.steps[0]["images"].tolist() == [16] * 6


def test_train_with_sync_batch_norm_equals_one_rank(nursery: Nursery):
    one = train(nursery, 1, "one-batch")
    two = train(nursery, 2, "two-batch", parallel__bn_ranks=2)
    assert any("running_var" in name for name in one.tensors)
    assert max_difference(one, two) < 1e-5
    assert mean_losses(two) == pytest.approx(mean_losses(one), abs=1e-5)


def test_train_on_any_number_of_ranks_evaluates_every_image_once(nursery: Nursery):
    evaluated = []
    for ranks in (1, 2, 3):
        # Learning rate 0 and no batch norm: the same network with any number of ranks.
        changes = {"optimizer.learning_rate": 0.0, "model.norm": "group", "train.batch_size": 4, "eval.batch_size": 5}
        evaluated.append(train(nursery, ranks, f"evaluated-{ranks}", stop__steps=1, **changes).evaluated[-1])
    (_, _, images, counted), *others = evaluated
    assert images == 43
    assert counted["top5"] > 0
    for _, _, seen, metrics in others:
        assert seen == 43
        assert (metrics["top1"], metrics["top5"]) == (counted["top1"], counted["top5"])
        assert metrics["loss"] == pytest.approx(counted["loss"], abs=1e-5)


def test_train_nan_loss_ends_all_ranks(nursery: Nursery):
    ended = run_all(nursery, 2, "diverged", optimizer__learning_rate=1e12, checkpoint__every_steps=1)
    assert [one.code for one in ended] == [6, 6]
    assert "error: loss became NaN or infinite at step " in ended[0].err
    run = find_run(nursery.folder / "diverged")
    result = read_result(run)
    assert result.status == "failed"
    assert result.findings[-1].code == "run-failed"
    saved = list_checkpoints(run / "checkpoints")
    assert str(saved[0]) in result.findings[-1].message
    assert all(t.isfinite().all() for t in read_checkpoint(saved[0]).tensors.values() if t.is_floating_point())


def test_train_reports_killed_rank_and_ends(nursery: Nursery):
    arguments = ["train", "demo-classify", *set_arguments(stop__epochs=1000.0), "--out", str(nursery.folder / "died")]
    children = nursery.start_ranks(2, *arguments)
    wait_until(lambda: "training ·" in children[0].err.read_text())
    children[1].send(signal.SIGKILL)
    assert children[1].wait().code == -signal.SIGKILL
    first = children[0].wait()
    assert first.code == 5, first.err
    assert "error: another rank died or does not answer" in first.err
    assert read_result(find_run(nursery.folder / "died")).status == "failed"


def test_train_signal_to_one_rank_before_first_step_ends_both(nursery: Nursery):
    out = nursery.folder / "early"
    children = nursery.start_ranks(2, "train", "demo-classify", *set_arguments(stop__epochs=1.0), "--out", str(out))
    wait_until(lambda: "fitting the recipe" in children[0].err.read_text())
    children[1].send(signal.SIGTERM)
    assert [child.wait().code for child in children] == [75, 75]
    run = find_run(nursery.folder / "early")
    assert read_result(run).status == "interrupted"
    assert nursery.run("train", "--resume", str(run), world=2).code == 0
    learned = read_trained_run(run, 2)
    assert learned.document["step"] == 6
    assert learned.result.quality.starts == 2


def test_train_signal_to_one_rank_interrupts_evaluation_on_all(nursery: Nursery):
    out, many = nursery.folder / "broken-off", {"data.generated_val": 3000, "eval.batch_size": 1, "stop.epochs": 1.0}
    children = nursery.start_ranks(2, "train", "demo-classify", *set_arguments(**many), "--out", str(out))
    wait_until(lambda: "evaluating" in children[0].err.read_text())
    children[1].send(signal.SIGTERM)
    assert [child.wait().code for child in children] == [75, 75]
    run = find_run(nursery.folder / "broken-off")
    stopped = read_trained_run(run, 2)
    assert (stopped.result.status, stopped.document["step"], stopped.evaluated) == ("interrupted", 6, [])
    evaluating = nursery.start_ranks(
        2, "eval", str(run), "--set", "eval.batch_size=1", "--out", str(nursery.folder / "broken-eval")
    )
    wait_until(lambda: "evaluating" in evaluating[0].err.read_text())
    evaluating[1].send(signal.SIGTERM)
    assert [child.wait().code for child in evaluating] == [130, 130]
    assert read_result(find_run(nursery.folder / "broken-eval")).status == "interrupted"
    ended = nursery.run("train", "--resume", str(run), "--set", "eval.batch_size=64", world=2)
    assert ended.code == 0
    assert [(step, images) for _, step, images, _ in read_trained_run(run, 2).evaluated] == [(6, 3000)]


def test_train_resume_starts_new_step_file_on_rank_with_lost_steps(nursery: Nursery):
    train(nursery, 2, "lost", stop__epochs=1.0)
    run = find_run(nursery.folder / "lost")
    steps = run / "steps-rank0001.csv"
    steps.write_text("".join(steps.read_text().splitlines(keepends=True)[:3]))
    assert nursery.run("train", "--resume", str(run), "--set", "stop.epochs=2", world=2).code == 0
    learned = read_trained_run(run, 2)
    assert [columns["step"].tolist() for columns in learned.steps] == [list(range(12)), list(range(6, 12))]
    assert [device.rank for device in learned.result.devices] == [0, 1]
    assert (run / "steps-rank0001.csv.before-1").read_text().count("\n") == 3


# Fake energy counters: each rank is its own host, with 100 W and 200 W.
METERED = """
import os
import trainstone.flows.speed_summary as speed
rank = int(os.environ["RANK"])
inner = speed.summarise
speed.get_host_name = lambda: f"node{rank}"
speed.summarise = lambda *a, **k: {**inner(*a, **k), "average_watts": 100.0 * (1 + rank), "meter": "made up"}
"""


def test_train_on_two_ranks_sums_energy(nursery: Nursery, tmp_path: Path):
    words = ["train", "demo-classify", *set_arguments(stop__epochs=1.0), "--out", str(tmp_path)]
    ended = [child.wait() for child in nursery.start_ranks(2, *words, prepare=METERED)]
    assert {one.code for one in ended} == {0}, ended
    result = read_result(find_run(tmp_path))
    assert (result.energy.average_watts, result.energy.meter) == (300.0, "made up")
    assert result.energy.joules_per_image == pytest.approx(300.0 / result.throughput.images_per_second)
