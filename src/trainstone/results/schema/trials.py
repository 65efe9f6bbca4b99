"""The trials that chose precision, batch size and torch.compile: in result.json, and in the cache folder."""

from typing import Literal

from trainstone.results.schema.record import Count, Rate, Record, Seconds
from trainstone.units import format_rate


class SpeedTrial(Record):
    """Speed of one choice relative to another, from alternating steps of the same network."""

    name: str  # fp32, tf32, bf16, fp16, or torch.compile with precision and batch size
    ratio: Rate | None = None  # times as fast as fp32, or as without torch.compile; absent: it did not run
    ci95: tuple[float, float] | None = (
        None  # absent: too few turns, or it ended after a first turn that was far too slow
    )
    failure: str | None = None  # why it did not run

    def describe(self, base: str = "fp32") -> str:
        if self.ratio is None:
            return f"{self.name} does not run ({self.failure})"
        if self.ratio < 1:
            return f"{self.name} takes {1 / self.ratio:.2f} times as long as {base}"
        interval = f" (95 %: {self.ci95[0]:.2f} … {self.ci95[1]:.2f})" if self.ci95 else ""
        return f"{self.name} is {self.ratio:.2f} times as fast as {base}{interval}"


class BatchTrial(Record):
    precision: str
    batch_size: Count
    step_seconds: Seconds  # fastest step

    @property
    def images_per_second(self) -> float:
        return self.batch_size / self.step_seconds


class Trials(Record):
    taken_utc: str  # when the latest was taken, ISO 8601
    reused: bool = False  # all were read from the cache folder, none taken by this run
    precisions: list[SpeedTrial] = []
    batches: list[BatchTrial] = []
    ended: dict[str, Literal["knee", "memory", "time"]] = {}
    """By precision, why no larger batch was tried: it would not be faster, not fit into memory, or take too long."""
    compile: SpeedTrial | None = None
    budget_seconds: dict[str, Seconds] = {}  # measure.seconds of the run that took them, by field or precision
    chosen_batch_size: Count | None = None  # absent: train.batch_size was not auto

    @property
    def taken(self) -> str:
        """When and by which run: "trial of 2026-11-19, reused"."""
        return f"trial of {self.taken_utc[:10]}{', reused' if self.reused else ''}"

    def describe_precisions(self) -> str:
        """Return e.g. bf16 is 1.42 times as fast as fp32 (95 %: 1.38 … 1.46)."""
        return ", ".join(trial.describe() for trial in self.precisions[1:])

    def describe_batches(self) -> str:
        """Return e.g. batch 2: 16.1, 4: 20.9, 8: 24.2 images/s, or nothing if no batch size was tried."""
        rates = [f"{row.batch_size}: {format_rate(row.images_per_second)}" for row in self.batches]
        return f"batch {', '.join(rates)} images/s" if rates else ""
