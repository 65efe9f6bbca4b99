"""Read and write pickles of arrays by name, as MLPerf's SSD stores its backbone, without executing code in them.

The reader is Python's unpickler with two allow-lists: the operations that a dict of NumPy arrays needs, and NumPy's
names, which are replaced by functions of this file. Everything else is rejected.
"""

import io
import math
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainstone.errors import DataError
from trainstone.text import printable
from trainstone.units import format_bytes

MAX_BYTES = 4 << 30
MAX_OPERATIONS = 1 << 18
"""About 20 per array; a single byte in the file may create a large object."""
MAX_GROWTH = 3
"""Limit of all arrays' bytes relative to the file's: a pickle can reference the same bytes many times."""
DTYPES = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "b1")
HINT = "it should hold a dict of numpy arrays by name: pickle.dump({name: array, ...}, file)"
ALLOWED = """
    PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING
    BINSTRING SHORT_BINSTRING UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8
    EMPTY_LIST EMPTY_TUPLE LIST TUPLE TUPLE1 TUPLE2 TUPLE3 APPEND APPENDS PUT BINPUT LONG_BINPUT GET BINGET LONG_BINGET
    MEMOIZE GLOBAL STACK_GLOBAL REDUCE BUILD SETITEM SETITEMS
"""
CODES = [getattr(pickle, name)[0] for name in ALLOWED.split()]
MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
"""The module's name before and since NumPy 2."""


class Refused(Exception):
    """The pickle holds more than arrays; the message follows the file's name."""


class Names(dict[str, Any]):
    """A dict with string keys only: hashing a deeply nested tuple may crash the process."""

    __slots__ = ()

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str):
            raise Refused(f"holds a name that is not text but {type(name).__name__}")
        super().__setitem__(name, value)


class Constructor(NamedTuple):
    """The object that a pickle gets for a name: callable and immutable."""

    make: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.make(*arguments)


class Dtype:
    """A dtype under construction."""

    order = "="

    def __init__(self, code: Any, *_: Any) -> None:
        if code not in DTYPES:
            shown = printable(code)[:20] if isinstance(code, str) else type(code).__name__  # its repr may be huge
            raise Refused(f"holds an array of objects or other values that are not plain numbers (dtype {shown})")
        self.code = code

    def __setstate__(self, state: Any) -> None:
        _, order, *fields = state
        if order not in ("<", ">", "|", "=") or any(field is not None for field in fields[:3]):
            raise Refused("holds an array of compound elements")
        self.order = order


class Array:
    """An array under construction. NumPy would allocate memory for any shape; this checks the number of bytes first."""

    dtype: "np.dtype[Any] | None" = None

    def __setstate__(self, state: Any) -> None:
        _, self.shape, dtype, self.by_column, self.data = state
        if not isinstance(self.data, str | bytes) or not isinstance(dtype, Dtype):
            raise Refused("holds an array of Python objects")
        if not isinstance(self.shape, tuple) or not all(type(size) is int and size >= 0 for size in self.shape):
            raise ValueError(
                "the shape of an array is not a tuple of whole numbers"
            )  # a string would be repeated by the product
        self.dtype = np.dtype(dtype.order + dtype.code)
        if math.prod(self.shape) * self.dtype.itemsize != len(self.data):
            raise ValueError(f"{len(self.data)} bytes do not fill an array of type {self.dtype}")

    def build(self) -> NDArray[Any]:
        """Return a copy as a NumPy array in this machine's byte order."""
        assert self.dtype is not None
        data = self.data.encode("latin1") if isinstance(self.data, str) else self.data  # Python 2's bytes
        array = np.frombuffer(data, self.dtype).reshape(self.shape, order="F" if self.by_column else "C")
        return array.astype(self.dtype.newbyteorder("="))


def make_from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> Array:
    """Build an array from protocol 5's arguments."""
    array = Array()
    array.__setstate__((1, shape, dtype, order == "F", data))
    return array


def decode_bytes(text: Any, encoding: Any = None) -> str:
    """Return bytes that protocols before 3 store as text; Array encodes them after the size check."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise Refused("holds code: it encodes text as something other than bytes")
    return text


KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    **{(module, "_reconstruct"): lambda *_: Array() for module in MULTIARRAY},
    **{(module.replace("multiarray", "numeric"), "_frombuffer"): make_from_buffer for module in MULTIARRAY},
    ("numpy", "ndarray"): Array,
    ("numpy", "dtype"): Dtype,
    ("_codecs", "encode"): decode_bytes,
    # Called without arguments for an ordered dict, and for an empty array's bytes in protocols before 3.
    ("collections", "OrderedDict"): lambda: Names(),
    **{(module, "bytes"): lambda: b"" for module in ("__builtin__", "builtins")},
}


class Operations(dict[int, Any]):
    """The allowed operations, limited in number."""

    left = MAX_OPERATIONS

    def __getitem__(self, code: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise Refused(f"has too many operations for a file of weights: more than {MAX_OPERATIONS:,}")
        return super().__getitem__(code)


class Unpickler(pickle._Unpickler):  # type: ignore[name-defined,misc]
    """Python's unpickler in pure Python: operations can be replaced, and a large memo index allocates no memory."""

    def find_class(self, module: str, name: str) -> Constructor:
        """Return the replacement for a name that arrays need; reject others."""
        if (module, name) not in KNOWN:
            shown = printable(f"{module}.{name}")[:100]
            raise Refused(f"holds code, or objects other than arrays: it requests {shown}")
        return Constructor(KNOWN[module, name])

    def begin_dict(self) -> None:
        self.append(Names())

    def fill_dict(self) -> None:
        """Build a dict from a marked list, as protocol 0 writes it."""
        pairs = self.pop_mark()
        self.append(Names())
        for name, value in zip(pairs[::2], pairs[1::2], strict=True):
            self.stack[-1][name] = value

    def read_bytearray(self) -> None:
        """Read as bytes: Python would allocate as much memory as the file claims."""
        self.append(self.read(int.from_bytes(self.read(8), "little")))

    dispatch: dict[int, Any] = {code: pickle._Unpickler.dispatch[code] for code in CODES}  # type: ignore[attr-defined]
    dispatch |= {pickle.EMPTY_DICT[0]: begin_dict, pickle.DICT[0]: fill_dict, pickle.BYTEARRAY8[0]: read_bytearray}


def read_pickled(path: Path) -> dict[str, NDArray[Any]]:
    """Return copies of a pickle's arrays by name; DataError for anything else."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise DataError(f"{path} is too large: {format_bytes(size)}; at most {format_bytes(MAX_BYTES)} are read")
        stream = io.BytesIO(path.read_bytes())
    except OSError as err:
        raise DataError(f"cannot read {path}: {err.strerror or err}") from err
    try:
        reader = Unpickler(stream, encoding="latin1")
        reader.dispatch = Operations(Unpickler.dispatch)
        found = reader.load()
        if stream.read(1):
            raise ValueError("data after the end of the pickle")
        if not isinstance(found, dict):
            raise Refused(f"holds type {type(found).__name__}, not a dict of arrays by name")
        others = [name for name, value in found.items() if not isinstance(value, Array) or value.dtype is None]
        if others:
            raise Refused(f"holds {len(others)} values that are not arrays (first {printable(others[0])[:100]})")
        arrays = {id(array): array for array in found.values()}  # an array may have several names
        if sum(len(array.data) for array in arrays.values()) > MAX_GROWTH * size:
            raise Refused("would fill the memory with copies of the same bytes")
        built = {number: array.build() for number, array in arrays.items()}
        return {name: built[id(array)] for name, array in found.items()}
    except Refused as err:
        raise DataError(f"{path} {err}; it was not opened", hint=HINT) from err
    except Exception as err:  # a damaged pickle may raise any exception
        reason = f"{type(err).__name__} {printable(str(err).partition(chr(10))[0])[:120]}"
        raise DataError(f"{path} is truncated, damaged or not a pickle of arrays: {reason}", hint=HINT) from err


def pickle_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return a pickle of arrays by name, float32 in C order, that NumPy of 2020 can read, too."""
    rows = {name: np.asarray(array, dtype="<f4", order="C") for name, array in arrays.items()}
    # NumPy before 2 does not have the module that NumPy 2 names; the name occurs once, before all data.
    return pickle.dumps(rows, protocol=3).replace(MULTIARRAY[1].encode(), MULTIARRAY[0].encode(), 1)
