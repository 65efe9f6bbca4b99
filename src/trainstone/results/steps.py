"""Step records and their file, steps-rank0000.csv: every step with its warm-up, flushed once a second.

Reading tolerates a file cut anywhere (kill -9): a torn last line is dropped.
"""

import csv
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from trainstone.errors import ResultError

FLUSH_SECONDS = 1.0


class StepRecord(NamedTuple):
    """One optimiser update. A tuple, because a long run has millions of them."""

    step: int
    epoch: int
    start_seconds: float
    """Since the run's clock started, which telemetry shares."""
    data_seconds: float
    """The wait for the batch, part of step_seconds."""
    step_seconds: float
    images: int
    loss: float
    lr: float
    forward_seconds: float | None = None
    backward_seconds: float | None = None
    optimizer_seconds: float | None = None


PHASE_COLUMNS = ("forward_seconds", "backward_seconds", "optimizer_seconds")
WHOLE_NUMBERS = ("step", "epoch", "images")
COLUMNS = tuple(name for name in StepRecord._fields if name not in PHASE_COLUMNS)


class StepWriter:
    """Appends step records to a CSV file; at most FLUSH_SECONDS of them are ever unwritten."""

    def __init__(self, path: Path, *, split_phases: bool, now: Callable[[], float] = time.monotonic) -> None:
        self._columns = COLUMNS + (PHASE_COLUMNS if split_phases else ())
        self._line = ",".join("%d" if name in WHOLE_NUMBERS else "%.9g" for name in self._columns) + "\n"
        self._now = now
        self._flushed_at = now()
        self._file = path.open("w", encoding="utf-8", newline="")
        self._file.write(",".join(self._columns) + "\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, record: StepRecord) -> None:
        """Write one record."""
        self._file.write(self._line % record[: len(self._columns)])
        if self._now() - self._flushed_at >= FLUSH_SECONDS:
            self._file.flush()
            self._flushed_at = self._now()


def read_steps(path: Path) -> list[StepRecord]:
    """Read a step file, dropping a torn last line."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(_parse(path, (line for line in file if line.endswith("\n"))))
    except (OSError, UnicodeDecodeError) as err:
        raise ResultError(f"cannot read step file {path}: {err}") from err


def _parse(path: Path, lines: Iterable[str]) -> Iterable[StepRecord]:
    rows = csv.reader(lines)
    header = next(rows, [])
    unknown = set(header) - set(StepRecord._fields)
    missing = set(COLUMNS) - set(header)
    if unknown or missing:
        raise ResultError(f"{path}: not a step file: columns missing {sorted(missing)}, unknown {sorted(unknown)}")
    for line_number, row in enumerate(rows, start=2):
        try:
            values = dict(zip(header, row, strict=True))
            yield StepRecord(**{name: _number(name, text) for name, text in values.items()})  # type: ignore[arg-type]
        except ValueError as err:
            raise ResultError(f"{path}: line {line_number} is not a step record: {','.join(row)!r}") from err


def _number(name: str, text: str) -> int | float:
    return int(text) if name in WHOLE_NUMBERS else float(text)
