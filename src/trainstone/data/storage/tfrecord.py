"""Samples in TFRecord: ImageNet's features as build_imagenet_data.py wrote them, COCO's as create_tfrecord.py did.

Other people's feature sets are read by looking: the picture is image/encoded or the one feature that is a picture.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from trainstone.data.picture.look import Look, find_ending, look
from trainstone.data.sample import Box, ClassName, Sample, make_box, shorten
from trainstone.data.storage.encoding import Encoded, Encoder, Shard, find_class
from trainstone.data.storage.records import Offsets, ShardReader
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

LABELS = ("image/class/label", "image/label", "label", "class", "cls")
NAMES = ("image/filename", "image/fname", "image/source_id", "filename", "key")
PICTURES = ("image/encoded", "image_raw", "image", "jpg", "jpeg", "png")
EDGES = ("image/object/bbox/xmin", "image/object/bbox/ymin", "image/object/bbox/xmax", "image/object/bbox/ymax")
BOX_LABELS = ("image/object/bbox/label", "image/object/class/label", "image/object/label")
BOX_NAMES = ("image/object/name", "image/object/class/text")
MAX_DIGITS = 18


class TFRecordEncoder(Encoder):
    """Writes TFRecord shards and, beside them, DALI's text index."""

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


class TFRecordShard(ShardReader):
    """Reads a TFRecord file; an index that fits is used."""

    def __init__(self, path: Path, first_label: int | None = None) -> None:
        self._file = TFRecordFile(path)
        super().__init__(path, self._file)
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
        return super().offsets()

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

    def _glance(self, offset: int) -> tuple[dict[str, Feature], str]:
        """Return a record's features but the picture, and where it lies for messages."""
        where = f"{self.path}, record at byte {offset}"
        return decode_example(self._file.read(offset, check=False), where, skip=PICTURES), where

    def glance(self, offset: int) -> Iterable[tuple[int, ClassName]]:
        features, where = self._glance(offset)
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
        features, where = self._glance(offset)
        boxed = "image/object/bbox" in features or any(name in features for name in BOX_LABELS)
        return boxed and find_label(features, where) is None and "image/class/label" not in features

    def boxes(self, offset: int) -> tuple[Box, ...]:
        features, where = self._glance(offset)
        return find_boxes(features, self.first_label(features), where)


def encode_text(text: str) -> bytes:
    """Return a name's bytes, whatever they were."""
    return text.encode("utf-8", "surrogateescape")


def find_picture(features: Mapping[str, Feature], where: str) -> bytes:
    """Return the picture: by its usual names, or the one feature that is a picture."""
    for name in (*PICTURES, *features):
        feature = features.get(name)
        if feature is None or feature.kind != "bytes" or len(feature.values) != 1:
            continue
        try:
            look(feature.values[0])
        except DataError:
            if name == PICTURES[0]:
                return bytes(feature.values[0])  # damaged, but surely meant; who decodes it will tell
            continue
        return bytes(feature.values[0])
    raise DataError(f"{where}: no feature is a picture; it has {', '.join(sorted(features)) or 'none'}")


def find_integer(features: Mapping[str, Feature], names: Sequence[str]) -> int | None:
    """Return the first of these that is one whole number; some writers put it into text or a float."""
    for name in names:
        feature = features.get(name)
        if feature is None or len(feature.values) != 1:
            continue
        value = feature.values[0]
        if feature.kind == "int64":
            return int(value)
        if feature.kind == "float" and float(value).is_integer():
            return int(value)
        if feature.kind == "bytes" and value.isdigit() and len(value) <= MAX_DIGITS:
            return int(value)
    return None


def find_label(features: Mapping[str, Feature], where: str) -> int | None:
    """Return a picture's label; a text would need a list of classes that nobody gives."""
    label = find_integer(features, LABELS)
    texts = [text for name in LABELS for text in find_texts(features, name)]
    if label is None and len(texts) == 1 and texts[0]:
        raise DataError(f"{where}: its label is the text {texts[0][:80]!r}; trainstone reads numbers")
    return label


def find_text(features: Mapping[str, Feature], name: str) -> str:
    """Return a feature that is one text; empty where it is none."""
    texts = find_texts(features, name)
    return texts[0] if len(texts) == 1 else ""


def find_texts(features: Mapping[str, Feature], name: str) -> list[str]:
    """Return a feature's texts; none where it is something else."""
    feature = features.get(name)
    if feature is None or feature.kind != "bytes":
        return []
    return [value.decode("utf-8", "surrogateescape") for value in feature.values]


def find_name(features: Mapping[str, Feature], label: int | None, fallback: str) -> str:
    """Return the picture's name, below its class where that is told."""
    base = next((text for name in NAMES if (text := find_text(features, name))), fallback)
    synset = find_text(features, "image/class/synset")
    return f"{synset}/{base}" if synset and "/" not in base and label is not None else base


def tell_areas(boxes: Sequence[Box], seen: Look) -> dict[str, Feature]:
    """Return the objects' areas in pixels, as TensorFlow's detection API has them; nothing where none is known."""
    if all(box.area is None for box in boxes):
        return {}
    shares = ((b.right - b.left) * (b.bottom - b.top) if b.area is None else b.area for b in boxes)
    return {"image/object/area": float_feature(*(share * seen.width * seen.height for share in shares))}


def find_areas(features: Mapping[str, Feature], count: int, where: str, image: bytes) -> list[float | None]:
    """Return the objects' areas as shares of the picture's; None where the record has none."""
    areas = find_numbers(features, ("image/object/area",), where)
    if len(areas) not in (0, count):
        raise DataError(f"{where}: {len(areas)} areas of {count} boxes")
    if not areas:
        return [None] * count
    try:
        seen = look(image)
    except DataError:  # who decodes it will tell
        return [None] * count
    pixels = max(1, seen.width * seen.height)
    return [shorten(area) / pixels if area >= 0 else None for area in areas]


def find_boxes(features: Mapping[str, Feature], first: int, where: str, image: bytes = b"") -> tuple[Box, ...]:
    """Return the boxes: four lists of edges, or one flat list; classes and, with the picture, areas where told."""
    flat = find_numbers(features, ("image/object/bbox",), where)
    if len(flat) % 4:
        raise DataError(f"{where}: image/object/bbox has {len(flat)} numbers, no multiple of 4")
    edges = [flat[place::4] for place in range(4)] if flat else [find_numbers(features, (n,), where) for n in EDGES]
    count = len(edges[0])
    labels = find_numbers(features, BOX_LABELS, where)
    crowd = find_numbers(features, ("image/object/is_crowd",), where)
    if any(len(values) != count for values in edges) or len(labels) not in (0, count) or len(crowd) not in (0, count):
        raise DataError(f"{where}: boxes with unlike numbers of edges, classes or crowd marks")
    areas = find_areas(features, count, where, image) if image else [None] * count
    boxes = zip(labels or [first] * count, zip(*edges, strict=True), crowd or [0] * count, areas, strict=True)
    return tuple(
        make_box(label - first, [shorten(edge) for edge in four], crowded, area) for label, four, crowded, area in boxes
    )


def find_numbers(features: Mapping[str, Feature], names: Sequence[str], where: str) -> list[float]:
    """Return the numbers of the first of these features that has any."""
    for name in names:
        feature = features.get(name)
        if feature is None or not feature.values:
            continue
        if feature.kind == "bytes" or not all(math.isfinite(value) for value in feature.values):
            raise DataError(f"{where}: {name} holds something that is no number")
        return feature.values
    return []
