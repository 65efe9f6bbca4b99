"""Fit a recipe to this machine: choose device, threads, precision, batch size and torch.compile.

Each adaptation becomes a finding, or an error with --strict. The fitted configuration has no "auto". Trials
(engine/trials.py) take at most FIT_SHARE of the time budget, and nothing where their results are in the cache folder.
"""

import math
import shutil
import time
from collections.abc import Generator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from trainstone.config.schema import Config, MeasureConfig, change_section
from trainstone.engine.distributed.data_parallel import place_device
from trainstone.engine.lr_schedule import describe_rate_change
from trainstone.engine.network import apply_process_settings
from trainstone.engine.optim import uses_torch_sgd
from trainstone.engine.trials import (
    MIN_GAIN,
    NEAR_BEST,
    TrialNetwork,
    alternate,
    choose_precision,
    find_cache_file,
    find_first,
    find_knee,
    read_trials,
    smallest_batch,
    store_trials,
    summarise_turns,
    time_batch,
    time_if_fits,
    try_batches,
    try_precisions,
)
from trainstone.errors import ConfigError, MachineError, OutOfMemoryError
from trainstone.machine.allocator import keeps_memory
from trainstone.machine.cpus import available_cores
from trainstone.machine.ranks import SINGLE_RANK, Rank, bind_cores, count_local_ranks, count_sharing_ranks
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
PRECISION_SHARE = 0.2
"""Part of FIT_SHARE for comparing precisions, if there are several."""
STEPS_SHARE = 0.6
"""Share of the time budget that steps get in any case, also after trials."""
WANTED_STEPS = 26
"""Steps that must fit into it: 20 steady ones for an interval, and some warm-up."""
LONGER = 1.5
"""Trials that ended for lack of time are taken again by a run whose budget is larger by this factor."""
COMPILE_SECONDS = 300.0
"""Time budget from which torch.compile is tried: compiling ResNet-50 takes about a minute."""
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

    def measure_rest(self) -> MeasureConfig:
        """Return the measure section with what is left of the time budget, at least STEPS_SHARE of it."""
        measure = self.config.measure
        left = measure.seconds - (time.perf_counter() - self.began)
        return measure.model_copy(update={"seconds": max(left, STEPS_SHARE * measure.seconds)})


@dataclass
class Fit:
    """A fit in progress."""

    config: Config
    strict: bool = False
    world: Rank = SINGLE_RANK
    measured: bool = True
    """Choose the fastest batch of which enough steps fit into the time budget, else one suited to training."""
    device: torch.device = CPU
    findings: list[Finding] = field(default_factory=list)
    trials: Trials = field(default_factory=lambda: Trials(taken_utc=format_now()))
    began: float = field(default_factory=time.perf_counter)

    def set(self, section: str, **changes: object) -> None:
        self.config = change_section(self.config, section, **changes)

    def report(self, code: str, message: str, hint: str | None = None, *, requested: bool = True) -> None:
        """Add a finding; raise ConfigError if --strict refuses to change what the user requested."""
        found = finding(code, message, hint=hint)
        if self.strict and requested and code in REFUSED:
            raise ConfigError(f"--strict: {message}", hint=found.hint)
        self.findings.append(found)

    def seconds_left(self) -> float:
        """Return the time that is left for trials."""
        return FIT_SHARE * self.config.measure.seconds - (time.perf_counter() - self.began)

    def needs(self, kind: str, *, complete: bool) -> bool:
        """Return whether to take trials: there are none, or they lacked time and now have more."""
        before = self.trials.budget_seconds.get(kind)
        return before is None or (not complete and self.config.measure.seconds > LONGER * before)

    def renew(self, kind: str, **results: object) -> None:
        """Add results to the trials, and store them in the cache folder."""
        budget = {**self.trials.budget_seconds, kind: self.config.measure.seconds}
        now = {"taken_utc": format_now(), "reused": False, "budget_seconds": budget}
        self.trials = self.trials.model_copy(update={**now, **results})
        store_trials(find_cache_file(self.config, self.device), self.trials)


Value = TypeVar("Value")
Steps = Generator[Progress, None, Value]
"""Part of a fit: yields progress."""


def finish(fitting: Steps[Value]) -> Value:
    """Run a fit to its end without showing progress."""
    while True:
        try:
            next(fitting)
        except StopIteration as end:
            found: Value = end.value
            return found


def format_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def fit_to_machine(config: Config, *, strict: bool, world: Rank = SINGLE_RANK, measured: bool = True) -> Steps[Fitted]:
    """Resolve every auto and adapt what this machine cannot do; see Fit for `measured`."""
    fit = yield from fit_engine(config, strict=strict, world=world, measured=measured)
    yield from fit_batch(fit)
    requested = config.train.batch_size
    if requested != "auto" and not measured:
        parts, geometry = config.train.accumulate, config.nodes * config.devices_per_node
        # A recipe without a system is for any number of ranks.
        intended = (geometry if config.system or geometry > 1 else world.world) * parts
        message = describe_rate_change(
            config.optimizer,
            intended=(intended * requested, intended),
            now=(world.world * parts * fit.config.train.batch_size, world.world * parts),
            where=describe_source(config),
        )
        if message:
            fit.report("rate-derived", message)
    yield from fit_compile(fit)
    # The written configuration must repeat this run exactly: no further adaptation.
    fit.set("train", adapt=())
    work = count_step_work(fit.config, fit.config.train.batch_size)
    notes = [finding("recipe-note", note) for note in config.notes]
    # Only what chose something: the cache may have more.
    automatic = measured and requested == "auto"
    rows = [row for row in fit.trials.batches if automatic and row.precision == fit.config.train.precision]
    compared = fit.trials.precisions if config.train.precision == "auto" else []
    trials = fit.trials.model_copy(update={"batches": rows, "precisions": compared})
    return Fitted(
        fit.config, fit.device, work, (*notes, *fit.findings), trials if rows or compared else None, fit.began
    )


def describe_source(config: Config) -> str:
    return f"system {config.system}" if config.system else f"recipe {config.name}"


def fit_engine(config: Config, *, strict: bool = False, world: Rank = SINGLE_RANK, measured: bool = True) -> Steps[Fit]:
    """Resolve device, threads and precision, and adapt what this machine cannot do; keep the batch size."""
    fit = Fit(config, strict, world, measured, choose_rank_device(config.device, world))
    if fit.device.type != "cpu":
        torch.accelerator.set_device_index(fit.device)  # events, graphs and streams are created on the current device
    cores = max(1, available_cores().threads // count_sharing_ranks())
    # Several ranks have a device each: the configuration names only the type.
    named = str(fit.device) if world.world == 1 else fit.device.type
    fit.config = config.model_copy(update={"device": named})
    for section in ("engine", "loader"):
        if getattr(config, section).threads == "auto":
            fit.set(section, threads=cores)
    adapt_engine(fit)
    if config.measure.reuse_trials:
        fit.trials = read_trials(find_cache_file(fit.config, fit.device)) or fit.trials
    yield from fit_precision(fit)
    apply_process_settings(fit.config)
    return fit


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


def adapt_engine(fit: Fit) -> None:
    """Switch off features that this device or this kind of run does not support."""
    config, device, world = fit.config, fit.device, fit.world
    graphs, split, parts = config.engine.cuda_graphs, config.engine.split_phases, config.train.accumulate > 1
    for both, one, other, why in (
        (graphs and split, "cuda_graphs", "engine.split_phases", "a replayed graph has no phases"),
        (graphs and parts, "cuda_graphs", "train.accumulate", "a graph holds one batch"),
        (graphs and not uses_torch_sgd(config.optimizer), "cuda_graphs", "this optimizer", "its rate is on the host"),
        (split and parts, "split_phases", "train.accumulate", "the phases of several batches alternate"),
    ):
        if both:
            raise ConfigError(f"engine.{one} cannot be combined with {other}: {why}", hint=f"--set engine.{one}=false")
    on_cuda = device.type == "cuda"
    needed = f"needs CUDA; this run is on {device.type}: switched off"
    for section, key, off, applies, why in (
        ("engine", "cuda_graphs", False, not fit.measured, "is for bench only: capture changes the weights"),
        ("engine", "cuda_graphs", False, world.world > 1, f"needs a single rank, not {world.world}: switched off"),
        ("engine", "cuda_graphs", False, not on_cuda, needed),
        ("engine", "nvtx", False, not on_cuda, needed),
        ("measure", "profiler_range", None, not on_cuda, needed),
    ):
        if applies and getattr(getattr(fit.config, section), key) not in (False, None):
            fit.set(section, **{key: off})
            fit.report("engine-adapted", f"{section}.{key} {why}")
    if config.train.precision == "tf32" and not (on_cuda and torch.cuda.is_tf32_supported()):
        fit.set("train", precision="fp32")
        fit.report("engine-adapted", "tf32 needs an NVIDIA GPU of 2020 or later: using fp32")
    if config.nodes * config.devices_per_node not in (1, world.world):
        geometry = f"{config.nodes} x {config.devices_per_node} devices"
        used = "one" if world.world == 1 else str(world.world)
        fit.report("engine-adapted", f"{describe_source(config)} has {geometry}; this run uses {used}")
        fit.config = fit.config.model_copy(update={"nodes": 1, "devices_per_node": world.world})


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


def fit_batch(fit: Fit) -> Steps[None]:
    """Check the requested batch against memory, or choose one that fits into memory (and, if measured, time)."""
    config, requested = fit.config, fit.config.train.batch_size
    smallest = 2 if config.data.image_size <= 32 else 1  # batch norm needs two values per channel
    if requested != "auto" and requested < smallest:
        raise ConfigError(
            f"invalid train.batch_size = {requested} with data.image_size = 32: batch norm needs 2 values per channel",
            hint="--set train.batch_size=2",
        )
    if requested != "auto" and "batch_size" not in config.train.adapt:
        check_memory(config, fit.device, requested)
    elif requested == "auto" and fit.measured:
        yield from choose_batch(fit)
    else:
        yield Progress("fitting the batch size")
        first = CPU_TRAINING_BATCH if fit.device.type == "cpu" else ACCELERATOR_TRAINING_BATCH
        reduce_batch(fit, first if requested == "auto" else requested, smallest)


def reduce_batch(fit: Fit, first: int, smallest: int) -> None:
    """Halve the batch size of training, or of a recipe that allows it, until it fits into memory (and time).

    Estimates of memory are a lower bound: an accelerator tries the batch itself. A CPU, where 256 images may take
    minutes, extrapolates the time from a small batch.
    """
    config, device, batch = fit.config, fit.device, first
    on_cpu, precision = device.type == "cpu", config.train.precision
    with TrialNetwork(config, device) if fit.measured or not on_cpu else nullcontext() as network:
        small = None
        if network and on_cpu:
            small = time_batch(network, precision, min(first, smallest_batch(config, device)))

        def fits(size: int) -> bool:
            if not _fits_memory(config, device, size):
                return False
            row = small if on_cpu or network is None else time_if_fits(network, precision, size)
            return (row is not None or on_cpu) and (not fit.measured or row is None or _fits_time(config, row, size))

        while not fits(batch):
            if batch <= smallest:
                check_memory(config, device, batch)  # raises unless it is only too slow: then use the smallest batch
                break
            batch = max(smallest, batch // 2)
    fit.set("train", batch_size=batch)
    if batch != first:
        limits = "memory and time" if fit.measured else "memory"
        chosen = f"using {format_count(batch, 'image')} per step and device instead of {first}"
        fit.report("batch-fitted", f"{chosen}, to fit into {limits}", requested=config.train.batch_size != "auto")


def choose_batch(fit: Fit) -> Steps[None]:
    """Choose the smallest batch size within 3 % of the fastest, of those whose steps fit into the time budget."""
    config, device, precision = fit.config, fit.device, fit.config.train.precision
    rows = [row for row in fit.trials.batches if row.precision == precision]
    if fit.needs(precision, complete=fit.trials.ended.get(precision) != "time"):
        start = find_start(config, device)
        others = [row for row in fit.trials.batches if row.precision != precision]
        with TrialNetwork(config, device) as network:
            yield Progress(f"trying batch sizes: {start}")
            first = find_first(network, precision, start)
            fits = partial(_fits_memory, config, device, counted=start)
            rows, ended = yield from try_batches(network, first, fits, fit.seconds_left())
        fit.renew(precision, batches=[*others, *rows], ended={**fit.trials.ended, precision: ended})
    fitting = [row for row in rows if _fits_time(config, row, row.batch_size)] or rows[:1]
    chosen = find_knee(fitting)
    while chosen is not rows[0] and not _fits_memory(config, device, chosen.batch_size):  # less may be free today
        fitting = fitting[: fitting.index(chosen)]
        chosen = find_knee(fitting)
    best = max(rows, key=lambda row: row.images_per_second)
    hint = f"measure the faster one: --set measure.seconds={ask_seconds(config, find_knee(rows))}"
    if chosen.images_per_second < NEAR_BEST * best.images_per_second:
        slower = format_percent(1 - chosen.images_per_second / best.images_per_second, 0)
        instead = f"{format_count(chosen.batch_size, 'image')} per step instead of {best.batch_size}"
        message = f"using {instead}, which do not fit into the time or the free memory: {slower} slower"
        fit.report("batch-limited", message, hint)
    elif fit.trials.ended.get(precision) == "time":
        message = f"batch sizes above {rows[-1].batch_size} were not tried for lack of time and may be faster"
        if len(rows) > 1:
            gain = rows[-1].images_per_second / rows[-2].images_per_second - 1
            message += f": the last doubling gained {format_percent(gain, 0)}"
        hint = f"try them: --set measure.seconds={math.ceil(3 * config.measure.seconds)}"
        fit.report("batch-limited", message, hint)
    fit.trials = fit.trials.model_copy(update={"chosen_batch_size": chosen.batch_size})
    fit.set("train", batch_size=chosen.batch_size)


def find_start(config: Config, device: torch.device) -> int:
    """Return the first batch size to try: the smallest worthwhile one, or one that fits into memory."""
    size = smallest_batch(config, device)
    while size > 2 and not _fits_memory(config, device, size):
        size //= 2
    check_memory(config, device, size)
    return size


def ask_seconds(config: Config, row: BatchTrial) -> int:
    """Return the time budget into which enough steps of a batch size fit, in tens of seconds."""
    return math.ceil(WANTED_STEPS * row.step_seconds * config.train.accumulate / STEPS_SHARE / 10) * 10


def _fits_time(config: Config, row: BatchTrial, size: int) -> bool:
    """Return whether WANTED_STEPS of a batch size fit into the time budget, by a trial of this or another size."""
    # A fixed number of steps has no time limit, unless the recipe lets the batch be adapted.
    if config.measure.iterations is not None and not config.train.adapt:
        return True
    seconds = row.step_seconds * size / row.batch_size * config.train.accumulate
    return seconds * WANTED_STEPS <= STEPS_SHARE * config.measure.seconds


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


def needed_bytes(config: Config, device: torch.device, batch: int, counted: int | None = None) -> int:
    """Estimate the memory of training; `counted`: extrapolate from this batch, as counting takes half a second."""
    in_heap = math.inf if keeps_memory() else GLIBC_HEAP_BLOCK_BYTES
    work = count_step_work(config, counted or batch)
    saved = tuple(size * batch // (counted or batch) for size in work.saved_tensor_bytes)
    work = replace(work, saved_tensor_bytes=saved)
    return estimate_training_bytes(work, in_heap if device.type == "cpu" else 0.0)


def _fits_memory(config: Config, device: torch.device, batch: int, counted: int | None = None) -> bool:
    free, sharing = devices.free_bytes(device), count_local_ranks() if device.type == "cpu" else 1
    return free is None or needed_bytes(config, device, batch, counted) <= free / sharing


def fit_precision(fit: Fit) -> Steps[None]:
    """Resolve auto to the fastest precision by trial; try a requested precision too, as it may crash or be slow here.

    If a requested one is slow and the recipe allows adaptation (train.adapt), use the fastest instead.
    """
    config, device, requested = fit.config, fit.device, fit.config.train.precision
    candidates = devices.candidate_precisions(device)
    if requested == "fp32":
        return
    if requested == "auto" and candidates == ["fp32"]:
        fit.set("train", precision="fp32")
        fit.report("precision-chosen", "using fp32: this CPU has no 16-bit arithmetic (neither avx512_bf16 nor AMX)")
        return
    names = [name for name in PREFERENCE if name in {*candidates, requested}]
    known = {trial.name for trial in fit.trials.precisions} >= set(names)
    complete = known and choose_precision(fit.trials.precisions, candidates)[1]
    if not known or fit.needs("precision", complete=complete):
        # On a CPU two images per thread: with one, converting weights is a large part of a step.
        size = find_start(config, device) * (2 if device.type == "cpu" else 1)
        sized = change_section(config, "train", batch_size=size)
        turns = yield from try_precisions(sized, device, names, PRECISION_SHARE * config.measure.seconds)
        found = summarise_turns(turns, names)
        if found[0].ratio is None:
            raise MachineError(f"the trial of {names[0]} did not run: {found[0].failure}", hint="trainstone doctor")
        fit.renew("precision", precisions=found)
    choice, decided = choose_precision(fit.trials.precisions, candidates)
    if requested == "auto":
        undecided, trials = "" if decided else ", undecided", fit.trials
        fit.set("train", precision=choice)
        message = f"using {choice}{undecided}: {trials.describe_precisions()} ({trials.taken})"
        fit.report("precision-chosen", message)
        return
    trial = next(trial for trial in fit.trials.precisions if trial.name == requested)
    slow = trial.ratio is not None and (trial.ci95[1] if trial.ci95 else trial.ratio) < 1
    message = f"{trial.describe()} on this device"
    if (slow or trial.failure) and "precision" in config.train.adapt:
        fit.set("train", precision=choice)
        fit.report("engine-adapted", f"{message}: using {choice}")
    elif trial.failure:
        raise MachineError(message, hint="--set train.precision=auto")
    elif slow:
        fit.report("precision-slow", message)


def fit_compile(fit: Fit) -> Steps[None]:
    """Resolve engine.compile = auto: true if a trial shows that it is faster; training does not compile."""
    if fit.config.engine.compile != "auto":
        return
    precision, batch, budget = fit.config.train.precision, fit.config.train.batch_size, fit.config.measure.seconds
    name, trial = f"torch.compile ({precision}, batch {batch})", fit.trials.compile
    possible = fit.device.type != "cpu" or shutil.which("g++") or shutil.which("clang++")
    if fit.measured and possible and budget >= COMPILE_SECONDS and (trial is None or trial.name != name):
        yield Progress("trying torch.compile")
        with TrialNetwork(fit.config, fit.device) as network:

            def time_turn(which: str) -> float:
                return network.time_turn(precision, batch, compiled=which == name)

            turns = list(alternate(time_turn, ["eager", name], max(fit.seconds_left(), 0.1 * budget)))
        trial = summarise_turns(turns, ["eager", name])[1]
        fit.renew("compile", compile=trial)
    wins = bool(fit.measured and trial and trial.name == name and trial.ci95 and trial.ci95[0] > MIN_GAIN)
    fit.set("engine", compile=wins)
    if trial and trial.name == name and fit.measured:
        message = f"{'using' if wins else 'not using'} torch.compile: {trial.describe('eager')} ({fit.trials.taken})"
        fit.report("compile-chosen", message)
