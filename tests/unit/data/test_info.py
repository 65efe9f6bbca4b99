"""What is found out about a data set, and that nothing in it can stop the finding."""

import base64
from pathlib import Path

import numpy as np
import pytest

from support.builders.data_sets import Listed
from support.builders.hostile_text import EVIL, hidden
from trainstone.data.image.decode import decode, encode_jpeg
from trainstone.data.image.inspect import look
from trainstone.data.info import summarise
from trainstone.data.sample import Box, ClassName, DataSet, Sample, Split
from trainstone.data.storage.records import Glance
from trainstone.data.synthetic.generated import GeneratedSource, generate


class Telling(Listed):
    """One that knows its labels without reading, as record files do."""

    paths = (Path(__file__),)

    def glance(self, index: int) -> Glance:
        sample = self.read(index)
        self.reads -= 1
        if sample.label is not None:
            return Glance([(sample.label, ClassName(""))])
        return Glance([(box.label, ClassName("")) for box in sample.boxes])


def make_jpeg(width: int = 20, height: int = 10) -> bytes:
    return encode_jpeg(np.full((height, width, 3), 90, np.uint8), 90)


def make(source: Listed, kind: str = "classify") -> DataSet:
    classes = [ClassName(f"n{n}", f"thing {n}") for n in range(3)]
    return DataSet(kind, "RecordIO", classes, [Split("train", source)])


def test_generated_images_are_counted_looked_at_and_shown():
    found = generate(GeneratedSource("classify", "", 0, 48, 32, 10), {"train": 95, "val": 20})
    message = summarise(found, "some/where", samples=12, looked_at=30)
    train, val = message.splits
    assert train.records == train.counted == 95
    assert train.class_counts == [10] * 5 + [9] * 5
    assert val.class_counts == [2] * 10
    assert train.looked_at is not None
    assert (train.looked_at.images, train.looked_at.kinds, train.looked_at.colours) == (30, {"jpeg": 30}, {"rgb": 30})
    assert (train.looked_at.width.median, train.looked_at.height.maximum) == (48, 32)
    assert [size.images for size in train.looked_at.sizes] == [30]
    assert train.num_bad == 0
    assert [sample.split for sample in message.samples] == ["train"] * 6 + ["val"] * 6
    assert len({sample.label for sample in message.samples if sample.split == "train"}) == 6
    assert message.classes[0].name == "circle-plain"
    assert (message.path, message.kind, message.name) == ("some/where", "classify", "shapes")


def test_labels_are_counted_without_reading_where_the_source_can_tell():
    source = Telling([Sample(f"{n}.jpg", make_jpeg(), label=n % 3) for n in range(90)])
    message = summarise(make(source), samples=3, looked_at=10)
    assert message.splits[0].class_counts == [30, 30, 30]
    assert source.reads == 13
    assert message.splits[0].shards == 1
    assert message.splits[0].bytes == Path(__file__).stat().st_size
    assert [sample.label for sample in message.samples] == ["thing 0", "thing 1", "thing 2"]


def test_labels_without_a_class_are_counted_apart():
    labels = [0, 7, None, -1, 2, 2**40]
    source = Listed([Sample("a.jpg", make_jpeg(), label=label) for label in labels])
    split = summarise(make(source)).splits[0]
    assert split.class_counts == [1, 0, 1]
    assert (split.outside, split.unlabelled) == (2, 2)


@pytest.mark.parametrize("kind", [Listed, Telling])
def test_boxes_are_counted_in_all_records_or_in_those_read(kind: type[Listed]):
    boxes = (Box(0, 0, 0, 0.5, 0.5), Box(2, 0.5, 0.5, 1, 1))
    source = kind([Sample(f"{n}.jpg", make_jpeg(), boxes=boxes[: n % 3], id=n) for n in range(60)])
    split = summarise(make(source, "detect"), samples=4, looked_at=20).splits[0]
    counted = 60 if kind is Telling else 20
    assert split.boxes is not None
    assert split.counted == split.boxes.images == counted
    assert split.boxes.boxes == sum(split.class_counts) == sum(n * c for n, c in split.boxes.per_image.items())
    if kind is Telling:
        assert split.boxes.per_image == {0: 20, 1: 20, 2: 20}
        assert split.class_counts == [40, 0, 20]


@pytest.mark.parametrize("kind", [Listed, Telling])
def test_bad_images_are_listed_with_place_and_reason(kind: type[Listed]):
    good = make_jpeg()
    bad = [None, Sample("2.jpg", b"<html>not found", label=1), Sample("3.jpg", good[:-2], label=2)]
    message = summarise(make(kind([Sample("0.jpg", good, label=0), *bad])))
    split = message.splits[0]
    assert split.num_bad == 3
    assert [(bad.where, bad.why.split(":")[0]) for bad in split.bad] == [
        ("listed 1", "wrong checksum"),
        ("listed 2", "not an image"),
        ("listed 3", "truncated JPEG"),
    ]
    assert [sample.name for sample in message.samples] == ["0.jpg"]


def test_samples_are_small_jpegs_with_clipped_boxes():
    boxes = (Box(1, -0.5, 0.25, 1.5, 0.75), Box(1, 0, 0, 0.1, 0.1, True), Box(9, 0.9, 0.9, 0.1, 0.1))
    boxes = (*boxes, Box(0, float("nan"), 0, 1, 1))
    source = Listed([Sample("a.jpg", make_jpeg(400, 100), boxes=boxes)])
    (sample,) = summarise(make(source, "detect")).samples
    jpeg = base64.b64decode(sample.jpeg_base64)
    assert look(jpeg)[:3] == ("jpeg", 160, 40) == ("jpeg", sample.width, sample.height)
    assert decode(jpeg).mean() == pytest.approx(90, abs=2)
    edges = [(box.left, box.top, box.right, box.bottom) for box in sample.boxes]
    assert edges[0] == (0, 0.25, 1, 0.75)
    assert all(left <= right and top <= bottom for left, top, right, bottom in edges)
    assert [box.crowd for box in sample.boxes] == [False, True, False]
    assert sample.label == "2 × thing 1, class 9 (unknown), thing 0"


def test_hostile_names_come_out_printable():
    evil = f"{EVIL}\udcff"
    source = Telling([Sample(evil, make_jpeg(), label=0), None])
    source.where = lambda index: evil  # type: ignore[method-assign]
    message = summarise(DataSet("classify", evil, [ClassName(evil, evil)], [Split(evil, source)], evil), evil)
    assert not hidden(message.model_dump_json())
    assert message.samples[0].name.startswith("<script>")
