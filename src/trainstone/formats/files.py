"""Helpers for file readers: memory-mapped files, text lines with size limits, checks of file names.

A mapped file must not be truncated while it is read: the kernel kills (SIGBUS) a process that touches lost pages.
"""

import contextlib
import mmap
import re
from collections.abc import Callable, Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from trainstone.errors import DataError
from trainstone.text import printable

HINT = "copy or create the file again; `trainstone data verify` lists all damaged records"
MAX_LINE_BYTES = 1 << 20
_NUMBER = re.compile("[0-9]{1,19}")
Entry = TypeVar("Entry")


class ByteSpan(NamedTuple):
    """Offset and size of a record in its file, framing included."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size


@contextlib.contextmanager
def open_file(path: Path) -> Iterator[BufferedReader]:
    """Open a file for reading; raise DataError if opening or reading fails."""
    name = printable(str(path))
    if path.exists() and not path.is_file():  # opening a pipe would block forever
        raise DataError(f"cannot read {name}: not a file", hint="give the path of a regular file")
    try:
        with path.open("rb") as file:
            yield file
    except (OSError, ValueError) as err:
        reason = getattr(err, "strerror", None) or str(err)
        raise DataError(f"cannot read {name}: {reason}", hint="check the path and its permissions") from err


class MappedFile:
    """A memory-mapped file; it may be empty.

    `random`: only few pages are used, so the kernel should not read ahead.
    """

    def __init__(self, path: Path, *, random: bool = False) -> None:
        self.path = path
        self.name = printable(str(path))
        self._map: mmap.mmap | None = None
        with open_file(path) as file:
            if file.seek(0, 2) > 0:  # mmap rejects empty files
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if self._map is not None and random:
            self._map.madvise(mmap.MADV_RANDOM)
        self.view = memoryview(self._map or b"")
        self.size = len(self.view)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; while views of it are in use, the map stays open until the last one is released."""
        with contextlib.suppress(BufferError):
            self.view.release()
            if self._map is not None:
                self._map.close()

    def damaged(self, offset: int, what: str, hint: str = HINT) -> DataError:
        return DataError(f"{self.name}, byte {offset}: {what}", hint=hint)


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number (from 1) and text of each line that is not blank; invalid UTF-8 becomes surrogates."""
    with open_file(path) as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise damaged_line(path, number, f"line too long; at most {MAX_LINE_BYTES} bytes are allowed")
            text = line.decode("utf-8", "surrogateescape").rstrip("\r\n")
            if text.strip():
                yield number, text


def read_log(path: Path, parse: Callable[[Iterable[str]], Iterable[Entry]], what: str, hint: str) -> list[Entry]:
    """Return what `parse` finds in the lines of a log; raise DataError if it finds nothing."""
    found = list(parse(text for _, text in read_lines(path)))
    if not found:
        raise DataError(f"{printable(str(path))}: no {what} found", hint=hint)
    return found


def damaged_line(path: Path, number: int, what: str, hint: str = HINT) -> DataError:
    return DataError(f"{printable(str(path))}, line {number}: {what}", hint=hint)


def read_count_pairs(path: Path, separator: str | None, expected: str) -> Iterator[tuple[int, int, int]]:
    """Yield line number and both integers of each line of an index."""
    for number, line in read_lines(path):
        counts = [parse_count(field.strip()) for field in line.split(separator)]
        if len(counts) != 2 or counts[0] is None or counts[1] is None:
            raise damaged_line(path, number, expected)
        yield number, counts[0], counts[1]


def parse_count(text: str) -> int | None:
    """Parse ASCII digits into an integer below 2**63; None for anything else (signs, spaces, other digits)."""
    number = int(text) if _NUMBER.fullmatch(text) else 1 << 63
    return number if number < 1 << 63 else None


def is_safe_path(name: str) -> bool:
    """Return whether a name is a relative path to something inside a folder: not empty, without `..`."""
    return find_path_escape(name) is None and any(part not in ("", ".") for part in name.split("/"))


def find_path_escape(name: str) -> str | None:
    """Return why a path leads out of its folder, None if it does not; "./", the folder itself, is fine."""
    if name.startswith("/"):
        return "has an absolute name"
    if ".." in name.split("/"):
        return "has '..' in its name and would be outside of the folder"
    return "has a NUL byte in its name" if "\0" in name else None


def find_invalid_character(name: str) -> str | None:
    """Return a problem with the characters of a name (control characters, invalid UTF-8), None if there is none."""
    for char in "" if name.isascii() and name.isprintable() else name:
        if ord(char) < 32 or 127 <= ord(char) < 160:
            return f"has the control character 0x{ord(char):02x} in its name"
        if 0xD800 <= ord(char) < 0xE000:
            return "has a name that is not UTF-8"
    return None
