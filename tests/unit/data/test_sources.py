"""Sources without classes: pictures as they lie, a choice of them, and those that have a box."""

from pathlib import Path

import pytest

from made_archives import write_files
from small_sets import BOXES, JPEGS, Listed
from trainstone.data.recognise import keep_boxed
from trainstone.data.sample import Box, PictureSource, Sample
from trainstone.data.storage.records import RecordSource
from trainstone.data.storage.tfrecord import TFRecordShard
from trainstone.errors import DataError
from trainstone.formats.tfrecord import bytes_feature, encode_example, float_feature, frame


@pytest.fixture
def pictures(tmp_path: Path) -> PictureSource:
    write_files(tmp_path, {"a.jpg": JPEGS[0], "b ü.jpg": JPEGS[1], "empty.jpg": b""})
    return PictureSource([tmp_path / "a.jpg", tmp_path / "b ü.jpg", tmp_path / "empty.jpg", tmp_path / "gone.jpg"])


def test_pictures_have_neither_label_nor_boxes(pictures: PictureSource, tmp_path: Path):
    assert len(pictures) == 4
    assert pictures.read(1) == Sample("b ü.jpg", JPEGS[1])
    assert pictures.name(3) == "gone.jpg"
    assert pictures.where(0) == str(tmp_path / "a.jpg")


def test_what_cannot_be_read_is_named(pictures: PictureSource, tmp_path: Path):
    with pytest.raises(DataError, match=r"empty\.jpg is empty"):
        pictures.read(2)
    with pytest.raises(DataError, match=rf"cannot read {tmp_path}/gone\.jpg: No such file"):
        pictures.read(3)


class Broken(Listed):
    def read(self, index: int) -> Sample:
        if index == 1:
            raise DataError("torn")
        return super().read(index)


def test_of_any_source_those_with_a_box_and_those_that_cannot_be_read():
    samples = [Sample("empty", b""), Sample("broken", b""), Sample("box", b"", boxes=BOXES)]
    outside = Sample("outside", b"", boxes=(Box(0, 1.0, 0.0, 1.5, 1.0),))
    kept = keep_boxed(Broken([*samples, outside]))
    assert [kept.name(number) for number in range(len(kept))] == ["broken", "box"]


def test_a_record_whose_boxes_cannot_be_read_stays(tmp_path: Path):
    path = tmp_path / "a.tfrecord"
    edges = ((), (0.1, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4))
    features = [{"image/encoded": bytes_feature(JPEGS[0]), "image/object/bbox": float_feature(*four)} for four in edges]
    path.write_bytes(b"".join(frame(encode_example(one)) for one in features))
    kept = keep_boxed(RecordSource([path], TFRecordShard))
    assert len(kept) == 2
    with pytest.raises(DataError, match="3 numbers, no multiple of 4"):
        kept.read(0)
    assert kept.read(1).boxes == (Box(0, 0.1, 0.2, 0.3, 0.4),)
