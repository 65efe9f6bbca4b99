"""Read untrusted tar and zip archives: list members, read them one by one, or extract to a new folder.

An archive is rejected if it has a link, a device, a sparse or encrypted member, a name outside the folder, a duplicate
name, or an implausible compression ratio. An extracted folder is renamed only when it is complete and on disk; a killed
run leaves only a *.partial folder.
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
from trainstone.formats.files import MappedFile, find_invalid_character, find_path_escape
from trainstone.formats.tar import read_members
from trainstone.text import printable
from trainstone.units import format_bytes

log = logging.getLogger(__name__)

CHUNK_BYTES = 2**20
# Limit of a member that `read_tar` returns: annotations, lists, packed annotations of a class; never images.
MAX_READ_BYTES = 64 * 2**20
# Limit of the compression ratio: text has about 10, tars of many small XML files 50, a decompression bomb 1000.
MAX_RATIO = 200
MAX_RATIO_FREE_BYTES = 64 * 2**20
MAX_PART_BYTES = 255
_DAMAGED_HINT = "the file is damaged or incomplete: download it again"
_BROKEN_TAR = (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError, MemoryError)
_BROKEN_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OverflowError)


def build_member_error(archive: str, name: str, problem: str) -> DataError:
    shown = printable(name if len(name) <= 200 else name[:200] + "...")
    hint = "download the archive again from its publisher, or unpack it yourself and give the folder"
    return DataError(f"{archive}: member '{shown}' {problem}; the archive is rejected", hint=hint)


def _add_name(names: set[str], name: str, archive: str, *, is_folder: bool) -> str:
    """Return a normalised relative name and, for a file, add it to `names`.

    Raise DataError for a name outside the folder or a duplicate name.
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    problem = find_invalid_character(name) or find_path_escape(name)
    if problem is None and ("\\" in name or re.match("[A-Za-z]:", name)):
        problem = "has a name with a drive or a backslash, which is a path on Windows"
    if problem is None and max((len(part.encode()) for part in parts), default=0) > MAX_PART_BYTES:
        problem = f"has a name longer than {MAX_PART_BYTES} bytes"
    if problem is not None:
        raise build_member_error(archive, name, problem)
    clean = "/".join(parts)
    if not is_folder:
        if not clean or clean in names:
            raise build_member_error(archive, clean, "occurs twice" if clean else "is a file without a name")
        names.add(clean)
    return clean


def list_tar(path: Path, start: int = 0, size: int | None = None) -> Iterator[tuple[str, int, int]]:
    """Yield the files in an uncompressed tar, or in one at byte `start` of another file.

    Each file has its name, and the offset and size of its content in the outermost file.
    """
    title = printable(str(path)) + (f", the tar at byte {start}" if start else "")
    with MappedFile(path, random=True) as file:
        at, end = start, file.size if size is None else start + size
        names: set[str] = set()
        for member in read_members(file, start, end):
            at = member.span.end
            if at > end:
                left = end - member.data.offset
                raise build_member_error(title, member.name, f"claims {member.data.size:,} bytes; {left:,} are left")
            if member.is_file:
                yield _add_name(names, member.name, title, is_folder=False), *member.data
        if at >= end:
            raise file.damaged(at, "the tar has no end marker (a block of zeros)", _DAMAGED_HINT)


def read_tar(path: Path, file: BinaryIO | None = None) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the files in a tar, compressed or not; `file`: the tar if it is already open."""
    title = printable(str(path))
    with _open_file(path) if file is None else file as opened:
        for tar, member in _walk_tar(opened, title):
            if member.size > MAX_READ_BYTES:
                raise build_member_error(
                    title, member.name, f"is larger than the limit of {format_bytes(MAX_READ_BYTES)}"
                )
            if member.isfile():
                with _tar_errors(title):
                    content = tar.extractfile(member)
                    assert content is not None  # a regular file has content
                    data = content.read()
                yield member.name, data


def extract_once(path: Path, work: Path) -> Path:
    """Extract a tar below a work folder, or return the folder of an earlier run if the tar has not changed."""
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
        free_bytes = shutil.disk_usage(folder).free
        # Python 3.11.2 (Debian 12) has no filters; _walk_tar rejects everything that they would reject.
        filters = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        for tar, member in _walk_tar(file, title):
            written += member.size
            _check_free_space(path, written, free_bytes)
            with _tar_errors(title):
                tar.extract(member, folder, set_attrs=False, **filters)  # type: ignore[arg-type]


def open_zip(path: Path) -> zipfile.ZipFile:
    """Open a zip after checking all members; names are normalised. The caller closes it."""
    title = printable(str(path))
    if not path.is_file():
        raise DataError(f"{title}: no such file")
    try:
        archive = zipfile.ZipFile(path)
    except (*_BROKEN_ZIP, OSError) as err:
        raise DataError(f"{title}: invalid zip: {printable(str(err))}", hint=_DAMAGED_HINT) from err
    try:
        total, names, limit = 0, set[str](), MAX_RATIO * path.stat().st_size + MAX_RATIO_FREE_BYTES
        for info in archive.infolist():
            total += info.file_size
            if info.flag_bits & 0x2041:  # encrypted, strongly encrypted, with an encrypted directory
                raise build_member_error(title, info.orig_filename, "is encrypted")
            if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise build_member_error(
                    title, info.orig_filename, "is a link or a device; only files and folders are allowed"
                )
            if total > limit:
                raise build_member_error(
                    title, info.filename, f"makes the content more than {MAX_RATIO} times larger than the zip"
                )
            is_folder = info.filename.endswith("/")
            info.filename = _add_name(names, info.orig_filename, title, is_folder=is_folder) + "/" * is_folder
    except BaseException:
        archive.close()
        raise
    return archive


def list_zip(path: Path) -> dict[str, int]:
    """Return name and size of the files in a zip, in directory order."""
    with open_zip(path) as archive:
        return {info.filename: info.file_size for info in archive.infolist() if not info.is_dir()}


def read_zip_member(archive: zipfile.ZipFile, lock: threading.Lock, info: zipfile.ZipInfo) -> bytes | None:
    """Return a member's content, or None if it is damaged; thread-safe."""
    try:
        with _open_member(archive, lock, info) as member:
            return member.read()
    except _BROKEN_ZIP:
        return None


def extract_zip(path: Path, target: Path, workers: int = 1) -> Iterator[WorkProgress]:
    """Extract a zip to a new folder in parallel; yield progress in bytes."""
    with open_zip(path) as archive, _new_folder(path, target) as folder:
        members = archive.infolist()
        total, done = sum(info.file_size for info in members), 0
        _check_free_space(path, total, shutil.disk_usage(folder).free)
        for name in {info.filename.rpartition("/")[0] for info in members}:
            (folder / name).mkdir(parents=True, exist_ok=True)
        lock = threading.Lock()

        def unpack(files: Sequence[zipfile.ZipInfo]) -> int:
            for info in files:
                try:
                    with _open_member(archive, lock, info) as member, (folder / info.filename).open("xb") as file:
                        shutil.copyfileobj(member, file, CHUNK_BYTES)
                        if file.tell() != info.file_size:
                            raise EOFError(f"{file.tell():,} bytes; its header claims {info.file_size:,}")
                except _BROKEN_ZIP as err:
                    raise build_member_error(
                        printable(str(path)), info.filename, f"is damaged: {printable(str(err))}"
                    ) from err
            return sum(info.file_size for info in files)

        with open_pool(workers) as pool:
            for size in map_in_order(unpack, [info for info in members if not info.is_dir()], pool):
                done += size
                yield WorkProgress(f"unpack {path.name}", done, total, "bytes")


class _StrictInfo(tarfile.TarInfo):
    """A tar member that raises an error for a damaged header; tarfile would treat it as the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_StrictInfo":
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as err:
            raise tarfile.ReadError(str(err)) from err


class _LimitedFile:
    """Decompressed bytes of a tar up to a limit, which also covers PAX headers of any claimed size."""

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
            message = (
                f"{self._archive}: unpacks to more than {format_bytes(self.limit)}; rejected as a decompression bomb"
            )
            raise DataError(message, hint="if you trust it, unpack it yourself and give the folder")
        return content


def _walk_tar(file: BinaryIO, title: str) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Yield checked files and folders with normalised names; read each one before requesting the next."""
    names: set[str] = set()
    with _tar_errors(title):
        stream = _LimitedFile(file, title)
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_StrictInfo) as tar:  # type: ignore[call-overload]
            while (member := tar.next()) is not None:
                tar.members = []  # otherwise it stores all members
                if not (member.isfile() or member.isdir()) or member.issparse():
                    what = "a link, a device or a sparse file"
                    raise build_member_error(title, member.name, f"is {what}; only plain files and folders are allowed")
                if not 0 <= member.size <= stream.limit:
                    problem = f"claims {member.size:,} bytes; the limit is {stream.limit:,}"
                    raise build_member_error(title, member.name, problem)
                member.name = _add_name(names, member.name, title, is_folder=member.isdir()) or "."
                yield tar, member
            while stream.read(CHUNK_BYTES):  # read to the end, which has the checksum
                pass


@contextmanager
def _tar_errors(title: str) -> Iterator[None]:
    try:
        yield
    except _BROKEN_TAR as err:
        if isinstance(err, OSError) and err.filename:  # an error of a written file
            raise
        reason = printable(str(err)) or "unexpected end"
        raise DataError(f"{title}: invalid tar: {reason}", hint=_DAMAGED_HINT) from err


def _open_file(path: Path) -> BinaryIO:
    if not path.is_file():
        raise DataError(f"{printable(str(path))}: no such file")
    try:
        return path.open("rb", buffering=0)
    except OSError as err:
        raise DataError(f"{printable(str(path))}: cannot be read: {err.strerror}") from err


@contextmanager
def _new_folder(archive: Path, target: Path) -> Iterator[Path]:
    """Yield a temporary folder beside the target; at the end it is renamed to the target, or removed after an error."""
    title = printable(str(archive))
    if target.exists():
        raise DataError(f"cannot extract {title}: {printable(str(target))} already exists")
    folder = target.parent / f".{target.name}-{secrets.token_hex(4)}.partial"
    try:
        folder.mkdir(parents=True)
        yield folder
        os.sync()  # all files at once: one fsync per file takes longer
        try:
            folder.rename(target)
        except OSError:
            if not target.is_dir():  # otherwise another process has extracted the same archive
                raise
    except OSError as err:
        raise DataError(f"cannot extract {title} to {printable(str(target))}: {err.strerror or err}") from err
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_free_space(archive: Path, num_bytes: int, free_bytes: int) -> None:
    if num_bytes > free_bytes:
        message = f"unpacks to at least {format_bytes(num_bytes)}; the disk has {format_bytes(free_bytes)} free"
        raise DataError(
            f"{printable(str(archive))}: {message}", hint="free some space, or choose a folder on another disk"
        )


@contextmanager
def _open_member(archive: zipfile.ZipFile, lock: threading.Lock, info: zipfile.ZipInfo) -> Iterator[IO[bytes]]:
    """Open a zip member from one of many threads; only opening and closing need the lock."""
    with lock:
        member = archive.open(info)
    try:
        yield member
    finally:
        with lock:
            member.close()
