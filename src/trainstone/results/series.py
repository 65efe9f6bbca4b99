"""Downsample a run's steps, losses and telemetry to about a thousand buckets, for any length of run.

Each bucket of steps keeps its shortest and longest step, so that outliers stay visible.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trainstone.errors import ResultError
from trainstone.results.steps import Columns, read_blocks
from trainstone.results.telemetry import THROTTLE_REASONS, iterate_samples
from trainstone.stats.downsample import downsample
from trainstone.stats.series import Array

STEP_COLUMNS = ("step", "start_seconds", "data_seconds", "step_seconds")
KEPT_COLUMNS = ("step", "start_seconds", "step_seconds")
# Histogram bins are 0.2 % wide, from 0.1 µs to more than a day: fine enough for any chart.
BIN_WIDTH = math.log(1.002)
SHORTEST_SECONDS = 1e-7
NUM_BINS = 14_000
NUM_POINTS = 500
SMOOTH_SHARE = 0.03  # share of the run that a smoothed loss averages over
HIGHEST_LOSS = 1e30  # a larger loss counts as not finite: training has diverged, and sums would overflow
SHOWN = ("clock_mhz", "mem_clock_mhz", "power_watts", "temp_celsius", "util_percent", "mem_used_bytes")
REASONS = tuple(sorted(THROTTLE_REASONS))


@dataclass(frozen=True)
class StepSeries:
    """Arrays over buckets of neighbouring steps; a short run has one step per bucket."""

    num_steps: int
    first_step: Array
    count: Array
    start_seconds: Array
    mean_seconds: Array
    low_seconds: Array
    high_seconds: Array
    end_seconds: float  # when the last step ended, on the run's clock
    bin_seconds: Array
    """Lower edges of the histogram's filled bins (each BIN_WIDTH wide), steps of the steady window only."""
    bin_count: Array
    kept: Columns = field(default_factory=dict)  # KEPT_COLUMNS of the steps in `keep_steps`

    @property
    def bucket_steps(self) -> int:
        return int(self.count.max())


def sample_steps(
    path: Path, num_buckets: int = 1000, *, steady_from: int = 0, keep_steps: Sequence[int] = ()
) -> StepSeries | None:
    """Downsample a step file; None if it has no step. A truncated last line is dropped."""
    wanted = np.asarray(sorted(keep_steps), dtype=np.float64)
    end = 0.0
    histogram = np.zeros(NUM_BINS)
    kept = [np.empty((3, 0))]

    def take(block: Columns) -> dict[str, Array]:
        nonlocal end
        for name in STEP_COLUMNS:
            bad = ~(block[name] >= 0) | (block[name] == np.inf)
            if bad.any():
                at, value = float(block["step"][bad][0]), float(block[name][bad][0])
                raise ResultError(f"{path}: {name} of step {at:g} is {value}; expected a finite value of at least 0")
        step, spent = block["step"], block["step_seconds"]
        end = float(block["start_seconds"][-1] + spent[-1])
        bins = np.log(np.maximum(spent[step >= steady_from], SHORTEST_SECONDS) / SHORTEST_SECONDS) / BIN_WIDTH
        histogram[:] += np.bincount(np.clip(bins + 1e-9, 0, NUM_BINS - 1).astype(np.int64), minlength=NUM_BINS)
        kept.append(np.stack([block[name] for name in KEPT_COLUMNS])[:, np.isin(step, wanted)])
        return {"step": step, "start": block["start_seconds"], "low": spent, "high": spent, "seconds": spent}

    combine = {"low": np.minimum, "high": np.maximum, "seconds": np.add}
    num_steps, total = downsample(map(take, read_blocks(path, STEP_COLUMNS)), num_buckets, combine)
    if num_steps == 0:
        return None
    filled = np.flatnonzero(histogram)
    return StepSeries(
        num_steps=num_steps,
        first_step=total["step"],
        count=total["count"],
        start_seconds=total["start"],
        mean_seconds=total["seconds"] / total["count"],
        low_seconds=total["low"],
        high_seconds=total["high"],
        end_seconds=end,
        bin_seconds=SHORTEST_SECONDS * np.exp(filled * BIN_WIDTH),
        bin_count=histogram[filled],
        kept=dict(zip(KEPT_COLUMNS, np.concatenate(kept, axis=1), strict=True)),
    )


@dataclass(frozen=True)
class LossCurve:
    num_steps: int
    bucket_steps: int  # steps per point
    step: Array  # middle of the bucket
    loss: Array  # mean of the bucket's finite losses; nan if it has none
    smooth: Array  # moving average of `loss`
    lr: Array
    num_not_finite: int  # losses that are NaN or infinite; they are not in the means


def read_loss(path: Path) -> LossCurve | None:
    """Average neighbouring steps of a step file down to at most 2 x NUM_POINTS points; None if it has no step."""

    def take(block: Columns) -> dict[str, Array]:
        finite = np.abs(block["loss"]) < HIGHEST_LOSS
        return block | {"loss": np.where(finite, block["loss"], 0.0), "known": finite.astype(np.float64)}

    blocks = map(take, read_blocks(path, ("step", "loss", "lr")))
    num_steps, sums = downsample(blocks, NUM_POINTS, dict.fromkeys(("step", "loss", "lr", "known"), np.add))
    if num_steps == 0:
        return None
    count, known = sums["count"], sums["known"]
    return LossCurve(
        num_steps=num_steps,
        bucket_steps=int(count[0]),
        step=sums["step"] / count,
        loss=_average(sums["loss"], known, 0),
        smooth=_average(sums["loss"], known, round(SMOOTH_SHARE * len(count) / 2)),
        lr=sums["lr"] / count,
        num_not_finite=round(num_steps - known.sum()),
    )


def _average(sums: Array, counts: Array, half: int) -> Array:
    """Average each value with `half` neighbours on both sides; near the ends with fewer, equally many on each."""
    averages = np.full(len(sums), np.nan)
    for index in range(len(sums)):
        width = min(half, index, len(sums) - 1 - index)
        inside = slice(index - width, index + width + 1)
        if counts[inside].any():
            averages[index] = sums[inside].sum() / counts[inside].sum()
    return averages


@dataclass(frozen=True)
class TelemetryPoint:
    time_seconds: float
    means: dict[str, float]
    throttle: tuple[str, ...]


def sample_telemetry(path: Path, num_buckets: int = NUM_POINTS) -> list[TelemetryPoint]:
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
    columns = dict(zip(("time", *SHOWN, *REASONS), np.nan_to_num(table).T, strict=True))
    known = {f"known {name}": np.isfinite(column) * 1.0 for name, column in zip(SHOWN, table.T[1:], strict=False)}
    combine = dict.fromkeys((*SHOWN, *known), np.add) | dict.fromkeys(REASONS, np.maximum)
    points = downsample([columns | known], num_buckets, combine)[1]
    return [
        TelemetryPoint(
            float(time),
            {name: float(points[name][at] / count) for name in SHOWN if (count := points[f"known {name}"][at])},
            tuple(name for name in REASONS if points[name][at]),
        )
        for at, time in enumerate(points["time"])
    ]
