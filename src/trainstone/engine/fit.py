"""Fit a recipe to this machine: choose device, threads, precision and batch size.

Each adaptation becomes a finding, or an error with --strict. The fitted configuration has no "auto".
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from trainstone.config.schema import Config, change_section
from trainstone.engine.distributed.data_parallel import place_device
from trainstone.engine.loop import train_steps
from trainstone.engine.lr_schedule import describe_rate_change
from trainstone.engine.network import apply_process_settings
from trainstone.engine.optim import uses_torch_sgd
from trainstone.engine.precision_trial import Trial, choose_fastest, try_precisions
from trainstone.engine.task import build_task
from trainstone.errors import ConfigError, MachineError, OutOfMemoryError
from trainstone.machine.allocator import keeps_memory
from trainstone.machine.cpus import available_cores
from trainstone.machine.ranks import SINGLE_RANK, Rank, bind_cores, count_sharing_ranks
from trainstone.measure import devices
from trainstone.measure.clock import choose_timer
from trainstone.measure.flops import GLIBC_HEAP_BLOCK_BYTES, StepWork, count_work, estimate_training_bytes
from trainstone.results.findings import finding
from trainstone.results.schema.run import Finding
from trainstone.units import format_bytes, format_count
from trainstone.workloads.registry import WORKLOADS

REFUSED = ("engine-adapted", "batch-fitted", "rate-derived")
"""Finding codes that --strict turns into errors."""
# Steps that should fit into the time budget: 50 steady ones for an interval, and some warm-up.
WANTED_STEPS = 65
MAX_CPU_BATCH = 64
CPU_TRAINING_BATCH = 32
FIRST_ACCELERATOR_BATCH = 256
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Fitted:
    config: Config
    device: torch.device
    work: StepWork
    """FLOPs and bytes of one step at the fitted batch size."""
    findings: tuple[Finding, ...]


def fit_to_machine(config: Config, *, strict: bool, world: Rank = SINGLE_RANK, measured: bool = True) -> Fitted:
    """Resolve every auto and adapt what this machine cannot do.

    `measured`: choose an automatic batch small enough for many steps in the time budget, else one suited to training.
    """
    requested, notes = config, [finding("recipe-note", note) for note in config.notes]
    config, device, findings = fit_engine(config, strict=strict, world=world, measured=measured)
    config, fitted = fit_batch(config, device, measured=measured)
    if requested.train.batch_size != "auto":
        parts, geometry = requested.train.accumulate, requested.nodes * requested.devices_per_node
        # A recipe without a system is for any number of ranks.
        intended = (geometry if requested.system or geometry > 1 else world.world) * parts
        message = describe_rate_change(
            requested.optimizer,
            intended=(intended * requested.train.batch_size, intended),
            now=(world.world * parts * config.train.batch_size, world.world * parts),
            where=describe_source(requested),
        )
        fitted += [finding("rate-derived", message)] if message and not measured else []
        raise_if_strict(fitted, strict=strict)
    work = count_step_work(config, config.train.batch_size)
    # The written configuration must repeat this run exactly: no further adaptation.
    config = change_section(config, "train", adapt=())
    return Fitted(config, device, work, (*notes, *findings, *fitted))


def describe_source(config: Config) -> str:
    return f"system {config.system}" if config.system else f"recipe {config.name}"


def raise_if_strict(findings: list[Finding], *, strict: bool) -> None:
    """Raise ConfigError if `strict` and a finding reports an adaptation."""
    adapted = [found for found in findings if found.code in REFUSED]
    if strict and adapted:
        raise ConfigError(f"--strict: {adapted[0].message}", hint=adapted[0].hint)


def fit_engine(
    config: Config, *, strict: bool = False, world: Rank = SINGLE_RANK, measured: bool = True
) -> tuple[Config, torch.device, list[Finding]]:
    """Resolve device, threads and precision, and adapt what this machine cannot do; keep the batch size."""
    device = choose_rank_device(config.device, world)
    if device.type != "cpu":
        torch.accelerator.set_device_index(device)  # events, graphs and streams are created on the current device
    cores = max(1, available_cores().threads // count_sharing_ranks())
    threads = cores if config.engine.threads == "auto" else config.engine.threads
    # Several ranks have a device each: the configuration names only the type.
    named = str(device) if world.world == 1 else device.type
    config = change_section(config, "engine", threads=threads).model_copy(update={"device": named})
    if config.loader.threads == "auto":
        config = change_section(config, "loader", threads=cores)
    config, adapted = adapt_engine(config, device, world, measured=measured)
    raise_if_strict(adapted, strict=strict)
    config, chosen = fit_precision(config, device, threads)
    raise_if_strict(chosen, strict=strict)
    apply_process_settings(config)
    return config, device, [*adapted, *chosen]


def choose_rank_device(requested: str, world: Rank) -> torch.device:
    """Return the device of this rank: with several ranks, the accelerator of its local rank."""
    kind = devices.list_devices()[0].partition(":")[0]
    if world.world > 1 and kind != "cpu" and requested in ("auto", kind):
        device = place_device(torch.device(kind), world)
        if kind == "cuda":
            bind_cores(world, devices.list_pci_ids())
        return device
    device = devices.choose_device(requested)
    if device.type == "cpu":
        bind_cores(world)
    return device


def adapt_engine(config: Config, device: torch.device, world: Rank, *, measured: bool) -> tuple[Config, list[Finding]]:
    """Switch off features that this device or this kind of run does not support; return findings about it."""
    graphs, split, parts = config.engine.cuda_graphs, config.engine.split_phases, config.train.accumulate > 1
    for both, one, other, why in (
        (graphs and split, "cuda_graphs", "engine.split_phases", "a replayed graph has no phases"),
        (graphs and parts, "cuda_graphs", "train.accumulate", "a graph holds one batch"),
        (graphs and not uses_torch_sgd(config.optimizer), "cuda_graphs", "this optimizer", "its rate is on the host"),
        (split and parts, "split_phases", "train.accumulate", "the phases of several batches alternate"),
    ):
        if both:
            raise ConfigError(f"engine.{one} cannot be combined with {other}: {why}", hint=f"--set engine.{one}=false")
    findings, on_cuda = [], device.type == "cuda"
    needed = f"needs CUDA; this run is on {device.type}: switched off"
    for section, key, off, applies, why in (
        ("engine", "cuda_graphs", False, not measured, "is for bench only (capture changes the weights): switched off"),
        ("engine", "cuda_graphs", False, world.world > 1, f"needs a single rank, not {world.world}: switched off"),
        ("engine", "cuda_graphs", False, not on_cuda, needed),
        ("engine", "nvtx", False, not on_cuda, needed),
        ("measure", "profiler_range", None, not on_cuda, needed),
    ):
        if applies and getattr(getattr(config, section), key) not in (False, None):
            config = change_section(config, section, **{key: off})
            findings.append(finding("engine-adapted", f"{section}.{key} {why}"))
    if config.train.precision == "tf32" and not (on_cuda and torch.cuda.is_tf32_supported()):
        config = change_section(config, "train", precision="fp32")
        findings.append(finding("engine-adapted", "tf32 needs an NVIDIA GPU of 2020 or later: using fp32"))
    if config.nodes * config.devices_per_node not in (1, world.world):
        geometry = f"{config.nodes} x {config.devices_per_node} devices"
        used = "one" if world.world == 1 else str(world.world)
        findings.append(finding("engine-adapted", f"{describe_source(config)} has {geometry}; this run uses {used}"))
        config = config.model_copy(update={"nodes": 1, "devices_per_node": world.world})
    return config, findings


@lru_cache(maxsize=8)
def count_step_work(config: Config, batch_size: int, *, backward: bool = True) -> StepWork:
    """Count FLOPs and bytes of one step, or of a forward pass only, at the run's precision, with fake tensors."""
    workload = WORKLOADS[config.workload]
    with FakeTensorMode():  # unlike tensors on the meta device, fake tensors support autocast
        model, batch = workload.build_model(config).train(backward), workload.empty_batch(config, batch_size)
        loss, score = workload.build_loss(config, CPU), workload.build_forward(config, CPU)

        def forward() -> Tensor:
            with devices.autocast(CPU, config.train.precision):
                return loss(model, batch) if backward else score(model, batch[0])

        return count_work(forward, backward=backward)


def fit_batch(config: Config, device: torch.device, *, measured: bool = True) -> tuple[Config, list[Finding]]:
    """Check the requested batch against memory, or choose one that fits into memory (and, if `measured`, time)."""
    requested = config.train.batch_size
    smallest = 2 if config.data.image_size <= 32 else 1  # batch norm needs two values per channel
    if requested != "auto" and requested < smallest:
        raise ConfigError(
            f"invalid train.batch_size = {requested} with data.image_size = 32: batch norm needs 2 values per channel",
            hint="--set train.batch_size=2",
        )
    if requested != "auto" and "batch_size" not in config.train.adapt:
        check_memory(config, device, requested)
        return config, []
    first = batch = choose_first_batch(config, device, measured=measured) if requested == "auto" else requested
    if requested != "auto" and measured and device.type == "cpu":
        batch = estimate_batch(config, device, requested, smallest)
    while not (_fits_memory(config, device, batch) and (not measured or _fits_time(config, device, batch))):
        if batch <= smallest:
            check_memory(config, device, batch)  # raises unless it is only too slow: then use the smallest batch
            break
        batch = max(smallest, batch // 2)
    config = change_section(config, "train", batch_size=batch)
    if batch == first:
        return config, []
    fits = "memory and time" if measured else "memory"
    chosen = f"using {format_count(batch, 'image')} per step and device instead of {first}"
    return config, [finding("batch-fitted", f"{chosen}, to fit into {fits}")]


def choose_first_batch(config: Config, device: torch.device, *, measured: bool) -> int:
    """Return the first batch size that auto tries."""
    if device.type != "cpu":
        return FIRST_ACCELERATOR_BATCH
    if not measured:
        return CPU_TRAINING_BATCH
    return min(MAX_CPU_BATCH, max(2, 2 ** math.floor(math.log2(config.engine.threads))))


def estimate_batch(config: Config, device: torch.device, requested: int, smallest: int) -> int:
    """Halve a recipe's batch by extrapolating from a small one: on a CPU a trial with 256 images takes minutes."""
    small = min(requested, max(smallest, choose_first_batch(config, device, measured=True)))
    if small == requested or not _fits_memory(config, device, small):
        return small
    seconds = _try_steps(config, device, small)
    batch = requested
    while batch > small and not (
        _fits_memory(config, device, batch) and seconds * batch / small * WANTED_STEPS <= config.measure.seconds
    ):
        batch = max(smallest, batch // 2)
    return batch


def check_memory(config: Config, device: torch.device, batch: int) -> None:
    """Raise OutOfMemoryError if a batch does not fit, before the kernel kills the process."""
    free, needed = devices.free_bytes(device), needed_bytes(config, device, batch)
    if free is not None and needed > free:
        memory = f"needs about {format_bytes(needed)}; {format_bytes(free)} are free"
        largest = max(1, int(batch * free / needed))
        raise OutOfMemoryError(
            f"out of memory: train.batch_size = {batch} {memory}",
            hint=f"--set train.batch_size={2 ** math.floor(math.log2(largest))}",
        )


def needed_bytes(config: Config, device: torch.device, batch: int) -> int:
    in_heap = math.inf if keeps_memory() else GLIBC_HEAP_BLOCK_BYTES
    return estimate_training_bytes(count_step_work(config, batch), in_heap if device.type == "cpu" else 0.0)


def _fits_memory(config: Config, device: torch.device, batch: int) -> bool:
    free = devices.free_bytes(device)
    return free is None or needed_bytes(config, device, batch) <= free


def _fits_time(config: Config, device: torch.device, batch: int) -> bool:
    """Try some steps on a temporary model: return whether memory is enough and WANTED_STEPS fit into the budget."""
    try:
        seconds = _try_steps(config, device, batch)
    except RuntimeError as err:
        if devices.is_out_of_memory(err):
            return False
        raise
    # A fixed number of steps has no time limit, unless the recipe lets the batch be adapted.
    if config.measure.iterations is not None and not config.train.adapt:
        return True
    return seconds * WANTED_STEPS <= config.measure.seconds


def _try_steps(config: Config, device: torch.device, batch: int) -> float:
    """Return the step time on a temporary model, the best of three."""
    plain = change_section(config, "engine", compile=False, cuda_graphs=False)
    task = build_task(change_section(plain, "train", batch_size=batch), device)
    return min(record.step_seconds for record in train_steps(task, choose_timer(device), num_steps=3))


def fit_precision(config: Config, device: torch.device, threads: int) -> tuple[Config, list[Finding]]:
    """Resolve auto to the fastest precision by trial; try a requested precision too, as it may crash or be slow here.

    If a requested one is slow and the recipe allows adaptation (train.adapt), use the fastest instead.
    """
    requested, candidates = config.train.precision, devices.candidate_precisions(device)
    precision: str = requested
    message, code = "", "precision-chosen"
    if requested == "fp32":
        return config, []
    if requested == "auto" and candidates == ["fp32"]:
        precision, message = "fp32", "using fp32: this CPU has no 16-bit arithmetic (neither avx512_bf16 nor AMX)"
    elif requested == "auto":
        trials = try_precisions(str(device), candidates, threads)
        precision = choose_fastest(trials)
        message = f"using {precision}: {_describe_trials(trials, precision)}"
    else:
        base, trial = trials = try_precisions(str(device), ["fp32", requested], threads)
        code = "precision-slow"
        if trial.seconds is None:
            message = f"{requested} does not run on this device: {trial.failure}"
        elif base.seconds is not None and trial.seconds > base.seconds:
            message = f"{requested} takes {trial.seconds / base.seconds:.1f} times as long as fp32 on this device"
        if message and "precision" in config.train.adapt:
            others = [precision for precision in candidates if precision not in ("fp32", requested)]
            # Try fp32 again beside the others: a disturbance then slows both.
            precision = choose_fastest(try_precisions(str(device), ["fp32", *others], threads) if others else trials)
            message, code = f"{message}: using {precision}", "engine-adapted"
        elif trial.seconds is None:
            raise MachineError(message, hint="--set train.precision=auto")
    return change_section(config, "train", precision=precision), [finding(code, message)] if message else []


def _describe_trials(trials: list[Trial], chosen: str) -> str:
    base = next(trial.seconds for trial in trials if trial.precision == chosen)
    message = [
        f"{trial.precision} takes {trial.seconds / base:.2f} times as long"
        if trial.seconds and base
        else f"{trial.precision} fails here ({trial.failure})"
        for trial in trials
        if trial.precision != chosen
    ]
    return ", ".join(message) + " (short trial)"
