"""How fast a loader is, and what it is compared with.

Of a bench on real images: synthetic batches, and the loader without training, each half before and half after the
run itself, so that a machine that grows slower hits all three alike. And how `data bench` flows: open the set, let each
number of threads deliver, train a little on synthetic data, judge.
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

# Of the run's own time or steps, spent on each half.
SYNTHETIC_SHARE, LOADER_SHARE = 1 / 6, 1 / 12
MIN_STEPS = 6
# A half begins with memory to be got and kernels to be tuned: at least so many of its steps do not count.
WARM_UP_STEPS, WARM_UP_SHARE = 2, 0.2
FILE_NAME = "steps-synthetic-rank0000.csv"
# The loader alone reads in another order than training will: the first images would lie in memory already.
OTHER_SEED = 0x5EED


@dataclass
class InputBaselines:
    """What was measured of the loader and of synthetic batches, each by itself."""

    opened: OpenSplit
    recorder: StepRecorder
    counted: list[int] = field(default_factory=list)
    """Synthetic steps that count."""
    loader: LoaderTiming = field(default_factory=lambda: LoaderTiming(0))
    next_step: int = 0
    """Where the loader alone goes on: its second half has other images."""
    synthetic_seconds: float = 0.0
    """Of the halves so far, for start_seconds of the second."""


def measure_before(fitted: Fitted, alone: InputBaselines, signals: StopSignals) -> Iterator[Progress]:
    """First halves: the loader, then synthetic batches on a model that is thrown away."""
    yield from measure_loader(fitted, alone, signals)
    if signals.received:
        return
    yield from measure_synthetic(build_task(fitted.config, fitted.device), fitted.config.measure, alone, signals)


def measure_after(task: Task, fitted: Fitted, alone: InputBaselines, signals: StopSignals) -> Iterator[Progress]:
    """Second halves, in the opposite order; the task's own loader is at rest."""
    task.close()
    config, device = fitted.config, fitted.device
    batches = WORKLOADS[config.workload].mix(config, synthetic_batches(config, device), SINGLE_RANK, 0)
    synthetic = replace(task, batches=prefetch_to_device(batches, device), loader=None)
    yield from measure_synthetic(synthetic, fitted.config.measure, alone, signals)
    if not signals.received:
        yield from measure_loader(fitted, alone, signals)


def measure_synthetic(
    task: Task, measure: MeasureConfig, alone: InputBaselines, signals: StopSignals
) -> Iterator[Progress]:
    timer = choose_timer(task.device)
    origin, num_steps = timer.now() - alone.synthetic_seconds, count_share(measure.iterations, SYNTHETIC_SHARE)
    first, begin = len(alone.recorder), math.inf
    for record in train_steps(task, timer, num_steps=num_steps, origin=origin):
        begin = min(begin, timer.now())  # the first step may have to compile for minutes
        alone.recorder.step(record._replace(step=first + record.step))
        yield Progress("synthetic data", record.step + 1, record.images / record.step_seconds)
        over = record.step + 1 >= MIN_STEPS and timer.now() - begin >= measure.seconds * SYNTHETIC_SHARE
        if signals.received or (num_steps is None and over):
            break
    alone.synthetic_seconds = timer.now() - origin
    warm_up = max(WARM_UP_STEPS, round(WARM_UP_SHARE * (len(alone.recorder) - first)))
    alone.counted += range(first + warm_up, len(alone.recorder))


def measure_loader(fitted: Fitted, alone: InputBaselines, signals: StopSignals) -> Iterator[Progress]:
    """Take batches as fast as they come, for a share of the run's time or steps."""
    config, measure = fitted.config, fitted.config.measure
    other = config.model_copy(update={"seed": config.seed ^ OTHER_SEED})
    open_training = WORKLOADS[config.workload].open_training
    with closing(open_training(other, alone.opened, fitted.device, SINGLE_RANK, alone.next_step)) as loader:
        num_batches = count_share(measure.iterations, LOADER_SHARE)
        for progress in time_loader(loader, alone.loader, measure.seconds * LOADER_SHARE, num_batches, "loader alone"):
            yield progress
            if signals.received:
                break
        alone.next_step = loader.step


def count_share(iterations: int | None, share: float) -> int | None:
    return None if iterations is None else max(MIN_STEPS, round(iterations * share))


def assess_loader(
    config: Config, loader: Loader, alone: InputBaselines, summary: StepSummary
) -> schema.LoaderResult | None:
    """Return what goes into the result; None where a run was stopped before there was anything."""
    if not alone.loader.images or not alone.counted:
        return None
    batch = config.train.batch_size
    seconds = np.asarray(alone.loader.batch_seconds)
    by_loader = throughput.throughput_within(seconds, np.full(len(seconds), float(batch)))
    columns = alone.recorder.columns()
    synthetic_seconds = columns["step_seconds"][alone.counted]
    synthetic = throughput.throughput_within(synthetic_seconds, columns["images"][alone.counted])
    share = float(np.median(synthetic_seconds)) / summary.step_seconds.median
    return schema.LoaderResult(
        images_per_second=by_loader.images_per_second,
        ci95=by_loader.ci95,
        synthetic_images_per_second=synthetic.images_per_second,
        synthetic_ci95=synthetic.ci95,
        share_of_synthetic=share,
        data_bound=is_data_bound(share, summary.data_share),
        threads=config.loader.threads,
        storage=loader.feed.storage,
        images=len(loader.feed.source),
        digest=digest_samples(loader.feed.source),
        skipped=loader.skipped,
        skipped_images=len(loader.bad_images),
        stage_seconds_per_image={stage.name: stage.seconds_per_image for stage in split_stages(alone.loader)},
    )
