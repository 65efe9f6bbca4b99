import io
import zlib

import numpy as np
import pytest
import scipy.io
from hypothesis import given, settings
from hypothesis import strategies as st

from trainstone.errors import DataError
from trainstone.formats import mat5
from trainstone.formats.mat5 import read_mat


def save(variables: dict, *, compress: bool = False) -> bytes:
    out = io.BytesIO()
    scipy.io.savemat(out, variables, do_compression=compress, oned_as="row")
    return out.getvalue()


def synsets(count: int) -> np.ndarray:
    """Shaped like meta.mat of ILSVRC2012's devkit."""
    fields = ["ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children"]
    made = np.zeros((count, 1), dtype=[(name, object) for name in fields])
    for i in range(count):
        made[i, 0] = (float(i + 1), f"n{i:08d}", f"word {i}, wörd", "a thing", 0.0, np.zeros((1, 0)))
    return made


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"])
def test_numbers_of_every_type_are_read(kind, compress):
    array = np.arange(24).reshape(2, 3, 4).astype(kind)
    found = read_mat(save({"array": array, "one": array[:1, 0, 0], "small": array[0, :1, :2]}, compress=compress))
    assert found["array"].dtype == np.dtype(kind)
    np.testing.assert_array_equal(found["array"], array)
    np.testing.assert_array_equal(found["one"], [[0]])
    np.testing.assert_array_equal(found["small"], [[0, 1]])


@pytest.mark.parametrize("compress", [False, True])
def test_text_cells_and_structs_are_read(compress):
    cells = np.empty(3, dtype=object)
    cells[:] = ["tench", np.array([[1.5]]), "ü"]
    rows = np.array(["one", "two"])
    struct = {"a": 1.0, "b": {"c": "deep"}}
    found = read_mat(
        save({"text": "hello", "cells": cells, "rows": rows, "struct": struct, "none": ""}, compress=compress)
    )
    assert found["text"] == "hello"
    assert found["rows"] == ["one", "two"]
    assert found["cells"][0] == "tench"
    assert found["cells"][1].item() == 1.5
    assert found["cells"][2] == "ü"
    assert found["struct"][0]["a"].item() == 1.0
    assert found["struct"][0]["b"] == [{"c": "deep"}]
    assert found["none"] == ""


@pytest.mark.parametrize("compress", [False, True])
def test_the_synsets_of_a_devkit_are_read(compress):
    found = read_mat(save({"synsets": synsets(7)}, compress=compress))["synsets"]
    assert len(found) == 7
    assert [entry["WNID"] for entry in found] == [f"n{i:08d}" for i in range(7)]
    assert [int(entry["ILSVRC2012_ID"].item()) for entry in found] == [1, 2, 3, 4, 5, 6, 7]
    assert found[2]["words"] == "word 2, wörd"
    assert found[0]["children"].shape == (1, 0)


def big_endian_file() -> bytes:
    """A variable x = [1 258], written out by hand in the other byte order."""

    def element(kind: int, content: bytes) -> bytes:
        return kind.to_bytes(4, "big") + len(content).to_bytes(4, "big") + content + bytes(-len(content) % 8)

    flags = element(6, (12).to_bytes(4, "big") + bytes(4))
    shape = element(5, (1).to_bytes(4, "big") + (2).to_bytes(4, "big"))
    name = bytes([0, 1, 0, 1]) + b"x\0\0\0"
    values = bytes([0, 4, 0, 3]) + bytes([0, 1, 1, 2])
    return b" " * 124 + b"\x01\x00MI" + element(14, flags + shape + name + values)


def test_the_other_byte_order_is_read():
    found = read_mat(big_endian_file())
    assert found["x"].tolist() == [[1, 258]]
    assert found["x"].dtype == np.int32


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"z": np.array([1j])}, "complex"),
        ({"s": __import__("scipy.sparse").sparse.csc_array(np.eye(3))}, "sparse"),
    ],
)
def test_what_is_not_read_is_refused(variables, message):
    with pytest.raises(DataError, match=rf"meta\.mat, byte \d+: a {message} array is stored here"):
        read_mat(save(variables), "meta.mat")


@pytest.mark.parametrize("data", [b"", b"no file", bytes(200), b"MATLAB 7.3 MAT-file" + bytes(600), b"\x89HDF\r\n"])
def test_what_is_no_such_file_is_refused(data):
    with pytest.raises(DataError, match=r"byte \d+"):
        read_mat(data)


def test_another_version_is_refused():
    data = bytearray(save({"x": 1.0}))
    data[125] = 2
    with pytest.raises(DataError, match="version 0x0200"):
        read_mat(bytes(data))


def test_a_bomb_is_refused(monkeypatch):
    monkeypatch.setattr(mat5, "MAX_UNPACKED_BYTES", 10_000)
    with pytest.raises(DataError, match="larger than 10,000 bytes unpacked"):
        read_mat(save({"zeros": np.zeros((100, 100))}, compress=True))


def test_claimed_counts_cost_nothing():
    data = bytearray(save({"cells": np.array([["a", "b"]], dtype=object)}))
    at = bytes(data).index((5).to_bytes(4, "little") + (8).to_bytes(4, "little"), 128) + 8
    data[at : at + 8] = (2**31 - 1).to_bytes(4, "little") * 2
    with pytest.raises(DataError, match="arrays are claimed"):
        read_mat(bytes(data))


def test_arrays_in_arrays_end_somewhere():
    nested: object = 1.0
    for _ in range(40):
        cell = np.empty(1, dtype=object)
        cell[0] = nested
        nested = cell
    with pytest.raises(DataError, match="more than 32 deep"):
        read_mat(save({"deep": nested}))


GOOD = save({"synsets": synsets(2), "text": np.array(["one", "two"]), "n": np.arange(5, dtype="u2")})


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    changes=st.lists(st.tuples(st.integers(124, len(GOOD) - 1), st.integers(0, 255)), max_size=5),
    end=st.one_of(st.just(len(GOOD)), st.integers(0, len(GOOD))),
    packed=st.booleans(),
)
def test_a_changed_file_is_read_or_refused_with_the_byte(changes, end, packed):
    data = bytearray(GOOD)
    for at, value in changes:
        data[at] = value
    data = data[:end]
    if packed:  # changed inside, so that the packing itself is sound
        body = zlib.compress(bytes(data[128:]))
        data = data[:128] + (15).to_bytes(4, "little") + len(body).to_bytes(4, "little") + body
    assert "byte" in message_of(bytes(data))


def message_of(data: bytes) -> str:
    try:
        read_mat(data)
    except DataError as err:
        return err.message
    return "every byte was fine"
