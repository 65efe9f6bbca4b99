"""Samples one device while a run goes on, into telemetry-<host>-<device>.csv; reads that file and sums it up.

The file grows by a whole line at each sample and so is the run's heart-beat too. What is read of a device:
meters.py; nothing here knows a device, and no failure of the sampler ends the run.
"""

import contextlib
import itertools
import logging
import math
import platform
import re
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol

from trainstone.errors import ResultError

log = logging.getLogger(__name__)

# Reasons that mean the device was hindered. A power cap is not one: big GPUs at work always run into theirs.
HINDRANCES = frozenset({"thermal", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"})
HINDERED_PERCENT = 1.0  # of the samples; a single one may be an accident
JOIN_SECONDS = 5.0  # a driver that hangs must not keep the run from ending


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at a device. The energy counter only grows; throttle is "none" or reasons joined by |."""

    clock_mhz: float | None = None
    mem_clock_mhz: float | None = None
    power_watts: float | None = None
    energy_joules: float | None = None
    temp_celsius: float | None = None
    util_percent: float | None = None
    mem_used_bytes: int | None = None
    throttle: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Reading):
    """A line of the file: a reading, when it was taken and which step was running."""

    time_seconds: float
    step: int | None


class Reader(Protocol):
    """What can be sampled. `meter` names what counts energy, `unsupported` what cannot be read and why."""

    meter: str | None
    unsupported: list[str]

    def read(self) -> Reading: ...

    def close(self) -> None: ...


_NAMES = tuple(field.name for field in fields(Reading))
_MEDIANS = tuple(name for name in _NAMES if name not in ("energy_joules", "throttle"))
HEADER = ",".join(("time_seconds", "step", *_NAMES))


class Telemetry:
    """Owns sampler thread, file and reader. Use it by `with`; the last sample is taken on leaving."""

    def __init__(
        self,
        folder: Path,
        device_label: str,
        reader: Reader,
        current_step: Callable[[], int],
        interval_seconds: float = 0.5,
        now: Callable[[], float] = time.perf_counter,
        started: float | None = None,
        host: str | None = None,
    ) -> None:
        host, device = (re.sub(r"[^\w.-]", "_", part) for part in (host or platform.node() or "host", device_label))
        self.path = folder / f"telemetry-{host}-{device}.csv"
        self.reader = reader
        self.latest: Sample | None = None
        self.cpu_seconds = 0.0
        """CPU time the sampler thread has used."""
        self._current_step = current_step
        self._interval_seconds = interval_seconds
        self._now = now
        self._started = now() if started is None else started
        self._complaints: set[str] = set()
        self._file: BinaryIO | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"telemetry-{device}", daemon=True)

    def __enter__(self) -> "Telemetry":
        with self._complain_once(f"cannot write {self.path}"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: one write a line, nothing held back when killed, nothing doubled by a fork.
            self._file = _open_for_append(self.path)
        with self._complain_once("cannot start the sampler"):
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(JOIN_SECONDS)
        if self._thread.is_alive():
            log.warning("telemetry of %s hangs in its driver; left behind", self.path.stem)
            return
        self.sample()
        with self._complain_once("cannot close the reader"):
            self.reader.close()
        if self._file:
            self._file.close()

    def sample(self) -> None:
        """Take and write one sample. A failed reading still gives a line: time and step are known."""
        reading, step = Reading(), None
        with self._complain_once("cannot read the device"):
            step = self._current_step()
            reading = self.reader.read()
        values = {name: getattr(reading, name) for name in _NAMES}
        self.latest = Sample(time_seconds=self._now() - self._started, step=step, **values)
        with self._complain_once(f"cannot write {self.path}"):
            if self._file:
                self._file.write(format_sample(self.latest).encode())

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            self.sample()
            self.cpu_seconds = time.thread_time()
            due = max(due + self._interval_seconds, time.monotonic())  # never catch up after a pause
            self._stop.wait(due - time.monotonic())

    @contextlib.contextmanager
    def _complain_once(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  a driver may throw anything; the run is worth more
            if what not in self._complaints:
                self._complaints.add(what)
                log.warning("telemetry: %s: %s: %s", what, type(error).__name__, error)


def format_sample(sample: Sample) -> str:
    """Return the sample's line; an empty cell is a value that was not measured."""
    cells = [f"{sample.time_seconds:.3f}", _format_cell(sample.step)]
    return ",".join(cells + [_format_cell(getattr(sample, name)) for name in _NAMES]) + "\n"


def read_samples(path: Path) -> list[Sample]:
    """Read a telemetry file; a line that a kill or a full disk tore is dropped."""
    try:
        text = path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise ResultError(f"cannot read telemetry {path}: {error.strerror}") from error
    *lines, torn = text.replace("\r\n", "\n").split("\n")
    first = lines[0] if lines else torn
    if first != HEADER and (lines or not HEADER.startswith(torn)):
        raise ResultError(f"{path} is not a telemetry file: it begins with {first[:60]!r}, not {HEADER!r}")
    samples = [_parse_sample(line) for line in lines[1:]]
    return [sample for sample in samples if sample is not None]


def summarise(
    samples: Sequence[Sample], from_seconds: float, to_seconds: float, meter: str | None = None
) -> dict[str, Any]:
    """Sum up the steady window: medians, and energy only from a counter, whose name is `meter`.

    `joules` and `average_watts` belong to the `energy_seconds` of the window that samples cover; between them
    the counter is taken as a straight line. `power_watts` is the median of single readings: never an energy.
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
    summary["throttle_percent"] = _share_reasons(reasons) if reasons else None
    hindered = sum(not HINDRANCES.isdisjoint(names) for names in reasons)
    summary["throttled"] = 100 * hindered / len(reasons) >= HINDERED_PERCENT if reasons else None
    return summary


def _share_reasons(reasons: Sequence[Sequence[str]]) -> dict[str, float]:
    counts = Counter(name for names in reasons for name in names if name != "none")
    return {name: 100 * count / len(reasons) for name, count in counts.most_common()}


def _count_energy(samples: Sequence[Sample], from_seconds: float, to_seconds: float) -> tuple[float, float] | None:
    """Return (joules, seconds they were counted over) in the window, or None without a counter that grows."""
    counter = [(s.time_seconds, s.energy_joules) for s in samples if s.energy_joules is not None]
    joules = seconds = 0.0
    for (time_a, energy_a), (time_b, energy_b) in itertools.pairwise(counter):
        covered = min(time_b, to_seconds) - max(time_a, from_seconds)
        if covered <= 0:
            continue
        if energy_b < energy_a:  # reset: what was used in between is not known
            return None
        joules += (energy_b - energy_a) * covered / (time_b - time_a)
        seconds += covered
    return (joules, seconds) if joules > 0 else None  # a counter that stands still measures nothing


def _open_for_append(path: Path) -> BinaryIO:
    """Open a new file with its header, or a resumed run's file after its last whole line."""
    old = path.read_bytes() if path.exists() else b""
    file = path.open("ab", buffering=0)
    file.truncate(old.rfind(b"\n") + 1)
    if b"\n" not in old:
        file.write(f"{HEADER}\n".encode())
    return file


def _format_cell(value: float | str | None) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _parse_sample(line: str) -> Sample | None:
    cells = line.split(",")
    if len(cells) != len(_NAMES) + 2:
        return None
    try:
        time_seconds, *numbers = (float(cell) if cell else None for cell in [cells[0], *cells[2:-1]])
        step = int(cells[1]) if cells[1] else None
    except ValueError:
        return None
    if time_seconds is None or not all(math.isfinite(n) for n in (time_seconds, *numbers) if n is not None):
        return None
    values: dict[str, Any] = dict(zip(_NAMES, numbers, strict=False))
    if values["mem_used_bytes"] is not None:
        values["mem_used_bytes"] = int(values["mem_used_bytes"])
    return Sample(time_seconds=time_seconds, step=step, throttle=cells[-1] or None, **values)
