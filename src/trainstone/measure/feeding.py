"""How fast a loader delivers with 1, 2 ... N threads, nobody training: the measurement behind `trainstone data bench`.

Numbers of threads take turns, up and down again, so that a machine that grows slower hits all alike.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from trainstone.data.loader import STAGES, Loader
from trainstone.machine.cpus import Cores
from trainstone.results import feeding, stats
from trainstone.results.progress import Progress
from trainstone.units import format_count

MIN_BATCHES = 6
"""Of a turn, however long they take."""


@dataclass
class Turns:
    threads: int
    batch_seconds: list[float] = field(default_factory=list)
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    stage_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    pictures: int = 0
    read_bytes: int = 0
    skipped: int = 0


def choose_threads(cores: Cores) -> list[int]:
    """Return 1, 2, 4 ... up to the cores, these, and all hardware threads."""
    most = max(cores.logical, cores.threads)
    powers = [2**power for power in range(most.bit_length())]
    return sorted({count for count in (*powers, cores.threads, most) if count <= most})


def measure_threads(
    open_loader: Callable[[int, int], Loader], counts: Sequence[int], seconds: float, done: list[Turns]
) -> Iterator[Progress]:
    """Let each number of threads deliver, twice, for a share of the time; fills `done`.

    `open_loader` makes a loader of so many threads that begins at a step: every turn has other pictures.
    """
    turns = {count: Turns(count) for count in counts}
    done += turns.values()
    step = 0
    for count in (*counts, *reversed(counts)):
        with open_loader(count, step) as loader:
            yield from take_turn(loader, turns[count], seconds / (2 * len(counts)))
            step = loader.step


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


def summarise_turns(turns: Turns, batch_size: int, cores: int) -> feeding.ThreadPoint:
    seconds = np.asarray(turns.batch_seconds)
    rate = stats.throughput_within(seconds, np.full(len(seconds), float(batch_size)))
    busy = turns.cpu_seconds / turns.wall_seconds if turns.cpu_seconds else None
    return feeding.ThreadPoint(
        threads=turns.threads,
        images_per_second=rate.images_per_second,
        ci95=rate.ci95,
        ci_covers=rate.ci_covers,
        cpu_cores=busy,
        images_per_second_per_core=feeding.rate_per_core(rate.images_per_second, turns.threads, busy, cores),
    )


def split_stages(turns: Turns) -> list[feeding.Stage]:
    total = sum(turns.stage_seconds.values())
    return [
        feeding.Stage(name=name, seconds_per_image=spent / turns.pictures, share=spent / total)
        for name, spent in turns.stage_seconds.items()
    ]
