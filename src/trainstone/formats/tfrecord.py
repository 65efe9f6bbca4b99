"""Read and write TFRecord files, DALI's index of them, and tf.train.Example messages.

A record is a 64-bit length, the masked CRC-32C of the length, the data, and the masked CRC-32C of the data.
Example { Features features = 1 }   Features { map<string, Feature> feature = 1 }
Feature { oneof { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3 } }
BytesList { repeated bytes value = 1 }   FloatList and Int64List alike, packed
"""

import struct
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np

from trainstone.errors import DataError
from trainstone.formats.files import ByteSpan, MappedFile, damaged_line, read_count_pairs
from trainstone.text import printable

HEADER_BYTES = 12
FRAMING_BYTES = 16
_CHUNK_BYTES = 1 << 20
_MASK = 0xA282EAD8
_ZLIB_STARTS = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")


def frame_record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    head = struct.pack("<I", _mask(google_crc32c.value(length)))
    return b"".join((length, head, data, struct.pack("<I", _mask(google_crc32c.value(data)))))


def format_index_line(span: ByteSpan) -> str:
    return f"{span.offset} {span.size}\n"


def read_index(path: Path) -> list[ByteSpan]:
    """Return the records listed in an index as tfrecord2idx writes it."""
    spans = []
    expected = "expected the offset and size of a record, e.g. 0 1234"
    for number, offset, size in read_count_pairs(path, None, expected):
        if size < FRAMING_BYTES:
            raise damaged_line(path, number, f"record size {size}; at least {FRAMING_BYTES} bytes are expected")
        spans.append(ByteSpan(offset, size))
    return spans


class TFRecordFile(MappedFile):
    """A TFRecord file, read by byte offset. Records are views of the mapped file; reading is thread-safe."""

    def spans(self, start: int = 0) -> Iterator[ByteSpan]:
        """Yield the span of each record from byte `start` on. Lengths are checked, data is not read."""
        while start < self.size:
            span = ByteSpan(start, FRAMING_BYTES + self._length(start))
            yield span
            start = span.end

    def read(self, offset: int, *, check: bool = True) -> memoryview:
        """Return the data of the record at this byte; without `check`, only the checksum of the length is verified."""
        length = self._length(offset)
        begin = offset + HEADER_BYTES
        data = self.view[begin : begin + length]
        if not check:
            return data
        crc = 0
        for start in range(0, length, _CHUNK_BYTES):  # google_crc32c takes only bytes, so the data is copied in chunks
            crc = google_crc32c.extend(crc, bytes(data[start : start + _CHUNK_BYTES]))
        (stored,) = struct.unpack_from("<I", self.view, begin + length)
        if stored != _mask(crc):
            raise self.damaged(offset, f"checksum mismatch in the {length} bytes of the record")
        return data

    def resync(self, offset: int) -> int | None:
        """Return the next offset with a plausible record: its length matches its checksum and fits the file.

        Only lengths below 4 GiB are searched; a longer record cannot be a protocol buffer.
        """
        array = np.frombuffer(self.view, np.uint8)
        for start in range(max(offset + 1, 0), self.size - FRAMING_BYTES + 1, _CHUNK_BYTES):
            window = array[start : start + _CHUNK_BYTES + HEADER_BYTES - 1]
            found: list[int] = []
            for shift in range(4):
                words = window[shift : len(window) - (len(window) - shift) % 4].view("<u4")
                # A length below 4 GiB and a nonzero checksum: sparse files are full of zeros, and at most one length
                # has checksum 0.
                places = np.flatnonzero((words[1:-1] == 0) & (words[2:] != 0))
                room_bytes = self.size - start - FRAMING_BYTES - shift - 4 * places
                fits = words[places].astype(np.int64) <= room_bytes
                heads = (shift + 4 * int(place) for place in places[fits])
                found += islice((at for at in heads if _is_header(bytes(window[at : at + HEADER_BYTES]))), 1)
            if found:
                return start + min(found)
        return None

    def _length(self, offset: int) -> int:
        """Return the data length of the record at this byte, checked to be within the file."""
        if not 0 <= offset < self.size:
            raise self.damaged(offset, f"no record starts here; the file has {self.size} bytes")
        header = bytes(self.view[offset : offset + HEADER_BYTES])
        if len(header) < HEADER_BYTES or not _is_header(header):
            # Checked only now, because a valid record of 35615 bytes also starts with gzip's magic number.
            if offset == 0 and header.startswith(b"\x1f\x8b"):
                hint = f"gunzip < {self.path.name} > plain.tfrecord"
                raise self.damaged(0, "the TFRecord file is compressed with gzip", hint)
            if offset == 0 and header.startswith(_ZLIB_STARTS):
                raise self.damaged(0, "the TFRecord file is compressed with zlib", "write it without compression")
            ends = f"the file ends within a record header, at byte {self.size}"
            raise self.damaged(
                offset, ends if len(header) < HEADER_BYTES else "checksum mismatch in the length of a record"
            )
        length = int.from_bytes(header[:8], "little")
        if length > self.size - offset - FRAMING_BYTES:
            raise self.damaged(offset, f"record of {length} bytes exceeds the file; the file has {self.size} bytes")
        return length


def _mask(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


def _is_header(header: bytes) -> bool:
    (stored,) = struct.unpack_from("<I", header, 8)
    return bool(stored == _mask(google_crc32c.value(header[:8])))


_KINDS = {1: "bytes", 2: "float", 3: "int64"}
_FIELDS = {kind: field for field, kind in _KINDS.items()}
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}
_HINT = "the record has another format, or was damaged before its checksum was computed"


class Feature(NamedTuple):
    """A list of values and their kind: bytes, int64 or float; none if the message has no list."""

    kind: str
    values: list[Any]


Field = tuple[int, int, int, int]
"""A field of a message: number, wire type, start and end of its content."""


def bytes_feature(*values: bytes) -> Feature:
    return Feature("bytes", list(values))


def int64_feature(*values: int) -> Feature:
    return Feature("int64", list(values))


def float_feature(*values: float) -> Feature:
    """Return a feature of numbers, which are stored as 32-bit floats."""
    return Feature("float", list(values))


def encode_example(features: Mapping[str, Feature]) -> bytes:
    """Return the encoded message; features are sorted, so the bytes do not depend on their order."""
    entries = []
    for name in sorted(features):
        kind, values = features[name]
        try:
            if kind == "bytes":
                content = b"".join(_delimited(1, value) for value in values)
            elif not values:
                content = b""
            elif kind == "float":
                content = _delimited(1, struct.pack(f"<{len(values)}f", *values))
            else:
                struct.pack(f"<{len(values)}q", *values)  # raises struct.error for values out of range
                content = _delimited(1, b"".join(_varint(value & 0xFFFFFFFFFFFFFFFF) for value in values))
            entry = _delimited(1, name.encode()) + _delimited(2, _delimited(_FIELDS[kind], content))
        except (ValueError, OverflowError, struct.error) as err:
            raise DataError(f"cannot encode feature {printable(name)}: {err}") from err
        entries.append(_delimited(1, entry))
    return _delimited(1, b"".join(entries))


def decode_example(data: bytes | memoryview, where: str, *, skip: Collection[str] = ()) -> dict[str, Feature]:
    """Return the features of a message except those in `skip`; `where` (file and byte) prefixes error messages.

    As in protocol buffers, unknown fields are skipped, the last of duplicate names counts, and lists of the same kind
    in one feature are joined. A feature without a list has kind none. Groups (deprecated) are rejected.
    """
    view = memoryview(data)
    features: dict[str, Feature] = {}
    try:
        for outer, wire, start, end in _fields(view, 0, len(view)):
            if (outer, wire) != (1, _LENGTH):
                continue
            for entry, entry_wire, begin, stop in _fields(view, start, end):
                if (entry, entry_wire) == (1, _LENGTH):
                    name, feature = _decode_entry(view, begin, stop, skip)
                    if name not in skip:
                        features[name] = feature
    except (ValueError, struct.error) as err:
        raise DataError(f"{where}: not a tf.train.Example: {err}", hint=_HINT) from None
    return features


def _delimited(field: int, content: bytes) -> bytes:
    return b"".join((bytes((field << 3 | _LENGTH,)), _varint(len(content)), content))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _decode_entry(view: memoryview, start: int, end: int, skip: Collection[str]) -> tuple[str, Feature]:
    name, feature = "", Feature("none", [])
    for number, wire, begin, stop in _fields(view, start, end):
        if (number, wire) == (1, _LENGTH):
            name = str(view[begin:stop], "utf-8")
        elif (number, wire) == (2, _LENGTH) and name not in skip:
            feature = _decode_feature(view, begin, stop, feature)
    return name, feature


def _decode_feature(view: memoryview, start: int, end: int, feature: Feature) -> Feature:
    """Return `feature` merged with this message: values of the same kind are appended, another kind replaces it."""
    for number, wire, begin, stop in _fields(view, start, end):
        kind = _KINDS.get(number)
        if kind is None or wire != _LENGTH:
            continue
        if feature.kind != kind:
            feature = Feature(kind, [])
        for value in _fields(view, begin, stop):
            if value[0] == 1:
                feature.values.extend(_decode_values(view, kind, value))
    return feature


def _decode_values(view: memoryview, kind: str, field: Field) -> list[Any]:
    """Return the values of one field of a list: one, many if packed, none if its wire type does not fit the kind."""
    _, wire, at, end = field
    if kind == "bytes":
        return [bytes(view[at:end])] if wire == _LENGTH else []
    if kind == "float":
        return [value for (value,) in struct.iter_unpack("<f", view[at:end])] if wire in (_LENGTH, _FIXED32) else []
    if wire not in (_LENGTH, _VARINT):
        return []
    data = bytes(view[at:end])
    if data.isascii():  # all below 128: one byte each
        return list(data)
    values = []
    while at < end:
        value, at = _read_varint(view, at, end)
        values.append(value - (1 << 64) if value >> 63 else value)
    return values


def _fields(view: memoryview, at: int, end: int) -> Iterator[Field]:
    while at < end:
        tag, at = _read_varint(view, at, end)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 1 << 29 or wire not in (_VARINT, _LENGTH, *_WIDTHS):
            raise ValueError(f"invalid field {number} of wire type {wire} before byte {at} of the data")
        if wire == _VARINT:
            length = _read_varint(view, at, end)[1] - at
        elif wire == _LENGTH:
            length, at = _read_varint(view, at, end)
        else:
            length = _WIDTHS[wire]
        if length > end - at:
            raise ValueError(f"field of {length} bytes at byte {at} of the data, but only {end - at} bytes are left")
        yield number, wire, at, at + length
        at += length


def _read_varint(view: memoryview, at: int, end: int) -> tuple[int, int]:
    """Return a 64-bit number and the offset after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise ValueError(f"varint truncated or longer than 10 bytes at byte {at} of the data")
