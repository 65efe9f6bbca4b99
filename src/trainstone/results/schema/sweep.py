"""A sweep in result.json: a row per point, the knee with its uncertainty, and the fit of the step time."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from trainstone.results.schema.record import Count, Rate, Record, Seconds

BATCH = "train.batch_size"
LARGEST = 1e15


class SweepRow(Record):
    """One point of the sweep."""

    value: Any = None  # of the swept key
    curve: Any = None  # of the second swept key, if there is one
    order: Count
    """Position in the run order, from 1. Points are shuffled so that drift does not look like a trend."""
    status: Literal["ok", "out_of_memory", "failed", "not_tried"]
    run: str = ""  # its folder, relative to the sweep's
    note: str = ""  # why the number, profile or core counters are missing
    exit_code: int | None = None
    images_per_step: Count | None = None
    images_per_second: Rate | None = None
    ci95: tuple[float, float] | None = None
    ci_covers: str = ""
    steady: bool = True
    num_steps: Count | None = None
    mfu: float | None = None
    limit: str | None = None
    memory_bytes: Count | None = None  # highest use of the device's memory, or of the process on a CPU
    noise: str = ""
    profile: Literal["ok", "failed"] | None = None
    profile_run: str = ""
    compute_utilisation: float | None = None
    cores_percent: dict[str, float] = {}  # fma, fp16, tensor, sfu, as far as ncu measured them

    @property
    def rate(self) -> float:
        """Images per second; 0 where it was not measured."""
        return self.images_per_second or 0.0

    @property
    def ends(self) -> tuple[float, float]:
        return self.ci95 or (self.rate, self.rate)

    @property
    def half_width(self) -> float | None:
        return (self.ci95[1] - self.ci95[0]) / 2 / self.rate if self.ci95 and self.rate else None


class Knee(Record):
    curve: Any = None
    value: int | float
    images_per_second: Rate
    share_of_best: float
    best_value: int | float
    best_images_per_second: Rate
    could_be: list[int | float] = []  # other possible values, by the 95 % intervals


class StepFit(Record):
    """Step time = fixed + per image x images, by least squares over the points of a curve."""

    curve: Any = None
    fixed_seconds: Seconds
    seconds_per_image: Seconds
    error: float  # root of the mean squared relative residual
    points: Count


class Sweep(Record):
    key: str
    values: Annotated[list[Any], Field(min_length=1)]
    curve_key: str | None = None
    curves: list[Any] = []
    seed: Count = 0  # of the run order
    profile: bool = False
    cores: bool = False
    strict: bool = False
    rows: list[SweepRow] = []  # finished points, by curve and value in the requested order
    knees: list[Knee] = []
    fits: list[StepFit] = []
    sentences: list[str] = []  # what the sweep shows

    @property
    def num_points(self) -> int:
        return len(self.values) * max(1, len(self.curves))

    def describe_batches(self) -> str | None:
        """Return e.g. 1 … 128, or None if the batch size is not swept."""
        if self.key != BATCH or not self.values or not is_numeric(self.values):
            return None
        return " … ".join(format_setting(value) for value in dict.fromkeys((min(self.values), max(self.values))))


def format_setting(value: Any) -> str:
    """Return a value as --set takes it: bf16, true, [0.1, 1]."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def is_numeric(values: Sequence[Any]) -> bool:
    """Return whether all values are numbers that can be ordered."""
    return all(isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < LARGEST for v in values)
