"""Time a data loader without training: take batches as fast as it delivers them."""

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from trainstone.data.loader import STAGES, Loader
from trainstone.results.progress import Progress
from trainstone.results.schema.data_bench import Stage
from trainstone.units import format_count

MIN_BATCHES = 6
"""Least number of batches per call of time_loader, however long they take."""


@dataclass
class LoaderTiming:
    """What a loader delivered with a number of threads, summed over the calls of time_loader."""

    threads: int
    batch_seconds: list[float] = field(default_factory=list)
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    stage_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    images: int = 0
    read_bytes: int = 0
    skipped: int = 0


def time_loader(
    loader: Loader, turns: LoaderTiming, seconds: float, num_batches: int | None = None, phase: str = ""
) -> Iterator[Progress]:
    """Take batches as fast as they come, for a time or a number; batches that were ready at the start do not count."""
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
        enough = taken >= MIN_BATCHES and last - begin >= seconds
        if enough if num_batches is None else taken >= num_batches:
            break
    turns.wall_seconds += last - begin
    turns.cpu_seconds += time.process_time() - cpu
    stages = loader.stages()
    for name in STAGES:
        turns.stage_seconds[name] += stages.seconds[name]
    turns.images += stages.images
    turns.read_bytes += stages.read_bytes
    turns.skipped += loader.skipped


def split_stages(turns: LoaderTiming) -> list[Stage]:
    total = sum(turns.stage_seconds.values())
    return [
        Stage(name=name, seconds_per_image=spent / turns.images, share=spent / total)
        for name, spent in turns.stage_seconds.items()
    ]
