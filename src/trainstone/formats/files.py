"""Files as the readers of this folder open them: bytes through a memory map, text line by line.

A mapped file must not be shortened by others while it is read: the system ends a process that touches lost pages.
"""

import contextlib
import mmap
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from trainstone.errors import DataError
from trainstone.text import printable

HINT = "copy or make the file again; trainstone data verify lists all that is damaged"
MAX_LINE_BYTES = 1 << 20
_NUMBER = re.compile("[0-9]{1,19}")


class MappedFile:
    """The bytes of a file without reading it whole. Empty files are fine.

    `random`: only few of them are touched, so the system should not read ahead.
    """

    def __init__(self, path: Path, *, random: bool = False) -> None:
        self.path = path
        self.name = printable(str(path))
        self._map: mmap.mmap | None = None
        if path.exists() and not path.is_file():  # opening a pipe would wait for ever
            raise DataError(f"cannot read {self.name}: it is no file", hint="give the path of a file")
        try:
            with path.open("rb") as file:
                if file.seek(0, 2) > 0:  # a map of no bytes is refused
                    self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as err:
            raise _unreadable(path, err) from err
        if self._map is not None and random:
            self._map.madvise(mmap.MADV_RANDOM)
        self.view = memoryview(self._map or b"")
        self.size = len(self.view)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file; where views given out are still in use, the map goes with the last of them."""
        with contextlib.suppress(BufferError):
            self.view.release()
            if self._map is not None:
                self._map.close()

    def damaged(self, offset: int, what: str, hint: str = HINT) -> DataError:
        """Return the error for damage found at a byte."""
        return DataError(f"{self.name}, byte {offset}: {what}", hint=hint)


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number (from 1) and text of each line that is not blank; bytes that are no UTF-8 become surrogates."""
    if path.exists() and not path.is_file():
        raise DataError(f"cannot read {printable(str(path))}: it is no file", hint="give the path of a file")
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise damaged_line(path, number, f"the line is longer than {MAX_LINE_BYTES} bytes")
                text = line.decode("utf-8", "surrogateescape").rstrip("\r\n")
                if text.strip():
                    yield number, text
    except (OSError, ValueError) as err:
        raise _unreadable(path, err) from err


def damaged_line(path: Path, number: int, what: str, hint: str = HINT) -> DataError:
    """Return the error for a line that cannot be used."""
    return DataError(f"{printable(str(path))}, line {number}: {what}", hint=hint)


def read_count_pairs(path: Path, separator: str | None, expected: str) -> Iterator[tuple[int, int, int]]:
    """Yield line number and the two plain numbers of each line of an index."""
    for number, line in read_lines(path):
        counts = [parse_count(field.strip()) for field in line.split(separator)]
        if len(counts) != 2 or counts[0] is None or counts[1] is None:
            raise damaged_line(path, number, expected)
        yield number, counts[0], counts[1]


def parse_count(text: str) -> int | None:
    """Return a plain decimal number that fits 63 bits, None for anything else (signs, spaces, other digits)."""
    if not _NUMBER.fullmatch(text):
        return None
    number = int(text)
    return number if number < 1 << 63 else None


def _unreadable(path: Path, err: Exception) -> DataError:
    reason = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
    return DataError(f"cannot read {printable(str(path))}: {reason}", hint="check the path and its permissions")
