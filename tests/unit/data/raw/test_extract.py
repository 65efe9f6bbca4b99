"""Archives extracted: with progress, on disk before the name, by several threads. (What is refused: test_archives.)"""

import gzip
import io
import os
import zipfile
from pathlib import Path

import pytest

from made_archives import expect_refusal, list_everything, make_tar
from trainstone.data.progress import Progress
from trainstone.data.raw import extract
from trainstone.data.raw.extract import extract_tar, extract_zip
from trainstone.errors import DataError

FILES = {f"n{n % 7}/{n:03d}.JPEG": os.urandom(n * 7) for n in range(200)}


def make_zip(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
def test_a_tar_tells_how_far_it_is(tmp_path: Path, name: str):
    data = make_tar(FILES)
    (tmp_path / name).write_bytes(data if name == "x.tar" else gzip.compress(data))
    size = (tmp_path / name).stat().st_size
    seen = list(extract_tar(tmp_path / name, tmp_path / "target"))
    unpacked = [item for item in seen if item.phase == f"unpack {name}"]
    assert [item.done for item in unpacked] == sorted(item.done for item in unpacked)
    assert unpacked[-1] == Progress(f"unpack {name}", size, size, "bytes")
    assert seen[-1] == Progress(f"bring {name} to disk", len(FILES), len(FILES), "files")
    assert read_files(tmp_path / "target") == FILES


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_is_extracted_by_any_number_of_threads(tmp_path: Path, workers: int, method: int):
    (tmp_path / "x.zip").write_bytes(make_zip({"empty/": b"", **FILES}, method))
    seen = list(extract_zip(tmp_path / "x.zip", tmp_path / "target", workers))
    total = sum(map(len, FILES.values()))
    unpacked = [item for item in seen if item.phase == "unpack x.zip"]
    assert unpacked[-1] == Progress("unpack x.zip", total, total, "bytes")
    assert len(unpacked) > 1
    assert read_files(tmp_path / "target") == FILES
    assert (tmp_path / "target/empty").is_dir()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_large_member_goes_through_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: int):
    monkeypatch.setattr("trainstone.data.raw.archives.CHUNK_BYTES", 1000)
    files = {"zeros": bytes(300_000), "random": os.urandom(12_345), "mixed": os.urandom(500) + bytes(9500)}
    (tmp_path / "x.zip").write_bytes(make_zip(files, method))
    list(extract_zip(tmp_path / "x.zip", tmp_path / "target"))
    assert read_files(tmp_path / "target") == files


@pytest.mark.parametrize("workers", [1, 4])
def test_damage_late_in_a_zip_leaves_nothing(tmp_path: Path, workers: int):
    data = bytearray(make_zip(FILES | {"last": os.urandom(5000)}, zipfile.ZIP_STORED))
    data[data.index(b"PK\1\2") - 100] ^= 1
    expect_refusal(tmp_path, "x.zip", bytes(data), "'last' is damaged", lambda a, b: extract_zip(a, b, workers))
    packed = bytearray(make_zip(FILES | {"last": b"last" * 5000}))
    packed[packed.index(b"PK\1\2") - 12] ^= 0xFF
    expect_refusal(tmp_path, "x.zip", bytes(packed), "'last' is damaged", lambda a, b: extract_zip(a, b, workers))


def test_a_member_longer_than_its_directory_says_is_refused(tmp_path: Path):
    data = bytearray(make_zip({"a": b"x" * 1000}))
    at = data.index(b"PK\1\2") + 24
    data[at : at + 4] = (10).to_bytes(4, "little")
    expect_refusal(tmp_path, "x.zip", bytes(data), "'a' is damaged: its length", extract_zip)


@pytest.mark.parametrize("name", ["x.tar", "x.zip"])
def test_files_are_on_disk_before_the_folder_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    target, synced = tmp_path / "target", list[tuple[Path, bool]]()
    monkeypatch.setattr(extract, "sync_path", lambda path: synced.append((path, target.exists())))
    (tmp_path / name).write_bytes(make_tar(FILES) if name == "x.tar" else make_zip(FILES))
    list((extract_tar if name == "x.tar" else extract_zip)(tmp_path / name, target))
    early = {path.relative_to(folder).as_posix() for path, named in synced if not named for folder in [find(path)]}
    assert early == {".", *list_everything(target)}
    assert [path for path, named in synced if named] == [tmp_path]


def find(path: Path) -> Path:
    """The temporary folder that a path lies in."""
    return next(folder for folder in (path, *path.parents) if folder.name.endswith(".partial"))


@pytest.mark.parametrize("steps", [1, 3])
def test_who_stops_half_way_leaves_nothing(tmp_path: Path, steps: int):
    (tmp_path / "x.tar").write_bytes(make_tar(FILES))
    (tmp_path / "x.zip").write_bytes(make_zip(FILES))
    for extraction in (
        extract_tar(tmp_path / "x.tar", tmp_path / "a"),
        extract_zip(tmp_path / "x.zip", tmp_path / "b", 2),
    ):
        for _ in range(steps):
            next(extraction)
        extraction.close()  # type: ignore[attr-defined]
    assert list_everything(tmp_path) == {"x.tar", "x.zip"}


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(extract, "sync_path", fail)
    expect_refusal(tmp_path, "x.zip", make_zip(FILES), "No space left on device", extract_zip)


def test_who_comes_second_with_the_same_archive_is_content(tmp_path: Path):
    (tmp_path / "x.zip").write_bytes(make_zip(FILES))
    slow = extract_zip(tmp_path / "x.zip", tmp_path / "target")
    next(slow)
    list(extract_zip(tmp_path / "x.zip", tmp_path / "target"))
    list(slow)
    assert read_files(tmp_path / "target") == FILES
    assert list_everything(tmp_path) == {"x.zip", "target"} | {
        f"target/{p}" for p in list_everything(tmp_path / "target")
    }
    with pytest.raises(DataError, match="is there already"):
        next(extract_zip(tmp_path / "x.zip", tmp_path / "target"))
