"""How fast a loader is, and what it is compared with.

Of a bench on real pictures: synthetic batches, and the loader without training, each half before and half after the
run itself, so that a machine that grows slower hits all three alike. And how `data bench` flows: open the set, let each
number of threads deliver, train a little on synthetic data, judge.
"""

import itertools
import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from trainstone.config.schema import Config, MeasureConfig, change_section
from trainstone.data.loader import STAGES, Loader
from trainstone.data.pipeline.transform import describe_transform
from trainstone.data.splits import OpenSplit, digest_samples, open_split
from trainstone.engine.fit import Fitted, fit_to_machine
from trainstone.engine.loop import train_steps
from trainstone.engine.task import Task, build_task, feed_device, settle_classes, synthetic_batches
from trainstone.flows.lifecycle import Lifecycle
from trainstone.machine.cpus import Cores, available_cores
from trainstone.machine.launch_protocol import name_host
from trainstone.machine.ranks import ALONE
from trainstone.machine.signals import StopSignals
from trainstone.measure.clock import choose_timer
from trainstone.measure.devices import list_devices, name_device
from trainstone.measure.recorder import StepRecorder
from trainstone.results.findings import finding, is_data_bound
from trainstone.results.progress import Progress
from trainstone.results.schema import run as schema
from trainstone.results.schema.data_bench import Demand, Feeding, Stage, ThreadPoint, rate_per_core
from trainstone.results.step_summary import StepSummary
from trainstone.results.verdicts import write_data_verdict
from trainstone.stats import throughput
from trainstone.units import format_count
from trainstone.workloads.registry import WORKLOADS

# Of the run's own time or steps, spent on each half.
SYNTHETIC_SHARE, LOADER_SHARE = 1 / 6, 1 / 12
MIN_STEPS = 6
# A half begins with memory to be got and kernels to be tuned: at least so many of its steps do not count.
WARM_UP_STEPS, WARM_UP_SHARE = 2, 0.2
FILE_NAME = "steps-synthetic-rank0000.csv"
# The loader alone reads in another order than training will: the first pictures would lie in memory already.
OTHER_SEED = 0x5EED
MIN_BATCHES = 6
"""Of a turn, however long they take."""


@dataclass
class Turns:
    """What a loader delivered with a number of threads, nobody training."""

    threads: int
    batch_seconds: list[float] = field(default_factory=list)
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    stage_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    pictures: int = 0
    read_bytes: int = 0
    skipped: int = 0


# Of data bench, where the recipe leaves the batch to the machine: the size hardly matters there.
BATCH_SIZE = 32
# What the device takes: for so long, and at least so many steps; the first do not count.
DEMAND_SECONDS, MIN_DEMAND_STEPS, DEMAND_WARM_UP_STEPS = 10.0, 5, 3


@dataclass
class Alone:
    """What was measured of the loader and of synthetic batches, each by itself."""

    opened: OpenSplit
    recorder: StepRecorder
    counted: list[int] = field(default_factory=list)
    """Synthetic steps that count."""
    loader: Turns = field(default_factory=lambda: Turns(0))
    next_step: int = 0
    """Where the loader alone goes on: its second half has other pictures."""
    synthetic_seconds: float = 0.0
    """Of the halves so far, for start_seconds of the second."""


def measure_before(fitted: Fitted, alone: Alone, signals: StopSignals) -> Iterator[Progress]:
    """First halves: the loader, then synthetic batches on a model that is thrown away."""
    yield from measure_loader(fitted, alone, signals)
    if signals.received:
        return
    yield from measure_synthetic(build_task(fitted.config, fitted.device), fitted.config.measure, alone, signals)


def measure_after(task: Task, fitted: Fitted, alone: Alone, signals: StopSignals) -> Iterator[Progress]:
    """Second halves, in the opposite order; the task's own loader is at rest."""
    task.close()
    config, device = fitted.config, fitted.device
    batches = WORKLOADS[config.workload].mix(config, synthetic_batches(config, device), ALONE, 0)
    synthetic = replace(task, batches=feed_device(batches, device), loader=None)
    yield from measure_synthetic(synthetic, fitted.config.measure, alone, signals)
    if not signals.received:
        yield from measure_loader(fitted, alone, signals)


def measure_synthetic(task: Task, measure: MeasureConfig, alone: Alone, signals: StopSignals) -> Iterator[Progress]:
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


def measure_loader(fitted: Fitted, alone: Alone, signals: StopSignals) -> Iterator[Progress]:
    """Take batches as fast as they come, for a share of the run's time or steps."""
    config, measure = fitted.config, fitted.config.measure
    other = config.model_copy(update={"seed": config.seed ^ OTHER_SEED})
    open_training = WORKLOADS[config.workload].open_training
    with closing(open_training(other, alone.opened, fitted.device, ALONE, alone.next_step)) as loader:
        num_batches = count_share(measure.iterations, LOADER_SHARE)
        for progress in take_turn(loader, alone.loader, measure.seconds * LOADER_SHARE, num_batches, "loader alone"):
            yield progress
            if signals.received:
                break
        alone.next_step = loader.step


def count_share(iterations: int | None, share: float) -> int | None:
    return None if iterations is None else max(MIN_STEPS, round(iterations * share))


def judge_feeding(config: Config, loader: Loader, alone: Alone, summary: StepSummary) -> schema.Loader | None:
    """Return what goes into the result; None where a run was stopped before there was anything."""
    if not alone.loader.pictures or not alone.counted:
        return None
    batch = config.train.batch_size
    seconds = np.asarray(alone.loader.batch_seconds)
    by_loader = throughput.throughput_within(seconds, np.full(len(seconds), float(batch)))
    columns = alone.recorder.columns()
    synthetic_seconds = columns["step_seconds"][alone.counted]
    synthetic = throughput.throughput_within(synthetic_seconds, columns["images"][alone.counted])
    share = float(np.median(synthetic_seconds)) / summary.step_seconds.median
    return schema.Loader(
        images_per_second=by_loader.images_per_second,
        ci95=by_loader.ci95,
        synthetic_images_per_second=synthetic.images_per_second,
        synthetic_ci95=synthetic.ci95,
        share_of_synthetic=share,
        data_bound=is_data_bound(share, summary.data_share),
        threads=config.loader.threads,
        storage=loader.feed.storage,
        pictures=len(loader.feed.source),
        digest=digest_samples(loader.feed.source),
        skipped=loader.skipped,
        skipped_pictures=len(loader.bad_pictures),
        stage_seconds_per_image={stage.name: stage.seconds_per_image for stage in split_stages(alone.loader)},
    )


def take_turn(
    loader: Loader, turns: Turns, seconds: float, num_batches: int | None = None, phase: str = ""
) -> Iterator[Progress]:
    """Take batches as fast as they come, for a time or a number. Those made before anything waited do not count."""
    for _ in range(loader.num_slots):
        next(loader)
    begin = last = time.perf_counter()
    cpu = time.process_time()
    phase = phase or format_count(turns.threads, "thread")
    for taken in itertools.count(1):
        images = len(next(loader)[0])
        now = time.perf_counter()
        turns.batch_seconds.append(now - last)
        rate, last = images / (now - last), now
        yield Progress(phase, taken, rate)
        over = taken >= MIN_BATCHES and last - begin >= seconds
        if over if num_batches is None else taken >= num_batches:
            break
    turns.wall_seconds += last - begin
    turns.cpu_seconds += time.process_time() - cpu
    stages = loader.stages()
    for name in STAGES:
        turns.stage_seconds[name] += stages.seconds[name]
    turns.pictures += stages.pictures
    turns.read_bytes += stages.read_bytes
    turns.skipped += loader.skipped


def split_stages(turns: Turns) -> list[Stage]:
    total = sum(turns.stage_seconds.values())
    return [
        Stage(name=name, seconds_per_image=spent / turns.pictures, share=spent / total)
        for name, spent in turns.stage_seconds.items()
    ]


def run_data_bench(
    life: Lifecycle, counts: list[int] | None, seconds: float, demand: Demand | None
) -> Generator[Progress, None, schema.Status]:
    """Measure the loader, then the devices it would feed unless `demand` says what they take."""
    yield from life.join()
    config, run = life.config, life.run
    assert config.data.root is not None  # the path that was given
    yield Progress("opening the data set")
    opened = open_split(Path(config.data.root), "train")
    cores = available_cores()
    batch = config.train.batch_size if isinstance(config.train.batch_size, int) else BATCH_SIZE

    def open_with(threads: int, first_step: int) -> Loader:
        how = change_section(config, "loader", threads=threads)
        return Loader(opened.source, how, batch, first_step=first_step, holds=WORKLOADS[config.workload].holds)

    done: list[Turns] = []
    for progress in measure_threads(open_with, counts or choose_threads(cores), seconds, done):
        yield progress
        life.check_stop()
    if demand is None:
        demand = yield from measure_demand(life)
    skipped = sum(turns.skipped for turns in done)
    feeding = Feeding(
        path=config.data.root,
        storage=opened.dataset.storage,
        split=opened.name,
        pictures=len(opened.source),
        picture_bytes=sum(turns.read_bytes for turns in done) / sum(turns.pictures for turns in done),
        image_size=config.data.image_size,
        batch_size=batch,
        transform=describe_transform(config.augment),
        decode=config.loader.decode,
        cpu=name_device(torch.device("cpu")),
        cores=cores.threads,
        points=[summarise_turns(turns, batch, cores.threads) for turns in done],
        stages=split_stages(done[0]),
        skipped=skipped,
        demand=demand,
    )
    run.update(
        status="ok",
        data_bench=feeding,
        verdict=write_data_verdict(feeding, WORKLOADS[config.workload].title(config)),
        findings=[finding("pictures-skipped", f"{skipped} damaged pictures were left out")] if skipped else [],
        devices=[schema.Device(host=name_host(), name=feeding.cpu, label="cpu")],
        phases=schema.Phases(program_seconds=life.seconds),
    )
    return "ok"


def measure_demand(life: Lifecycle) -> Generator[Progress, None, Demand]:
    """Train one device for some seconds; others of its kind are taken to be as fast."""
    config = life.config
    changed = change_section(config, "data", source="synthetic")
    changed = change_section(changed, "measure", seconds=DEMAND_SECONDS, iterations=None)
    yield Progress("fitting the recipe to this machine")
    fitted = fit_to_machine(settle_classes(changed, None), strict=False)
    task, timer = build_task(fitted.config, fitted.device), choose_timer(fitted.device)
    images, spent, begin = 0, 0.0, timer.now()
    for record in train_steps(task, timer):
        if record.step >= DEMAND_WARM_UP_STEPS:
            images, spent = images + record.images, spent + record.step_seconds
        yield Progress("synthetic training", record.step + 1, record.images / record.step_seconds)
        life.check_stop()
        if record.step >= DEMAND_WARM_UP_STEPS + MIN_DEMAND_STEPS and timer.now() - begin >= DEMAND_SECONDS:
            break
    train = fitted.config.train
    kind = fitted.device.type
    devices = sum(name.partition(":")[0] == kind for name in list_devices())
    return Demand(
        device=name_device(fitted.device),
        devices=devices,
        images_per_second=images / spent * devices,
        how=f"{config.name}, {train.precision}, batch {train.batch_size}, synthetic data, measured here"
        + (f" on one of {devices}" if devices > 1 else ""),
    )


def choose_threads(cores: Cores) -> list[int]:
    """Return 1, 2, 4 ... up to the cores, these, and all hardware threads."""
    most = max(cores.logical, cores.threads)
    powers = [2**power for power in range(most.bit_length())]
    return sorted({count for count in (*powers, cores.threads, most) if count <= most})


def measure_threads(
    open_loader: Callable[[int, int], Loader], counts: Sequence[int], seconds: float, done: list[Turns]
) -> Iterator[Progress]:
    """Let each number of threads deliver, twice, for a share of the time; fills `done`.

    `open_loader` makes a loader of so many threads that begins at a step: every turn has other pictures. Numbers
    take turns, up and down again, so that a machine that grows slower hits all alike.
    """
    turns = {count: Turns(count) for count in counts}
    done += turns.values()
    step = 0
    for count in (*counts, *reversed(counts)):
        with open_loader(count, step) as loader:
            yield from take_turn(loader, turns[count], seconds / (2 * len(counts)))
            step = loader.step


def summarise_turns(turns: Turns, batch_size: int, cores: int) -> ThreadPoint:
    seconds = np.asarray(turns.batch_seconds)
    rate = throughput.throughput_within(seconds, np.full(len(seconds), float(batch_size)))
    busy = turns.cpu_seconds / turns.wall_seconds if turns.cpu_seconds else None
    return ThreadPoint(
        threads=turns.threads,
        images_per_second=rate.images_per_second,
        ci95=rate.ci95,
        ci_covers=rate.ci_covers,
        cpu_cores=busy,
        images_per_second_per_core=rate_per_core(rate.images_per_second, turns.threads, busy, cores),
    )
