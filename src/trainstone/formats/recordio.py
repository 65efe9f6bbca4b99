"""RecordIO files (.rec) as MXNet's im2rec makes them: framing, the header of an image in a record, the files beside.

A record is a magic number, 3 bits of flag and 29 of length, the payload, and zeros up to a multiple of 4 bytes. Where
the payload itself holds the magic at a multiple of 4, it is cut there into parts and those 4 bytes are left out, so
that an aligned magic is always the head of something.
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
# Lists of old tools count in floats: 3.000000
_INDEX = re.compile(r"([0-9]{1,19})(?:\.0*)?")
_HINT = "the record was not made by im2rec, or is damaged; trainstone data verify lists all that is"


def pack_parts(head: bytes, content: bytes) -> Sequence[bytes]:
    """Return head and content as one record, in pieces: the content is not copied where no magic is in the way."""
    length = len(head) + len(content)
    if length > MAX_PAYLOAD_BYTES:
        raise DataError(f"a RecordIO record holds at most {MAX_PAYLOAD_BYTES} bytes, this one has {length}")
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
    """A .rec file, read by byte offset. Records are views of the mapped file; several threads may read."""

    def spans(self, start: int = 0) -> Iterator[ByteSpan]:
        """Yield where each record lies from this byte on, all parts of it together. Payloads are not read."""
        while start < self.size:
            end = start
            for part in self._parts(start):
                end = part.end + -part.size % 4
            yield ByteSpan(start, end - start)
            start = end

    def read(self, offset: int) -> bytes | memoryview:
        """Return the payload of the record at this byte: a view of the file, or a copy if it was in parts."""
        contents = (self.view[part.offset : part.end] for part in self._parts(offset))
        first = next(contents)
        joined: bytearray | None = None
        for content in contents:
            joined = bytearray(first) if joined is None else joined
            joined += MAGIC_BYTES
            joined += content
        return first if joined is None else bytes(joined)

    def resync(self, offset: int) -> int | None:
        """Return the next byte after this one where a record seems to start: an aligned magic, a length that fits."""
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
        """Yield where the payloads of the parts of the record at this byte lie, all of them in the file."""
        if not 0 <= offset < self.size:
            raise self.damaged(offset, f"no record starts there; the file has {self.size} bytes")
        at, allowed = offset, (_WHOLE, _FIRST)
        while True:
            if self.size - at < HEADER_BYTES:
                raise self.damaged(at, f"the file ends within a record's header, at byte {self.size}")
            magic, mark = struct.unpack_from("<II", self.view, at)
            if magic != MAGIC:
                raise self.damaged(at, f"no RecordIO record: it starts with {magic:#010x} instead of {MAGIC:#010x}")
            flag, length = mark >> 29, mark & MAX_PAYLOAD_BYTES
            if length + -length % 4 > self.size - at - HEADER_BYTES:
                raise self.damaged(at, f"a record of {length} bytes does not fit; the file has {self.size} bytes")
            if flag not in allowed:
                inside = "" if at == offset else f" within the record that starts at byte {offset}"
                raise self.damaged(at, f"flag {flag} where {allowed[0]} or {allowed[1]} is due{inside}")
            yield ByteSpan(at + HEADER_BYTES, length)
            if flag in (_WHOLE, _LAST):
                return
            at += HEADER_BYTES + length + -length % 4
            allowed = (_MIDDLE, _LAST)


class ImageRecord(NamedTuple):
    """An image with its label or labels. `vector` tells labels stored as a list from one stored in the header."""

    labels: tuple[float, ...]
    id: int
    image: bytes | memoryview
    vector: bool = False


def pack_labels(record: ImageRecord) -> bytes:
    """Return what stands before the image in its record."""
    count = len(record.labels)
    if count != 1 and not (record.vector and count):
        raise DataError(f"image {record.id} has {count} labels; it needs one, or a vector of at least one")
    first, flag = (0.0, count) if record.vector else (record.labels[0], 0)
    vector = record.labels if record.vector else ()
    try:
        return _IMAGE_HEADER.pack(flag, first, record.id, 0) + struct.pack(f"<{len(vector)}f", *vector)
    except (struct.error, OverflowError) as err:
        raise DataError(f"image {record.id} cannot be stored: its labels or ids are out of range: {err}") from err


def unpack_image(payload: bytes | memoryview, where: str) -> ImageRecord:
    """Return the image in a payload; `where` (a file and a byte) is put before the text of an error."""
    if len(payload) < _IMAGE_HEADER.size:
        what = f"the record has {len(payload)} bytes, an image's header alone has {_IMAGE_HEADER.size}"
        raise DataError(f"{where}: {what}", hint=_HINT)
    count, label, number, _ = _IMAGE_HEADER.unpack_from(payload)
    start = _IMAGE_HEADER.size + 4 * count
    if start > len(payload):
        raise DataError(f"{where}: the record claims {count} labels but has {len(payload)} bytes", hint=_HINT)
    labels = struct.unpack_from(f"<{count}f", payload, _IMAGE_HEADER.size) if count else (label,)
    return ImageRecord(labels, number, payload[start:], vector=count > 0)


def _head(flag: int, length: int) -> bytes:
    return struct.pack("<II", MAGIC, flag << 29 | length)


def _aligned_magics(payload: bytes) -> list[int]:
    """Return where the magic stands on a word; comparing words is eight times as quick as bytes.find."""
    found = np.frombuffer(payload, "<u4", len(payload) // 4) == MAGIC
    return [4 * int(word) for word in np.flatnonzero(found)] if found.any() else []


class ListLine(NamedTuple):
    """A line of a .lst: the image's number, its label or labels, its path below the root given to im2rec."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks of a record
    labels: tuple[float, ...]
    path: str


def index_line(key: int, offset: int) -> str:
    return f"{key}\t{offset}\n"


def read_index(path: Path) -> list[tuple[int, int]]:
    """Return key and byte offset of each record, in the order of the file."""
    expected = "expected a key, a tab and a byte offset, as in 3<tab>171296"
    return [(key, offset) for _, key, offset in read_count_pairs(path, "\t", expected)]


def rebuild_index(path: Path) -> list[tuple[int, int]]:
    """Return the index of a .rec that has lost it; keys are the records' ids, which im2rec takes from the .lst.

    Ids may repeat where other tools packed the records: such a file has no index by key.
    """
    with RecordIOFile(path) as file:
        offsets = [span.offset for span in file.spans()]
        return [(unpack_image(file.read(at), f"{file.name}, byte {at}").id, at) for at in offsets]


def list_line(line: ListLine) -> str:
    if not line.labels or not line.path.strip() or any(char in line.path for char in "\t\r\n"):
        what = "a line of a .lst needs a label and a path without tabs and line breaks"
        raise DataError(f"{what}: {printable(line.path)!r} with {len(line.labels)} labels")
    return "\t".join((str(line.index), *(f"{label:f}" for label in line.labels), line.path)) + "\n"


def read_list(path: Path) -> Iterator[ListLine]:
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
