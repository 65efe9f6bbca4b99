"""manifest.json: read back as written, refused with a place where damaged; files are compared with it."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_it_is_read_as_it_was_written(tmp_path: Path):
    write_manifest(tmp_path, MANIFEST)
    assert read_manifest(tmp_path) == MANIFEST
    assert MANIFEST.shards == [FACTS]


def test_a_folder_without_has_none(tmp_path: Path):
    assert read_manifest(tmp_path) is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"format": 2}, "has format 2; this trainstone reads up to 1"),
        ({"format": 0}, "is damaged at format"),
        ({"kind": "other"}, "is damaged at kind"),
        ({"storage": "zip"}, "is damaged at storage"),
        ({"first_label": 2}, "is damaged at first_label"),
        ({"classes": [["a"]]}, "is damaged at classes.0"),
        ({"classes": "ab"}, "is damaged at classes"),
        ({"extra": 1}, "is damaged at extra"),
        ({"splits": [{"name": "train", "records": -1, "bytes": 1, "shards": []}]}, "is damaged at splits.0.records"),
        *(({"splits": [with_sidecar(name)]}, "is damaged at splits.0.shards.0.sidecars.0.file")
          for name in ("../train.rec", "/etc/passwd", "", "a/../../b", "x\0")),
        *((data, "") for data in (b"", b"{", b"[]", b"7", b"[" * 100_000, b'{"format": ' + b"9" * 5000 + b"}")),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told_with_its_place(tmp_path: Path, change: dict | bytes, told: str):
    if isinstance(change, dict):
        change = json.dumps({**MANIFEST.model_dump(mode="json"), **change}).encode()
    (tmp_path / NAME).write_bytes(change)
    with pytest.raises(DataError) as caught:
        read_manifest(tmp_path)
    assert f"{tmp_path / NAME}" in caught.value.message
    assert told in caught.value.message


def test_bytes_that_are_no_text_and_a_folder_are_refused(tmp_path: Path):
    (tmp_path / NAME).write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="cannot read"):
        read_manifest(tmp_path)
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).mkdir()
    with pytest.raises(DataError, match="cannot read"):
        read_manifest(tmp_path)


@quick
@given(data=damaged(json.dumps(MANIFEST.model_dump(mode="json")).encode()))
def test_a_damaged_manifest_is_one_or_is_told(tmp_path: Path, data: bytes):
    read_damaged(tmp_path / NAME, data, lambda path: read_manifest(path.parent), str(tmp_path))


@quick
@given(st.data())
def test_other_values_are_a_manifest_or_are_told(tmp_path: Path, data: st.DataObject):
    document = MANIFEST.model_dump(mode="json")
    place = data.draw(st.sampled_from([document, document["splits"][0], document["splits"][0]["shards"][0]]))
    leaf = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5))
    values = st.one_of(leaf, st.lists(leaf, max_size=2), st.dictionaries(st.text(max_size=3), leaf, max_size=2))
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(values)
    content = json.dumps(document).encode()
    read_damaged(tmp_path / NAME, content, lambda path: read_manifest(path.parent), str(tmp_path))


def test_a_set_with_names_that_are_no_utf8_can_be_opened_again(tmp_path: Path):
    samples = [Sample("x\udcff.jpg", JPEGS[0], 0)]
    found = DataSet("classify", "", [ClassName("a\udcff", "t\udcfe")], [Split("train", Listed(samples))])
    again = open_dataset(write_set(tmp_path / "set", found, "wds"))
    assert list(again.classes) == list(found.classes)
    assert again.splits[0].source.read(0) == samples[0]


def test_lengths_of_files_are_compared(tmp_path: Path):
    root = make_set(tmp_path / "set", "recordio")
    manifest = read_manifest(root)
    assert manifest is not None
    check_files(root, manifest)
    text = (root / "train.lst").read_text()
    (root / "train.lst").write_text(text + "x")
    with pytest.raises(DataError, match=rf"train\.lst has {len(text) + 1} bytes; manifest\.json says {len(text)}"):
        check_files(root, manifest)
    (root / "train.lst").unlink()
    with pytest.raises(DataError, match=r"train\.lst is missing, though manifest\.json names it"):
        check_files(root, manifest)


def test_a_folder_that_is_gone_is_told(tmp_path: Path):
    root = make_set(tmp_path / "set", "folder", val=2)
    manifest = read_manifest(root)
    assert manifest is not None
    check_files(root, manifest)
    (root / "val").rename(root / "other")
    with pytest.raises(DataError, match=r"val is missing"):
        check_files(root, manifest)
