"""Fits a recipe to this machine: device, threads, precision, batch. What had to be adapted becomes a finding,
or an error with --strict. After it no "auto" is left in the configuration.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from trainstone.config.schema import Config
from trainstone.errors import ConfigError, MachineError, OutOfMemoryError
from trainstone.machine.allocator import keeps_memory
from trainstone.machine.cpus import available_cores, memory_available_bytes
from trainstone.machine.ranks import ALONE, Rank, count_sharing_ranks
from trainstone.measure.clock import choose_timer
from trainstone.measure.devices import (
    candidate_precisions,
    choose_device,
    free_device_bytes,
    is_out_of_memory,
    list_devices,
)
from trainstone.measure.flops import GLIBC_HEAP_BLOCK_BYTES, Work, count_work, estimate_training_bytes
from trainstone.results.checks import finding
from trainstone.results.schema import Finding
from trainstone.train.distributed import place_device
from trainstone.train.loop import train_steps
from trainstone.train.optim import is_torchs
from trainstone.train.precision import autocast
from trainstone.train.task import apply_process_settings, build_task
from trainstone.train.trial import Trial, fastest, try_precisions
from trainstone.units import format_bytes
from trainstone.workloads.registry import WORKLOADS

# Steps wanted within the time budget: 50 steady ones for an interval, and some warm-up.
WANTED_STEPS = 65
MAX_CPU_BATCH = 64
CPU_LEARNING_BATCH = 32
FIRST_ACCELERATOR_BATCH = 256
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Fitted:
    """A configuration that this machine can run as it stands."""

    config: Config
    device: torch.device
    work: Work
    """Of one step at the fitted batch."""
    findings: tuple[Finding, ...]


def fit_to_machine(config: Config, *, strict: bool, world: Rank = ALONE, measured: bool = True) -> Fitted:
    """Resolve every auto and adapt what this machine cannot do.

    `measured`: an automatic batch is small enough for many steps in the time budget; else it is one to learn with.
    """
    config, device, findings = fit_engine(config, strict=strict, world=world, measured=measured)
    config, fitted = fit_batch(config, device, measured=measured)
    assert isinstance(config.train.batch_size, int)  # fit_batch resolved it
    work = count_step_work(config, config.train.batch_size)
    return Fitted(config, device, work, (*findings, *fitted))


def fit_engine(
    config: Config, *, strict: bool = False, world: Rank = ALONE, measured: bool = True
) -> tuple[Config, torch.device, list[Finding]]:
    """Resolve device, threads and precision, and adapt what this machine cannot do; batches are left as they are."""
    device = choose_rank_device(config.device, world)
    if device.type != "cpu":
        torch.accelerator.set_device_index(device)  # events, graphs and streams are made on the current device
    cores = max(1, available_cores().threads // count_sharing_ranks())
    threads = cores if config.engine.threads == "auto" else config.engine.threads
    # Of many ranks each has its own: the number is left to the next start.
    named = str(device) if world.world == 1 else device.type
    config = _change(config, "engine", threads=threads).model_copy(update={"device": named})
    if config.loader.threads == "auto":
        config = _change(config, "loader", threads=cores)
    config, adapted = adapt_engine(config, device, world, measured=measured)
    if strict and adapted:
        raise ConfigError(f"--strict: {adapted[0].message}", hint=adapted[0].hint)
    config, chosen = fit_precision(config, device, threads)
    apply_process_settings(config)
    return config, device, [*adapted, *chosen]


def choose_rank_device(asked: str, world: Rank) -> torch.device:
    """Return the device of this rank: of many on a host, each has the CUDA device of its number there."""
    if world.world > 1 and asked in ("auto", "cuda") and list_devices()[0].startswith("cuda"):
        return place_device(torch.device("cuda"), world)
    return choose_device(asked)


def refuse_contradictions(config: Config) -> None:
    """Refuse wishes that exclude each other."""
    engine, train = config.engine, config.train
    apart = [
        (engine.cuda_graphs and engine.split_phases, "engine.split_phases", "a replayed graph has no phases"),
        (engine.cuda_graphs and train.accumulate > 1, "train.accumulate", "a graph holds one batch"),
        (engine.cuda_graphs and not is_torchs(config.optimizer), "this optimizer", "its rates are the host's"),
    ]
    for both, key, why in apart:
        if both:
            raise ConfigError(f"engine.cuda_graphs and {key} exclude each other: {why}")
    if engine.split_phases and train.accumulate > 1:
        raise ConfigError("engine.split_phases and train.accumulate exclude each other: the phases alternate")


def adapt_engine(
    config: Config, device: torch.device, world: Rank = ALONE, *, measured: bool = True
) -> tuple[Config, list[Finding]]:
    """Switch off what this device has not, or learning cannot have, and say so."""
    refuse_contradictions(config)
    findings = []
    if config.engine.cuda_graphs and not measured:
        config = _change(config, "engine", cuda_graphs=False)
        captured = "engine.cuda_graphs is for measuring (a capture moves the weights): switched off"
        findings.append(finding("engine-adapted", captured))
    for key in ("cuda_graphs", "nvtx"):
        if getattr(config.engine, key) and device.type != "cuda":
            config = _change(config, "engine", **{key: False})
            findings.append(
                finding("engine-adapted", f"engine.{key} needs CUDA; this run is on {device.type}: switched off")
            )
    if config.measure.profiler_range is not None and device.type != "cuda":
        config = _change(config, "measure", profiler_range=None)
        needed = f"measure.profiler_range needs CUDA; this run is on {device.type}: switched off"
        findings.append(finding("engine-adapted", needed))
    if config.train.precision == "tf32" and not (device.type == "cuda" and torch.cuda.is_tf32_supported()):
        config = _change(config, "train", precision="fp32")
        findings.append(finding("engine-adapted", "tf32 needs an NVIDIA device of 2020 or later: took fp32"))
    if config.nodes * config.devices_per_node not in (1, world.world):
        geometry = f"{config.nodes} x {config.devices_per_node} devices"
        used = "one" if world.world == 1 else str(world.world)
        findings.append(finding("engine-adapted", f"system {config.system} has {geometry}; this run uses {used}"))
        config = config.model_copy(update={"nodes": 1, "devices_per_node": world.world})
    return config, findings


def fit_precision(config: Config, device: torch.device, threads: int) -> tuple[Config, list[Finding]]:
    """auto: the fastest by trial. A precision asked for is tried too: it may crash here, or crawl."""
    asked = config.train.precision
    if asked == "fp32":
        return config, []
    candidates = candidate_precisions(device) if asked == "auto" else ["fp32", asked]
    if candidates == ["fp32"]:
        message = "took fp32: this CPU has no 16-bit arithmetic (neither avx512_bf16 nor AMX)"
        return _change(config, "train", precision="fp32"), [finding("precision-chosen", message)]
    trials = try_precisions(str(device), candidates, threads)
    if asked == "auto":
        precision = fastest(trials)
        message = f"took {precision}: {_tell_trials(trials, precision)}"
        return _change(config, "train", precision=precision), [finding("precision-chosen", message)]
    base, trial = trials
    if trial.seconds is None:
        raise MachineError(f"{asked} does not run on this device: {trial.failure}", hint="--set train.precision=auto")
    if base.seconds is not None and trial.seconds > base.seconds:
        slower = trial.seconds / base.seconds
        return config, [finding("precision-slow", f"{asked} takes {slower:.1f} times as long as fp32 on this device")]
    return config, []


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
    if asked != "auto":
        check_memory(config, device, asked)
        return config, []
    if device.type == "cpu" and not measured:
        batch = CPU_LEARNING_BATCH
    elif device.type == "cpu":
        assert isinstance(config.engine.threads, int)
        batch = min(MAX_CPU_BATCH, max(2, 2 ** math.floor(math.log2(config.engine.threads))))
    else:
        batch = FIRST_ACCELERATOR_BATCH
    first = batch
    while not (_fits_memory(config, device, batch) and (not measured or _fits_time(config, device, batch))):
        if batch == smallest:
            check_memory(config, device, batch)  # it may only be slow: then one image a step is what there is
            break
        batch //= 2
    config = _change(config, "train", batch_size=batch)
    if batch == first:
        return config, []
    message = f"took {batch} images a step instead of {first}, so that the run fits into memory and time"
    return config, [finding("batch-fitted", message)]


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
        plain = _change(config, "engine", compile=False, cuda_graphs=False)
        task = build_task(_change(plain, "train", batch_size=batch), device)
        records = list(train_steps(task, choose_timer(device), num_steps=3))
    except RuntimeError as err:
        if is_out_of_memory(err):
            return False
        raise
    if config.measure.iterations is not None:
        return True
    return min(record.step_seconds for record in records) * WANTED_STEPS <= config.measure.seconds


def free_bytes(device: torch.device) -> int | None:
    """Memory that a run on this device can still have; None: not known."""
    return memory_available_bytes() if device.type == "cpu" else free_device_bytes(device)


def _tell_trials(trials: list[Trial], chosen: str) -> str:
    base = next(trial.seconds for trial in trials if trial.precision == chosen)
    told = []
    for trial in trials:
        if trial.precision == chosen:
            continue
        if trial.seconds is None:
            told.append(f"{trial.precision} fails here ({trial.failure})")
        elif base:
            told.append(f"{trial.precision} takes {trial.seconds / base:.2f} times as long")
    return ", ".join(told) + " (short trial)"


def _change(config: Config, section: str, **changes: Any) -> Config:
    return config.model_copy(update={section: getattr(config, section).model_copy(update=changes)})
