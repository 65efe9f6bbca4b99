"""The types shared by all storage formats: Sample (an image with labels and boxes), Source, DataSet."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from trainstone.errors import DataError

Edges = tuple[float, float, float, float]
"""Left, top, right, bottom of a rectangle as shares of the image's width and height."""


class Box(NamedTuple):
    """A rectangle in an image; edges are shares of its width and height, 0 to 1."""

    label: int
    """Class, counted from 0."""
    left: float
    top: float
    right: float
    bottom: float
    crowd: bool = False
    area: float | None = None
    """Area of the object, as a share of the image's area; None if unknown: the box's area is used."""


def build_box(label: float, edges: Sequence[float], crowd: float = 0, area: float | None = None) -> Box:
    """Return a box from numbers as files store them."""
    left, top, right, bottom = (float(edge) for edge in edges)
    return Box(int(label), left, top, right, bottom, crowd=bool(crowd), area=None if area is None else float(area))


def list_box_values(box: Box) -> list[float]:
    """Return a box as numbers: class, edges, crowd flag and, if known, the object's area; the inverse of build_box."""
    return [*box[:5], int(box.crowd), *(() if box.area is None else (box.area,))]


def clip_box(box: Box) -> Box | None:
    """Return the box clipped to its image; None if nothing of it is inside, or an edge is NaN."""
    if 0 <= box.left < box.right <= 1 and 0 <= box.top < box.bottom <= 1:
        return box
    left, top, right, bottom = (min(max(edge, 0.0), 1.0) for edge in box[1:5])
    if not (left < right and top < bottom) or any(edge != edge for edge in box[1:5]):
        return None
    return box._replace(left=left, top=top, right=right, bottom=bottom)


class ClassName(NamedTuple):
    """A class: its name (a folder or synset) and a readable text, which may be empty."""

    name: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """An undecoded image with its labels."""

    name: str
    """Relative name with /, unique in its split: n01440764/n01440764_10026.JPEG."""
    image: bytes
    label: int | None = None
    """Class, counted from 0; None for detection, or if the label is not a class (see `values`)."""
    boxes: tuple[Box, ...] = ()
    values: tuple[float, ...] = ()
    """Labels that are not a class: a vector, or a number with a fraction."""
    id: int | None = None
    """Id of the image in its data set, such as COCO's image id; None if it has none."""


class Source(Protocol):
    """The samples of one split, by index. `read` may be called from several threads at once."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> Sample:
        """Return a sample; if it cannot be read, raise a DataError that names the file and the byte offset."""
        ...

    def name(self, index: int) -> str:
        """Return a sample's name, if possible without reading its image."""
        ...

    def where(self, index: int) -> str:
        """Return a sample's location for messages: file, and record or byte."""
        ...

    def fingerprint(self) -> str:
        """Return a value that changes when the samples change: interrupted work resumes only with the same value."""
        ...


class ImageSource:
    """Image files without classes."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> Sample:
        path = self.paths[index]
        try:
            image = path.read_bytes()
        except OSError as err:
            raise DataError(f"cannot read {path}: {err.strerror}") from err
        if not image:
            raise DataError(f"{path} is empty")
        return Sample(path.name, image)

    def name(self, index: int) -> str:
        return self.paths[index].name

    def where(self, index: int) -> str:
        return str(self.paths[index])

    def fingerprint(self) -> str:
        return fingerprint_files(self.paths)


class Selection:
    """A subset of another source."""

    def __init__(self, source: Source, numbers: Sequence[int]) -> None:
        self._source = source
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def read(self, index: int) -> Sample:
        return self._source.read(self._numbers[index])

    def name(self, index: int) -> str:
        return self._source.name(self._numbers[index])

    def where(self, index: int) -> str:
        return self._source.where(self._numbers[index])

    def fingerprint(self) -> str:
        chosen = hashlib.sha256(str(list(self._numbers)).encode()).hexdigest()
        return f"{chosen} of {self._source.fingerprint()}"


class Split(NamedTuple):
    """A split of a data set: train or val."""

    name: str
    source: Source


@dataclass(frozen=True)
class DataSet:
    """A data set found at a path."""

    kind: str
    """classify, or detect."""
    storage: str
    """Storage format for messages: ILSVRC2012 tars, class folders, RecordIO, TFRecord, WebDataset, COCO."""
    classes: Sequence[ClassName]
    splits: Sequence[Split]
    name: str = ""
    """imagenet, coco ...; empty if unknown."""
    first_label: int | None = None
    """Label of the first class in TFRecord files: 0, or 1 if 0 means background."""
    missing_splits: Mapping[str, str] = field(default_factory=dict)
    """Splits that have annotations but no folder of images, each with the reason."""


def shorten_float(value: float) -> float:
    """Return the shortest decimal that is the same 32-bit float: 0.3, not 0.30000001192."""
    return float(str(np.float32(value)))


def fingerprint_files(paths: Iterable[Path]) -> str:
    """Return a hash of the files' names, sizes and modification times."""
    digest = hashlib.sha256()
    for path in paths:
        facts = path.stat()
        digest.update(f"{path.name} {facts.st_size} {facts.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
