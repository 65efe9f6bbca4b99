"""RecordIO files (.rec) as MXNet's im2rec makes them: framing, and the header of an image in a record.

A record is a magic number, 3 bits of flag and 29 of length, the payload, and zeros up to a multiple of 4 bytes. Where
the payload itself holds the magic at a multiple of 4, it is cut there into parts and those 4 bytes are left out, so
that an aligned magic is always the head of something.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from trainstone.errors import DataError
from trainstone.formats.files import MappedFile
from trainstone.formats.span import Span

MAGIC = 0xCED7230A
MAGIC_BYTES = struct.pack("<I", MAGIC)
HEADER_BYTES = 8
MAX_PAYLOAD_BYTES = (1 << 29) - 1
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_IMAGE_HEADER = struct.Struct("<IfQQ")
_CHUNK_WORDS = 1 << 20
_HINT = "the record was not made by im2rec, or is damaged; trainstone data verify lists all that is"


def pack(payload: bytes) -> bytes:
    """Return the payload as a record."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise DataError(f"a RecordIO record holds at most {MAX_PAYLOAD_BYTES} bytes, this one has {len(payload)}")
    pieces: list[bytes] = []
    start = 0
    for at in _aligned_magics(payload):
        pieces += (_head(_MIDDLE if start else _FIRST, at - start), payload[start:at])
        start = at + len(MAGIC_BYTES)
    rest = payload[start:]
    pieces += (_head(_LAST if start else _WHOLE, len(rest)), rest, bytes(-len(rest) % 4))
    return b"".join(pieces)


def pack_parts(head: bytes, content: bytes) -> Sequence[bytes]:
    """Return pack(head + content) in pieces, without copying the content where no magic is in the way."""
    if len(head) % 4 or MAGIC_BYTES in head or _aligned_magics(content):
        return (pack(head + content),)
    length = len(head) + len(content)
    if length > MAX_PAYLOAD_BYTES:
        raise DataError(f"a RecordIO record holds at most {MAX_PAYLOAD_BYTES} bytes, this one has {length}")
    return (_head(_WHOLE, length) + head, content, bytes(-length % 4))


class RecordIOFile(MappedFile):
    """A .rec file, read by byte offset. Records are views of the mapped file; several threads may read."""

    def spans(self, start: int = 0) -> Iterator[Span]:
        """Yield where each record lies from this byte on, all parts of it together. Payloads are not read."""
        while start < self.size:
            end = start
            for part in self._parts(start):
                end = part.end + -part.size % 4
            yield Span(start, end - start)
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

    def _parts(self, offset: int) -> Iterator[Span]:
        """Yield where the payloads of the parts of the record at this byte lie."""
        if not 0 <= offset < self.size:
            raise self.damaged(offset, f"no record starts there; the file has {self.size} bytes")
        at, allowed = offset, (_WHOLE, _FIRST)
        while True:
            flag, length = self._head(at)
            if flag not in allowed:
                inside = "" if at == offset else f" within the record that starts at byte {offset}"
                raise self.damaged(at, f"flag {flag} where {allowed[0]} or {allowed[1]} is due{inside}")
            yield Span(at + HEADER_BYTES, length)
            if flag in (_WHOLE, _LAST):
                return
            at += HEADER_BYTES + length + -length % 4
            allowed = (_MIDDLE, _LAST)

    def _head(self, at: int) -> tuple[int, int]:
        """Return flag and length of the part at this byte, all of which lies in the file."""
        if self.size - at < HEADER_BYTES:
            raise self.damaged(at, f"the file ends within a record's header, at byte {self.size}")
        magic, mark = struct.unpack_from("<II", self.view, at)
        if magic != MAGIC:
            raise self.damaged(at, f"no RecordIO record: it starts with {magic:#010x} instead of {MAGIC:#010x}")
        length = mark & MAX_PAYLOAD_BYTES
        if length + -length % 4 > self.size - at - HEADER_BYTES:
            raise self.damaged(at, f"a record of {length} bytes does not fit; the file has {self.size} bytes")
        return mark >> 29, length


class ImageRecord(NamedTuple):
    """An image with its label or labels. `vector` tells labels stored as a list from one stored in the header."""

    labels: tuple[float, ...]
    id: int
    image: bytes | memoryview
    id2: int = 0
    vector: bool = False


def pack_image(record: ImageRecord) -> bytes:
    """Return the payload of a record that holds the image."""
    return pack_labels(record) + record.image


def pack_labels(record: ImageRecord) -> bytes:
    """Return what stands before the image in its record."""
    count = len(record.labels)
    if count != 1 and not (record.vector and count):
        raise DataError(f"image {record.id} has {count} labels; it needs one, or a vector of at least one")
    try:
        if record.vector:
            head = _IMAGE_HEADER.pack(count, 0.0, record.id, record.id2) + struct.pack(f"<{count}f", *record.labels)
        else:
            head = _IMAGE_HEADER.pack(0, record.labels[0], record.id, record.id2)
    except (struct.error, OverflowError) as err:
        raise DataError(f"image {record.id} cannot be stored: its labels or ids are out of range: {err}") from err
    return head


def unpack_image(payload: bytes | memoryview, where: str = "") -> ImageRecord:
    """Return the image in a payload; `where` (a file and a byte) is put before the text of an error."""
    before = f"{where}: " if where else ""
    if len(payload) < _IMAGE_HEADER.size:
        what = f"the record has {len(payload)} bytes, an image's header alone has {_IMAGE_HEADER.size}"
        raise DataError(before + what, hint=_HINT)
    count, label, number, number2 = _IMAGE_HEADER.unpack_from(payload)
    if count == 0:
        return ImageRecord((label,), number, payload[_IMAGE_HEADER.size :], number2)
    start = _IMAGE_HEADER.size + 4 * count
    if start > len(payload):
        raise DataError(f"{before}the record claims {count} labels but has {len(payload)} bytes", hint=_HINT)
    labels = struct.unpack_from(f"<{count}f", payload, _IMAGE_HEADER.size)
    return ImageRecord(labels, number, payload[start:], number2, vector=True)


def _head(flag: int, length: int) -> bytes:
    return struct.pack("<II", MAGIC, flag << 29 | length)


def _aligned_magics(payload: bytes) -> list[int]:
    """Return where the magic stands on a word; comparing words is eight times as quick as bytes.find."""
    found = np.frombuffer(payload, "<u4", len(payload) // 4) == MAGIC
    return [4 * int(word) for word in np.flatnonzero(found)] if found.any() else []
