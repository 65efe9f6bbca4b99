"""Every kind of damage is found and named by file, record and byte; sound neighbours stay sound; good sets are good."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from support.builders.archives import write_files
from support.builders.data_sets import (
    INDEXES,
    JPEGS,
    RECORDS,
    SHARDS,
    STORAGES,
    check,
    flip,
    locate,
    make_encoder,
    make_png,
    make_set,
    to_classify,
    write_shard,
)
from trainstone.data.manifest import read_manifest, write_manifest
from trainstone.data.sample import Box, Sample
from trainstone.data.verify import VerifyFindings
from trainstone.formats.files import ByteSpan


def records(findings: VerifyFindings) -> list[tuple[int | None, ByteSpan]]:
    """Number and place of the bad records; what a manifest says of whole files is left out."""
    return [(one.record, one.span) for one in findings.bad if one.record is not None]


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("kind", ["classify", "detect"])
@pytest.mark.parametrize("described", [True, False])
def test_good_sets_are_good(tmp_path: Path, storage: str, kind: str, described: bool):
    findings = check(make_set(tmp_path / "set", storage, kind, 20, val=3, described=described))
    assert (findings.bad, findings.stale, findings.records) == ([], [], 23)
    assert findings.bytes >= sum(len(JPEGS[number % 6]) for number in range(20))


@pytest.mark.parametrize("storage", RECORDS)
@pytest.mark.parametrize("number", [0, 3, 7])
def test_an_image_that_breaks_off_is_named_by_record_and_byte(tmp_path: Path, storage: str, number: int):
    samples = [
        Sample(s.name, s.image[:-200] + bytes(200) if n == number else s.image, s.label)
        for n, s in enumerate(to_classify(8))
    ]
    path = tmp_path / SHARDS[storage]
    spans = write_shard(path, make_encoder(storage), samples)
    findings = check(path)
    (bad,) = findings.bad
    assert (bad.file, bad.record, bad.span) == (str(path), number, spans[number])
    assert bad.name == to_classify(8)[number].name
    assert "JPEG" in bad.why
    assert bad.describe().startswith(f"{path}, record {number} at byte {spans[number].offset} ({bad.name}): ")
    assert findings.records == 8


@pytest.mark.parametrize("storage", ["recordio", "tfrecord"])
@pytest.mark.parametrize("number", [0, 3, 7])
def test_behind_broken_framing_the_next_record_is_found(tmp_path: Path, storage: str, number: int):
    path = make_set(tmp_path / "set", storage) / SHARDS[storage]
    spans = locate(path, storage)
    flip(path, spans[number].offset)
    findings = check(tmp_path / "set")
    assert records(findings) == [(number, spans[number])]
    assert findings.records == 8


@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.parametrize("number", [0, 3, 7])
def test_in_a_tar_only_the_sample_with_the_broken_header_is_lost(tmp_path: Path, number: int, part: int):
    path = make_set(tmp_path / "set", "wds") / SHARDS["wds"]
    span = locate(path, "wds")[number]
    image = span.size - 4 * 512  # label and description have two blocks each
    flip(path, span.offset + (0, image, image + 1024)[part])
    spoilt = [span for _, span in records(check(tmp_path / "set"))]
    assert spoilt[0].offset == span.offset
    assert spoilt[-1].end in (span.end, path.stat().st_size)  # with the end mark where no header follows
    assert all(before.end == after.offset for before, after in itertools.pairwise(spoilt))


@pytest.mark.parametrize("storage", RECORDS)
@pytest.mark.parametrize("missing", [1, 4, 600])
def test_a_last_record_that_was_cut_off_is_named(tmp_path: Path, storage: str, missing: int):
    path = make_set(tmp_path / "set", storage) / SHARDS[storage]
    spans = locate(path, storage)
    path.write_bytes(path.read_bytes()[: spans[-1].end - missing])
    findings = check(tmp_path / "set")
    (first, place), *_ = records(findings)
    assert (first, place.offset) == (7, spans[7].offset)
    assert all(span.offset >= spans[7].offset for _, span in records(findings))
    (whole,) = [one for one in findings.bad if one.record is None]
    assert "manifest.json says" in whole.why


@pytest.mark.parametrize("storage", RECORDS)
@pytest.mark.parametrize("kind", ["classify", "detect"])
def test_a_label_that_no_class_has_is_named(tmp_path: Path, storage: str, kind: str):
    root = make_set(tmp_path / "set", storage, kind, 6)
    manifest = read_manifest(root)
    assert manifest is not None
    write_manifest(root, manifest.model_copy(update={"classes": manifest.classes[:1]}))
    findings = check(root)
    assert [one.record for one in findings.bad] == ([1, 3, 5] if kind == "classify" else [2, 5])
    assert {one.why for one in findings.bad} == {"label 1, but there are 1 classes"}


OUTSIDE = [Box(0, 0.5, 0.5, 1.5, 1.0), Box(0, -0.1, 0, 1, 1), Box(0, 0.5, 0.5, 0.5, 1.0), Box(0, 0.5, 0.9, 0.6, 0.8)]


@pytest.mark.parametrize("storage", RECORDS)
@pytest.mark.parametrize("box", OUTSIDE)
def test_a_box_outside_its_image_is_named(tmp_path: Path, storage: str, box: Box):
    samples = [Sample(f"{n}.jpg", JPEGS[n], boxes=(box,) if n == 1 else (), id=n) for n in range(3)]
    (bad,) = check(make_set(tmp_path / "set", storage, "detect", samples)).bad
    assert (bad.record, bad.name) == (1, "1.jpg")
    assert bad.why.startswith("a box with edges ")


@pytest.mark.parametrize("storage", RECORDS)
def test_an_index_that_does_not_fit_is_told_and_its_records_are_good(tmp_path: Path, storage: str):
    root = make_set(tmp_path / "set", storage)
    index = root / INDEXES[storage]
    flip(index, index.stat().st_size - 1)
    (bad,) = check(root).bad
    assert bad.file == str(index)
    assert bad.why.startswith("CRC-32C ")
    (root / "manifest.json").unlink()
    index.write_bytes(b"no \xff index\n")
    findings = check(root)
    assert (findings.bad, findings.stale, findings.records) == ([], [index], 8)


@pytest.mark.parametrize("storage", RECORDS)
def test_a_shard_that_is_missing_is_told(tmp_path: Path, storage: str):
    root = make_set(tmp_path / "set", storage, val=3)
    (root / SHARDS[storage]).unlink()
    findings = check(root)
    assert {one.file for one in findings.bad} == {str(root / SHARDS[storage])}
    assert all("cannot" in one.why for one in findings.bad)
    assert findings.records == 3


CHANGES: dict[str, Callable[[Path], object]] = {
    "added": lambda file: file.with_name("extra.png").write_bytes(make_png()),
    "removed": lambda file: file.unlink(),
    "renamed": lambda file: file.rename(file.with_name("other.jpg")),
    "another": lambda file: file.write_bytes(make_png()),
}


@pytest.mark.parametrize("how", CHANGES)
def test_images_that_a_folder_should_not_have_or_lacks_are_told(tmp_path: Path, how: str):
    root = make_set(tmp_path / "set", "folder")
    CHANGES[how](root / "train/a/0002.jpg")
    (bad,) = check(root).bad
    assert (bad.file, bad.record) == ("train", None)
    assert "some were added, removed or changed" in bad.why


@pytest.mark.parametrize("damage", ["x\n", "0\t0\n", "0\tnan\tx.jpg\n"])
def test_a_damaged_list_is_not_the_fault_of_every_record(tmp_path: Path, damage: str):
    root = make_set(tmp_path / "set", "recordio", described=False)
    (root / "train.lst").write_text((root / "train.lst").read_text() + damage)
    (bad,) = check(root).bad
    assert bad.record is None
    assert "train.lst, line 9" in bad.why


def test_files_that_are_no_images_are_named(tmp_path: Path):
    write_files(tmp_path, {"a/1.jpg": JPEGS[0], "a/2.jpg": JPEGS[1][:-100], "b/5.png": make_png()})
    write_files(tmp_path, {"b/3.jpg": b"", "b/4.png": b"words"})
    findings = check(tmp_path)
    assert findings.records == 5
    assert [one.file.removeprefix(f"{tmp_path}/") for one in findings.bad] == ["a/2.jpg", "b/3.jpg", "b/4.png"]
    assert [one.record for one in findings.bad] == [None] * 3
    assert findings.bad[2].describe().startswith(f"{tmp_path}/b/4.png: not an image")
