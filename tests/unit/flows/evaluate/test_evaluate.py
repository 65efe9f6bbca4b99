import itertools
import math
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from support.builders.checkpoints import RUN_ID, make_checkpoint, make_config, make_network
from support.builders.data_sets import make_set
from support.builders.training_runs import make_config as make_small
from support.processes.flows import LateTimer, drain, follow
from support.processes.forked import run_ranks
from trainstone.config.load import load_config
from trainstone.config.schema import Config
from trainstone.engine.distributed.collectives import World
from trainstone.engine.evaluate import evaluate, evaluate_network
from trainstone.engine.fit import count_step_work
from trainstone.engine.loop import train_steps
from trainstone.engine.network import build_network
from trainstone.engine.task import Task, build_task
from trainstone.engine.training_data import provide_data
from trainstone.errors import ConfigError
from trainstone.flows import observation
from trainstone.flows.evaluate.inference import infer_steps, run_inference
from trainstone.flows.evaluate.load_weights import read_saved_weights, resolve_config
from trainstone.flows.evaluate.run import describe_skipped, open_images, run_eval
from trainstone.flows.train.start import open_splits
from trainstone.machine.ranks import SINGLE_RANK, read_rank
from trainstone.machine.signals import StopSignals
from trainstone.measure.clock import HostTimer, choose_timer
from trainstone.measure.peaks import Peaks
from trainstone.results.run_folder import create_run, read_result
from trainstone.results.steps import read_columns
from trainstone.workloads.classify import CLASSIFY
from trainstone.workloads.workload import EvalScores

CPU = torch.device("cpu")
WORLD = World(SINGLE_RANK, CPU)


def evaluate_here(checkpoint: str, out: str, *settings: str) -> str | None:
    """Evaluate like `trainstone eval`; rank 0 returns the run folder."""
    saved = read_saved_weights(Path(checkpoint))
    config = resolve_config(saved, None, ["device=cpu", "engine.threads=1", "loader.threads=1", *settings], {})
    run = create_run(Path(out), "eval", config, "trainstone eval") if read_rank().number == 0 else None
    drain(follow(lambda life: run_eval(life, saved), config, run))
    return str(run.path) if run else None


def test_run_eval_result_is_the_same_on_one_and_three_ranks(tmp_path: Path):
    checkpoint = make_checkpoint(tmp_path)
    one = read_result(Path(str(evaluate_here(str(checkpoint), str(tmp_path)))))
    assert (one.kind, one.status, one.quality.metric) == ("eval", "ok", "top1")
    (ours,) = one.quality.history
    assert (ours.step, ours.images, ours.epoch) == (12, 31, pytest.approx(2.4))
    assert set(ours.metrics) == {"top1", "top5", "loss"}
    assert one.quality.value == ours.metrics["top1"]
    assert one.quality.parameters == sum(p.numel() for p in make_network(make_config()).parameters())
    assert 0 < one.phases.eval_seconds <= one.phases.program_seconds
    assert one.devices[0].label == "cpu"
    assert one.machine
    assert one.verdict.endswith(f"on 31 images (from step 12 of {RUN_ID})")
    world = 3
    answers = run_ranks(world, evaluate_here, tmp_path, str(checkpoint), str(tmp_path / "runs"))
    assert answers[1:] == [None] * (world - 1)
    many = read_result(Path(answers[0]))
    assert (many.world.ranks, [device.rank for device in many.devices]) == (world, list(range(world)))
    theirs = many.quality.history[0]
    assert theirs.images == ours.images
    assert theirs.metrics == {**ours.metrics, "loss": pytest.approx(ours.metrics["loss"], rel=1e-6)}
    assert many.verdict == one.verdict


def test_describe_skipped_separates_incomplete_batch_from_damaged_images():
    config = load_config("demo-classify", settings=["eval.batch_size=256", "eval.drop_last=true"])
    opened = SimpleNamespace(source=range(50_000))
    (found,) = describe_skipped(opened, 49_920, config)  # WMLCE's published accuracies are of this many
    assert found.message == "80 images not evaluated: incomplete batch of 256 (eval.drop_last)"
    assert [one.message.split()[0] for one in describe_skipped(opened, 49_918, config)] == ["80", "2"]
    with pytest.raises(ConfigError, match="no images to evaluate") as refused:
        open_images(make_config("data.source=synthetic"))
    assert "--data DIR" in str(refused.value.hint)


def finish(going: Generator[Any, None, Tensor | None], config: Config) -> EvalScores:
    return CLASSIFY.finish_eval(config, open_splits(config).validation, drain(going)[1])


def provide(**changes: Any) -> Config:
    config = make_small(**changes)
    drain(provide_data(config))
    return config


def trained(config: Config, steps: int) -> Task:
    task = build_task(config, CPU, open_splits(config).training)
    drain(train_steps(task, choose_timer(CPU), num_steps=steps))
    return task


def test_evaluate_uses_ema_weights():
    config = provide(train__ema=0.9)
    task = trained(config, 3)
    validation = open_splits(config).validation
    try:
        averaged = finish(evaluate(task, config, validation, WORLD, StopSignals()), config)
        plain = finish(evaluate_network(task.plain, config, CPU, validation, WORLD, StopSignals()), config)
        task.plain.load_state_dict(task.average.tensors)
        again = finish(evaluate_network(task.plain, config, CPU, validation, WORLD, StopSignals()), config)
    finally:
        task.close()
    assert averaged == again
    assert averaged.metrics["loss"] != plain.metrics["loss"]


def test_evaluate_counts_do_not_depend_on_batch_size():
    config = provide()
    model, validation = build_network(config, CPU), open_splits(config).validation
    found = []
    for size in (1, 7, 43, 64):
        sized = config.model_copy(update={"eval": config.eval.model_copy(update={"batch_size": size})})
        found.append(finish(evaluate_network(model, sized, CPU, validation, WORLD, StopSignals()), config))
    assert {one.images for one in found} == {43}
    assert len({(one.metrics["top1"], one.metrics["top5"]) for one in found}) == 1
    losses = [one.metrics["loss"] for one in found]
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-5)


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_evaluate_stops_before_next_batch_on_signal(ema: float):
    config = provide(train__ema=ema, eval__batch_size=1)
    task, signals, seen = trained(config, 1), StopSignals(), []
    try:
        before = {name: tensor.clone() for name, tensor in task.plain.state_dict().items()}
        going = evaluate(task, config, open_splits(config).validation, WORLD, signals)
        for progress in going:
            seen.append(progress.images)
            signals.received = "SIGTERM" if len(seen) == 3 else None
        assert seen == [1, 2, 3]
        assert all(tensor.equal(before[name]) for name, tensor in task.plain.state_dict().items())
        assert task.plain.training
    finally:
        task.close()


SYNTHETIC = ("data.source=synthetic", "train.precision=fp32")


@pytest.mark.parametrize("kind", [HostTimer, LateTimer])
def test_infer_steps_times_data_wait_and_forward_pass(kind):
    config, ticks = make_config(*SYNTHETIC), itertools.count(0.0, 0.25)
    timer = kind(now=lambda: next(ticks))
    model = make_network(config).eval()
    batches = itertools.repeat((torch.zeros(4, 32, 32, 3, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64)))
    steps = list(itertools.islice(infer_steps(model, config, CPU, batches, timer, 0.0), 3))
    assert [step.step for step in steps] == [0, 1, 2]
    # now, begin, ready, end: the clock is read four times per step; a late timer also reads "now" at the end and the
    # begin of the wait, and its steps begin where the last one ended
    late = timer.lag > 0
    assert [step.start_seconds for step in steps] == ([0.0, 1.0, 2.0])
    assert [step.step_seconds for step in steps] == ([0.5, 1.0, 1.0] if late else [0.5] * 3)
    assert {(step.data_seconds, step.images) for step in steps} == {(0.25, 4)}
    assert all(math.isnan(step.loss) for step in steps)


def test_count_step_work_without_backward_counts_forward_pass():
    config = make_config(*SYNTHETIC)
    forward, both = count_step_work(config, 4, backward=False), count_step_work(config, 4)
    assert both.flops / 4 < forward.flops < both.flops / 2
    assert 0 < forward.bytes_moved < both.bytes_moved / 2


@pytest.mark.parametrize("source", ["synthetic", "files"])
def test_run_inference_writes_complete_bench_result(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(observation, "measure_peaks", lambda *_: Peaks(1e12, "not measured", 1e10))
    saved = read_saved_weights(make_checkpoint(tmp_path / "made"))
    settings = ["device=cpu", "engine.threads=1", "loader.threads=1", "measure.iterations=9", f"data.source={source}"]
    if source == "files":
        settings.append(f"data.root={make_set(tmp_path / 'set', 'folder', count=6, val=6)}")
    config = resolve_config(saved, None, settings, {})
    run = create_run(tmp_path / "runs", "eval", config, "trainstone eval")
    phases = [progress.phase for progress in follow(lambda life: run_inference(life, saved), config, run)]
    assert phases.count("measuring") == 9
    result = read_result(run.path)
    assert (result.kind, result.status) == ("eval", "ok")
    assert result.verdict.startswith("ResNet-18, inference: ")
    assert result.throughput.images_per_second > 0
    assert result.step_seconds.median > 0
    assert result.noise.grade in "ABC"
    assert result.devices[0].label == "cpu"
    assert result.utilisation.mfu > 0
    assert result.phases.train_seconds is None
    assert result.phases.eval_seconds > 0
    columns = read_columns(run.path / "steps-rank0000.csv")
    assert list(columns["images"]) == [4] * 9
    assert list(columns["step"]) == list(range(9))
