"""RecordIO: im2rec's bytes and texts, ImageDetIter's vectors."""

import struct
from pathlib import Path

import pytest

from small_sets import BOXES, JPEGS, SIDE, read_shard, to_classify, write_shard
from trainstone.data.picture.look import look
from trainstone.data.sample import Box, ClassName, Sample
from trainstone.data.storage.recordio import RecordIOEncoder, RecordIOShard, is_detection
from trainstone.data.storage.records import Shard
from trainstone.errors import DataError


def test_bytes_and_texts_are_those_of_im2rec(tmp_path: Path):
    samples = [*to_classify(2), Sample("a/boxed.jpg", JPEGS[2], 0, BOXES[:1]), Sample("x.jpg", JPEGS[0])]
    spans = write_shard(tmp_path / "train.rec", RecordIOEncoder("classify"), samples)
    data = (tmp_path / "train.rec").read_bytes()
    length = 24 + len(JPEGS[0])
    head = struct.pack("<II", 0xCED7230A, length) + struct.pack("<IfQQ", 0, 0.0, 0, 0)
    assert data[: spans[0].size] == head + JPEGS[0] + bytes(-length % 4)
    assert data[spans[1].offset + 8 : spans[1].offset + 32] == struct.pack("<IfQQ", 0, 1.0, 1, 0)
    assert (tmp_path / "train.lst").read_text() == (
        "0\t0.000000\ta/0000.jpg\n1\t1.000000\tb/0001.jpg\n2\t0.000000\ta/boxed.jpg\n3\t-1.000000\tx.jpg\n"
    )
    assert (tmp_path / "train.idx").read_text() == "".join(f"{n}\t{span.offset}\n" for n, span in enumerate(spans))
    assert (tmp_path / "train-boxes.csv").read_text() == "a/boxed.jpg,0.2500,0.1250,0.7500,0.5000\n"
    assert read_shard(RecordIOShard(tmp_path / "train.rec"))[3].values == (-1.0,)


def test_a_detections_vector_is_that_of_imagedetiter(tmp_path: Path):
    boxes = (Box(7, 0.25, 0.125, 0.75, 0.5, crowd=True),)
    samples = [Sample("x.jpg", JPEGS[0], boxes=boxes, id=42), Sample("y.jpg", JPEGS[0], id=3)]
    spans = write_shard(tmp_path / "train.rec", RecordIOEncoder("detect"), samples)
    data = (tmp_path / "train.rec").read_bytes()
    assert struct.unpack_from("<IfQQ", data, 8) == (10, 0.0, 42, 0)
    assert struct.unpack_from("<10f", data, 32) == (4, 6, SIDE, SIDE, 7, 0.25, 0.125, 0.75, 0.5, 1)
    assert data[72:].startswith(JPEGS[0])
    assert struct.unpack_from("<4f", data, spans[1].offset + 32) == (4, 6, SIDE, SIDE)
    assert (tmp_path / "train.idx").read_text() == f"42\t0\n3\t{spans[1].offset}\n"
    assert (tmp_path / "train.lst").read_text().startswith("42\t4.000000\t6.000000\t32.000000\t32.000000\t7.000000\t")


def test_shards_have_their_own_files_beside_them():
    shard = Shard("train", "train_3.rec", 0, 1)
    assert RecordIOEncoder("classify").sidecars(shard) == ("train_3.idx", "train_3.lst", "train_3-boxes.csv")
    with pytest.raises(DataError, match="without tabs and line breaks"):
        RecordIOEncoder("classify").encode(Sample("a\tb.jpg", JPEGS[0], 1), 0, look(JPEGS[0]))


def test_order_is_that_of_the_file_and_names_without_a_list_are_numbers(tmp_path: Path):
    path = tmp_path / "train.rec"
    write_shard(path, RecordIOEncoder("classify"), to_classify(4))
    lines = (tmp_path / "train.idx").read_text().splitlines()
    (tmp_path / "train.idx").write_text("\n".join(reversed(lines)))
    assert read_shard(RecordIOShard(path)) == to_classify(4)
    (tmp_path / "train.lst").unlink()
    assert [sample.name for sample in read_shard(RecordIOShard(path))] == [
        f"0000000{number}.jpg" for number in range(4)
    ]
    assert read_shard(RecordIOShard(path), "glance")[0].labels == [(0, ClassName(""))]


@pytest.mark.parametrize(
    ("labels", "is_one"),
    [
        ((4, 6, 32, 32), True),
        ((2, 5, 0, 0.1, 0.1, 0.2, 0.2), True),
        ((4, 5, 1, 1, 0, 0.1, 0.1, 0.2, 0.2), True),
        ((4, 6, 32, 32, 1), False),
        ((1, 5), False),
        ((9, 5), False),
        ((2, 4, 1, 1, 1, 1), False),
        ((2.5, 6), False),
        ((float("nan"), float("inf")), False),
        ((3,), False),
    ],
)
def test_which_vectors_are_detections(labels: tuple[float, ...], is_one: bool):
    assert is_detection(tuple(float(label) for label in labels)) is is_one
