"""Read kernels and their metrics from the CSV output of NVIDIA's ncu, which may be mixed with other output.

Metrics are in rows, or in columns with `--page raw`. trace/core_utilisation.py interprets them.
"""

import contextlib
import csv
import re
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from trainstone.errors import DataError, MachineError
from trainstone.formats.files import damaged_line, parse_count, read_lines
from trainstone.text import printable

PERMISSION_HINT = (
    "run as root, or: echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' > /etc/modprobe.d/profiling.conf"
    " and reboot; a container needs --cap-add=SYS_ADMIN"
)
HINT = "create it again: ncu --csv --log-file FILE.csv ..., or ncu --import FILE.ncu-rep --csv --page raw > FILE.csv"
LOCALE_HINT = (
    "create it again with LC_ALL=C before the command, or: LC_ALL=C ncu --import FILE.ncu-rep --csv --page raw"
)
MAX_ROW_LINES = 50
# Beyond any counter: larger numbers are damage, and their products would overflow.
MAX_VALUE = 1e30
# Columns of the wide form that are not metrics.
PLACE_COLUMNS = {
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream"),
    *("", "Block Size", "Grid Size", "Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value"),
}
LONG_COLUMNS = {"ID", "Kernel Name", "Metric Name", "Metric Value"}
_ROW_START = re.compile(r'\s*"[0-9][0-9,]*","')
# The GUI of Nsight Compute exports the unit with the name: gpc__cycles_elapsed.max [cycle]
_WITH_UNIT = re.compile(r"(\S+) \[([^][]*)\]")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?")
# Numbers in other locales: 1.234.567 or 1 234,5 or 1'234; 12,5 or 12,34,567.
_OTHER_LOCALE = re.compile(
    "[+-]?(?:[0-9]{1,3}(?:[. \u00a0\u202f'\u2019][0-9]{3})+(?:[.,][0-9]+)?|[0-9]+(?:,[0-9]+)+(?:\\.[0-9]+)?)"
)
# `--print-metric-instances` adds each instance's value: 100 (50; 50)
_INSTANCES = re.compile(r"(?<=[0-9]) \([^()]*\)$")
# Powers of ten: ncu's Kbyte is 1000 bytes.
_LARGE = {"K": 3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_SMALL = {"m": -3, "u": -6, "\u00b5": -6, "\u03bc": -6, "n": -9, "p": -12}
_SECONDS = ("second", "s")
_UNITS = {
    *("byte", "cycle", "inst", "hz", "sector", "request", "warp", "thread", "block", "register", "wavefront", "flop")
}


class Metric(NamedTuple):
    """A value in its base unit: cycle, byte, second, inst, %; "" if ncu gave none."""

    value: float
    unit: str


@dataclass(frozen=True)
class NcuKernel:
    process: int | None
    run: int
    """Index of the table in the file: process ids may repeat in other tables."""
    id: int
    name: str
    metrics: dict[str, Metric] = field(default_factory=dict)
    """Numbers only: text and missing values are skipped."""


@dataclass(frozen=True)
class NcuFile:
    name: str
    kernels: tuple[NcuKernel, ...]


def read_ncu(path: Path, wanted: Collection[str] | None = None) -> NcuFile:
    """Read all kernels with all metrics, or only the `wanted` ones (the wide form may have a thousand)."""
    name = printable(str(path))
    reader = _NcuReader(path, wanted)
    for number, text in read_lines(path):
        if text.startswith("NVR\0"):
            hint = f"ncu --import {name} --csv --page raw > FILE"
            raise DataError(f"{name} is a binary report of ncu; expected CSV", hint=hint)
        reader.take_line(number, text.removeprefix("\ufeff"))
    if reader.open:
        raise damaged_line(path, number, "the file ends within a row", HINT)
    if not reader.kernels:
        shown = f"it contains {printable(reader.output.strip())[:200]!r}" if reader.output else "it has no rows"
        raise DataError(f"{name}: no kernel found; {shown}", hint=HINT)
    return NcuFile(name, tuple(reader.kernels.values()))


class _NcuReader:
    """Parse line by line: header, units and rows, mixed with output of ncu or of the program."""

    def __init__(self, path: Path, wanted: Collection[str] | None) -> None:
        self.path, self.wanted = path, wanted
        self.kernels: dict[tuple[int, int | None, int, str], NcuKernel] = {}
        self.output = ""
        """Explains a file without kernels: an error of ncu, else a warning, else the first line."""
        self.open = ""
        """A row that continues on the next line."""
        self._columns: list[str] = []
        self._units: list[str] = []
        self._table = -1

    def take_line(self, number: int, text: str) -> None:
        if "ERR_NVGPUCTRPERM" in text:
            what = "ncu has no permission to read the GPU's performance counters (ERR_NVGPUCTRPERM)"
            raise MachineError(what, hint=PERMISSION_HINT)
        text, self.open = f"{self.open}\n{text}" if self.open else text, ""
        # Other output may also start with a number, but has fewer commas than a row.
        plain = text.count(",") >= max(3, len(self._columns) // 2) and text.lstrip()[:1].isdigit()
        begins = bool(self._columns) and (plain or _ROW_START.match(text) is not None)
        # A quoted field may contain line breaks.
        if begins and text.count('"') % 2 and text.count("\n") < MAX_ROW_LINES:
            self.open = text
            return
        fields: list[str] | None = None
        with contextlib.suppress(csv.Error):
            fields = [field.strip() for field in next(csv.reader([text], strict=True, skipinitialspace=True))]
        if fields and {"ID", "Kernel Name"} <= set(fields):
            parts = [_WITH_UNIT.fullmatch(field) for field in fields]
            self._columns = [part[1] if part else field for part, field in zip(parts, fields, strict=True)]
            self._units = [part[2] if part else "" for part in parts]
            self._table += 1
        elif self._columns and not text.startswith("==") and self._take_row(number, fields or []):
            return
        elif begins or len(fields or ()) == len(self._columns) > 7:
            what = "damaged quotes or a field that is too long" if fields is None else f"{len(fields)} fields"
            expected = f"expected {len(self._columns)} fields with a number as ID"
            raise damaged_line(self.path, number, f"invalid row: {what}; {expected}", HINT)
        else:
            self.output = max(
                self.output,
                text,
                key=lambda one: (one.startswith("==ERROR=="), one.startswith("==WARNING=="), bool(one)),
            )

    def _take_row(self, number: int, fields: list[str]) -> bool:
        """Take the units or the metrics of a row; return whether it was one.

        ncu omits the columns of its rules, after the value, if none fired. Sections repeat a metric: the first is kept.
        """
        long = set(self._columns) >= LONG_COLUMNS
        complete = len(fields) == len(self._columns) or (long and set(self._columns[: len(fields)]) >= LONG_COLUMNS)
        if not complete or any(fields[len(self._columns) :]):
            return False
        row = defaultdict(str, zip(self._columns, fields, strict=False))
        kernel_id = parse_count(row["ID"].replace(",", ""))
        if kernel_id is None:
            is_units = not row["ID"] and not long
            self._units = fields if is_units else self._units
            return is_units
        process = parse_count(row["Process ID"].replace(",", ""))
        kernel = NcuKernel(process, self._table, kernel_id, row["Kernel Name"])
        kernel = self.kernels.setdefault((self._table, process, kernel_id, kernel.name), kernel)
        row_metric = [(row["Metric Name"], row["Metric Unit"], row["Metric Value"])]
        for metric, unit, value in row_metric if long else zip(self._columns, self._units, fields, strict=False):
            text = _INSTANCES.sub("", value)
            if metric in PLACE_COLUMNS and not long:
                continue
            if not _NUMBER.fullmatch(text):
                if _OTHER_LOCALE.fullmatch(text):
                    what = f"{printable(metric)}: number {printable(text)} is in another locale; expected 1,234.5"
                    raise damaged_line(self.path, number, what, LOCALE_HINT)
                continue
            if metric in kernel.metrics or (self.wanted is not None and metric not in self.wanted):
                continue
            if abs(amount := float(text.replace(",", ""))) > MAX_VALUE:
                raise damaged_line(self.path, number, f"{printable(metric)}: {text} is too large", HINT)
            # Mcycle is 1e6 cycle, byte/usecond is 1e6 byte/second.
            words = [_scale_word(word.strip()) for word in unit.split("/")]
            power = words[0][1] - sum(own_power for _, own_power in words[1:])
            kernel.metrics[metric] = Metric(amount * 10.0**power, "/".join(name for name, _ in words))
        return True


def _scale_word(word: str) -> tuple[str, int]:
    """Return the base unit and the power of ten of a unit with a prefix."""
    if word in _SECONDS:
        return "second", 0
    if word[:1] in _SMALL and word[1:] in _SECONDS:
        return "second", _SMALL[word[0]]
    stem = word[1:].lower()
    if word[:1] in _LARGE and (stem in _UNITS or stem.removesuffix("s") in _UNITS):
        return stem, _LARGE[word[0]]
    return ("hz" if word.lower() == "hz" else word), 0
