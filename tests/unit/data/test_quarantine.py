"""Taking bad records out: what is left is good and as it was, what was taken is kept with the reason."""

import json
import os
from pathlib import Path

import pytest

from made_archives import write_files
from small_sets import (
    BOXES,
    CLASSES,
    INDEXES,
    JPEGS,
    RECORDS,
    SHARDS,
    Listed,
    check,
    flip,
    locate,
    make_set,
    to_classify,
    write_set,
    write_shard,
)
from trainstone.data.manifest import check_files, measure, read_manifest
from trainstone.data.quarantine import quarantine, read_reasons, refresh_manifest
from trainstone.data.recognise import open_dataset
from trainstone.data.sample import DataSet, Sample, Split
from trainstone.data.storage.recordio import RecordIOEncoder
from trainstone.data.storage.tfrecord import TFRecordEncoder
from trainstone.data.storage.wds import WdsEncoder
from trainstone.errors import DataError
from trainstone.formats.span import Span
from trainstone.formats.wds import END

NUMBERS = [[3], [0], [7], [0, 1], [2, 5, 7], [*range(8)]]


def fix(path: Path) -> Path | None:
    findings = check(path)
    mended = quarantine(open_dataset(path, classes=False), findings.bad, findings.stale, path)
    manifest = read_manifest(path) if path.is_dir() else None
    if manifest is not None:
        refresh_manifest(path, manifest, mended.changed)
    return mended.place


def spoil_pictures(path: Path, spans: list[Span], numbers: list[int]) -> None:
    """Make pictures unreadable without touching the framing; TFRecord's checksum sees it, the others' decoder."""
    for number in numbers:
        at = path.read_bytes().index(JPEGS[number % 6], spans[number].offset)
        flip(path, at)


def without(data: bytes, spans: list[Span], numbers: list[int]) -> bytes:
    """What should be left."""
    kept = [data[span.offset : span.end] for number, span in enumerate(spans) if number not in numbers]
    return b"".join(kept) + data[spans[-1].end :]


@pytest.mark.parametrize("storage", RECORDS)
@pytest.mark.parametrize("numbers", NUMBERS)
def test_the_rest_is_good_and_as_it_was(tmp_path: Path, storage: str, numbers: list[int]):
    root = make_set(tmp_path / "set", storage, val=2)
    path = root / SHARDS[storage]
    spans, sound = locate(path, storage), path.read_bytes()
    spoil_pictures(path, spans, numbers)
    spoilt = path.read_bytes()
    assert fix(root) == root / "quarantine"
    assert check(root).bad == []
    assert check(root).stale == []
    assert path.read_bytes() == without(sound, spans, numbers)
    source = open_dataset(root).splits[0].source
    left = [sample for number, sample in enumerate(to_classify(8)) if number not in numbers]
    assert [source.read(number) for number in range(len(source))] == left
    reasons = json.loads((root / "quarantine/reasons.json").read_text())
    assert [(one["record"], one["byte"]) for one in reasons] == [(n, spans[n].offset) for n in numbers]
    for number, one in zip(numbers, reasons, strict=True):
        assert one["file"] == str(path)
        assert one["why"]
        assert (root / "quarantine" / one["kept"]).read_bytes() == spoilt[spans[number].offset : spans[number].end]


@pytest.mark.parametrize("storage", RECORDS)
def test_index_and_manifest_are_true_afterwards(tmp_path: Path, storage: str):
    root = make_set(tmp_path / "set", storage, val=2)
    path = root / SHARDS[storage]
    spoil_pictures(path, locate(path, storage), [1, 4])
    fix(root)
    manifest = read_manifest(root)
    assert manifest is not None
    check_files(root, manifest)
    train, val = manifest.splits
    assert (train.records, val.records) == (6, 2)
    assert train.bytes == path.stat().st_size
    for shard in manifest.shards:
        for facts in (shard, *shard.sidecars):
            assert facts.crc32c == measure(root, facts.file).crc32c
    assert len((root / INDEXES[storage]).read_text().splitlines()) == 6 + (storage == "wds")


@pytest.mark.parametrize("storage", RECORDS)
@pytest.mark.parametrize("number", [0, 3, 7])
def test_broken_framing_is_taken_out_with_its_record_alone(tmp_path: Path, storage: str, number: int):
    root = make_set(tmp_path / "set", storage)
    path = root / SHARDS[storage]
    spans, sound = locate(path, storage), path.read_bytes()
    flip(path, spans[number].offset)
    fix(root)
    assert check(root).bad == []
    assert path.read_bytes() == without(sound, spans, [number])


@pytest.mark.parametrize("storage", RECORDS)
def test_a_file_that_was_cut_off_ends_well_afterwards(tmp_path: Path, storage: str):
    root = make_set(tmp_path / "set", storage)
    path = root / SHARDS[storage]
    spans, sound = locate(path, storage), path.read_bytes()
    path.write_bytes(sound[: spans[-1].end - 700])
    fix(root)
    assert check(root).bad == []
    assert path.read_bytes() == sound[: spans[-2].end] + (END if storage == "wds" else b"")


def test_a_tar_without_end_mark_gets_one(tmp_path: Path):
    root = make_set(tmp_path / "set", "wds")
    path = root / SHARDS["wds"]
    sound = path.read_bytes()
    path.write_bytes(sound[: -len(END)])
    fix(root)
    assert path.read_bytes() == sound
    assert check(root).bad == []


def test_reasons_of_an_earlier_time_are_kept(tmp_path: Path):
    root = make_set(tmp_path / "set", "tfrecord")
    path = root / SHARDS["tfrecord"]
    for _ in range(2):
        flip(path, 200)
        fix(root)
    reasons = read_reasons(root / "quarantine")
    assert [one["record"] for one in reasons] == [0, 0]
    assert check(root).records == 6


def test_what_was_kept_at_an_earlier_time_is_not_written_over(tmp_path: Path):
    root = make_set(tmp_path / "set", "tfrecord")
    path = root / SHARDS["tfrecord"]
    spoilt = []
    for _ in range(2):
        spans = locate(path, "tfrecord")
        flip(path, spans[0].offset + 200)
        spoilt.append(path.read_bytes()[: spans[0].size])
        fix(root)
    reasons = read_reasons(root / "quarantine")
    assert [(root / "quarantine" / str(one["kept"])).read_bytes() for one in reasons] == spoilt


@pytest.mark.parametrize("text", ["", "no json", '{"a": 1}'])
def test_reasons_that_cannot_be_read_are_none(tmp_path: Path, text: str):
    (tmp_path / "reasons.json").write_text(text)
    assert read_reasons(tmp_path) == []


@pytest.mark.parametrize("storage", RECORDS)
def test_a_single_file_is_mended_where_it_lies(tmp_path: Path, storage: str):
    encoders = {"recordio": RecordIOEncoder("classify"), "tfrecord": TFRecordEncoder("classify", CLASSES, 1)}
    path = tmp_path / {"recordio": "x.rec", "tfrecord": "x.tfrecord", "wds": "a tar of another name"}[storage]
    spans = write_shard(path, encoders.get(storage, WdsEncoder("classify")), to_classify(4))
    sound = path.read_bytes()
    spoil_pictures(path, spans, [3])
    assert fix(path) == tmp_path / "quarantine"
    assert path.read_bytes() == without(sound, spans, [3])
    assert check(path).bad == []


@pytest.mark.parametrize("storage", RECORDS)
def test_an_index_that_does_not_fit_is_written_anew(tmp_path: Path, storage: str):
    root = make_set(tmp_path / "set", storage)
    sound = (root / INDEXES[storage]).read_bytes()
    (root / "manifest.json").unlink()
    (root / INDEXES[storage]).write_text("nonsense")
    assert fix(root) is None
    assert (root / INDEXES[storage]).read_bytes() == sound
    assert [kept.read_text() for kept in (root / "quarantine").iterdir()] == ["nonsense"]
    assert check(root).stale == []


def test_names_that_are_no_utf8_keep_their_bytes_in_an_index(tmp_path: Path):
    samples = [Sample(f"\udcff{n}.jpg", JPEGS[n], 0) for n in range(3)]
    root = write_set(tmp_path / "set", DataSet("classify", "", CLASSES, [Split("train", Listed(samples))]), "wds")
    path = root / SHARDS["wds"]
    spoil_pictures(path, locate(path, "wds"), [0])
    fix(root)
    assert b"\xff1.jpg" in (root / INDEXES["wds"]).read_bytes()
    assert (check(root).bad, check(root).stale) == ([], [])


def test_picture_files_are_moved_with_their_folders_names(tmp_path: Path):
    root = make_set(tmp_path / "set", "folder", val=2)
    victim = root / "train/b/0003.jpg"
    victim.write_bytes(JPEGS[3][:-50])
    assert fix(root) == root / "quarantine"
    assert not victim.exists()
    assert (root / "quarantine/train/b/0003.jpg").read_bytes() == JPEGS[3][:-50]
    manifest = read_manifest(root)
    assert manifest is not None
    assert [split.records for split in manifest.splits] == [7, 2]
    assert check(root).bad == []
    (reason,) = read_reasons(root / "quarantine")
    assert (reason["file"], reason["kept"]) == ("train/b/0003.jpg", "train/b/0003.jpg")


def test_a_picture_moved_at_an_earlier_time_is_not_written_over(tmp_path: Path):
    root = write_files(tmp_path, {"a/1.jpg": JPEGS[0]})
    for text in (b"first", b"second", b"third"):
        (root / "a/x.jpg").write_bytes(text)
        fix(root)
    kept = [(root / "quarantine" / str(one["kept"])).read_bytes() for one in read_reasons(root / "quarantine")]
    assert kept == [b"first", b"second", b"third"]
    assert check(root).records == 1
    assert [known.name for known in open_dataset(root).classes] == ["a"]  # what was set aside is no class


def test_boxes_of_a_moved_picture_do_no_harm(tmp_path: Path):
    samples = [Sample(f"a/{n}.jpg", JPEGS[n], 0, BOXES[:1]) for n in range(3)]
    root = write_set(tmp_path / "set", DataSet("classify", "", CLASSES, [Split("train", Listed(samples))]), "folder")
    (root / "train/a/1.jpg").write_bytes(b"none")
    fix(root)
    assert check(root).bad == []
    source = open_dataset(root).splits[0].source
    assert [source.read(number) for number in range(len(source))] == [samples[0], samples[2]]


def test_cocos_annotations_lose_the_moved_picture_and_nothing_else(tmp_path: Path):
    root = make_set(tmp_path / "set", "folder", "detect", val=3)
    file = root / "annotations/instances_train.json"
    before, val = json.loads(file.read_text()), (root / "annotations/instances_val.json").read_bytes()
    (root / "train/0002.jpg").write_bytes(JPEGS[2][:100])
    fix(root)
    after = json.loads(file.read_text())
    assert after["images"] == [one for one in before["images"] if one["id"] != 102]
    assert after["annotations"] == [one for one in before["annotations"] if one["image_id"] != 102]
    assert len(after["annotations"]) == len(before["annotations"]) - 2
    assert {key: after[key] for key in after.keys() - {"images", "annotations"}} == {
        key: before[key] for key in before.keys() - {"images", "annotations"}
    }
    assert json.loads((root / "quarantine/annotations/instances_train.json").read_text()) == before
    assert (root / "annotations/instances_val.json").read_bytes() == val
    assert (root / "quarantine/train/0002.jpg").read_bytes() == JPEGS[2][:100]
    assert (check(root).bad, check(root).records) == ([], 10)


def test_of_a_link_that_leads_out_of_the_folder_only_the_link_is_moved(tmp_path: Path):
    root = write_files(tmp_path / "set", {"a/1.jpg": JPEGS[0], "a/2.jpg": b"bad", "b/3.jpg": JPEGS[1]})
    outside = write_files(tmp_path, {"elsewhere.jpg": b"bad, too"}) / "elsewhere.jpg"
    (root / "b/4.jpg").symlink_to(outside)
    fix(root)
    assert outside.read_bytes() == b"bad, too"
    assert not (root / "a/2.jpg").exists()
    assert (root / "quarantine/b/4.jpg").is_symlink()
    assert check(root).bad == []


def test_a_changed_byte_that_nothing_else_tells_stays_told(tmp_path: Path):
    root = make_set(tmp_path / "set", "recordio")
    path = root / SHARDS["recordio"]
    data = bytearray(path.read_bytes())
    data[12] ^= 1  # the label of the first record
    path.write_bytes(data)
    assert fix(root) is None
    assert "CRC-32C" in check(root).bad[0].why


def test_a_folder_of_pictures_can_be_checked_again(tmp_path: Path):
    write_files(tmp_path, {"x.jpg": JPEGS[0], "y.jpg": b"bad"})
    fix(tmp_path)
    assert (check(tmp_path).bad, check(tmp_path).records) == ([], 1)


def test_a_disk_that_refuses_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = make_set(tmp_path / "set", "recordio")
    path = root / SHARDS["recordio"]
    spoil_pictures(path, locate(path, "recordio"), [3])
    before = path.read_bytes()
    findings = check(root)

    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(DataError, match=r"cannot mend .*: No space left on device"):
        quarantine(open_dataset(root, classes=False), findings.bad, findings.stale, root)
    assert path.read_bytes() == before
    assert not list(root.rglob("*.partial"))
