"""Step records and their file, steps-rank0000.csv: every step including warm-up, flushed once per second."""

import io
import itertools
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainstone.errors import ResultError

Columns = dict[str, NDArray[np.float64]]

FLUSH_SECONDS = 1.0
BLOCK_BYTES = 1 << 23


class StepRecord(NamedTuple):
    """One optimiser step. A tuple, because a long run has millions of them."""

    step: int
    epoch: int
    start_seconds: float  # since the run's clock started, which telemetry shares
    data_seconds: float  # waiting for the batch, part of step_seconds
    step_seconds: float
    images: int
    loss: float
    lr: float
    forward_seconds: float | None = None
    backward_seconds: float | None = None
    optimizer_seconds: float | None = None
    decay_loss: float | None = None  # weight decay's part of the loss, if it is in the loss


PHASE_COLUMNS = ("forward_seconds", "backward_seconds", "optimizer_seconds")
WHOLE_NUMBERS = ("step", "epoch", "images")
COLUMNS = tuple(name for name in StepRecord._fields if name not in StepRecord._field_defaults)


def list_columns(*, split_phases: bool, decay_loss: bool = False) -> tuple[str, ...]:
    return COLUMNS + (PHASE_COLUMNS if split_phases else ()) + (("decay_loss",) if decay_loss else ())


class StepWriter:
    """Write step records to a CSV file, flushed every FLUSH_SECONDS."""

    def __init__(
        self,
        path: Path,
        *,
        split_phases: bool,
        decay_loss: bool = False,
        append: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._columns = list_columns(split_phases=split_phases, decay_loss=decay_loss)
        self._pick = operator.itemgetter(*map(StepRecord._fields.index, self._columns))
        self._line = ",".join("%d" if name in WHOLE_NUMBERS else "%.9g" for name in self._columns) + "\n"
        self._now = now
        self._flushed_at = now()
        self._file = path.open("a" if append else "w", encoding="utf-8", newline="")
        if not append:
            self._file.write(",".join(self._columns) + "\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()

    def add(self, record: StepRecord) -> None:
        self._file.write(self._line % self._pick(record))
        if self._now() - self._flushed_at >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        self._file.flush()
        self._flushed_at = self._now()


def cut_steps(path: Path, first_step: int, *, split_phases: bool, decay_loss: bool = False) -> Columns | None:
    """Truncate a step file to the steps before `first_step` and return them; None, without change, if any is missing.

    A file may begin with a later step than the run, if an earlier file was moved aside.
    """
    try:
        columns = read_columns(path)
    except ResultError:
        return None
    wanted = list_columns(split_phases=split_phases, decay_loss=decay_loss)
    if tuple(columns) != wanted or not columns["step"][0].is_integer():
        return None
    begin = int(columns["step"][0])
    kept = first_step - begin
    if kept < 0 or list(columns["step"][:kept]) != list(range(begin, first_step)):
        return None
    with path.open("r+b") as file:
        for _ in range(kept + 1):  # and the header
            file.readline()
        file.truncate()
    return {name: values[:kept] for name, values in columns.items()}


def set_aside(path: Path) -> None:
    """Rename a step file that cannot be continued, so that it is not read as one."""
    if not path.exists():
        return
    names = (path.with_name(f"{path.name}.before-{number}") for number in itertools.count(1))
    path.rename(next(name for name in names if not name.exists()))


def read_blocks(path: Path, names: Sequence[str] | None = None) -> Iterator[Columns]:
    """Read a step file about 100,000 steps at a time, to bound memory; a truncated last line is dropped."""
    try:
        with path.open("rb") as file:
            line = file.readline()
            header = line.decode("utf-8", "replace").strip().split(",") if line.endswith(b"\n") else list(COLUMNS)
            unknown, missing = sorted(set(header) - set(StepRecord._fields)), sorted(set(COLUMNS) - set(header))
            if unknown or missing:
                raise ResultError(f"{path}: not a step file: columns missing {missing}, unknown {unknown}")
            names = [name for name in names or header if name in header]
            rest, line_number = b"", 2
            while chunk := file.read(BLOCK_BYTES):
                whole, newline, rest = (rest + chunk).rpartition(b"\n")
                if newline:
                    block = _parse(path, whole, header, names, line_number)
                    line_number += len(block[names[0]])
                    yield block
    except OSError as err:
        raise ResultError(f"cannot read step file {path}: {err}") from err


def read_columns(path: Path, names: Sequence[str] | None = None) -> Columns:
    """Read a whole step file, or some of its columns; takes 8 bytes per step and column."""
    blocks = list(read_blocks(path, names))
    return {name: np.concatenate([block.pop(name) for block in blocks]) for name in list(blocks[0])} if blocks else {}


def read_records(path: Path) -> Iterator[StepRecord]:
    for block in read_blocks(path):
        for values in zip(*(column.tolist() for column in block.values()), strict=True):
            record = dict(zip(block, values, strict=True))
            yield StepRecord(**record | {name: int(record[name]) for name in WHOLE_NUMBERS})


def as_stored(record: StepRecord) -> StepRecord:
    values = record._asdict().items()
    rounded: dict[str, Any] = {name: float(f"{value:.9g}") for name, value in values if isinstance(value, float)}
    return record._replace(**rounded)


def _parse(path: Path, lines: bytes, header: list[str], names: Sequence[str], line_number: int) -> Columns:
    wanted = [header.index(name) for name in names]
    try:
        text = io.StringIO(lines.decode("ascii"))
        table = np.loadtxt(text, delimiter=",", usecols=wanted, ndmin=2, comments=None)
        if len(table) != lines.count(b"\n") + 1:
            raise ValueError("an empty line")
    except ValueError as err:  # also UnicodeDecodeError
        raise ResultError(f"{path}: not step records from line {line_number} on: {err}") from err
    return {name: table[:, column].copy() for column, name in enumerate(names)}
