"""Read and write samples in TFRecord, with the features of build_imagenet_data.py or create_tfrecord.py (COCO).

Other feature sets are recognised: the image is image/encoded or the only feature that is an image.
"""

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trainstone.data.image.inspect import ImageHeader, find_extension, read_header
from trainstone.data.sample import Box, ClassName, Sample, build_box, shorten_float
from trainstone.data.storage.records import Encoded, Encoder, Offsets, RecordAnnotations, Shard, ShardReader
from trainstone.errors import DataError
from trainstone.formats.files import ByteSpan
from trainstone.formats.tfrecord import (
    Feature,
    TFRecordFile,
    bytes_feature,
    decode_example,
    encode_example,
    float_feature,
    format_index_line,
    frame_record,
    int64_feature,
    read_index,
)

LABELS = ("image/class/label", "image/label", "label", "class", "cls")
NAMES = ("image/filename", "image/fname", "image/source_id", "filename", "key")
IMAGES = ("image/encoded", "image_raw", "image", "jpg", "jpeg", "png")
EDGES = ("image/object/bbox/xmin", "image/object/bbox/ymin", "image/object/bbox/xmax", "image/object/bbox/ymax")
BOX_LABELS = ("image/object/bbox/label", "image/object/class/label", "image/object/label")
BOX_NAMES = ("image/object/name", "image/object/class/text")
MAX_DIGITS = 18


class TFRecordEncoder(Encoder):
    """Writes TFRecord shards and DALI's text index for each."""

    def encode(self, sample: Sample, number: int, header: ImageHeader) -> Encoded:
        features = (self._detect if self._kind == "detect" else self._classify)(sample, number, header)
        return Encoded(sample.name, (frame_record(encode_example(features)),))

    def sidecar_lines(self, encoded: Encoded, span: ByteSpan) -> tuple[str, ...]:
        return (format_index_line(span),)

    def _classify(self, sample: Sample, number: int, header: ImageHeader) -> dict[str, Feature]:
        label = -1 if sample.label is None else sample.label + self._first_label
        known = self.find_class(sample.label) if sample.label is not None else ClassName("")
        # Readers take a synset as "labels start at 1", so a data set whose labels start at 0 stores full names instead.
        texts = {"image/class/text": known.name, "image/filename": sample.name}
        if self._first_label != 0:
            texts = {"image/class/synset": known.name, "image/class/text": known.text}
            texts["image/filename"] = sample.name.rpartition("/")[2]
        edges = zip(*(box[1:5] for box in sample.boxes), strict=True) if sample.boxes else [()] * 4
        features = {
            "image/height": int64_feature(header.height),
            "image/width": int64_feature(header.width),
            "image/colorspace": bytes_feature(b"RGB"),
            "image/channels": int64_feature(3),
            "image/class/label": int64_feature(label),
            **{name: bytes_feature(encode_text(text)) for name, text in texts.items()},
            **{name: float_feature(*values) for name, values in zip(EDGES, edges, strict=True)},
            "image/object/bbox/label": int64_feature(*(label for _ in sample.boxes)),
            "image/format": bytes_feature(header.kind.upper().encode()),
            "image/encoded": bytes_feature(sample.image),
        }
        if sample.values:
            features["image/class/values"] = float_feature(*sample.values)
        return features

    def _detect(self, sample: Sample, number: int, header: ImageHeader) -> dict[str, Feature]:
        boxes = sample.boxes
        features = {
            "image/fname": bytes_feature(encode_text(sample.name)),
            "image/encoded": bytes_feature(sample.image),
            "image/id": int64_feature(number if sample.id is None else sample.id),
            "image/shape": int64_feature(header.height, header.width, 3),
            "image/object/label": int64_feature(*(box.label + self._first_label for box in boxes)),
            "image/object/name": bytes_feature(*(encode_text(self.find_class(box.label).name) for box in boxes)),
            "image/object/bbox": float_feature(*(edge for box in boxes for edge in box[1:5])),
            "image/object/is_crowd": int64_feature(*(int(box.crowd) for box in boxes)),
        }
        if any(box.area is not None for box in boxes):  # in pixels, as in TensorFlow's detection API
            shares = ((b.right - b.left) * (b.bottom - b.top) if b.area is None else b.area for b in boxes)
            features["image/object/area"] = float_feature(*(share * header.width * header.height for share in shares))
        return features

    def sidecars(self, shard: Shard) -> tuple[str, ...]:
        # ImageNet's index files are in a folder of their own, so that a reader's glob train-* does not match them.
        detect = shard.file.endswith(".tfrecord")
        return (f"{shard.file.removesuffix('.tfrecord')}.idx" if detect else f"idx/{shard.file}.idx",)


class TFRecordShard(ShardReader):
    """Reads a TFRecord file; an index is used only if it matches the file."""

    kind = TFRecordFile
    file: TFRecordFile

    def _indexes(self) -> list[Path]:
        """Return the existing index files, in the usual places."""
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
            except DataError:  # ignore a damaged index; verify reports it
                continue
            contiguous = all(before.end == after.offset for before, after in pairwise(spans))
            if spans and contiguous and spans[0].offset == 0 and spans[-1].end == self.file.size:
                return np.array([span.offset for span in spans], dtype=np.int64)
        return super().offsets()

    def _record(self, offset: int, *, check: bool = True, skip: Sequence[str] = ()) -> "ExampleRecord":
        where = f"{self.path}, record at byte {offset}"
        return ExampleRecord(decode_example(self.file.read(offset, check=check), where, skip=skip), where)

    def features(self, offset: int) -> Mapping[str, Feature]:
        return self._record(offset).features

    def read(self, offset: int) -> Sample:
        found = self._record(offset)
        image = found.find_image()
        first, label = self.first_label(found.features), found.find_label()
        name = next((text for key in NAMES if (text := found.find_text(key))), "")
        name = name or f"{self.path.name}-{offset}.{find_extension(image)}"
        synset = found.find_text("image/class/synset")
        if synset and "/" not in name and label is not None:
            name = f"{synset}/{name}"
        values = tuple(shorten_float(value) for value in found.find_numbers("image/class/values"))
        boxes, number = found.find_boxes(first, image), found.find_integer("image/id")
        if label is None or label < first or "image/object/bbox" in found.features:
            return Sample(name, image, None, boxes, values, number)
        return Sample(name, image, label - first, boxes, values, number)

    def read_annotations(self, offset: int) -> RecordAnnotations:
        found = self._record(offset, check=False, skip=IMAGES)
        first, label = self.first_label(found.features), found.find_label()
        boxes = found.find_boxes(first)
        if label is not None:
            synset, text = found.find_text("image/class/synset"), found.find_text("image/class/text")
            known = ClassName(synset, text) if synset else ClassName(text)
            return RecordAnnotations([(label - first, known)] if label >= first else [], boxes)
        boxed = "image/object/bbox" in found.features or any(name in found.features for name in BOX_LABELS)
        texts = next((texts for name in BOX_NAMES if (texts := found.find_texts(name))), [""] * len(boxes))
        labels = [(box.label, ClassName(name)) for box, name in zip(boxes, texts, strict=False)]
        return RecordAnnotations(labels, boxes, boxed and "image/class/label" not in found.features)

    def first_label(self, features: Mapping[str, Feature]) -> int:
        """Return the label of the first class: 1 in ImageNet's and COCO's feature sets, otherwise 0."""
        if self._first_label is not None:
            return self._first_label
        return int("image/class/synset" in features or "image/object/bbox" in features)

    def index_files(self) -> Iterable[tuple[Path, str]]:
        indexes = self._indexes()
        text = "".join(format_index_line(span) for span in self.file.spans()) if indexes else ""
        return [(index, text) for index in indexes]


def encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


class ExampleRecord(NamedTuple):
    """A record's features by name, and its location for messages."""

    features: Mapping[str, Feature]
    where: str

    def find_image(self) -> bytes:
        """Return the image: a feature with a usual name, or the only one that is an image."""
        for name in (*IMAGES, *self.features):
            feature = self.features.get(name)
            if feature is not None and feature.kind == "bytes" and len(feature.values) == 1:
                with contextlib.suppress(DataError):
                    if name != IMAGES[0]:  # image/encoded is always the image; decoding reports damage
                        read_header(feature.values[0])
                    return bytes(feature.values[0])
        available = ", ".join(sorted(self.features)) or "none"
        raise DataError(f"{self.where}: no feature is an image; features: {available}")

    def find_integer(self, *names: str) -> int | None:
        """Return the first of these features that is one integer; some tools store it as text or float."""
        for name in names:
            feature = self.features.get(name)
            value = feature.values[0] if feature is not None and len(feature.values) == 1 else b""
            is_float = isinstance(value, float) and value.is_integer()
            is_text = isinstance(value, bytes) and value.isdigit() and len(value) <= MAX_DIGITS
            if isinstance(value, int) or is_float or is_text:
                return int(value)
        return None

    def find_label(self) -> int | None:
        """Return an image's label; raise DataError for a text, which would need a list of classes."""
        label = self.find_integer(*LABELS)
        texts = [text for name in LABELS for text in self.find_texts(name)]
        if label is None and len(texts) == 1 and texts[0]:
            raise DataError(f"{self.where}: invalid label {texts[0][:80]!r}; only numbers are supported")
        return label

    def find_text(self, name: str) -> str:
        texts = self.find_texts(name)
        return texts[0] if len(texts) == 1 else ""

    def find_texts(self, name: str) -> list[str]:
        feature = self.features.get(name)
        if feature is None or feature.kind != "bytes":
            return []
        return [value.decode("utf-8", "surrogateescape") for value in feature.values]

    def find_boxes(self, first: int, image: bytes = b"") -> tuple[Box, ...]:
        """Return the boxes from four lists of edges or one flat list; with the image, also stored areas."""
        flat = self.find_numbers("image/object/bbox")
        if len(flat) % 4:
            raise DataError(f"{self.where}: image/object/bbox has {len(flat)} numbers; a multiple of 4 is required")
        edges = [flat[place::4] for place in range(4)] if flat else [self.find_numbers(name) for name in EDGES]
        count, labels = len(edges[0]), self.find_numbers(*BOX_LABELS)
        crowd = self.find_numbers("image/object/is_crowd")
        if {*map(len, edges)} != {count} or not {len(labels), len(crowd)} <= {0, count}:
            raise DataError(f"{self.where}: boxes have different numbers of edges, classes or crowd flags")
        stated = self.find_numbers("image/object/area") if image else []
        if len(stated) not in (0, count):
            raise DataError(f"{self.where}: {len(stated)} areas for {count} boxes; the numbers must be equal")
        areas: list[float | None] = [None] * count
        with contextlib.suppress(DataError):  # decoding reports a damaged image
            if stated:
                header = read_header(image)
                pixels = max(1, header.width * header.height)
                areas = [shorten_float(area) / pixels if area >= 0 else None for area in stated]
        boxes = zip(labels or [first] * count, zip(*edges, strict=True), crowd or [0] * count, areas, strict=True)
        return tuple(
            build_box(n - first, [shorten_float(edge) for edge in four], mark, area) for n, four, mark, area in boxes
        )

    def find_numbers(self, *names: str) -> list[float]:
        """Return the values of the first of these features that is not empty."""
        for name in names:
            feature = self.features.get(name)
            if feature is None or not feature.values:
                continue
            if feature.kind == "bytes" or not all(math.isfinite(value) for value in feature.values):
                raise DataError(f"{self.where}: {name} has a value that is not a finite number")
            return feature.values
        return []
