"""What a pickle of arrays is made of, and how each is made here, by hand: no function that a pickle names is called."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainstone.text import printable

MAX_DIMENSIONS = 32
DTYPES = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "b1")
# Whatever numpy, of whichever year, names in a pickle of an array; and Python's ordered dict.
KNOWN = {
    "numpy.core.multiarray _reconstruct": "array",
    "numpy._core.multiarray _reconstruct": "array",
    "numpy.core.numeric _frombuffer": "buffer",
    "numpy._core.numeric _frombuffer": "buffer",
    "numpy ndarray": "class",
    "numpy dtype": "dtype",
    "_codecs encode": "encode",
    "__builtin__ bytes": "bytes",
    "builtins bytes": "bytes",
    "collections OrderedDict": "dict",
}


class Refused(Exception):
    """What a pickle of arrays has no need of; the message follows the file's name."""


class Named:
    """Something that a pickle names; nothing is imported for it."""

    def __init__(self, meaning: str) -> None:
        self.meaning = meaning


class DtypeInMaking:
    """A dtype in the making."""

    def __init__(self, code: str) -> None:
        self.code, self.order = code, "="

    def finish(self) -> "np.dtype[Any]":
        return np.dtype(self.order + self.code)


class ArrayInMaking:
    """An array in the making."""

    content: NDArray[Any] | None = None


def _make_kind(code: Any, *_: Any) -> DtypeInMaking:
    if code not in DTYPES:
        told = printable(code)[:20] if isinstance(code, str) else type(code).__name__  # a tuple may be endless to print
        what = "Python's objects" if told.startswith("O") else "what are no plain numbers"
        raise Refused(f"holds an array of {what} (dtype {told})")
    return DtypeInMaking(code)


def _make_array(kind: Any, *_: Any) -> ArrayInMaking:
    """Begin an array. The shape that is named here is not used: numpy would take memory for it."""
    if not isinstance(kind, Named) or kind.meaning != "class":
        raise Refused("holds objects other than arrays: it makes one of another class")
    return ArrayInMaking()


def _make_from_buffer(data: Any, kind: Any, shape: Any, order: Any, axes: Any = None) -> ArrayInMaking:
    if order not in ("C", "F") or axes is not None:
        raise Refused("holds an array of another order than by rows or by columns")
    array = ArrayInMaking()
    array.content = lay_out(data, kind, shape, by_column=order == "F")
    return array


def _make_dict(pairs: Any = None) -> dict[str, Any]:
    made = pairs if pairs is not None else []
    if not isinstance(made, list) or not all(_is_pair(pair) for pair in made):
        raise Refused("holds a dict of other things than values by name")
    return dict(made)


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str)


def _encode(text: Any, encoding: Any = None) -> bytes:
    """Return bytes that protocols before 3 could only write as text."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise Refused("holds code: it encodes a text as something else than bytes")
    return text.encode("latin1")


def _make_no_bytes() -> bytes:
    """Return what protocols before 3 write for the bytes of an array without elements."""
    return b""


def lay_out(data: Any, kind: Any, shape: Any, *, by_column: bool) -> NDArray[Any]:
    """Return the array that these bytes are, exactly as many as its shape says."""
    if isinstance(data, str):  # Python 2's bytes
        data = data.encode("latin1")
    if not isinstance(data, bytes | bytearray) or not isinstance(kind, DtypeInMaking):
        raise Refused("holds an array of Python's objects")
    if not isinstance(shape, tuple) or len(shape) > MAX_DIMENSIONS or not all(_is_size(n) for n in shape):
        raise ValueError("the shape of an array makes no sense")
    dtype = kind.finish()
    if math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"{len(data)} bytes for an array of type {dtype} and shape {str(shape)[:60]}")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if by_column else "C")


def _is_size(number: Any) -> bool:
    return type(number) is int and 0 <= number < 1 << 63


MAKERS: dict[str, Callable[..., Any]] = {
    "array": _make_array,
    "buffer": _make_from_buffer,
    "dtype": _make_kind,
    "encode": _encode,
    "bytes": _make_no_bytes,
    "dict": _make_dict,
}
