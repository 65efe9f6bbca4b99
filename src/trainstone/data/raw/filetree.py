"""The files of a folder, of a zip or of a tar by their relative names, so that who looks for data need not care which.

Holds every name: for data sets of some 100,000 files. Hidden files and macOS's doubles are left out.
"""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trainstone.data.raw.archives import list_tar, open_zip
from trainstone.data.raw.listing import ListingBuilder, Place
from trainstone.errors import DataError
from trainstone.text import printable

log = logging.getLogger(__name__)

PICTURE_SUFFIXES = (".jpeg", ".jpg", ".png")


class Folder(NamedTuple):
    """A folder met on a walk."""

    name: str
    """Relative to where the walk began, with /; empty there."""
    path: Path
    files: list[str]


class FileTree(NamedTuple):
    """Files by relative name."""

    path: Path
    files: dict[str, Place]

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


def walk_files(path: Path) -> Iterator[tuple[str, Place]]:
    """Yield name and place of the files that are not hidden in a folder, a zip or a tar that is not compressed."""
    if path.is_dir():
        for folder in walk_folder(path):
            prefix, place = f"{folder.name}/" if folder.name else "", Place(folder.path)
            yield from ((prefix + file, place) for file in folder.files)
    elif path.suffix.lower() == ".zip":
        with open_zip(path) as archive:
            for number, info in enumerate(archive.infolist()):
                if not info.is_dir() and not is_hidden(info.filename):
                    yield info.filename, Place(path, number, info.file_size)
    else:
        for name, offset, size in list_tar(path):
            if not is_hidden(name):
                yield name, Place(path, offset, size)


def list_entries(folder: Path) -> list[Path]:
    """Return what a folder holds, sorted; DataError where there is no such folder or it cannot be read."""
    if not folder.is_dir():
        raise DataError(f"{printable(str(folder))}: no such folder")
    try:
        return sorted(folder.iterdir())
    except OSError as err:
        raise DataError(f"{printable(str(folder))}: cannot be read: {err.strerror}") from err


def walk_folder(root: Path) -> Iterator[Folder]:
    """Yield folders as im2rec.py meets them: a folder before what is in it, all sorted by name, links followed."""
    stack: list[tuple[str, Path, tuple[tuple[int, int], ...]]] = [("", root, ())]
    while stack:
        name, path, parents = stack.pop()
        try:
            facts = path.stat()
            with os.scandir(path) as entries:
                found = [(entry.name, entry.is_dir(), entry.is_file()) for entry in entries]
        except OSError as err:
            raise DataError(f"{printable(str(path))}: cannot be read: {err.strerror}") from err
        identity = (facts.st_dev, facts.st_ino)
        if identity in parents:
            log.warning("%s: a link to a folder that it lies in; left out", printable(str(path)))
            continue
        found.sort()
        yield Folder(name, path, [file for file, _, is_file in found if is_file and not is_hidden(file)])
        for inner in reversed([file for file, is_folder, _ in found if is_folder and not is_hidden(file)]):
            stack.append((f"{name}/{inner}" if name else inner, path / inner, (*parents, identity)))


def is_hidden(name: str) -> bool:
    """Say whether a file or a folder it lies in is hidden, or is macOS's."""
    return name.startswith((".", "__MACOSX")) or "/." in name


def is_picture(name: str) -> bool:
    """Say whether a file is a picture, by its name."""
    return name.lower().endswith(PICTURE_SUFFIXES) and not is_hidden(name.rpartition("/")[2])
