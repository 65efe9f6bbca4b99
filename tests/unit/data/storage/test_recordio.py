"""RecordIO: im2rec's bytes and texts, ImageDetIter's vectors; damaged payloads give a sample or a place."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from damage import damaged, quick, real_data
from small_sets import BOXES, JPEGS, SIDE, expect_place, make_png, to_classify, to_detect, write_shard
from trainstone.data.sample import Box, ClassName, Sample
from trainstone.data.storage.encoding import Shard
from trainstone.data.storage.recordio import RecordIOEncoder, RecordIOShard, is_detection
from trainstone.errors import DataError
from trainstone.formats.recordio import MAGIC_BYTES, ImageRecord, pack, pack_image

NAMES = [
    "a/plain.jpg",
    "a/with space.jpg",
    "a/two.dots.jpg",
    "a/ünï-日本.jpg",
    "a/50%20.jpg",
    'a/quo"te,comma.jpg',
    "a/no-utf8-\udcff.jpg",
    "no-folder",
    "dot.ted/no-extension",
]


def read_all(path: Path) -> list[Sample]:
    shard = RecordIOShard(path)
    try:
        return [shard.read(int(offset)) for offset in shard.offsets()]
    finally:
        shard.close()


def glance_all(path: Path) -> list[list[tuple[int, ClassName]]]:
    shard = RecordIOShard(path)
    try:
        return [list(shard.glance(int(offset))) for offset in shard.offsets()]
    finally:
        shard.close()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("boxes", [(), (Box(1, 0.25, 0.125, 0.75, 0.5), Box(1, 0.1, 0.2, 0.3, 0.4))])
def test_a_classified_picture_comes_back(tmp_path: Path, name: str, boxes: tuple[Box, ...]):
    samples = [Sample("first.jpg", JPEGS[0], 0), Sample(name, JPEGS[1], 1, boxes), Sample("last.png", make_png(), 0)]
    write_shard(tmp_path / "train.rec", RecordIOEncoder("classify"), samples)
    assert read_all(tmp_path / "train.rec") == samples


def test_labels_that_are_no_class_come_back(tmp_path: Path):
    samples = [
        Sample("vector.jpg", JPEGS[0], values=(1.0, -2.5, 3.0)),
        Sample("fraction.jpg", JPEGS[1], values=(0.5,)),
        Sample("short.jpg", JPEGS[2], values=(4.0, 0.25)),
    ]
    write_shard(tmp_path / "train.rec", RecordIOEncoder("classify"), samples)
    assert read_all(tmp_path / "train.rec") == samples
    assert glance_all(tmp_path / "train.rec") == [[], [], []]


def test_no_class_is_written_as_im2rec_writes_it(tmp_path: Path):
    write_shard(tmp_path / "train.rec", RecordIOEncoder("classify"), [Sample("x.jpg", JPEGS[0])])
    assert (tmp_path / "train.lst").read_text() == "0\t-1.000000\tx.jpg\n"
    (sample,) = read_all(tmp_path / "train.rec")
    assert (sample.label, sample.values) == (None, (-1.0,))


def test_detections_come_back(tmp_path: Path):
    samples = [*to_detect(6), Sample("ünï %.dots.png", make_png(), boxes=BOXES, id=(1 << 63) - 1)]
    write_shard(tmp_path / "train.rec", RecordIOEncoder("detect"), samples)
    assert read_all(tmp_path / "train.rec") == samples
    assert glance_all(tmp_path / "train.rec")[2] == [(0, ClassName("")), (1, ClassName(""))]


def test_bytes_are_those_of_im2rec(tmp_path: Path):
    (first, second) = write_shard(tmp_path / "train.rec", RecordIOEncoder("classify"), to_classify(2))
    data = (tmp_path / "train.rec").read_bytes()
    length = 24 + len(JPEGS[0])
    head = struct.pack("<II", 0xCED7230A, length) + struct.pack("<IfQQ", 0, 0.0, 0, 0)
    assert data[: first.size] == head + JPEGS[0] + bytes(-length % 4)
    assert data[second.offset + 8 : second.offset + 32] == struct.pack("<IfQQ", 0, 1.0, 1, 0)


def test_texts_beside_it_are_those_of_im2rec(tmp_path: Path):
    samples = [*to_classify(2), Sample("a/boxed.jpg", JPEGS[2], 0, BOXES[:1])]
    spans = write_shard(tmp_path / "train.rec", RecordIOEncoder("classify"), samples)
    assert (tmp_path / "train.lst").read_text() == (
        "0\t0.000000\ta/0000.jpg\n1\t1.000000\tb/0001.jpg\n2\t0.000000\ta/boxed.jpg\n"
    )
    assert (tmp_path / "train.idx").read_text() == "".join(f"{n}\t{span.offset}\n" for n, span in enumerate(spans))
    assert (tmp_path / "train-boxes.csv").read_text() == "a/boxed.jpg,0.2500,0.1250,0.7500,0.5000\n"


def test_a_detections_vector_is_that_of_imagedetiter(tmp_path: Path):
    sample = Sample("x.jpg", JPEGS[0], boxes=(Box(7, 0.25, 0.125, 0.75, 0.5, crowd=True),), id=42)
    write_shard(tmp_path / "train.rec", RecordIOEncoder("detect"), [sample])
    data = (tmp_path / "train.rec").read_bytes()
    assert struct.unpack_from("<IfQQ", data, 8) == (10, 0.0, 42, 0)
    assert struct.unpack_from("<10f", data, 32) == (4, 6, SIDE, SIDE, 7, 0.25, 0.125, 0.75, 0.5, 1)
    assert data[72:].startswith(JPEGS[0])
    assert (tmp_path / "train.idx").read_text() == "42\t0\n"
    assert (tmp_path / "train.lst").read_text().startswith("42\t4.000000\t6.000000\t32.000000\t32.000000\t7.000000\t")


def test_a_picture_without_boxes_keeps_the_head_of_the_vector(tmp_path: Path):
    write_shard(tmp_path / "train.rec", RecordIOEncoder("detect"), [Sample("x.jpg", JPEGS[0], id=3)])
    data = (tmp_path / "train.rec").read_bytes()
    assert struct.unpack_from("<4f", data, 32) == (4, 6, SIDE, SIDE)
    assert read_all(tmp_path / "train.rec") == [Sample("x.jpg", JPEGS[0], id=3)]


def test_a_picture_that_holds_the_magic_comes_back(tmp_path: Path):
    image = JPEGS[0] + bytes(-len(JPEGS[0]) % 4) + MAGIC_BYTES + b"behind"
    spans = write_shard(tmp_path / "train.rec", RecordIOEncoder("classify"), [Sample("x.jpg", image, 1)] * 2)
    shard = RecordIOShard(tmp_path / "train.rec")
    assert list(shard.scan()) == spans
    assert shard.read(spans[1].offset).image == image
    shard.close()


def test_shards_have_their_own_files_beside_them():
    shard = Shard("train", "train_3.rec", 0, 1)
    assert RecordIOEncoder("classify").sidecars(shard) == ("train_3.idx", "train_3.lst", "train_3-boxes.csv")


def test_a_name_with_a_tab_has_no_place_in_a_list():
    from trainstone.data.picture.look import look

    with pytest.raises(DataError, match="without tabs and line breaks"):
        RecordIOEncoder("classify").encode(Sample("a\tb.jpg", JPEGS[0], 1), 0, look(JPEGS[0]))


@pytest.mark.parametrize(
    "text", ["", "no index\n", "0\t0\n", "0\t4\n1\t8\n", "0\t0\n1\t99999999\n", "0\t0\n1\t0\n", "x" * 100, "0\t-1\n"]
)
def test_an_index_that_does_not_fit_is_done_without(tmp_path: Path, text: str):
    spans = write_shard(tmp_path / "train.rec", RecordIOEncoder("classify"), to_classify(4))
    (tmp_path / "train.idx").write_text(text)
    shard = RecordIOShard(tmp_path / "train.rec")
    assert shard.offsets().tolist() == [span.offset for span in spans]
    shard.close()


def test_records_are_read_in_the_order_of_the_file_and_not_of_the_index(tmp_path: Path):
    write_shard(tmp_path / "train.rec", RecordIOEncoder("classify"), to_classify(4))
    lines = (tmp_path / "train.idx").read_text().splitlines()
    (tmp_path / "train.idx").write_text("\n".join(reversed(lines)))
    assert read_all(tmp_path / "train.rec") == to_classify(4)


def test_without_a_list_pictures_are_called_by_their_number(tmp_path: Path):
    write_shard(tmp_path / "train.rec", RecordIOEncoder("classify"), to_classify(2))
    (tmp_path / "train.lst").unlink()
    assert [sample.name for sample in read_all(tmp_path / "train.rec")] == ["00000000.jpg", "00000001.jpg"]
    assert glance_all(tmp_path / "train.rec") == [[(0, ClassName(""))], [(1, ClassName(""))]]


def test_a_glance_tells_the_class_and_its_folder(tmp_path: Path):
    write_shard(tmp_path / "train.rec", RecordIOEncoder("classify"), to_classify(2))
    assert glance_all(tmp_path / "train.rec") == [[(0, ClassName("a"))], [(1, ClassName("b"))]]


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


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0, 0.5])
def test_a_box_that_cannot_be_is_told_with_its_place(tmp_path: Path, bad: float):
    labels = (2.0, 5.0, bad, 0.1, 0.1, 0.2, 0.2)
    good = pack(pack_image(ImageRecord((1.0,), 0, JPEGS[0])))
    (tmp_path / "x.rec").write_bytes(good + pack(pack_image(ImageRecord(labels, 1, JPEGS[0], vector=True))))
    shard = RecordIOShard(tmp_path / "x.rec")
    for ask in (shard.read, shard.glance):
        with pytest.raises(DataError, match=rf"x\.rec, record at byte {len(good)}: a box with class"):
            ask(len(good))
    shard.close()


def test_an_index_is_made_of_the_records(tmp_path: Path):
    write_shard(tmp_path / "train.rec", RecordIOEncoder("detect"), to_detect(3))
    shard = RecordIOShard(tmp_path / "train.rec")
    assert list(shard.index_files()) == [(tmp_path / "train.idx", (tmp_path / "train.idx").read_text())]
    (tmp_path / "train.idx").unlink()
    assert list(shard.index_files()) == []
    shard.close()


PAYLOADS = [
    pack_image(ImageRecord((3.0,), 7, JPEGS[0][:300])),
    pack_image(ImageRecord((4.0, 6.0, 32.0, 32.0, 1.0, 0.1, 0.2, 0.3, 0.4, 0.0), 7, JPEGS[0][:200], vector=True)),
]


@quick
@given(st.data())
def test_a_damaged_payload_gives_a_sample_or_a_place(tmp_path: Path, data: st.DataObject):
    sound = data.draw(st.sampled_from(PAYLOADS))
    payload = data.draw(st.one_of(damaged(sound), damaged(sound[:80]).map(lambda head: head + sound[80:])))
    path = tmp_path / "x.rec"
    before = pack(PAYLOADS[0])
    path.write_bytes(before + pack(payload))
    shard = RecordIOShard(path)
    for ask in (shard.read, shard.glance):
        assert isinstance(expect_place(ask, len(before), "x.rec"), Sample | list | None)
    shard.close()


def test_records_of_dali_are_read_by_their_index():
    path = real_data("records/recordio/dali_extra/train.rec")
    samples = read_all(path)
    assert len(samples) == 47
    assert all(sample.image.startswith(b"\xff\xd8") for sample in samples)
    shard = RecordIOShard(path)
    assert np.array_equal(shard.offsets(), [span.offset for span in shard.scan()])
    shard.close()
