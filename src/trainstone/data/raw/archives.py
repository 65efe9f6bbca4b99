"""Tars and zips from outside: listed in place, or read member by member. Nothing in them is trusted.

An archive with a link, a device, a sparse or encrypted member, a name that leads out of the folder, a name twice or
content out of all proportion is refused as a whole. (extract.py extracts them.)
"""

import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from trainstone.data.raw.safenames import NameBook, clean_name, refuse
from trainstone.data.raw.tarwalk import CHUNK_BYTES, MAX_RATIO, MAX_RATIO_FREE_BYTES, TarBytes, walk_tar
from trainstone.errors import DataError
from trainstone.text import printable
from trainstone.units import format_bytes

# What `read_tar` returns whole: annotations and lists, and a class's packed annotations. Pictures are not read so.
MAX_READ_BYTES = 64 * 2**20
_LOCAL_HEADER = struct.Struct("<4s2xHH16xHH")
_ENCRYPTED_FLAGS = 0x2041
_MAX_DEFLATE_RATIO = 1032
_BAD_ZIP = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, ValueError, OverflowError)


class Member(NamedTuple):
    """A file in a tar, and where its content lies in the outermost file."""

    name: str
    offset: int
    size: int


class ZipMember(NamedTuple):
    """A file in a zip."""

    name: str
    offset: int
    """Of its local header."""
    size: int
    packed: int
    """Bytes it takes in the zip."""
    crc: int


def list_tar(path: Path, start: int = 0, size: int | None = None) -> Iterator[Member]:
    """Yield the files in a tar that is not compressed, or in one that lies at `start` in another file."""
    with open_file(path) as file:
        stream = TarBytes(file, tell_archive(path, start), start=start, size=size)
        if stream.is_packed:
            raise DataError(
                f"{tell_archive(path)}: compressed, so that nothing can be read in place", hint="decompress it first"
            )
        for entry in walk_tar(stream):
            if not entry.is_folder:
                yield Member(entry.name, entry.offset, entry.size)


def read_tar(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the files in a tar, compressed or not. For many small ones: each is read whole."""
    with open_file(path) as file:
        yield from read_tar_file(file, tell_archive(path))


def read_tar_file(file: BinaryIO, title: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the files in a tar that is open already, such as one from another tar."""
    stream = TarBytes(file, title)
    for entry in walk_tar(stream):
        if entry.size > MAX_READ_BYTES:
            raise refuse(
                title, entry.name, f"is {format_bytes(entry.size)} large, {format_bytes(MAX_READ_BYTES)} allowed"
            )
        if not entry.is_folder:
            content = stream.take(entry.size)
            if len(content) < entry.size:
                raise refuse(title, entry.name, f"claims {entry.size:,} bytes, {len(content):,} are left")
            yield entry.name, content


def open_zip(path: Path) -> zipfile.ZipFile:
    """Open a zip all of whose members are safe. The caller closes it."""
    title = tell_archive(path)
    if not path.is_file():
        raise DataError(f"{title}: no such file")
    try:
        archive = zipfile.ZipFile(path)
    except (*_BAD_ZIP, OSError) as err:
        raise DataError(
            f"{title}: cannot be read as zip: {printable(str(err))}",
            hint="it is damaged or was not downloaded whole; get it again",
        ) from err
    try:
        _judge_zip(archive, title, path.stat().st_size)
    except BaseException:
        archive.close()
        raise
    return archive


def list_zip(path: Path) -> list[ZipMember]:
    """Return the files in a zip, in the order of its directory."""
    return list_zip_tree(path)[0]


def list_zip_tree(path: Path) -> tuple[list[ZipMember], list[str]]:
    """Return the files in a zip and the names of its folders."""
    files: list[ZipMember] = []
    folders: list[str] = []
    with open_zip(path) as archive:
        for info in archive.infolist():
            name = clean_name(info.filename, "")
            if info.is_dir():
                folders.append(name)
            else:
                files.append(ZipMember(name, info.header_offset, info.file_size, info.compress_size, info.CRC))
    return files, folders


def read_zip_member(descriptor: int, offset: int, size: int, packed: int, crc: int) -> bytes | None:
    """Return a member's content by what `list_zip` said of it, from any thread; None where that is not there."""
    found = _find_content(descriptor, offset)
    if found is None:
        return None
    method, start = found
    content = os.pread(descriptor, packed, start)
    if len(content) < packed:
        return None
    if method == zipfile.ZIP_DEFLATED:
        try:
            content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, size + 1)
        except zlib.error:
            return None
    return content if len(content) == size and zlib.crc32(content) == crc else None


def stream_zip_member(descriptor: int, member: ZipMember) -> Iterator[bytes]:
    """Yield a member's content in pieces, from any thread; where it breaks off, or goes on, is for others to see."""
    found = _find_content(descriptor, member.offset)
    if found is None:
        return
    method, at = found
    end = at + member.packed
    decoder = zlib.decompressobj(-zlib.MAX_WBITS)
    while at < end and not decoder.eof and (content := os.pread(descriptor, min(CHUNK_BYTES, end - at), at)):
        at += len(content)
        if method == zipfile.ZIP_STORED:
            yield content
            continue
        while unpacked := decoder.decompress(content, CHUNK_BYTES):
            yield unpacked
            content = decoder.unconsumed_tail


def _find_content(descriptor: int, offset: int) -> tuple[int, int] | None:
    """Return how a member is packed and its first byte, by its local header; None where there is none."""
    head = os.pread(descriptor, _LOCAL_HEADER.size, offset)
    if len(head) < _LOCAL_HEADER.size:
        return None
    magic, _, method, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(head)
    if magic != b"PK\3\4" or method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return None
    return method, offset + _LOCAL_HEADER.size + name_bytes + extra_bytes


def open_file(path: Path) -> BinaryIO:
    """Open a plain file for reading; DataError where there is none."""
    if not path.is_file():
        raise DataError(f"{tell_archive(path)}: no such file")
    try:
        return path.open("rb", buffering=0)
    except OSError as err:
        raise DataError(f"{tell_archive(path)}: cannot be read: {err.strerror}") from err


def tell_archive(path: Path, start: int = 0) -> str:
    """Return what to call an archive in messages."""
    return printable(str(path)) + (f", the tar at byte {start}" if start else "")


def _judge_zip(archive: zipfile.ZipFile, title: str, num_bytes: int) -> None:
    names = NameBook(title)
    total = 0
    for info in archive.infolist():
        name = clean_name(info.orig_filename, title)
        kind = stat.S_IFMT(info.external_attr >> 16)
        problem = None
        if info.flag_bits & _ENCRYPTED_FLAGS:
            problem = "is encrypted"
        elif kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            problem = "is a link or a device; only files and folders are allowed"
        elif info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            problem = f"is packed by method {info.compress_type}; stored (0) and deflated (8) can be read"
        elif not 0 <= info.header_offset <= num_bytes - _LOCAL_HEADER.size - info.compress_size:
            problem = f"claims {info.compress_size:,} bytes at byte {info.header_offset:,}, the file has {num_bytes:,}"
        elif info.file_size > _MAX_DEFLATE_RATIO * info.compress_size + CHUNK_BYTES:
            problem = f"claims {info.file_size:,} bytes from {info.compress_size:,}, more than can be packed so"
        total += info.file_size
        if problem is None and total > MAX_RATIO * num_bytes + MAX_RATIO_FREE_BYTES:
            problem = f"brings the content to over {MAX_RATIO} times the zip's size, as in a compression bomb"
        if problem is not None:
            raise refuse(title, info.orig_filename, problem)
        (names.add_folder if info.is_dir() else names.add_file)(name)
