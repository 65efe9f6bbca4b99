"""Steps and facts for tests of the originals' files, and a clock that is turned by hand."""

from pathlib import Path
from typing import Any

from trainstone.config.load import load_config
from trainstone.results.quality import Evaluation
from trainstone.results.steps import StepRecord
from trainstone.train.original.facts import Facts

EPOCH_SECONDS = 1605627653.25


class HandClock:
    """Stands still until somebody turns it."""

    def __init__(self, seconds: float = EPOCH_SECONDS) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


def make_facts(folder: Path, name: str, *settings: str, kind: str = "train", **changes: Any) -> Facts:
    """Facts of a recipe of that original: 4 ranks x 256, 10 steps an epoch, 5 epochs."""
    config = load_config("ssd300-mlperf" if name == "mlperf_ssd" else f"resnet50-{name}", settings=settings)
    told: dict[str, Any] = {
        "kind": kind,
        "config": config,
        "folder": folder,
        "ranks": 4,
        "global_batch": 1024,
        "train_pictures": 10240,
        "val_pictures": 512,
        "steps": 50,
        "device": 2,
    }
    return Facts(**told | changes)


def make_step(step: int, **changes: Any) -> StepRecord:
    """A step of half a second each, one after the other, of a rank with 256 images."""
    record = StepRecord(step, step // 10, 3.0 + step / 2, 0.125, 0.5, 256, 9.5 - step / 64, step / 128)
    return record._replace(decay_loss=0.75, **changes)


def make_evaluation(step: int, **metrics: float) -> Evaluation:
    """An evaluation of 512 pictures that took 4 seconds."""
    found = metrics or {"top1": 37871 / 49920, "top5": 46337 / 49920, "loss": 1.25}
    return Evaluation(epoch=step / 10, step=step, seconds=99.0, eval_seconds=4.0, metrics=found, images=512)
