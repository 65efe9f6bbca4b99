"""The bytes of a file in pieces, unpacked on the way if it is gzip: told by its first bytes, whatever its name."""

import zlib
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from trainstone.errors import DataError
from trainstone.text import printable

GZIP = b"\x1f\x8b"
HINT = "copy or make the file again"
READ_BYTES = 1 << 20
MAX_INFLATION = 500
"""Deflate can reach 1030; traces, as regular as they are, 10 to 60."""
FREE_BYTES = 1 << 26
"""So much may come out of any file before its inflation is judged."""


def is_gzip(path: Path) -> bool:
    """Say whether a file begins like gzip; raise DataError if it cannot be read."""
    name = printable(str(path))
    if path.exists() and not path.is_file():  # opening a pipe would wait for ever
        raise DataError(f"cannot read {name}: it is no file", hint="give the path of a file")
    try:
        with path.open("rb") as file:
            return file.read(len(GZIP)) == GZIP
    except (OSError, ValueError) as err:
        raise _unreadable(name, err) from err


def read_pieces(path: Path, piece_bytes: int) -> Generator[bytes, None, None]:
    """Yield the content, unpacked, in pieces of at most so many bytes; the next is fetched while one is worked on.

    A gzip file that ends too early gives all it has before the DataError.
    """
    pieces = _inflate(path, piece_bytes) if is_gzip(path) else _read(path, piece_bytes)
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, pieces, None)
        while (piece := coming.result()) is not None:
            coming = pool.submit(next, pieces, None)
            yield piece


def _read(path: Path, piece_bytes: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while piece := file.read(piece_bytes):
                yield piece
    except OSError as err:
        raise _unreadable(printable(str(path)), err) from err


def _inflate(path: Path, piece_bytes: int) -> Iterator[bytes]:
    name = printable(str(path))
    try:
        with path.open("rb") as file:
            yield from _inflate_members(file, name, piece_bytes)
    except OSError as err:
        raise _unreadable(name, err) from err


def _inflate_members(file: BinaryIO, name: str, piece_bytes: int) -> Iterator[bytes]:
    """Yield what all members hold, one after the other; zeros behind the last are padding."""
    engine = zlib.decompressobj(31)
    waiting = b""
    out_bytes = 0
    while waiting or (waiting := file.read(READ_BYTES)):
        if engine.eof:
            waiting = waiting.lstrip(b"\0")
            if not waiting:
                continue
            engine = zlib.decompressobj(31)
        try:
            piece = engine.decompress(waiting, piece_bytes)
        except zlib.error as err:
            raise DataError(f"{name}, before byte {file.tell()}: damaged gzip ({err})", hint=HINT) from err
        waiting = engine.unconsumed_tail or engine.unused_data
        out_bytes += len(piece)
        if out_bytes > FREE_BYTES and out_bytes > MAX_INFLATION * file.tell():
            told = f"{file.tell():,} bytes unpack to more than {MAX_INFLATION} times as much"
            raise DataError(f"{name}, byte {file.tell()}: {told}", hint="unpack it yourself if it is no bomb")
        if piece:
            yield piece
    if not engine.eof:
        raise DataError(f"{name}, byte {file.tell()}: the gzip file is cut off", hint=HINT)


def _unreadable(name: str, err: Exception) -> DataError:
    reason = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
    return DataError(f"cannot read {name}: {reason}", hint="check the path and its permissions")
