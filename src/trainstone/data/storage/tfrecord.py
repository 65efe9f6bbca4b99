"""Samples in TFRecord: ImageNet's features as build_imagenet_data.py wrote them, COCO's as create_tfrecord.py did.

Other people's feature sets are read by looking: the picture is image/encoded or the one feature that is a picture.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from trainstone.data.picture.look import Look, find_ending
from trainstone.data.sample import ClassName, Sample, clip_box, shorten
from trainstone.data.storage.encoding import Encoded, Shard, find_class
from trainstone.data.storage.features import (
    BOX_LABELS,
    BOX_NAMES,
    EDGES,
    PICTURES,
    encode_text,
    find_boxes,
    find_integer,
    find_label,
    find_name,
    find_numbers,
    find_picture,
    find_text,
    find_texts,
    tell_areas,
)
from trainstone.data.storage.offsets import Offsets
from trainstone.errors import DataError
from trainstone.formats.example import (
    Feature,
    bytes_feature,
    decode_example,
    encode_example,
    float_feature,
    int64_feature,
)
from trainstone.formats.span import Span
from trainstone.formats.tfrecord import TFRecordFile, frame, index_line, read_index


class TFRecordEncoder:
    """Writes TFRecord shards and, beside them, DALI's text index."""

    tail = b""

    def __init__(self, kind: str, classes: Sequence[ClassName], first_label: int) -> None:
        self._kind = kind
        self._classes = classes
        self._first = first_label

    def encode(self, sample: Sample, number: int, seen: Look) -> Encoded:
        features = (self._detect if self._kind == "detect" else self._classify)(sample, number, seen)
        return Encoded(sample.name, (frame(encode_example(features)),))

    def lines(self, made: Encoded, span: Span) -> tuple[str, ...]:
        return (index_line(span),)

    def _classify(self, sample: Sample, number: int, seen: Look) -> dict[str, Feature]:
        label = -1 if sample.label is None else sample.label + self._first
        known = find_class(self._classes, sample.label) if sample.label is not None else ClassName("")
        edges = zip(*(box[1:5] for box in sample.boxes), strict=True) if sample.boxes else [()] * 4
        features = {
            "image/height": int64_feature(seen.height),
            "image/width": int64_feature(seen.width),
            "image/colorspace": bytes_feature(b"RGB"),
            "image/channels": int64_feature(3),
            "image/class/label": int64_feature(label),
            **self._tell_class(sample.name, known),
            **{name: float_feature(*values) for name, values in zip(EDGES, edges, strict=True)},
            "image/object/bbox/label": int64_feature(*(label for _ in sample.boxes)),
            "image/format": bytes_feature(seen.kind.upper().encode()),
            "image/encoded": bytes_feature(sample.image),
        }
        if sample.values:
            features["image/class/values"] = float_feature(*sample.values)
        return features

    def _tell_class(self, name: str, known: ClassName) -> dict[str, Feature]:
        """A synset says that labels count from 1, so a set whose labels do not has none, and whole names instead."""
        if self._first == 0:
            return {
                "image/class/text": bytes_feature(encode_text(known.name)),
                "image/filename": bytes_feature(encode_text(name)),
            }
        return {
            "image/class/synset": bytes_feature(encode_text(known.name)),
            "image/class/text": bytes_feature(encode_text(known.text)),
            "image/filename": bytes_feature(encode_text(name.rpartition("/")[2])),
        }

    def _detect(self, sample: Sample, number: int, seen: Look) -> dict[str, Feature]:
        boxes = sample.boxes
        return {
            "image/fname": bytes_feature(encode_text(sample.name)),
            "image/encoded": bytes_feature(sample.image),
            "image/id": int64_feature(number if sample.id is None else sample.id),
            "image/shape": int64_feature(seen.height, seen.width, 3),
            "image/object/label": int64_feature(*(box.label + self._first for box in boxes)),
            "image/object/name": bytes_feature(
                *(encode_text(find_class(self._classes, box.label).name) for box in boxes)
            ),
            "image/object/bbox": float_feature(*(edge for box in boxes for edge in box[1:5])),
            "image/object/is_crowd": int64_feature(*(int(box.crowd) for box in boxes)),
            **tell_areas(boxes, seen),
        }

    def sidecars(self, shard: Shard) -> tuple[str, ...]:
        # A reader's glob train-* shall not meet an index: ImageNet's lie in a folder of their own.
        detect = shard.file.endswith(".tfrecord")
        return (f"{shard.file.removesuffix('.tfrecord')}.idx" if detect else f"idx/{shard.file}.idx",)

    def finish(self, lines: str, records: int) -> str:
        return lines


class TFRecordShard:
    """Reads a TFRecord file; an index that fits is used."""

    def __init__(self, path: Path, first_label: int | None = None) -> None:
        self.path = path
        self._file = TFRecordFile(path)
        self._first = first_label

    def _indexes(self) -> list[Path]:
        """Return the index files it has, in the places where people put them."""
        places = (
            self.path.parent / "idx" / f"{self.path.name}.idx",
            self.path.with_name(f"{self.path.name}.idx"),
            self.path.with_suffix(".idx"),
        )
        return [place for place in places if place.is_file()]

    def offsets(self) -> Offsets:
        for index in self._indexes():
            try:
                spans = read_index(index)
            except DataError:  # a damaged index is done without; verify tells it
                continue
            whole = all(before.end == after.offset for before, after in pairwise(spans))
            if spans and whole and spans[0].offset == 0 and spans[-1].end == self._file.size:
                return np.array([span.offset for span in spans], dtype=np.int64)
        return np.fromiter((span.offset for span in self.scan()), dtype=np.int64)

    def scan(self, start: int = 0) -> Iterator[Span]:
        return self._file.spans(start)

    def resync(self, offset: int) -> int | None:
        return self._file.resync(offset)

    def features(self, offset: int) -> dict[str, Feature]:
        """Return a record's features as they are."""
        return decode_example(self._file.read(offset), f"{self.path}, record at byte {offset}")

    def read(self, offset: int) -> Sample:
        where = f"{self.path}, record at byte {offset}"
        features = self.features(offset)
        image = find_picture(features, where)
        first = self.first_label(features)
        label = find_label(features, where)
        kept = None if label is None or label < first else label - first
        name = find_name(features, label, f"{self.path.name}-{offset}.{find_ending(image)}")
        boxes = find_boxes(features, first, where, image)
        id_ = find_integer(features, ("image/id",))
        detect = "image/object/bbox" in features or label is None
        values = tuple(shorten(value) for value in find_numbers(features, ("image/class/values",), where))
        return Sample(name, image, None if detect else kept, boxes, values, id_)

    def glance(self, offset: int) -> Iterable[tuple[int, ClassName]]:
        where = f"{self.path}, record at byte {offset}"
        features = decode_example(self._file.read(offset, check=False), where, skip=PICTURES)
        first = self.first_label(features)
        label = find_label(features, where)
        if label is not None:
            names = (find_text(features, "image/class/synset"), find_text(features, "image/class/text"))
            return [(label - first, ClassName(*names) if names[0] else ClassName(names[1]))] if label >= first else []
        labels = find_numbers(features, BOX_LABELS, where)
        texts = next((found for name in BOX_NAMES if (found := find_texts(features, name))), [""] * len(labels))
        return [(int(n) - first, ClassName(name)) for n, name in zip(labels, texts, strict=False)]

    def first_label(self, features: Mapping[str, Feature]) -> int:
        """Return what the first class is called: 1 in ImageNet's and COCO's feature sets, else 0."""
        if self._first is not None:
            return self._first
        return int("image/class/synset" in features or "image/object/bbox" in features)

    def index_files(self) -> Iterable[tuple[Path, str]]:
        indexes = self._indexes()
        text = "".join(index_line(span) for span in self.scan()) if indexes else ""
        return [(index, text) for index in indexes]

    def is_detection(self, offset: int) -> bool:
        where = f"{self.path}, record at byte {offset}"
        features = decode_example(self._file.read(offset, check=False), where, skip=PICTURES)
        boxed = "image/object/bbox" in features or any(name in features for name in BOX_LABELS)
        return boxed and find_label(features, where) is None and "image/class/label" not in features

    def has_boxes(self, offset: int) -> bool:
        where = f"{self.path}, record at byte {offset}"
        features = decode_example(self._file.read(offset, check=False), where, skip=PICTURES)
        return any(clip_box(box) for box in find_boxes(features, self.first_label(features), where))

    def check_beside(self) -> None:
        """Nothing: all that is known of a sample lies in its record."""

    def close(self) -> None:
        self._file.close()
