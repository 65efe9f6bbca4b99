"""Telemetry sampled down for pictures: means over buckets of time, with every throttle reason kept. Bounded memory."""

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainstone.results.samples import HINDRANCES, NAMES, Cells, iterate_cells
from trainstone.results.thinning import Array, Buckets

SHOWN = tuple(name for name in NAMES if name not in ("energy_joules", "throttle"))
REASONS = tuple(sorted(HINDRANCES))
NUM_BUCKETS = 500
BLOCK_ROWS = 4096


@dataclass(frozen=True)
class TelemetryPoint:
    """A stretch of time: when it begins, means of what was measured, what hindered the device in it."""

    time_seconds: float
    means: dict[str, float]
    throttle: tuple[str, ...]


def sample_telemetry(path: Path, num_buckets: int = NUM_BUCKETS) -> list[TelemetryPoint]:
    """Read a telemetry file into at most twice num_buckets points of equally many samples each."""
    counts = [f"{name} counted" for name in SHOWN]
    buckets = Buckets(num_buckets, first=("time",), high=REASONS, total=(*SHOWN, *counts))
    cells = iterate_cells(path)
    while block := list(itertools.islice(cells, BLOCK_ROWS)):
        buckets.add(_read_block(block))
    columns = buckets.columns()
    points = []
    for place, time in enumerate(columns["time"].tolist()):
        known = [name for name in SHOWN if columns[f"{name} counted"][place]]
        means = {name: float(columns[name][place] / columns[f"{name} counted"][place]) for name in known}
        points.append(TelemetryPoint(time, means, tuple(name for name in REASONS if columns[name][place])))
    return points


def _read_block(block: list[Cells]) -> dict[str, Array]:
    """Return the columns of some samples; what was not measured counts for nothing."""
    columns = {"time": np.array([cells.time_seconds for cells in block])}
    for name in SHOWN:
        read = [cells.numbers[NAMES.index(name)] for cells in block]
        columns[name] = np.array([0.0 if value is None else value for value in read])
        columns[f"{name} counted"] = np.array([float(value is not None) for value in read])
    told = [set(cells.throttle.split("|")) for cells in block]
    return columns | {reason: np.array([float(reason in reasons) for reasons in told]) for reason in REASONS}
