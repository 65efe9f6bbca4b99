"""Atomic writes: a file has the old or the new content, whatever happens during the write."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainstone.errors import DataError, ResultError
from trainstone.files import cache_folder, dump_json, sync_path, write_atomically


def test_write_atomically_keeps_the_old_file_when_the_write_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "x.json"
    write_atomically(path, "old")

    def fail(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_dump_json_keeps_unicode_and_rejects_nan(tmp_path: Path):
    assert dump_json({"ü": [1, None]}) == '{\n  "ü": [\n    1,\n    null\n  ]\n}\n'
    write_atomically(tmp_path / "x.json", dump_json({"command": "bench x\udcff"}))  # bytes that are not UTF-8
    assert json.loads((tmp_path / "x.json").read_text()) == {"command": "bench x\udcff"}
    with pytest.raises(ValueError, match="not JSON compliant"):
        dump_json({"a": float("nan")})


def test_write_atomically_rejects_folders_and_devices(tmp_path: Path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo", Path("/dev/null")):
        with pytest.raises(ResultError, match="not a regular file"):
            write_atomically(path, "text")
        assert not path.is_file()


def test_write_atomically_replaces_links_and_not_their_targets(tmp_path: Path):
    (tmp_path / "victim").write_text("precious")
    for link in ("x.json.partial", "x.json"):
        (tmp_path / link).symlink_to(tmp_path / "victim")
    write_atomically(tmp_path / "x.json", "text")
    assert (tmp_path / "victim").read_text() == "precious"
    assert (tmp_path / "x.json").read_text() == "text"


def test_write_atomically_keeps_the_old_file_when_a_piece_fails(tmp_path: Path):
    def pieces() -> Iterator[str]:
        yield "half"
        raise DataError("no more")

    write_atomically(tmp_path / "x", ("text ü\n", b"bytes \xff", ""))
    with pytest.raises(DataError, match="no more"):
        write_atomically(tmp_path / "x", pieces())
    assert (tmp_path / "x").read_bytes() == "text ü\n".encode() + b"bytes \xff"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"XDG_CACHE_HOME": "/cache"}, "/cache/trainstone"),
        ({"XDG_CACHE_HOME": "/cache", "TRAINSTONE_CACHE": "elsewhere"}, "elsewhere"),
        ({"HOME": "/home/me"}, "/home/me/.cache/trainstone"),
    ],
)
def test_cache_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
):
    for name, value in {"TRAINSTONE_CACHE": "", "XDG_CACHE_HOME": "", **variables}.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)


def test_sync_path_syncs_files_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    sync_path(tmp_path)
    assert len(synced) == 1
