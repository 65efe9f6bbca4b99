"""Telemetry sampled down for pictures: means over buckets of time, with every throttle reason kept. Bounded memory."""

from dataclasses import dataclass, field
from pathlib import Path

from trainstone.results.samples import NAMES, Cells, iterate_cells

NUMBERS = NAMES[:-1]
NUM_BUCKETS = 500


@dataclass(frozen=True)
class TelemetryPoint:
    """A stretch of time: when it begins, means of what was measured, reasons of throttling seen in it."""

    time_seconds: float
    means: dict[str, float]
    throttle: tuple[str, ...]


@dataclass
class _Bucket:
    time_seconds: float
    num_samples: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0] * len(NUMBERS))
    counts: list[int] = field(default_factory=lambda: [0] * len(NUMBERS))
    throttle: set[str] = field(default_factory=set)

    def add(self, cells: Cells) -> None:
        self.num_samples += 1
        for column, value in enumerate(cells.numbers):
            if value is not None:
                self.sums[column] += value
                self.counts[column] += 1
        if cells.throttle and cells.throttle != "none":
            self.throttle.update(cells.throttle.split("|"))

    def take(self, other: "_Bucket") -> None:
        self.num_samples += other.num_samples
        self.sums = [mine + theirs for mine, theirs in zip(self.sums, other.sums, strict=True)]
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.throttle |= other.throttle

    def as_point(self) -> "TelemetryPoint":
        columns = zip(NUMBERS, self.sums, self.counts, strict=True)
        means = {name: total / count for name, total, count in columns if count and name != "energy_joules"}
        return TelemetryPoint(self.time_seconds, means, tuple(sorted(self.throttle)))


def sample_telemetry(path: Path, num_buckets: int = NUM_BUCKETS) -> list[TelemetryPoint]:
    """Read a telemetry file into at most twice num_buckets points of equally many samples each."""
    buckets: list[_Bucket] = []
    width = 1
    for cells in iterate_cells(path):
        if not buckets or buckets[-1].num_samples >= width:
            if len(buckets) == 2 * num_buckets:
                for left, right in zip(buckets[::2], buckets[1::2], strict=True):
                    left.take(right)
                buckets, width = buckets[::2], 2 * width
            buckets.append(_Bucket(cells.time_seconds))
        buckets[-1].add(cells)
    return [bucket.as_point() for bucket in buckets]
