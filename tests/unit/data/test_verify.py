"""Tests of `data verify`: damage is reported by file, record and byte; intact records and data sets pass."""

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
    flip_byte,
    list_spans,
    make_classify_samples,
    make_encoder,
    make_png,
    make_set,
    verify_path,
    write_shard,
)
from trainstone.data.manifest import read_manifest, write_manifest
from trainstone.data.sample import Box, Sample
from trainstone.data.verify import VerifyFindings
from trainstone.formats.files import ByteSpan


def records(findings: VerifyFindings) -> list[tuple[int | None, ByteSpan]]:
    """Return index and byte range of the bad records, without whole files."""
    return [(bad.record, bad.span) for bad in findings.bad if bad.record is not None]


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("kind", ["classify", "detect"])
@pytest.mark.parametrize("described", [True, False])
def test_verify_accepts_intact_data_sets(tmp_path: Path, storage: str, kind: str, described: bool):
    findings = verify_path(make_set(tmp_path / "set", storage, kind, 20, val=3, described=described))
    assert (findings.bad, findings.stale, findings.records) == ([], [], 23)
    assert findings.bytes >= sum(len(JPEGS[number % 6]) for number in range(20))


@pytest.mark.parametrize("storage", RECORDS)
@pytest.mark.parametrize("number", [0, 3, 7])
def test_verify_reports_truncated_image_by_record_and_byte(tmp_path: Path, storage: str, number: int):
    samples = [
        Sample(s.name, s.image[:-200] + bytes(200) if n == number else s.image, s.label)
        for n, s in enumerate(make_classify_samples(8))
    ]
    path = tmp_path / SHARDS[storage]
    spans = write_shard(path, make_encoder(storage), samples)
    findings = verify_path(path)
    (bad,) = findings.bad
    assert (bad.file, bad.record, bad.span) == (str(path), number, spans[number])
    assert bad.name == make_classify_samples(8)[number].name
    assert "JPEG" in bad.why
    assert bad.describe().startswith(f"{path}, record {number} at byte {spans[number].offset} ({bad.name}): ")
    assert findings.records == 8


@pytest.mark.parametrize("storage", ["recordio", "tfrecord"])
@pytest.mark.parametrize("number", [0, 3, 7])
def test_verify_continues_after_damaged_record_header(tmp_path: Path, storage: str, number: int):
    path = make_set(tmp_path / "set", storage) / SHARDS[storage]
    spans = list_spans(path, storage)
    flip_byte(path, spans[number].offset)
    findings = verify_path(tmp_path / "set")
    assert records(findings) == [(number, spans[number])]
    assert findings.records == 8


@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.parametrize("number", [0, 3, 7])
def test_verify_of_tar_reports_only_sample_with_damaged_header(tmp_path: Path, number: int, part: int):
    path = make_set(tmp_path / "set", "wds") / SHARDS["wds"]
    span = list_spans(path, "wds")[number]
    image = span.size - 4 * 512  # label and description have two blocks each
    flip_byte(path, span.offset + (0, image, image + 1024)[part])
    damaged = [span for _, span in records(verify_path(tmp_path / "set"))]
    assert damaged[0].offset == span.offset
    assert damaged[-1].end in (span.end, path.stat().st_size)  # including the end marker if no header follows
    assert all(before.end == after.offset for before, after in itertools.pairwise(damaged))


@pytest.mark.parametrize("storage", RECORDS)
@pytest.mark.parametrize("missing", [1, 4, 600])
def test_verify_reports_truncated_last_record(tmp_path: Path, storage: str, missing: int):
    path = make_set(tmp_path / "set", storage) / SHARDS[storage]
    spans = list_spans(path, storage)
    path.write_bytes(path.read_bytes()[: spans[-1].end - missing])
    findings = verify_path(tmp_path / "set")
    (first, span), *_ = records(findings)
    assert (first, span.offset) == (7, spans[7].offset)
    assert all(span.offset >= spans[7].offset for _, span in records(findings))
    (whole,) = [bad for bad in findings.bad if bad.record is None]
    assert "manifest.json says" in whole.why


@pytest.mark.parametrize("storage", RECORDS)
@pytest.mark.parametrize("kind", ["classify", "detect"])
def test_verify_reports_label_without_class(tmp_path: Path, storage: str, kind: str):
    root = make_set(tmp_path / "set", storage, kind, 6)
    manifest = read_manifest(root)
    assert manifest is not None
    write_manifest(root, manifest.model_copy(update={"classes": manifest.classes[:1]}))
    findings = verify_path(root)
    assert [bad.record for bad in findings.bad] == ([1, 3, 5] if kind == "classify" else [2, 5])
    assert {bad.why for bad in findings.bad} == {"invalid label 1: the data set has 1 classes"}


OUTSIDE = [Box(0, 0.5, 0.5, 1.5, 1.0), Box(0, -0.1, 0, 1, 1), Box(0, 0.5, 0.5, 0.5, 1.0), Box(0, 0.5, 0.9, 0.6, 0.8)]


@pytest.mark.parametrize("storage", RECORDS)
@pytest.mark.parametrize("box", OUTSIDE)
def test_verify_reports_box_outside_image(tmp_path: Path, storage: str, box: Box):
    samples = [Sample(f"{n}.jpg", JPEGS[n], boxes=(box,) if n == 1 else (), id=n) for n in range(3)]
    (bad,) = verify_path(make_set(tmp_path / "set", storage, "detect", samples)).bad
    assert (bad.record, bad.name) == (1, "1.jpg")
    assert bad.why.startswith("invalid box with edges ")


@pytest.mark.parametrize("storage", RECORDS)
def test_verify_reports_stale_index_but_accepts_records(tmp_path: Path, storage: str):
    root = make_set(tmp_path / "set", storage)
    index = root / INDEXES[storage]
    flip_byte(index, index.stat().st_size - 1)
    (bad,) = verify_path(root).bad
    assert bad.file == str(index)
    assert bad.why.startswith("CRC-32C ")
    (root / "manifest.json").unlink()
    index.write_bytes(b"not \xff an index\n")
    findings = verify_path(root)
    assert (findings.bad, findings.stale, findings.records) == ([], [index], 8)


@pytest.mark.parametrize("storage", RECORDS)
def test_verify_reports_missing_shard(tmp_path: Path, storage: str):
    root = make_set(tmp_path / "set", storage, val=3)
    (root / SHARDS[storage]).unlink()
    findings = verify_path(root)
    assert {bad.file for bad in findings.bad} == {str(root / SHARDS[storage])}
    assert all("cannot" in bad.why for bad in findings.bad)
    assert findings.records == 3


CHANGES: dict[str, Callable[[Path], object]] = {
    "added": lambda file: file.with_name("extra.png").write_bytes(make_png()),
    "removed": lambda file: file.unlink(),
    "renamed": lambda file: file.rename(file.with_name("other.jpg")),
    "another": lambda file: file.write_bytes(make_png()),
}


@pytest.mark.parametrize("how", CHANGES)
def test_verify_reports_changed_image_folder(tmp_path: Path, how: str):
    root = make_set(tmp_path / "set", "folder")
    CHANGES[how](root / "train/a/0002.jpg")
    (bad,) = verify_path(root).bad
    assert (bad.file, bad.record) == ("train", None)
    assert "images were added, removed or changed" in bad.why


@pytest.mark.parametrize("damage", ["x\n", "0\t0\n", "0\tnan\tx.jpg\n"])
def test_verify_reports_damaged_list_once(tmp_path: Path, damage: str):
    root = make_set(tmp_path / "set", "recordio", described=False)
    (root / "train.lst").write_text((root / "train.lst").read_text() + damage)
    (bad,) = verify_path(root).bad
    assert bad.record is None
    assert "train.lst, line 9" in bad.why


def test_verify_reports_files_that_are_not_images(tmp_path: Path):
    write_files(tmp_path, {"a/1.jpg": JPEGS[0], "a/2.jpg": JPEGS[1][:-100], "b/5.png": make_png()})
    write_files(tmp_path, {"b/3.jpg": b"", "b/4.png": b"words"})
    findings = verify_path(tmp_path)
    assert findings.records == 5
    assert [bad.file.removeprefix(f"{tmp_path}/") for bad in findings.bad] == ["a/2.jpg", "b/3.jpg", "b/4.png"]
    assert [bad.record for bad in findings.bad] == [None] * 3
    assert findings.bad[2].describe().startswith(f"{tmp_path}/b/4.png: not an image")
