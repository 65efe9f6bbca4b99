"""The text files beside a .rec: its index (.idx: key, byte offset) and im2rec's list of images (.lst)."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trainstone.errors import DataError
from trainstone.formats.files import damaged_line, parse_count, read_lines
from trainstone.formats.recordio import RecordIOFile, unpack_image
from trainstone.text import printable

# Lists of old tools count in floats: 3.000000
_INDEX = re.compile(r"([0-9]{1,19})(?:\.0*)?")


class ListLine(NamedTuple):
    """A line of a .lst: the image's number, its label or labels, its path below the root given to im2rec."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks of a record
    labels: tuple[float, ...]
    path: str


def index_line(key: int, offset: int) -> str:
    """Return the line of an .idx for a record."""
    return f"{key}\t{offset}\n"


def read_index(path: Path) -> list[tuple[int, int]]:
    """Return key and byte offset of each record, in the order of the file."""
    entries = []
    for number, line in read_lines(path):
        fields = [parse_count(field.strip()) for field in line.split("\t")]
        if len(fields) != 2 or fields[0] is None or fields[1] is None:
            raise damaged_line(path, number, "expected a key, a tab and a byte offset, as in 3<tab>171296")
        entries.append((fields[0], fields[1]))
    return entries


def rebuild_index(path: Path) -> list[tuple[int, int]]:
    """Return the index of a .rec that has lost it; keys are the records' ids, which im2rec takes from the .lst.

    Ids may repeat where other tools packed the records: such a file has no index by key.
    """
    with RecordIOFile(path) as file:
        name = printable(str(path))
        entries = []
        for span in file.spans():
            record = unpack_image(file.read(span.offset), f"{name}, byte {span.offset}")
            entries.append((record.id, span.offset))
        return entries


def list_line(line: ListLine) -> str:
    """Return the line as im2rec writes it."""
    if not line.labels or not line.path.strip() or any(char in line.path for char in "\t\r\n"):
        what = "a line of a .lst needs a label and a path without tabs and line breaks"
        raise DataError(f"{what}: {printable(line.path)!r} with {len(line.labels)} labels")
    return "\t".join((str(line.index), *(f"{label:f}" for label in line.labels), line.path)) + "\n"


def read_list(path: Path) -> Iterator[ListLine]:
    """Yield the lines of a .lst."""
    for number, line in read_lines(path):
        index, *labels, name = (field.strip() for field in line.split("\t")) if "\t" in line else (line, "")
        if not labels or not name:
            raise damaged_line(path, number, "expected a number, labels and a path, with tabs between")
        match = _INDEX.fullmatch(index)
        if match is None:
            raise damaged_line(path, number, f"the number {printable(index)!r} is no whole number")
        yield ListLine(int(match[1]), tuple(_parse_label(path, number, label) for label in labels), name)


def _parse_label(path: Path, number: int, text: str) -> float:
    try:
        label = float(text)
    except ValueError:
        label = math.nan
    if not math.isfinite(label):
        raise damaged_line(path, number, f"the label {printable(text)!r} is no number")
    return label
