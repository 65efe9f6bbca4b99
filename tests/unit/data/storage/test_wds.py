"""WebDataset: members and keys that webdataset and DALI can read; damaged members give a sample or a place."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from damage import damaged, quick, read_damaged
from made_archives import make_tar
from small_sets import BOXES, JPEGS, expect_place, make_png, to_classify, to_detect, write_shard
from trainstone.data.sample import Box, ClassName, Sample
from trainstone.data.storage.wds import WdsEncoder, WdsShard, find_count, make_key
from trainstone.errors import DataError
from trainstone.formats.wds import END, member, read_index

NAMES = [
    "a/plain.jpg",
    "a/with space.jpg",
    "a/two.dots.jpg",
    "a/ünï-日本.jpg",
    "a/50%20.jpg",
    "dot.ted/x.JPEG",
    "a/no-utf8-\udcff.jpg",
    "a/line\nbreak.jpg",
    "no-folder",
    "a/.hidden",
]


def read_all(path: Path) -> list[Sample]:
    shard = WdsShard(path)
    try:
        return [shard.read(int(offset)) for offset in shard.offsets()]
    finally:
        shard.close()


def read_first(path: Path) -> Sample:
    return read_all(path)[0]


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    path.write_bytes(b"".join(member(name, data) for name, data in files.items()) + END)
    return path


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("boxes", [(), BOXES])
def test_a_classified_picture_comes_back(tmp_path: Path, name: str, boxes: tuple[Box, ...]):
    samples = [Sample("first.jpg", JPEGS[0], 0), Sample(name, JPEGS[1], 1, boxes), Sample("last.png", make_png(), 0)]
    write_shard(tmp_path / "train.tar", WdsEncoder("classify"), samples)
    assert read_all(tmp_path / "train.tar") == samples


def test_what_has_no_class_comes_back(tmp_path: Path):
    samples = [
        Sample("none.jpg", JPEGS[0]),
        Sample("vector.jpg", JPEGS[1], values=(1.0, -2.5)),
        Sample("long/" * 40 + "x.jpg", JPEGS[2], 3),
        *to_detect(4),
    ]
    write_shard(tmp_path / "train.tar", WdsEncoder("classify"), samples)
    assert read_all(tmp_path / "train.tar") == samples


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("n01/n01_1.JPEG", "n01/n01_1"),
        ("a.jpg", "a"),
        ("a.png", "a%2epng"),  # a.jpg and a.png are two samples
        ("a b/c d.e.jpg", "a%20b/c%20d%2ee"),
        ("dot.ted/a.jpg", "dot.ted/a"),
        ("100%.jpg", "100%25"),
        (".jpg", "%2ejpg"),
        ("a\u2003b.jpg", "a%e2%80%83b"),
    ],
)
def test_keys_have_no_dots_and_no_spaces(name: str, key: str):
    assert make_key(name) == key


def test_no_two_names_have_one_key():
    names = ["a.jpg", "a.png", "a%2epng.jpg", "c%2epng", "c.png", "a b.jpg", "a%20b.jpg", "a.b.jpg", "a%2eb.jpg"]
    assert len({make_key(name) for name in names}) == len(names)


def test_members_are_picture_label_and_the_rest(tmp_path: Path):
    samples = [Sample("a/x.jpg", JPEGS[0], 7, BOXES[:1]), Sample("y.png", make_png(), id=5, values=(0.5,))]
    write_shard(tmp_path / "train.tar", WdsEncoder("classify"), samples)
    with tarfile.open(tmp_path / "train.tar") as tar:
        found = {info.name: tar.extractfile(info).read() for info in tar}  # type: ignore[union-attr]
    assert list(found) == ["a/x.jpg", "a/x.cls", "a/x.json", "y%2epng.png", "y%2epng.json"]
    assert found["a/x.jpg"] == JPEGS[0]
    assert found["a/x.cls"] == b"7"
    assert json.loads(found["a/x.json"]) == {"name": "a/x.jpg", "boxes": [[0, 0.25, 0.125, 0.75, 0.5, 0]]}
    assert json.loads(found["y%2epng.json"]) == {"name": "y.png", "id": 5, "values": [0.5]}


def test_the_index_is_that_of_dali(tmp_path: Path):
    samples = [Sample("a/x.jpg", b"\xff\xd8" + JPEGS[0][2:], 7), Sample("b/long name.jpg", JPEGS[1], 1)]
    spans = write_shard(tmp_path / "train.tar", WdsEncoder("classify"), samples)
    head, first, second = (tmp_path / "train.idx").read_text().splitlines()
    assert head == "v1.2 2"
    after = 512 + len(JPEGS[0]) + -len(JPEGS[0]) % 512 + 512
    assert first == f"jpg 512 {len(JPEGS[0])} a/x.jpg cls {after} 1 a/x.cls json {after + 1024} 18 a/x.json"
    assert second.startswith(f"jpg {spans[1].offset + 512} {len(JPEGS[1])} b/long%20name.jpg cls ")
    shard = WdsShard(tmp_path / "train.tar")
    assert list(shard.index_files()) == [(tmp_path / "train.idx", (tmp_path / "train.idx").read_text())]
    shard.close()
    assert [sample.span.offset for sample in read_index(tmp_path / "train.idx")] == [span.offset for span in spans]


def test_a_tar_that_no_index_can_describe_is_read_all_the_same(tmp_path: Path):
    path = write_tar(tmp_path / "train.tar", {"a b.jpg": JPEGS[0], "a b.cls": b"1"})
    (tmp_path / "train.idx").write_text("something")
    assert read_first(path) == Sample("a b.jpg", JPEGS[0], 1)
    shard = WdsShard(path)
    assert list(shard.index_files()) == []
    shard.close()


@pytest.mark.parametrize(
    ("files", "sample"),
    [
        ({"x.jpeg": JPEGS[0], "x.cls": b"3\n"}, Sample("x.jpeg", JPEGS[0], 3)),
        ({"x.cls": b"3", "x.PNG": make_png()}, Sample("x.png", make_png(), 3)),
        ({"x.jpg": JPEGS[0], "x.label.txt": b"4"}, Sample("x.jpg", JPEGS[0], 4)),
        ({"x.jpg": JPEGS[0], "x.json": b'{"label": 5, "id": 9}'}, Sample("x.jpg", JPEGS[0], 5, id=9)),
        ({"x.jpg": JPEGS[0], "x.json": b'{"label": "cat", "id": "abc"}'}, Sample("x.jpg", JPEGS[0])),
        ({"x.jpg": JPEGS[0], "x.json": b'{"label": true, "id": -1}'}, Sample("x.jpg", JPEGS[0])),
        ({"x.jpg": JPEGS[0], "x.seg.png": make_png()}, Sample("x.jpg", JPEGS[0])),
    ],
)
def test_tars_of_others_are_read(tmp_path: Path, files: dict[str, bytes], sample: Sample):
    (tmp_path / "x.tar").write_bytes(make_tar(files))
    assert read_first(tmp_path / "x.tar") == sample


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"x.txt": b"words"}, "no picture among txt"),
        ({"x.jpg": JPEGS[0], "x.cls": b"cat"}, "label b'cat' is no class number"),
        ({"x.jpg": JPEGS[0], "x.cls": b"9" * 5000}, "is no class number"),
        ({"x.jpg": JPEGS[0], "x.json": b"{"}, "json is damaged"),
        ({"x.jpg": JPEGS[0], "x.json": b"[" * 100_000}, "json is damaged"),
        ({"x.jpg": JPEGS[0], "x.json": b"[]"}, "json is no table"),
        ({"x.jpg": JPEGS[0], "x.json": b'{"boxes": 5}'}, "json does not describe a picture"),
        ({"x.jpg": JPEGS[0], "x.json": b'{"boxes": [{"left": 1}]}'}, "json does not describe a picture"),
        ({"x.jpg": JPEGS[0], "x.json": b'{"boxes": [[1, 2]]}'}, "json does not describe a picture"),
        ({"x.jpg": JPEGS[0], "x.json": b'{"boxes": [[1e999, 0, 0, 1, 1]]}'}, "json does not describe a picture"),
        ({"x.jpg": JPEGS[0], "x.json": b'{"values": [null]}'}, "json does not describe a picture"),
        ({"x.jpg": JPEGS[0], "x.json": b'{"name": "\\ud800.jpg"}'}, "json does not describe a picture"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(tmp_path: Path, files: dict[str, bytes], told: str):
    path = write_tar(tmp_path / "x.tar", {"good.jpg": JPEGS[0], **files})
    shard = WdsShard(path)
    with pytest.raises(DataError) as caught:
        shard.read(int(shard.offsets()[1]))
    assert f"{path}, x at byte {shard.offsets()[1]}: " in caught.value.message
    assert told in caught.value.message
    shard.close()


def test_a_glance_tells_what_reading_would(tmp_path: Path):
    by_json = {"c/x.jpg": JPEGS[0], "c/x.json": b'{"label": 5}'}
    path = write_tar(tmp_path / "x.tar", {"a/x.jpg": JPEGS[0], "a/x.cls": b"3", **by_json, "d.jpg": JPEGS[1]})
    shard = WdsShard(path)
    assert [list(shard.glance(int(offset))) for offset in shard.offsets()] == [
        [(3, ClassName("a"))],
        [(5, ClassName("c"))],
        [],
    ]
    shard.close()


def test_a_glance_tells_the_classes_of_boxes(tmp_path: Path):
    write_shard(tmp_path / "train.tar", WdsEncoder("classify"), to_detect(3))
    shard = WdsShard(tmp_path / "train.tar")
    told = [[label for label, _ in shard.glance(int(offset))] for offset in shard.offsets()]
    assert told == [[], [0], [0, 1]]
    shard.close()


@pytest.mark.parametrize(
    ("value", "count"),
    [(0, 0), (7, 7), (True, None), (-1, None), (1.0, None), ("7", None), (None, None), (1 << 63, None)],
)
def test_whole_numbers_in_other_peoples_json(value: Any, count: int | None):
    assert find_count({"id": value}, "id") == count
    assert find_count({}, "id") is None


ABOUT = b'{"name":"a/x.jpg","id":7,"boxes":[[0,0.25,0.125,0.75,0.5,0],[1,0.1,0.2,0.3,0.4,1]],"values":[0.5,1]}'


@quick
@given(about=damaged(ABOUT), label=st.one_of(st.binary(max_size=6), damaged(b"123")), has_label=st.booleans())
def test_damaged_members_give_a_sample_or_a_place(tmp_path: Path, about: bytes, label: bytes, has_label: bool):
    files = {"x.jpg": JPEGS[0][:100], **({"x.cls": label} if has_label else {}), "x.json": about}
    path = write_tar(tmp_path / "x.tar", {"a.jpg": JPEGS[1], **files})
    shard = WdsShard(path)
    offset = int(shard.offsets()[1])
    for ask in (shard.read, shard.glance):
        found = expect_place(ask, offset, "x.tar")
        assert isinstance(found, Sample | list | None)
        if isinstance(found, Sample):
            found.name.encode("utf-8", "surrogateescape")
    shard.close()


SOUND = b"".join(member(f"{n}.{e}", d) for n in "ab" for e, d in (("jpg", JPEGS[0][:90]), ("cls", b"3"))) + END


@quick
@given(data=damaged(SOUND))
def test_damaged_tars_give_samples_or_a_place(tmp_path: Path, data: bytes):
    read_damaged(tmp_path / "x.tar", data, read_all)


def test_classified_samples_keep_their_order(tmp_path: Path):
    write_shard(tmp_path / "train.tar", WdsEncoder("classify"), to_classify(5))
    assert read_all(tmp_path / "train.tar") == to_classify(5)


def test_the_sample_before_a_damaged_place_is_read_if_it_is_whole(tmp_path: Path):
    spans = write_shard(tmp_path / "train.tar", WdsEncoder("classify"), to_classify(4))
    data = bytearray((tmp_path / "train.tar").read_bytes())
    data[spans[2].offset] ^= 0xFF
    (tmp_path / "train.tar").write_bytes(data)
    shard = WdsShard(tmp_path / "train.tar")
    walk = shard.scan()
    assert [next(walk), next(walk)] == spans[:2]
    with pytest.raises(DataError, match=f"byte {spans[2].offset}: no header"):
        next(walk)
    assert shard.read(spans[1].offset) == to_classify(4)[1]
    with pytest.raises(DataError, match=f"byte {spans[2].offset}: no header"):
        shard.read(spans[2].offset)
    shard.close()


def test_a_sample_that_lacks_what_the_others_have_is_not_told_before_a_damaged_place(tmp_path: Path):
    spans = write_shard(tmp_path / "train.tar", WdsEncoder("classify"), to_classify(4))
    data = bytearray((tmp_path / "train.tar").read_bytes())
    data[spans[2].end - 1024] ^= 0xFF  # the header of its last member
    (tmp_path / "train.tar").write_bytes(data)
    shard = WdsShard(tmp_path / "train.tar")
    walk = shard.scan()
    assert [next(walk), next(walk)] == spans[:2]
    with pytest.raises(DataError, match=f"byte {spans[2].end - 1024}: no header"):
        next(walk)
    shard.close()


def test_no_sample_starts_at_the_end_mark(tmp_path: Path):
    spans = write_shard(tmp_path / "train.tar", WdsEncoder("classify"), to_classify(1))
    shard = WdsShard(tmp_path / "train.tar")
    with pytest.raises(DataError, match=f"byte {spans[0].end}: no sample starts there"):
        shard.read(spans[0].end)
    shard.close()
