"""The table within ncu's CSV: its header, and which lines are rows, which damaged rows, which of something else."""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass

from trainstone.formats.files import parse_count
from trainstone.text import printable

# Columns of the wide form that say where a kernel ran; all others are metrics.
PLACE_COLUMNS = {
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream"),
    *("Block Size", "Grid Size", "Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value"),
}
LONG_COLUMNS = ("ID", "Kernel Name", "Metric Name", "Metric Value")
QUOTED_START = re.compile(r'\s*"[0-9][0-9,.]*","')
# Nsight Compute's window exports the unit with the name: gpc__cycles_elapsed.max [cycle]
_WITH_UNIT = re.compile(r"(\S+) \[([^][]*)\]")
_PLAIN_START = re.compile(r"\s*[0-9]+\s*,")


@dataclass(frozen=True)
class Table:
    """A header: where its columns are."""

    columns: tuple[str, ...]
    places: dict[str, int]
    long: bool
    """A metric a row."""
    units: tuple[str, ...] = ()
    """Of each column, where the header gives them."""

    def at(self, fields: Sequence[str], column: str) -> str:
        """Return a row's field; empty where there is none."""
        place = self.places.get(column, len(fields))
        return fields[place].strip() if place < len(fields) else ""

    def holds(self, fields: Sequence[str]) -> bool:
        """Whether a row is complete. ncu leaves out the columns of its rules, behind the value, where no rule fired."""
        if len(fields) >= len(self.columns):
            return not any(fields[len(self.columns) :])
        return self.long and all(len(fields) > self.places[name] for name in LONG_COLUMNS)

    def begins_row(self, text: str) -> bool:
        """Whether a line starts as rows do; output may start with a number, too, but has fewer commas."""
        if self.places["ID"] > 0:
            return False
        plain = _PLAIN_START.match(text) and text.count(",") >= max(3, len(self.columns) // 2)
        return bool(QUOTED_START.match(text) or plain)

    def resembles_row(self, fields: Sequence[str]) -> bool:
        """Whether fields that are no row were meant to be one."""
        if len(fields) == len(self.columns) >= 8:
            return True
        return len(fields) > max(3, len(self.columns) // 2) and parse_id(self.at(fields, "ID")) is not None

    def tell_damage(self, text: str, fields: Sequence[str] | None) -> str:
        """Say why a line cannot be used."""
        if fields is None:
            return "its quotes are damaged, or a field is too long"
        if "\0" in text:
            return "it holds zero bytes"
        if self.holds(fields):
            return f"its ID is {printable(self.at(fields, 'ID'))[:40]!r}"
        return f"it has {len(fields)} fields, the header has {len(self.columns)}"


def split_fields(text: str) -> list[str] | None:
    """Return the fields of a line, None if it is no CSV."""
    try:
        return next(csv.reader([text], strict=True, skipinitialspace=True), None)
    except csv.Error:
        return None


def parse_id(text: str) -> int | None:
    """Return the number of a kernel or process, thousands separated or not."""
    number = parse_count(text)
    if number is None and re.fullmatch("[0-9]{1,3}([,.])[0-9]{3}(?:\\1[0-9]{3})*", text):
        number = parse_count(text.replace(",", "").replace(".", ""))
    return number


def recognise_header(fields: Sequence[str]) -> Table | None:
    """Return the table that begins here if these are its columns, in whatever order and company."""
    parts = [_WITH_UNIT.fullmatch(field.strip()) or field.strip() for field in fields]
    columns = tuple(part if isinstance(part, str) else part[1] for part in parts)
    units = tuple("" if isinstance(part, str) else part[2] for part in parts)
    places = {name: place for place, name in reversed(list(enumerate(columns)))}  # of columns named twice: the first
    if not places.keys() >= {"ID", "Kernel Name"}:
        return None
    long = places.keys() >= set(LONG_COLUMNS)
    return Table(columns, places, long, units) if long or places.keys() - PLACE_COLUMNS else None
