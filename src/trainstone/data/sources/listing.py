"""Files of a folder, a zip or a tar by name; and a split of very many images in them by number, in little memory.

Nothing is decoded or extracted. ImageNet's 1.28 million training images take about 200 MB.
Hidden files and macOS's doubles are left out.
"""

import hashlib
import logging
import os
import threading
import zipfile
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainstone.data.sample import Box, Edges, Sample
from trainstone.data.sources.archives import list_tar, open_zip, read_zip_member
from trainstone.errors import DataError
from trainstone.formats.files import find_odd_character
from trainstone.text import printable
from trainstone.units import format_bytes

log = logging.getLogger(__name__)

IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png")
MAX_IMAGE_BYTES = 256 * 2**20
READ_BYTES = 2**20
REQUESTED_FILES = 500
_HINT = "it changed after it was listed; look again whether all data is there"


class FilePlace(NamedTuple):
    """Where the content of a file lies."""

    container: Path
    """The folder of a plain file, which has the last part of the sample's name there; else a tar or a zip."""
    offset: int = -1
    """In a tar that of the content, in a zip the number of the member; -1 for a plain file."""
    size: int = -1


class FileTree(NamedTuple):
    """Files by relative name: for data sets of some 100,000."""

    path: Path
    files: dict[str, FilePlace]

    def read_lines(self, name: str) -> list[str]:
        """Return the lines of a text file that are not blank; none where it is not there."""
        if name not in self.files:
            return []
        builder = ListingBuilder(self.path)
        builder.add(name, "", self.files[name])
        lines = builder.finish([""]).read_bytes(0).decode("utf-8", errors="replace").splitlines()
        return [line for line in lines if line.strip()]


def open_tree(path: Path) -> FileTree:
    """List a folder, a zip (by its name) or a tar that is not compressed; one folder around all files is stripped."""
    files = dict(walk_files(path))
    tops = {name.partition("/")[0] for name in files}
    if not path.is_dir() and len(tops) == 1 and all("/" in name for name in files):
        files = {name.partition("/")[2]: place for name, place in files.items()}
    return FileTree(path, files)


def walk_files(path: Path) -> Iterator[tuple[str, FilePlace]]:
    """Yield name and place of the files that are not hidden in a folder, a zip or a tar that is not compressed."""
    if path.is_dir():
        for folder, inside, files in walk_folder(path):
            prefix, place = f"{folder}/" if folder else "", FilePlace(inside)
            yield from ((prefix + file, place) for file in files)
    elif _is_zip(path):
        with open_zip(path) as archive:
            for number, info in enumerate(archive.infolist()):
                if not info.is_dir() and not is_hidden(info.filename):
                    yield info.filename, FilePlace(path, number, info.file_size)
    else:
        yield from ((name, FilePlace(path, *place)) for name, *place in list_tar(path) if not is_hidden(name))


def list_entries(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"{printable(str(folder))}: no such folder")
    try:
        return sorted(folder.iterdir())
    except OSError as err:
        raise _unreadable(str(folder), err) from err


def walk_folder(root: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """Yield folders as im2rec.py meets them: a folder before what is in it, all sorted by name, links followed.

    Of each its name relative to the root, with / (empty for the root), its path, and its files.
    """
    stack: list[tuple[str, Path, tuple[tuple[int, int], ...]]] = [("", root, ())]
    while stack:
        name, path, parents = stack.pop()
        try:
            facts = path.stat()
            with os.scandir(path) as entries:
                found = sorted((e.name, e.is_dir(), e.is_file()) for e in entries if not is_hidden(e.name))
        except OSError as err:
            raise _unreadable(str(path), err) from err
        identity = (facts.st_dev, facts.st_ino)
        if identity in parents:
            log.warning("%s: a link to a folder that it lies in; left out", printable(str(path)))
            continue
        yield name, path, [file for file, _, is_file in found if is_file]
        for inner in reversed([file for file, is_folder, _ in found if is_folder]):
            stack.append((f"{name}/{inner}" if name else inner, path / inner, (*parents, identity)))


def is_hidden(name: str) -> bool:
    return name.startswith((".", "__MACOSX")) or "/." in name


def is_image_file(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES) and not is_hidden(name.rpartition("/")[2])


class FileListing:
    """Images with one label each; made by ListingBuilder. It is a Source."""

    def __init__(
        self,
        names: Sequence[str],
        containers: Sequence[Path],
        rows: NDArray[np.int64],
        boxes: Mapping[str, Sequence[Edges]],
    ) -> None:
        self._names = names
        self._containers = containers
        self._folders = [f"{container}/" for container in containers]
        self._rows = rows  # (images, 4): label, number of the container, offset, size
        starts, edges = array("q", [0]), array("d")  # the boxes of all samples: little memory for many
        for name in names:
            stem = name.rpartition(".")[0]
            for box in boxes.get(stem) or boxes.get(stem.rpartition("/")[2], ()):
                edges.extend(box)
            starts.append(len(edges) // 4)
        self._box_starts, self._boxes = np.array(starts), np.array(edges).reshape(-1, 4)
        self._lock = threading.Lock()
        self._zips: dict[Path, zipfile.ZipFile] = {}

    def __len__(self) -> int:
        return len(self._names)

    def name(self, index: int) -> str:
        return self._names[index]

    def label(self, index: int) -> int:
        return int(self._rows[index, 0])

    def where(self, index: int) -> str:
        place = self._place(index)
        if place.offset < 0:
            return printable(self._path(index))
        what = "member" if _is_zip(place.container) else "byte"
        return f"{printable(str(place.container))}, {what} {place.offset} ({printable(self._names[index])})"

    def size_bytes(self, index: int) -> int:
        place = self._place(index)
        if place.offset >= 0:
            return place.size
        try:
            return os.stat(self._path(index)).st_size  # noqa: PTH116
        except OSError as err:
            raise _unreadable(self.where(index), err, _HINT) from err

    def read_bytes(self, index: int) -> bytes:
        try:
            return self._read_file(index) if self._rows[index, 2] < 0 else self._read_archive(index)
        except OSError as err:
            raise _unreadable(self.where(index), err, _HINT) from err

    def read(self, index: int) -> Sample:
        image = self.read_bytes(index)
        if not image:
            raise DataError(f"{self.where(index)}: empty, no image", hint="copy the image again or take it away")
        label = self.label(index)
        edges = self._boxes[self._box_starts[index] : self._box_starts[index + 1]]
        return Sample(self._names[index], image, label, tuple(Box(label, *box) for box in edges.tolist()))

    def fingerprint(self) -> str:
        """Return a hash of names, labels, boxes, and size and time of every archive, of every folder and of some files.

        Not of all plain files: to ask for a million of them takes minutes on a file system of a cluster.
        """
        digest = hashlib.sha256("\n".join(self._names).encode())
        labels, _, offsets, sizes = self._rows.T  # containers are numbered as they were met
        for column in (labels.astype(np.int32), offsets, sizes, self._box_starts, self._boxes):
            digest.update(column.tobytes())
        step = max(1, len(self) // REQUESTED_FILES)
        files = [self._path(n) for n in range(0, len(self), step) if offsets[n] < 0]
        for path in (*sorted(self._containers), *map(Path, files)):
            try:
                facts = path.stat()
            except OSError as err:
                raise _unreadable(str(path), err, _HINT) from err
            digest.update(f"{facts.st_size} {facts.st_mtime_ns}\n".encode())
        return digest.hexdigest()

    def _place(self, index: int) -> FilePlace:
        _, container, offset, size = self._rows[index].tolist()
        return FilePlace(self._containers[container], offset, size)

    def _path(self, index: int) -> str:
        """Return a plain file's path, without pathlib: this is done a million times."""
        return f"{self._folders[self._rows[index, 1]]}{self._names[index].rpartition('/')[2]}"

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
            descriptor = os.open(place.container, os.O_RDONLY)
            try:
                content = os.pread(descriptor, place.size, place.offset)
            finally:
                os.close(descriptor)
        if content is None or len(content) < place.size:
            raise DataError(f"{self.where(index)}: damaged or cut off in its archive", hint=_HINT)
        return content

    def _check_size(self, index: int, size: int) -> None:
        if size > MAX_IMAGE_BYTES:
            limit = format_bytes(MAX_IMAGE_BYTES)
            raise DataError(f"{self.where(index)}: {format_bytes(size)} are no image; up to {limit} are read")


def _unreadable(where: str, err: OSError, hint: str | None = None) -> DataError:
    return DataError(f"{printable(where)}: cannot be read: {err.strerror or err}", hint=hint)


def _is_zip(path: Path) -> bool:
    return path.suffix.lower() == ".zip"


class ListingBuilder:
    """Gathers images of one split in any order."""

    def __init__(self, where: Path) -> None:
        self._where = printable(str(where))
        self._names: list[str] = []
        self._classes: dict[str, int] = {}
        self._containers: dict[Path, int] = {}
        self._rows = array("q")

    def __len__(self) -> int:
        return len(self._names)

    @property
    def classes(self) -> list[str]:
        """The classes seen so far, in order of appearance."""
        return list(self._classes)

    def add(self, name: str, class_name: str, place: FilePlace) -> None:
        if problem := find_odd_character(name):
            raise DataError(f"{self._where}: '{printable(name)}' {problem}", hint="rename it")
        self._names.append(name)
        class_number = self._classes.setdefault(class_name, len(self._classes))
        container = self._containers.setdefault(place.container, len(self._containers))
        self._rows.extend((class_number, container, place.offset, place.size))

    def finish(
        self,
        classes: Sequence[str],
        boxes: Mapping[str, Sequence[Edges]] | None = None,
        *,
        skip_other_classes: bool = False,
    ) -> FileListing:
        """Return the images by class, in the order of `classes`, and by name; labels are places in that list.

        Boxes are found by a name without its extension, or by the last part of that. A class that is not in the list
        is an error, unless images of others are to be skipped.
        """
        ranks = {name: rank for rank, name in enumerate(classes)}
        unknown = [name for name in self._classes if name not in ranks]
        if unknown and not skip_other_classes:
            raise DataError(
                f"{self._where}: class '{printable(unknown[0])}' is not among the {len(classes)} classes of train",
                hint="take the folder away, or add the class to train",
            )
        rows = np.array(self._rows).reshape(-1, 4)
        rows[:, 0] = np.array([ranks.get(name, -1) for name in self._classes], np.int64)[rows[:, 0]]
        order = np.argsort(rows[:, 0], kind="stable")
        order = order[np.searchsorted(rows[order, 0], 0) :]  # those skipped have -1
        starts = np.flatnonzero(np.diff(rows[order, 0], prepend=-2))
        for first, last in zip(starts, [*starts[1:], len(order)], strict=True):
            order[first:last] = sorted(order[first:last].tolist(), key=self._names.__getitem__)
        names = [self._names[i] for i in order]
        for name, following in pairwise(names):
            if name == following:
                message = f"{self._where}: two images are named {printable(name)}"
                raise DataError(message, hint="take one of them away")
        return FileListing(names, list(self._containers), rows[order], boxes or {})
