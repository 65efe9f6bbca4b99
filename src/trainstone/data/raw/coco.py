"""COCO's layout, as it lies: annotations/instances_<split>.json and a folder of pictures for each split.

Any categories will do. prepare_coco.py makes such a folder from the published zips and checks it.
"""

import hashlib
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainstone.data.sample import ClassName, DataSet, Sample, Split, make_box
from trainstone.errors import DataError
from trainstone.formats.coco import NAME_OF_ID, CocoCategory, Instances, number_categories, read_instances

log = logging.getLogger(__name__)

ANNOTATIONS = re.compile(r"(bbox_only_)?instances_([A-Za-z0-9._-]+)\.json")
YEAR = re.compile(r"20\d\d$")


def find_coco(path: Path) -> DataSet:
    """Open a folder in COCO's layout; splits whose pictures are not there are told and left out."""
    usable = find_splits(path)
    found = find_annotations(path / "annotations")
    if not usable:
        stems = ", ".join(found) or "train2017"
        missing = "no images for its annotations" if found else "no annotations/instances_<split>.json"
        hint = f"images of a split are looked for in folders named like it ({stems}), or below images/"
        raise DataError(f"{path} is not in COCO's layout: {missing}", hint=hint)
    lacking = tell_lacking(path, {stem: file for stem, file in found.items() if stem not in usable})
    splits: list[Split] = []
    categories: Sequence[CocoCategory] = ()
    for stem, (file, folder) in usable.items():
        instances = read_instances(file)
        if splits and list_classes(instances.categories) != list_classes(categories):
            raise DataError(f"{file} has other categories than the files beside it")
        categories = instances.categories
        splits.append(Split(name_split(stem, usable), make_source(instances, file, folder)))
    classes = [ClassName(name) for _, name in list_classes(categories)]
    return DataSet("detect", "COCO", classes, splits, name_set(categories), lacking=lacking)


def tell_lacking(path: Path, files: Mapping[str, Path]) -> dict[str, str]:
    """Warn of annotations without a folder of pictures; return what is said of each by train2017 and by train."""
    told: dict[str, str] = {}
    for stem, file in files.items():
        reason = f"annotations/{file.name} is there, {stem}/ is not"
        log.warning("%s: %s: its pictures are left out", path, reason)
        for name in (stem, YEAR.sub("", stem)):
            told.setdefault(name, reason)
    return told


def open_splits(path: Path, folders: Mapping[str, str]) -> DataSet:
    """Open the splits of a prepared set: each with its folder of pictures, after which its annotations are named."""
    splits = []
    for name, folder in folders.items():
        annotations = path / "annotations" / f"instances_{folder}.json"
        splits.append(Split(name, make_source(read_instances(annotations), annotations, path / folder)))
    return DataSet("detect", "COCO", (), splits)


def find_splits(path: Path) -> dict[str, tuple[Path, Path]]:
    """Return train2017 -> its annotation file and its pictures' folder; train comes first."""
    found = {stem: (file, find_pictures(path, stem)) for stem, file in find_annotations(path / "annotations").items()}
    return {stem: (file, folder) for stem, (file, folder) in found.items() if folder is not None}


def find_annotations(folder: Path) -> dict[str, Path]:
    """Return train2017 -> the annotation file, complete ones before those with boxes only; train comes first."""
    found: dict[str, Path] = {}
    for file in sorted(folder.glob("*.json"), reverse=True):  # instances_ before bbox_only_
        named = ANNOTATIONS.fullmatch(file.name)
        if named is not None:
            found.setdefault(named[2], file)
    return dict(sorted(found.items(), key=lambda item: (not item[0].startswith("train"), item[0])))


def find_pictures(path: Path, stem: str) -> Path | None:
    names = dict.fromkeys((stem, YEAR.sub("", stem) or stem))
    folders = [path / below / name for name in names for below in ("", "images")]
    return next((folder for folder in folders if folder.is_dir()), None)


def name_split(stem: str, among: Sequence[str] | dict[str, Any]) -> str:
    """Return train for train2017, unless there is a train2014, too."""
    short = YEAR.sub("", stem) or stem
    return short if sum((YEAR.sub("", other) or other) == short for other in among) == 1 else stem


def list_classes(categories: Sequence[CocoCategory]) -> list[tuple[int, str]]:
    return sorted((item.id, item.name) for item in categories)


def name_set(categories: Sequence[CocoCategory]) -> str:
    return "coco" if {item.id: item.name for item in categories} == NAME_OF_ID else ""


@dataclass(frozen=True)
class CocoSource:
    """The pictures of one split; boxes lie in arrays, so that many processes can share them."""

    annotations: Path
    pictures: Path
    names: Sequence[str]
    ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    """First box of each picture, and the end."""
    edges: NDArray[np.float64]
    """Left, top, right, bottom as shares of width and height. (boxes, 4)"""
    labels: NDArray[np.int64]
    crowds: NDArray[np.bool_]
    areas: NDArray[np.float64]
    """Of objects, as shares of the picture's; not a number where only the box's is known."""

    def __len__(self) -> int:
        return len(self.names)

    def read(self, index: int) -> Sample:
        try:
            image = (self.pictures / self.names[index]).read_bytes()
        except OSError as err:
            raise DataError(
                f"cannot read {self.where(index)}: {err.strerror}", hint=f"{self.annotations} names it"
            ) from err
        chosen = slice(int(self.starts[index]), int(self.starts[index + 1]))
        columns = (self.labels, self.edges, self.crowds, self.areas)
        boxes = tuple(
            make_box(label, edges, crowd, None if math.isnan(area) else area)
            for label, edges, crowd, area in zip(*(column[chosen].tolist() for column in columns), strict=True)
        )
        return Sample(self.names[index], image, boxes=boxes, id=int(self.ids[index]))

    def name(self, index: int) -> str:
        return self.names[index]

    def where(self, index: int) -> str:
        return str(self.pictures / self.names[index])

    def size_bytes(self, index: int) -> int:
        """Return a picture's length; 0 where it is gone, which reading it will tell."""
        try:
            return (self.pictures / self.names[index]).stat().st_size
        except OSError:
            return 0

    def fingerprint(self) -> str:
        """Return a checksum of the annotation file's facts, and the pictures' names and lengths."""
        facts = self.annotations.stat()
        told = f"{self.annotations.name} {facts.st_size} {facts.st_mtime_ns} {self.pictures.name}\n"
        digest = hashlib.sha256(told.encode("utf-8", "surrogateescape"))
        for index, name in enumerate(self.names):
            digest.update(f"{self.size_bytes(index)} {name}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def without_empty(self) -> "CocoSource":
        """Return the pictures with at least one box, as detectors are trained on."""
        counts = np.diff(self.starts)
        kept = np.flatnonzero(counts)
        starts = np.concatenate([[0], np.cumsum(counts[kept])])
        return replace(self, names=[self.names[i] for i in kept.tolist()], ids=self.ids[kept], starts=starts)


def make_source(instances: Instances, annotations: Path, pictures: Path) -> CocoSource:
    """Gather the boxes of each picture, clipped to it; the order within a picture stays."""
    numbers = number_categories(instances.categories)
    place_of = {image.id: place for place, image in enumerate(instances.images)}
    places = np.array([place_of[item.image_id] for item in instances.annotations], dtype=np.int64)
    sizes = np.array([(image.width, image.height) for image in instances.images], dtype=np.float64).reshape(-1, 2)
    boxes = np.array([item.bbox for item in instances.annotations], dtype=np.float64).reshape(-1, 4)
    ends = sizes[places]
    low = np.clip(boxes[:, :2], 0, ends) / ends
    high = np.clip(boxes[:, :2] + boxes[:, 2:], 0, ends) / ends
    kept = np.flatnonzero((high > low).all(axis=1))
    if len(kept) < len(boxes):
        log.warning("%s: %d boxes without any area in their picture are left out", annotations, len(boxes) - len(kept))
    order = kept[np.argsort(places[kept], kind="stable")]
    counts = np.bincount(places[kept], minlength=len(instances.images))
    return CocoSource(
        annotations=annotations,
        pictures=pictures,
        names=[image.file_name for image in instances.images],
        ids=np.array([image.id for image in instances.images], dtype=np.int64),
        starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        edges=np.concatenate([low, high], axis=1)[order],
        labels=np.array([numbers[item.category_id] - 1 for item in instances.annotations], dtype=np.int64)[order],
        crowds=np.array([item.crowd for item in instances.annotations], dtype=np.bool_)[order],
        areas=(find_areas(instances, boxes) / ends.prod(axis=1))[order],
    )


def find_areas(instances: Instances, boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the objects' areas in pixels; not a number where the file has none of its own.

    The original's prepared files say 1 everywhere, and ours the box's own area, to three decimals, where none is known.
    """
    told = (item.area for item in instances.annotations)
    areas = np.array([np.nan if area is None else area for area in told], dtype=np.float64)
    if not len(areas) or (areas == 1).all():
        return np.full(len(areas), np.nan)
    width, height = boxes[:, 2], boxes[:, 3]
    as_box = np.abs(areas - width * height) <= 0.001 * (1 + np.abs(width) + np.abs(height))
    return np.where(as_box | (areas < 0), np.nan, areas)
