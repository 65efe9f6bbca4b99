"""Tar files (old, ustar, GNU, PAX), their members read from any header on in the mapped file; and samples in them.

Plain files and folders only: links, devices, sparse members and names that lead elsewhere are rejected. Nothing is
extracted, and nothing is kept but the current member. tarfile takes 2.2 times as long per member (15 against 6.6 us),
and cannot begin at any header from several threads.
WebDataset: the members of a sample share a name and stand together: 000001.jpg 000001.cls 000002.jpg 000002.cls ...
"""

import re
import tarfile
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from trainstone.errors import DataError
from trainstone.formats.files import ByteSpan, MappedFile, find_escape, is_inside
from trainstone.text import printable

BLOCK_BYTES = 512
END = bytes(2 * BLOCK_BYTES)
INDEX_VERSION = "v1.2"
MAX_NOTE_BYTES = 1 << 20  # of a PAX header or a long name; real ones have some hundred
_NOTES = ("x", "g", "L", "K")
"""Kinds of header that say more of the next member."""
_CHECKSUM = slice(148, 156)
_ZEROS = bytes(BLOCK_BYTES)
_FILES = ("0", "\0", "7")
_PAX_RECORD = re.compile(rb"([0-9]{1,7}) ")
_DECIMAL = re.compile("[0-9]{1,19}", re.ASCII)
_HINT = "a compressed tar must be decompressed first (gzip -d); otherwise copy or make the file again"


class TarMember(NamedTuple):
    """A member: its name, where its data is, where it is with its headers and padding, and if it is a file."""

    name: str
    data: ByteSpan
    span: ByteSpan
    is_file: bool


def read_members(file: MappedFile, start: int = 0, end: int | None = None) -> Iterator[TarMember]:
    """Yield the members from the header at this byte up to the end mark, without which a tar was cut off.

    With `end`, no header at or behind that byte is looked at.
    """
    while (end is None or start < end) and (member := _read_member(file, start)) is not None:
        yield member
        start = member.span.end


def pad(size: int) -> int:
    return size + -size % BLOCK_BYTES


def _read_member(file: MappedFile, start: int) -> TarMember | None:
    """Return the member whose first header is at this byte, checked; None at the end mark."""
    at, notes = start, dict[str, str]()
    while True:
        block = bytes(file.view[at : at + BLOCK_BYTES]) if at >= 0 else b""
        if block == _ZEROS and not notes:
            return None
        size = _parse_number(block[124:136]) if len(block) == BLOCK_BYTES and _is_header(block) else None
        if size is None:
            what = "the tar is cut off" if len(block) < BLOCK_BYTES else "invalid tar header or checksum"
            raise file.damaged(at, f"{what}; the file has {file.size} bytes", _HINT)
        kind = chr(block[156])
        if kind not in _NOTES:
            break
        notes |= _read_note(file, at, kind, size)
        at += BLOCK_BYTES + pad(size)
    name = _cut(block[:100])
    if block[257:263] == b"ustar\0" and block[345]:
        name = _cut(block[345:500]) + b"/" + name
    path = notes.get("path", _decode(name))
    # Before ustar, folders were files whose name ends in a slash.
    is_folder = kind == "5" or (kind == "\0" and path.endswith("/"))
    sparse = any(key.startswith("GNU.sparse") for key in notes)
    problem = find_escape(path) if path else "has no name"
    if sparse or not (is_folder or kind in _FILES):
        what = f"is a link, a device or a sparse file (type {printable(ascii(kind))})"
        problem = f"{what}; only plain files and folders are allowed"
    if not _DECIMAL.fullmatch(notes.get("size", "0")):
        problem = f"claims a size of {printable(ascii(notes['size']))}"
    if problem:
        raise file.damaged(start, f"the tar member {printable(path)!r} {problem}")
    data = ByteSpan(at + BLOCK_BYTES, 0 if is_folder else int(notes.get("size", size)))
    end = data.offset + pad(data.size)
    if end > file.size:
        what = f"the tar member {printable(path)} of {data.size} bytes does not fit; the file has {file.size} bytes"
        raise file.damaged(start, what)
    return TarMember(path, data, ByteSpan(start, end - start), not is_folder)


def _read_note(file: MappedFile, at: int, kind: str, size: int) -> dict[str, str]:
    """Return what an extended header says of the next member: path, size, and marks of sparse files."""
    content = bytes(file.view[at + BLOCK_BYTES : at + BLOCK_BYTES + min(size, MAX_NOTE_BYTES)])
    if len(content) < size:
        raise file.damaged(at, f"an extended header of {size} bytes does not fit; at most {MAX_NOTE_BYTES} are allowed")
    if kind == "L":
        return {"path": _decode(_cut(content))}
    if kind == "K":  # the target of a link, which is rejected when it comes
        return {}
    kept: dict[str, str] = {}
    start = 0
    while start < size:  # PAX records, each "length key=value" and a line feed
        match = _PAX_RECORD.match(content, start)
        end = start + int(match[1]) if match else 0
        key, found, value = content[match.end() if match else 0 : end - 1].partition(b"=")
        if match is None or not match.end() < end <= size or content[end - 1 : end] != b"\n" or not (key and found):
            raise file.damaged(at, f"an extended header that cannot be read at byte {start} of it")
        if key in (b"path", b"size") or key.startswith(b"GNU.sparse"):
            kept[_decode(key)] = _decode(value)
        start = end
    if kind == "g" and kept:
        raise file.damaged(at, f"a global header that sets {printable(', '.join(kept))} for all members")
    return kept


def _is_header(block: bytes) -> bool:
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


class TarSample(NamedTuple):
    """The members of a sample by extension (lower case)."""

    key: str
    members: dict[str, TarMember]

    @property
    def span(self) -> ByteSpan:
        first, last = (list(self.members.values())[place].span for place in (0, -1))
        return ByteSpan(first.offset, last.end - first.offset)


def member(name: str, data: bytes) -> bytes:
    """Return a file as a member of a tar: mode 0644, no owner, no time, so that equal data gives equal bytes."""
    if not is_inside(name) or name.endswith("/"):
        raise DataError(f"{printable(name)!r} cannot be the name of a file in a tar; it must be relative")
    info = tarfile.TarInfo(name)
    info.size = len(data)
    try:  # DALI reads no PAX header without an index; up to 256 ASCII characters fit without one
        header = info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")
    except ValueError:
        header = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return b"".join((header, data, bytes(-len(data) % BLOCK_BYTES)))


class WdsFile(MappedFile):
    """A tar of samples, read by byte offset. Members are views of the mapped file; several threads may read."""

    def samples(self, start: int = 0, *, partial: bool = False) -> Iterator[TarSample]:
        """Yield the samples from the header at this byte on; only one is held at a time. Data is not read.

        Folders, and files that WebDataset passes over (no extension, hidden), belong to no sample. Before a damaged
        place the sample at hand is yielded if it has the members that the one before it had, or if `partial`.
        """
        key, parts, usual = "", dict[str, TarMember](), set[str]()
        try:
            for entry in read_members(self, start):
                folder, slash, base = entry.name.rpartition("/")
                stem, dot, extension = base.partition(".")
                if not (entry.is_file and stem and dot):
                    continue
                if parts and folder + slash + stem != key:
                    yield TarSample(key, parts)
                    parts, usual = {}, set(parts)
                key = folder + slash + stem
                if extension.lower() in parts:
                    what = f"the tar member {printable(entry.name)} is there twice in one sample"
                    raise self.damaged(entry.span.offset, what)
                parts[extension.lower()] = entry
        except DataError:
            if parts and (partial or set(parts) == usual):
                yield TarSample(key, parts)
            raise
        if parts:
            yield TarSample(key, parts)

    def spans(self, start: int = 0) -> Iterator[ByteSpan]:
        return (sample.span for sample in self.samples(start))

    def first_sample(self, start: int) -> TarSample:
        """Return the sample that begins at this byte, up to a member of another one or a damaged place."""
        found = next(self.samples(start, partial=True), None)
        if found is None:
            raise self.damaged(start, "no sample starts there")
        return found

    def read(self, span: ByteSpan) -> memoryview:
        return self.view[span.offset : span.end]

    def resync(self, offset: int) -> int | None:
        """Return the next byte after this one with a valid header; the sample there may lack its first members."""
        for at in range(max(offset // BLOCK_BYTES + 1, 0) * BLOCK_BYTES, self.size - BLOCK_BYTES + 1, BLOCK_BYTES):
            # Most blocks are no header and must be skipped quickly: no name, or no digit where the checksum begins.
            if not self.view[at] or self.view[at + _CHECKSUM.start] not in b" 01234567":
                continue
            if _is_header(bytes(self.view[at : at + BLOCK_BYTES])):
                return at
        return None


def index_text(samples: Iterable[TarSample]) -> str:
    """Return the index that DALI's wds2idx writes."""
    lines = []
    for sample in samples:
        fields: list[str] = []
        for name, data, *_ in sample.members.values():
            extension = name[len(sample.key) + 1 :]
            if not extension or any(char.isspace() for char in name):
                what = f"DALI's index cannot hold the name {printable(name)!r}: it has a space, or no extension"
                raise DataError(what, hint="rename the member, or read the tar without an index")
            fields += (extension, str(data.offset), str(data.size), name)
        lines.append(" ".join(fields) + "\n")
    return f"{INDEX_VERSION} {len(lines)}\n" + "".join(lines)
