"""The members of a tar file, one after the other from any header on, by random access to the mapped file.

Names that lead elsewhere are refused, as is all that tarheader.py refuses. Nothing is extracted, and nothing is kept
but the member at hand.
"""

from collections.abc import Iterator
from typing import NamedTuple

from trainstone.errors import DataError
from trainstone.formats.files import MappedFile
from trainstone.formats.names import find_escape
from trainstone.formats.span import Span
from trainstone.formats.tarheader import (
    BLOCK_BYTES,
    CHECKSUM,
    NOTES,
    BadTar,
    Header,
    check_note,
    describe,
    is_header,
    pad,
    parse_header,
    read_note,
)
from trainstone.text import printable

_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class Member(NamedTuple):
    """A member: its name, where its data lies, where it lies with its headers and padding, and if it is a file."""

    name: str
    data: Span
    span: Span
    is_file: bool


def read_members(file: MappedFile, start: int = 0, end: int | None = None) -> Iterator[Member]:
    """Yield the members from the header at this byte up to the end mark, without which a tar was cut off.

    With `end`, no header at or behind that byte is looked at.
    """
    while (end is None or start < end) and (member := _read_member(file, start)) is not None:
        yield member
        start = member.span.end


def find_header(file: MappedFile, offset: int) -> int | None:
    """Return the next byte after this one where a valid header stands, on a block of 512 bytes."""
    view = file.view
    for at in range(max(offset // BLOCK_BYTES + 1, 0) * BLOCK_BYTES, file.size - BLOCK_BYTES + 1, BLOCK_BYTES):
        # Most blocks are no header and must be passed over quickly: no name, or no digit where the checksum begins.
        if view[at] and view[at + CHECKSUM.start] in b" 01234567" and is_header(bytes(view[at : at + BLOCK_BYTES])):
            return at
    return None


def _read_member(file: MappedFile, start: int) -> Member | None:
    """Return the member whose first header is at this byte, None at the end mark."""
    at, notes = start, dict[str, str]()
    while True:
        header = _read_header(file, at)
        if header is None:
            if notes:
                raise file.damaged(at, "the tar ends where the member of an extended header is due")
            return None
        if header.kind not in NOTES:
            return _resolve(file, start, at, header, notes)
        try:
            check_note(header)
            notes |= read_note(header, bytes(file.view[at + BLOCK_BYTES : at + BLOCK_BYTES + header.size]))
        except BadTar as err:
            raise file.damaged(at, str(err)) from err
        at += BLOCK_BYTES + pad(header.size)


def _read_header(file: MappedFile, at: int) -> Header | None:
    if at < 0 or at % BLOCK_BYTES:
        raise file.damaged(at, f"no member of a tar starts there: it is no multiple of {BLOCK_BYTES}")
    block = bytes(file.view[at : at + BLOCK_BYTES])
    if len(block) < BLOCK_BYTES:
        what = f"the tar was cut off: it ends at byte {file.size} without an end mark"
        raise _tell_packed(file, at, block) or file.damaged(at, what)
    try:
        return parse_header(block)
    except BadTar as err:
        raise _tell_packed(file, at, block) or file.damaged(at, str(err)) from err


def _tell_packed(file: MappedFile, at: int, block: bytes) -> DataError | None:
    for mark, kind in _COMPRESSIONS.items():
        if at == 0 and block.startswith(mark):
            hint = f"decompress it first: records of a compressed tar cannot be read one by one ({kind} -d)"
            return file.damaged(0, f"the tar is compressed with {kind}", hint)
    return None


def _resolve(file: MappedFile, start: int, at: int, header: Header, notes: dict[str, str]) -> Member:
    """Return the member whose own header is at `at`, with what stands before it from `start` on, checked."""
    shown = printable(notes.get("path", header.name))
    try:
        name, size, is_folder = describe(header, notes)
    except BadTar as err:
        raise file.damaged(start, f"the tar member {shown} {err}") from err
    escape = find_escape(name) if name else "has no name"
    if escape:
        raise file.damaged(start, f"the tar member {shown!r} {escape}")
    data = Span(at + BLOCK_BYTES, size)
    end = data.offset + pad(size)
    if end > file.size:
        what = f"the tar member {shown} of {size} bytes does not fit; the file has {file.size} bytes"
        raise file.damaged(start, what)
    return Member(name, data, Span(start, end - start), not is_folder)
