"""A run's steps sampled down while they are read: some thousand buckets and a histogram, whatever the run's length.

Each bucket keeps its lowest and highest step, so that nothing that stood out is smoothed away. Memory stays bounded.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainstone.errors import ResultError
from trainstone.results.steps import Columns, read_blocks
from trainstone.results.thinning import Array, Buckets

NAMES = ("step", "start_seconds", "data_seconds", "step_seconds")
# Histogram bins are 0.2 % wide, from 0.1 µs to more than a day: fine enough to be summed into any picture.
BIN_WIDTH = math.log(1.002)
SHORTEST_SECONDS = 1e-7
NUM_BINS = 14_000


@dataclass(frozen=True)
class StepSeries:
    """Arrays over buckets of neighbouring steps; up to twice the asked number of steps, a bucket is one step."""

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
    """The steps asked for by number: step, start_seconds, step_seconds."""

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
    for block in read_blocks(path, NAMES):
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
            columns = np.stack([block[name] for name in ("step", "start_seconds", "step_seconds")])
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
        kept=dict(zip(("step", "start_seconds", "step_seconds"), found, strict=True)),
    )


def _check_durations(path: Path, block: Columns) -> None:
    for name in ("step", "start_seconds", "data_seconds", "step_seconds"):
        bad = ~(block[name] >= 0) | (block[name] == np.inf)
        if bad.any():
            step, value = float(block["step"][bad][0]), float(block[name][bad][0])
            raise ResultError(f"{path}: {name} of step {step:g} is {value}; it is finite and not negative")


def _bin_of(seconds: Array) -> NDArray[np.int64]:
    bins = np.log(np.maximum(seconds, SHORTEST_SECONDS) / SHORTEST_SECONDS) / BIN_WIDTH
    return np.clip(bins + 1e-9, 0, NUM_BINS - 1).astype(np.int64)
