import itertools
import math
from pathlib import Path

import pytest
import torch

from flows import LateTimer, follow
from made_saved import make_checkpoint, make_config, make_network
from small_sets import make_set
from trainstone.measure.clock import HostTimer
from trainstone.measure.peaks import Peaks
from trainstone.results.steps import read_columns
from trainstone.results.store import create_run, read_result
from trainstone.train import observation
from trainstone.train.checkpoint import open_saved, resolve_config
from trainstone.train.fit import count_step_work
from trainstone.train.inference import infer_steps, run_inference

CPU = torch.device("cpu")
SYNTHETIC = ("data.source=synthetic", "train.precision=fp32")


def ticking() -> "itertools.count[float]":
    return itertools.count(0.0, 0.25)


def batch_of(images: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(images, 32, 32, 3, dtype=torch.uint8), torch.zeros(images, dtype=torch.int64)


@pytest.mark.parametrize("kind", [HostTimer, LateTimer])
def test_a_step_is_the_wait_and_the_forward_pass(kind):
    config, ticks = make_config(*SYNTHETIC), ticking()
    timer = kind(now=lambda: next(ticks))
    model = make_network(config).eval()
    steps = list(itertools.islice(infer_steps(model, config, CPU, itertools.repeat(batch_of(4)), timer, 0.0), 3))
    assert [step.step for step in steps] == [0, 1, 2]
    # now, begin, ready, end: four looks at the clock a step
    assert [step.start_seconds for step in steps] == [0.0, 1.0, 2.0]
    assert {(step.data_seconds, step.step_seconds, step.images) for step in steps} == {(0.25, 0.5, 4)}
    assert all(math.isnan(step.loss) for step in steps)


def test_only_the_forward_pass_is_counted():
    config = make_config(*SYNTHETIC)
    forward, both = count_step_work(config, 4, backward=False), count_step_work(config, 4)
    assert both.flops / 4 < forward.flops < both.flops / 2
    assert 0 < forward.bytes_moved < both.bytes_moved / 2


@pytest.mark.parametrize("source", ["synthetic", "files"])
def test_a_run_has_what_bench_has(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(observation, "measure_peaks", lambda *_: Peaks(1e12, "not measured", 1e10))
    saved = open_saved(make_checkpoint(tmp_path / "made"))
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
