"""Pickles of arrays: what numpy of all years writes is read, and nothing that a pickle asks for is ever done."""

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

from damage import damaged, quick, read_damaged
from trainstone.errors import DataError
from trainstone.models.pickled import MAX_OPERATIONS, pickle_arrays, read_pickled

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


class Call:
    """A pickle of it calls the function when it is opened."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


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
    assert "dict of numpy arrays" in str(caught.value.hint)
    return caught.value.message


@pytest.mark.parametrize("kind", [dict, OrderedDict])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_what_numpy_pickles_is_read(tmp_path: Path, kind: Callable[[Any], Any], protocol: int):
    (tmp_path / "w.pickle").write_bytes(pickle.dumps(kind(ARRAYS), protocol=protocol))
    found = read_pickled(tmp_path / "w.pickle")
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype.newbyteorder("=")
        assert found[name].flags.writeable


@pytest.mark.parametrize("module", ["numpy.core", "numpy._core"])
def test_names_of_both_numpys_are_known(tmp_path: Path, module: str):
    content = pickle.dumps({"a": ARRAYS["conv0_weight"]}, protocol=2)
    assert content.count(b"numpy._core.multiarray") == 1
    (tmp_path / "w.pickle").write_bytes(content.replace(b"numpy._core.", f"{module}.".encode()))
    np.testing.assert_array_equal(read_pickled(tmp_path / "w.pickle")["a"], ARRAYS["conv0_weight"])


def test_a_pickle_of_python_2_is_read(tmp_path: Path):
    dtype = named("numpy", "dtype") + b"(U\x02f4K\x00K\x01tR(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    begun = named("numpy.core.multiarray", "_reconstruct") + named("numpy", "ndarray") + b"K\x00\x85U\x01b\x87R"
    data = np.array([1.5, -2.0], dtype="<f4").tobytes()
    state = b"(K\x01K\x02\x85" + dtype + b"\x89U\x08" + data + b"tb"
    (tmp_path / "w.pickle").write_bytes(b"\x80\x02}U\x01a" + begun + state + b"s.")
    assert read_pickled(tmp_path / "w.pickle")["a"].tolist() == [1.5, -2.0]


def test_plain_pickle_reads_what_is_written(tmp_path: Path):
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


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("where", ["alone", "as a value", "as a name", "in an array", "in a list", "after the arrays"])
def test_code_never_runs(tmp_path: Path, protocol: int, where: str):
    mark = tmp_path / "touched"
    evil = Call(os.system, f"touch {mark}")
    pickle.loads(pickle.dumps(evil))  # the attack is one
    mark.unlink()
    content = {
        "alone": evil,
        "as a value": {"a": evil},
        "as a name": {("a", evil): ARRAYS["scalar"]},
        "in an array": {"a": np.array([evil], dtype=object)},
        "in a list": {"a": [evil]},
        "after the arrays": {**ARRAYS, "z": evil},
    }[where]
    told = refused(tmp_path / "w.pickle", pickle.dumps(content, protocol=protocol))
    assert "it was not opened" in told
    assert where == "in an array" or f"it asks for {os.name}.system" in told
    assert not mark.exists()


def attacks(mark: Path) -> dict[str, tuple[bytes, str]]:
    """Pickles that make a file, import something or change a class, each by another way; and what is said of it."""
    line = f"open({str(mark)!r}, 'w')"
    evaluate = named("builtins", "eval") + b"(" + text(line) + b"t"
    return {
        "eval": (PROTO + evaluate + b"R.", r"asks for builtins\.eval"),
        "exec of Python 2": (PROTO + named("__builtin__", "exec") + b"(" + text(line) + b"tR.", "__builtin__.exec"),
        "getattr": (
            PROTO + named("builtins", "getattr") + b"(" + named("numpy", "ndarray") + text("tofile") + b"tR.",
            r"asks for builtins\.getattr",
        ),
        "a dotted name": (
            PROTO + text("numpy") + text("ndarray.tofile") + b"\x93(" + text(str(mark)) + b"tR.",
            r"asks for numpy\.ndarray\.tofile",
        ),
        "numpy's own loader": (PROTO + named("numpy", "load") + b"(" + text(str(mark)) + b"tR.", r"numpy\.load"),
        "INST": (b"(" + text(line) + b"ibuiltins\neval\n.", "the operation INST"),
        "OBJ": (PROTO + b"(" + named("numpy", "ndarray") + text(line) + b"o.", "the operation OBJ"),
        "NEWOBJ": (PROTO + named("numpy", "ndarray") + b")\x81.", "the operation NEWOBJ"),
        "NEWOBJ_EX": (PROTO + named("numpy", "ndarray") + b")}\x92.", "the operation NEWOBJ_EX"),
        "an extension": (PROTO + b"\x82\x01.", "the operation EXT1"),
        "a persistent id": (PROTO + text(line) + b"Q.", "the operation BINPERSID"),
        "an outer buffer": (b"\x80\x05\x97.", "the operation NEXT_BUFFER"),
        "ndarray called": (PROTO + named("numpy", "ndarray") + numbers(3) + b"\x85R.", "calls what is no part"),
        "another class in the array's place": (
            PROTO + named("numpy.core.multiarray", "_reconstruct") + b"(" + named("numpy", "dtype") + b")C\x01btR.",
            "one of another class",
        ),
        "a number called": (PROTO + b"K\x01)R.", "calls what is no part"),
        "a list called with": (PROTO + named("numpy", "dtype") + b"]R.", "calls what is no part"),
        "a class given a state": (
            PROTO + named("numpy", "ndarray") + b"N}" + text("__reduce__") + b"K\x01s\x86b.",
            "gives a state to what has none",
        ),
        "a dict given a state": (PROTO + b"}}" + text("a") + b"K\x01sb.", "gives a state to what has none"),
        "items set in a list": (PROTO + b"]" + text("a") + b"K\x01s.", "sets items of what is no dict"),
        "another encoding": (
            PROTO + named("_codecs", "encode") + b"(" + text("abc") + text("zlib") + b"tR.",
            "encodes a text as something else",
        ),
        "bytes called with": (PROTO + named("builtins", "bytes") + numbers(10**10) + b"R.", "damaged"),
    }


@pytest.mark.parametrize("way", attacks(Path("mark")))
def test_no_way_to_call_or_change_anything(tmp_path: Path, way: str):
    mark = tmp_path / "touched"
    content, words = attacks(mark)[way]
    told = refused(tmp_path / "w.pickle", content)
    assert words.replace("\\", "") in told
    assert not mark.exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"a": np.array([None])}, "an array of Python's objects (dtype O8)"),
        ({"a": np.array(["text"])}, "no plain numbers (dtype U4)"),
        ({"a": np.array([1j])}, "no plain numbers (dtype c16)"),
        ({"a": np.zeros(2, dtype=[("x", "f4")])}, "an array of"),
        ({"a": np.float32(1)}, "multiarray.scalar"),
        ({"a": np.ma.zeros(2)}, "asks for numpy.ma"),
        ({"a": np.zeros(2).view(np.matrix)}, "asks for numpy"),
        ({"a": {"b": np.zeros(2)}, "lr": 0.1}, "2 that are no arrays (first a)"),
        ({3: np.zeros(2)}, "a name that is no text but int"),
        ([np.zeros(2)], "no arrays by name but one list"),
        (np.zeros(2), "no arrays by name but one"),
        ({"\x1b[31m": 1}, "\\x1b[31m"),
    ],
)
def test_what_is_no_dict_of_plain_arrays_is_named(tmp_path: Path, content: Any, words: str):
    assert words in refused(tmp_path / "w.pickle", pickle.dumps(content))


def array(shape: bytes, data: bytes, code: str = "f4") -> bytes:
    """The operations of an array of that shape and those bytes."""
    dtype = named("numpy", "dtype") + b"(" + text(code) + b"\x89\x88tR"
    begun = named("numpy.core.multiarray", "_reconstruct") + b"(" + named("numpy", "ndarray") + shape + b"C\x01btR"
    return begun + b"(K\x01" + shape + dtype + b"\x89" + data + b"tb"


def bombs() -> dict[str, tuple[bytes, str]]:
    """Small pickles that ask for gigabytes, each in another way; and what is said of it."""
    mega = pickle.BINBYTES + struct.pack("<I", 1 << 20) + bytes(1 << 20)
    text_mega = text("x" * (1 << 20))
    return {
        "a shape": (PROTO + b"}" + text("a") + array(numbers(10**10), b"C\x00") + b"s.", "0 bytes for an array"),
        "a shape of many sides": (PROTO + b"}" + text("a") + array(numbers(*[2**62] * 9), b"C\x00") + b"s.", "0 bytes"),
        "a negative shape": (PROTO + b"}" + text("a") + array(numbers(-1), b"C\x04abcd") + b"s.", "makes no sense"),
        "a shape of 100 sides": (PROTO + b"}" + text("a") + array(numbers(*[1] * 100), b"C\x01a") + b"s.", "no sense"),
        "the length of bytes": (PROTO + b"\x8e" + struct.pack("<Q", 10**10) + b"abc.", "cut off, damaged"),
        "the length of a bytearray": (b"\x80\x05\x96" + struct.pack("<Q", 10**10) + b"abc.", "cut off, damaged"),
        "the length of a text": (PROTO + b"\x8d" + struct.pack("<Q", 10**10) + b"abc.", "cut off, damaged"),
        "the memo": (PROTO + b"}r\xff\xff\xff\x7f.", ""),
        "a frame": (PROTO + b"\x95" + struct.pack("<Q", 10**10) + b"}.", ""),
        "operations": (PROTO + b"}" * (MAX_OPERATIONS + 10) + b".", "operations: far too many"),
        "a text encoded often": (
            PROTO + named("_codecs", "encode") + b"q\x00" + text_mega + text("latin1") + b"\x86q\x01R"
            + b"h\x00h\x01R" * 2000 + b".",
            "fill the memory",
        ),
        "bytes in many arrays": (
            PROTO + b"}" + text("b") + mega + b"q\x05s"
            + b"".join(text(f"a{n}") + array(numbers(1 << 18), b"h\x05") + b"s" for n in range(2000)) + b".",
            "fill the memory",
        ),
    }  # fmt: skip


@pytest.mark.parametrize("way", bombs())
def test_a_small_file_does_not_take_large_memory(tmp_path: Path, way: str):
    content, words = bombs()[way]
    (tmp_path / "w.pickle").write_bytes(content)
    tracemalloc.start()
    try:
        if words:
            with pytest.raises(DataError, match=words):
                read_pickled(tmp_path / "w.pickle")
        else:
            assert read_pickled(tmp_path / "w.pickle") == {}
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 * len(content) + (40 << 20)


def test_names_of_names_are_not_written_out(tmp_path: Path):
    """Ten tuples, each of ten of the one before, are 10 GB as text; here as a dtype, a name and a module."""
    tower = b"K\x01"
    for _ in range(10):
        tower = b"(" + tower + b"q\x00" + b"h\x00" * 9 + b"t"
    assert "dtype tuple" in refused(tmp_path / "w", PROTO + named("numpy", "dtype") + tower + b"\x85R.")
    assert "no text but tuple" in refused(tmp_path / "w", PROTO + b"}" + tower + b"K\x01s.")
    assert "damaged" in refused(tmp_path / "w", PROTO + tower + tower + b"\x93.")
    assert "1 that are no arrays" in refused(tmp_path / "w", PROTO + b"}" + text("a") + tower + b"s.")


@pytest.mark.parametrize("protocol", [0, 2, 3, 4, 5])
def test_a_cut_pickle_is_refused(tmp_path: Path, protocol: int):
    content = pickle.dumps({"a": ARRAYS["conv0_weight"], "b": ARRAYS["strided"]}, protocol=protocol)
    for length in range(0, len(content), 3):
        assert "cut off, damaged" in refused(tmp_path / "w", content[:length])


@quick
@given(protocol=st.integers(0, 5), data=st.data())
def test_bytes_changed_at_random_give_arrays_or_a_data_error(tmp_path: Path, protocol: int, data: st.DataObject):
    sound = pickle.dumps({"a": ARRAYS["conv0_weight"], "b": ARRAYS["big_endian"]}, protocol=protocol)
    read_damaged(tmp_path / "w.pickle", data.draw(damaged(sound)), read_pickled, place="")


def test_damage_of_other_kinds_is_refused(tmp_path: Path):
    begun = named("numpy.core.multiarray", "_reconstruct") + b"(" + named("numpy", "ndarray") + numbers(0) + b"C\x01btR"
    itself: dict[str, Any] = {}
    itself["a"] = itself
    contents = [
        *(
            (line, "is cut off, damaged or no pickle")
            for line in (b"hello\n", b"}hello\n", b"e", b"some text", b"name: x")
        ),
        (pickle.dumps(ARRAYS) + b"x.", "more after its end"),
        (PROTO + b"}" + text("a") + begun + b"s.", "1 that are no arrays (first a)"),
        (pickle.dumps(itself), "1 that are no arrays"),
    ]
    for content, words in contents:
        assert words in refused(tmp_path / "w.pickle", content)
