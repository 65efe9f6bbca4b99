"""A run's steps, losses and telemetry sampled down to some thousand buckets, whatever the run's length.

Each bucket of steps keeps its lowest and highest one, so that nothing that stood out is smoothed away.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainstone.errors import ResultError
from trainstone.results.samples import HINDRANCES, iterate_samples
from trainstone.results.steps import Columns, read_blocks, read_columns
from trainstone.results.thinning import Array, Buckets, bucket_starts

STEP_COLUMNS = ("step", "start_seconds", "data_seconds", "step_seconds")
KEPT_COLUMNS = ("step", "start_seconds", "step_seconds")
# Histogram bins are 0.2 % wide, from 0.1 µs to more than a day: fine enough to be summed into any picture.
BIN_WIDTH = math.log(1.002)
SHORTEST_SECONDS = 1e-7
NUM_BINS = 14_000
NUM_POINTS = 500
SMOOTH_SHARE = 0.03
"""Share of the run that a smoothed loss averages over."""
HIGHEST_LOSS = 1e30
"""A larger loss is taken for not finite: training has diverged, and sums would overflow."""
SHOWN = ("clock_mhz", "mem_clock_mhz", "power_watts", "temp_celsius", "util_percent", "mem_used_bytes")
REASONS = tuple(sorted(HINDRANCES))


@dataclass(frozen=True)
class StepSeries:
    """Arrays over buckets of neighbouring steps; up to twice the requested number of steps, a bucket is one step."""

    num_steps: int
    first_step: Array
    count: Array
    start_seconds: Array
    mean_seconds: Array
    low_seconds: Array
    high_seconds: Array
    end_seconds: float
    """When the last step ended, on the run's clock."""
    bin_seconds: Array
    """Lower edges of the histogram's filled bins (each BIN_WIDTH wide), steps of the steady window only."""
    bin_count: Array
    kept: Columns = field(default_factory=dict)
    """The steps requested by number: step, start_seconds, step_seconds."""

    @property
    def bucket_steps(self) -> int:
        """How many steps a bucket stands for."""
        return int(self.count.max())


def sample_steps(
    path: Path, num_buckets: int = 1000, *, steady_from: int = 0, keep_steps: Sequence[int] = ()
) -> StepSeries | None:
    """Read a step file; None if it holds no step. Torn last lines are dropped."""
    wanted = np.asarray(sorted(keep_steps), dtype=np.float64)
    buckets = Buckets(num_buckets, first=("step", "start"), low=("low",), high=("high",), total=("count", "seconds"))
    end = 0.0
    histogram = np.zeros(NUM_BINS)
    kept: list[Array] = []
    for block in read_blocks(path, STEP_COLUMNS):
        _check_durations(path, block)
        end = float(block["start_seconds"][-1] + block["step_seconds"][-1])
        spent = block["step_seconds"]
        buckets.add(
            {"step": block["step"], "start": block["start_seconds"], "low": spent, "high": spent}
            | {"count": np.ones_like(spent), "seconds": spent}
        )
        steady = block["step_seconds"][block["step"] >= steady_from]
        histogram += np.bincount(_bin_of(steady), minlength=NUM_BINS)
        if len(wanted):
            columns = np.stack([block[name] for name in KEPT_COLUMNS])
            kept.append(columns[:, np.isin(block["step"], wanted)])
    if buckets.num_rows == 0:
        return None
    found = np.concatenate(kept, axis=1) if kept else np.empty((3, 0))
    filled = np.flatnonzero(histogram)
    total = buckets.columns()
    return StepSeries(
        num_steps=buckets.num_rows,
        first_step=total["step"],
        count=total["count"],
        start_seconds=total["start"],
        mean_seconds=total["seconds"] / total["count"],
        low_seconds=total["low"],
        high_seconds=total["high"],
        end_seconds=end,
        bin_seconds=SHORTEST_SECONDS * np.exp(filled * BIN_WIDTH),
        bin_count=histogram[filled],
        kept=dict(zip(KEPT_COLUMNS, found, strict=True)),
    )


def _check_durations(path: Path, block: Columns) -> None:
    for name in STEP_COLUMNS:
        bad = ~(block[name] >= 0) | (block[name] == np.inf)
        if bad.any():
            step, value = float(block["step"][bad][0]), float(block[name][bad][0])
            raise ResultError(f"{path}: {name} of step {step:g} is {value}; it is finite and not negative")


def _bin_of(seconds: Array) -> NDArray[np.int64]:
    bins = np.log(np.maximum(seconds, SHORTEST_SECONDS) / SHORTEST_SECONDS) / BIN_WIDTH
    return np.clip(bins + 1e-9, 0, NUM_BINS - 1).astype(np.int64)


@dataclass(frozen=True)
class LossCurve:
    """Training loss and learning rate over buckets of neighbouring steps."""

    num_steps: int
    bucket_steps: int
    """How many steps a point stands for."""
    step: Array
    """Middle of the bucket."""
    loss: Array
    """Mean of the bucket's finite losses; nan where it has none."""
    smooth: Array
    """The same over some more neighbours on both sides."""
    lr: Array
    num_not_finite: int
    """Losses that are NaN or infinite; they are not in the means."""


def read_loss(path: Path) -> LossCurve | None:
    """Read a step file; None if it holds no step."""
    columns = read_columns(path, ("step", "loss", "lr"))
    return thin_loss(columns) if columns else None


def thin_loss(columns: Columns) -> LossCurve:
    """Average neighbours until at most twice NUM_POINTS are left."""
    finite = np.abs(columns["loss"]) < HIGHEST_LOSS
    starts = bucket_starts(len(finite), NUM_POINTS)
    count = np.diff(starts, append=len(finite))
    known = np.add.reduceat(finite.astype(np.float64), starts)
    sums = np.add.reduceat(np.where(finite, columns["loss"], 0.0), starts)
    return LossCurve(
        num_steps=len(finite),
        bucket_steps=int(count[0]),
        step=np.add.reduceat(columns["step"], starts) / count,
        loss=_average(sums, known, 0),
        smooth=_average(sums, known, round(SMOOTH_SHARE * len(starts) / 2)),
        lr=np.add.reduceat(columns["lr"], starts) / count,
        num_not_finite=int((~finite).sum()),
    )


def _average(sums: Array, counts: Array, half: int) -> Array:
    """Average each with `half` neighbours on both sides; fewer towards the ends, so that it never leans to one side."""
    averages = np.full(len(sums), np.nan)
    for place in range(len(sums)):
        reach = min(half, place, len(sums) - 1 - place)
        inside = slice(place - reach, place + reach + 1)
        if counts[inside].any():
            averages[place] = sums[inside].sum() / counts[inside].sum()
    return averages


@dataclass(frozen=True)
class TelemetryPoint:
    """A stretch of time: when it begins, means of what was measured, what hindered the device in it."""

    time_seconds: float
    means: dict[str, float]
    throttle: tuple[str, ...]


def sample_telemetry(path: Path, num_buckets: int = NUM_POINTS) -> list[TelemetryPoint]:
    """Read a telemetry file into at most twice num_buckets points of equally many samples each."""
    rows = (
        (
            sample.time_seconds,
            *(np.nan if (value := getattr(sample, name)) is None else value for name in SHOWN),
            *(float(reason in (sample.throttle or "").split("|")) for reason in REASONS),
        )
        for sample in iterate_samples(path)
    )
    table = np.fromiter(rows, dtype=np.dtype((np.float64, 1 + len(SHOWN) + len(REASONS))))
    if not len(table):
        return []
    columns: dict[str, NDArray[np.float64]] = dict(zip(("time", *SHOWN, *REASONS), table.T, strict=True))
    starts = bucket_starts(len(table), num_buckets)
    hindered = {name: np.maximum.reduceat(columns[name], starts) for name in REASONS}
    counts = {name: np.add.reduceat(np.isfinite(columns[name]).astype(np.float64), starts) for name in SHOWN}
    sums = {name: np.add.reduceat(np.nan_to_num(columns[name]), starts) for name in SHOWN}
    return [
        TelemetryPoint(
            float(columns["time"][start]),
            {name: float(sums[name][place] / counts[name][place]) for name in SHOWN if counts[name][place]},
            tuple(name for name in REASONS if hindered[name][place]),
        )
        for place, start in enumerate(starts)
    ]
