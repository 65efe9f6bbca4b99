"""An mlperf.log of an SSD run, written by the real writer with steps that nobody trained."""

import json
from pathlib import Path
from typing import Any

import torch

from made_mlperf import BEGAN, BUILD_SECONDS, EVAL_SECONDS, INIT_SECONDS, Clock
from trainstone.config.load import load_config
from trainstone.config.schema import Config
from trainstone.machine.pagecache import CacheCleared
from trainstone.machine.ranks import Rank
from trainstone.models.ssd import build_ssd
from trainstone.results.quality import Evaluation
from trainstone.results.steps import StepRecord
from trainstone.train.cadence import Cadence
from trainstone.train.original.mllog import MlperfLog
from trainstone.train.original.mllog_head import Submission, judge_division
from trainstone.train.original.mllog_open import measure_sizes
from trainstone.train.task import order_pictures
from trainstone.workloads.mlperf_ssd import SSD

COCO = (117_266, 5_000)
RULESETS = ("0.7.0", "1.0.0", "1.1.0")


def load_ssd(*, seed: int = 1, batch: int = 1024, ranks: int = 8, **changes: Any) -> Config:
    """ssd300-mlperf with a global batch, on so many ranks; a__b stands for a.b."""
    settings = {"seed": seed, "train.batch_size": batch // ranks, "mlperf.org": "somebody"}
    settings |= {"model.pretrained": "resnet34.safetensors"}
    settings |= {name.replace("__", "."): value for name, value in changes.items()}
    return load_config("ssd300-mlperf", settings=[f"{key}={json.dumps(value)}" for key, value in settings.items()])


def list_tensors() -> list[str]:
    """MXNet's names of SSD300's parameters."""
    with torch.device("meta"):
        return SSD.tensor_names(build_ssd(34, num_classes=80, image_size=300))


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
    config, clock, rank = load_ssd(seed=seed, ranks=ranks, **changes), Clock(BEGAN + INIT_SECONDS), Rank(0, ranks)
    order, sizes = order_pictures(config, pictures[0], rank), measure_sizes(config, *pictures, rank)
    cadence = Cadence(order.epoch_pictures, order.global_batch, config.eval, config.stop, config.checkpoint)
    submission = Submission(
        config=config,
        mllog=SSD,
        sizes=sizes,
        division=judge_division(config, SSD, sizes)[0],
        device_name="Made-up accelerator",
        tensors=list_tensors(),
        cleared=CacheCleared(True, "page cache cleared", BEGAN),
        init_ms=int(BEGAN * 1000),
        built_ms=int((BEGAN + BUILD_SECONDS) * 1000),
    )
    steps = cadence.pictures // cadence.global_batch
    listed = [epoch for epoch in range(1, epochs + 1) if cadence.evaluates_after(epoch * steps)]
    epoch_seconds = (minutes * 60 - EVAL_SECONDS * len(listed)) / epochs
    with MlperfLog(path, cadence, submission, now=clock) as log:
        log.begin()
        for epoch in range(1, epochs + 1):
            done = epoch * steps
            log.begin_steps(done - steps)
            clock.seconds += epoch_seconds
            images = config.train.batch_size * steps
            log.step(StepRecord(done - 1, epoch - 1, clock() - epoch_seconds, 0, epoch_seconds, images, 1, 1))
            if epoch in listed:
                log.begin_evaluation(done)
                clock.seconds += EVAL_SECONDS
                log.end_evaluation(done)
                found = reached if epoch == epochs else 0.8 * reached
                told = {"epoch": epoch, "step": done, "seconds": clock() - BEGAN, "eval_seconds": EVAL_SECONDS}
                judged = Evaluation(**told, metrics={"map": found, "map50": 1.7 * found}, images=pictures[1])
                log.evaluation(judged)
        log.finish("target_reached" if reached >= (config.eval.target or 1) else "target_missed")
