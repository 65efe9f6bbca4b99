"""Try precisions, batch sizes and torch.compile in short steps of the real network, and remember the results.

On a CPU, 16-bit precisions are tried in a child process: CPU flags are not reliable, and a virtual machine that reports
AMX may crash with an illegal instruction. engine/fit.py decides what to try and what follows from it.
"""

import gc
import hashlib
import json
import logging
import math
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
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
from trainstone.errors import ResultError, TrainstoneError
from trainstone.files import cache_folder, write_atomically
from trainstone.machine.allocator import keeps_memory, release_free_memory
from trainstone.machine.cpus import memory_limit_bytes, read_cpuinfo, restore_affinity
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
MAX_FIRST_STEP = 3.0
"""A precision whose first step takes so many times as long as fp32's is emulated, and not tried further."""
MIN_RISE = 1.03
"""A larger batch is tried as long as the last one was faster by this factor."""
NEAR_BEST = 0.97
MIN_TURNS, MAX_TURNS, TURNS_SECONDS = 2, 20, 0.4
"""Timed turns of a batch size: at least two, and more within TURNS_SECONDS."""
COST_IN_TURNS = 2 + MIN_TURNS
"""Time of a batch size's trial in turns: the first one allocates memory and takes up to twice as long."""
CHILD_START_SECONDS = 60.0
"""How long a child process may take beyond its budget: it imports torch and runs first steps."""
KEY_SECTIONS = ("model", "detect", "augment", "optimizer", "train", "parallel", "engine")
NOT_STORED = {"reused", "chosen_batch_size", "best_batch_size"}
CHOSEN_KEYS = {"train": {"batch_size", "precision", "adapt", "accumulate"}, "engine": {"compile"}}


class Turn(NamedTuple):
    """A timed turn of one choice. Round 0 is its first; without seconds it is about to start, or failed."""

    name: str
    round: int
    seconds: float | None = None
    failure: str | None = None
    batch_size: int = 0


class TrialNetwork:
    """One network on its device, trained at any precision and batch size. A context manager: frees it at the end."""

    def __init__(self, config: Config, device: torch.device) -> None:
        config = change_section(config, "model", pretrained=None)
        config = change_section(config, "data", source="synthetic", num_synthetic_batches=1)
        config = change_section(config, "engine", compile=False, cuda_graphs=False, split_phases=False)
        self._config = change_section(config, "train", accumulate=1, batch_size=1, precision="fp32")
        self._task = build_task(self._config, device)
        self._device, self._timer = device, choose_timer(device)
        self.steps_per_turn = 1 if device.type == "cpu" else 5
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
        task = replace(
            self._task,
            model=called,
            autocast=lambda: devices.autocast(device, precision),
            scale=LossScale(device, precision, scale),
            batches=prefetch_to_device(batches, device),
            images_per_step=batch_size,
        )
        steps = train_steps(task, self._timer, num_steps=self.steps_per_turn)
        return statistics.fmean(record.step_seconds for record in steps)

    def find_start(self, precision: str, batch_size: int) -> int:
        """Return the batch size, halved until a step fits into the memory of the device."""
        while True:
            try:
                self.time_turn(precision, batch_size)
            except RuntimeError as err:
                if not devices.is_out_of_memory(err) or batch_size <= 2:
                    raise
            else:
                return batch_size
            batch_size //= 2
            release_memory(self._device)


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


def alternate(
    time_turn: Callable[[str], float], names: Sequence[str], end: float, max_first: float = math.inf
) -> Iterator[Turn]:
    """Take turns (A B B A) until the intervals allow a choice, or until `end` on the clock.

    A choice that fails, or whose first turn takes `max_first` times as long as the first one's, gets no further turns.
    """
    times: dict[str, list[float]] = {}
    first: list[float] = []
    for name in names:
        yield Turn(name, 0)  # the next turn may crash the process
        try:
            first.append(time_turn(name))
        except (RuntimeError, TrainstoneError) as err:
            yield Turn(name, 0, failure=str(err).strip().splitlines()[0])
            continue
        if first[-1] <= max_first * first[0]:
            times[name] = []
        yield Turn(name, 0, first[-1])
    for number in range(MAX_ROUNDS if len(times) > 1 else 0):
        for name in list(times)[:: 1 if number % 2 else -1]:
            seconds = time_turn(name)
            if number:  # the first round warms up
                times[name].append(seconds)
                yield Turn(name, number, seconds)
        if number and (choose_fastest(times)[1] or time.perf_counter() > end):
            return


def alternate_precisions(config: Config, device: torch.device, names: Sequence[str], seconds: float) -> Iterator[Turn]:
    """Train at each precision in turn, with as many images per step as the time allows."""
    end, spent = time.perf_counter() + seconds, 0.0
    with TrialNetwork(config, device) as network:
        batch = network.find_start(names[0], smallest_batch(config, device))
        largest = 16 if device.type == "cpu" else 256  # large batches are closer to the speed of a run
        time_turn = lambda name: network.time_turn(name, batch)  # noqa: E731  the batch grows
        for turn in alternate(time_turn, names, end, MAX_FIRST_STEP):
            yield turn._replace(batch_size=batch)
            if turn.round == 0:
                spent += turn.seconds or 0.0
                done = turn.name == names[-1] and (turn.seconds or turn.failure)
                # Half of the time is kept for disturbed turns.
                while done and batch < largest and spent * 4 * MIN_ROUNDS < (end - time.perf_counter()):
                    batch, spent = batch * 2, spent * 2


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


def choose_fastest(times: Mapping[str, Sequence[float]]) -> tuple[str, bool]:
    """Return the first name that none is faster than by MIN_GAIN, and whether the intervals decide so."""

    def gain(slow: str, fast: str) -> tuple[float, float]:
        return compare_speed(times[slow], times[fast])[1] or (0.0, math.inf)

    names = list(times)
    choice = names[0]
    for name in names[1:]:
        if gain(choice, name)[0] > MIN_GAIN:
            choice = name
    at = names.index(choice)
    slower = all(gain(name, choice)[0] > MIN_GAIN for name in names[:at])
    return choice, slower and all(gain(choice, name)[1] < MIN_GAIN for name in names[at + 1 :])


def summarise_turns(turns: Sequence[Turn], names: Sequence[str]) -> tuple[list[SpeedTrial], str, bool]:
    """Return what the turns show about each choice, the fastest, and whether the intervals decide so."""
    first = {turn.name: turn for turn in turns if turn.round == 0}
    times = {name: [turn.seconds for turn in turns if turn.round and turn.name == name] for name in names}
    base = next((name for name in names if first[name].seconds), names[0])
    found = []
    for name in names:
        ratio, ci95 = None, None
        if first[name].seconds:
            rounds = times if times[name] else {each: [first[each].seconds] for each in (base, name)}
            ratio, ci95 = compare_speed(rounds[base], rounds[name])
        trial = SpeedTrial(name=name, ratio=ratio, ci95=ci95 if name != base else None, failure=first[name].failure)
        found.append(trial)
    live = {name: times[name] for name in names if times[name] and not first[name].failure}
    return found, *(choose_fastest(live) if live else (base, True))


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
                rate = turn.batch_size / turn.seconds if turn.seconds else None
                yield Progress(f"comparing precisions: {turn.name}", images_per_second=rate)
        if not turns[-1].failure or len(live) <= 2:
            return turns
        live.remove(turns[-1].name)


def run_child(config: Config, device: torch.device, names: Sequence[str], seconds: float) -> Iterator[Turn]:
    """Run alternate_precisions in a child process; if that crashes, the last turn says so."""
    command = [sys.executable, "-P", "-m", "trainstone.engine.trials", str(device), ",".join(names)]
    command.append(str(time.time() + seconds))  # importing torch counts, too
    last, text = Turn(names[0], 0), config.model_dump_json()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # A new session: a Ctrl-C must not reach the child and look like a precision that crashed.
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as child:
        timeout = threading.Timer(seconds + CHILD_START_SECONDS, child.kill)
        timeout.start()
        try:
            assert child.stdin and child.stdout and child.stderr  # noqa: PT018
            with suppress(BrokenPipeError):
                child.stdin.write(text)
                child.stdin.close()
            for line in child.stdout:
                last = Turn(*json.loads(line))
                yield last
            errors = child.stderr.read().strip().splitlines() or ["failed without a message"]
            child.wait()
        finally:
            timeout.cancel()
            child.kill()
    if child.returncode:
        crash = f"crashed: {signal.strsignal(-child.returncode)}" if child.returncode < 0 else errors[-1]
        yield last._replace(round=0, seconds=None, failure=crash)


def try_batches(
    network: TrialNetwork,
    precision: str,
    sizes: Iterable[int],
    fits: Callable[[int], bool],
    seconds: float,
) -> Generator[Progress, None, tuple[list[BatchTrial], Literal["knee", "memory", "time"]]]:
    """Time one batch size after the other, as long as the speed rises; return the trials and why they ended."""
    rows, end = list[BatchTrial](), time.perf_counter() + seconds
    for size in sizes:
        if not fits(size):
            return rows, "memory"
        if rows:
            turn = rows[-1].median_step_seconds * size / rows[-1].batch_size * network.steps_per_turn
            if time.perf_counter() + COST_IN_TURNS * turn > end:
                return rows, "time"
        yield Progress(f"trying batch sizes: {size}", images_per_second=rows[-1].images_per_second if rows else None)
        row = time_if_fits(network, precision, size)
        if row is None:
            return rows, "memory"
        rows.append(row)
        if not rises(rows):
            # A disturbance would look the same: time those again whose turns differ.
            for number in (-2, -1):
                differ = rows[number].median_step_seconds > MIN_RISE * rows[number].step_seconds
                if not differ or time.perf_counter() > end:
                    continue
                again = time_batch(network, precision, rows[number].batch_size, warm=False)
                rows[number] = min(rows[number], again, key=lambda row: row.step_seconds)
            if not rises(rows):
                return rows, "knee"
    return rows, "knee"


def rises(rows: Sequence[BatchTrial]) -> bool:
    rates = [row.images_per_second for row in rows]
    return len(rates) < 2 or rates[-1] > MIN_RISE * max(rates[:-1])


def time_batch(network: TrialNetwork, precision: str, size: int, *, warm: bool = True) -> BatchTrial:
    if warm:
        network.time_turn(precision, size)
    begin, seconds = time.perf_counter(), list[float]()
    while len(seconds) < MIN_TURNS or (len(seconds) < MAX_TURNS and time.perf_counter() - begin < TURNS_SECONDS):
        seconds.append(network.time_turn(precision, size))
    return BatchTrial(
        precision=precision,
        batch_size=size,
        step_seconds=min(seconds),
        median_step_seconds=statistics.median(seconds),
    )


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
    info = read_cpuinfo()
    document = config.model_dump(mode="json", exclude=CHOSEN_KEYS)
    key = {
        "software": [__version__, torch.__version__],
        "cpu": [info.get("model name"), info.get("flags") or info.get("Features")],
        "cores": [config.engine.threads, count_local_ranks()],
        "memory": [memory_limit_bytes(), psutil.virtual_memory().total],
        "allocator": keeps_memory(),
        "device": [device.type, *(devices.name_device(torch.device(name)) for name in devices.list_devices())],
        "recipe": [config.workload, config.data.image_size, *(document[name] for name in KEY_SECTIONS)],
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
        write_atomically(file, trials.model_dump_json(indent=1, exclude_none=True, exclude=NOT_STORED))
    except (OSError, ResultError) as err:
        log.info("cannot store trials in %s: %s", file, err)


if __name__ == "__main__":
    restore_affinity()  # OpenMP may have bound the parent process, and so this one, to one core
    requested = Config.model_validate_json(sys.stdin.read())
    left = float(sys.argv[3]) - time.time()
    for turn in alternate_precisions(requested, torch.device(sys.argv[1]), sys.argv[2].split(","), left):
        sys.stdout.write(json.dumps(turn) + "\n")
        sys.stdout.flush()
