"""A small training run in this process, and the files of a finished training run."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.processes.flows import follow
from trainstone.config.load import load_config
from trainstone.config.schema import Config
from trainstone.results.progress import Progress
from trainstone.results.run_folder import RunFolder, create_run, read_result, reopen_run
from trainstone.results.schema.run import Result
from trainstone.results.steps import Columns, read_columns

# 12 steps per epoch; 43 images are not a multiple of a usual batch size.
SMALL = {
    "device": "cpu",
    "engine.threads": 1,
    "engine.keep_memory": False,
    "loader.threads": 1,
    "data.generated_train": 96,
    "data.generated_val": 43,
    "data.image_size": 32,
    "model.width": 16,
    "train.batch_size": 8,
    "stop.epochs": 3.0,
}


def list_settings(**changes: Any) -> list[str]:
    """Return the small run's settings as KEY=VALUE; a__b stands for a.b."""
    merged = SMALL | {name.replace("__", "."): value for name, value in changes.items()}
    return [f"{name}={json.dumps(value)}" for name, value in merged.items()]


def set_arguments(**changes: Any) -> list[str]:
    return [part for setting in list_settings(**changes) for part in ("--set", setting)]


def make_config(**changes: Any) -> Config:
    return load_config("demo-classify", settings=list_settings(**changes))


def train_here(
    config: Config,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    resume: bool = False,
    act: Callable[[Progress], None] = lambda _progress: None,
) -> RunFolder:
    """Train in this process in a new run below `folder`, or resume the run `folder`; `act` gets all progress."""
    from trainstone.flows import observation
    from trainstone.flows.train.run import run_train
    from trainstone.measure.peaks import Peaks

    monkeypatch.setattr(observation, "measure_peaks", lambda *_: Peaks(1e12, "not measured", 1e10))
    run = reopen_run(folder, "train", "x") if resume else create_run(folder, "train", config, "x")
    for progress in follow(partial(run_train, strict=False, resume=resume), config, run):
        act(progress)
    return run


@dataclass(frozen=True)
class TrainedRun:
    result: Result
    tensors: dict[str, Any]
    """Tensors of the last checkpoint, without random states."""
    document: dict[str, Any]
    steps: list[Columns]
    """One table per rank."""

    @property
    def evaluated(self) -> list[tuple[Any, ...]]:
        history = self.result.quality.history if self.result.quality else []
        return [(one.epoch, one.step, one.images, one.metrics) for one in history]


def read_trained_run(run: Path, ranks: int = 1) -> TrainedRun:
    from trainstone.flows.train.checkpoint import find_latest

    checkpoint, damaged = find_latest(run / "checkpoints")
    assert checkpoint is not None
    assert not damaged
    tensors = {
        name: tensor for name, tensor in checkpoint.tensors.items() if name.startswith(("model.", "ema.", "optimizer."))
    }
    steps = [read_columns(run / f"steps-rank{number:04d}.csv") for number in range(ranks)]
    return TrainedRun(read_result(run), tensors, checkpoint.document, steps)


def assert_same(
    one: TrainedRun, other: TrainedRun, *, columns: Sequence[str] = ("step", "epoch", "loss", "lr")
) -> None:
    """Assert bitwise equality of weights, EMA, momentum, losses of every step, and evaluations."""
    assert one.tensors.keys() == other.tensors.keys()
    assert [name for name in one.tensors if not one.tensors[name].equal(other.tensors[name])] == []
    for mine, theirs in zip(one.steps, other.steps, strict=True):
        assert {name: mine[name].tolist() for name in columns} == {name: theirs[name].tolist() for name in columns}
    assert one.evaluated == other.evaluated


def assert_trained_alike(one: TrainedRun, other: TrainedRun) -> None:
    """Assert bitwise equality except for batch norm statistics: an extra checkpoint averages them once more."""
    weights = [name for name in one.tensors if ".running_" not in name]
    assert [name for name in weights if not one.tensors[name].equal(other.tensors[name])] == []
    for name, tensor in one.tensors.items():
        assert tensor.float().allclose(other.tensors[name].float(), rtol=1e-5, atol=1e-6), name
    assert [columns["loss"].tolist() for columns in one.steps] == [columns["loss"].tolist() for columns in other.steps]


def max_difference(one: TrainedRun, other: TrainedRun) -> float:
    assert one.tensors.keys() == other.tensors.keys()
    return max(float((t.double() - other.tensors[name].double()).abs().max()) for name, t in one.tensors.items())
