"""Finds out what a data set holds: counts labels, looks at a sample of the pictures, makes a few small ones to show.

Checks nothing to the end (data/verify.py does): a bad picture met on the way is listed.
"""

import base64
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from trainstone.data.picture.decode import decode, encode_jpeg
from trainstone.data.picture.look import Look, look
from trainstone.data.sample import Box, ClassName, DataSet, Sample, Source, Split
from trainstone.errors import DataError
from trainstone.results.dataset import (
    BadRecord,
    BoxCounts,
    ClassSummary,
    DatasetSummary,
    LookedAt,
    Quantiles,
    SampleBox,
    SamplePicture,
    SizeCount,
    SplitSummary,
)
from trainstone.text import printable
from trainstone.units import format_count

THUMBNAIL_PIXELS = 160
THUMBNAIL_QUALITY = 82
MAX_BAD = 20
MAX_BOXES = 100


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


class BadRecords:
    """The bad ones met so far, each once."""

    def __init__(self) -> None:
        self._whys: dict[int, BadRecord] = {}

    def add(self, source: Source, index: int, why: str) -> None:
        """Note one."""
        where = printable(source.where(index))
        self._whys.setdefault(index, BadRecord(where=where, why=printable(why.removeprefix(f"{where}: "))))

    def __len__(self) -> int:
        return len(self._whys)

    def first(self) -> list[BadRecord]:
        """Return the first few, in the order of the split."""
        return [self._whys[index] for index in sorted(self._whys)[:MAX_BAD]]


def summarise(found: DataSet, path: str = "", *, samples: int = 24, looked_at: int = 2000) -> DatasetSummary:
    """Look a data set over; `looked_at` pictures a split are opened, `samples` in all are decoded to be shown."""
    splits, pictures = [], []
    for number, split in enumerate(found.splits):
        bad = BadRecords()
        seen, boxes = look_over(split.source, looked_at, bad)
        labels = count_labels(split.source, found.kind, len(found.classes), boxes)
        for index, why in labels.bad.items():
            bad.add(split.source, index, why)
        share = share_out(samples, len(found.splits), number)
        pictures += [show(split, index, found.classes, bad) for index in pick_samples(split.source, labels, share)]
        splits.append(describe_split(split, labels, seen, bad))
    return DatasetSummary(
        path=printable(path),
        kind="detect" if found.kind == "detect" else "classify",
        storage=printable(found.storage),
        name=printable(found.name),
        classes=[ClassSummary(name=printable(entry.name), text=printable(entry.text)) for entry in found.classes],
        splits=splits,
        samples=[picture for picture in pictures if picture is not None],
    )


def share_out(total: int, parts: int, number: int) -> int:
    """Return what one of several parts gets of a total."""
    return total * (number + 1) // parts - total * number // parts


def pick_samples(source: Source, labels: Labels, number: int) -> list[int]:
    """Choose pictures evenly over the classes; over the split where there are none."""
    places = spread(len(source), number)
    if labels.by_record is None:
        return places
    order = np.argsort(labels.by_record, kind="stable")
    return [int(order[place]) for place in places]


def look_over(source: Source, number: int, bad: BadRecords) -> tuple[LookedAt | None, dict[int, list[int]]]:
    """Open pictures evenly spaced and look at their heads; return, too, the classes of their boxes by record."""
    seen: list[tuple[Look, int]] = []
    boxes: dict[int, list[int]] = {}
    for index in spread(len(source), number):
        try:
            sample = source.read(index)
            boxes[index] = [box.label for box in sample.boxes]
            seen.append((look(sample.image), len(sample.image)))
        except DataError as err:
            bad.add(source, index, err.message)
    return describe_looks(seen) if seen else None, boxes


def describe_looks(seen: Sequence[tuple[Look, int]]) -> LookedAt:
    """Sum up heads of pictures and their bytes."""
    looks = [entry for entry, _ in seen]
    sizes = Counter((entry.width, entry.height) for entry in looks)
    return LookedAt(
        pictures=len(seen),
        width=measure([entry.width for entry in looks]),
        height=measure([entry.height for entry in looks]),
        bytes=measure([size for _, size in seen]),
        kinds=dict(Counter(entry.kind for entry in looks).most_common()),
        colours=dict(Counter(entry.colour for entry in looks).most_common()),
        sizes=[SizeCount(width=w, height=h, pictures=count) for (w, h), count in sizes.most_common()],
    )


def measure(numbers: Sequence[int]) -> Quantiles:
    """Return how numbers are spread; quantiles are numbers that occur."""
    minimum, p5, median, p95, maximum = np.quantile(numbers, [0, 0.05, 0.5, 0.95, 1], method="nearest").tolist()
    return Quantiles(
        minimum=minimum, p5=p5, median=median, p95=p95, maximum=maximum, mean=float(np.mean(numbers, dtype=np.float64))
    )


def describe_split(split: Split, labels: Labels, seen: LookedAt | None, bad: BadRecords) -> SplitSummary:
    """Put together what was found."""
    paths: Sequence[Path] | None = getattr(split.source, "paths", None)
    boxes = labels.boxes_per_picture
    return SplitSummary(
        name=printable(split.name),
        records=len(split.source),
        bytes=None if paths is None else add_sizes(paths),
        shards=None if paths is None else len(paths),
        class_counts=labels.counts,
        outside=labels.outside,
        unlabelled=labels.unlabelled,
        counted=labels.counted,
        boxes=None
        if boxes is None
        else BoxCounts(
            boxes=sum(count * number for count, number in boxes.items()),
            pictures=sum(boxes.values()),
            per_picture=dict(sorted(boxes.items())),
        ),
        looked_at=seen,
        num_bad=len(bad),
        bad=bad.first(),
    )


def add_sizes(paths: Sequence[Path]) -> int | None:
    """Return the bytes of files; None where one of them cannot be asked."""
    try:
        return sum(path.stat().st_size for path in paths)
    except OSError:
        return None


def show(split: Split, index: int, classes: Sequence[ClassName], bad: BadRecords) -> SamplePicture | None:
    """Make a picture small, with its boxes; None, and a note, where it is bad."""
    try:
        sample = split.source.read(index)
        pixels = shrink(decode(sample.image))
    except DataError as err:
        bad.add(split.source, index, err.message)
        return None
    boxes = [box for box in sample.boxes if math.isfinite(box.left + box.top + box.right + box.bottom)]
    return SamplePicture(
        split=printable(split.name),
        name=printable(sample.name),
        label=printable(tell_label(sample, classes)),
        width=pixels.shape[1],
        height=pixels.shape[0],
        jpeg_base64=base64.b64encode(encode_jpeg(pixels, THUMBNAIL_QUALITY)).decode("ascii"),
        boxes=[make_box(box, classes) for box in boxes[:MAX_BOXES]],
    )


def shrink(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Scale so that the longer side fits a thumbnail; small ones stay as they are."""
    height, width = pixels.shape[:2]
    scale = THUMBNAIL_PIXELS / max(height, width)
    if scale >= 1:
        return pixels
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    small: Any = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    return small  # type: ignore[no-any-return]


def make_box(box: Box, classes: Sequence[ClassName]) -> SampleBox:
    """Clip a box to the picture and name it."""
    left, top, right, bottom = (min(max(edge, 0.0), 1.0) for edge in box[1:5])
    text = printable(name_class(box.label, classes))
    return SampleBox(
        text=text, left=min(left, right), top=min(top, bottom), right=right, bottom=bottom, crowd=box.crowd
    )


def tell_label(sample: Sample, classes: Sequence[ClassName]) -> str:
    """Return what is in a picture: its class, or its boxes counted."""
    if sample.label is not None:
        return name_class(sample.label, classes)
    if sample.boxes:
        counts = Counter(name_class(box.label, classes) for box in sample.boxes).most_common()
        return ", ".join(f"{number} × {name}" if number > 1 else name for name, number in counts)
    return format_count(len(sample.values), "value") if sample.values else "nothing"


def name_class(label: int, classes: Sequence[ClassName]) -> str:
    """Return what people call a class."""
    if not 0 <= label < len(classes):
        return f"class {label} (unknown)"
    return classes[label].text or classes[label].name


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
