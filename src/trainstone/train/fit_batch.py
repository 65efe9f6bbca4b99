"""How many images a step this device gets: those of the recipe, or as many as fit into memory and time."""

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from trainstone.config.schema import Config, change_section
from trainstone.errors import ConfigError, OutOfMemoryError
from trainstone.machine.allocator import keeps_memory
from trainstone.machine.cpus import memory_available_bytes
from trainstone.measure.clock import choose_timer
from trainstone.measure.devices import free_device_bytes, is_out_of_memory
from trainstone.measure.flops import GLIBC_HEAP_BLOCK_BYTES, Work, count_work, estimate_training_bytes
from trainstone.results.checks import finding
from trainstone.results.schema import Finding
from trainstone.train.loop import train_steps
from trainstone.train.precision import autocast
from trainstone.train.task import build_task
from trainstone.units import format_bytes, format_count
from trainstone.workloads.registry import WORKLOADS

# Steps wanted within the time budget: 50 steady ones for an interval, and some warm-up.
WANTED_STEPS = 65
MAX_CPU_BATCH = 64
CPU_LEARNING_BATCH = 32
FIRST_ACCELERATOR_BATCH = 256
CPU = torch.device("cpu")


@lru_cache(maxsize=8)
def count_step_work(config: Config, batch_size: int) -> Work:
    """Count FLOPs and bytes of one step, forward and backward, at the run's precision; nothing is computed."""
    workload = WORKLOADS[config.workload]
    with FakeTensorMode():  # tensors without content; unlike those of the meta device they know autocast
        model = workload.build_model(config)
        loss, batch = workload.build_loss(config, CPU), workload.empty_batch(config, batch_size)

        def forward() -> Tensor:
            with autocast(CPU, config.train.precision):
                return loss(model, batch)

        return count_work(forward)


def fit_batch(config: Config, device: torch.device, *, measured: bool = True) -> tuple[Config, list[Finding]]:
    """Check the asked batch against memory, or choose one that fits into memory (and, to be measured, time)."""
    asked = config.train.batch_size
    smallest = 2 if config.data.image_size <= 32 else 1  # batch norm wants two values a channel
    if asked != "auto" and asked < smallest:
        raise ConfigError(
            f"train.batch_size = {asked} with data.image_size = 32 leaves batch norm a single value a channel",
            hint="--set train.batch_size=2",
        )
    if asked != "auto" and "batch_size" not in config.train.adapt:
        check_memory(config, device, asked)
        return config, []
    first = batch = choose_first(config, device, measured=measured) if asked == "auto" else asked
    if asked != "auto" and measured and device.type == "cpu":
        batch = foresee_batch(config, device, asked, smallest)
    while not (_fits_memory(config, device, batch) and (not measured or _fits_time(config, device, batch))):
        if batch <= smallest:
            check_memory(config, device, batch)  # it may only be slow: then one image a step is what there is
            break
        batch = max(smallest, batch // 2)
    config = change_section(config, "train", batch_size=batch)
    if batch == first:
        return config, []
    fits = "memory and time" if measured else "memory"
    taken = f"took {format_count(batch, 'image')} a step and device instead of {first}"
    message = f"{taken}, so that the run fits into {fits}"
    return config, [finding("batch-fitted", message)]


def choose_first(config: Config, device: torch.device, *, measured: bool) -> int:
    """Return the batch that auto begins with."""
    if device.type != "cpu":
        return FIRST_ACCELERATOR_BATCH
    if not measured:
        return CPU_LEARNING_BATCH
    assert isinstance(config.engine.threads, int)
    return min(MAX_CPU_BATCH, max(2, 2 ** math.floor(math.log2(config.engine.threads))))


def foresee_batch(config: Config, device: torch.device, asked: int, smallest: int) -> int:
    """Halve a recipe's batch by what a small one tells: on a CPU a trial of 256 images takes minutes."""
    small = min(asked, max(smallest, choose_first(config, device, measured=True)))
    if small == asked or not _fits_memory(config, device, small):
        return small
    seconds = _try_steps(config, device, small)
    batch = asked
    while batch > small and not (
        _fits_memory(config, device, batch) and seconds * batch / small * WANTED_STEPS <= config.measure.seconds
    ):
        batch = max(smallest, batch // 2)
    return batch


def check_memory(config: Config, device: torch.device, batch: int) -> None:
    """Refuse a batch that does not fit, before the kernel kills us for it."""
    free, needed = free_bytes(device), needed_bytes(config, device, batch)
    if free is not None and needed > free:
        memory = f"needs about {format_bytes(needed)}, {format_bytes(free)} are free"
        largest = max(1, int(batch * free / needed))
        raise OutOfMemoryError(
            f"out of memory: train.batch_size = {batch} {memory}",
            hint=f"--set train.batch_size={2 ** math.floor(math.log2(largest))}",
        )


def needed_bytes(config: Config, device: torch.device, batch: int) -> int:
    """Estimate the memory of training at this batch."""
    in_heap = math.inf if keeps_memory() else GLIBC_HEAP_BLOCK_BYTES
    return estimate_training_bytes(
        count_step_work(config, batch), 1.0, heap_block_bytes=in_heap if device.type == "cpu" else 0.0
    )


def _fits_memory(config: Config, device: torch.device, batch: int) -> bool:
    free = free_bytes(device)
    return free is None or needed_bytes(config, device, batch) <= free


def _fits_time(config: Config, device: torch.device, batch: int) -> bool:
    """Try some steps on a throw-away model: memory is enough and WANTED_STEPS would fit into the budget."""
    try:
        seconds = _try_steps(config, device, batch)
    except RuntimeError as err:
        if is_out_of_memory(err):
            return False
        raise
    # So many steps as asked for, whatever their time; a batch that may be adapted is meant to be quick all the same.
    if config.measure.iterations is not None and not config.train.adapt:
        return True
    return seconds * WANTED_STEPS <= config.measure.seconds


def _try_steps(config: Config, device: torch.device, batch: int) -> float:
    """Return the time of a step on a throw-away model, the best of three."""
    plain = change_section(config, "engine", compile=False, cuda_graphs=False)
    task = build_task(change_section(plain, "train", batch_size=batch), device)
    return min(record.step_seconds for record in train_steps(task, choose_timer(device), num_steps=3))


def free_bytes(device: torch.device) -> int | None:
    """Memory that a run on this device can still have; None: not known."""
    return memory_available_bytes() if device.type == "cpu" else free_device_bytes(device)
