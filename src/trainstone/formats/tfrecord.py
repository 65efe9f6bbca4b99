"""TFRecord files: framing, checksums, DALI's index of them. What a record holds is none of its business (example.py).

A record is a 64-bit length, the masked CRC-32C of the length, the data, and the masked CRC-32C of the data.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import numpy as np
import numpy.typing as npt

from trainstone.errors import DataError
from trainstone.formats.files import MappedFile, Span, damaged_line, read_count_pairs

HEADER_BYTES = 12
FRAMING_BYTES = 16
_CHUNK_BYTES = 1 << 20
_MASK = 0xA282EAD8
_ZLIB_SECOND_BYTES = (0x01, 0x5E, 0x9C, 0xDA)


def frame(data: bytes) -> bytes:
    """Return the data as a record."""
    length = struct.pack("<Q", len(data))
    head = struct.pack("<I", _mask(google_crc32c.value(length)))
    return b"".join((length, head, data, struct.pack("<I", _mask(google_crc32c.value(data)))))


def index_line(span: Span) -> str:
    """Return the line that DALI's tfrecord2idx writes for a record."""
    return f"{span.offset} {span.size}\n"


def read_index(path: Path) -> list[Span]:
    """Return the records listed in an index as tfrecord2idx writes it."""
    spans = []
    expected = "expected the offset and the size of a record, as in 0 1234"
    for number, offset, size in read_count_pairs(path, None, expected):
        if size < FRAMING_BYTES:
            raise damaged_line(path, number, f"a record has at least {FRAMING_BYTES} bytes, here {size}")
        spans.append(Span(offset, size))
    return spans


class TFRecordFile(MappedFile):
    """A TFRecord file, read by byte offset. Records are views of the mapped file; several threads may read."""

    def spans(self, start: int = 0) -> Iterator[Span]:
        """Yield where each record lies from this byte on. Lengths are checked, data is not read."""
        while start < self.size:
            span = Span(start, FRAMING_BYTES + self._length(start))
            yield span
            start = span.end

    def read(self, offset: int, *, check: bool = True) -> memoryview:
        """Return the data of the record at this byte, checked against both checksums, or only that of its length."""
        length = self._length(offset)
        begin = offset + HEADER_BYTES
        data = self.view[begin : begin + length]
        if not check:
            return data
        (stored,) = struct.unpack_from("<I", self.view, begin + length)
        if stored != _mask(_checksum(data)):
            raise self.damaged(offset, f"the {length} bytes of the record do not fit their checksum")
        return data

    def resync(self, offset: int) -> int | None:
        """Return the next byte after this one where a record seems to start: a length that fits its checksum and file.

        Only lengths below 4 GiB are looked for; a longer record cannot be a protocol buffer.
        """
        array = np.frombuffer(self.view, np.uint8)
        for start in range(max(offset + 1, 0), self.size - FRAMING_BYTES + 1, _CHUNK_BYTES):
            found = _find_header(array[start : start + _CHUNK_BYTES + HEADER_BYTES - 1], self.size - start)
            if found is not None:
                return start + found
        return None

    def _length(self, offset: int) -> int:
        """Return the length of the data of the record at this byte, all of which lies in the file."""
        if not 0 <= offset < self.size:
            raise self.damaged(offset, f"no record starts there; the file has {self.size} bytes")
        header = bytes(self.view[offset : offset + HEADER_BYTES])
        if len(header) < HEADER_BYTES:
            raise self._damaged_header(offset, header, f"the file ends within a record's header, at byte {self.size}")
        (length,) = struct.unpack_from("<Q", header)
        if not _is_header(header):
            raise self._damaged_header(offset, header, "a record's length does not fit its checksum")
        if length > self.size - offset - FRAMING_BYTES:
            raise self.damaged(offset, f"a record of {length} bytes does not fit; the file has {self.size} bytes")
        return int(length)

    def _damaged_header(self, offset: int, header: bytes, what: str) -> DataError:
        # Only now: a sound record of 35615 bytes starts with gzip's two bytes, too.
        name = self.path.name
        if offset == 0 and header[:2] == b"\x1f\x8b":
            return self.damaged(0, "the TFRecord file is compressed with gzip", f"gunzip < {name} > plain.tfrecord")
        if offset == 0 and header[:1] == b"\x78" and header[1:2] and header[1] in _ZLIB_SECOND_BYTES:
            return self.damaged(0, "the TFRecord file is compressed with zlib", "write it without compression")
        return self.damaged(offset, what)


def _mask(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


def _checksum(data: memoryview) -> int:
    """Return the CRC-32C; the library takes bytes only, so copies are made piece by piece."""
    crc = 0
    for start in range(0, len(data), _CHUNK_BYTES):
        crc = google_crc32c.extend(crc, bytes(data[start : start + _CHUNK_BYTES]))
    return crc


def _find_header(window: npt.NDArray[np.uint8], room_bytes: int) -> int | None:
    """Return the first place in the window where a header stands whose record fits into the room from the window on."""
    found = []
    for shift in range(4):
        words = window[shift : len(window) - (len(window) - shift) % 4].view("<u4")
        # Length below 4 GiB, and a checksum: files with holes are full of zeros, and one length at most has checksum 0.
        places = np.flatnonzero((words[1:-1] == 0) & (words[2:] != 0))
        fits = words[places].astype(np.int64) <= room_bytes - FRAMING_BYTES - shift - 4 * places
        starts = (shift + 4 * int(place) for place in places[fits])
        found.append(next((start for start in starts if _is_header(bytes(window[start : start + HEADER_BYTES]))), None))
    return min((start for start in found if start is not None), default=None)


def _is_header(header: bytes) -> bool:
    (stored,) = struct.unpack_from("<I", header, 8)
    return bool(stored == _mask(google_crc32c.value(header[:8])))
