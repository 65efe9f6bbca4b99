"""Try precisions, batch sizes and torch.compile in short steps of the real network, and remember the results.

On a CPU, 16-bit precisions are tried in a child process: CPU flags are not reliable, and a virtual machine that reports
AMX may crash with an illegal instruction. engine/fit.py decides what to try and what follows from it.
"""

import gc
import hashlib
import json
import logging
import math
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import psutil
import torch
from pydantic import ValidationError
from torch import nn

from trainstone import __version__
from trainstone.config.schema import Config, change_section
from trainstone.engine.batches import prefetch_to_device, synthetic_batches
from trainstone.engine.loop import train_steps
from trainstone.engine.network import apply_process_settings, compile_model
from trainstone.engine.optim import LossScale
from trainstone.engine.task import build_task
from trainstone.errors import OutOfMemoryError, ResultError, TrainstoneError
from trainstone.files import cache_folder, write_atomically
from trainstone.machine.allocator import release_free_memory
from trainstone.machine.cpus import available_cores, memory_limit_bytes, read_cpuinfo, restore_affinity
from trainstone.machine.ranks import SINGLE_RANK, count_local_ranks
from trainstone.measure import devices
from trainstone.measure.clock import choose_timer
from trainstone.results.progress import Progress
from trainstone.results.schema.trials import BatchTrial, SpeedTrial, Trials
from trainstone.workloads.registry import WORKLOADS

log = logging.getLogger(__name__)

# Another precision, or torch.compile, must be faster by this factor, as its whole 95 % interval shows. Otherwise noise
# would choose, and two runs on one machine would differ.
MIN_GAIN = 1.05
MIN_ROUNDS, MAX_ROUNDS = 6, 60  # six pairs are the fewest with a 95 % interval
MAX_FIRST_TURN = 3.0
"""A precision whose first turn takes so many times as long as fp32's is emulated, and not tried further."""
MIN_RISE = 1.03
"""A larger batch is tried as long as the last one was faster by this factor."""
NEAR_BEST = 0.97
MIN_TURNS, MAX_TURNS, TURNS_SECONDS = 3, 20, 0.4
"""Timed turns of a batch size: at least three, of which a disturbance may slow two; more within TURNS_SECONDS."""
COST_IN_TURNS = 2 + MIN_TURNS
"""Time of a batch size's trial in turns: the first one allocates memory and takes up to twice as long."""
CHILD_SECONDS = 60.0
"""How long a child process may take beyond its budget: it imports torch and runs first steps."""
MARK = "turn "
"""Begins a line of the child process that is a Turn; libraries may print others."""
VARIABLES = ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "LD_PRELOAD")
"""Environment variables that change the speed."""


class Turn(NamedTuple):
    """A turn of one choice; number 0 is its first. Without seconds and failure it is about to start."""

    name: str
    number: int
    seconds: float | None = None
    failure: str | None = None


class TrialNetwork:
    """One network on its device, trained at any precision and batch size. A context manager: frees it at the end."""

    def __init__(self, config: Config, device: torch.device) -> None:
        config = change_section(config, "model", pretrained=None)
        config = change_section(config, "data", source="synthetic", num_synthetic_batches=1)
        config = change_section(config, "engine", compile=False, cuda_graphs=False, split_phases=False)
        self._config = change_section(config, "train", accumulate=1, batch_size=1, precision="fp32")
        self._task = build_task(self._config, device)
        self._device, self._timer = device, choose_timer(device)
        self.steps_per_turn = 1 if device.type == "cpu" else 3
        self._scales: dict[str, LossScale] = {}
        self._compiled: nn.Module | None = None

    def __enter__(self) -> "TrialNetwork":
        return self

    def __exit__(self, *_: object) -> None:
        del self._task, self._compiled
        release_memory(self._device)

    def time_turn(self, precision: str, batch_size: int, *, compiled: bool = False) -> float:
        """Train some steps; return the seconds of one."""
        config, device = change_section(self._config, "train", batch_size=batch_size, precision=precision), self._device
        apply_process_settings(config)
        if compiled and self._compiled is None:
            self._compiled = compile_model(self._task.plain)
        called = self._compiled if compiled and self._compiled is not None else self._task.plain
        batches = WORKLOADS[config.workload].mix(config, synthetic_batches(config, device), SINGLE_RANK, 0)
        scale = batch_size if config.train.loss_scale == "batch" else config.train.loss_scale
        # A new dynamic scale would skip its first updates.
        scaled = self._scales.setdefault(precision, LossScale(device, precision, scale))
        task = replace(
            self._task,
            model=called,
            autocast=lambda: devices.autocast(device, precision),
            scale=scaled,
            batches=prefetch_to_device(batches, device),
            images_per_step=batch_size,
        )
        steps = train_steps(task, self._timer, num_steps=self.steps_per_turn)
        return statistics.fmean(record.step_seconds for record in steps)


def release_memory(device: torch.device) -> None:
    """Free what the caller has dropped: a network has reference cycles, and allocators keep memory."""
    gc.collect()
    if device.type == "cpu":
        release_free_memory()
    else:
        torch.accelerator.empty_cache()


def smallest_batch(config: Config, device: torch.device) -> int:
    """Return the first batch size to try: an image per thread of a CPU, at most 64; 64 on other devices."""
    if device.type != "cpu":
        return 64
    assert config.engine.threads != "auto"  # resolved by fit_engine
    return min(64, max(2, 2 ** math.floor(math.log2(config.engine.threads))))


def alternate(time_turn: Callable[[str], float], names: Sequence[str], seconds: float) -> Iterator[Turn]:
    """Take turns (A B B A) until the intervals of the ratios to the first choice lie above or below MIN_GAIN.

    Ends after `seconds` with at least MIN_ROUNDS, and after twice the time in any case. A choice that fails, or whose
    first turns are far too slow, gets no further ones. Each turn is announced: it may crash the process.
    """
    begin = time.perf_counter()
    times: dict[str, list[float]] = {}
    first: list[float] = []
    for name in names:
        yield Turn(name, 0)
        try:
            taken = time_turn(name)
            # It may have compiled or tuned kernels: if that leaves most of the time, a second one decides.
            if first and taken > MAX_FIRST_TURN * first[0] and time.perf_counter() - begin + 4 * taken < seconds:
                taken = min(taken, time_turn(name))
        except (RuntimeError, TrainstoneError) as err:
            yield Turn(name, 0, failure=str(err).strip().splitlines()[0])
            continue
        first.append(taken)
        if taken <= MAX_FIRST_TURN * first[0]:
            times[name] = []
        yield Turn(name, 0, taken)
    for number in range(1, MAX_ROUNDS if len(times) > 1 else 1):
        for name in list(times)[:: 1 if number % 2 else -1]:
            yield Turn(name, number)
            times[name].append(time_turn(name))
            yield Turn(name, number, times[name][-1])
        base, *others = times.values()
        intervals = [compare_speed(base, other)[1] for other in others]
        decided = all(ends and (ends[0] > MIN_GAIN or ends[1] < MIN_GAIN) for ends in intervals)
        if decided or time.perf_counter() - begin > (seconds if number >= MIN_ROUNDS else 2 * seconds):
            return


def alternate_precisions(config: Config, device: torch.device, names: Sequence[str], seconds: float) -> Iterator[Turn]:
    """Train at each precision in turn, with the batch size of `config` or as much of it as fits into memory."""
    with TrialNetwork(config, device) as network:
        size = config.train.batch_size
        assert size != "auto"  # engine/fit.py has chosen it
        if device.type != "cpu":
            size = find_first(network, names[0], size).batch_size
        yield from alternate(lambda name: network.time_turn(name, size), names, seconds)


def compare_speed(slow: Sequence[float], fast: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    """Return how many times as fast the second series is: the median over pairs of turns, with a 95 % interval.

    The interval has order statistics as ends, as the sign test has: a turn that a disturbance made 20 times slower
    counts like any other.
    """
    ratios = sorted(a / b for a, b in zip(slow, fast, strict=False))
    count, cut, tail = len(ratios), 0, 0.5 ** len(ratios)
    while tail <= 0.025:
        cut += 1
        tail += math.comb(count, cut) * 0.5**count
    return statistics.median(ratios), (ratios[cut - 1], ratios[count - cut]) if cut else None


def summarise_turns(turns: Sequence[Turn], names: Sequence[str]) -> list[SpeedTrial]:
    """Return what the turns show about each choice relative to the first one that works."""
    failures = {turn.name: turn.failure for turn in turns if turn.failure}
    times: dict[str, list[list[float]]] = {name: [[], []] for name in names}  # of first turns, and of rounds
    for turn in turns:
        if turn.seconds and turn.name not in failures:
            times[turn.name][turn.number > 0].append(turn.seconds)
    base = next((name for name in names if times[name][0]), names[0])
    found = []
    for name in names:
        rounds = bool(times[name][1])
        ratio, ci95 = compare_speed(times[base][rounds], times[name][rounds]) if times[name][0] else (None, None)
        failure = failures.get(name, "no turn ended in time") if ratio is None else None
        found.append(SpeedTrial(name=name, ratio=ratio, ci95=ci95 if name != base else None, failure=failure))
    return found


def choose_precision(found: Sequence[SpeedTrial], candidates: Sequence[str]) -> tuple[str, bool]:
    """Return the fastest candidate, and whether the intervals decide so; of almost equal ones the first.

    The first of all is the base, fp32.
    """
    choice, undecided = found[0], False
    for trial in found[1:]:
        if trial.name not in candidates or trial.ratio is None:
            continue
        low, high = trial.ci95 or ((0.0, 0.0) if trial.ratio < 1 / MAX_FIRST_TURN else (0.0, math.inf))
        undecided = undecided or low <= MIN_GAIN <= high
        if low > MIN_GAIN and trial.ratio > MIN_GAIN * (choice.ratio or 0.0):
            choice = trial
    return choice.name, choice is not found[0] or not undecided


def try_precisions(
    config: Config, device: torch.device, names: Sequence[str], seconds: float
) -> Generator[Progress, None, list[Turn]]:
    """Compare precisions; on a CPU in child processes, where a crash loses only the precision that caused it."""
    end, live, turns = time.perf_counter() + seconds, list(names), list[Turn]()
    run = run_child if device.type == "cpu" else alternate_precisions
    while True:
        with closing(run(config, device, live, max(1.0, end - time.perf_counter()))) as running:
            for turn in running:
                turns.append(turn)
                yield Progress(f"comparing precisions: {turn.name}")
        if not turns or not turns[-1].failure or len(live) <= 2:
            return turns
        live.remove(turns[-1].name)


def run_child(config: Config, device: torch.device, names: Sequence[str], seconds: float) -> Iterator[Turn]:
    """Run alternate_precisions in a child process; if that crashes, the last turn says so."""
    command = [sys.executable, "-P", "-m", "trainstone.engine.trials", str(device), ",".join(names)]
    command.append(str(time.time() + seconds))  # importing torch counts, too
    last, text = Turn(names[0], 0), "failed without a message"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    # A new session: a Ctrl-C must not reach the child and look like a precision that crashed.
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as child:
        timeout = threading.Timer(seconds + CHILD_SECONDS, child.kill)
        timeout.start()
        try:
            assert child.stdin and child.stdout  # noqa: PT018
            with suppress(BrokenPipeError):
                child.stdin.write(config.model_dump_json())
                child.stdin.close()
            for line in child.stdout:
                if line.startswith(MARK):
                    last = Turn(*json.loads(line.removeprefix(MARK)))
                    yield last
                else:
                    text = line.strip() or text  # a library's, or the last line of a traceback
            child.wait()
        finally:
            timeout.cancel()
            child.kill()
    # SIGKILL comes from the timer or from outside, and does not show what the precision can do.
    if child.returncode not in (0, -signal.SIGKILL):
        crash = f"crashed: {signal.strsignal(-child.returncode)}" if child.returncode < 0 else text
        yield Turn(last.name, last.number, failure=crash)


def try_batches(
    network: TrialNetwork, first: BatchTrial, fits: Callable[[int], bool], seconds: float
) -> Generator[Progress, None, tuple[list[BatchTrial], Literal["knee", "memory", "time"]]]:
    """Double the batch size as long as the speed rises; return the trials and why they ended."""
    rows, end = [first], time.perf_counter() + seconds
    while True:
        last, size = rows[-1], 2 * rows[-1].batch_size
        if len(rows) > 1 and last.images_per_second <= MIN_RISE * max(row.images_per_second for row in rows[:-1]):
            return rows, "knee"
        if not fits(size):
            return rows, "memory"
        if time.perf_counter() + COST_IN_TURNS * 2 * last.step_seconds * network.steps_per_turn > end:
            return rows, "time"
        yield Progress(f"trying batch sizes: {size}", images_per_second=last.images_per_second)
        row = time_if_fits(network, last.precision, size)
        if row is None:
            return rows, "memory"
        rows.append(row)


def find_first(network: TrialNetwork, precision: str, size: int) -> BatchTrial:
    """Time a batch size, halved until it fits into the memory of the device."""
    while (row := time_if_fits(network, precision, size)) is None:
        if size <= 2:
            raise OutOfMemoryError(f"out of memory: not even {size} images fit into the memory of the device")
        size //= 2
    return row


def time_batch(network: TrialNetwork, precision: str, size: int) -> BatchTrial:
    network.time_turn(precision, size)
    begin, seconds = time.perf_counter(), list[float]()
    while len(seconds) < MIN_TURNS or (len(seconds) < MAX_TURNS and time.perf_counter() - begin < TURNS_SECONDS):
        seconds.append(network.time_turn(precision, size))
    return BatchTrial(precision=precision, batch_size=size, step_seconds=min(seconds))


def time_if_fits(network: TrialNetwork, precision: str, size: int) -> BatchTrial | None:
    """Time a batch size; None if it does not fit into memory."""
    try:
        return time_batch(network, precision, size)
    except RuntimeError as err:
        if devices.is_out_of_memory(err):
            return None
        raise


def find_knee(rows: Sequence[BatchTrial]) -> BatchTrial:
    """Return the smallest batch size within 3 % of the fastest."""
    best = max(row.images_per_second for row in rows)
    return min((row for row in rows if row.images_per_second >= NEAR_BEST * best), key=lambda row: row.batch_size)


def find_cache_file(config: Config, device: torch.device) -> Path:
    """Return the file of the trials of this machine, software and recipe; batch size and precision do not matter."""
    info, model, train, engine = read_cpuinfo(), config.model, config.train, config.engine
    key = {
        "software": [__version__, torch.__version__],
        "cpu": [info.get("model name"), info.get("flags") or info.get("Features")],
        "cores": [engine.threads, available_cores().threads, count_local_ranks()],
        "memory": [memory_limit_bytes(), round(psutil.virtual_memory().total / 2**30)],
        "device": [device.type, devices.name_device(device)],
        "environment": [os.environ.get(name) for name in VARIABLES],
        "recipe": [config.workload, config.data.image_size, config.optimizer.name, train.mixup, train.ema],
        "model": model.model_dump(mode="json", exclude={"pretrained"}),
        "engine": [engine.channels_last, engine.cudnn_benchmark, engine.deterministic, engine.keep_memory],
    }
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return cache_folder() / "trials" / f"{name}.json"


def read_trials(file: Path) -> Trials | None:
    try:
        return Trials.model_validate_json(file.read_bytes()).model_copy(update={"reused": True})
    except (OSError, ValidationError):
        return None


def store_trials(file: Path, trials: Trials) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(
            file, trials.model_dump_json(indent=1, exclude_none=True, exclude={"reused", "chosen_batch_size"})
        )
    except (OSError, ResultError) as err:
        log.info("cannot store trials in %s: %s", file, err)


if __name__ == "__main__":
    restore_affinity()  # OpenMP may have bound the parent process, and so this one, to one core
    requested = Config.model_validate_json(sys.stdin.read())
    left = float(sys.argv[3]) - time.time()
    for turn in alternate_precisions(requested, torch.device(sys.argv[1]), sys.argv[2].split(","), left):
        sys.stdout.write(f"{MARK}{json.dumps(turn)}\n")
        sys.stdout.flush()
