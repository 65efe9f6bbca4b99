"""Fit a recipe to this machine: choose device, threads, precision, batch size and torch.compile.

Each adaptation becomes a finding, or an error with --strict. The fitted configuration has no "auto". Trials
(engine/trials.py) take at most FIT_SHARE of the time budget, and nothing where their results are in the cache folder.
"""

import itertools
import math
import shutil
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from trainstone.config.schema import Config, change_section
from trainstone.engine.distributed.data_parallel import place_device
from trainstone.engine.lr_schedule import describe_rate_change
from trainstone.engine.network import apply_process_settings
from trainstone.engine.optim import uses_torch_sgd
from trainstone.engine.trials import (
    MIN_GAIN,
    NEAR_BEST,
    TrialNetwork,
    find_cache_file,
    find_knee,
    read_trials,
    smallest_batch,
    store_trials,
    time_batch,
    try_batches,
    try_compile,
    try_precisions,
)
from trainstone.errors import ConfigError, MachineError, OutOfMemoryError
from trainstone.machine.allocator import keeps_memory
from trainstone.machine.cpus import available_cores
from trainstone.machine.ranks import SINGLE_RANK, Rank, bind_cores, count_sharing_ranks
from trainstone.measure import devices
from trainstone.measure.flops import GLIBC_HEAP_BLOCK_BYTES, StepWork, count_work, estimate_training_bytes
from trainstone.results.findings import finding
from trainstone.results.progress import Progress
from trainstone.results.schema.run import Finding
from trainstone.results.schema.trials import BatchTrial, Trials
from trainstone.units import format_bytes, format_count, format_percent
from trainstone.workloads.registry import WORKLOADS

REFUSED = ("engine-adapted", "batch-fitted", "rate-derived")
"""Finding codes that --strict turns into errors."""
FIT_SHARE = 0.4
"""Share of the time budget that trials may take the first time."""
PRECISION_SHARE = 0.5
"""Share of that for comparing precisions, if there are several."""
STEPS_SHARE = {"synthetic": 0.55}
STEPS_SHARE_FILES = 0.4
"""Share of the time budget that is left for steps after trials, peaks and, with images from files, baselines."""
WANTED_STEPS = 26
"""Steps that must fit into it: 20 steady ones for an interval, and some warm-up."""
LONGER = 1.5
"""Trials that ended for lack of time are continued by a run whose budget is larger by this factor."""
COMPILE_SECONDS = 60.0
"""torch.compile is tried if so much time is left for trials: compiling ResNet-50 takes about as long."""
CPU_TRAINING_BATCH = 32
ACCELERATOR_TRAINING_BATCH = 256
PREFERENCE = ("fp32", "tf32", "bf16", "fp16")
"""Of equally fast precisions, the first is used."""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Fitted:
    config: Config
    device: torch.device
    work: StepWork
    """FLOPs and bytes of one step at the fitted batch size."""
    findings: tuple[Finding, ...]
    trials: Trials | None = None
    """None: nothing was automatic."""
    began: float = 0.0
    """When fitting began (time.perf_counter): the time budget counts from here."""


class FittedEngine(NamedTuple):
    config: Config
    device: torch.device
    findings: list[Finding]
    trials: Trials


Fitting = Generator[Progress, None, Fitted]
Value = TypeVar("Value")


def finish(fitting: Generator[Progress, None, Value]) -> Value:
    """Run a fit to its end without showing progress."""
    while True:
        try:
            next(fitting)
        except StopIteration as end:
            found: Value = end.value
            return found


def fit_to_machine(config: Config, *, strict: bool, world: Rank = SINGLE_RANK, measured: bool = True) -> Fitting:
    """Resolve every auto and adapt what this machine cannot do.

    `measured`: choose the fastest automatic batch of which enough steps fit into the time budget, else one suited to
    training.
    """
    began = time.perf_counter()
    requested, notes = config, [finding("recipe-note", note) for note in config.notes]
    config, device, findings, trials = yield from fit_engine(config, strict=strict, world=world, measured=measured)
    limit = FIT_SHARE * config.measure.seconds

    def left() -> float:
        return limit - (time.perf_counter() - began)

    config, fitted, trials = yield from fit_batch(config, device, trials, left, measured=measured)
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
    config, compiled, trials = yield from fit_compile(config, device, trials, left, measured=measured)
    work = count_step_work(config, config.train.batch_size)
    # The written configuration must repeat this run exactly: no further adaptation.
    config = change_section(config, "train", adapt=())
    rows = [row for row in trials.batches if row.precision == config.train.precision]
    shown = trials.model_copy(update={"batches": rows}) if rows or trials.precisions else None
    return Fitted(config, device, work, (*notes, *findings, *fitted, *compiled), shown, began)


def describe_source(config: Config) -> str:
    return f"system {config.system}" if config.system else f"recipe {config.name}"


def raise_if_strict(findings: list[Finding], *, strict: bool) -> None:
    """Raise ConfigError if `strict` and a finding reports an adaptation."""
    adapted = [found for found in findings if found.code in REFUSED]
    if strict and adapted:
        raise ConfigError(f"--strict: {adapted[0].message}", hint=adapted[0].hint)


def fit_engine(
    config: Config, *, strict: bool = False, world: Rank = SINGLE_RANK, measured: bool = True
) -> Generator[Progress, None, FittedEngine]:
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
    known = read_trials(find_cache_file(config, device)) if config.measure.reuse_trials else None
    trials = known or Trials(taken_utc=datetime.now(UTC).isoformat(timespec="seconds"))
    config, chosen, trials = yield from fit_precision(config, device, trials)
    raise_if_strict(chosen, strict=strict)
    apply_process_settings(config)
    return FittedEngine(config, device, [*adapted, *chosen], trials)


def choose_rank_device(requested: str, world: Rank) -> torch.device:
    """Return the device of this rank: with several ranks, the CUDA device of its local rank."""
    if world.world > 1 and requested in ("auto", "cuda") and devices.list_devices()[0].startswith("cuda"):
        return place_device(torch.device("cuda"), world)
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


def fit_batch(
    config: Config, device: torch.device, trials: Trials, left: Callable[[], float], *, measured: bool = True
) -> Generator[Progress, None, tuple[Config, list[Finding], Trials]]:
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
        return config, [], trials
    if requested == "auto" and measured:
        return (yield from choose_batch(config, device, trials, left))
    yield Progress("fitting the batch size")
    return *reduce_batch(config, device, smallest, measured=measured), trials


def reduce_batch(
    config: Config, device: torch.device, smallest: int, *, measured: bool
) -> tuple[Config, list[Finding]]:
    """Halve the batch size of training, or of a recipe that allows it, until it fits into memory (and time)."""
    requested = config.train.batch_size
    first = CPU_TRAINING_BATCH if device.type == "cpu" else ACCELERATOR_TRAINING_BATCH
    first = batch = first if requested == "auto" else requested
    with ExitStack() as stack:
        network = stack.enter_context(TrialNetwork(config, device)) if measured or device.type != "cpu" else None
        while not _fits(config, device, network, batch, measured=measured):
            if batch <= smallest:
                check_memory(config, device, batch)  # raises unless it is only too slow: then use the smallest batch
                break
            batch = max(smallest, batch // 2)
    config = change_section(config, "train", batch_size=batch)
    if batch == first:
        return config, []
    limits = "memory and time" if measured else "memory"
    chosen = f"using {format_count(batch, 'image')} per step and device instead of {first}"
    return config, [finding("batch-fitted", f"{chosen}, to fit into {limits}")]


def choose_batch(
    config: Config, device: torch.device, trials: Trials, left: Callable[[], float]
) -> Generator[Progress, None, tuple[Config, list[Finding], Trials]]:
    """Choose the smallest batch size within 3 % of the fastest, of those whose steps fit into the time budget."""
    precision, budget = config.train.precision, FIT_SHARE * config.measure.seconds
    others = [row for row in trials.batches if row.precision != precision]
    rows = [row for row in trials.batches if row.precision == precision]
    if not rows or (trials.ended.get(precision) == "time" and budget > LONGER * trials.budget_seconds):
        with TrialNetwork(config, device) as network:
            start = smallest_batch(config, device)
            if device.type == "cpu":
                check_memory(config, device, start)
            else:
                start = network.find_start(precision, start)
            sizes = (start * 2**power for power in itertools.count())
            fits = lambda size: _fits_memory(config, device, size)  # noqa: E731
            rows, ended = yield from try_batches(network, precision, sizes, rows, fits, left())
        trials = _renew(config, device, trials, batches=[*others, *rows], ended={**trials.ended, precision: ended})
    best = find_knee(rows)
    chosen = find_knee([row for row in rows if _fits_time(config, row, row.batch_size)] or rows[:1])
    if chosen.images_per_second >= best.images_per_second * NEAR_BEST:
        best = chosen
    findings = []
    if chosen is not best:
        slower = format_percent(1 - chosen.images_per_second / best.images_per_second, 0)
        needed = math.ceil(WANTED_STEPS * best.step_seconds * config.train.accumulate / _steps_share(config) / 10) * 10
        message = f"using {format_count(chosen.batch_size, 'image')} per step instead of {best.batch_size}, so that "
        message += f"{WANTED_STEPS} steps fit into the time: {slower} slower"
        findings.append(finding("batch-limited", message, hint=f"measure the faster one: --seconds {needed}"))
    elif trials.ended.get(precision) == "time":
        message = f"batch sizes above {rows[-1].batch_size} were not tried for lack of time; they may be faster"
        findings.append(finding("batch-limited", message, hint=f"--seconds {math.ceil(3 * config.measure.seconds)}"))
    trials = trials.model_copy(update={"best_batch_size": best.batch_size, "chosen_batch_size": chosen.batch_size})
    return change_section(config, "train", batch_size=chosen.batch_size), findings, trials


def _renew(config: Config, device: torch.device, trials: Trials, **changes: object) -> Trials:
    """Return the trials with new results, and store them in the cache folder."""
    budget = max(trials.budget_seconds, FIT_SHARE * config.measure.seconds)
    taken = datetime.now(UTC).isoformat(timespec="seconds")
    renewed = trials.model_copy(update={"taken_utc": taken, "reused": False, "budget_seconds": budget, **changes})
    store_trials(find_cache_file(config, device), renewed)
    return renewed


def _steps_share(config: Config) -> float:
    return STEPS_SHARE.get(config.data.source, STEPS_SHARE_FILES)


def _fits_time(config: Config, row: BatchTrial, size: int) -> bool:
    """Return whether WANTED_STEPS of a batch size fit into the time budget, by a trial of this or another size."""
    # A fixed number of steps has no time limit, unless the recipe lets the batch be adapted.
    if config.measure.iterations is not None and not config.train.adapt:
        return True
    seconds = row.step_seconds * size / row.batch_size * config.train.accumulate
    return seconds * WANTED_STEPS <= _steps_share(config) * config.measure.seconds


def _fits(config: Config, device: torch.device, network: TrialNetwork | None, size: int, *, measured: bool) -> bool:
    """Return whether a batch size fits into memory (and, if `measured`, time).

    Estimates of memory are a lower bound: an accelerator tries the batch itself. A CPU, where 256 images may take
    minutes, extrapolates from a small batch.
    """
    if not _fits_memory(config, device, size):
        return False
    if network is None:
        return True
    tried = size if device.type != "cpu" else min(size, smallest_batch(config, device))
    try:
        row = time_batch(network, config.train.precision, tried)
    except RuntimeError as err:
        if devices.is_out_of_memory(err):
            return False
        raise
    return not measured or _fits_time(config, row, size)


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


def fit_precision(
    config: Config, device: torch.device, trials: Trials
) -> Generator[Progress, None, tuple[Config, list[Finding], Trials]]:
    """Resolve auto to the fastest precision by trial; try a requested precision too, as it may crash or be slow here.

    If a requested one is slow and the recipe allows adaptation (train.adapt), use the fastest instead.
    """
    requested, candidates = config.train.precision, devices.candidate_precisions(device)
    if requested == "fp32":
        return config, [], trials
    if requested == "auto" and candidates == ["fp32"]:
        message = "using fp32: this CPU has no 16-bit arithmetic (neither avx512_bf16 nor AMX)"
        return change_section(config, "train", precision="fp32"), [finding("precision-chosen", message)], trials
    names = [name for name in PREFERENCE if name in {*candidates, requested}]
    seconds = FIT_SHARE * config.measure.seconds
    known = {trial.name for trial in trials.precisions} >= set(names)
    if not known or (not trials.decided and seconds > LONGER * trials.budget_seconds):
        found = yield from try_precisions(config, device, names, PRECISION_SHARE * seconds)
        new = {name: getattr(found, name) for name in ("precision", "decided", "precision_batch_size", "precisions")}
        trials = _renew(config, device, trials, **new)
    choice = trials.precision or "fp32"
    if requested == "auto":
        choice_text = f"using {choice}{'' if trials.decided else ', undecided'}"
        message = f"{choice_text}: {trials.describe_precisions()} ({trials.taken})"
        return change_section(config, "train", precision=choice), [finding("precision-chosen", message)], trials
    trial = next(trial for trial in trials.precisions if trial.name == requested)
    slow = trial.ratio is not None and (trial.ci95[1] if trial.ci95 else trial.ratio) < 1
    if not (slow or trial.failure):
        return config, [], trials
    message = f"{trial.describe()} on this device"
    if "precision" in config.train.adapt:
        adapted = finding("engine-adapted", f"{message}: using {choice}")
        return change_section(config, "train", precision=choice), [adapted], trials
    if trial.failure:
        raise MachineError(message, hint="--set train.precision=auto")
    return config, [finding("precision-slow", message)], trials


def fit_compile(
    config: Config, device: torch.device, trials: Trials, left: Callable[[], float], *, measured: bool
) -> Generator[Progress, None, tuple[Config, list[Finding], Trials]]:
    """Resolve engine.compile = auto: true if a trial shows that it is faster; training does not compile."""
    if config.engine.compile != "auto":
        return config, [], trials
    trial, batch = trials.compile, config.train.batch_size
    possible = device.type != "cpu" or shutil.which("g++") or shutil.which("clang++")
    if measured and trial is None and possible and batch != "auto" and left() >= COMPILE_SECONDS:
        yield Progress("trying torch.compile")
        with TrialNetwork(config, device) as network:
            trial = try_compile(network, config.train.precision, batch)
        trials = _renew(config, device, trials, compile=trial)
    wins = measured and trial is not None and trial.ci95 is not None and trial.ci95[0] > MIN_GAIN
    config = change_section(config, "engine", compile=wins)
    if trial is None or not measured:
        return config, [], trials
    message = f"{'using' if wins else 'not using'} torch.compile: {trial.describe('eager')} ({trials.taken})"
    return config, [finding("compile-chosen", message)], trials
