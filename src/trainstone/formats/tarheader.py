"""Tar headers (old, ustar, GNU, PAX) and what they say of a member. Pure: who reads the file says where a fault lies.

Plain files and folders only: links, devices and sparse members are refused.
"""

import re
from typing import NamedTuple

from trainstone.text import printable

BLOCK_BYTES = 512
MAX_NOTE_BYTES = 1 << 20  # of a PAX header or a long name; real ones have some hundred
NOTES = ("x", "g", "L", "K")
"""Kinds of header that say more of the next member."""
CHECKSUM = slice(148, 156)
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
_OCTAL = b"01234567"
_PAX_RECORD = re.compile(rb"([0-9]{1,7}) ")
_DECIMAL = re.compile("[0-9]{1,19}", re.ASCII)


class BadTar(Exception):
    """What is wrong with a header, or with a member: then the text goes on after the member's name."""


class Header(NamedTuple):
    """What a header says: nothing in it has been checked but its checksum."""

    name: str
    """Bytes that are not UTF-8 are kept as surrogates."""
    size: int
    kind: str
    """One character: 0 a file, 5 a folder; see NOTES and _REFUSED."""


class Described(NamedTuple):
    """A file or folder, with what stood before its own header taken into account. Its name is not judged."""

    name: str
    size: int
    is_folder: bool


def is_header(block: bytes) -> bool:
    """Say whether a block's checksum fits."""
    stated = _parse_number(block[CHECKSUM])
    blanked = block[: CHECKSUM.start] + b" " * 8 + block[CHECKSUM.stop :]
    return stated == sum(blanked) or stated == sum(memoryview(blanked).cast("b"))  # old tars sum signed bytes


def parse_header(block: bytes) -> Header | None:
    """Return what a block says of the next member; None for a block of zeros, which ends the archive."""
    if block == _ZEROS:
        return None
    if not is_header(block):
        raise BadTar("no header of a tar member: its checksum does not fit")
    size = _parse_number(block[124:136])
    if size is None:
        raise BadTar(f"the size of a tar member cannot be read: {printable(ascii(block[124:136]))}")
    name = _cut(block[:100])
    if block[257:263] == b"ustar\0" and block[345]:
        name = _cut(block[345:500]) + b"/" + name
    return Header(_decode(name), size, chr(block[156]))


def check_note(header: Header) -> None:
    """Refuse a note that is too long, before it is read."""
    if header.size > MAX_NOTE_BYTES:
        raise BadTar(f"an extended header of {header.size} bytes; at most {MAX_NOTE_BYTES} are allowed")


def read_note(header: Header, content: bytes) -> dict[str, str]:
    """Return what a note says of the next member: path, size, and marks of sparse files."""
    if len(content) < header.size:
        raise BadTar(f"an extended header of {header.size} bytes does not fit; {len(content)} are left")
    if header.kind == "L":
        return {"path": _decode(_cut(content))}
    if header.kind == "K":  # the target of a link, which is refused when it comes
        return {}
    records = parse_pax(content)
    kept = {key: value for key, value in records.items() if key in ("path", "size") or key.startswith("GNU.sparse")}
    if header.kind == "g" and kept:
        raise BadTar(f"a global header that sets {printable(', '.join(kept))} for all members")
    return kept


def describe(header: Header, notes: dict[str, str]) -> Described:
    """Return the member; BadTar where it is no plain file or folder, or its size cannot be believed."""
    name = notes.get("path", header.name)
    kind = "S" if any(key.startswith("GNU.sparse") for key in notes) else header.kind
    # Before ustar, folders were files whose name ends in a slash.
    is_folder = kind == "5" or (kind == "\0" and name.endswith("/"))
    if not is_folder and kind not in _FILES:
        what = _REFUSED.get(kind, f"of type {printable(ascii(kind))}")
        raise BadTar(f"is {what}; only plain files and folders are allowed")
    size = notes.get("size", str(header.size))
    if "size" in notes and not _DECIMAL.fullmatch(size):
        raise BadTar(f"claims a size of {printable(ascii(size))}")
    return Described(name, 0 if is_folder else int(size), is_folder)


def parse_pax(data: bytes) -> dict[str, str]:
    """Return PAX records, each "length key=value" and a line feed."""
    records: dict[str, str] = {}
    start = 0
    while start < len(data):
        match = _PAX_RECORD.match(data, start)
        end = start + int(match[1]) if match else 0
        if match is None or not match.end() < end <= len(data) or data[end - 1 : end] != b"\n":
            raise BadTar(f"an extended header that cannot be read at byte {start} of it")
        key, found, value = data[match.end() : end - 1].partition(b"=")
        if not key or not found:
            raise BadTar(f"an extended header without a key at byte {start} of it")
        records[_decode(key)] = _decode(value)
        start = end
    return records


def pad(size: int) -> int:
    """Return the size rounded up to whole blocks."""
    return size + -size % BLOCK_BYTES


def _parse_number(field: bytes) -> int | None:
    """Return a number in octal digits, or in GNU's binary form for 8 GB and more; None for anything else."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = _cut(field).strip(b" ")
    return None if digits.strip(_OCTAL) else int(digits or b"0", 8)


def _cut(field: bytes) -> bytes:
    return field.split(b"\0", 1)[0]


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", errors="surrogateescape")
