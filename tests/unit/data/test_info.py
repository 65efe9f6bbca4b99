"""Tests of `data info`: class counts, image statistics and thumbnails, also for bad images and hostile names."""

import base64
from pathlib import Path

import numpy as np
import pytest

from support.builders.data_sets import ListSource
from support.builders.hostile_text import HOSTILE, hidden
from trainstone.data.image.decode import decode, encode_jpeg
from trainstone.data.image.inspect import read_header
from trainstone.data.info import summarise_data_set
from trainstone.data.sample import Box, ClassName, DataSet, Sample, Split
from trainstone.data.storage.records import RecordAnnotations
from trainstone.data.synthetic.generated import GeneratedSource, build_generated_set


class AnnotatedSource(ListSource):
    """A source that returns labels without reading images, like record files."""

    paths = (Path(__file__),)

    def read_annotations(self, index: int) -> RecordAnnotations:
        sample = self.read(index)
        self.reads -= 1
        if sample.label is not None:
            return RecordAnnotations([(sample.label, ClassName(""))])
        return RecordAnnotations([(box.label, ClassName("")) for box in sample.boxes])


def make_jpeg(width: int = 20, height: int = 10) -> bytes:
    return encode_jpeg(np.full((height, width, 3), 90, np.uint8), 90)


def make(source: ListSource, kind: str = "classify") -> DataSet:
    classes = [ClassName(f"n{n}", f"thing {n}") for n in range(3)]
    return DataSet(kind, "RecordIO", classes, [Split("train", source)])


def test_summary_of_generated_images_has_counts_statistics_and_thumbnails():
    found = build_generated_set(GeneratedSource("classify", "", 0, 48, 32, 10), {"train": 95, "val": 20})
    summary = summarise_data_set(found, "some/where", samples=12, num_inspected=30)
    train, val = summary.splits
    assert train.records == train.counted == 95
    assert train.class_counts == [10] * 5 + [9] * 5
    assert val.class_counts == [2] * 10
    assert train.sampled is not None
    assert (train.sampled.images, train.sampled.kinds, train.sampled.colours) == (30, {"jpeg": 30}, {"rgb": 30})
    assert (train.sampled.width.median, train.sampled.height.maximum) == (48, 32)
    assert [size.images for size in train.sampled.sizes] == [30]
    assert train.num_bad == 0
    assert [sample.split for sample in summary.samples] == ["train"] * 6 + ["val"] * 6
    assert len({sample.label for sample in summary.samples if sample.split == "train"}) == 6
    assert summary.classes[0].name == "circle-plain"
    assert (summary.path, summary.kind, summary.name) == ("some/where", "classify", "shapes")


def test_labels_are_counted_without_reading_images_if_possible():
    source = AnnotatedSource([Sample(f"{n}.jpg", make_jpeg(), label=n % 3) for n in range(90)])
    summary = summarise_data_set(make(source), samples=3, num_inspected=10)
    assert summary.splits[0].class_counts == [30, 30, 30]
    assert source.reads == 13
    assert summary.splits[0].shards == 1
    assert summary.splits[0].bytes == Path(__file__).stat().st_size
    assert [sample.label for sample in summary.samples] == ["thing 0", "thing 1", "thing 2"]


def test_labels_without_class_are_counted_separately():
    labels = [0, 7, None, -1, 2, 2**40]
    source = ListSource([Sample("a.jpg", make_jpeg(), label=label) for label in labels])
    split = summarise_data_set(make(source)).splits[0]
    assert split.class_counts == [1, 0, 1]
    assert (split.outside, split.unlabelled) == (2, 2)


@pytest.mark.parametrize("kind", [ListSource, AnnotatedSource])
def test_boxes_are_counted_in_all_records_or_only_in_inspected_ones(kind: type[ListSource]):
    boxes = (Box(0, 0, 0, 0.5, 0.5), Box(2, 0.5, 0.5, 1, 1))
    source = kind([Sample(f"{n}.jpg", make_jpeg(), boxes=boxes[: n % 3], id=n) for n in range(60)])
    split = summarise_data_set(make(source, "detect"), samples=4, num_inspected=20).splits[0]
    counted = 60 if kind is AnnotatedSource else 20
    assert split.boxes is not None
    assert split.counted == split.boxes.images == counted
    assert split.boxes.boxes == sum(split.class_counts) == sum(n * c for n, c in split.boxes.per_image.items())
    if kind is AnnotatedSource:
        assert split.boxes.per_image == {0: 20, 1: 20, 2: 20}
        assert split.class_counts == [40, 0, 20]


@pytest.mark.parametrize("kind", [ListSource, AnnotatedSource])
def test_bad_images_are_listed_with_location_and_reason(kind: type[ListSource]):
    good = make_jpeg()
    bad = [None, Sample("2.jpg", b"<html>not found", label=1), Sample("3.jpg", good[:-2], label=2)]
    summary = summarise_data_set(make(kind([Sample("0.jpg", good, label=0), *bad])))
    split = summary.splits[0]
    assert split.num_bad == 3
    assert [(bad.where, bad.why.split(":")[0]) for bad in split.bad] == [
        ("listed 1", "wrong checksum"),
        ("listed 2", "not an image"),
        ("listed 3", "truncated JPEG"),
    ]
    assert [sample.name for sample in summary.samples] == ["0.jpg"]


def test_thumbnails_are_small_jpegs_with_clipped_boxes():
    boxes = (Box(1, -0.5, 0.25, 1.5, 0.75), Box(1, 0, 0, 0.1, 0.1, True), Box(9, 0.9, 0.9, 0.1, 0.1))
    boxes = (*boxes, Box(0, float("nan"), 0, 1, 1))
    source = ListSource([Sample("a.jpg", make_jpeg(400, 100), boxes=boxes)])
    (sample,) = summarise_data_set(make(source, "detect")).samples
    jpeg = base64.b64decode(sample.jpeg_base64)
    assert read_header(jpeg)[:3] == ("jpeg", 160, 40) == ("jpeg", sample.width, sample.height)
    assert decode(jpeg).mean() == pytest.approx(90, abs=2)
    edges = [(box.left, box.top, box.right, box.bottom) for box in sample.boxes]
    assert edges[0] == (0, 0.25, 1, 0.75)
    assert all(left <= right and top <= bottom for left, top, right, bottom in edges)
    assert [box.crowd for box in sample.boxes] == [False, True, False]
    assert sample.label == "2 × thing 1, class 9 (unknown), thing 0"


def test_hostile_names_are_escaped():
    hostile = f"{HOSTILE}\udcff"
    source = AnnotatedSource([Sample(hostile, make_jpeg(), label=0), None])
    source.where = lambda index: hostile  # type: ignore[method-assign]
    summary = summarise_data_set(
        DataSet("classify", hostile, [ClassName(hostile, hostile)], [Split(hostile, source)], hostile), hostile
    )
    assert not hidden(summary.model_dump_json())
    assert summary.samples[0].name.startswith("<script>")
