"""Files that are whole or absent, whatever happens while they are written."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainstone.errors import DataError, ResultError
from trainstone.files import cache_folder, dump_json, sync_path, write_atomically


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "x.json"
    write_atomically(path, "old")

    def fail(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_json_has_real_characters_and_no_nan(tmp_path: Path):
    assert dump_json({"ü": [1, None]}) == '{\n  "ü": [\n    1,\n    null\n  ]\n}\n'
    write_atomically(tmp_path / "x.json", dump_json({"command": "bench x\udcff"}))  # bytes that are no UTF-8
    assert json.loads((tmp_path / "x.json").read_text()) == {"command": "bench x\udcff"}
    with pytest.raises(ValueError, match="not JSON compliant"):
        dump_json({"a": float("nan")})


@pytest.mark.parametrize("kind", ["folder", "fifo", "device"])
def test_only_ordinary_files_are_replaced(tmp_path: Path, kind: str):
    path = tmp_path / "x"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path = Path("/dev/null")
    with pytest.raises(ResultError, match="not an ordinary file"):
        write_atomically(path, "text")
    assert not path.is_file()


def test_links_are_replaced_and_never_written_through(tmp_path: Path):
    (tmp_path / "victim").write_text("precious")
    for link in ("x.json.partial", "x.json"):
        (tmp_path / link).symlink_to(tmp_path / "victim")
    write_atomically(tmp_path / "x.json", "text")
    assert (tmp_path / "victim").read_text() == "precious"
    assert (tmp_path / "x.json").read_text() == "text"


def test_a_text_may_come_in_pieces(tmp_path: Path):
    write_atomically(tmp_path / "x", ("text ü\n", b"bytes \xff", ""))
    assert (tmp_path / "x").read_bytes() == "text ü\n".encode() + b"bytes \xff"
    write_atomically(tmp_path / "x", iter(()))
    assert (tmp_path / "x").read_bytes() == b""


def test_who_makes_the_pieces_may_fail(tmp_path: Path):
    def pieces() -> Iterator[str]:
        yield "half"
        raise DataError("no more")

    (tmp_path / "x").write_text("old")
    with pytest.raises(DataError, match="no more"):
        write_atomically(tmp_path / "x", pieces())
    assert (tmp_path / "x").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"XDG_CACHE_HOME": "/cache"}, "/cache/trainstone"),
        ({"XDG_CACHE_HOME": "/cache", "TRAINSTONE_CACHE": "elsewhere"}, "elsewhere"),
        ({"HOME": "/home/me"}, "/home/me/.cache/trainstone"),
    ],
)
def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str):
    for name, value in {"TRAINSTONE_CACHE": "", "XDG_CACHE_HOME": "", **variables}.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)


def test_files_and_folders_can_be_brought_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    (tmp_path / "x").write_text("x")
    sync_path(tmp_path / "x")
    sync_path(tmp_path)
    assert len(synced) == 2
    for descriptor in set(synced):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
