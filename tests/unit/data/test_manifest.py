"""manifest.json: read back as written, refused with a place where damaged; files are compared with it."""

import json
from pathlib import Path

import pytest
from hypothesis import given

from damage import damaged, quick, read_damaged
from small_sets import JPEGS, Listed, make_set, write_set
from trainstone.data.manifest import (
    NAME,
    FileFacts,
    Manifest,
    ShardFacts,
    SplitFacts,
    check_files,
    read_manifest,
    write_manifest,
)
from trainstone.data.recognise import open_dataset
from trainstone.data.sample import ClassName, DataSet, Sample, Split
from trainstone.errors import DataError

FACTS = ShardFacts(
    file="train.rec",
    bytes=9,
    crc32c="e3069283",
    records=1,
    sidecars=(FileFacts(file="idx/train.idx", bytes=4, crc32c="00000000"),),
    repaired=(("a/1.jpg", "CMYK"),),
    skipped=(("b/\udcff.jpg", "no picture"),),
)
MANIFEST = Manifest(
    dataset="imagenet",
    kind="classify",
    storage="recordio",
    first_label=0,
    classes=(("n01", "fish, ü"), ("bad \udcff", "")),
    treatment={"repair": True, "resize": None},
    plan="abc",
    splits=(SplitFacts(name="train", records=1, bytes=9, shards=(FACTS,)),),
)


def with_sidecar(name: str) -> dict:
    """The split with another name for the file beside its shard."""
    split = MANIFEST.model_dump(mode="json")["splits"][0]
    split["shards"][0]["sidecars"][0]["file"] = name
    return split


def test_manifest_is_read_as_it_was_written(tmp_path: Path):
    assert read_manifest(tmp_path) is None
    write_manifest(tmp_path, MANIFEST)
    assert read_manifest(tmp_path) == MANIFEST
    assert MANIFEST.shards == [FACTS]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"format": 2}, "format"),
        ({"storage": "zip"}, "storage"),
        ({"classes": [["a"]]}, "classes.0"),
        ({"extra": 1}, "extra"),
        ({"splits": [{"name": "train", "records": -1, "bytes": 1, "shards": []}]}, "splits.0.records"),
        *(({"splits": [with_sidecar(name)]}, "splits.0.shards.0.sidecars.0.file")
          for name in ("../train.rec", "/etc/passwd", "", "a/../../b", "x\0")),
        *((data, "") for data in (b"", b"{", b"[]", b"[" * 100_000, b'{"format": ' + b"9" * 5000 + b"}", b"\xff")),
    ],
)  # fmt: skip
def test_read_manifest_names_the_damaged_place(tmp_path: Path, change: dict | bytes, told: str):
    if isinstance(change, dict):
        change = json.dumps({**MANIFEST.model_dump(mode="json"), **change}).encode()
    (tmp_path / NAME).write_bytes(change)
    with pytest.raises(DataError) as caught:
        read_manifest(tmp_path)
    assert f"{tmp_path / NAME}" in caught.value.message
    assert told in caught.value.message


@quick
@given(data=damaged(json.dumps(MANIFEST.model_dump(mode="json")).encode()))
def test_a_damaged_manifest_is_one_or_is_told(tmp_path: Path, data: bytes):
    read_damaged(tmp_path / NAME, data, lambda path: read_manifest(path.parent), str(tmp_path))


def test_a_set_with_names_that_are_no_utf8_can_be_opened_again(tmp_path: Path):
    samples = [Sample("x\udcff.jpg", JPEGS[0], 0)]
    found = DataSet("classify", "", [ClassName("a\udcff", "t\udcfe")], [Split("train", Listed(samples))])
    again = open_dataset(write_set(tmp_path / "set", found, "wds"))
    assert list(again.classes) == list(found.classes)
    assert again.splits[0].source.read(0) == samples[0]


def test_check_files_compares_lengths_and_needs_every_file(tmp_path: Path):
    for storage, name in (("recordio", "train.lst"), ("folder", "val")):
        root = make_set(tmp_path / storage, storage, val=2)
        manifest = read_manifest(root)
        assert manifest is not None
        check_files(root, manifest)
        if storage == "recordio":
            (root / name).write_text("x")
            with pytest.raises(DataError, match=rf"{name} has 1 bytes"):
                check_files(root, manifest)
        (root / name).rename(root / "other")
        with pytest.raises(DataError, match=rf"{name} is missing"):
            check_files(root, manifest)
