"""Read MATLAB 5 files (`save -v6`, `-v7`) as far as ImageNet's meta.mat needs: numbers, text and structs.

Not supported: version 7.3 (HDF5), big-endian files, cells, sparse or complex arrays, objects, functions.
"""

import math
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from trainstone.errors import DataError
from trainstone.text import printable

# meta.mat has less than 4 MB uncompressed.
MAX_UNPACKED_BYTES = 256 * 2**20
HEADER_BYTES = 128

_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_MATRIX, _PACKED, _UTF8 = 14, 15, 16
_ARRAYS = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
_STRUCT, _CHAR = 2, 4
_COMPLEX_FLAG = 0x0800

Element = tuple[int, memoryview]
"""A data element: its type and content."""


def read_mat(data: bytes, where: str = "MATLAB file") -> dict[str, Any]:
    """Return the variables of a file by name: numbers as NumPy arrays, text as str, structs as lists of dicts."""
    if data.startswith((b"MATLAB 7.3", b"\x89HDF")):
        raise DataError(f"{where}: MATLAB 7.3 (HDF5) is not supported", hint="save it with -v7 in MATLAB")
    if data[124:128] != b"\x00\x01IM":
        raise DataError(f"{where}: not a little-endian MATLAB 5 file of version 0x0100")
    variables: dict[str, Any] = {}
    try:
        for kind, content in _split(memoryview(data)[HEADER_BYTES:]):
            if kind == _PACKED:
                decoder = zlib.decompressobj()
                unpacked = decoder.decompress(content, MAX_UNPACKED_BYTES)
                if decoder.unconsumed_tail:
                    raise ValueError(f"compressed content exceeds {MAX_UNPACKED_BYTES:,} bytes")
                kind, content = next(_split(memoryview(unpacked)))
            name, value = _read_array(kind, content)
            variables[name] = value
    except (ValueError, struct.error, zlib.error, LookupError, OverflowError, StopIteration, RecursionError) as err:
        reason = str(err) or "truncated or nested too deeply"
        raise DataError(f"{where}: damaged: {reason}", hint="download the file again") from err
    return variables


def _split(data: memoryview) -> Iterator[Element]:
    """Yield the elements; a tag with a size in its upper half holds up to 4 bytes of content itself."""
    at = 0
    while at < len(data):
        kind, size = struct.unpack_from("<II", data, at)
        start, padded = at + 8, -(-size // 8) * 8
        if kind >> 16:
            kind, size, start, padded = kind & 0xFFFF, min(kind >> 16, 4), at + 4, 4
        elif kind == _PACKED:  # compressed elements are not padded, others to 8 bytes
            padded = size
        if size > len(data) - start:
            raise ValueError(f"element of {size:,} bytes, but only {len(data) - start:,} bytes are left")
        yield kind, data[start : start + size]
        at = start + padded


def _read_array(kind: int, content: memoryview) -> tuple[str, Any]:
    """Return name and value of an array; an element without content is an empty array."""
    if kind != _MATRIX:
        raise ValueError(f"element of type {kind}; expected an array (type {_MATRIX})")
    if not content:
        return "", np.zeros((0, 0))
    parts = _split(content)
    flags = int(_read_numbers(next(parts))[0])
    shape = tuple(int(size) for size in _read_numbers(next(parts)))
    name = printable(bytes(next(parts)[1]).decode("latin-1"))
    array = flags & 0xFF
    if array not in (_STRUCT, _CHAR, *_ARRAYS) or flags & _COMPLEX_FLAG:
        raise ValueError(f"array of class {array} or complex array is not supported")
    if array == _STRUCT:
        width = int(_read_numbers(next(parts))[0])
        names = bytes(next(parts)[1])
        fields = [
            printable(names[i : i + width].split(b"\0")[0].decode("latin-1")) for i in range(0, len(names), width)
        ]
        if not fields:
            raise ValueError("struct without fields")
        # If the count is too large, `next` raises StopIteration.
        return name, [{field: _read_array(*next(parts))[1] for field in fields} for _ in range(math.prod(shape))]
    if array == _CHAR and shape[0] > 1:
        raise ValueError("text with several rows is not supported")
    values = next(parts)
    if array == _CHAR and values[0] == _UTF8:
        return name, bytes(values[1]).decode("utf-8", errors="replace")
    if array == _CHAR:  # one number per character
        return name, _read_numbers(values).astype("<u2").tobytes().decode("utf-16-le", errors="replace")
    with np.errstate(all="ignore"):  # MATLAB stores integral doubles as small integers; the class has the real type
        return name, _read_numbers(values).astype(_ARRAYS[array]).reshape(shape, order="F")


def _read_numbers(element: Element) -> np.ndarray[Any, np.dtype[Any]]:
    return np.frombuffer(element[1], f"<{_NUMBERS[element[0]]}")
