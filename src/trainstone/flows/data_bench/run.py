"""`trainstone data bench`: time the data loader with each number of threads, then training on synthetic data.

The second speed is the images/s that the device needs from the loader.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from trainstone.config.schema import change_section
from trainstone.data.loader import Loader, LoaderOptions
from trainstone.data.pipeline.transform import describe_transform
from trainstone.data.splits import open_split
from trainstone.engine.fit import fit_to_machine
from trainstone.engine.loop import train_steps
from trainstone.engine.task import build_task
from trainstone.engine.training_data import resolve_num_classes
from trainstone.flows.lifecycle import Lifecycle
from trainstone.flows.loader_timing import LoaderTiming, split_stages, time_loader
from trainstone.machine.cpus import Cores, available_cores
from trainstone.machine.launch_protocol import get_host_name
from trainstone.measure.clock import choose_timer
from trainstone.measure.devices import list_devices, name_device
from trainstone.results.findings import finding
from trainstone.results.loader_speed import rate_per_core
from trainstone.results.progress import Progress
from trainstone.results.schema import run as schema
from trainstone.results.schema.data_bench import DataBenchResult, Demand, ThreadPoint
from trainstone.results.verdicts import format_data_verdict
from trainstone.stats import throughput
from trainstone.workloads.registry import WORKLOADS

# Used if train.batch_size is auto; loader speed hardly depends on it.
BATCH_SIZE = 32
# Training on synthetic data: least time and least number of steps; warm-up steps do not count.
DEMAND_SECONDS, MIN_DEMAND_STEPS, DEMAND_WARM_UP_STEPS = 10.0, 5, 3


def run_data_bench(
    life: Lifecycle, counts: list[int] | None, seconds: float, demand: Demand | None
) -> Generator[Progress, None, schema.Status]:
    """Measure the loader, then the images/s that the devices need, unless `demand` is given."""
    yield from life.join()
    config, run = life.config, life.run
    assert config.data.root is not None  # the path that was given
    yield Progress("opening the data set")
    opened = open_split(Path(config.data.root), "train")
    cores = available_cores()
    batch = config.train.batch_size if isinstance(config.train.batch_size, int) else BATCH_SIZE

    def open_with(threads: int, first_step: int) -> Loader:
        how = change_section(config, "loader", threads=threads)
        target_kind = WORKLOADS[config.workload].target_kind
        return Loader(opened.source, how, LoaderOptions(batch, first_step=first_step, target_kind=target_kind))

    done: list[LoaderTiming] = []
    for progress in measure_threads(open_with, counts or choose_threads(cores), seconds, done):
        yield progress
        life.check_stop()
    if demand is None:
        demand = yield from measure_demand(life)
    skipped = sum(turns.skipped for turns in done)
    data_bench = DataBenchResult(
        path=config.data.root,
        storage=opened.dataset.storage,
        split=opened.name,
        images=len(opened.source),
        image_bytes=sum(turns.read_bytes for turns in done) / sum(turns.images for turns in done),
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
        data_bench=data_bench,
        verdict=format_data_verdict(data_bench, WORKLOADS[config.workload].title(config)),
        findings=[finding("images-skipped", f"damaged images skipped: {skipped}")] if skipped else [],
        devices=[schema.Device(host=get_host_name(), name=data_bench.cpu, label="cpu")],
        phases=schema.Phases(program_seconds=life.seconds),
    )
    return "ok"


def measure_demand(life: Lifecycle) -> Generator[Progress, None, Demand]:
    """Train on one device for some seconds; other devices of its kind are assumed to be as fast."""
    config = life.config
    changed = change_section(config, "data", source="synthetic")
    changed = change_section(changed, "measure", iterations=None)
    yield Progress("fitting the recipe to this machine")
    fitted = yield from fit_to_machine(resolve_num_classes(changed, None), strict=False)
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
    """Return the powers of two up to all hardware threads, the usable cores and all hardware threads."""
    most = max(cores.logical, cores.threads)
    powers = [2**power for power in range(most.bit_length())]
    return sorted({count for count in (*powers, cores.threads, most) if count <= most})


def measure_threads(
    open_loader: Callable[[int, int], Loader], counts: Sequence[int], seconds: float, done: list[LoaderTiming]
) -> Iterator[Progress]:
    """Time the loader twice with each number of threads; fills `done`.

    `open_loader(threads, first_step)` opens a loader, with other images each time. The numbers are measured up and then
    down again, so that a machine that slows down affects all alike.
    """
    turns = {count: LoaderTiming(count) for count in counts}
    done += turns.values()
    step = 0
    for count in (*counts, *reversed(counts)):
        with open_loader(count, step) as loader:
            yield from time_loader(loader, turns[count], seconds / (2 * len(counts)))
            step = loader.step


def summarise_turns(turns: LoaderTiming, batch_size: int, cores: int) -> ThreadPoint:
    seconds = np.asarray(turns.batch_seconds)
    rate = throughput.estimate_within_run(seconds, np.full(len(seconds), float(batch_size)))
    busy = turns.cpu_seconds / turns.wall_seconds if turns.cpu_seconds else None
    return ThreadPoint(
        threads=turns.threads,
        images_per_second=rate.images_per_second,
        ci95=rate.ci95,
        ci_covers=rate.ci_covers,
        cpu_cores=busy,
        images_per_second_per_core=rate_per_core(rate.images_per_second, turns.threads, busy, cores),
    )
