"""mlperf.log files of closed ResNet-50 and SSD runs, written by the real writer from generated steps."""

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from support.builders.results import write_run
from support.builders.training_results import make_training
from trainstone.config.load import load_config
from trainstone.config.schema import Config
from trainstone.engine.event_schedule import EventSchedule
from trainstone.engine.training_data import order_images
from trainstone.machine.page_cache import CacheCleared
from trainstone.machine.ranks import Rank
from trainstone.models.resnet import build_resnet
from trainstone.models.ssd import build_ssd
from trainstone.originals.mlperf.training_log import MlperfLog, StartTimes, compute_sizes, list_header
from trainstone.results.mlperf.logs import LoggedRun
from trainstone.results.schema.quality import Evaluation
from trainstone.results.schema.run import Point, Status
from trainstone.results.steps import StepRecord

IMAGENET = (1_281_167, 50_000)
BEGAN = 1_700_000_000.0
BUILD_SECONDS, INIT_SECONDS = 40.0, 60.0
EVAL_SECONDS = 3.0
RULESETS = ("0.7.0", "1.0.0", "2.0.0", "4.0.0")


class Clock:
    def __init__(self, seconds: float = BEGAN) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


def load_mlperf(
    *, recipe: str = "resnet50-mlperf", seed: int = 1, batch: int = 3264, ranks: int = 8, **changes: Any
) -> Config:
    """Load a recipe with a global batch size on `ranks` ranks; a__b stands for a.b."""
    settings = {"seed": seed, "train.batch_size": batch // ranks, "mlperf.org": "example"}
    settings |= {name.replace("__", "."): value for name, value in changes.items()}
    return load_config(recipe, settings=[f"{key}={json.dumps(value)}" for key, value in settings.items()])


load_ssd = functools.partial(load_mlperf, recipe="ssd300-mlperf", batch=1024, model__pretrained="resnet34.safetensors")


def open_made_log(
    path: Path | None,
    config: Config,
    ranks: int = 8,
    network: nn.Module | None = None,
    *,
    images: tuple[int, int] = IMAGENET,
    event_schedule: EventSchedule | None = None,
    built_seconds: float = BEGAN,
    clock: Clock | None = None,
) -> MlperfLog:
    """Return the log writer of a run; `images`: numbers of training and validation images."""
    rank = Rank(0, ranks)
    order = order_images(config, images[0], rank)
    global_batch = order.global_batch * config.train.accumulate
    event_schedule = event_schedule or EventSchedule(
        order.epoch_images, global_batch, config.eval, config.stop, config.checkpoint
    )
    head = functools.partial(
        list_header,
        config,
        compute_sizes(config, *images, rank),
        "Made-up accelerator",
        [name for name, _ in (network or build_resnet(50)).named_parameters()],
        CacheCleared(True, "page cache cleared", BEGAN),
        StartTimes(int(BEGAN * 1000), int(built_seconds * 1000)),
    )
    return MlperfLog(path, event_schedule, config, ranks, head, now=clock or Clock())


def write_log(
    path: Path,
    config: Config,
    ranks: int,
    network: nn.Module | None,
    *,
    images: tuple[int, int],
    epochs: int,
    minutes: float,
    score: Callable[[int], dict[str, float]],
    ended: Status,
) -> None:
    """Write the log of a run of `minutes`; `score` returns an epoch's metrics, the last epoch is always evaluated."""
    clock, built = Clock(BEGAN + INIT_SECONDS), BEGAN + BUILD_SECONDS
    made = open_made_log(path, config, ranks, network, images=images, built_seconds=built, clock=clock)
    event_schedule = made._event_schedule
    steps = event_schedule.images // event_schedule.global_batch
    evaluated = [epoch for epoch in range(1, epochs + 1) if event_schedule.evaluates_after(epoch * steps)]
    epoch_seconds = (minutes * 60 - EVAL_SECONDS * len(evaluated)) / epochs
    with made as log:
        log.begin()
        for epoch in range(1, epochs + 1):
            done = epoch * steps
            log.begin_steps(done - steps)
            clock.seconds += epoch_seconds
            step_images = config.train.batch_size * steps  # one record for all steps of the epoch
            log.step(StepRecord(done - 1, epoch - 1, clock() - epoch_seconds, 0, epoch_seconds, step_images, 1, 1))
            if epoch in evaluated or epoch == epochs:
                log.begin_evaluation(done)
                clock.seconds += EVAL_SECONDS
                log.end_evaluation(done)
                times = {"seconds": clock() - BEGAN, "eval_seconds": EVAL_SECONDS}
                log.evaluation(Evaluation(epoch=epoch, step=done, **times, metrics=score(epoch), images=images[1]))
        log.finish(ended)


def write_closed_log(
    path: Path, *, converged: bool = True, epochs: int = 35, minutes: float = 28.7, ranks: int = 8, **changes: Any
) -> None:
    """Write the log of a closed run that reached (or missed) the target after `epochs` and `minutes`."""
    write_log(
        *(path, load_mlperf(ranks=ranks, **changes), ranks, None),
        images=IMAGENET,
        epochs=epochs,
        minutes=minutes,
        # Rises to 0.7595 at the last epoch, or stays just below the target.
        score=lambda epoch: {"top1": min(0.7 + 0.0595 * epoch / epochs, 0.7595 if converged else 0.7584)},
        ended="target_reached" if converged else "target_missed",
    )


def make_logged(path: str = "log", **changes: Any) -> LoggedRun:
    absent = dict.fromkeys(("division", "org", "platform", "global_batch", "train_samples", "optimizer", "ended"))
    given = {"form": "0.7", "benchmark": "resnet", "seeds": (), "start_ms": 0, "stop_ms": None}
    return LoggedRun(**(absent | given | {"path": Path(path), "epochs": None} | changes))


def check_log(path: Path, ruleset: str) -> tuple[bool, str]:
    output = path.with_name(f"{path.name}.{ruleset}.output")
    module = "mlperf_logging.compliance_checker"
    arguments = ["--usage", "training", "--ruleset", ruleset, "--log_output", str(output), str(path)]
    ended = subprocess.run([sys.executable, "-W", "ignore", "-m", module, *arguments], capture_output=True, text=True)
    return ended.returncode == 0, ended.stdout + ended.stderr


COCO = (117_266, 5_000)
SSD_RULESETS = ("0.7.0", "1.0.0", "1.1.0")


@functools.cache
def build_empty() -> nn.Module:
    with torch.device("meta"):
        return build_ssd(34, num_classes=80, image_size=300)


def write_ssd_log(
    path: Path,
    *,
    ranks: int = 8,
    images: tuple[int, int] = COCO,
    epochs: int = 50,
    reached: float = 0.2301,
    minutes: float = 25.4,
    **changes: Any,
) -> None:
    """Write the log of a closed SSD run whose last evaluation reached the mAP `reached`."""
    config = load_ssd(ranks=ranks, **changes)
    write_log(
        *(path, config, ranks, build_empty()),
        images=images,
        epochs=epochs,
        minutes=minutes,
        score=lambda epoch: {"map": reached if epoch == epochs else 0.8 * reached, "map50": 0.4},
        ended="target_reached" if reached >= (config.eval.target or 1) else "target_missed",
    )


MINUTES = (30.0, 28.0, 29.0, 27.0, 40.0)


@functools.cache
def make_log(**changes: Any) -> str:
    """Write a log with the real writer; cached for all tests, since it takes a second."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "mlperf.log"
        write_closed_log(path, seed=1, minutes=min(MINUTES), **changes)
        return path.read_text()


def closed_log(seed: int = 1, minutes: float = 28.0, **changes: Any) -> str:
    """Return the cached log with another seed and duration."""
    events = [json.loads(line.partition(" ")[2]) for line in make_log(**changes).splitlines()]
    (start,) = (event["time_ms"] for event in events if event["key"] == "run_start")
    for event in events:
        if event["key"] == "seed":
            event["value"] = seed
        if event["key"] == "run_stop":
            event["time_ms"] = start + round(60_000 * minutes)
    return "".join(f":::MLLOG {json.dumps(event)}\n" for event in events)


def write_mlperf_run(folder: Path, seed: int, minutes: float = 28.0, **changes: Any) -> Path:
    path = write_run(folder, make_training(f"run-{seed}", settings=(f"seed={seed}",)))
    (path / "mlperf.log").write_text(closed_log(seed, minutes, **changes))
    return path


def write_mlperf_runs(
    folder: Path, seeds: Sequence[int] = (1, 2, 3, 4, 5), minutes: Sequence[float] = MINUTES, **changes: Any
) -> Path:
    """Write the folder of train --runs, with its runs under points/."""
    points = [Point(label=f"seed {seed}", run=f"points/run-{seed}") for seed in seeds]
    path = write_run(folder, make_training("repeated", points=points))
    for seed, time in zip(seeds, minutes, strict=True):
        write_mlperf_run(path / "points", seed, time, **changes)
    return path
