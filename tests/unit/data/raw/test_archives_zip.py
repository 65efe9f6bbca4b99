import io
import os
import stat
import zipfile
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from made_archives import expect_refusal, members_or_error
from trainstone.data.raw.archives import list_zip, open_zip
from trainstone.data.raw.extract import extract_zip
from trainstone.errors import DataError

FILES = {"n01/a.JPEG": b"one", "n01/b.JPEG": b"", "n02/c.JPEG": os.urandom(3000)}


def make_zip(
    files: dict[str, bytes], change: Callable[[zipfile.ZipInfo], None] | None = None, method: int = 8
) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in files.items():
            made = zipfile.ZipInfo(name)
            made.compress_type = method
            if change:
                change(made)
            archive.writestr(made, content)
    return out.getvalue()


def as_link(made: zipfile.ZipInfo) -> None:
    made.create_system, made.external_attr = 3, (stat.S_IFLNK | 0o777) << 16


def encrypt(data: bytes) -> bytes:
    at = data.index(b"PK\1\2") + 8
    return data[:at] + bytes([data[at] | 1]) + data[at + 1 :]


def claim(size: int) -> bytes:
    data = bytearray(make_zip({"big": b"x" * 100}))
    at = data.index(b"PK\1\2") + 24
    data[at : at + 4] = size.to_bytes(4, "little")
    return bytes(data)


EVIL_ZIPS = {
    r"'\.\.'": make_zip({"../x": b"evil"}),
    "absolute": make_zip({"/x": b"evil"}),
    "Windows": make_zip({"..\\x": b"evil"}),
    "control character 0x00": make_zip({"aXb": b"evil"}).replace(b"aXb", b"a\0b"),
    "control character 0x1b": make_zip({"a\x1bb": b"evil"}),
    "is a link or a device": make_zip({"link": b"/etc"}, as_link),
    "is encrypted": encrypt(make_zip({"secret": b"evil"})),
    "packed by method 14": make_zip({"lzma": b"evil"}, method=zipfile.ZIP_LZMA),
    "more than can be packed so": claim(2**31),
    "compression bomb": make_zip({f"{i}": bytes(9 * 2**20) for i in range(9)}),
    "'a' is both a file and a folder": make_zip({"a": b"x", "a/b": b"x"}),
    "is there twice": make_zip({"a/b": b"x", "a//b": b"y"}),
    "cannot be read as zip": b"PK no zip",
}


@pytest.mark.parametrize("message", EVIL_ZIPS)
def test_an_evil_zip_is_refused_and_nothing_is_written(tmp_path, message):
    expect_refusal(tmp_path, "x.zip", EVIL_ZIPS[message], message, extract_zip)
    with pytest.raises(DataError, match=message):
        list_zip(tmp_path / "x.zip")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_good_zip_is_listed_and_extracted(tmp_path, method):
    path = tmp_path / "x.zip"
    path.write_bytes(make_zip({"n01/": b"", **FILES}, method=method))
    assert {member.name: member.size for member in list_zip(path)} == {n: len(c) for n, c in FILES.items()}
    list(extract_zip(path, tmp_path / "target"))
    assert {n: (tmp_path / "target" / n).read_bytes() for n in FILES} == FILES
    with open_zip(path) as archive:
        assert archive.read("n01/a.JPEG") == b"one"


def test_damaged_content_of_a_zip_is_refused(tmp_path):
    data = bytearray(make_zip({"a": os.urandom(1000)}, method=zipfile.ZIP_STORED))
    data[500] ^= 1
    expect_refusal(tmp_path, "x.zip", bytes(data), "'a' is damaged", extract_zip)


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_changed_zip_gives_members_or_a_data_error(tmp_path, changes):
    data = bytearray(make_zip({"n01/a": b"one" * 50, "b": b""}))
    for at, value in changes:
        data[at % len(data)] = value
    path = tmp_path / "x.zip"
    path.write_bytes(data)
    assert len(members_or_error(list_zip, path)) <= 2
