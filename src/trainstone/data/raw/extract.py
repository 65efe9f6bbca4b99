"""Extracts tars and zips from outside to new folders: whole and on disk, or not at all.

What archives.py refuses never appears under the target's name; killed at any time, only a folder *.partial is left.
"""

import logging
import os
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from trainstone.data.parallel import map_in_order, open_pool
from trainstone.data.progress import Progress
from trainstone.data.raw.archives import (
    ZipMember,
    list_tar,
    list_zip_tree,
    open_file,
    stream_zip_member,
    tell_archive,
)
from trainstone.data.raw.safenames import refuse
from trainstone.data.raw.tarwalk import CHUNK_BYTES, TarBytes, walk_tar
from trainstone.errors import DataError
from trainstone.files import sync_path
from trainstone.text import printable
from trainstone.units import format_bytes

Item = TypeVar("Item")

log = logging.getLogger(__name__)

CHUNK = 64
"""Files that a thread takes at once."""
SYNC_THREADS = 8
"""Waiting for a disk takes no core."""


def extract_tar(path: Path, target: Path) -> Iterator[Progress]:
    """Extract a tar, compressed (gz, bz2, xz) or not, to a new folder; yields how much of the tar is done."""
    phase = f"unpack {path.name}"
    with open_file(path) as file, _new_folder(path, target) as folder:
        room, total = shutil.disk_usage(folder).free, path.stat().st_size
        stream = TarBytes(file, tell_archive(path))
        if not stream.is_packed:  # All names are checked first; of a compressed tar that would take as long again.
            _check_room(path, sum(member.size for member in list_tar(path)), room)
        written = 0
        for entry in walk_tar(stream):
            if entry.is_folder:
                (folder / entry.name).mkdir(parents=True, exist_ok=True)
                continue
            written += entry.size
            _check_room(path, written, room)
            _write_file(folder / entry.name, stream.take, entry.size, path)
            yield Progress(phase, file.tell(), total, "bytes")
        yield Progress(phase, total, total, "bytes")
        yield from sync_folder(folder, path.name)


def extract_zip(path: Path, target: Path, workers: int = 1) -> Iterator[Progress]:
    """Extract a zip to a new folder, several files at a time; yields how many bytes are unpacked."""
    members, folders = list_zip_tree(path)
    total = sum(member.size for member in members)
    with open_file(path) as file, _new_folder(path, target) as folder:
        _check_room(path, total, shutil.disk_usage(folder).free)
        for name in {*folders, *(member.name.rpartition("/")[0] for member in members)}:
            (folder / name).mkdir(parents=True, exist_ok=True)
        done = 0
        with open_pool(workers) as pool:
            unpack = partial(_unpack_members, path, file.fileno(), folder)
            for size in map_in_order(unpack, _cut(members), pool):
                done += size
                yield Progress(f"unpack {path.name}", done, total, "bytes")
        yield from sync_folder(folder, path.name)


def unpack_once(path: Path, work: Path) -> Path:
    """Extract a tar below a work folder, or find it there from an earlier time; a changed tar is another one."""
    facts = path.stat()
    target = work / f"{path.name}-{facts.st_size}-{facts.st_mtime_ns}"
    if not target.is_dir():
        log.info("unpacking %s", tell_archive(path))
        for _ in extract_tar(path, target):
            pass
    return target


def sync_folder(folder: Path, title: str) -> Iterator[Progress]:
    """Bring all files of a folder to disk, then the names of its folders."""
    files, folders = [], []
    for parent, _, names in os.walk(folder):
        folders.append(Path(parent))
        files += [Path(parent) / name for name in names]
    phase = f"bring {title} to disk"
    with open_pool(SYNC_THREADS) as pool:
        done = 0
        for count in map_in_order(_sync_all, [*_cut(files), *_cut(folders)], pool):
            done += count
            yield Progress(phase, min(done, len(files)), len(files), "files")


@contextmanager
def _new_folder(archive: Path, target: Path) -> Iterator[Path]:
    """Give a temporary folder beside the target; it gets its name at the end, or vanishes."""
    if target.exists():
        raise DataError(f"cannot extract {tell_archive(archive)}: {printable(str(target))} is there already")
    folder = target.parent / f".{target.name}-{secrets.token_hex(4)}.partial"
    try:
        folder.mkdir(parents=True)
        yield folder
        try:
            folder.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was faster with the same archive
                raise
        sync_path(target.parent)
    except OSError as err:
        told = f"cannot extract {tell_archive(archive)} to {printable(str(target))}: {err.strerror or err}"
        raise DataError(told) from err
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_room(archive: Path, num_bytes: int, room: int) -> None:
    if num_bytes > room:
        told = f"unpacks to {format_bytes(num_bytes)} or more, the disk has {format_bytes(room)} free"
        raise DataError(f"{tell_archive(archive)}: {told}", hint="make room, or choose a folder on another disk")


def _write_file(path: Path, take: Callable[[int], bytes], size: int, archive: Path) -> None:
    """Write so many bytes to a new file of plain mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        left = size
        while left:
            content = take(min(left, CHUNK_BYTES))
            if not content:
                raise refuse(tell_archive(archive), path.name, f"claims {size:,} bytes and ends {left:,} early")
            file.write(content)
            left -= len(content)


def _unpack_members(archive: Path, descriptor: int, folder: Path, members: Iterable[ZipMember]) -> int:
    """Write some files of a zip; return how many bytes."""
    total = 0
    for member in members:
        size = crc = 0
        try:
            with (folder / member.name).open("xb") as file:
                for content in stream_zip_member(descriptor, member):
                    size += len(content)
                    if size > member.size:
                        break
                    crc = zlib.crc32(content, crc)
                    file.write(content)
        except zlib.error as err:
            raise refuse(tell_archive(archive), member.name, f"is damaged: {err}") from err
        if (size, crc) != (member.size, member.crc):
            raise refuse(tell_archive(archive), member.name, "is damaged: its length or its checksum does not fit")
        total += size
    return total


def _sync_all(paths: Iterable[Path]) -> int:
    count = 0
    for path in paths:
        sync_path(path)
        count += 1
    return count


def _cut(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Cut a list into what a thread takes at once."""
    rest = iter(items)
    while some := list(islice(rest, CHUNK)):
        yield some
