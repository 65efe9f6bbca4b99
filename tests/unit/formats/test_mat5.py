import io

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from trainstone.errors import DataError
from trainstone.formats import mat5
from trainstone.formats.mat5 import read_mat


def save(variables: dict, *, compress: bool = False) -> bytes:
    out = io.BytesIO()
    scipy.io.savemat(out, variables, do_compression=compress, oned_as="row")
    return out.getvalue()


def synsets(count: int) -> np.ndarray:
    """Return synsets with the layout of meta.mat in the ILSVRC2012 devkit."""
    fields = ["ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children"]
    made = np.zeros((count, 1), dtype=[(name, object) for name in fields])
    for i in range(count):
        made[i, 0] = (float(i + 1), f"n{i:08d}", f"word {i}, wörd", "a thing", 0.0, np.zeros((1, 0)))
    return made


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"])
def test_read_mat_reads_all_number_types(kind, compress):
    array = np.arange(24).reshape(2, 3, 4).astype(kind)
    found = read_mat(save({"array": array, "one": array[:1, 0, 0], "small": array[0, :1, :2]}, compress=compress))
    assert found["array"].dtype == np.dtype(kind)
    np.testing.assert_array_equal(found["array"], array)
    np.testing.assert_array_equal(found["one"], [[0]])
    np.testing.assert_array_equal(found["small"], [[0, 1]])


@pytest.mark.parametrize("compress", [False, True])
def test_read_mat_reads_devkit_synsets(compress):
    found = read_mat(save({"synsets": synsets(7)}, compress=compress))["synsets"]
    assert len(found) == 7
    assert [entry["WNID"] for entry in found] == [f"n{i:08d}" for i in range(7)]
    assert [int(entry["ILSVRC2012_ID"].item()) for entry in found] == [1, 2, 3, 4, 5, 6, 7]
    assert found[2]["words"] == "word 2, wörd"
    assert found[0]["children"].shape == (1, 0)


def claim_many() -> bytes:
    """Return a struct array that claims to have 2^62 entries."""
    data = bytearray(save({"structs": synsets(1)}))
    at = bytes(data).index((5).to_bytes(4, "little") + (8).to_bytes(4, "little"), 128) + 8
    data[at : at + 8] = (2**31 - 1).to_bytes(4, "little") * 2
    return bytes(data)


SOUND = save({"x": 1.0})


@pytest.mark.parametrize(
    "data",
    [
        save({"z": np.array([1j])}),
        save({"s": scipy.sparse.csc_array(np.eye(3))}),
        save({"c": np.array(["a", 1.0], dtype=object)}),
        save({"rows": np.array(["one", "two"])}),
        claim_many(),
        SOUND[:125] + b"\2" + SOUND[126:],
        SOUND[:126] + b"MI" + SOUND[128:],
        b"MATLAB 7.3 MAT-file" + bytes(600),
        b"",
    ],
)
def test_read_mat_rejects_unsupported_or_damaged_content(data):
    with pytest.raises(DataError, match=r"^meta\.mat: "):
        read_mat(data, "meta.mat")


def test_read_mat_rejects_compression_bomb(monkeypatch):
    monkeypatch.setattr(mat5, "MAX_UNPACKED_BYTES", 10_000)
    with pytest.raises(DataError, match="compressed content exceeds 10,000 bytes"):
        read_mat(save({"zeros": np.zeros((100, 100))}, compress=True))
