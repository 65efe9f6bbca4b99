"""Tars and zips from outside: listed in place, read member by member, or extracted to a new folder.

Nothing in them is trusted. An archive with a link, a device, a sparse or encrypted member, a name that leads out of the
folder, a name twice or content out of all proportion is refused as a whole. An extracted folder gets its name when it
is complete and on disk; killed at any time, only a folder *.partial is left.
"""

import bz2
import gzip
import io
import logging
import lzma
import os
import re
import secrets
import shutil
import stat
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

from trainstone.data.parallel import WorkProgress, map_in_order, open_pool
from trainstone.errors import DataError
from trainstone.formats.files import MappedFile, find_escape, find_odd_character
from trainstone.formats.tar import read_members
from trainstone.text import printable
from trainstone.units import format_bytes

log = logging.getLogger(__name__)

CHUNK_BYTES = 2**20
# What `read_tar` returns whole: annotations and lists, and a class's packed annotations. Images are not read so.
MAX_READ_BYTES = 64 * 2**20
# What an archive may unpack to: text packs about 10 times, tars of many small XML files 50 times, a bomb 1000 times.
MAX_RATIO = 200
MAX_RATIO_FREE_BYTES = 64 * 2**20
MAX_PART_BYTES = 255
_AGAIN = "it is damaged or was not downloaded whole; get it again"
_BROKEN_TAR = (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError, MemoryError)
_BROKEN_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OverflowError)


def refuse(archive: str, name: str, problem: str) -> DataError:
    shown = printable(name if len(name) <= 200 else name[:200] + "...")
    hint = "get the archive from its publisher again, or unpack it by hand and give the folder"
    return DataError(f"{archive}: member '{shown}' {problem}; the archive is refused", hint=hint)


def _add_name(names: set[str], name: str, archive: str, *, is_folder: bool) -> str:
    """Return a relative name without "." and doubled slashes; of a file, one that no file before has.

    DataError where it would lead out of a folder.
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    problem = find_odd_character(name) or find_escape(name)
    if problem is None and ("\\" in name or re.match("[A-Za-z]:", name)):
        problem = "has a name with a drive or a backslash, which is a path on Windows"
    if problem is None and max((len(part.encode()) for part in parts), default=0) > MAX_PART_BYTES:
        problem = f"has a name longer than {MAX_PART_BYTES} bytes"
    if problem is not None:
        raise refuse(archive, name, problem)
    clean = "/".join(parts)
    if not is_folder:
        if not clean or clean in names:
            raise refuse(archive, clean, "is there twice" if clean else "is a file without a name")
        names.add(clean)
    return clean


def list_tar(path: Path, start: int = 0, size: int | None = None) -> Iterator[tuple[str, int, int]]:
    """Yield the files in a tar that is not compressed, or in one that lies at `start` in another file.

    Of each its name, and offset and size of its content in the outermost file.
    """
    title = printable(str(path)) + (f", the tar at byte {start}" if start else "")
    with MappedFile(path, random=True) as file:
        at, end = start, file.size if size is None else start + size
        names: set[str] = set()
        for member in read_members(file, start, end):
            at = member.span.end
            if at > end:
                left = end - member.data.offset
                raise refuse(title, member.name, f"claims {member.data.size:,} bytes, {left:,} are left")
            if member.is_file:
                yield _add_name(names, member.name, title, is_folder=False), *member.data
        if at >= end:
            raise file.damaged(at, "the tar ends without its end mark, a block of zeros", _AGAIN)


def read_tar(path: Path, file: BinaryIO | None = None) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the small files in a tar, compressed or not; `file`: one that is open already."""
    title = printable(str(path))
    with _open_file(path) if file is None else file as opened:
        for tar, member in _walk_tar(opened, title):
            if member.size > MAX_READ_BYTES:
                raise refuse(title, member.name, f"is larger than {format_bytes(MAX_READ_BYTES)}")
            if member.isfile():
                with _tar_errors(title):
                    content = tar.extractfile(member)
                    assert content is not None  # a plain file has content
                    data = content.read()
                yield member.name, data


def unpack_once(path: Path, work: Path) -> Path:
    """Extract a tar below a work folder, or find it there from an earlier run; a changed tar is another one."""
    facts = path.stat()
    target = work / f"{path.name}-{facts.st_size}-{facts.st_mtime_ns}"
    if not target.is_dir():
        log.info("unpacking %s", printable(str(path)))
        extract_tar(path, target)
    return target


def extract_tar(path: Path, target: Path) -> None:
    """Extract a tar, compressed (gz, bz2, xz) or not, to a new folder."""
    title, written = printable(str(path)), 0
    with _open_file(path) as file, _new_folder(path, target) as folder:
        room = shutil.disk_usage(folder).free
        # Python 3.11.2, Debian 12's, has no filters; _walk_tar lets nothing through that they would stop.
        filters = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        for tar, member in _walk_tar(file, title):
            written += member.size
            _check_room(path, written, room)
            with _tar_errors(title):
                tar.extract(member, folder, set_attrs=False, **filters)  # type: ignore[arg-type]


def open_zip(path: Path) -> zipfile.ZipFile:
    """Open a zip all of whose members are safe, their names cleaned. The caller closes it."""
    title = printable(str(path))
    if not path.is_file():
        raise DataError(f"{title}: no such file")
    try:
        archive = zipfile.ZipFile(path)
    except (*_BROKEN_ZIP, OSError) as err:
        raise DataError(f"{title}: cannot be read as zip: {printable(str(err))}", hint=_AGAIN) from err
    try:
        total, names, limit = 0, set[str](), MAX_RATIO * path.stat().st_size + MAX_RATIO_FREE_BYTES
        for info in archive.infolist():
            total += info.file_size
            if info.flag_bits & 0x2041:  # encrypted, strongly encrypted, with an encrypted directory
                raise refuse(title, info.orig_filename, "is encrypted")
            if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise refuse(title, info.orig_filename, "is a link or a device; only files and folders are allowed")
            if total > limit:
                raise refuse(title, info.filename, f"brings the content to over {MAX_RATIO} times the zip's size")
            is_folder = info.filename.endswith("/")
            info.filename = _add_name(names, info.orig_filename, title, is_folder=is_folder) + "/" * is_folder
    except BaseException:
        archive.close()
        raise
    return archive


def list_zip(path: Path) -> dict[str, int]:
    """Return name and size of the files in a zip, in the order of its directory."""
    with open_zip(path) as archive:
        return {info.filename: info.file_size for info in archive.infolist() if not info.is_dir()}


def read_zip_member(archive: zipfile.ZipFile, lock: threading.Lock, info: zipfile.ZipInfo) -> bytes | None:
    """Return a member's content, from any thread; None where it is damaged."""
    try:
        with _open_member(archive, lock, info) as member:
            return member.read()
    except _BROKEN_ZIP:
        return None


def extract_zip(path: Path, target: Path, workers: int = 1) -> Iterator[WorkProgress]:
    """Extract a zip to a new folder, several files at a time; yields how many bytes are unpacked."""
    with open_zip(path) as archive, _new_folder(path, target) as folder:
        members = archive.infolist()
        total, done = sum(info.file_size for info in members), 0
        _check_room(path, total, shutil.disk_usage(folder).free)
        for name in {info.filename.rpartition("/")[0] for info in members}:
            (folder / name).mkdir(parents=True, exist_ok=True)
        lock = threading.Lock()

        def unpack(files: Sequence[zipfile.ZipInfo]) -> int:
            for info in files:
                try:
                    with _open_member(archive, lock, info) as member, (folder / info.filename).open("xb") as file:
                        shutil.copyfileobj(member, file, CHUNK_BYTES)
                        if file.tell() != info.file_size:
                            raise EOFError(f"{file.tell():,} bytes, {info.file_size:,} are claimed")
                except _BROKEN_ZIP as err:
                    raise refuse(printable(str(path)), info.filename, f"is damaged: {printable(str(err))}") from err
            return sum(info.file_size for info in files)

        with open_pool(workers) as pool:
            for size in map_in_order(unpack, [info for info in members if not info.is_dir()], pool):
                done += size
                yield WorkProgress(f"unpack {path.name}", done, total, "bytes")


class _StrictInfo(tarfile.TarInfo):
    """A member whose damaged header is an error: tarfile takes it for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_StrictInfo":
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as err:
            raise tarfile.ReadError(str(err)) from err


class _LimitedFile:
    """The bytes that a tar unpacks to, up to a limit: a PAX header, too, may claim any size."""

    def __init__(self, file: BinaryIO, archive: str) -> None:
        num_bytes = file.seek(0, io.SEEK_END)
        file.seek(0)
        magic = file.read(6)
        file.seek(0)
        openers: dict[bytes, Callable[[BinaryIO], Any]] = {
            b"\x1f\x8b": gzip.open,
            b"BZh": bz2.open,
            b"\xfd7zXZ\0": lzma.open,
        }
        opener = next((opener for start, opener in openers.items() if magic.startswith(start)), None)
        self._file: BinaryIO = opener(file) if opener else file
        self._archive = archive
        self._done = 0
        self.limit = MAX_RATIO * num_bytes + MAX_RATIO_FREE_BYTES if opener else num_bytes

    def read(self, size: int) -> bytes:
        content = self._file.read(size)
        self._done += len(content)
        if self._done > self.limit:
            message = f"{self._archive}: unpacks to more than {format_bytes(self.limit)}: a compression bomb, refused"
            raise DataError(message, hint="if you trust it, unpack it by hand and give the folder")
        return content


def _walk_tar(file: BinaryIO, title: str) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Yield files and folders, checked and with clean names; each can be read before the next is asked for."""
    names: set[str] = set()
    with _tar_errors(title):
        stream = _LimitedFile(file, title)
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_StrictInfo) as tar:  # type: ignore[call-overload]
            while (member := tar.next()) is not None:
                tar.members = []  # else it keeps all
                if not (member.isfile() or member.isdir()) or member.issparse():
                    what = "a link, a device or a sparse file"
                    raise refuse(title, member.name, f"is {what}; only plain files and folders are allowed")
                if not 0 <= member.size <= stream.limit:
                    problem = f"claims {member.size:,} bytes, at most {stream.limit:,} are believed"
                    raise refuse(title, member.name, problem)
                member.name = _add_name(names, member.name, title, is_folder=member.isdir()) or "."
                yield tar, member
            while stream.read(CHUNK_BYTES):  # to its end, where its checksum is
                pass


@contextmanager
def _tar_errors(title: str) -> Iterator[None]:
    try:
        yield
    except _BROKEN_TAR as err:
        if isinstance(err, OSError) and err.filename:  # of a file that is written
            raise
        reason = printable(str(err)) or "it ends early"
        raise DataError(f"{title}: cannot be read as tar: {reason}", hint=_AGAIN) from err


def _open_file(path: Path) -> BinaryIO:
    if not path.is_file():
        raise DataError(f"{printable(str(path))}: no such file")
    try:
        return path.open("rb", buffering=0)
    except OSError as err:
        raise DataError(f"{printable(str(path))}: cannot be read: {err.strerror}") from err


@contextmanager
def _new_folder(archive: Path, target: Path) -> Iterator[Path]:
    """Give a temporary folder beside the target; it gets its name at the end, or vanishes."""
    title = printable(str(archive))
    if target.exists():
        raise DataError(f"cannot extract {title}: {printable(str(target))} is there already")
    folder = target.parent / f".{target.name}-{secrets.token_hex(4)}.partial"
    try:
        folder.mkdir(parents=True)
        yield folder
        os.sync()  # all files at once: one fsync for each of many takes longer
        try:
            folder.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was faster with the same archive
                raise
    except OSError as err:
        raise DataError(f"cannot extract {title} to {printable(str(target))}: {err.strerror or err}") from err
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_room(archive: Path, num_bytes: int, room: int) -> None:
    if num_bytes > room:
        message = f"unpacks to {format_bytes(num_bytes)} or more, the disk has {format_bytes(room)} free"
        raise DataError(f"{printable(str(archive))}: {message}", hint="make room, or choose a folder on another disk")


@contextmanager
def _open_member(archive: zipfile.ZipFile, lock: threading.Lock, info: zipfile.ZipInfo) -> Iterator[IO[bytes]]:
    """Open a member for one thread of many: opening and closing count references, reading has a lock of its own."""
    with lock:
        member = archive.open(info)
    try:
        yield member
    finally:
        with lock:
            member.close()
