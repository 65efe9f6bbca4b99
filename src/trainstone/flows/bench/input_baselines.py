"""Baselines of a bench on real images: training on synthetic batches, and the data loader without training.

Each is measured half before and half after the run itself, so that a machine that slows down affects all three alike.
"""

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np

from trainstone.config.schema import Config, MeasureConfig
from trainstone.data.loader import Loader
from trainstone.data.splits import OpenSplit, digest_samples
from trainstone.engine.batches import prefetch_to_device, synthetic_batches
from trainstone.engine.fit import Fitted
from trainstone.engine.loop import train_steps
from trainstone.engine.task import Task, build_task
from trainstone.flows.loader_timing import LoaderTiming, split_stages, time_loader
from trainstone.machine.ranks import SINGLE_RANK
from trainstone.machine.signals import StopSignals
from trainstone.measure.clock import choose_timer
from trainstone.measure.recorder import StepRecorder
from trainstone.results.findings import is_data_bound
from trainstone.results.progress import Progress
from trainstone.results.schema import run as schema
from trainstone.results.step_summary import StepSummary
from trainstone.stats import throughput
from trainstone.workloads.registry import WORKLOADS

# Share of the run's own time or steps that each half takes.
SYNTHETIC_SHARE, LOADER_SHARE = 1 / 10, 1 / 20
MIN_STEPS = 6
# The first steps of a half allocate memory and tune kernels: at least so many do not count.
WARM_UP_STEPS, WARM_UP_SHARE = 2, 0.2
FILE_NAME = "steps-synthetic-rank0000.csv"
# The loader baseline reads in another order than training: else training would find its first images in memory.
OTHER_SEED = 0x5EED


@dataclass
class InputBaselines:
    """Measurements of the loader without training and of training on synthetic batches."""

    opened: OpenSplit
    recorder: StepRecorder
    counted: list[int] = field(default_factory=list)
    """Numbers of the synthetic steps that count."""
    loader: LoaderTiming = field(default_factory=lambda: LoaderTiming(0))
    next_step: int = 0
    """First step of the loader's second half, which reads other images."""
    synthetic_seconds: float = 0.0
    """Time of the synthetic halves so far: the second half's start_seconds continue from it."""


def measure_before(fitted: Fitted, baselines: InputBaselines, signals: StopSignals) -> Iterator[Progress]:
    """Measure the first halves: the loader, then synthetic batches on a temporary model."""
    yield from measure_loader(fitted, baselines, signals)
    if signals.received:
        return
    yield from measure_synthetic(build_task(fitted.config, fitted.device), fitted.config.measure, baselines, signals)


def measure_after(task: Task, fitted: Fitted, baselines: InputBaselines, signals: StopSignals) -> Iterator[Progress]:
    """Measure the second halves in the opposite order; closes the task's own loader first."""
    task.close()
    config, device = fitted.config, fitted.device
    batches = WORKLOADS[config.workload].mix(config, synthetic_batches(config, device), SINGLE_RANK, 0)
    synthetic = replace(task, batches=prefetch_to_device(batches, device), loader=None)
    yield from measure_synthetic(synthetic, fitted.config.measure, baselines, signals)
    if not signals.received:
        yield from measure_loader(fitted, baselines, signals)


def measure_synthetic(
    task: Task, measure: MeasureConfig, baselines: InputBaselines, signals: StopSignals
) -> Iterator[Progress]:
    timer = choose_timer(task.device)
    origin, num_steps = timer.now() - baselines.synthetic_seconds, count_share(measure.iterations, SYNTHETIC_SHARE)
    first, begin = len(baselines.recorder), math.inf
    for record in train_steps(task, timer, num_steps=num_steps, origin=origin):
        begin = min(begin, timer.now())  # the first step may have to compile for minutes
        baselines.recorder.step(record._replace(step=first + record.step))
        yield Progress("synthetic data", record.step + 1, record.images / record.step_seconds)
        enough = record.step + 1 >= MIN_STEPS and timer.now() - begin >= measure.seconds * SYNTHETIC_SHARE
        if signals.received or (num_steps is None and enough):
            break
    baselines.synthetic_seconds = timer.now() - origin
    warm_up = max(WARM_UP_STEPS, round(WARM_UP_SHARE * (len(baselines.recorder) - first)))
    baselines.counted += range(first + warm_up, len(baselines.recorder))


def measure_loader(fitted: Fitted, baselines: InputBaselines, signals: StopSignals) -> Iterator[Progress]:
    """Time the loader without training, for a share of the run's time or steps."""
    config, measure = fitted.config, fitted.config.measure
    other = config.model_copy(update={"seed": config.seed ^ OTHER_SEED})
    open_training = WORKLOADS[config.workload].open_training
    with closing(open_training(other, baselines.opened, fitted.device, SINGLE_RANK, baselines.next_step)) as loader:
        num_batches = count_share(measure.iterations, LOADER_SHARE)
        for progress in time_loader(
            loader, baselines.loader, measure.seconds * LOADER_SHARE, num_batches, "timing the loader"
        ):
            yield progress
            if signals.received:
                break
        baselines.next_step = loader.step


def count_share(iterations: int | None, share: float) -> int | None:
    return None if iterations is None else max(MIN_STEPS, round(iterations * share))


def assess_loader(
    config: Config, loader: Loader, baselines: InputBaselines, summary: StepSummary
) -> schema.LoaderResult | None:
    """Compare the loader with the baselines; None if the run was stopped before both were measured."""
    if not baselines.loader.images or not baselines.counted:
        return None
    batch = config.train.batch_size
    seconds = np.asarray(baselines.loader.batch_seconds)
    by_loader = throughput.estimate_within_run(seconds, np.full(len(seconds), float(batch)))
    columns = baselines.recorder.columns()
    synthetic_seconds = columns["step_seconds"][baselines.counted]
    synthetic = throughput.estimate_within_run(synthetic_seconds, columns["images"][baselines.counted])
    share = float(np.median(synthetic_seconds)) / summary.step_seconds.median
    return schema.LoaderResult(
        images_per_second=by_loader.images_per_second,
        ci95=by_loader.ci95,
        synthetic_images_per_second=synthetic.images_per_second,
        synthetic_ci95=synthetic.ci95,
        share_of_synthetic=share,
        data_bound=is_data_bound(share, summary.data_share),
        threads=config.loader.threads,
        storage=loader.pipeline.storage,
        images=len(loader.pipeline.source),
        digest=digest_samples(loader.pipeline.source),
        skipped=loader.skipped,
        skipped_images=len(loader.bad_images),
        stage_seconds_per_image={stage.name: stage.seconds_per_image for stage in split_stages(baselines.loader)},
    )
