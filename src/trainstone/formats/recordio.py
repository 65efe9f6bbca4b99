"""Read and write RecordIO files (.rec) as MXNet's im2rec, with their image headers, indexes and lists.

A record is a magic number, 3 bits of flag and 29 bits of length, the payload, and zeros up to a multiple of 4 bytes.
A payload that contains the magic at a multiple of 4 is split there into parts without these 4 bytes, so that an
aligned magic always starts a header.
"""

import math
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trainstone.errors import DataError
from trainstone.formats.files import ByteSpan, MappedFile, damaged_line, read_count_pairs, read_lines
from trainstone.text import printable

MAGIC = 0xCED7230A
MAGIC_BYTES = struct.pack("<I", MAGIC)
HEADER_BYTES = 8
MAX_PAYLOAD_BYTES = (1 << 29) - 1
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_IMAGE_HEADER = struct.Struct("<IfQQ")
_CHUNK_WORDS = 1 << 20
# Lists of old tools have float indexes: 3.000000
_INDEX = re.compile(r"([0-9]{1,19})(?:\.0*)?")
_HINT = "the record is damaged or not from im2rec; `trainstone data verify` lists all damaged records"


def pack_record(head: bytes, content: bytes) -> Sequence[bytes]:
    """Return head and content as one record, in pieces; the content is only copied if it contains the magic."""
    length = len(head) + len(content)
    if length > MAX_PAYLOAD_BYTES:
        raise DataError(f"RecordIO record of {length} bytes; at most {MAX_PAYLOAD_BYTES} bytes are allowed")
    if not len(head) % 4 and MAGIC_BYTES not in head and not _aligned_magics(content):
        return (_head(_WHOLE, length) + head, content, bytes(-length % 4))
    payload = head + content
    pieces: list[bytes] = []
    start = 0
    for at in _aligned_magics(payload):
        pieces += (_head(_MIDDLE if start else _FIRST, at - start), payload[start:at])
        start = at + len(MAGIC_BYTES)
    rest = payload[start:]
    return (*pieces, _head(_LAST if start else _WHOLE, len(rest)), rest, bytes(-len(rest) % 4))


class RecordIOFile(MappedFile):
    """A .rec file, read by byte offset. Records are views of the mapped file; reading is thread-safe."""

    def spans(self, start: int = 0) -> Iterator[ByteSpan]:
        """Yield the span of each record, with all its parts, from byte `start` on. Payloads are not read."""
        while start < self.size:
            end = start
            for part in self._parts(start):
                end = part.end + -part.size % 4
            yield ByteSpan(start, end - start)
            start = end

    def read(self, offset: int) -> bytes | memoryview:
        """Return the payload of the record at this byte: a view of the file, or a copy if it has several parts."""
        contents = (self.view[part.offset : part.end] for part in self._parts(offset))
        first = next(contents)
        joined: bytearray | None = None
        for content in contents:
            joined = bytearray(first) if joined is None else joined
            joined += MAGIC_BYTES
            joined += content
        return first if joined is None else bytes(joined)

    def resync(self, offset: int) -> int | None:
        """Return the next offset with a plausible record: an aligned magic and a length that fits the file."""
        words = np.frombuffer(self.view, "<u4", self.size // 4)
        for begin in range(max(offset // 4 + 1, 0), len(words) - 1, _CHUNK_WORDS):
            places = begin + np.flatnonzero(words[begin : min(begin + _CHUNK_WORDS, len(words) - 1)] == MAGIC)
            marks = words[places + 1]
            padded = ((marks & MAX_PAYLOAD_BYTES).astype(np.int64) + 3) // 4 * 4
            good = places[(marks >> 29 <= _FIRST) & (4 * places + HEADER_BYTES + padded <= self.size)]
            if len(good):
                return 4 * int(good[0])
        return None

    def _parts(self, offset: int) -> Iterator[ByteSpan]:
        """Yield the payload spans of the parts of the record at this byte, checked to be within the file."""
        if not 0 <= offset < self.size:
            raise self.damaged(offset, f"no record starts here; the file has {self.size} bytes")
        at, allowed = offset, (_WHOLE, _FIRST)
        while True:
            if self.size - at < HEADER_BYTES:
                raise self.damaged(at, f"the file ends within a record header, at byte {self.size}")
            magic, mark = struct.unpack_from("<II", self.view, at)
            if magic != MAGIC:
                raise self.damaged(at, f"not a RecordIO record: it starts with {magic:#010x}; expected {MAGIC:#010x}")
            flag, length = mark >> 29, mark & MAX_PAYLOAD_BYTES
            if length + -length % 4 > self.size - at - HEADER_BYTES:
                raise self.damaged(at, f"record of {length} bytes exceeds the file; the file has {self.size} bytes")
            if flag not in allowed:
                inside = "" if at == offset else f" within the record at byte {offset}"
                raise self.damaged(at, f"flag {flag}{inside}; expected {allowed[0]} or {allowed[1]}")
            yield ByteSpan(at + HEADER_BYTES, length)
            if flag in (_WHOLE, _LAST):
                return
            at += HEADER_BYTES + length + -length % 4
            allowed = (_MIDDLE, _LAST)


class ImageRecord(NamedTuple):
    """An image with its labels; `vector`: they are stored as a list, not as the one label in the header."""

    labels: tuple[float, ...]
    id: int
    image: bytes | memoryview
    vector: bool = False


def pack_labels(record: ImageRecord) -> bytes:
    """Return the header before the image in its record."""
    count = len(record.labels)
    if count != 1 and not (record.vector and count):
        raise DataError(f"image {record.id} has {count} labels; expected one, or a vector of at least one")
    first, flag = (0.0, count) if record.vector else (record.labels[0], 0)
    vector = record.labels if record.vector else ()
    try:
        return _IMAGE_HEADER.pack(flag, first, record.id, 0) + struct.pack(f"<{len(vector)}f", *vector)
    except (struct.error, OverflowError) as err:
        raise DataError(f"cannot encode image {record.id}: label or id out of range: {err}") from err


def unpack_image(payload: bytes | memoryview, where: str) -> ImageRecord:
    """Return the image in a payload; `where` (file and byte) prefixes error messages."""
    if len(payload) < _IMAGE_HEADER.size:
        what = f"record of {len(payload)} bytes; an image header has {_IMAGE_HEADER.size}"
        raise DataError(f"{where}: {what}", hint=_HINT)
    count, label, number, _ = _IMAGE_HEADER.unpack_from(payload)
    start = _IMAGE_HEADER.size + 4 * count
    if start > len(payload):
        raise DataError(f"{where}: {count} labels do not fit the record's {len(payload)} bytes", hint=_HINT)
    labels = struct.unpack_from(f"<{count}f", payload, _IMAGE_HEADER.size) if count else (label,)
    return ImageRecord(labels, number, payload[start:], vector=count > 0)


def _head(flag: int, length: int) -> bytes:
    return struct.pack("<II", MAGIC, flag << 29 | length)


def _aligned_magics(payload: bytes) -> list[int]:
    """Return the word-aligned positions of the magic; comparing words is 8 times as fast as bytes.find."""
    found = np.frombuffer(payload, "<u4", len(payload) // 4) == MAGIC
    return [4 * int(word) for word in np.flatnonzero(found)] if found.any() else []


class ListLine(NamedTuple):
    """A line of a .lst: the image's index, its labels, its path below im2rec's root."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used
    labels: tuple[float, ...]
    path: str


def format_index_line(key: int, offset: int) -> str:
    return f"{key}\t{offset}\n"


def read_index(path: Path) -> list[tuple[int, int]]:
    """Return key and byte offset of each record, in the order of the file."""
    expected = "expected a key, a tab and a byte offset, e.g. 3<tab>171296"
    return [(key, offset) for _, key, offset in read_count_pairs(path, "\t", expected)]


def rebuild_index(path: Path) -> list[tuple[int, int]]:
    """Return the index of a .rec file; keys are the records' ids, which im2rec takes from the .lst.

    Ids may repeat in files from other tools; then they cannot be used as keys.
    """
    with RecordIOFile(path) as file:
        offsets = [span.offset for span in file.spans()]
        return [(unpack_image(file.read(at), f"{file.name}, byte {at}").id, at) for at in offsets]


def format_list_line(line: ListLine) -> str:
    if not line.labels or not line.path.strip() or any(char in line.path for char in "\t\r\n"):
        what = f"invalid line of a .lst: path {printable(line.path)!r} with {len(line.labels)} labels"
        raise DataError(f"{what}; expected a label, and a path without tabs and line breaks")
    return "\t".join((str(line.index), *(f"{label:f}" for label in line.labels), line.path)) + "\n"


def read_list(path: Path) -> Iterator[ListLine]:
    for number, line in read_lines(path):
        index, *labels, name = (field.strip() for field in line.split("\t")) if "\t" in line else (line, "")
        if not labels or not name:
            raise damaged_line(path, number, "expected an index, labels and a path, separated by tabs")
        match = _INDEX.fullmatch(index)
        if match is None:
            raise damaged_line(path, number, f"invalid index {printable(index)!r}; expected an integer")
        yield ListLine(int(match[1]), tuple(_parse_label(path, number, label) for label in labels), name)


def _parse_label(path: Path, number: int, text: str) -> float:
    try:
        label = float(text)
    except ValueError:
        label = math.nan
    if not math.isfinite(label):
        raise damaged_line(path, number, f"invalid label {printable(text)!r}; expected a finite number")
    return label
