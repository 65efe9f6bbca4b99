"""Telemetry samples and their file, telemetry-<host>-<device>.csv: format, read and summarise them."""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from trainstone.errors import ResultError

# Throttle reasons that count. A power cap does not: large GPUs always reach theirs under load.
THROTTLE_REASONS = frozenset({"thermal", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"})
THROTTLED_PERCENT = 1.0  # of the samples; a single one may be a glitch


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of a device's sensors. The energy counter only grows; throttle is "none" or reasons joined by |."""

    clock_mhz: float | None = None
    mem_clock_mhz: float | None = None
    power_watts: float | None = None
    energy_joules: float | None = None
    temp_celsius: float | None = None
    util_percent: float | None = None
    mem_used_bytes: int | None = None
    throttle: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySample(Reading):
    time_seconds: float
    step: int | None


NAMES = tuple(field.name for field in fields(Reading))
_MEDIANS = tuple(name for name in NAMES if name not in ("energy_joules", "throttle"))
HEADER = ",".join(("time_seconds", "step", *NAMES))


def format_sample(sample: TelemetrySample) -> str:
    cells = [f"{sample.time_seconds:.3f}", _format_cell(sample.step)]
    return ",".join(cells + [_format_cell(getattr(sample, name)) for name in NAMES]) + "\n"


def iterate_samples(path: Path) -> Iterator[TelemetrySample]:
    """Read a telemetry file line by line; a line truncated by a kill or a full disk is dropped."""
    try:
        with path.open("rb") as file:
            first = file.readline()
            header = first.decode("utf-8", "replace").rstrip("\r\n")
            if header != HEADER and (first.endswith(b"\n") or not HEADER.startswith(header)):
                raise ResultError(f"{path} is not a telemetry file: it begins with {header[:60]!r}, not {HEADER!r}")
            for line in file:
                sample = _parse(line.decode("utf-8", "replace").rstrip("\r\n")) if line.endswith(b"\n") else None
                if sample is not None:
                    yield sample
    except OSError as error:
        raise ResultError(f"cannot read telemetry {path}: {error.strerror}") from error


def read_samples(path: Path) -> list[TelemetrySample]:
    return list(iterate_samples(path))


def summarise(
    samples: Sequence[TelemetrySample], from_seconds: float, to_seconds: float, meter: str | None = None
) -> dict[str, Any]:
    """Summarise the steady window: medians, and energy only from an energy counter, whose name is `meter`.

    `joules` and `average_watts` cover the `energy_seconds` of the window that has samples; the counter is interpolated
    linearly between them. `power_watts` is the median of single readings and is never used as energy.
    """
    inside = [sample for sample in samples if from_seconds <= sample.time_seconds <= to_seconds]
    summary: dict[str, Any] = {"num_samples": len(inside)}
    for name in _MEDIANS:
        values = [value for sample in inside if (value := getattr(sample, name)) is not None]
        middle = statistics.median(values) if values else None
        summary[name] = int(middle) if middle is not None and name == "mem_used_bytes" else middle
        if name in ("temp_celsius", "mem_used_bytes"):
            summary[f"max_{name}"] = max(values, default=None)
    energy = _count_energy(samples, from_seconds, to_seconds)
    summary["joules"], summary["energy_seconds"] = energy or (None, None)
    summary["average_watts"] = energy[0] / energy[1] if energy else None
    summary["meter"] = meter if energy else None
    reasons = [sample.throttle.split("|") for sample in inside if sample.throttle]
    counts = Counter(name for names in reasons for name in names if name != "none").most_common()
    summary["throttle_percent"] = {name: 100 * count / len(reasons) for name, count in counts} if reasons else None
    throttled = sum(not THROTTLE_REASONS.isdisjoint(names) for names in reasons)
    summary["throttled"] = 100 * throttled / len(reasons) >= THROTTLED_PERCENT if reasons else None
    return summary


def _count_energy(
    samples: Sequence[TelemetrySample], from_seconds: float, to_seconds: float
) -> tuple[float, float] | None:
    """Return (joules, seconds measured) in the window, or None without a growing counter."""
    counter = [(s.time_seconds, s.energy_joules) for s in samples if s.energy_joules is not None]
    joules = seconds = 0.0
    for (time_a, energy_a), (time_b, energy_b) in itertools.pairwise(counter):
        covered = min(time_b, to_seconds) - max(time_a, from_seconds)
        if covered <= 0:
            continue
        if energy_b < energy_a:  # reset: the energy in between is unknown
            return None
        joules += (energy_b - energy_a) * covered / (time_b - time_a)
        seconds += covered
    return (joules, seconds) if joules > 0 else None  # a counter that does not grow measures nothing


def _format_cell(value: float | str | None) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _parse(line: str) -> TelemetrySample | None:
    cells = line.split(",")
    if len(cells) != len(NAMES) + 2:
        return None
    try:
        time_seconds, step = float(cells[0]), int(cells[1]) if cells[1] else None
        values: dict[str, Any] = {name: float(cell) for name, cell in zip(NAMES, cells[2:-1], strict=False) if cell}
    except ValueError:
        return None
    # A sum is finite only if all its parts are; parts that overflow are not measurements either.
    if not math.isfinite(sum(values.values(), time_seconds)):
        return None
    if "mem_used_bytes" in values:
        values["mem_used_bytes"] = int(values["mem_used_bytes"])
    return TelemetrySample(time_seconds=time_seconds, step=step, throttle=cells[-1] or None, **values)
