"""List the files of a folder, zip or tar, and store splits of millions of images compactly.

Nothing is decoded or extracted. ImageNet's 1.28 million training images take about 200 MB.
Hidden files and macOS's `._` copies are skipped.
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
from trainstone.formats.files import find_invalid_character
from trainstone.text import printable
from trainstone.units import format_bytes

log = logging.getLogger(__name__)

IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png")
MAX_IMAGE_BYTES = 256 * 2**20
READ_BYTES = 2**20
NUM_SAMPLED_FILES = 500
_CHANGED_HINT = "the file changed after it was listed: check that the data set is complete"


class FileLocation(NamedTuple):
    """Location of a file's content."""

    container: Path
    """The folder of a plain file, whose name is the last part of the sample's name; otherwise a tar or zip."""
    offset: int = -1
    """Tar: byte offset of the content. Zip: index of the member. Plain file: -1."""
    size: int = -1


class FileTree(NamedTuple):
    """Files by relative name, for data sets of up to some 100,000 files."""

    path: Path
    files: dict[str, FileLocation]

    def read_lines(self, name: str) -> list[str]:
        """Return the non-blank lines of a text file; none if it does not exist."""
        if name not in self.files:
            return []
        builder = ListingBuilder(self.path)
        builder.add(name, "", self.files[name])
        lines = builder.build([""]).read_bytes(0).decode("utf-8", errors="replace").splitlines()
        return [line for line in lines if line.strip()]


def open_tree(path: Path) -> FileTree:
    """List a folder, a zip (by extension) or an uncompressed tar; a single top folder in an archive is stripped."""
    files = dict(walk_files(path))
    tops = {name.partition("/")[0] for name in files}
    if not path.is_dir() and len(tops) == 1 and all("/" in name for name in files):
        files = {name.partition("/")[2]: location for name, location in files.items()}
    return FileTree(path, files)


def walk_files(path: Path) -> Iterator[tuple[str, FileLocation]]:
    """Yield name and location of the visible files in a folder, a zip or an uncompressed tar."""
    if path.is_dir():
        for folder, inside, files in walk_folder(path):
            prefix, location = f"{folder}/" if folder else "", FileLocation(inside)
            yield from ((prefix + file, location) for file in files)
    elif _is_zip(path):
        with open_zip(path) as archive:
            for number, info in enumerate(archive.infolist()):
                if not info.is_dir() and not is_hidden(info.filename):
                    yield info.filename, FileLocation(path, number, info.file_size)
    else:
        yield from ((name, FileLocation(path, *location)) for name, *location in list_tar(path) if not is_hidden(name))


def list_entries(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"{printable(str(folder))}: no such folder")
    try:
        return sorted(folder.iterdir())
    except OSError as err:
        raise _unreadable(str(folder), err) from err


def walk_folder(root: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """Yield folders in im2rec.py's order: parents first, sorted by name, links followed.

    Each folder has its name relative to the root, with / (empty for the root), its path, and its files.
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
            log.warning("%s: skipped, a link to one of its parent folders", printable(str(path)))
            continue
        yield name, path, [file for file, _, is_file in found if is_file]
        for inner in reversed([file for file, is_folder, _ in found if is_folder]):
            stack.append((f"{name}/{inner}" if name else inner, path / inner, (*parents, identity)))


def is_hidden(name: str) -> bool:
    return name.startswith((".", "__MACOSX")) or "/." in name


def is_image_file(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES) and not is_hidden(name.rpartition("/")[2])


class FileListing:
    """Source of image files with one label each; made by ListingBuilder."""

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
        starts, edges = array("q", [0]), array("d")  # the boxes of all samples, in compact arrays
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
        location = self._location(index)
        if location.offset < 0:
            return printable(self._path(index))
        what = "member" if _is_zip(location.container) else "byte"
        return f"{printable(str(location.container))}, {what} {location.offset} ({printable(self._names[index])})"

    def size_bytes(self, index: int) -> int:
        location = self._location(index)
        if location.offset >= 0:
            return location.size
        try:
            return os.stat(self._path(index)).st_size  # noqa: PTH116
        except OSError as err:
            raise _unreadable(self.where(index), err, _CHANGED_HINT) from err

    def read_bytes(self, index: int) -> bytes:
        try:
            return self._read_file(index) if self._rows[index, 2] < 0 else self._read_archive(index)
        except OSError as err:
            raise _unreadable(self.where(index), err, _CHANGED_HINT) from err

    def read(self, index: int) -> Sample:
        image = self.read_bytes(index)
        if not image:
            raise DataError(f"{self.where(index)}: empty file", hint="copy the image again or remove it")
        label = self.label(index)
        edges = self._boxes[self._box_starts[index] : self._box_starts[index + 1]]
        return Sample(self._names[index], image, label, tuple(Box(label, *box) for box in edges.tolist()))

    def fingerprint(self) -> str:
        """Return a hash of names, labels, boxes, and of size and time of every archive and folder and some files.

        Only some plain files: reading the size of a million files takes minutes on a cluster file system.
        """
        digest = hashlib.sha256("\n".join(self._names).encode())
        labels, _, offsets, sizes = self._rows.T  # without container numbers, which depend on the listing order
        for column in (labels.astype(np.int32), offsets, sizes, self._box_starts, self._boxes):
            digest.update(column.tobytes())
        step = max(1, len(self) // NUM_SAMPLED_FILES)
        files = [self._path(n) for n in range(0, len(self), step) if offsets[n] < 0]
        for path in (*sorted(self._containers), *map(Path, files)):
            try:
                facts = path.stat()
            except OSError as err:
                raise _unreadable(str(path), err, _CHANGED_HINT) from err
            digest.update(f"{facts.st_size} {facts.st_mtime_ns}\n".encode())
        return digest.hexdigest()

    def _location(self, index: int) -> FileLocation:
        _, container, offset, size = self._rows[index].tolist()
        return FileLocation(self._containers[container], offset, size)

    def _path(self, index: int) -> str:
        """Return a plain file's path, without pathlib: it runs a million times."""
        return f"{self._folders[self._rows[index, 1]]}{self._names[index].rpartition('/')[2]}"

    def _read_file(self, index: int) -> bytes:
        descriptor = os.open(self._path(index), os.O_RDONLY)
        try:
            content = os.read(descriptor, READ_BYTES)
            if len(content) == READ_BYTES:  # rare; reading the size first would be one more call per file
                self._check_size(index, os.fstat(descriptor).st_size)
                while rest := os.read(descriptor, READ_BYTES):
                    content += rest
            return content
        finally:
            os.close(descriptor)

    def _read_archive(self, index: int) -> bytes:
        location = self._location(index)
        self._check_size(index, location.size)
        content: bytes | None
        if _is_zip(location.container):
            with self._lock:
                if location.container not in self._zips:
                    self._zips[location.container] = open_zip(location.container)
                archive = self._zips[location.container]
            content = read_zip_member(archive, self._lock, archive.infolist()[location.offset])
        else:
            descriptor = os.open(location.container, os.O_RDONLY)
            try:
                content = os.pread(descriptor, location.size, location.offset)
            finally:
                os.close(descriptor)
        if content is None or len(content) < location.size:
            raise DataError(f"{self.where(index)}: damaged or truncated in its archive", hint=_CHANGED_HINT)
        return content

    def _check_size(self, index: int, size: int) -> None:
        if size > MAX_IMAGE_BYTES:
            limit = format_bytes(MAX_IMAGE_BYTES)
            raise DataError(f"{self.where(index)}: image too large: {format_bytes(size)}; at most {limit} are allowed")


def _unreadable(where: str, err: OSError, hint: str | None = None) -> DataError:
    return DataError(f"{printable(where)}: cannot be read: {err.strerror or err}", hint=hint)


def _is_zip(path: Path) -> bool:
    return path.suffix.lower() == ".zip"


class ListingBuilder:
    """Collects the images of one split in any order."""

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

    def add(self, name: str, class_name: str, location: FileLocation) -> None:
        if problem := find_invalid_character(name):
            raise DataError(f"{self._where}: '{printable(name)}' {problem}", hint="rename it")
        self._names.append(name)
        class_number = self._classes.setdefault(class_name, len(self._classes))
        container = self._containers.setdefault(location.container, len(self._containers))
        self._rows.extend((class_number, container, location.offset, location.size))

    def build(
        self,
        classes: Sequence[str],
        boxes: Mapping[str, Sequence[Edges]] | None = None,
        *,
        skip_other_classes: bool = False,
    ) -> FileListing:
        """Return the images sorted by class, in the order of `classes`, then name; labels are indexes in that list.

        Boxes are found by name without extension, or by the last part of it. A class that is not in the list is an
        error, unless `skip_other_classes`.
        """
        ranks = {name: rank for rank, name in enumerate(classes)}
        unknown = [name for name in self._classes if name not in ranks]
        if unknown and not skip_other_classes:
            raise DataError(
                f"{self._where}: unknown class '{printable(unknown[0])}'; it is not among the {len(classes)} of train",
                hint="remove the folder, or add the class to train",
            )
        rows = np.array(self._rows).reshape(-1, 4)
        rows[:, 0] = np.array([ranks.get(name, -1) for name in self._classes], np.int64)[rows[:, 0]]
        order = np.argsort(rows[:, 0], kind="stable")
        order = order[np.searchsorted(rows[order, 0], 0) :]  # skipped images have label -1
        starts = np.flatnonzero(np.diff(rows[order, 0], prepend=-2))
        for first, last in zip(starts, [*starts[1:], len(order)], strict=True):
            order[first:last] = sorted(order[first:last].tolist(), key=self._names.__getitem__)
        names = [self._names[i] for i in order]
        for name, following in pairwise(names):
            if name == following:
                message = f"{self._where}: two images are named {printable(name)}; names must be unique"
                raise DataError(message, hint="remove one of them")
        return FileListing(names, list(self._containers), rows[order], boxes or {})
