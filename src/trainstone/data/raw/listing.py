"""A split of very many pictures by number: plain files, ranges of tars and members of zips, in little memory.

Nothing is decoded. ImageNet's 1.28 million training pictures take about 200 MB.
"""

import hashlib
import os
import threading
import zipfile
from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainstone.data.raw.archives import open_zip, read_zip_member
from trainstone.data.sample import Box, Edges, Sample
from trainstone.errors import DataError
from trainstone.formats.files import find_odd_character
from trainstone.text import printable
from trainstone.units import format_bytes

MAX_PICTURE_BYTES = 256 * 2**20
READ_BYTES = 2**20
FILES_ASKED = 500
_HINT = "it changed after it was listed; look again whether all data is there"


class Place(NamedTuple):
    """Where the content of a file lies."""

    container: Path
    """The folder of a plain file, which has the last part of the sample's name there; else a tar or a zip."""
    offset: int = -1
    """In a tar that of the content, in a zip the number of the member; -1 for a plain file."""
    size: int = -1


class FileListing:
    """Pictures with one label each; made by ListingBuilder."""

    def __init__(
        self,
        names: Sequence[str],
        containers: Sequence[Path],
        columns: Mapping[str, NDArray[Any]],
        boxes: Mapping[str, Sequence[Edges]],
    ) -> None:
        self._names = names
        self._containers = containers
        self._folders = [f"{container}/" for container in containers]
        self._columns = columns
        self._box_starts, self._boxes = _gather_boxes(names, boxes)
        self._lock = threading.Lock()
        self._zips: dict[Path, zipfile.ZipFile] = {}

    def __len__(self) -> int:
        return len(self._names)

    def name(self, index: int) -> str:
        """Return the name, such as n01440764/n01440764_10026.JPEG."""
        return self._names[index]

    def label(self, index: int) -> int:
        """Return the class, counted from 0."""
        return int(self._columns["label"][index])

    def where(self, index: int) -> str:
        """Return the file, or the archive and the byte in it."""
        place = self._place(index)
        if place.offset < 0:
            return printable(self._path(index))
        what = "member" if _is_zip(place.container) else "byte"
        return f"{printable(str(place.container))}, {what} {place.offset} ({printable(self._names[index])})"

    def size_bytes(self, index: int) -> int:
        """Return the size of the picture's file."""
        place = self._place(index)
        if place.offset >= 0:
            return place.size
        try:
            return os.stat(self._path(index)).st_size  # noqa: PTH116
        except OSError as err:
            raise self._unreadable(index, err) from err

    def read_bytes(self, index: int) -> bytes:
        """Return the content of the file."""
        try:
            return self._read_file(index) if self._columns["offset"][index] < 0 else self._read_archive(index)
        except OSError as err:
            raise self._unreadable(index, err) from err

    def read(self, index: int) -> Sample:
        """Return the picture, undecoded, with its label and boxes."""
        image = self.read_bytes(index)
        if not image:
            raise DataError(f"{self.where(index)}: empty, no picture", hint="copy the picture again or take it away")
        label = self.label(index)
        edges = self._boxes[self._box_starts[index] : self._box_starts[index + 1]]
        return Sample(self._names[index], image, label, tuple(Box(label, *box) for box in edges.tolist()))

    def fingerprint(self) -> str:
        """Return a hash of names, labels, boxes, and size and time of every archive, of every folder and of some files.

        Not of all plain files: to ask for a million of them takes minutes on a file system of a cluster.
        """
        digest = hashlib.sha256("\n".join(self._names).encode())
        kept = [column for key, column in self._columns.items() if key != "container"]  # numbered as they were met
        for column in (*kept, self._box_starts, self._boxes):
            digest.update(column.tobytes())
        step = max(1, len(self) // FILES_ASKED)
        files = [self._path(n) for n in range(0, len(self), step) if self._columns["offset"][n] < 0]
        for path in (*sorted(self._containers), *map(Path, files)):
            try:
                facts = path.stat()
            except OSError as err:
                raise DataError(f"{printable(str(path))}: cannot be read: {err.strerror}", hint=_HINT) from err
            digest.update(f"{facts.st_size} {facts.st_mtime_ns}\n".encode())
        return digest.hexdigest()

    def _place(self, index: int) -> Place:
        container, offset, size = (int(self._columns[key][index]) for key in ("container", "offset", "size"))
        return Place(self._containers[container], offset, size)

    def _path(self, index: int) -> str:
        """Return a plain file's path, without pathlib: this is done a million times."""
        folder = self._folders[self._columns["container"][index]]
        return f"{folder}{self._names[index].rpartition('/')[2]}"

    def _read_file(self, index: int) -> bytes:
        descriptor = os.open(self._path(index), os.O_RDONLY)
        try:
            content = os.read(descriptor, READ_BYTES)
            if len(content) == READ_BYTES:  # seldom; requesting the size first would be one call more for each file
                self._check_size(index, os.fstat(descriptor).st_size)
                while rest := os.read(descriptor, READ_BYTES):
                    content += rest
            return content
        finally:
            os.close(descriptor)

    def _read_archive(self, index: int) -> bytes:
        place = self._place(index)
        self._check_size(index, place.size)
        content: bytes | None
        if _is_zip(place.container):
            with self._lock:
                if place.container not in self._zips:
                    self._zips[place.container] = open_zip(place.container)
                archive = self._zips[place.container]
            content = read_zip_member(archive, self._lock, archive.infolist()[place.offset])
        else:
            content = read_range(place)
        if content is None or len(content) < place.size:
            raise DataError(f"{self.where(index)}: damaged or cut off in its archive", hint=_HINT)
        return content

    def _unreadable(self, index: int, err: OSError) -> DataError:
        return DataError(f"{self.where(index)}: cannot be read: {err.strerror or err}", hint=_HINT)

    def _check_size(self, index: int, size: int) -> None:
        if size > MAX_PICTURE_BYTES:
            limit = format_bytes(MAX_PICTURE_BYTES)
            raise DataError(f"{self.where(index)}: {format_bytes(size)} are no picture; up to {limit} are read")


def read_range(place: Place) -> bytes:
    """Return a tar member's bytes; fewer where the tar has become shorter."""
    descriptor = os.open(place.container, os.O_RDONLY)
    try:
        return os.pread(descriptor, place.size, place.offset)
    finally:
        os.close(descriptor)


def _is_zip(path: Path) -> bool:
    return path.suffix.lower() == ".zip"


def _gather_boxes(
    names: Sequence[str], boxes: Mapping[str, Sequence[Edges]]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the boxes of all samples as one array, and where each sample's begin: little memory for many."""
    starts, edges = array("q", [0]), array("d")
    for name in names:
        stem = name.rpartition(".")[0]
        for box in boxes.get(stem) or boxes.get(stem.rpartition("/")[2], ()):
            edges.extend(box)
        starts.append(len(edges) // 4)
    return np.array(starts), np.array(edges).reshape(-1, 4)


class ListingBuilder:
    """Gathers pictures of one split in any order."""

    def __init__(self, where: Path) -> None:
        self._where = printable(str(where))
        self._names: list[str] = []
        self._classes: dict[str, int] = {}
        self._containers: dict[Path, int] = {}
        self._class = array("i")
        self._container = array("i")
        self._offset, self._size = array("q"), array("q")

    def __len__(self) -> int:
        return len(self._names)

    @property
    def classes(self) -> list[str]:
        """The classes seen so far, in order of appearance."""
        return list(self._classes)

    def add(self, name: str, class_name: str, place: Place) -> None:
        """Take a picture."""
        if problem := find_odd_character(name):
            raise DataError(f"{self._where}: '{printable(name)}' {problem}", hint="rename it")
        self._names.append(name)
        self._class.append(self._classes.setdefault(class_name, len(self._classes)))
        self._container.append(self._containers.setdefault(place.container, len(self._containers)))
        self._offset.append(place.offset)
        self._size.append(place.size)

    def finish(
        self,
        classes: Sequence[str],
        boxes: Mapping[str, Sequence[Edges]] | None = None,
        *,
        leave_out_others: bool = False,
    ) -> FileListing:
        """Return the pictures by class, in the order of `classes`, and by name; labels are places in that list.

        Boxes are found by a name without its extension, or by the last part of that. A class that is not in the list
        is an error, unless pictures of others are to be left out.
        """
        ranks = {name: rank for rank, name in enumerate(classes)}
        unknown = [name for name in self._classes if name not in ranks]
        if unknown and not leave_out_others:
            raise DataError(
                f"{self._where}: class '{printable(unknown[0])}' is not among the {len(classes)} classes of train",
                hint="take the folder away, or add the class to train",
            )
        labels = np.array([ranks.get(name, -1) for name in self._classes], np.int32)[np.frombuffer(self._class, "i4")]
        order = self._sort(labels)
        names = [self._names[i] for i in order]
        for name, following in pairwise(names):
            if name == following:
                told = f"{self._where}: two pictures are named {printable(name)}"
                raise DataError(told, hint="take one of them away")
        columns: dict[str, NDArray[Any]] = {"label": labels[order]}
        for key, values in (("container", self._container), ("offset", self._offset), ("size", self._size)):
            columns[key] = np.array(values)[order]
        return FileListing(names, list(self._containers), columns, boxes or {})

    def _sort(self, labels: NDArray[np.int32]) -> NDArray[np.int64]:
        order = np.argsort(labels, kind="stable")
        order = order[np.searchsorted(labels[order], 0) :]  # those left out have -1
        starts = np.flatnonzero(np.diff(labels[order], prepend=-2))
        for first, last in zip(starts, [*starts[1:], len(order)], strict=True):
            order[first:last] = sorted(order[first:last].tolist(), key=self._names.__getitem__)
        return order
