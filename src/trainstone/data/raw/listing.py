"""A split of very many pictures by number: plain files, ranges of tars and members of zips, in little memory.

Nothing is decoded. ImageNet's 1.28 million training pictures take about 200 MB.
"""

import hashlib
import os
import threading
import weakref
from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainstone.data.raw.archives import read_zip_member
from trainstone.data.raw.boxtable import BoxTable
from trainstone.data.raw.safenames import find_odd_character
from trainstone.data.sample import Edges, Sample
from trainstone.errors import DataError
from trainstone.text import printable
from trainstone.units import format_bytes

MAX_PICTURE_BYTES = 256 * 2**20
READ_BYTES = 2**20
FILES_ASKED = 500
# Archives are kept open, but no more than this: a folder of a thousand tars would use up what a process may open.
MAX_OPEN_FILES = 64
_HINT = "it changed after it was listed; look again whether all data is there"


class Place(NamedTuple):
    """Where the content of a file lies."""

    container: Path
    """The folder of a plain file, which has the last part of the sample's name there; else a tar or a zip."""
    offset: int = -1
    """In a tar that of the content, in a zip that of the local header; -1 for a plain file."""
    size: int = -1
    packed: int = -1
    """Bytes taken in a zip; -1 outside."""
    crc: int = 0


class FileListing:
    """Pictures with one label each; made by ListingBuilder."""

    def __init__(
        self,
        names: Sequence[str],
        containers: Sequence[Path],
        columns: Mapping[str, NDArray[Any]],
        boxes: BoxTable | None,
    ) -> None:
        self._names = names
        self._containers = containers
        self._folders = [f"{container}/" for container in containers]
        self._columns = columns
        self._boxes = boxes
        self._open_none()

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
        return f"{printable(str(place.container))}, byte {place.offset} ({printable(self._names[index])})"

    def size_bytes(self, index: int) -> int:
        """Return the size of the picture's file."""
        place = self._place(index)
        if place.offset >= 0:
            return place.size
        try:
            return os.stat(self._path(index)).st_size  # noqa: PTH116
        except OSError as err:
            raise self._unreadable(index, err) from err

    def read(self, index: int) -> Sample:
        """Return the picture, undecoded, with its label and boxes."""
        try:
            image = self._read_file(index) if self._columns["offset"][index] < 0 else self._read_archive(index)
        except OSError as err:
            raise self._unreadable(index, err) from err
        if not image:
            raise DataError(f"{self.where(index)}: empty, no picture", hint="copy the picture again or take it away")
        label = self.label(index)
        boxes = self._boxes.get(index, label) if self._boxes else ()
        return Sample(self._names[index], image, label, boxes)

    def fingerprint(self) -> str:
        """Return a hash of names, labels, boxes, and size and time of every archive, of every folder and of some files.

        Not of all plain files: to ask for a million of them takes minutes on a file system of a cluster.
        """
        digest = hashlib.sha256("\n".join(self._names).encode())
        kept = [column for key, column in self._columns.items() if key != "container"]  # numbered as they were met
        for column in (*kept, *(vars(self._boxes).values() if self._boxes else ())):
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

    def __getstate__(self) -> dict[str, Any]:
        # Open files stay in their process.
        return {key: value for key, value in vars(self).items() if key not in ("_lock", "_files", "_close")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open_none()

    def _open_none(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[int, int] = {}
        self._close = weakref.finalize(self, _close_all, self._files)

    def _place(self, index: int) -> Place:
        columns = self._columns
        return Place(
            self._containers[int(columns["container"][index])],
            *(int(columns[key][index]) for key in ("offset", "size", "packed", "crc")),
        )

    def _path(self, index: int) -> str:
        """Return a plain file's path, without pathlib: this is done a million times."""
        folder = self._folders[self._columns["container"][index]]
        return f"{folder}{self._names[index].rpartition('/')[2]}"

    def _read_file(self, index: int) -> bytes:
        descriptor = os.open(self._path(index), os.O_RDONLY)
        try:
            content = os.read(descriptor, READ_BYTES)
            if len(content) < READ_BYTES:  # nearly always; asking for the size first would be one call more
                return content
            size = os.fstat(descriptor).st_size
            if size > MAX_PICTURE_BYTES:
                raise self._too_large(index, size)
            pieces = [content]
            while rest := os.read(descriptor, READ_BYTES):
                pieces.append(rest)
            return b"".join(pieces)
        finally:
            os.close(descriptor)

    def _read_archive(self, index: int) -> bytes:
        place = self._place(index)
        if place.size > MAX_PICTURE_BYTES:
            raise self._too_large(index, place.size)
        number = int(self._columns["container"][index])
        kept = self._files.get(number)
        if kept is not None:
            return self._read_range(index, place, kept)
        with self._lock:
            if number not in self._files and len(self._files) < MAX_OPEN_FILES:
                self._files[number] = os.open(place.container, os.O_RDONLY)
        if number in self._files:
            return self._read_range(index, place, self._files[number])
        descriptor = os.open(place.container, os.O_RDONLY)
        try:
            return self._read_range(index, place, descriptor)
        finally:
            os.close(descriptor)

    def _read_range(self, index: int, place: Place, descriptor: int) -> bytes:
        if place.packed >= 0:
            content = read_zip_member(descriptor, place.offset, place.size, place.packed, place.crc)
            if content is None:
                raise DataError(f"{self.where(index)}: damaged in the zip, or no longer there", hint=_HINT)
            return content
        content = os.pread(descriptor, place.size, place.offset)
        if len(content) < place.size:
            raise DataError(
                f"{self.where(index)}: {place.size:,} bytes should be here, {len(content):,} are", hint=_HINT
            )
        return content

    def _unreadable(self, index: int, err: OSError) -> DataError:
        return DataError(f"{self.where(index)}: cannot be read: {err.strerror or err}", hint=_HINT)

    def _too_large(self, index: int, size: int) -> DataError:
        limit = format_bytes(MAX_PICTURE_BYTES)
        return DataError(f"{self.where(index)}: {format_bytes(size)} are no picture; up to {limit} are read")


class ListingBuilder:
    """Gathers pictures of one split in any order."""

    def __init__(self, where: Path) -> None:
        self._where = printable(str(where))
        self._names: list[str] = []
        self._classes: dict[str, int] = {}
        self._containers: dict[Path, int] = {}
        self._class = array("i")
        self._container = array("i")
        self._offset, self._size, self._packed, self._crc = array("q"), array("q"), array("q"), array("q")

    def __len__(self) -> int:
        return len(self._names)

    @property
    def classes(self) -> list[str]:
        """The classes seen so far, in order of appearance."""
        return list(self._classes)

    def add(self, name: str, class_name: str, place: Place) -> None:
        """Take a picture."""
        if not (name.isascii() and name.isprintable()) and (problem := find_odd_character(name)):
            raise DataError(f"{self._where}: '{printable(name)}' {problem}", hint="rename it")
        self._names.append(name)
        self._class.append(self._classes.setdefault(class_name, len(self._classes)))
        self._container.append(self._containers.setdefault(place.container, len(self._containers)))
        self._offset.append(place.offset)
        self._size.append(place.size)
        self._packed.append(place.packed)
        self._crc.append(place.crc)

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
        self._check_twice(names)
        columns: dict[str, NDArray[Any]] = {"label": labels[order]}
        for key in ("container", "offset", "size", "packed", "crc"):
            kept = np.array(getattr(self, f"_{key}"))[order]
            columns[key] = kept.astype(np.uint32) if key == "crc" else kept
        return FileListing(names, list(self._containers), columns, BoxTable.build(names, boxes) if boxes else None)

    def _sort(self, labels: NDArray[np.int32]) -> NDArray[np.int64]:
        order = np.argsort(labels, kind="stable")
        order = order[np.searchsorted(labels[order], 0) :]  # those left out have -1
        starts = np.flatnonzero(np.diff(labels[order], prepend=-2))
        for first, last in zip(starts, [*starts[1:], len(order)], strict=True):
            order[first:last] = sorted(order[first:last].tolist(), key=self._names.__getitem__)
        return order

    def _check_twice(self, names: Sequence[str]) -> None:
        for name, following in pairwise(names):
            if name == following:
                raise DataError(
                    f"{self._where}: two pictures are named {printable(name)}", hint="take one of them away"
                )


def _close_all(files: dict[int, int]) -> None:
    for descriptor in files.values():
        os.close(descriptor)
