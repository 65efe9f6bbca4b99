"""How a run flows: fit the recipe, measure the peak, run the loop, judge, write. The table of contents.

The same on every rank; the first writes the result. Everything is written as it comes: a run killed at any moment
leaves a folder that can be read.

What the exchange of gradients costs is measured after the steps, with it and without in turn. Without exchange ranks
would part from each other, so the rate is 0 meanwhile: all is computed, nothing is learned.
"""

import math
import statistics
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace

import numpy as np

from trainstone.config.schema import MeasureConfig, ParallelConfig
from trainstone.engine.distributed.collectives import COMPRESSED, World, broadcast_dict, gather
from trainstone.engine.loop import train_steps
from trainstone.engine.task import IMAGENET_PICTURES, Task, build_task
from trainstone.flows.bench.input_baselines import FILE_NAME, Alone, measure_after, measure_before
from trainstone.flows.bench.result import conclude, measure_device, observe, open_recorder, sync_steps
from trainstone.flows.bench.stop_rule import Pact, record_steps
from trainstone.flows.lifecycle import Lifecycle
from trainstone.flows.prepare import open_originals, settle_gradients, start_measurement
from trainstone.measure.clock import choose_timer
from trainstone.measure.profiler import profiler_range
from trainstone.measure.recorder import Sink, StepRecorder
from trainstone.results.progress import Progress
from trainstone.results.schema.run import Communication, Status
from trainstone.stats.ratio import ORDER, judge_exchange

# Steps of a block; the first does not count: it waits for ranks that came later out of a block without exchange.
BLOCK_STEPS = 3
# Of the time of the measured steps, spent here. Fewer rounds of four blocks than two say nothing: where these take
# longer than that and than MOST_SECONDS, it is not measured.
SHARE = 1 / 4
MIN_ROUNDS, MAX_ROUNDS = 2, 12
MOST_SECONDS = 60.0


def run_bench(life: Lifecycle, *, strict: bool) -> Generator[Progress, None, Status]:
    """Measure training speed; every rank runs this, rank 0 writes the result. Yields progress to show."""
    fitted, opened = yield from start_measurement(life, strict=strict)
    config, run, world = fitted.config, life.run, life.world
    life.check_stop()
    peaks = yield from measure_device(life, fitted)
    life.check_stop()
    with ExitStack() as files:
        alone = None
        if opened and world.alone:
            synthetic = StepRecorder(run.path / FILE_NAME, split_phases=config.engine.split_phases)
            alone = Alone(opened, files.enter_context(synthetic))
            yield from measure_before(fitted, alone, life.signals)
            life.check_stop()
        with open_recorder(life, fitted) as recorder, observe(life, fitted, recorder.current_step) as observed:
            task = files.enter_context(closing(build_task(config, fitted.device, opened, world=world)))
            settle_gradients(task, config)
            facts = {
                "kind": "bench",
                "global_batch": task.images_per_step * world.rank.world,
                "train_pictures": task.loader.order.epoch_pictures if task.loader else IMAGENET_PICTURES,
                "began": time.time() - (time.perf_counter() - observed.clock_start),
                "steps": limit_steps(task, config.measure),
            }
            originals = [files.enter_context(sink) for sink in open_originals(life, fitted, **facts)]
            yield from measure_steps(task, config.measure, recorder, life, observed.clock_start, originals)
        sync_steps(run, recorder)
        communication = yield from measure_exchange(task, config.parallel, recorder, life)
        if alone and not life.signals.received:
            yield from measure_after(task, fitted, alone, life.signals)
        observed.peaks = yield from measure_device(life, fitted, peaks)
        observed.interrupted = life.find_stop()
        conclude(life, fitted, recorder, observed, loader=task.loader, alone=alone, communication=communication)
        for sink in originals:
            sink.finish(run.result.status)
    run.update()  # which lists files
    return run.result.status


def measure_steps(
    task: Task,
    measure: MeasureConfig,
    recorder: StepRecorder,
    life: Lifecycle,
    clock_start: float,
    sinks: Sequence[Sink],
) -> Iterator[Progress]:
    """Run the loop until the interval is narrow enough, the time is over, the steps are done or a signal arrives.

    Several ranks agree upon it, and end after the same step.
    """
    timer, pact = choose_timer(task.device), Pact(life.world, life.signals)
    with profiler_range(measure.profiler_range) as pass_to_next_step:
        steps = train_steps(
            task,
            timer,
            num_steps=limit_steps(task, measure),
            origin=clock_start,
            go_on=lambda: not any(pact.agreed) and pass_to_next_step(),
        )
        yield from record_steps(steps, timer, measure, recorder, pact, sinks)


def limit_steps(task: Task, measure: MeasureConfig) -> int | None:
    """Return how many steps there are at most: those asked for, or an end of the pictures; None: until time is over."""
    limits = [measure.iterations] if measure.iterations is not None else []
    if measure.max_epochs is not None and task.loader:
        pictures = measure.max_epochs * task.loader.order.epoch_pictures
        limits.append(math.ceil(pictures / (task.loader.order.global_batch * task.accumulate)))
    return min(limits, default=None)


def measure_exchange(
    task: Task, parallel: ParallelConfig, recorder: StepRecorder, life: Lifecycle
) -> Generator[Progress, None, Communication | None]:
    """Time steps with and without exchange, A B B A; None alone and on other ranks than the first.

    Interrupted, it says only what is exchanged.
    """
    world = life.world
    if world.alone:
        return None
    sent = COMPRESSED[parallel.compression].itemsize if parallel.compression != "none" else None
    learning = [parameter for parameter in task.plain.parameters() if parameter.requires_grad]
    gradient_bytes = sum(parameter.numel() * (sent or parameter.element_size()) for parameter in learning)
    sizes = Communication(gradient_bytes=gradient_bytes, bucket_bytes=parallel.bucket_bytes)
    rounds: list[list[float]] = []
    still, timer = replace(task, rate=lambda _step: 0.0), choose_timer(task.device)
    planned = plan_rounds(recorder, world)
    for number in range(planned):
        seconds = []
        for arm in ORDER:
            if life.find_stop():
                return sizes if world.rank.number == 0 else None
            yield Progress("measuring the exchange of gradients", 1 + 4 * number + len(seconds))
            with nullcontext() if arm == "A" else task.without_exchange():
                steps = list(train_steps(still, timer, num_steps=BLOCK_STEPS, first_step=len(recorder)))
            seconds.append(statistics.median(record.step_seconds for record in steps[1:]))
        rounds.append(seconds)
    timed = gather(world, {"rounds": rounds})
    if timed is not None and not planned:
        return sizes
    return None if timed is None else judge_exchange(sizes, [one["rounds"] for one in timed])


def plan_rounds(recorder: StepRecorder, world: World) -> int:
    """Return how many rounds fit into the time for it, the same on all ranks; 0: not even the fewest."""
    seconds = recorder.column("step_seconds")
    seconds = seconds[1:] if len(seconds) > 1 else seconds  # the first may compile for minutes
    a_round = float(np.median(seconds)) * len(ORDER) * BLOCK_STEPS
    fitting = int(SHARE * float(seconds.sum()) / a_round)
    if fitting < MIN_ROUNDS:
        fitting = MIN_ROUNDS if MIN_ROUNDS * a_round <= MOST_SECONDS else 0
    told = broadcast_dict(world, {"rounds": min(MAX_ROUNDS, fitting)})
    return int(told["rounds"])
