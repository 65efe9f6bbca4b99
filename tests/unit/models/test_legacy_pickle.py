"""Tests of pickles of arrays: NumPy's pickles of all versions are read, and hostile ones are never executed."""

import os
import pickle
import struct
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.builders.damage import Call, damaged, quick, read_damaged
from trainstone.errors import DataError
from trainstone.models.legacy_pickle import HINT, pickle_arrays, read_pickled

RANDOM = np.random.default_rng(0)
ARRAYS = {
    "conv0_weight": RANDOM.random((4, 3, 2, 2), dtype=np.float32),
    "big_endian": RANDOM.random(5).astype(">f8"),
    "by_columns": np.asfortranarray(RANDOM.random((3, 4))),
    "strided": RANDOM.random((8, 8))[::2, ::3],
    "scalar": np.array(3.0, dtype=np.float16),
    "empty": np.zeros((0, 3), dtype=np.float32),
    "whole": np.arange(3),
}
ARRAYS["twice"] = ARRAYS["whole"]
PROTO = b"\x80\x04"


def text(value: str) -> bytes:
    return pickle.BINUNICODE + struct.pack("<I", len(value.encode())) + value.encode()


def numbers(*values: int) -> bytes:
    return b"(" + b"".join(pickle.LONG1 + b"\x08" + struct.pack("<q", value) for value in values) + b"t"


def named(module: str, name: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def refused(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_pickled(path)
    assert caught.value.message.startswith(f"{path} ")
    assert caught.value.message.isprintable()
    assert caught.value.hint == HINT
    return caught.value.message


@pytest.mark.parametrize("kind", [dict, OrderedDict])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_read_pickled_reads_numpy_pickles_of_every_protocol(tmp_path: Path, kind: Callable[[Any], Any], protocol: int):
    (tmp_path / "w.pickle").write_bytes(pickle.dumps(kind(ARRAYS), protocol=protocol))
    found = read_pickled(tmp_path / "w.pickle")
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype.newbyteorder("=")
        assert found[name].flags.writeable


def test_read_pickled_reads_python_2_pickle(tmp_path: Path):
    dtype = named("numpy", "dtype") + b"(U\x02f4K\x00K\x01tR(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    begun = named("numpy.core.multiarray", "_reconstruct") + named("numpy", "ndarray") + b"K\x00\x85U\x01b\x87R"
    data = np.array([1.5, -2.0], dtype="<f4").tobytes()
    state = b"(K\x01K\x02\x85" + dtype + b"\x89U\x08" + data + b"tb"
    (tmp_path / "w.pickle").write_bytes(b"\x80\x02}U\x01a" + begun + state + b"s.")
    assert read_pickled(tmp_path / "w.pickle")["a"].tolist() == [1.5, -2.0]


def test_pickle_arrays_can_be_read_by_pickle(tmp_path: Path):
    content = pickle_arrays(ARRAYS)
    assert b"_core" not in content  # numpy before 2 has no such module
    plain = pickle.loads(content)
    assert list(plain) == list(ARRAYS)
    (tmp_path / "w.pickle").write_bytes(content)
    for name, array in read_pickled(tmp_path / "w.pickle").items():
        assert plain[name].dtype == np.float32
        assert plain[name].shape == ARRAYS[name].shape
        assert plain[name].flags.writeable
        np.testing.assert_array_equal(plain[name], ARRAYS[name].astype(np.float32))
        np.testing.assert_array_equal(plain[name], array)


def attacks(mark: Path) -> dict[str, bytes]:
    """Return pickles that would create a file, import something or change an object, each in a different way."""
    line = f"open({str(mark)!r}, 'w')"
    evil = Call(os.system, f"touch {mark}")
    contents = {
        "bare": evil,
        "value": {"a": evil},
        "name": {("a", evil): ARRAYS["scalar"]},
        "in an array": {"a": np.array([evil], dtype=object)},
        "after the arrays": {**ARRAYS, "z": [evil]},
    }
    made = {f"{name} {n}": pickle.dumps(content, n) for name, content in contents.items() for n in range(6)}
    return made | {
        "eval": PROTO + named("builtins", "eval") + b"(" + text(line) + b"tR.",
        "exec": PROTO + named("__builtin__", "exec") + b"(" + text(line) + b"tR.",
        "getattr": PROTO + named("builtins", "getattr") + b"(" + named("numpy", "ndarray") + text("tofile") + b"tR.",
        "dotted": PROTO + text("numpy") + text("ndarray.tofile") + b"\x93(" + text(str(mark)) + b"tR.",
        "numpy's loader": PROTO + named("numpy", "load") + b"(" + text(str(mark)) + b"tR.",
        "INST": b"(" + text(line) + b"ibuiltins\neval\n.",
        "OBJ": PROTO + b"(" + named("numpy", "ndarray") + text(line) + b"o.",
        "NEWOBJ": PROTO + named("numpy", "ndarray") + b")\x81.",
        "NEWOBJ_EX": PROTO + named("numpy", "ndarray") + b")}\x92.",
        "EXT1": PROTO + b"\x82\x01.",
        "BINPERSID": PROTO + text(line) + b"Q.",
        "NEXT_BUFFER": b"\x80\x05\x97.",
        "a set": PROTO + b"\x8f.",
        "a number called": PROTO + b"K\x01)R.",
        "a class changed": PROTO + named("numpy", "ndarray") + b"N}" + text("__reduce__") + b"K\x01s\x86b.",
        "a function changed": PROTO + named("_codecs", "encode") + b"}" + text("a") + b"K\x01sb.",
        "a dict changed": PROTO + b"}}" + text("a") + b"K\x01sb.",
        "another encoding": PROTO + named("_codecs", "encode") + b"(" + text("abc") + text("zlib") + b"tR.",
        "bytes called with": PROTO + named("builtins", "bytes") + numbers(10**10) + b"R.",
    }


def test_read_pickled_rejects_code_without_executing_it(tmp_path: Path):
    mark = tmp_path / "touched"
    pickle.loads(attacks(mark)["bare 4"])  # the attack works with plain pickle
    mark.unlink()
    for content in attacks(mark).values():
        refused(tmp_path / "w.pickle", content)
    assert not mark.exists()
    assert f"{os.name}.system; it was not opened" in refused(tmp_path / "w.pickle", attacks(mark)["value 4"])


@pytest.mark.parametrize(
    ("content", "value"),
    [
        ({"a": np.array([None])}, "dtype O8"),
        ({"a": np.array(["text"])}, "dtype U4"),
        ({"a": np.array([1j])}, "dtype c16"),
        ({"a": np.zeros(2, dtype=[("x", "f4")])}, "dtype V4"),
        ({"a": np.float32(1)}, "multiarray.scalar"),
        ({"a": np.ma.zeros(2)}, "numpy.ma"),
        ({"a": {"b": np.zeros(2)}, "lr": 0.1}, "2 values that are not arrays (first a)"),
        ({3: np.zeros(2)}, "int"),
        ([np.zeros(2)], "type list"),
        (np.zeros(2), "type Array"),
        ({"\x1b[31m": 1}, "\\x1b[31m"),
    ],
)
def test_read_pickled_rejects_other_content(tmp_path: Path, content: Any, value: str):
    assert value in refused(tmp_path / "w.pickle", pickle.dumps(content))


def array(shape: bytes, data: bytes, code: str = "f4") -> bytes:
    """Return the pickle operations of an array of that shape and those bytes."""
    dtype = named("numpy", "dtype") + b"(" + text(code) + b"\x89\x88tR"
    begun = named("numpy.core.multiarray", "_reconstruct") + b"(" + named("numpy", "ndarray") + shape + b"C\x01btR"
    return begun + b"(K\x01" + shape + dtype + b"\x89" + data + b"tb"


def bombs() -> dict[str, bytes]:
    """Return small pickles that claim gigabytes, or would crash the interpreter, each in a different way."""
    mega = pickle.BINBYTES + struct.pack("<I", 1 << 20) + bytes(1 << 20)
    tower = b"K\x01"  # ten tuples, each of ten of the one before: 10 GB as text
    for _ in range(10):
        tower = b"(" + tower + b"q\x00" + b"h\x00" * 9 + b"t"
    shapes = {"large": [10**10], "many sides": [2**62] * 9, "negative": [-1, -1], "100 sides": [1] * 100}
    lengths = {"bytes": b"\x8e", "bytearray": b"\x96", "text": b"\x8d"}
    return {
        **{name: PROTO + b"}" + text("a") + array(numbers(*s), b"C\x04abcd") + b"s." for name, s in shapes.items()},
        **{name: PROTO + code + struct.pack("<Q", 10**10) + b"abc." for name, code in lengths.items()},
        "bytes in many arrays": PROTO + b"}" + text("b") + array(numbers(1 << 18), mega + b"q\x05") + b"s"
        + b"".join(text(f"a{n}") + array(numbers(1 << 18), b"h\x05") + b"s" for n in range(2000)) + b".",
        "a text as side": PROTO + b"}" + text("a") + array(b"(" + text("a") + b"J\xff\xff\xff\x3ft", b"C\0") + b"s.",
        "many objects": PROTO + b"]" * (1 << 20) + b".",
        "a tower as dtype": PROTO + named("numpy", "dtype") + tower + b"\x85R.",
        "a tower as name": PROTO + b"}" + tower + b"K\x01s.",
        "a tower as module": PROTO + tower + tower + b"\x93.",
        "a tower as value": PROTO + b"}" + text("a") + tower + b"s.",
        "a deep tuple as name": PROTO + b"}" + b")" + b"\x85" * 100_000 + b"K\x01s.",
    }  # fmt: skip


@pytest.mark.parametrize("way", bombs())
def test_read_pickled_small_file_uses_little_memory(tmp_path: Path, way: str):
    content = bombs()[way]
    tracemalloc.start()
    try:
        refused(tmp_path / "w.pickle", content)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 * len(content) + (40 << 20)


@pytest.mark.parametrize("content", [b"}r\xff\xff\xff\x7f.", b"\x95" + struct.pack("<Q", 10**10) + b"}."])
def test_read_pickled_large_memo_index_and_frame_use_no_memory(tmp_path: Path, content: bytes):
    (tmp_path / "w.pickle").write_bytes(PROTO + content)
    assert read_pickled(tmp_path / "w.pickle") == {}


@pytest.mark.parametrize("protocol", [0, 2, 3, 4, 5])
def test_read_pickled_rejects_truncated_file(tmp_path: Path, protocol: int):
    content = pickle.dumps({"a": ARRAYS["conv0_weight"], "b": ARRAYS["strided"]}, protocol=protocol)
    for length in range(0, len(content), 3):
        refused(tmp_path / "w", content[:length])


@quick
@given(protocol=st.integers(0, 5), data=st.data())
def test_read_pickled_random_damage_gives_arrays_or_data_error(tmp_path: Path, protocol: int, data: st.DataObject):
    sound = pickle.dumps({"a": ARRAYS["conv0_weight"], "b": ARRAYS["big_endian"]}, protocol=protocol)
    read_damaged(tmp_path / "w.pickle", data.draw(damaged(sound)), read_pickled, place="")


def test_read_pickled_rejects_invalid_files(tmp_path: Path):
    begun = named("numpy.core.multiarray", "_reconstruct") + b"(" + named("numpy", "ndarray") + numbers(0) + b"C\x01btR"
    itself: dict[str, Any] = {}
    itself["a"] = itself
    lines = [b"hello\n", b"}hello\n", b"e", b"some text", b"name: x"]
    unfinished = PROTO + b"}" + text("a") + begun + b"s."
    for content in [*lines, pickle.dumps(ARRAYS) + b"x.", unfinished, pickle.dumps(itself)]:
        refused(tmp_path / "w.pickle", content)
