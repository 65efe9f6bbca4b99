"""`trainstone bench`: fit the recipe, measure the peak, run and time training steps, write the result.

Every rank runs this; rank 0 writes the result. Everything is written as it is measured: a run killed at any moment
leaves a readable folder.
"""

import math
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing

from trainstone.config.schema import MeasureConfig
from trainstone.engine.distributed.stop_agreement import StopAgreement
from trainstone.engine.fit import Fitted
from trainstone.engine.loop import train_steps
from trainstone.engine.task import Task, build_task
from trainstone.engine.training_data import IMAGENET_IMAGES
from trainstone.engine.trials import find_cache_file
from trainstone.flows.bench.comm_cost import measure_gradient_sync
from trainstone.flows.bench.input_baselines import (
    FILE_NAME,
    LOADER_SHARE,
    SYNTHETIC_SHARE,
    InputBaselines,
    measure_after,
    measure_before,
)
from trainstone.flows.bench.result import SideMeasurements, conclude
from trainstone.flows.bench.stop_rule import AFTER_SHARE, record_steps
from trainstone.flows.lifecycle import Lifecycle
from trainstone.flows.observation import measure_device, observe, open_recorder, sync_steps
from trainstone.flows.prepare import open_originals, rebuild_gradient_buckets, start_measurement
from trainstone.measure.clock import choose_timer
from trainstone.measure.profiler import profiler_range
from trainstone.measure.recorder import Sink, StepRecorder
from trainstone.results.findings import finding
from trainstone.results.progress import Progress
from trainstone.results.schema.run import Status
from trainstone.stats.throughput import MIN_STEADY_STEPS

TRIAL_TOLERANCE = 1.1
"""If the steps of a run take longer than in its trial by this factor, or less, something has changed."""


def run_bench(life: Lifecycle, *, strict: bool) -> Generator[Progress, None, Status]:
    """Measure training speed; every rank runs this, rank 0 writes the result. Yields progress to show."""
    fitted, opened = yield from start_measurement(life, strict=strict)
    config, run, world = fitted.config, life.run, life.world
    life.check_stop()
    peaks = yield from measure_device(life, fitted)
    life.check_stop()
    with ExitStack() as files:
        baselines = None
        if opened and world.is_single_rank:
            synthetic = StepRecorder(run.path / FILE_NAME, split_phases=config.engine.split_phases)
            baselines = InputBaselines(opened, files.enter_context(synthetic))
            yield from measure_before(fitted, baselines, life.signals)
            life.check_stop()
        with open_recorder(life, fitted) as recorder, observe(life, fitted, recorder.current_step) as observed:
            task = files.enter_context(closing(build_task(config, fitted.device, opened, world=world)))
            rebuild_gradient_buckets(task, config)
            facts = {
                "kind": "bench",
                "global_batch": task.images_per_step * world.rank.world,
                "train_images": task.loader.order.epoch_images if task.loader else IMAGENET_IMAGES,
                "began": time.time() - (time.perf_counter() - observed.clock_start),
                "steps": limit_steps(task, config.measure),
            }
            originals = [files.enter_context(sink) for sink in open_originals(life, fitted, **facts)]
            after = AFTER_SHARE + (SYNTHETIC_SHARE + LOADER_SHARE if baselines else 0.0)
            end = fitted.began + (1 - after) * config.measure.seconds
            yield from measure_steps(task, config.measure, recorder, life, (observed.clock_start, end), originals)
        sync_steps(run, recorder)
        communication = yield from measure_gradient_sync(task, config.parallel, recorder, life)
        if baselines and not life.signals.received:
            yield from measure_after(task, fitted, baselines, life.signals)
        observed.peaks = yield from measure_device(life, fitted, peaks)
        observed.interrupted = life.find_stop()
        conclude(life, fitted, recorder, observed, SideMeasurements(task.loader, baselines, communication))
        for sink in originals:
            sink.finish(run.result.status)
    check_trials(life, fitted)
    run.update()  # which lists files
    return run.result.status


def check_trials(life: Lifecycle, fitted: Fitted) -> None:
    """Remove stored trials that disagree with the speed of this run, so that the next one takes them again."""
    result, trials, config = life.run.result, fitted.trials, fitted.config
    engine, steps, throughput = config.engine, result.step_seconds, result.throughput
    if not (trials and trials.reused and steps and throughput and throughput.num_steps >= MIN_STEADY_STEPS):
        return
    rows = [row for row in trials.batches if row.batch_size == trials.chosen_batch_size]
    different = engine.compile or engine.cuda_graphs or engine.split_phases or config.data.source != "synthetic"
    if not rows or different or not life.world.is_single_rank:
        return
    times = steps.p5 / (rows[0].step_seconds * config.train.accumulate)  # both are steps without a disturbance
    if not 1 / TRIAL_TOLERANCE <= times <= TRIAL_TOLERANCE:
        find_cache_file(config, fitted.device).unlink(missing_ok=True)
        message = f"a step took {times:.2f} times as long as in the trial of {trials.taken_utc[:10]}"
        found = finding("trials-outdated", f"{message}: the next run takes the trials again")
        life.run.update(findings=[*result.findings, found])


def measure_steps(
    task: Task,
    measure: MeasureConfig,
    recorder: StepRecorder,
    life: Lifecycle,
    times: tuple[float, float],
    sinks: Sequence[Sink],
) -> Iterator[Progress]:
    """Train until the confidence interval is narrow enough, time or steps are used up, or a signal arrives.

    The ranks agree on the end and stop after the same step. `times`: when the clock of the step file started, and when
    the time budget of the steps ends.
    """
    timer, agreement = choose_timer(task.device), StopAgreement(life.world, life.signals)
    with profiler_range(measure.profiler_range) as advance:

        def keep_going() -> bool:
            if measure.profiler_range:
                timer.pause()  # starting and stopping an outer profiler is not part of a step
            return not any(agreement.agreed) and advance()

        steps = train_steps(
            task,
            timer,
            num_steps=limit_steps(task, measure),
            origin=times[0],
            keep_going=keep_going,
        )
        yield from record_steps(steps, timer, measure, recorder, agreement, times[1], sinks)


def limit_steps(task: Task, measure: MeasureConfig) -> int | None:
    """Return the largest number of steps that the recipe or its epochs allow; None: only time limits them."""
    limits = [measure.iterations] if measure.iterations is not None else []
    if measure.max_epochs is not None and task.loader:
        images = measure.max_epochs * task.loader.order.epoch_images
        limits.append(math.ceil(images / (task.loader.order.global_batch * task.accumulate)))
    return min(limits, default=None)
