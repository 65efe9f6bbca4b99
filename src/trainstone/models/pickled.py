"""Pickles of arrays by name, as MLPerf's SSD keeps its backbone: read without running anything in them, and written.

The reader is Python's own with an allow-list: of its operations those that a dict of numpy arrays needs, and of the
names in a pickle numpy's, for which functions of this file stand. All else is refused by its name.
"""

import io
import math
import pickle
import pickletools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainstone.errors import DataError
from trainstone.text import printable
from trainstone.units import format_bytes

MAX_BYTES = 4 << 30
MAX_OPERATIONS = 1 << 18
"""Some 20 for an array; each may make an object that is far larger than its one byte in the file."""
GROWTH = 3
"""All that is made of a file may have so many times its bytes: what is in it once can be named again and again."""
MAX_DIMENSIONS = 32
DTYPES = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "b1")
HINT = "it should hold a dict of numpy arrays by name: pickle.dump({name: array, ...}, file)"
ALLOWED = """
    PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING
    BINSTRING SHORT_BINSTRING UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8
    EMPTY_DICT EMPTY_LIST EMPTY_TUPLE LIST TUPLE TUPLE1 TUPLE2 TUPLE3 APPEND APPENDS PUT BINPUT LONG_BINPUT GET BINGET
    LONG_BINGET MEMOIZE GLOBAL STACK_GLOBAL
"""
"""Operations of Python's reader that make plain values, and ask find_class for names."""
MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
"""As numpy before 2 and since calls it."""


class Refused(Exception):
    """What a pickle of arrays has no need of; the message follows the file's name."""


class Named(NamedTuple):
    """Something that a pickle names; nothing is imported for it."""

    meaning: str


class Dtype:
    """A dtype in the making."""

    def __init__(self, code: Any, *_: Any) -> None:
        if code not in DTYPES:
            told = printable(code)[:20] if isinstance(code, str) else type(code).__name__  # may be endless to print
            what = "Python's objects" if told.startswith("O") else "what are no plain numbers"
            raise Refused(f"holds an array of {what} (dtype {told})")
        self.code, self.order = code, "="

    def set_state(self, _: Any, order: Any, *fields: Any) -> None:
        """Take the order of bytes."""
        if order not in ("<", ">", "|", "=") or any(field is not None for field in fields[:3]):
            raise Refused("holds an array of compound elements")
        self.order = order


class Array:
    """An array in the making. Where numpy would take memory for a shape, this waits for its bytes."""

    content: NDArray[Any] | None = None

    def set_state(self, _: Any, shape: Any, dtype: Any, by_column: Any, data: Any) -> None:
        """Take the bytes, exactly as many as the shape says."""
        data = data.encode("latin1") if isinstance(data, str) else data  # Python 2's bytes
        if not isinstance(data, bytes) or not isinstance(dtype, Dtype):
            raise Refused("holds an array of Python's objects")
        sizes = isinstance(shape, tuple) and all(type(size) is int and 0 <= size < 1 << 63 for size in shape)
        if not sizes or len(shape) > MAX_DIMENSIONS:
            raise ValueError("the shape of an array makes no sense")
        kind = np.dtype(dtype.order + dtype.code)
        if math.prod(shape) * kind.itemsize != len(data):
            raise ValueError(f"{len(data)} bytes for an array of type {kind} and shape {str(shape)[:60]}")
        self.content = np.frombuffer(data, kind).reshape(shape, order="F" if by_column else "C")


def make_array(kind: Any, *_: Any) -> Array:
    """Begin an array, numpy's only."""
    if kind != Named("class"):
        raise Refused("holds objects other than arrays: it makes one of another class")
    return Array()


def make_from_buffer(data: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> Array:
    """Make an array as protocol 5 has it."""
    if order not in ("C", "F") or axes is not None:
        raise Refused("holds an array of another order than by rows or by columns")
    array = Array()
    array.set_state(1, shape, dtype, order == "F", data)
    return array


def encode(text: Any, encoding: Any = None) -> bytes:
    """Return bytes that protocols before 3 could only write as text."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise Refused("holds code: it encodes a text as something else than bytes")
    return text.encode("latin1")


MAKERS = {"array": make_array, "buffer": make_from_buffer, "dtype": Dtype, "encode": encode}
# An ordered dict, and the bytes of an array without elements in protocols before 3, are made of nothing.
MAKERS |= {"dict": lambda: {}, "bytes": lambda: b""}
KNOWN = {
    **{(module, "_reconstruct"): "array" for module in MULTIARRAY},
    **{(module.replace("multiarray", "numeric"), "_frombuffer"): "buffer" for module in MULTIARRAY},
    ("numpy", "ndarray"): "class",
    ("numpy", "dtype"): "dtype",
    ("_codecs", "encode"): "encode",
    **{(module, "bytes"): "bytes" for module in ("__builtin__", "builtins")},
    ("collections", "OrderedDict"): "dict",
}


class Operations(dict[int, Any]):
    """The operations that are allowed, so many of them."""

    left = MAX_OPERATIONS

    def __getitem__(self, code: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise Refused(f"has more than {MAX_OPERATIONS:,} operations: far too many for weights")
        if code not in self:
            name = pickletools.code2op[chr(code)].name  # KeyError: damaged
            raise Refused(f"holds code, or objects other than arrays: it asks for the operation {name}")
        return super().__getitem__(code)


class Unpickler(pickle._Unpickler):  # type: ignore[name-defined,misc]
    """Python's reader in its Python form: operations can be replaced, and its memo is a dict that no index fills."""

    def __init__(self, data: bytes) -> None:
        self.stream = io.BytesIO(data)
        super().__init__(self.stream, encoding="latin1")
        self.bytes_left = GROWTH * len(data)
        allowed = {code: self.dispatch[code] for code in (getattr(pickle, name)[0] for name in ALLOWED.split())}
        self.dispatch = Operations(allowed | OWN)

    def find_class(self, module: str, name: str) -> Named:
        """Return what stands for a name, if arrays need it."""
        if not name:
            raise ValueError("it ends within a name")
        if (module, name) not in KNOWN:
            shown = printable(f"{module}.{name}")[:100]
            raise Refused(f"holds code, or objects other than arrays: it asks for {shown}")
        return Named(KNOWN[module, name])

    def spend(self, parts: Iterable[Any]) -> None:
        """Count what something is made of."""
        self.bytes_left -= sum(len(part) for part in parts if isinstance(part, str | bytes))
        if self.bytes_left < 0:
            raise Refused("would fill the memory with copies of what it holds once")

    def call(self) -> None:
        """Make what is known, where Python would call the object before the last with the last."""
        arguments, named = self.stack.pop(), self.stack.pop()
        if not isinstance(named, Named) or not isinstance(arguments, tuple) or named.meaning not in MAKERS:
            raise Refused("holds code: it calls what is no part of an array")
        self.spend(arguments)
        self.stack.append(MAKERS[named.meaning](*arguments))

    def build(self) -> None:
        """Give an array or a dtype its state."""
        state = self.stack.pop()
        if not isinstance(self.stack[-1], Array | Dtype) or not isinstance(state, tuple):
            raise Refused("holds objects other than arrays: it gives a state to what has none")
        self.spend(state)
        self.stack[-1].set_state(*state)

    def fill(self, pairs: list[Any]) -> None:
        """Put names and values into the last object, a dict."""
        if not isinstance(self.stack[-1], dict) or len(pairs) % 2:
            raise Refused("holds objects other than arrays: it sets items of what is no dict")
        for name, value in zip(pairs[::2], pairs[1::2], strict=True):
            if not isinstance(name, str):  # hashing another may recurse without end
                raise Refused(f"holds a name that is no text but {type(name).__name__}")
            self.stack[-1][name] = value

    def set_item(self) -> None:
        value, name = self.stack.pop(), self.stack.pop()
        self.fill([name, value])

    def set_items(self) -> None:
        self.fill(self.pop_mark())

    def begin_dict(self) -> None:
        pairs = self.pop_mark()
        self.stack.append({})
        self.fill(pairs)

    def read_bytearray(self) -> None:
        """As bytes: Python takes as much memory as the file says it needs."""
        self.stack.append(self.read(int.from_bytes(self.read(8), "little")))


OWN = {
    pickle.REDUCE[0]: Unpickler.call,
    pickle.BUILD[0]: Unpickler.build,
    pickle.SETITEM[0]: Unpickler.set_item,
    pickle.SETITEMS[0]: Unpickler.set_items,
    pickle.DICT[0]: Unpickler.begin_dict,
    pickle.BYTEARRAY8[0]: Unpickler.read_bytearray,
}


def read_pickled(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a pickle by name, in memory of their own; DataError for all that is anything else."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise DataError(f"{path} has {format_bytes(size)}; a pickle of weights may have {format_bytes(MAX_BYTES)}")
        data = path.read_bytes()
    except OSError as err:
        raise DataError(f"cannot read {path}: {err.strerror or err}") from err
    try:
        if not data.endswith(pickle.STOP):
            raise ValueError("it ends too early")
        reader = Unpickler(data)
        found = reader.load()
        if reader.stream.read(1):
            raise ValueError("there is more after its end")
        return _collect(found)
    except Refused as err:
        raise DataError(f"{path} {err}; it was not opened", hint=HINT) from err
    except Exception as err:  # a damaged pickle makes Python raise anything
        reason = printable((str(err).splitlines() or [""])[0])[:120] or type(err).__name__
        raise DataError(f"{path} is cut off, damaged or no pickle of arrays: {reason}", hint=HINT) from err


def _collect(found: Any) -> dict[str, NDArray[Any]]:
    if not isinstance(found, dict):
        raise Refused(f"holds no arrays by name but one {type(found).__name__}")
    others = [name for name, value in found.items() if not isinstance(value, Array) or value.content is None]
    if others:
        raise Refused(f"holds {len(others)} that are no arrays (first {printable(others[0])[:100]})")
    # A copy: what numpy sees in bytes cannot be written to, and may have its bytes the other way round. One of each:
    # an array may have many names.
    arrays = {id(value): value.content for value in found.values()}
    copies = {number: array.astype(array.dtype.newbyteorder("=")) for number, array in arrays.items()}
    return {name: copies[id(value)] for name, value in found.items()}


def pickle_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the pickle of arrays by name, each float32 and row by row, which numpy of 2020 reads, too."""
    rows = {name: np.asarray(array, dtype="<f4", order="C") for name, array in arrays.items()}
    # numpy before 2 does not have the module that numpy names since; it is named once, before all data.
    return pickle.dumps(rows, protocol=3).replace(MULTIARRAY[1].encode(), MULTIARRAY[0].encode(), 1)
