"""An mlperf.log of a closed-division ResNet-50 run, written by the real writer with steps that nobody trained."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from torch import nn

from trainstone.config.load import load_config
from trainstone.config.schema import Config
from trainstone.machine.pagecache import CacheCleared
from trainstone.machine.ranks import Rank
from trainstone.models.resnet import build_resnet
from trainstone.results.quality import Evaluation
from trainstone.results.steps import StepRecord
from trainstone.train.cadence import Cadence
from trainstone.train.original.mllog import MlperfLog
from trainstone.train.original.mllog_head import Submission, judge_division
from trainstone.train.original.mllog_open import measure_sizes
from trainstone.train.task import order_pictures
from trainstone.workloads.registry import WORKLOADS

IMAGENET = (1_281_167, 50_000)
BEGAN = 1_700_000_000.0
BUILD_SECONDS, INIT_SECONDS = 40.0, 60.0
EVAL_SECONDS = 3.0
RULESETS = ("0.7.0", "1.0.0", "2.0.0", "4.0.0")


class Clock:
    """A clock that a test sets."""

    def __init__(self, seconds: float = BEGAN) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


def load_mlperf(*, seed: int = 1, batch: int = 3264, ranks: int = 8, **changes: Any) -> Config:
    """resnet50-mlperf with a global batch, on so many ranks; a__b stands for a.b."""
    settings = {"seed": seed, "train.batch_size": batch // ranks, "mlperf.org": "somebody"}
    settings |= {name.replace("__", "."): value for name, value in changes.items()}
    return load_config("resnet50-mlperf", settings=[f"{key}={json.dumps(value)}" for key, value in settings.items()])


def make_submission(
    config: Config, ranks: int = 8, network: nn.Module | None = None, built_seconds: float = BEGAN
) -> Submission:
    """A run on ImageNet's numbers of pictures."""
    rank, mllog = Rank(0, ranks), WORKLOADS[config.workload].mllog
    sizes = measure_sizes(config, *IMAGENET, rank)
    return Submission(
        config=config,
        mllog=mllog,
        sizes=sizes,
        division=judge_division(config, mllog, sizes)[0],
        device_name="Made-up accelerator",
        tensors=mllog.tensor_names(network or build_resnet(50)),
        cleared=CacheCleared(True, "page cache cleared", BEGAN),
        init_ms=int(BEGAN * 1000),
        built_ms=int(built_seconds * 1000),
    )


def make_cadence(config: Config, ranks: int = 8) -> Cadence:
    order = order_pictures(config, IMAGENET[0], Rank(0, ranks))
    global_batch = order.global_batch * config.train.accumulate
    return Cadence(order.epoch_pictures, global_batch, config.eval, config.stop, config.checkpoint)


def accuracy_after(epoch: int, epochs: int, *, converged: bool) -> float:
    """Rises to 0.7595 at the last epoch, or stays just below the target."""
    return min(0.7 + 0.0595 * epoch / epochs, 0.7595 if converged else 0.7584)


def write_closed_log(
    path: Path,
    *,
    seed: int,
    converged: bool = True,
    batch: int = 3264,
    epochs: int = 35,
    minutes: float = 28.7,
    ranks: int = 8,
    **changes: Any,
) -> None:
    """Write the log of a run that reached (or missed) the target after some epochs, which took so many minutes."""
    config, clock = load_mlperf(seed=seed, batch=batch, ranks=ranks, **changes), Clock(BEGAN + INIT_SECONDS)
    cadence = make_cadence(config, ranks)
    steps_per_epoch = cadence.pictures // cadence.global_batch
    evaluations = [epoch for epoch in range(1, epochs + 1) if cadence.evaluates_after(epoch * steps_per_epoch)]
    epoch_seconds = (minutes * 60 - EVAL_SECONDS * len(evaluations)) / epochs
    submission = make_submission(config, ranks, built_seconds=BEGAN + BUILD_SECONDS)
    with MlperfLog(path, cadence, submission, now=clock) as log:
        log.begin()
        for epoch in range(1, epochs + 1):
            done = epoch * steps_per_epoch
            log.begin_steps(done - steps_per_epoch)
            for step in (done - steps_per_epoch, done - 1):  # those between change nothing
                clock.seconds += epoch_seconds / 2
                images = config.train.batch_size * steps_per_epoch // 2
                log.step(StepRecord(step, epoch - 1, clock() - epoch_seconds / 2, 0, epoch_seconds / 2, images, 1, 1))
            if epoch in evaluations or epoch == epochs:
                log.begin_evaluation(done)
                clock.seconds += EVAL_SECONDS
                top1 = accuracy_after(epoch, epochs, converged=converged)
                judged = Evaluation(
                    epoch=epoch,
                    step=done,
                    seconds=clock() - BEGAN,
                    eval_seconds=3,
                    metrics={"top1": top1},
                    images=50000,
                )
                log.evaluation(judged)
        log.finish("target_reached" if converged else "target_missed")


def check_log(path: Path, ruleset: str) -> tuple[bool, str]:
    """Return whether MLPerf's own checker takes a log, and what it says."""
    said = path.with_name(f"{path.name}.{ruleset}.said")
    module = "mlperf_logging.compliance_checker"
    arguments = ["--usage", "training", "--ruleset", ruleset, "--log_output", str(said), str(path)]
    ended = subprocess.run([sys.executable, "-W", "ignore", "-m", module, *arguments], capture_output=True, text=True)
    return ended.returncode == 0, ended.stdout + ended.stderr
