"""Pictures that have a box; those that cannot be read stay."""

from pathlib import Path

import pytest

from small_sets import BOXES, JPEGS, Listed, to_detect
from trainstone.data.boxed import keep_boxed
from trainstone.data.sample import Box, Sample
from trainstone.data.storage.records import RecordSource
from trainstone.data.storage.tfrecord import TFRecordShard
from trainstone.errors import DataError
from trainstone.formats.example import bytes_feature, encode_example, float_feature
from trainstone.formats.tfrecord import frame


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


def test_a_source_without_empty_pictures_stays_what_it_is():
    source = Listed([sample for sample in to_detect(6) if sample.boxes])
    assert keep_boxed(source) is source


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
