"""An mlperf.log of an SSD run, written by the real writer with steps that nobody trained."""

import functools
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from made_mlperf import BEGAN, BUILD_SECONDS, make_submission, write_log
from trainstone.config.load import load_config
from trainstone.config.schema import Config
from trainstone.models.ssd import build_ssd

COCO = (117_266, 5_000)
RULESETS = ("0.7.0", "1.0.0", "1.1.0")


def load_ssd(*, seed: int = 1, batch: int = 1024, ranks: int = 8, **changes: Any) -> Config:
    """ssd300-mlperf with a global batch, on so many ranks; a__b stands for a.b."""
    settings = {"seed": seed, "train.batch_size": batch // ranks, "mlperf.org": "somebody"}
    settings |= {"model.pretrained": "resnet34.safetensors"}
    settings |= {name.replace("__", "."): value for name, value in changes.items()}
    return load_config("ssd300-mlperf", settings=[f"{key}={json.dumps(value)}" for key, value in settings.items()])


@functools.cache
def build_empty() -> nn.Module:
    """SSD300 without values."""
    with torch.device("meta"):
        return build_ssd(34, num_classes=80, image_size=300)


def write_ssd_log(
    path: Path,
    *,
    seed: int = 1,
    ranks: int = 8,
    pictures: tuple[int, int] = COCO,
    epochs: int = 50,
    reached: float = 0.2301,
    minutes: float = 25.4,
    **changes: Any,
) -> None:
    """Write the log of a run whose evaluation after some epochs, one of the listed, came to `reached`."""
    config = load_ssd(seed=seed, ranks=ranks, **changes)
    values = {epochs: reached}
    write_log(
        path,
        make_submission(config, ranks, build_empty(), BEGAN + BUILD_SECONDS, pictures),
        epochs=epochs,
        minutes=minutes,
        score=lambda epoch: {"map": values.get(epoch, 0.8 * reached), "map50": 0.4},
        ended="target_reached" if reached >= (config.eval.target or 1) else "target_missed",
    )
