"""Read and write samples in MXNet RecordIO as im2rec does: .rec with .idx and .lst.

Detection labels are the vector [4, 6, width, height] followed by [class, left, top, right, bottom, crowd] per box, with
edges as shares of the image: the format that MXNet's ImageDetIter and GluonCV read.
"""

import contextlib
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np

from trainstone.data.image.inspect import ImageHeader, find_extension
from trainstone.data.sample import Box, ClassName, Edges, Sample, build_box, shorten_float
from trainstone.data.storage.box_file import SUFFIX, drop_extension, format_box_lines, read_box_file
from trainstone.data.storage.records import Encoded, Encoder, Offsets, RecordAnnotations, Shard, ShardReader
from trainstone.errors import DataError
from trainstone.formats import recordio
from trainstone.formats.files import ByteSpan

HEADER_WIDTH = 4
OBJECT_WIDTH = 6


class RecordIOEncoder(Encoder):
    """Writes .rec, .idx and .lst; boxes of classified images go to a CSV file, as a record has no field for both."""

    def encode(self, sample: Sample, number: int, header: ImageHeader) -> Encoded:
        detect = self._kind == "detect"
        key = number if sample.id is None or not detect else sample.id
        labels = sample.values or (float(-1 if sample.label is None else sample.label),)
        if detect:
            flat = (value for box in sample.boxes for value in (float(box.label), *box[1:5], float(box.crowd)))
            labels = (float(HEADER_WIDTH), float(OBJECT_WIDTH), float(header.width), float(header.height), *flat)
        record = recordio.ImageRecord(labels, key, b"", vector=detect or len(labels) != 1)
        parts = recordio.pack_record(recordio.pack_labels(record), sample.image)
        boxes = "" if detect or not sample.boxes else format_box_lines(sample.name, sample.boxes)
        listed = recordio.format_list_line(recordio.ListLine(key, labels, sample.name))
        return Encoded(sample.name, parts, (key, listed, boxes))

    def sidecar_lines(self, encoded: Encoded, span: ByteSpan) -> tuple[str, ...]:
        key, listed, boxes = encoded.metadata
        return (recordio.format_index_line(key, span.offset), listed, boxes)

    def sidecars(self, shard: Shard) -> tuple[str, ...]:
        stem = shard.file.removesuffix(".rec")
        return (f"{stem}.idx", f"{stem}.lst", f"{stem}{SUFFIX}")


class RecordIOShard(ShardReader):
    """Reads a .rec file; its .idx is used only if it matches the file."""

    kind = recordio.RecordIOFile
    file: recordio.RecordIOFile

    @cached_property
    def _names(self) -> dict[int, str]:
        listed = self.path.with_suffix(".lst")
        return {line.index: line.path for line in recordio.read_list(listed)} if listed.is_file() else {}

    @cached_property
    def _boxes(self) -> dict[str, tuple[Edges, ...]]:
        file = self.path.with_name(f"{self.path.stem}{SUFFIX}")
        return read_box_file(file) if file.is_file() else {}

    def offsets(self) -> Offsets:
        index = self.path.with_suffix(".idx")
        with contextlib.suppress(DataError):  # ignore a damaged index; verify reports it
            listed = sorted(offset for _, offset in recordio.read_index(index)) if index.is_file() else []
            found, size = np.array(listed, dtype=np.int64), self.file.size
            # A matching index grows from byte 0 to the file's last record.
            grows = listed[:1] == [0] and (np.diff(found) > 0).all() and listed[-1] < size
            if (grows and next(self.file.spans(listed[-1])).end == size) or (not listed and size == 0):
                return found
        return super().offsets()

    def _record(self, offset: int) -> tuple[recordio.ImageRecord, tuple[Box, ...] | None]:
        where = f"{self.path}, record at byte {offset}"
        record = recordio.unpack_image(self.file.read(offset), where)
        if not record.vector or not is_detection(record.labels):
            return record, None
        boxes, (head, width) = list[Box](), map(int, record.labels[:2])
        for start in range(head, len(record.labels), width):
            label, left, top, right, bottom = (shorten_float(value) for value in record.labels[start : start + 5])
            if not np.isfinite([label, left, top, right, bottom]).all() or label < 0 or not label.is_integer():
                raise DataError(f"{where}: invalid box: class {label}, edges {left}, {top}, {right}, {bottom}")
            crowd = width > 5 and record.labels[start + 5] == 1
            boxes.append(Box(int(label), left, top, right, bottom, crowd))
        return record, tuple(boxes)

    def read(self, offset: int) -> Sample:
        record, boxes = self._record(offset)
        image = bytes(record.image)
        name = self._names.get(record.id) or f"{record.id:08d}.{find_extension(image)}"
        if boxes is not None:
            return Sample(name, image, boxes=boxes, id=record.id)
        label = find_label(record)
        if label is None:
            return Sample(name, image, values=record.labels)
        return Sample(
            name, image, label, tuple(build_box(label, edges) for edges in self._boxes.get(drop_extension(name), ()))
        )

    def read_annotations(self, offset: int) -> RecordAnnotations:
        record, boxes = self._record(offset)
        if boxes is not None:
            return RecordAnnotations([(box.label, ClassName("")) for box in boxes], boxes, is_detection=True)
        label = find_label(record)
        folder = self._names.get(record.id, "").rpartition("/")[0]
        return RecordAnnotations([] if label is None else [(label, ClassName(folder))])

    def index_files(self) -> Iterable[tuple[Path, str]]:
        index = self.path.with_suffix(".idx")
        if not index.is_file():
            return
        actual = recordio.rebuild_index(self.path)
        with contextlib.suppress(DataError):
            # Keep the index keys: not every tool stores them in the records.
            if sorted(offset for _, offset in recordio.read_index(index)) == [offset for _, offset in actual]:
                yield index, index.read_bytes().decode("utf-8", "surrogateescape")
                return
        yield index, "".join(recordio.format_index_line(key, offset) for key, offset in actual)

    def check_sidecars(self) -> None:
        _ = self._names, self._boxes


def find_label(record: recordio.ImageRecord) -> int | None:
    label = record.labels[0]
    return int(label) if not record.vector and label.is_integer() and label >= 0 else None


def is_detection(labels: tuple[float, ...]) -> bool:
    """Return whether a label vector has the detection format: header width, object width, then complete objects."""
    if len(labels) < 2 or not (labels[0].is_integer() and labels[1].is_integer()):
        return False
    head, width = int(labels[0]), int(labels[1])
    return 2 <= head <= len(labels) and width >= 5 and (len(labels) - head) % width == 0
