"""A shard while it is written: one writer, a journal to go on from, and everything again where that is damaged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import google_crc32c
import pytest

from small_sets import CLASSES, to_classify
from trainstone.data import partial
from trainstone.data.manifest import ShardFacts
from trainstone.data.partial import PartialShard, open_at, sum_file, write_all
from trainstone.data.picture.look import look
from trainstone.data.sample import Sample
from trainstone.data.storage.encoding import Encoded, Encoder, Shard
from trainstone.data.storage.folder import FolderEncoder
from trainstone.data.storage.recordio import RecordIOEncoder
from trainstone.data.storage.wds import WdsEncoder
from trainstone.errors import DataError

SHARD = Shard("train", "train.rec", 0, 6)
ENCODER = RecordIOEncoder("classify")


def open_shard(folder: Path, plan: str = "plan", encoder: Encoder = ENCODER, shard: Shard = SHARD) -> PartialShard:
    (folder / "work").mkdir(exist_ok=True)
    return PartialShard(folder / "work", folder, shard, encoder, plan, folder=isinstance(encoder, FolderEncoder))


def encode(samples: list[Sample], encoder: Encoder = ENCODER, first: int = 0) -> list[Encoded]:
    return [encoder.encode(sample, first + n, look(sample.image)) for n, sample in enumerate(samples)]


def write_half(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of six are on disk and in the journal; a fourth was written, but never promised."""
    with monkeypatch.context() as patched, open_shard(folder) as shard:
        patched.setattr(partial, "JOURNAL_BYTES", 1)
        shard.append(encode(to_classify(3)), [("a/0000.jpg", "CMYK \udcff")], [])
        patched.setattr(partial, "JOURNAL_BYTES", 1 << 40)
        shard.append(encode(to_classify(1, 3), first=3), [], [])


def finish(folder: Path) -> tuple[int, ShardFacts]:
    with open_shard(folder) as shard:
        found = shard.places
        shard.append(encode(to_classify(6 - found, found), first=found), [], [])
        return found, shard.finish()


def write_whole(folder: Path) -> ShardFacts:
    folder.mkdir()
    with open_shard(folder) as shard:
        shard.append(encode(to_classify(6)), [], [])
        return shard.finish()


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_shard_gets_its_name_when_it_is_whole(tmp_path: Path):
    with open_shard(tmp_path) as shard:
        shard.append(encode(to_classify(6)), [], [])
        assert read_files(tmp_path) == {}
        facts = shard.finish()
    data = (tmp_path / "train.rec").read_bytes()
    assert (facts.file, facts.records, facts.bytes) == ("train.rec", 6, len(data))
    assert facts.crc32c == f"{google_crc32c.value(data):08x}"
    assert [one.file for one in facts.sidecars] == ["train.idx", "train.lst"]
    for one in facts.sidecars:
        text = (tmp_path / one.file).read_bytes()
        assert (one.bytes, one.crc32c) == (len(text), f"{google_crc32c.value(text):08x}")
    assert {path.name for path in (tmp_path / "work").iterdir()} == {"train.rec.lock", "train.rec.done"}


def test_work_goes_on_from_the_journals_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = write_whole(tmp_path / "whole")
    write_half(tmp_path, monkeypatch)
    found, facts = finish(tmp_path)
    assert found == 3
    assert facts.repaired == (("a/0000.jpg", "CMYK \udcff"),)
    assert facts.model_copy(update={"repaired": ()}) == whole
    assert read_files(tmp_path) == read_files(tmp_path / "whole")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        b'{"plan": "plan", "places": -1, "bytes": -1, "sidecar_bytes": [0, 0, 0]}',
        b'{"plan": "plan", "places": 3, "bytes": 99999999, "sidecar_bytes": [0, 0, 0]}',
        b'{"plan": "plan", "places": 3, "bytes": 10, "sidecar_bytes": [0, 0]}',
        b'{"plan": "plan", "places": 3, "bytes": 10, "sidecar_bytes": [0, 0, 9999]}',
        b'{"plan": "plan", "places": 7, "bytes": 10, "sidecar_bytes": [0, 0, 0]}',
        b'{"plan": "another", "places": 3, "bytes": 10, "sidecar_bytes": [0, 0, 0]}',
    ],
)
def test_with_a_damaged_journal_it_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes):
    write_whole(tmp_path / "whole")
    write_half(tmp_path, monkeypatch)
    (tmp_path / "work/train.rec.journal").write_bytes(text)
    found, _ = finish(tmp_path)
    assert found == 0
    assert read_files(tmp_path) == read_files(tmp_path / "whole")


@pytest.mark.parametrize("name", ["train.rec.partial", "train.rec.1.sidecar"])
@pytest.mark.parametrize("how", ["shorter", "gone"])
def test_with_a_file_shorter_than_the_journal_knew_it_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, how: str
):
    write_whole(tmp_path / "whole")
    write_half(tmp_path, monkeypatch)
    path = tmp_path / "work" / name
    if how == "gone":
        path.unlink()
    else:
        os.truncate(path, 5)
    assert finish(tmp_path)[0] == 0
    assert read_files(tmp_path) == read_files(tmp_path / "whole")


def test_another_process_is_turned_away(tmp_path: Path):
    code = (
        "import fcntl, os, sys\n"
        f"lock = os.open({str(tmp_path / 'work/train.rec.lock')!r}, os.O_RDWR)\n"
        "try:\n    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)\nexcept BlockingIOError:\n    sys.exit(7)\n"
    )
    with open_shard(tmp_path):
        assert subprocess.run([sys.executable, "-c", code]).returncode == 7
        with pytest.raises(DataError, match=r"train\.rec is being written by another process"), open_shard(tmp_path):
            pytest.fail("two writers")
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_skipped_pictures_count_as_done(tmp_path: Path):
    with open_shard(tmp_path) as shard:
        shard.append(encode(to_classify(2)), [], [("x.jpg", "no picture")])
        assert shard.places == 3
        facts = shard.finish()
    assert (facts.records, facts.skipped) == (2, (("x.jpg", "no picture"),))


def test_what_ends_a_shard_is_part_of_it(tmp_path: Path):
    encoder = WdsEncoder("classify")
    with open_shard(tmp_path, encoder=encoder, shard=Shard("train", "train.tar", 0, 2)) as shard:
        shard.append(encode(to_classify(2), encoder), [], [])
        facts = shard.finish()
    data = (tmp_path / "train.tar").read_bytes()
    assert data.endswith(encoder.tail)
    assert (facts.bytes, facts.crc32c) == (len(data), f"{google_crc32c.value(data):08x}")


def test_a_folder_is_written_picture_by_picture(tmp_path: Path):
    encoder = FolderEncoder("classify", CLASSES)
    with open_shard(tmp_path, encoder=encoder, shard=Shard("train", "train", 0, 3)) as shard:
        shard.append(encode(to_classify(3), encoder), [], [])
        facts = shard.finish()
    files = {str(path.relative_to(tmp_path / "train")): path.read_bytes() for path in tmp_path.glob("train/*/*")}
    assert files == {sample.name: sample.image for sample in to_classify(3)}
    assert facts.bytes == sum(len(data) for data in files.values())
    assert facts.crc32c == f"{sum(sum_file(name, data) for name, data in files.items()) % (1 << 32):08x}"
    assert facts.sidecars == ()  # no boxes, no file of boxes


def test_a_folders_sum_depends_on_names_and_bytes_alone():
    assert sum_file("a.jpg", b"x") == google_crc32c.value(b"a.jpgx")
    assert sum_file("a.jpg", b"x") != sum_file("b.jpg", b"x")


BUFFERS = [b"one", memoryview(b"two"), b"", b"three" * 100]


@pytest.mark.parametrize("taken", [0, 1, 3, 4, 6, 11, 505])
def test_a_system_that_takes_only_a_part_gets_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int):
    def write_some(descriptor: int, buffers: list[bytes]) -> int:
        return os.write(descriptor, b"".join(buffers)[:taken])

    real = os.write
    monkeypatch.setattr(os, "writev", write_some)
    with open_at(tmp_path / "x", 0) as file:
        monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, bytes(data)[:200]))
        write_all(file, BUFFERS)
    assert (tmp_path / "x").read_bytes() == b"".join(BUFFERS)


def test_more_buffers_than_the_system_takes_at_once(tmp_path: Path):
    buffers = [bytes([number % 256]) for number in range(3000)]
    with open_at(tmp_path / "x", 0) as file:
        write_all(file, buffers)
    assert (tmp_path / "x").read_bytes() == b"".join(buffers)


@pytest.mark.parametrize(("size", "left"), [(0, b""), (3, b"abc"), (5, b"abcde")])
def test_a_file_is_opened_at_a_length(tmp_path: Path, size: int, left: bytes):
    (tmp_path / "x").write_bytes(b"abcde")
    with open_at(tmp_path / "x", size) as file:
        file.write(b"!")
    assert (tmp_path / "x").read_bytes() == left + b"!"


def test_the_journal_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_half(tmp_path, monkeypatch)
    journal = json.loads((tmp_path / "work/train.rec.journal").read_text())
    data = (tmp_path / "work/train.rec.partial").read_bytes()
    assert (journal["plan"], journal["places"], journal["records"]) == ("plan", 3, 3)
    assert journal["bytes"] < len(data)
    assert journal["crc32c"] == google_crc32c.value(data[: journal["bytes"]])
