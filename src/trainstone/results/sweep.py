"""A sweep in result.json: its points as rows, the knee, the fit of step time. What they mean is judged in knee.py."""

import json
import re
from collections.abc import Sequence
from typing import Any, Literal

from trainstone.results.record import Count, Rate, Record, Seconds

BATCH = "train.batch_size"
LARGEST = 1e15
TAKES_MEMORY = (BATCH, "data.image_size", "model.width", "model.depth")
"""Keys of which more needs more memory."""
ORDERED = (*TAKES_MEMORY, "train.accumulate", "engine.threads", "loader.threads")
"""Keys of which more is more work or more means; numbers of others, a seed's, only name a choice."""
RowStatus = Literal["ok", "out_of_memory", "failed", "not_tried"]


class SweepRow(Record):
    """One point. Absent is what was not measured."""

    value: Any = None
    """Of the key that is swept."""
    curve: Any = None
    """Of the second key, where there are two."""
    order: Count
    """Which one it was, from 1: points are run in shuffled order, so that what drifts does not look like a trend."""
    status: RowStatus
    run: str = ""
    """Its folder below the sweep's."""
    note: str = ""
    """Why there is no number, profile or core counter."""
    exit_code: int | None = None
    images_per_step: Count | None = None
    images_per_second: Rate | None = None
    ci95: tuple[float, float] | None = None
    ci_covers: str = ""
    steady: bool = True
    num_steps: Count | None = None
    mfu: float | None = None
    limit: str | None = None
    memory_bytes: Count | None = None
    """Highest use: of the device, where it has memory of its own, else of the process."""
    noise: str = ""
    profile: Literal["ok", "failed"] | None = None
    profile_run: str = ""
    compute_utilisation: float | None = None
    cores_percent: dict[str, float] = {}
    """Of fma, fp16, tensor, sfu those that ncu measured."""


class Knee(Record):
    """The smallest value whose speed is nearly the best of its curve."""

    curve: Any = None
    value: int | float
    images_per_second: Rate
    share_of_best: float
    best_value: int | float
    best_images_per_second: Rate
    could_be: list[int | float] = []
    """Other values that the 95 % intervals leave possible."""


class StepFit(Record):
    """Step time = fixed + per image x images, by least squares over the points of a curve."""

    curve: Any = None
    fixed_seconds: Seconds
    seconds_per_image: Seconds
    error: float
    """Root of the mean squared relative residual."""
    points: Count


class Sweep(Record):
    """What was swept, what came out, and what it means."""

    key: str
    values: list[Any]
    curve_key: str | None = None
    curves: list[Any] = []
    seed: Count = 0
    """Of the order."""
    profile: bool = False
    cores: bool = False
    strict: bool = False
    rows: list[SweepRow] = []
    """By curve and value, both in the order they were given; those that are done."""
    knees: list[Knee] = []
    fits: list[StepFit] = []
    told: list[str] = []
    """Sentences."""

    @property
    def num_points(self) -> int:
        """How many there are in all."""
        return len(self.values) * max(1, len(self.curves))

    def tell_batches(self) -> str | None:
        """Return 1 … 128; nothing where batches are not swept."""
        if self.key != BATCH or not self.values or not is_numeric(self.values):
            return None
        return " … ".join(format_setting(value) for value in dict.fromkeys((min(self.values), max(self.values))))


def format_setting(value: Any) -> str:
    """Return a value as people write it: bf16, true, [0.1, 1]."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def write_setting(value: Any) -> str:
    """Return a value as --over takes it: text in quotes where it could be taken for something else."""
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w./:@-]*", value) and value not in ("true", "false")
    return str(value) if plain else json.dumps(value)


def name_key(key: str) -> str:
    """Return `batch` for the usual one, else the key."""
    return "batch" if key == BATCH else key


def label_point(key: str, value: Any, curve_key: str | None = None, curve: Any = None) -> str:
    """Return batch 16, or batch 16, train.precision bf16."""
    told = f"{name_key(key)} {format_setting(value)}"
    return told if curve_key is None else f"{told}, {name_key(curve_key)} {format_setting(curve)}"


def label_row(sweep: Sweep, row: SweepRow) -> str:
    """Return a row's label."""
    return label_point(sweep.key, row.value, sweep.curve_key, row.curve)


def name_file(label: str) -> str:
    """Return batch_16 for `batch 16`: letters that every file system takes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", label.replace(", ", "_"))[:100].strip("_.") or "point"


def is_numeric(values: Sequence[Any]) -> bool:
    """Say whether all are numbers of a sensible size, so that there is a larger and a smaller."""
    return all(isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < LARGEST for v in values)


def has_order(sweep: Sweep) -> bool:
    """Say whether its values are more and less of something, so that there can be a knee."""
    return sweep.key in ORDERED and is_numeric([*sweep.values, *(row.value for row in sweep.rows)])


def split_curves(sweep: Sweep) -> list[tuple[Any, list[SweepRow]]]:
    """Return the rows of each curve; a sweep of one key is one curve."""
    if sweep.curve_key is None:
        return [(None, sweep.rows)]
    # By their text: True is no 1
    return [
        (curve, [row for row in sweep.rows if format_setting(row.curve) == format_setting(curve)])
        for curve in sweep.curves
    ]
