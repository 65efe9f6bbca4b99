"""Reads what ImageNet's meta.mat needs of MATLAB 5 files (`save -v6`, `-v7`): numbers, text and structs, packed or not.

Not read are version 7.3 (HDF5), big-endian files, cells, sparse or complex arrays, objects and functions.
"""

import math
import zlib
from typing import Any, NamedTuple, NoReturn

import numpy as np

from trainstone.errors import DataError
from trainstone.text import printable

# meta.mat is under 4 MB unpacked.
MAX_UNPACKED_BYTES = 256 * 2**20
MAX_DEPTH = 32
HEADER_BYTES = 128

_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_MATRIX, _PACKED, _UTF8 = 14, 15, 16
_ARRAYS = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
_STRUCT, _CHAR = 2, 4
_COMPLEX_FLAG = 0x0800


class _Source(NamedTuple):
    """Bytes being read, and what to call them in messages."""

    data: bytes
    where: str


class _Element(NamedTuple):
    """A data element: its type, where its content is, and where the next one begins."""

    kind: int
    start: int
    end: int
    after: int


def read_mat(data: bytes, where: str = "MATLAB file") -> dict[str, Any]:
    """Return the variables of a file by name: numpy arrays of their shape, text as str, structs as lists of dicts."""
    if data.startswith((b"MATLAB 7.3", b"\x89HDF")):
        raise DataError(f"{where}, byte 0: a MATLAB 7.3 file, which is HDF5", hint="save it with -v7 in MATLAB")
    if data[124:128] != b"\x00\x01IM":
        raise DataError(f"{where}, byte 124: not a MATLAB 5 file of version 0x0100, little-endian")
    source = _Source(data, where)
    variables: dict[str, Any] = {}
    at = HEADER_BYTES
    while at < len(data):
        element = _read_element(source, at, len(data))
        if element.kind == _PACKED:
            inner = _unpack(source, element)
            name, value = _read_matrix(inner, _read_element(inner, 0, len(inner.data)), 0)
        else:
            name, value = _read_matrix(source, element, 0)
        variables[name] = value
        at = element.after
    return variables


def _fail(source: _Source, at: int, problem: str) -> NoReturn:
    raise DataError(f"{source.where}, byte {at}: {problem}", hint="the file is damaged; get it again")


def _read_element(source: _Source, at: int, end: int) -> _Element:
    """Read the tag at `at`; a tag with a size in its upper half holds up to 4 bytes of content itself."""
    if at + 8 > end:
        _fail(source, at, f"an element begins {end - at} bytes before the end, a tag needs 8")
    word, size = np.frombuffer(source.data, "<u4", 2, at).tolist()
    if word >> 16:
        if word >> 16 > 4:
            _fail(source, at, f"a small element claims {word >> 16} bytes, at most 4 fit")
        return _Element(word & 0xFFFF, at + 4, at + 4 + (word >> 16), at + 8)
    start = at + 8
    if size > end - start:
        _fail(source, at, f"an element claims {size:,} bytes, {end - start:,} are left")
    # A packed element is followed at once by the next one; others fill up to 8 bytes.
    padded = size if word == _PACKED else -(-size // 8) * 8
    return _Element(word, start, start + size, min(start + padded, end))


def _unpack(source: _Source, element: _Element) -> _Source:
    decoder = zlib.decompressobj()
    try:
        content = decoder.decompress(source.data[element.start : element.end], MAX_UNPACKED_BYTES)
    except zlib.error as err:
        raise DataError(f"{source.where}, byte {element.start}: packed content is damaged: {err}") from err
    if decoder.unconsumed_tail:
        _fail(source, element.start, f"packed content is larger than {MAX_UNPACKED_BYTES:,} bytes unpacked")
    if not decoder.eof:
        _fail(source, element.start, "packed content ends early")
    return _Source(content, f"{source.where}, unpacked from byte {element.start}")


def _read_matrix(source: _Source, element: _Element, depth: int) -> tuple[str, Any]:
    """Return the name and value of an array; an element without content is an empty array."""
    if element.kind != _MATRIX:
        _fail(source, element.start, f"an array was expected, type {_MATRIX}, and found was type {element.kind}")
    if depth > MAX_DEPTH:
        _fail(source, element.start, f"arrays are nested more than {MAX_DEPTH} deep")
    if element.start == element.end:
        return "", np.zeros((0, 0))
    flags = _read_element(source, element.start, element.end)
    flag_values = _read_numbers(source, flags)
    shape_element = _read_element(source, flags.after, element.end)
    shape = tuple(_read_numbers(source, shape_element).tolist())
    name = _read_element(source, shape_element.after, element.end)
    if flag_values.size != 2 or flag_values.dtype.kind not in "iu":
        _fail(source, flags.start, "an array's flags should be two whole numbers")
    if len(shape) < 2 or any(not isinstance(size, int) or size < 0 for size in shape):
        _fail(source, shape_element.start, f"an array has the shape {shape}")
    kind = int(flag_values[0]) & 0xFF
    if kind not in (_STRUCT, _CHAR, *_ARRAYS) or int(flag_values[0]) & _COMPLEX_FLAG:
        _fail(source, flags.start, f"an array of class {kind} that is not read, or a complex one")
    title = printable(source.data[name.start : name.end].decode("latin-1"))
    if kind == _STRUCT:
        return title, _read_structs(source, math.prod(shape), name.after, element.end, depth)
    content = _read_element(source, name.after, element.end)
    if kind == _CHAR:
        return title, _read_text(source, shape, content)
    numbers = _read_numbers(source, content)
    if numbers.size != math.prod(shape):
        _fail(source, content.start, f"an array of shape {shape} holds {numbers.size:,} numbers")
    # MATLAB stores whole doubles as small integers; the class says what they are.
    with np.errstate(all="ignore"):
        return title, numbers.astype(_ARRAYS[kind]).reshape(shape, order="F")


def _read_numbers(source: _Source, element: _Element) -> np.ndarray[Any, np.dtype[Any]]:
    if element.kind not in _NUMBERS:
        _fail(source, element.start, f"numbers were expected, and found was type {element.kind}")
    kind = np.dtype(f"<{_NUMBERS[element.kind]}")
    num_bytes = element.end - element.start
    if num_bytes % kind.itemsize:
        _fail(source, element.start, f"{num_bytes} bytes are no whole count of {kind.itemsize}-byte numbers")
    return np.frombuffer(source.data, kind, num_bytes // kind.itemsize, element.start)


def _read_text(source: _Source, shape: tuple[int, ...], element: _Element) -> str:
    """Return a row of characters: UTF-8, or a number for each."""
    if shape[0] > 1 or len(shape) > 2:
        _fail(source, element.start, f"text of shape {shape} is not read; one row is")
    if element.kind == _UTF8:
        return source.data[element.start : element.end].decode("utf-8", errors="replace")
    codes = _read_numbers(source, element)
    if codes.dtype.kind != "u":
        _fail(source, element.start, "text is stored as numbers that are no characters")
    return codes.astype("<u2").tobytes().decode("utf-16-le", errors="replace")


def _read_structs(source: _Source, count: int, at: int, end: int, depth: int) -> list[dict[str, Any]]:
    width_element = _read_element(source, at, end)
    width = _read_numbers(source, width_element)
    if width.size != 1 or width.dtype.kind not in "iu" or not 0 < int(width[0]) <= 4096:
        _fail(source, width_element.start, "the length of field names should be one whole number from 1 to 4096")
    names = _read_element(source, width_element.after, end)
    text = source.data[names.start : names.end]
    step = int(width[0])
    fields = [printable(text[i : i + step].split(b"\0")[0].decode("latin-1")) for i in range(0, len(text), step)]
    if len(text) % step or not fields:
        _fail(source, names.start, f"{len(text)} bytes are no whole count of field names of {step} bytes")
    at = names.after
    if count * len(fields) > (end - at) // 8:  # each takes at least the 8 bytes of its tag
        _fail(source, at, f"{count * len(fields):,} arrays are claimed, and {end - at:,} bytes are left for them")
    structs = []
    for _ in range(count):
        struct = {}
        for field in fields:
            element = _read_element(source, at, end)
            struct[field] = _read_matrix(source, element, depth + 1)[1]
            at = element.after
        structs.append(struct)
    return structs
