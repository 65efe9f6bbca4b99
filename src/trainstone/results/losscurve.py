"""The training loss and the learning rate over a run, thinned to a picture's worth while the steps are read.

Memory stays bounded whatever the run's length. A loss that is not finite is counted and left out.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainstone.results.steps import Columns, read_blocks
from trainstone.results.thinning import Array, Buckets

NAMES = ("step", "loss", "lr")
NUM_POINTS = 500
SMOOTH_SHARE = 0.03
"""Share of the run that a smoothed point averages over."""

HIGHEST = 1e30
"""Beyond it training has long gone astray, and sums would overflow: taken for not finite."""


@dataclass(frozen=True)
class LossCurve:
    """Arrays over buckets of neighbouring steps; up to twice NUM_POINTS steps, a bucket is one step."""

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
    """Losses that were no number."""


def read_loss(path: Path) -> LossCurve | None:
    """Read a step file; None if it holds no step."""
    return thin_loss(read_blocks(path, NAMES))


def thin_loss(blocks: Iterable[Columns], num_points: int = NUM_POINTS) -> LossCurve | None:
    """Merge neighbours until at most twice num_points are left; None without a step."""
    buckets = Buckets(num_points, total=("count", "finite", "step", "loss", "lr"))
    for block in blocks:
        finite = np.abs(block["loss"]) < HIGHEST
        losses = np.where(finite, block["loss"], 0.0)
        sums = {"count": np.ones_like(losses), "finite": finite.astype(np.float64), "loss": losses}
        buckets.add({"step": block["step"], "lr": block["lr"], **sums})
    if buckets.num_rows == 0:
        return None
    total = buckets.columns()
    return LossCurve(
        num_steps=buckets.num_rows,
        bucket_steps=buckets.width,
        step=total["step"] / total["count"],
        loss=_average(total["loss"], total["finite"], 0),
        smooth=_average(total["loss"], total["finite"], round(SMOOTH_SHARE * len(total["step"]) / 2)),
        lr=total["lr"] / total["count"],
        num_not_finite=int((total["count"] - total["finite"]).sum()),
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
