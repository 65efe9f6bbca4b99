"""The members of a tar file (old, ustar, GNU, PAX), one after the other from any header on, in the mapped file.

Plain files and folders only: links, devices, sparse members and names that lead elsewhere are refused. Nothing is
extracted, and nothing is kept but the member at hand.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from trainstone.errors import DataError
from trainstone.formats.files import MappedFile
from trainstone.formats.names import find_escape
from trainstone.formats.span import Span
from trainstone.text import printable

BLOCK_BYTES = 512
MAX_NOTE_BYTES = 1 << 20  # of a PAX header or a long name; real ones have some hundred
_NOTES = ("x", "g", "L", "K")
"""Kinds of header that say more of the next member."""
_CHECKSUM = slice(148, 156)
_ZEROS = bytes(BLOCK_BYTES)
_FILES = ("0", "\0", "7")
_REFUSED = {
    "1": "a hard link",
    "2": "a symbolic link",
    "3": "a character device",
    "4": "a block device",
    "6": "a pipe",
    "S": "a sparse file",
}
_PAX_RECORD = re.compile(rb"([0-9]{1,7}) ")
_DECIMAL = re.compile("[0-9]{1,19}", re.ASCII)
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class Member(NamedTuple):
    """A member: its name, where its data lies, where it lies with its headers and padding, and if it is a file."""

    name: str
    data: Span
    span: Span
    is_file: bool


class _Header(NamedTuple):
    """What a header says: nothing in it has been checked but its checksum."""

    name: str
    """Bytes that are not UTF-8 are kept as surrogates."""
    size: int
    kind: str
    """One character: 0 a file, 5 a folder; see _NOTES and _REFUSED."""


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
        if view[at] and view[at + _CHECKSUM.start] in b" 01234567" and _is_header(bytes(view[at : at + BLOCK_BYTES])):
            return at
    return None


def pad(size: int) -> int:
    """Return the size rounded up to whole blocks."""
    return size + -size % BLOCK_BYTES


def _read_member(file: MappedFile, start: int) -> Member | None:
    """Return the member whose first header is at this byte, None at the end mark."""
    at, notes = start, dict[str, str]()
    while True:
        header = _read_header(file, at)
        if header is None:
            if notes:
                raise file.damaged(at, "the tar ends where the member of an extended header is due")
            return None
        if header.kind not in _NOTES:
            return _resolve(file, start, at, header, notes)
        notes |= _read_note(file, at, header)
        at += BLOCK_BYTES + pad(header.size)


def _read_header(file: MappedFile, at: int) -> _Header | None:
    """Return what a block says of the next member; None for a block of zeros, which ends the archive."""
    if at < 0 or at % BLOCK_BYTES:
        raise file.damaged(at, f"no member of a tar starts there: it is no multiple of {BLOCK_BYTES}")
    block = bytes(file.view[at : at + BLOCK_BYTES])
    if block == _ZEROS:
        return None
    if len(block) < BLOCK_BYTES:
        what = f"the tar was cut off: it ends at byte {file.size} without an end mark"
        raise _find_compression(file, at, block) or file.damaged(at, what)
    if not _is_header(block):
        what = "no header of a tar member: its checksum does not fit"
        raise _find_compression(file, at, block) or file.damaged(at, what)
    size = _parse_number(block[124:136])
    if size is None:
        raise file.damaged(at, f"the size of a tar member cannot be read: {printable(ascii(block[124:136]))}")
    name = _cut(block[:100])
    if block[257:263] == b"ustar\0" and block[345]:
        name = _cut(block[345:500]) + b"/" + name
    return _Header(_decode(name), size, chr(block[156]))


def _find_compression(file: MappedFile, at: int, block: bytes) -> DataError | None:
    for mark, kind in _COMPRESSIONS.items():
        if at == 0 and block.startswith(mark):
            hint = f"decompress it first: records of a compressed tar cannot be read one by one ({kind} -d)"
            return file.damaged(0, f"the tar is compressed with {kind}", hint)
    return None


def _read_note(file: MappedFile, at: int, header: _Header) -> dict[str, str]:
    """Return what an extended header says of the next member: path, size, and marks of sparse files."""
    if header.size > MAX_NOTE_BYTES:
        raise file.damaged(at, f"an extended header of {header.size} bytes; at most {MAX_NOTE_BYTES} are allowed")
    content = bytes(file.view[at + BLOCK_BYTES : at + BLOCK_BYTES + header.size])
    if len(content) < header.size:
        raise file.damaged(at, f"an extended header of {header.size} bytes does not fit; {len(content)} are left")
    if header.kind == "L":
        return {"path": _decode(_cut(content))}
    if header.kind == "K":  # the target of a link, which is refused when it comes
        return {}
    records = _parse_pax(file, at, content)
    kept = {key: value for key, value in records.items() if key in ("path", "size") or key.startswith("GNU.sparse")}
    if header.kind == "g" and kept:
        raise file.damaged(at, f"a global header that sets {printable(', '.join(kept))} for all members")
    return kept


def _parse_pax(file: MappedFile, at: int, data: bytes) -> dict[str, str]:
    """Return PAX records, each "length key=value" and a line feed."""
    records: dict[str, str] = {}
    start = 0
    while start < len(data):
        match = _PAX_RECORD.match(data, start)
        end = start + int(match[1]) if match else 0
        key, found, value = data[match.end() if match else 0 : end - 1].partition(b"=")
        if match is None or not match.end() < end <= len(data) or data[end - 1 : end] != b"\n" or not (key and found):
            raise file.damaged(at, f"an extended header that cannot be read at byte {start} of it")
        records[_decode(key)] = _decode(value)
        start = end
    return records


def _resolve(file: MappedFile, start: int, at: int, header: _Header, notes: dict[str, str]) -> Member:
    """Return the member whose own header is at `at`, with what stands before it from `start` on, checked."""
    name = notes.get("path", header.name)
    shown = printable(name)
    kind = "S" if any(key.startswith("GNU.sparse") for key in notes) else header.kind
    # Before ustar, folders were files whose name ends in a slash.
    is_folder = kind == "5" or (kind == "\0" and name.endswith("/"))
    if not is_folder and kind not in _FILES:
        what = _REFUSED.get(kind, f"of type {printable(ascii(kind))}")
        raise file.damaged(start, f"the tar member {shown} is {what}; only plain files and folders are allowed")
    stated = notes.get("size", str(header.size))
    if "size" in notes and not _DECIMAL.fullmatch(stated):
        raise file.damaged(start, f"the tar member {shown} claims a size of {printable(ascii(stated))}")
    escape = find_escape(name) if name else "has no name"
    if escape:
        raise file.damaged(start, f"the tar member {shown!r} {escape}")
    data = Span(at + BLOCK_BYTES, 0 if is_folder else int(stated))
    end = data.offset + pad(data.size)
    if end > file.size:
        what = f"the tar member {shown} of {data.size} bytes does not fit; the file has {file.size} bytes"
        raise file.damaged(start, what)
    return Member(name, data, Span(start, end - start), not is_folder)


def _is_header(block: bytes) -> bool:
    """Say whether a block's checksum fits."""
    stated = _parse_number(block[_CHECKSUM])
    blanked = block[: _CHECKSUM.start] + b" " * 8 + block[_CHECKSUM.stop :]
    return stated == sum(blanked) or stated == sum(memoryview(blanked).cast("b"))  # old tars sum signed bytes


def _parse_number(field: bytes) -> int | None:
    """Return a number in octal digits, or in GNU's binary form for 8 GB and more; None for anything else."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = _cut(field).strip(b" ")
    return None if digits.strip(b"01234567") else int(digits or b"0", 8)


def _cut(field: bytes) -> bytes:
    return field.split(b"\0", 1)[0]


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", errors="surrogateescape")
