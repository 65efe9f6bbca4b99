"""A dict of float32 arrays as a pickle, piece by piece, which numpy and Python of 2020 read as well as today's do.

numpy's own pickles name a module that numpy before 2 does not have.
"""

import pickle
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

PROTOCOL = 3  # Python 3.0 and later


def pickle_pieces(arrays: Mapping[str, NDArray[Any]]) -> Iterator[bytes]:
    """Yield the pickle of the arrays by name; each becomes float32, row by row."""
    yield pickle.PROTO + bytes([PROTOCOL]) + pickle.EMPTY_DICT
    for name, array in arrays.items():
        rows = np.asarray(array, dtype="<f4", order="C")
        data = rows.tobytes()
        yield _text(name) + _begin_array() + _begin_state(rows.shape) + pickle.BINBYTES + struct.pack("<I", len(data))
        yield data
        yield pickle.TUPLE + pickle.BUILD + pickle.SETITEM
    yield pickle.STOP


def _begin_array() -> bytes:
    """An empty array, as numpy begins each: _reconstruct(ndarray, (0,), b"b")."""
    empty = _number(0) + pickle.TUPLE1 + pickle.SHORT_BINBYTES + b"\x01b" + pickle.TUPLE3
    return _named("numpy.core.multiarray", "_reconstruct") + _named("numpy", "ndarray") + empty + pickle.REDUCE


def _begin_state(shape: tuple[int, ...]) -> bytes:
    """What an array becomes, up to its bytes: version, shape, dtype, whether by columns."""
    sizes = pickle.MARK + b"".join(_number(size) for size in shape) + pickle.TUPLE
    return pickle.MARK + _number(1) + sizes + _dtype() + pickle.NEWFALSE


def _dtype() -> bytes:
    """Four bytes of float, the lowest first: dtype("f4", False, True) and its state."""
    made = _named("numpy", "dtype") + _text("f4") + pickle.NEWFALSE + pickle.NEWTRUE + pickle.TUPLE3 + pickle.REDUCE
    fields = _number(3) + _text("<") + 3 * pickle.NONE + _number(-1) + _number(-1) + _number(0)
    return made + pickle.MARK + fields + pickle.TUPLE + pickle.BUILD


def _named(module: str, name: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def _text(text: str) -> bytes:
    data = text.encode()
    return pickle.BINUNICODE + struct.pack("<I", len(data)) + data


def _number(number: int) -> bytes:
    return pickle.BININT + struct.pack("<i", number)
