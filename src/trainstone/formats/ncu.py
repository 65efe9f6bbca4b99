"""The kernels in a CSV of NVIDIA's ncu, among whatever else was printed: a metric a row, or (--page raw) a column.

What the metrics mean is not known here; results/cores.py makes use of them.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from trainstone.errors import DataError, MachineError
from trainstone.formats.files import damaged_line, read_lines
from trainstone.formats.ncutable import PLACE_COLUMNS, QUOTED_START, Table, parse_id, recognise_header, split_fields
from trainstone.formats.ncuvalues import (
    Mark,
    Metric,
    Number,
    convert_number,
    find_decimal_mark,
    recognise_number,
    scale_unit,
)
from trainstone.text import printable

PERMISSION_HINT = (
    "run as root, or: echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' > /etc/modprobe.d/profiling.conf"
    " and reboot; a container needs --cap-add=SYS_ADMIN"
)
HINT = "make it again: ncu --csv --log-file FILE.csv ..., or ncu --import FILE.ncu-rep --csv --page raw > FILE.csv"
MAX_ROW_LINES = 50
_BYTE_ORDER_MARKS = ("\udcff\udcfe", "\udcfe\udcff")  # of UTF-16, as bytes that are no UTF-8


@dataclass(frozen=True)
class NcuKernel:
    """One launch of a kernel."""

    process: int | None
    run: int
    """Counts how often a process id, or a file without them, has begun again."""
    id: int
    name: str
    metrics: dict[str, Metric]
    """What is a number; text and what was not measured is left out."""


@dataclass(frozen=True)
class NcuFile:
    """All kernels of a file, in its order."""

    name: str
    kernels: tuple[NcuKernel, ...]


def read_ncu(path: Path, wanted: Collection[str] | None = None) -> NcuFile:
    """Read all kernels with their metrics, or only with those `wanted` (the wide form may have a thousand)."""
    reading = _Reading(path, wanted)
    for number, text in read_lines(path):
        reading.take_line(number, text)
    return reading.finish()


@dataclass
class _Building:
    """A kernel whose rows are still coming."""

    process: int | None
    run: int
    id: int
    name: str
    table: int
    cells: dict[str, tuple[int, Number, str]] = field(default_factory=dict)
    """By metric: line, number, unit."""
    seen: set[tuple[str, ...]] = field(default_factory=set)


class _Reading:
    """Takes line by line. How numbers are to be read is known at the end only: 117.344 may be a hundred thousand."""

    def __init__(self, path: Path, wanted: Collection[str] | None) -> None:
        self.path, self.wanted = path, wanted
        self.table: Table | None = None
        self.tables = 0
        self.units: list[str] | None = None
        self.runs: dict[int | None, int] = {}
        self.kernels: dict[tuple[int | None, int, int], _Building] = {}
        self.marks: dict[Mark, tuple[int, str]] = {}
        self.open: tuple[int, str, int] | None = None
        self.output = (0, "")

    def take_line(self, number: int, text: str) -> None:
        """Take a line: header, units, a row, a part of a row, or output."""
        if number == 1:
            text = text.removeprefix("\ufeff")
            self._refuse_other_files(text)
        if self.open:
            number, text = self._join(text)
        if text.count('"') % 2 and self.table and self.table.begins_row(text):
            lines = self.open[2] + 1 if self.open else 1
            if lines > MAX_ROW_LINES:
                raise damaged_line(self.path, number, "the row's quotes do not close", HINT)
            self.open = number, text, lines
            return
        self.open = None
        self._take_text(number, text)

    def _join(self, text: str) -> tuple[int, str]:
        assert self.open is not None
        first, begun, _ = self.open
        if QUOTED_START.match(text) or text.startswith("=="):
            raise damaged_line(self.path, first, "the row's quotes do not close", HINT)
        return first, f"{begun}\n{text}"

    def _take_text(self, number: int, text: str) -> None:
        fields = split_fields(text)
        if fields is not None and (table := recognise_header(fields)):
            self.table, self.units, self.tables = table, None, self.tables + 1
        elif self.table is None or text.startswith("=="):
            self._take_output(text)
        elif fields is not None and "\0" not in text and self.table.holds(fields) and self._take_fields(number, fields):
            pass
        elif self.table.begins_row(text) or (fields is not None and self.table.resembles_row(fields)):
            why = self.table.tell_damage(text, fields)
            raise damaged_line(self.path, number, f"a row that cannot be used: {why}", HINT)
        else:
            self._take_output(text)

    def _take_fields(self, number: int, fields: list[str]) -> bool:
        """Take a row of the right size; False where it is no row."""
        assert self.table is not None
        shown = self.table.at(fields, "ID")
        kernel_id = parse_id(shown)
        if kernel_id is None:
            if shown or self.table.long or self.units is not None:
                return False
            self.units = [unit.strip() for unit in fields]
            return True
        if self.units is None:
            self.units = []  # only the row behind the header may hold them
        process = parse_id(self.table.at(fields, "Process ID"))
        cells = self._list_cells(fields)
        kernel = self._find_kernel(process, kernel_id, self.table.at(fields, "Kernel Name"), cells)
        for name, unit, _section, value in cells:
            self._take_value(kernel, number, name, unit, value)
        return True

    def _list_cells(self, fields: list[str]) -> list[tuple[str, str, str, str]]:
        """Metric, unit, section and value of each metric in a row; rows of rules have none."""
        assert self.table is not None
        if self.table.long:
            cell = [self.table.at(fields, f"Metric {word}") for word in ("Name", "Unit")]
            section, value = self.table.at(fields, "Section Name"), self.table.at(fields, "Metric Value")
            return [(cell[0], cell[1], section, value)] if cell[0] else []
        rows = zip(self.table.columns, self.units or self.table.units, fields, strict=False)
        return [(name, unit, "", value) for name, unit, value in rows if name and name not in PLACE_COLUMNS]

    def _find_kernel(
        self, process: int | None, kernel_id: int, name: str, cells: list[tuple[str, str, str, str]]
    ) -> _Building:
        """Return the kernel that a row belongs to. The same id again is another one if a header came in between, the
        name differs or, where processes are not told apart, a metric comes twice.
        """
        run = self.runs.setdefault(process, 0)
        kernel = self.kernels.get((process, run, kernel_id))
        keys = {cell[:3] for cell in cells}
        if kernel is not None:
            again = not (self.table and self.table.long) or (process is None and bool(keys & kernel.seen))
            if kernel.table != self.tables or kernel.name != name or again:
                kernel, run = None, run + 1
                self.runs[process] = run
        if kernel is None:
            kernel = _Building(process, run, kernel_id, name, self.tables)
            self.kernels[process, run, kernel_id] = kernel
        if process is None:
            kernel.seen |= keys
        return kernel

    def _take_value(self, kernel: _Building, line: int, name: str, unit: str, value: str) -> None:
        number = recognise_number(value)
        if number is None:
            return
        mark = find_decimal_mark(number)
        if mark:
            self.marks.setdefault(mark, (line, value))
        # Sections repeat a metric; the first is kept.
        if (self.wanted is None or name in self.wanted) and name not in kernel.cells:
            kernel.cells[name] = (line, number, unit)

    def _take_output(self, text: str) -> None:
        if "ERR_NVGPUCTRPERM" in text:
            raise MachineError(
                "ncu may not read this GPU's performance counters (ERR_NVGPUCTRPERM)", hint=PERMISSION_HINT
            )
        # What ncu complains of explains more than the first line.
        weight = 3 if text.startswith("==ERROR==") else 2 if text.startswith("==WARNING==") else 1
        self.output = max(self.output, (weight, text), key=lambda told: told[0])

    def _refuse_other_files(self, text: str) -> None:
        name = printable(str(self.path))
        if text.startswith("NVR\0"):
            raise DataError(
                f"{name} is a report of ncu, not its CSV", hint=f"ncu --import {name} --csv --page raw > FILE"
            )
        if text.startswith(_BYTE_ORDER_MARKS) or "\0" in text[:2]:
            raise DataError(f"{name} is UTF-16 text", hint=f"iconv -f utf-16 -t utf-8 {name} > FILE")

    def finish(self) -> NcuFile:
        """Convert the numbers."""
        name = printable(str(self.path))
        if self.open:
            raise damaged_line(self.path, self.open[0], "the file ends within a row", HINT)
        if not self.kernels:
            raise DataError(f"no kernel in {name}: {self._tell_content()}", hint=HINT)
        if len(self.marks) == 2:
            (point_line, point), (comma_line, comma) = self.marks["."], self.marks[","]
            both = f"{printable(point)} has a decimal point, {printable(comma)} in line {comma_line} a decimal comma"
            raise damaged_line(self.path, point_line, both, HINT)
        mark: Mark = "," if "," in self.marks else "."
        kernels = tuple(
            NcuKernel(kernel.process, kernel.run, kernel.id, kernel.name, self._convert(kernel, mark))
            for kernel in self.kernels.values()
        )
        return NcuFile(name, kernels)

    def _convert(self, kernel: _Building, mark: Mark) -> dict[str, Metric]:
        metrics = {}
        for name, (line, number, shown) in kernel.cells.items():
            value = convert_number(number, mark)
            if value is None:
                raise damaged_line(self.path, line, f"{printable(name)}: {number.digits} is no number", HINT)
            unit, factor = scale_unit(shown)
            metrics[name] = Metric(value * factor, unit)
        return metrics

    def _tell_content(self) -> str:
        if self.output[0]:
            return f"it says {printable(self.output[1].strip())[:200]!r}"
        return "it has a header and no rows" if self.table else "it is empty"
