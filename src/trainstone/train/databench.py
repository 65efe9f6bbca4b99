"""How `data bench` flows: open the set, let each number of threads deliver, train a little on synthetic data, judge."""

from collections.abc import Generator
from pathlib import Path

import torch

from trainstone.config.schema import change_section
from trainstone.data.feeding.transform import describe_transform
from trainstone.data.loader import Loader
from trainstone.data.splits import open_split
from trainstone.machine.cpus import available_cores
from trainstone.machine.launched import name_host
from trainstone.measure.clock import choose_timer
from trainstone.measure.devices import list_devices, name_device
from trainstone.measure.feeding import Turns, choose_threads, measure_threads, split_stages, summarise_turns
from trainstone.results.checks import finding
from trainstone.results.feeding import Demand, Feeding
from trainstone.results.progress import Progress
from trainstone.results.schema import Device, Phases, Status
from trainstone.results.verdicts import write_data_verdict
from trainstone.train.fit import fit_to_machine
from trainstone.train.lifecycle import Lifecycle
from trainstone.train.loop import train_steps
from trainstone.train.task import build_task, settle_classes
from trainstone.workloads.registry import WORKLOADS

BATCH_SIZE = 32
"""Where the recipe leaves it to the machine: the size hardly matters here."""
DEMAND_SECONDS = 10.0
WARM_UP_STEPS = 3
MIN_STEPS = 5


def run_data_bench(
    life: Lifecycle, counts: list[int] | None, seconds: float, demand: Demand | None
) -> Generator[Progress, None, Status]:
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
        demand = yield from measure_demand(life, DEMAND_SECONDS)
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
        devices=[Device(host=name_host(), name=feeding.cpu, label="cpu")],
        phases=Phases(program_seconds=life.seconds),
    )
    return "ok"


def measure_demand(life: Lifecycle, seconds: float) -> Generator[Progress, None, Demand]:
    """Train one device for some seconds; others of its kind are taken to be as fast."""
    config = life.config
    changed = change_section(config, "data", source="synthetic")
    changed = change_section(changed, "measure", seconds=seconds, iterations=None)
    yield Progress("fitting the recipe to this machine")
    fitted = fit_to_machine(settle_classes(changed, None), strict=False)
    task, timer = build_task(fitted.config, fitted.device), choose_timer(fitted.device)
    images, spent, begin = 0, 0.0, timer.now()
    for record in train_steps(task, timer):
        if record.step >= WARM_UP_STEPS:
            images, spent = images + record.images, spent + record.step_seconds
        yield Progress("synthetic training", record.step + 1, record.images / record.step_seconds)
        life.check_stop()
        if record.step >= WARM_UP_STEPS + MIN_STEPS and timer.now() - begin >= seconds:
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
