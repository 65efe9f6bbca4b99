"""WebDataset: members and keys that webdataset and DALI can read; tars of others."""

import json
import tarfile
from pathlib import Path

import pytest

from made_archives import make_tar
from small_sets import BOXES, JPEGS, flip, make_png, read_shard, to_classify, write_shard
from trainstone.data.sample import ClassName, Sample
from trainstone.data.storage.wds import WdsEncoder, WdsShard, make_key
from trainstone.errors import DataError


def read_first(path: Path) -> Sample:
    return read_shard(WdsShard(path))[0]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("n01/n01_1.JPEG", "n01/n01_1"),
        ("a.jpg", "a"),
        ("a.png", "a%2epng"),  # a.jpg and a.png are two samples
        ("a%2epng.jpg", "a%252epng"),
        ("a b/c d.e.jpg", "a%20b/c%20d%2ee"),
        ("dot.ted/a.jpg", "dot.ted/a"),
        ("100%.jpg", "100%25"),
        (".jpg", "%2ejpg"),
        ("a\u2003b.jpg", "a%e2%80%83b"),
    ],
)
def test_keys_have_no_dots_and_no_spaces(name: str, key: str):
    assert make_key(name) == key


def test_members_are_picture_label_and_the_rest(tmp_path: Path):
    samples = [Sample("a/x.jpg", JPEGS[0], 7, BOXES[:1]), Sample("y.png", make_png(), id=5, values=(0.5,))]
    write_shard(tmp_path / "train.tar", WdsEncoder("classify"), samples)
    with tarfile.open(tmp_path / "train.tar") as tar:
        found = {info.name: tar.extractfile(info).read() for info in tar}  # type: ignore[union-attr]
    assert list(found) == ["a/x.jpg", "a/x.cls", "a/x.json", "y%2epng.png", "y%2epng.json"]
    assert (found["a/x.jpg"], found["a/x.cls"]) == (JPEGS[0], b"7")
    assert json.loads(found["a/x.json"]) == {"name": "a/x.jpg", "boxes": [[0, 0.25, 0.125, 0.75, 0.5, 0]]}
    assert json.loads(found["y%2epng.json"]) == {"name": "y.png", "id": 5, "values": [0.5]}


def test_the_index_is_that_of_dali(tmp_path: Path):
    samples = [Sample("a/x.jpg", JPEGS[0], 7), Sample("b/long name.jpg", JPEGS[1], 1)]
    spans = write_shard(tmp_path / "train.tar", WdsEncoder("classify"), samples)
    head, first, second = (tmp_path / "train.idx").read_text().splitlines()
    assert head == "v1.2 2"
    after = 512 + len(JPEGS[0]) + -len(JPEGS[0]) % 512 + 512
    assert first == f"jpg 512 {len(JPEGS[0])} a/x.jpg cls {after} 1 a/x.cls json {after + 1024} 18 a/x.json"
    assert second.startswith(f"jpg {spans[1].offset + 512} {len(JPEGS[1])} b/long%20name.jpg cls ")


def test_a_tar_that_no_index_can_describe_is_read_all_the_same(tmp_path: Path):
    (tmp_path / "train.tar").write_bytes(make_tar({"a b.jpg": JPEGS[0], "a b.cls": b"1"}))
    (tmp_path / "train.idx").write_text("something")
    assert read_first(tmp_path / "train.tar") == Sample("a b.jpg", JPEGS[0], 1)
    shard = WdsShard(tmp_path / "train.tar")
    assert list(shard.index_files()) == []
    shard.close()


@pytest.mark.parametrize(
    ("files", "sample"),
    [
        ({"x.jpeg": JPEGS[0], "x.cls": b"3\n"}, Sample("x.jpeg", JPEGS[0], 3)),
        ({"x.cls": b"3", "x.PNG": make_png()}, Sample("x.png", make_png(), 3)),
        ({"x.jpg": JPEGS[0], "x.label.txt": b"4"}, Sample("x.jpg", JPEGS[0], 4)),
        ({"c/x.jpg": JPEGS[0], "c/x.json": b'{"label": 5, "id": 9}'}, Sample("c/x.jpg", JPEGS[0], 5, id=9)),
        ({"x.jpg": JPEGS[0], "x.json": b'{"label": "cat", "id": "abc"}'}, Sample("x.jpg", JPEGS[0])),
        ({"x.jpg": JPEGS[0], "x.json": b'{"label": true, "id": -1}'}, Sample("x.jpg", JPEGS[0])),
        ({"x.jpg": JPEGS[0], "x.json": b'{"label": 1.0, "id": 9223372036854775808}'}, Sample("x.jpg", JPEGS[0])),
        ({"x.jpg": JPEGS[0], "x.seg.png": make_png()}, Sample("x.jpg", JPEGS[0])),
    ],
)
def test_tars_of_others_are_read(tmp_path: Path, files: dict[str, bytes], sample: Sample):
    (tmp_path / "x.tar").write_bytes(make_tar(files))
    assert read_first(tmp_path / "x.tar") == sample
    shard = WdsShard(tmp_path / "x.tar")
    folder = sample.name.rpartition("/")[0]
    assert shard.glance(0).labels == ([] if sample.label is None else [(sample.label, ClassName(folder))])
    shard.close()


def test_a_sample_that_lacks_what_the_others_have_is_not_told_before_a_damaged_place(tmp_path: Path):
    spans = write_shard(tmp_path / "train.tar", WdsEncoder("classify"), to_classify(4))
    flip(tmp_path / "train.tar", spans[2].end - 1024)  # the header of its last member
    shard = WdsShard(tmp_path / "train.tar")
    walk = shard.file.spans()
    assert [next(walk), next(walk)] == spans[:2]
    with pytest.raises(DataError, match=f"byte {spans[2].end - 1024}: "):
        next(walk)
    shard.close()
