"""Counts labels of a split, the cheapest way its source offers: label(i), boxes(i) or glance(i), else by reading."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trainstone.data.sample import Source
from trainstone.errors import DataError


@dataclass
class Labels:
    """What was counted; `bad` are records that would not tell."""

    counts: list[int]
    counted: int = 0
    outside: int = 0
    unlabelled: int = 0
    bad: dict[int, str] = field(default_factory=dict)
    by_record: npt.NDArray[np.int32] | None = None
    """Class of each record, -1 where there is none; classification only."""
    boxes_per_picture: Counter[int] | None = None
    """Detection only."""

    def add(self, label: int | None) -> int:
        """Count a label; return it, or -1."""
        if label is None or label < 0:
            self.unlabelled += 1
            return -1
        if label >= len(self.counts):
            self.outside += 1
            return -1
        self.counts[label] += 1
        return label


def spread(length: int, number: int) -> list[int]:
    """Return so many places, evenly spaced; all of them where there are fewer."""
    number = min(number, length)
    return [(2 * place + 1) * length // (2 * number) for place in range(number)]


def count_labels(source: Source, kind: str, num_classes: int, read: Mapping[int, Sequence[int]]) -> Labels:
    """Count the labels of a split, or of its boxes.

    `read` holds the boxes' classes of the records that were read already: where only a whole record tells its boxes,
    these must do, since reading all may take hours.
    """
    labels = Labels([0] * num_classes)
    if kind == "detect":
        return count_boxes(source, labels, read)
    ask = find_ask(source)
    by_record = np.full(len(source), -1, np.int32)
    for index in range(len(source)):
        try:
            by_record[index] = labels.add(next(iter(ask(index)), None))
        except DataError as err:
            labels.bad[index] = err.message
    labels.counted = len(source)
    labels.by_record = by_record
    return labels


def count_boxes(source: Source, labels: Labels, read: Mapping[int, Sequence[int]]) -> Labels:
    """Count classes of boxes, and boxes of pictures."""
    cheap = find_ask_boxes(source)
    ask = cheap or read.__getitem__
    places = range(len(source)) if cheap else list(read)
    per_picture: Counter[int] = Counter()
    for index in places:
        try:
            found = ask(index)
        except DataError as err:
            labels.bad[index] = err.message
            continue
        per_picture[len(found)] += 1
        for label in found:
            labels.add(label)
    labels.counted = len(places)
    labels.boxes_per_picture = per_picture
    return labels


def find_ask(source: Source) -> Callable[[int], Sequence[int | None]]:
    """Return the cheapest way to a record's label."""
    given: Any = source
    if hasattr(source, "label"):
        return lambda index: [given.label(index)]
    if hasattr(source, "glance"):
        return lambda index: [label for label, _ in given.glance(index)]
    return lambda index: [source.read(index).label]


def find_ask_boxes(source: Source) -> Callable[[int], Sequence[int]] | None:
    """Return a cheap way to the labels of a record's boxes, if there is one."""
    given: Any = source
    if hasattr(source, "boxes"):
        return lambda index: [box.label for box in given.boxes(index)]
    if hasattr(source, "glance"):
        return lambda index: [label for label, _ in given.glance(index)]
    return None
