"""Walks the members of a tar, packed (gz, bz2, xz) or not, one after the other and in little memory.

Links, devices, sparse members and unsafe names end the walk with a DataError. Nothing is written here.
"""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from trainstone.data.raw.safenames import NameBook, clean_name, refuse
from trainstone.errors import DataError
from trainstone.formats.tarheader import (
    BLOCK_BYTES,
    NOTES,
    BadTar,
    Header,
    check_note,
    describe,
    pad,
    parse_header,
    read_note,
)
from trainstone.units import format_bytes

CHUNK_BYTES = 2**20
# What an archive may unpack to: text packs about 10 times, tars of many small XML files 50 times, a bomb 1000 times.
MAX_RATIO = 200
MAX_RATIO_FREE_BYTES = 64 * 2**20
MAX_XZ_MEMORY_BYTES = 512 * 2**20
HINT = "it was not downloaded whole, or is no tar"


class Entry(NamedTuple):
    """A file or a folder in a tar."""

    name: str
    offset: int
    """Of its content, in the file, or in what the file unpacks to."""
    size: int
    is_folder: bool


class TarBytes:
    """The bytes of a tar in order; of a packed one they are unpacked as they are asked for, up to a limit."""

    def __init__(self, file: BinaryIO, archive: str, *, start: int = 0, size: int | None = None) -> None:
        self.archive = archive
        num_bytes = file.seek(0, io.SEEK_END)
        file.seek(start)
        unpacked = _open_packed(file) if size is None and start == 0 else None
        self.is_packed = unpacked is not None
        self._file: BinaryIO | io.BufferedIOBase = unpacked or file
        self.position = 0 if self.is_packed else start
        self.end = MAX_RATIO * num_bytes + MAX_RATIO_FREE_BYTES
        if not self.is_packed:
            self.end = num_bytes if size is None else min(num_bytes, start + size)

    def take(self, size: int) -> bytes:
        """Return the next bytes; fewer only where there are no more."""
        if self.position + size > self.end:
            if self.is_packed:
                raise self._bomb()
            size = self.end - self.position
        try:
            content = self._file.read(size)
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as err:
            reason = str(err) or "it ends"
            raise DataError(
                f"{self.archive}: cannot be unpacked beyond byte {self.position} of its content: {reason}",
                hint="it is damaged or was not downloaded whole; get it again",
            ) from err
        self.position += len(content)
        return content

    def move_to(self, position: int) -> None:
        """Go forward; where there is nothing the next `take` returns nothing."""
        if self.is_packed:
            while self.position < position and self.take(min(CHUNK_BYTES, position - self.position)):
                pass
        else:
            self.position = self._file.seek(min(position, self.end))

    def finish(self) -> None:
        """Read a packed file to its end, where its checksum lies."""
        while self.is_packed and self.take(CHUNK_BYTES):
            pass

    def _bomb(self) -> DataError:
        return DataError(
            f"{self.archive}: unpacks to more than {format_bytes(self.end)}, over {MAX_RATIO} times its size; "
            "it is taken for a compression bomb and refused",
            hint="if you trust it, unpack it by hand and give the folder",
        )


def walk_tar(stream: TarBytes) -> Iterator[Entry]:
    """Yield files and folders; after each, its content may be taken from the stream."""
    names = NameBook(stream.archive)
    notes: dict[str, str] = {}
    while True:
        where = f"{stream.archive}, byte {stream.position}"
        try:
            header = _read_header(stream)
            if header is not None and header.kind in NOTES:
                check_note(header)
                notes |= read_note(header, stream.take(pad(header.size))[: header.size])
                continue
            if header is None and notes:
                raise BadTar("the tar ends where the member of an extended header is due")
        except BadTar as err:
            raise DataError(f"{where}: {err}", hint=HINT) from err
        if header is None:
            stream.finish()
            return
        entry = _judge(stream, header, notes)
        notes = {}
        (names.add_folder if entry.is_folder else names.add_file)(entry.name)
        yield entry
        stream.move_to(entry.offset + pad(entry.size))


def _read_header(stream: TarBytes) -> Header | None:
    block = stream.take(BLOCK_BYTES)
    if len(block) < BLOCK_BYTES:
        raise BadTar("the tar ends here without its end mark, a block of zeros")
    return parse_header(block)


def _judge(stream: TarBytes, header: Header, notes: dict[str, str]) -> Entry:
    """Return the member, if it is a file or a folder whose name and size can be trusted."""
    archive = stream.archive
    try:
        name, size, is_folder = describe(header, notes)
    except BadTar as err:
        raise refuse(archive, notes.get("path", header.name), str(err)) from err
    if stream.position + size > stream.end:
        room = f"{stream.end - stream.position:,} are left"
        if stream.is_packed:
            room = f"at most {stream.end:,} in all are believed of an archive of this size"
        raise refuse(archive, name, f"claims {size:,} bytes, {room}")
    return Entry(clean_name(name, archive), stream.position, size, is_folder)


def _open_packed(file: BinaryIO) -> io.BufferedIOBase | None:
    """Return the unpacked bytes of a gzip, bzip2 or xz file; None for any other."""
    magic = file.read(6)
    file.seek(-len(magic), io.SEEK_CUR)
    if magic.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)
    if magic.startswith(b"BZh"):
        return bz2.BZ2File(file)
    if magic == b"\xfd7zXZ\0":
        return io.BufferedReader(_XzBytes(file))
    return None


class _XzBytes(io.RawIOBase):
    """Unpacks xz with bounded memory, which lzma.LZMAFile does not: a header may ask for 4 GB."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder = lzma.LZMADecompressor(memlimit=MAX_XZ_MEMORY_BYTES)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        content = b""
        while not content:
            packed = b""
            if self._decoder.eof:
                packed = self._decoder.unused_data.lstrip(b"\0") or self._file.read(CHUNK_BYTES).lstrip(b"\0")
                if not packed:
                    return 0
                self._decoder = lzma.LZMADecompressor(memlimit=MAX_XZ_MEMORY_BYTES)
            elif self._decoder.needs_input:
                packed = self._file.read(CHUNK_BYTES)
                if not packed:
                    raise EOFError("ends early")
            content = self._decoder.decompress(packed, len(buffer))
        buffer[: len(content)] = content
        return len(content)
