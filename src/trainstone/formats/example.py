"""tf.train.Example, the protocol buffer in most TFRecords: named lists of bytes, 64-bit integers or 32-bit floats.

Example { Features features = 1 }   Features { map<string, Feature> feature = 1 }
Feature { oneof { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3 } }
BytesList { repeated bytes value = 1 }   FloatList and Int64List alike, packed
"""

import struct
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from trainstone.errors import DataError
from trainstone.text import printable

_KINDS = {1: "bytes", 2: "float", 3: "int64"}
_FIELDS = {kind: field for field, kind in _KINDS.items()}
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}
_HINT = "the record holds something else, or was damaged before its checksum was made"


class Feature(NamedTuple):
    """A list of values and their kind: bytes, int64, float; or none, without values, where the message says nothing."""

    kind: str
    values: list[Any]


Field = tuple[int, int, int, int]
"""A field of a message: its number, its wire type, and where its content begins and ends."""


def bytes_feature(*values: bytes) -> Feature:
    """Return a list of byte strings."""
    return Feature("bytes", list(values))


def int64_feature(*values: int) -> Feature:
    """Return a list of integers."""
    return Feature("int64", list(values))


def float_feature(*values: float) -> Feature:
    """Return a list of numbers, which are stored with 32 bits."""
    return Feature("float", list(values))


def encode_example(features: Mapping[str, Feature]) -> bytes:
    """Return the message; the same features give the same bytes, whatever their order."""
    entries = []
    for name in sorted(features):
        try:
            entry = _delimited(1, name.encode()) + _delimited(2, _encode_feature(features[name]))
        except (ValueError, OverflowError, struct.error) as err:
            raise DataError(f"feature {printable(name)} cannot be stored: {err}") from err
        entries.append(_delimited(1, entry))
    return _delimited(1, b"".join(entries))


def decode_example(data: bytes | memoryview, where: str, *, skip: Collection[str] = ()) -> dict[str, Feature]:
    """Return the features of a message but those to skip; `where` (a file and a byte) goes before an error's text.

    As protocol buffers have it: fields it does not know are skipped, of a name met twice the last counts, lists of
    one kind in one feature are joined, and a feature without a kind is of kind none. Groups, which no Example has and
    protocol buffers gave up, are damage.
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
        raise DataError(f"{where}: the record is not a tf.train.Example: {err}", hint=_HINT) from None
    return features


def _encode_feature(feature: Feature) -> bytes:
    if feature.kind == "bytes":
        values = b"".join(_delimited(1, value) for value in feature.values)
    elif not feature.values:
        values = b""
    elif feature.kind == "float":
        values = _delimited(1, struct.pack(f"<{len(feature.values)}f", *feature.values))
    else:
        struct.pack(f"<{len(feature.values)}q", *feature.values)  # refuses what is no int64
        values = _delimited(1, b"".join(_varint(value & 0xFFFFFFFFFFFFFFFF) for value in feature.values))
    return _delimited(_FIELDS[feature.kind], values)


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
    """Return the feature with what this message adds to it: values of its kind, or another kind."""
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
    """Return the values of one field of a list: one, or many if packed; none if its wire type is not of this kind."""
    _, wire, at, end = field
    if kind == "bytes":
        return [bytes(view[at:end])] if wire == _LENGTH else []
    if kind == "float":
        return [value for (value,) in struct.iter_unpack("<f", view[at:end])] if wire in (_LENGTH, _FIXED32) else []
    if wire not in (_LENGTH, _VARINT):
        return []
    data = bytes(view[at:end])
    if data.isascii():  # all below 128: a byte each
        return list(data)
    values = []
    while at < end:
        value, at = _read_varint(view, at, end)
        values.append(value - (1 << 64) if value >> 63 else value)
    return values


def _fields(view: memoryview, at: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message between two bytes."""
    while at < end:
        tag, at = _read_varint(view, at, end)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 1 << 29 or wire not in (_VARINT, _LENGTH, *_WIDTHS):
            raise ValueError(f"field number {number} of wire type {wire} before byte {at} of its data")
        if wire == _VARINT:
            length = _read_varint(view, at, end)[1] - at
        elif wire == _LENGTH:
            length, at = _read_varint(view, at, end)
        else:
            length = _WIDTHS[wire]
        if length > end - at:
            raise ValueError(f"a field of {length} bytes at byte {at} of its data, where {end - at} are left")
        yield number, wire, at, at + length
        at += length


def _read_varint(view: memoryview, at: int, end: int) -> tuple[int, int]:
    """Return a number of 64 bits and the byte after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise ValueError(f"a number that is cut off or longer than 10 bytes at byte {at} of its data")
