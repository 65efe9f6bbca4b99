"""Telemetry sampled down for pictures: means over buckets of time, with every throttle reason kept. Bounded memory."""

from dataclasses import dataclass, field
from pathlib import Path

from trainstone.results.samples import NAMES, Sample, iterate_samples

QUANTITIES = tuple(name for name in NAMES if name not in ("energy_joules", "throttle"))
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
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    throttle: set[str] = field(default_factory=set)

    def add(self, sample: Sample) -> None:
        self.num_samples += 1
        for name in QUANTITIES:
            value = getattr(sample, name)
            if value is not None:
                self.sums[name] = self.sums.get(name, 0.0) + value
                self.counts[name] = self.counts.get(name, 0) + 1
        if sample.throttle and sample.throttle != "none":
            self.throttle.update(sample.throttle.split("|"))

    def take(self, other: "_Bucket") -> None:
        self.num_samples += other.num_samples
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + other.counts[name]
        self.throttle |= other.throttle


def sample_telemetry(path: Path, num_buckets: int = NUM_BUCKETS) -> list[TelemetryPoint]:
    """Read a telemetry file into at most twice num_buckets points of equally many samples each."""
    buckets: list[_Bucket] = []
    width = 1
    for sample in iterate_samples(path):
        if not buckets or buckets[-1].num_samples >= width:
            if len(buckets) == 2 * num_buckets:
                for left, right in zip(buckets[::2], buckets[1::2], strict=True):
                    left.take(right)
                buckets, width = buckets[::2], 2 * width
            buckets.append(_Bucket(sample.time_seconds))
        buckets[-1].add(sample)
    return [
        TelemetryPoint(
            bucket.time_seconds,
            {name: total / bucket.counts[name] for name, total in bucket.sums.items()},
            tuple(sorted(bucket.throttle)),
        )
        for bucket in buckets
    ]
