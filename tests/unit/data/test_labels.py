"""Labels are counted the cheapest way a source offers; what has none, too many or is damaged is told apart."""

from collections import Counter

import pytest

from small_sets import BOXES, JPEGS, Listed, to_classify
from trainstone.data.labels import Labels, count_labels
from trainstone.data.sample import Box, ClassName, Sample
from trainstone.errors import DataError


class Labelled(Listed):
    """Tells labels without reading."""

    def read(self, index: int) -> Sample:
        raise AssertionError("read, though there is a cheaper way")

    def label(self, index: int) -> int | None:
        return self.samples[index].label


class Boxed(Labelled):
    def boxes(self, index: int) -> tuple[Box, ...]:
        return self.samples[index].boxes


class Glanced(Listed):
    """Tells labels as record files do."""

    def glance(self, index: int) -> list[tuple[int, ClassName]]:
        sample = self.samples[index]
        if sample.name == "bad":
            raise DataError("damaged")
        labels = [sample.label] if sample.label is not None else [box.label for box in sample.boxes]
        return [(label, ClassName("")) for label in labels]


MIXED = [Sample("x", JPEGS[0], label) for label in (0, 2, 2, None, 7, -1)]


@pytest.mark.parametrize("kind", [Listed, Labelled, Glanced])
def test_labels_of_pictures(kind: type[Listed]):
    labels = count_labels(kind(MIXED), "classify", 3, {})
    assert labels.counts == [1, 0, 2]
    assert (labels.counted, labels.outside, labels.unlabelled, labels.bad) == (6, 1, 2, {})
    assert labels.by_record is not None
    assert labels.by_record.tolist() == [0, 2, 2, -1, -1, -1]
    assert labels.boxes_per_picture is None


@pytest.mark.parametrize("kind", ["classify", "detect"])
def test_damaged_records_are_told_and_the_others_counted(kind: str):
    samples = [Sample("good", JPEGS[0], 1), Sample("bad", JPEGS[0], 1), Sample("good", JPEGS[0], 1)]
    labels = count_labels(Glanced(samples), kind, 2, {})
    assert labels.bad == {1: "damaged"}
    assert labels.counts == [0, 2]


SCENES = [Sample(f"{n}", JPEGS[0], boxes=BOXES[: n % 3]) for n in range(5)]


@pytest.mark.parametrize("kind", [Boxed, Glanced])
def test_labels_of_boxes(kind: type[Listed]):
    labels = count_labels(kind(SCENES), "detect", 2, {})
    assert (labels.counts, labels.counted) == ([3, 1], 5)
    assert labels.boxes_per_picture == Counter({0: 2, 1: 2, 2: 1})
    assert labels.by_record is None


def test_where_only_reading_tells_boxes_those_that_were_read_must_do():
    labels = count_labels(Listed(SCENES), "detect", 2, {1: [0], 4: [1, 5]})
    assert (labels.counts, labels.counted, labels.outside) == ([1, 1], 2, 1)
    assert labels.boxes_per_picture == Counter({1: 1, 2: 1})


def test_an_empty_split():
    assert count_labels(Listed([]), "classify", 2, {}).counts == [0, 0]
    assert count_labels(Listed([]), "detect", 2, {}).counted == 0


def test_without_classes_all_labels_are_outside():
    labels = count_labels(Labelled(to_classify(4)), "classify", 0, {})
    assert (labels.counts, labels.outside) == ([], 4)


@pytest.mark.parametrize(("label", "returned"), [(1, 1), (0, 0), (2, -1), (-1, -1), (None, -1)])
def test_adding_one(label: int | None, returned: int):
    labels = Labels([0, 0])
    assert labels.add(label) == returned
    assert sum(labels.counts) + labels.outside + labels.unlabelled == 1
