"""What every kind of storage holds in the end: an image with its label and its boxes. And where samples come from."""

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
    """Of the object itself, as a share of the image's area; None: not known, the box's is taken."""


def make_box(label: float, edges: Sequence[float], crowd: float = 0, area: float | None = None) -> Box:
    """Return a box of numbers as files have them."""
    left, top, right, bottom = (float(edge) for edge in edges)
    return Box(int(label), left, top, right, bottom, crowd=bool(crowd), area=None if area is None else float(area))


def list_numbers(box: Box) -> list[float]:
    """Return a box as make_box takes it: class, edges, crowd mark and, where it is known, the object's area."""
    return [*box[:5], int(box.crowd), *(() if box.area is None else (box.area,))]


def clip_box(box: Box) -> Box | None:
    """Return what of a box lies in its image; None where nothing of it does, or an edge is no number."""
    if 0 <= box.left < box.right <= 1 and 0 <= box.top < box.bottom <= 1:
        return box
    left, top, right, bottom = (min(max(edge, 0.0), 1.0) for edge in box[1:5])
    if not (left < right and top < bottom) or any(edge != edge for edge in box[1:5]):
        return None
    return box._replace(left=left, top=top, right=right, bottom=bottom)


class ClassName(NamedTuple):
    """A class: its name (a folder, a synset) and what people call it; `text` may be empty."""

    name: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """An image as it is stored, undecoded."""

    name: str
    """Relative name with /, unique in its split: n01440764/n01440764_10026.JPEG."""
    image: bytes
    label: int | None = None
    """Class, counted from 0; None where there is none (detection) or it is no class (see `values`)."""
    boxes: tuple[Box, ...] = ()
    values: tuple[float, ...] = ()
    """Labels that are no class: a vector, or a number with a fraction."""
    id: int | None = None
    """Number of the image in its data set (COCO's image id), where it has one."""


class Source(Protocol):
    """The samples of one split, by number. `read` may be called from several threads at once."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> Sample:
        """Return a sample; DataError names the file and the byte where that cannot be done."""
        ...

    def name(self, index: int) -> str:
        """Return a sample's name without reading its image where that is possible."""
        ...

    def where(self, index: int) -> str: ...

    def fingerprint(self) -> str:
        """Return what changes when the samples do: interrupted work may only go on from the same."""
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
    """A choice out of another source."""

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
    """A part of a data set: train, val."""

    name: str
    source: Source


@dataclass(frozen=True)
class DataSet:
    """What was found at a path."""

    kind: str
    """classify, or detect."""
    storage: str
    """What it lies in, for people: ILSVRC2012 tars, class folders, RecordIO, TFRecord, WebDataset, COCO."""
    classes: Sequence[ClassName]
    splits: Sequence[Split]
    name: str = ""
    """imagenet, coco ... where known."""
    first_label: int | None = None
    """What its records call the first class, where they are TFRecord: 0, or 1 if 0 means background."""
    lacking: Mapping[str, str] = field(default_factory=dict)
    """Splits that are described there but have no folder of images, and how that is seen."""


def shorten(value: float) -> float:
    """Return the shortest decimal number that is the same 32-bit float: 0.3, not 0.30000001192."""
    return float(str(np.float32(value)))


def fingerprint_files(paths: Iterable[Path]) -> str:
    """Return what changes when one of these files does."""
    digest = hashlib.sha256()
    for path in paths:
        facts = path.stat()
        digest.update(f"{path.name} {facts.st_size} {facts.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
