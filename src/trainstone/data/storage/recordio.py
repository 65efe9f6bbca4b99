"""Samples in MXNet RecordIO, as im2rec writes them: .rec with .idx and .lst; detection as vectors of labels.

A detection's labels are [4, 6, width, height] and for each box [class, left, top, right, bottom, crowd], edges as
shares of the picture: the form that MXNet's ImageDetIter and GluonCV read.
"""

import contextlib
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np

from trainstone.data.picture.look import Look, find_ending
from trainstone.data.sample import Box, ClassName, Edges, Sample, clip_box, make_box, shorten
from trainstone.data.storage.boxfile import SUFFIX, box_lines, make_key, read_box_file
from trainstone.data.storage.encoding import Encoded, Shard
from trainstone.data.storage.offsets import Offsets, check_offsets
from trainstone.errors import DataError
from trainstone.formats.recordio import ImageRecord, RecordIOFile, pack_labels, pack_parts, unpack_image
from trainstone.formats.recordlist import ListLine, index_line, list_line, read_index, read_list, rebuild_index
from trainstone.formats.span import Span

HEADER_WIDTH = 4
OBJECT_WIDTH = 6


class RecordIOEncoder:
    """Writes .rec, .idx, .lst, and boxes of classified pictures beside them, for RecordIO has no place for both."""

    tail = b""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def encode(self, sample: Sample, number: int, seen: Look) -> Encoded:
        key = number if sample.id is None or self._kind != "detect" else sample.id
        labels = self._label(sample, seen)
        vector = self._kind == "detect" or len(labels) != 1
        parts = pack_parts(pack_labels(ImageRecord(labels, key, b"", vector=vector)), sample.image)
        boxes = "" if self._kind == "detect" or not sample.boxes else box_lines(sample.name, sample.boxes)
        return Encoded(sample.name, parts, (key, list_line(ListLine(key, labels, sample.name)), boxes))

    def lines(self, made: Encoded, span: Span) -> tuple[str, ...]:
        key, listed, boxes = made.about
        return (index_line(key, span.offset), listed, boxes)

    def _label(self, sample: Sample, seen: Look) -> tuple[float, ...]:
        if self._kind != "detect":
            return sample.values or (float(-1 if sample.label is None else sample.label),)
        head = (float(HEADER_WIDTH), float(OBJECT_WIDTH), float(seen.width), float(seen.height))
        flat = (
            value for b in sample.boxes for value in (float(b.label), b.left, b.top, b.right, b.bottom, float(b.crowd))
        )
        return (*head, *flat)

    def sidecars(self, shard: Shard) -> tuple[str, ...]:
        stem = shard.file.removesuffix(".rec")
        return (f"{stem}.idx", f"{stem}.lst", f"{stem}{SUFFIX}")

    def finish(self, lines: str, records: int) -> str:
        return lines


class RecordIOShard:
    """Reads a .rec; its .idx is used if it fits the file, and done without otherwise."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = RecordIOFile(path)

    @cached_property
    def _names(self) -> dict[int, str]:
        listed = self.path.with_suffix(".lst")
        return {line.index: line.path for line in read_list(listed)} if listed.is_file() else {}

    @cached_property
    def _boxes(self) -> dict[str, tuple[Edges, ...]]:
        file = self.path.with_name(f"{self.path.stem}{SUFFIX}")
        return read_box_file(file) if file.is_file() else {}

    def offsets(self) -> Offsets:
        index = self.path.with_suffix(".idx")
        with contextlib.suppress(DataError):  # a damaged index is done without; verify tells it
            listed = read_index(index) if index.is_file() else []
            found = np.sort(np.array([offset for _, offset in listed], dtype=np.int64))
            if check_offsets(found, self._file.size) and self._ends_at(found):
                return found
        return np.fromiter((span.offset for span in self.scan()), dtype=np.int64)

    def _ends_at(self, offsets: Offsets) -> bool:
        """Say whether the last record of an index is the file's last: an old index may know only a part."""
        if not len(offsets):
            return self._file.size == 0
        try:
            return next(self._file.spans(int(offsets[-1]))).end == self._file.size
        except DataError:
            return False

    def scan(self, start: int = 0) -> Iterator[Span]:
        return self._file.spans(start)

    def resync(self, offset: int) -> int | None:
        return self._file.resync(offset)

    def read(self, offset: int) -> Sample:
        where = f"{self.path}, record at byte {offset}"
        record = unpack_image(self._file.read(offset), where)
        image = bytes(record.image)
        name = self._names.get(record.id) or f"{record.id:08d}.{find_ending(image)}"
        if record.vector and is_detection(record.labels):
            return Sample(name, image, boxes=read_boxes(record.labels, where), id=record.id)
        if not record.vector and record.labels[0].is_integer() and record.labels[0] >= 0:
            label = int(record.labels[0])
            boxes = tuple(make_box(label, edges) for edges in self._boxes.get(make_key(name), ()))
            return Sample(name, image, label, boxes)
        return Sample(name, image, values=record.labels)

    def glance(self, offset: int) -> Iterable[tuple[int, ClassName]]:
        where = f"{self.path}, record at byte {offset}"
        record = unpack_image(self._file.read(offset), where)
        if record.vector:
            boxes = read_boxes(record.labels, where) if is_detection(record.labels) else ()
            return [(box.label, ClassName("")) for box in boxes]
        if record.labels[0].is_integer() and record.labels[0] >= 0:
            folder = self._names.get(record.id, "").rpartition("/")[0]
            return [(int(record.labels[0]), ClassName(folder))]
        return []

    def index_files(self) -> Iterable[tuple[Path, str]]:
        """Keys stay as they are for records that are where the index says: not every tool keeps them in the records."""
        index = self.path.with_suffix(".idx")
        if not index.is_file():
            return
        try:
            listed = read_index(index)
        except DataError:
            listed = []
        actual = rebuild_index(self.path)
        if {offset for _, offset in listed} == {offset for _, offset in actual} and len(listed) == len(actual):
            yield index, index.read_bytes().decode("utf-8", "surrogateescape")
            return
        keys = {offset: key for key, offset in listed}
        pairs = [(keys.get(offset, key), offset) for key, offset in actual]
        if len({key for key, _ in pairs}) < len(pairs):
            pairs = [(number, offset) for number, (_, offset) in enumerate(actual)]
        yield index, "".join(index_line(key, offset) for key, offset in pairs)

    def is_detection(self, offset: int) -> bool:
        record = unpack_image(self._file.read(offset), f"{self.path}, record at byte {offset}")
        return record.vector and is_detection(record.labels)

    def has_boxes(self, offset: int) -> bool:
        where = f"{self.path}, record at byte {offset}"
        record = unpack_image(self._file.read(offset), where)
        boxes = read_boxes(record.labels, where) if record.vector and is_detection(record.labels) else ()
        return any(clip_box(box) for box in boxes)

    def check_beside(self) -> None:
        """Read the list and the boxes."""
        _ = self._names, self._boxes

    def close(self) -> None:
        self._file.close()


def is_detection(labels: tuple[float, ...]) -> bool:
    """Say whether a vector has a detection's form: widths of head and object first, then whole objects."""
    if len(labels) < 2 or not (labels[0].is_integer() and labels[1].is_integer()):
        return False
    head, width = int(labels[0]), int(labels[1])
    return 2 <= head <= len(labels) and width >= 5 and (len(labels) - head) % width == 0


def read_boxes(labels: tuple[float, ...], where: str) -> tuple[Box, ...]:
    """Return the boxes of a detection's labels."""
    head, width = int(labels[0]), int(labels[1])
    found = []
    for start in range(head, len(labels), width):
        label, left, top, right, bottom = (shorten(value) for value in labels[start : start + 5])
        if not np.isfinite([label, left, top, right, bottom]).all() or label < 0 or not label.is_integer():
            raise DataError(f"{where}: a box with class {label} and edges {left}, {top}, {right}, {bottom}")
        crowd = width > 5 and labels[start + 5] == 1
        found.append(Box(int(label), left, top, right, bottom, crowd))
    return tuple(found)
