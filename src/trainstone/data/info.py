"""Summarise a data set: class counts, image sizes and formats of a sample of images, and thumbnails.

It is not a full check (data/verify.py is): bad images among the sampled ones are listed.
"""

import base64
import contextlib
import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from trainstone.data.image.decode import decode, encode_jpeg
from trainstone.data.image.inspect import ImageHeader, read_header
from trainstone.data.sample import Box, ClassName, DataSet, Sample, Source, Split
from trainstone.errors import DataError
from trainstone.results.schema import dataset as results
from trainstone.text import printable
from trainstone.units import format_count

THUMBNAIL_PIXELS = 160
THUMBNAIL_QUALITY = 82
MAX_BAD = 20
MAX_BOXES = 100
MAX_LABEL = 2**31 - 1
"""Larger labels come from damaged records; they are clipped to this."""


class Labels(NamedTuple):
    """The class labels of all records, concatenated, and the number of labels per record (-1: the record is bad)."""

    classes: npt.NDArray[np.int32]
    per_record: npt.NDArray[np.int32]


def summarise_data_set(
    found: DataSet, path: str = "", *, samples: int = 24, num_inspected: int = 2000
) -> results.DatasetSummary:
    """Summarise a data set: inspect `num_inspected` images per split, make `samples` thumbnails in total."""
    splits, images = [], []
    for number, split in enumerate(found.splits):
        bad: dict[int, str] = {}
        inspected, boxes = inspect_images(split.source, num_inspected, bad)
        labels = read_labels(split.source, found.kind, boxes, bad)
        share = samples * (number + 1) // len(found.splits) - samples * number // len(found.splits)
        picked = pick_evenly(len(split.source), share)
        if found.kind != "detect":  # spread the thumbnails evenly over the classes
            by_record = np.full(len(split.source), -1, np.int32)
            by_record[labels.per_record == 1] = labels.classes
            order = np.argsort(by_record, kind="stable")
            picked = [int(order[place]) for place in picked]
        images += [build_thumbnail(split, index, found.classes, bad) for index in picked]
        splits.append(describe_split(split, found, labels, inspected, bad))
    return results.DatasetSummary(
        path=printable(path),
        kind="detect" if found.kind == "detect" else "classify",
        storage=printable(found.storage),
        name=printable(found.name),
        classes=[results.ClassSummary(name=printable(name), text=printable(text)) for name, text in found.classes],
        splits=splits,
        samples=[image for image in images if image is not None],
    )


def inspect_images(
    source: Source, number: int, bad: dict[int, str]
) -> tuple[results.SampledImages | None, dict[int, list[int]]]:
    """Read the headers of evenly spaced images; return their statistics and their box labels by record."""
    headers, lengths = list[ImageHeader](), list[int]()
    boxes: dict[int, list[int]] = {}
    for index in pick_evenly(len(source), number):
        try:
            sample = source.read(index)
            boxes[index] = [box.label for box in sample.boxes]
            headers.append(read_header(sample.image))
            lengths.append(len(sample.image))
        except DataError as err:
            bad.setdefault(index, err.message)
    if not headers:
        return None, boxes
    sizes = Counter((entry.width, entry.height) for entry in headers)
    found = results.SampledImages(
        images=len(headers),
        width=compute_quantiles([entry.width for entry in headers]),
        height=compute_quantiles([entry.height for entry in headers]),
        bytes=compute_quantiles(lengths),
        kinds=dict(Counter(entry.kind for entry in headers).most_common()),
        colours=dict(Counter(entry.colour for entry in headers).most_common()),
        sizes=[results.SizeCount(width=w, height=h, images=count) for (w, h), count in sizes.most_common()],
    )
    return found, boxes


def compute_quantiles(numbers: Sequence[int]) -> results.Quantiles:
    """Return quantiles and mean; each quantile is a value that occurs."""
    edges = np.quantile(numbers, [0, 0.05, 0.5, 0.95, 1], method="nearest").tolist()
    named = dict(zip(("minimum", "p5", "median", "p95", "maximum"), edges, strict=True))
    return results.Quantiles(**named, mean=float(np.mean(numbers, dtype=np.float64)))


def describe_split(
    split: Split, found: DataSet, labels: Labels, inspected: results.SampledImages | None, bad: Mapping[int, str]
) -> results.SplitSummary:
    paths: Sequence[Path] | None = getattr(split.source, "paths", None)
    number, classes, counts = len(found.classes), labels.classes, labels.per_record[labels.per_record >= 0]
    boxes = size = None
    if found.kind == "detect":
        per_image = dict(sorted(Counter(counts.tolist()).items()))
        boxes = results.BoxCounts(boxes=len(classes), images=len(counts), per_image=per_image)
    if paths is not None:
        with contextlib.suppress(OSError):  # the size stays unknown if a file is unreadable
            size = sum(path.stat().st_size for path in paths)
    listed = [(printable(split.source.where(index)), printable(bad[index])) for index in sorted(bad)[:MAX_BAD]]
    return results.SplitSummary(
        name=printable(split.name),
        records=len(split.source),
        bytes=size,
        shards=None if paths is None else len(paths),
        class_counts=np.bincount(classes[(classes >= 0) & (classes < number)], minlength=number).tolist(),
        outside=int((classes >= number).sum()),
        unlabelled=int((classes < 0).sum()) + (0 if boxes else int((counts == 0).sum())),
        counted=len(labels.per_record),
        boxes=boxes,
        sampled=inspected,
        num_bad=len(bad),
        bad=[results.BadRecord(where=where, why=why.removeprefix(f"{where}: ")) for where, why in listed],
    )


def build_thumbnail(
    split: Split, index: int, classes: Sequence[ClassName], bad: dict[int, str]
) -> results.DatasetSample | None:
    """Return an image's thumbnail with its boxes; None, with an entry in `bad`, if the image is bad."""
    try:
        sample = split.source.read(index)
        pixels: npt.NDArray[Any] = decode(sample.image)
    except DataError as err:
        bad.setdefault(index, err.message)
        return None
    height, width = pixels.shape[:2]
    scale = THUMBNAIL_PIXELS / max(height, width)
    if scale < 1:
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    boxes = [box for box in sample.boxes if math.isfinite(box.left + box.top + box.right + box.bottom)]
    return results.DatasetSample(
        split=printable(split.name),
        name=printable(sample.name),
        label=printable(describe_label(sample, classes)),
        width=pixels.shape[1],
        height=pixels.shape[0],
        jpeg_base64=base64.b64encode(encode_jpeg(pixels, THUMBNAIL_QUALITY)).decode("ascii"),
        boxes=[build_sample_box(box, classes) for box in boxes[:MAX_BOXES]],
    )


def build_sample_box(box: Box, classes: Sequence[ClassName]) -> results.SampleBox:
    left, top, right, bottom = (min(max(edge, 0.0), 1.0) for edge in box[1:5])
    text = printable(name_class(box.label, classes))
    return results.SampleBox(
        text=text, left=min(left, right), top=min(top, bottom), right=right, bottom=bottom, crowd=box.crowd
    )


def describe_label(sample: Sample, classes: Sequence[ClassName]) -> str:
    if sample.label is not None:
        return name_class(sample.label, classes)
    if sample.boxes:
        counts = Counter(name_class(box.label, classes) for box in sample.boxes).most_common()
        return ", ".join(f"{number} × {name}" if number > 1 else name for name, number in counts)
    return format_count(len(sample.values), "value") if sample.values else "no label"


def name_class(label: int, classes: Sequence[ClassName]) -> str:
    if not 0 <= label < len(classes):
        return f"class {label} (unknown)"
    return classes[label].text or classes[label].name


def pick_evenly(length: int, number: int) -> list[int]:
    """Return up to `number` evenly spaced indexes below `length`."""
    number = min(number, length)
    return [(2 * place + 1) * length // (2 * number) for place in range(number)]


def read_labels(source: Source, kind: str, read: Mapping[int, Sequence[int]], bad: dict[int, str]) -> Labels:
    """Return the labels of a split's records, or of their boxes, read in the cheapest way.

    `read` has the box labels of the records that were read already. If boxes can only be read together with the image,
    only these are used: reading every record may take hours.
    """
    untyped: Any = source
    detect, has_annotations = kind == "detect", hasattr(source, "read_annotations")

    def find(index: int) -> Sequence[int | None]:
        if not detect and hasattr(source, "label"):
            return [untyped.label(index)]
        if has_annotations:
            return [label for label, _ in untyped.read_annotations(index).labels]
        return read[index] if detect else [source.read(index).label]

    classes, per_record = array("i"), array("i")
    for index in read if detect and not has_annotations else range(len(source)):
        try:
            found = [-1 if label is None else max(-1, min(label, MAX_LABEL)) for label in find(index)]
            found = found if detect else found[:1]
            classes.extend(found)
            per_record.append(len(found))
        except DataError as err:
            bad.setdefault(index, err.message)
            per_record.append(-1)
    return Labels(np.array(classes, np.int32), np.array(per_record, np.int32))
