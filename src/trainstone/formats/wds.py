"""WebDataset: tar files in which the members of a sample share a name and stand together; and DALI's index of them.

000001.jpg  000001.cls  000002.jpg  000002.cls ...
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from trainstone.errors import DataError
from trainstone.formats.files import MappedFile, damaged_line, parse_count, read_lines
from trainstone.formats.names import is_inside
from trainstone.formats.span import Span
from trainstone.formats.tarheader import BLOCK_BYTES, pad
from trainstone.formats.tarmember import Member, find_header, read_members
from trainstone.text import printable

END = bytes(2 * BLOCK_BYTES)
INDEX_VERSION = "v1.2"
_MAX_SIZE = 8**11 - 1  # what a header's octal field holds


class TarSample(NamedTuple):
    """The members of a sample by extension (lower case), and where it lies with all headers and padding."""

    key: str
    members: dict[str, Span]
    span: Span
    names: tuple[str, ...] = ()
    """The members' names as they stand in the tar, in the order of `members`."""


def member(name: str, data: bytes) -> bytes:
    """Return a file as a member of a tar: mode 0644, no owner, no time, so that equal data gives equal bytes."""
    raw = name.encode("utf-8", "surrogateescape")
    if not is_inside(name) or name.endswith("/"):
        raise DataError(f"{printable(name)!r} cannot be the name of a file in a tar; it must be relative")
    if len(data) > _MAX_SIZE:
        raise DataError(f"{printable(name)} has {len(data)} bytes; a tar member has at most {_MAX_SIZE}")
    split = _split_ustar(raw)
    if split is not None:
        return b"".join((_header(*split, b"0", len(data)), data, bytes(-len(data) % BLOCK_BYTES)))
    records = _pax_record(b"path", raw)
    if any("\ud800" <= char <= "\udfff" for char in name):  # PAX is UTF-8 unless it says so
        records = _pax_record(b"hdrcharset", b"BINARY") + records
    plain = raw.decode("ascii", "replace").encode("ascii", "replace")[-100:].lstrip(b"/")
    return b"".join(
        (
            _header(b"", b"././@PaxHeader", b"x", len(records)),
            records,
            bytes(-len(records) % BLOCK_BYTES),
            _header(b"", plain, b"0", len(data)),
            data,
            bytes(-len(data) % BLOCK_BYTES),
        )
    )


def split_name(name: str) -> tuple[str, str] | None:
    """Return key and extension: all before, all after the first dot of the last part; None without dot or key."""
    dot = name.find(".", name.rfind("/") + 1)
    if dot < 0 or dot == name.rfind("/") + 1:
        return None
    return name[:dot], name[dot + 1 :]


class WdsFile(MappedFile):
    """A tar of samples, read by byte offset. Members are views of the mapped file; several threads may read."""

    def samples(self, start: int = 0) -> Iterator[TarSample]:
        """Yield the samples from the header at this byte on; only one is held at a time. Data is not read.

        Folders, and files that WebDataset passes over (no extension, hidden), belong to no sample. Before a damaged
        place the sample at hand is still told if it has the members that the one before it had.
        """
        return self._gather(read_members(self, start))

    def first_sample(self, start: int) -> TarSample:
        """Return the sample that begins at this byte, up to a member of another one or a damaged place."""
        found = next(self._gather(_stop_at_damage(read_members(self, start))), None)
        if found is None:
            raise self.damaged(start, "no sample starts there")
        return found

    def sample_at(self, span: Span) -> TarSample:
        """Return the sample in these bytes, known from `samples`; what lies behind it is not looked at."""
        found = list(self._gather(read_members(self, span.offset, span.end)))
        if len(found) != 1 or found[0].span != span:
            raise self.damaged(span.offset, f"the {span.size} bytes from there are not those of one sample")
        return found[0]

    def _gather(self, entries: Iterable[Member]) -> Iterator[TarSample]:
        key, parts, usual = "", list[tuple[str, Member]](), set[str]()
        try:
            for entry in entries:
                split = split_name(entry.name) if entry.is_file else None
                if split is None:
                    continue
                if parts and split[0] != key:
                    yield _join(key, parts)
                    parts, usual = [], {extension for extension, _ in parts}
                key, extension = split[0], split[1].lower()
                if any(extension == other for other, _ in parts):
                    what = f"the tar member {printable(entry.name)} is there twice in one sample"
                    raise self.damaged(entry.span.offset, what)
                parts.append((extension, entry))
        except DataError:
            if parts and {extension for extension, _ in parts} == usual:
                yield _join(key, parts)
            raise
        if parts:
            yield _join(key, parts)

    def read(self, span: Span) -> memoryview:
        """Return these bytes."""
        if span.offset < 0 or span.size < 0 or span.end > self.size:
            what = f"{span.size} bytes from there do not fit; the file has {self.size} bytes"
            raise self.damaged(span.offset, what)
        return self.view[span.offset : span.end]

    def resync(self, offset: int) -> int | None:
        """Return the next byte after this one with a valid header; the sample there may lack its first members."""
        return find_header(self, offset)


def index_text(samples: Iterable[TarSample]) -> str:
    """Return the index that DALI's wds2idx writes."""
    lines = [_index_line(sample) for sample in samples]
    return f"{INDEX_VERSION} {len(lines)}\n" + "".join(lines)


def read_index(path: Path) -> list[TarSample]:
    """Return the samples of an index as wds2idx writes it; their spans begin 512 bytes before their data."""
    lines = read_lines(path)
    number, head = next(lines, (1, ""))
    version, _, stated = head.partition(" ")
    if version != INDEX_VERSION or parse_count(stated.strip()) is None:
        what = f"expected {INDEX_VERSION} and the number of samples, not {printable(head[:40])!r}"
        raise damaged_line(path, number, what, hint="make the index again with wds2idx, or remove it")
    samples = [_parse_index_line(path, number, line) for number, line in lines]
    if len(samples) != parse_count(stated.strip()):
        raise damaged_line(path, number, f"{stated.strip()} samples are announced, {len(samples)} follow")
    return samples


def _stop_at_damage(entries: Iterable[Member]) -> Iterator[Member]:
    """Yield members up to a damaged place; DataError only if that is the first."""
    is_first = True
    try:
        for entry in entries:
            yield entry
            is_first = False
    except DataError:
        if is_first:
            raise


def _join(key: str, parts: list[tuple[str, Member]]) -> TarSample:
    start = parts[0][1].span.offset
    members = {extension: entry.data for extension, entry in parts}
    return TarSample(key, members, Span(start, parts[-1][1].span.end - start), tuple(entry.name for _, entry in parts))


def _index_line(sample: TarSample) -> str:
    names = sample.names or tuple(f"{sample.key}.{extension}" for extension in sample.members)
    fields: list[str] = []
    for name, data in zip(names, sample.members.values(), strict=True):
        extension = name[len(sample.key) + 1 :]
        if not extension or any(char.isspace() for char in name):
            what = f"DALI's index cannot hold the name {printable(name)!r}: it has a space, or no extension"
            raise DataError(what, hint="rename the member, or read the tar without an index")
        fields += (extension, str(data.offset), str(data.size), name)
    return " ".join(fields) + "\n"


def _parse_index_line(path: Path, number: int, line: str) -> TarSample:
    fields = line.split()
    if len(fields) % 4:
        raise damaged_line(path, number, "expected extension, offset, size and name of each member of a sample")
    members: dict[str, Span] = {}
    for extension, offset, size in zip(fields[0::4], fields[1::4], fields[2::4], strict=True):
        place = parse_count(offset), parse_count(size)
        if place[0] is None or place[1] is None or place[0] < BLOCK_BYTES or extension.lower() in members:
            what = f"the member {printable(extension)} has no offset and size, or is there twice"
            raise damaged_line(path, number, what)
        members[extension.lower()] = Span(place[0], place[1])
    names = tuple(fields[3::4])
    start = min(data.offset for data in members.values()) - BLOCK_BYTES
    end = max(data.offset + pad(data.size) for data in members.values())
    return TarSample((split_name(names[0]) or (names[0], ""))[0], members, Span(start, end - start), names)


def _header(prefix: bytes, name: bytes, kind: bytes, size: int) -> bytes:
    """Return a ustar header. By hand: tarfile's differs between versions of Python (device fields)."""
    block = bytearray(BLOCK_BYTES)
    fields = {
        0: name,
        100: b"0000644\0",
        108: b"0000000\0",  # user
        116: b"0000000\0",  # group
        124: b"%011o\0" % size,
        136: b"00000000000\0",  # time
        148: b" " * 8,  # checksum, as if blank
        156: kind,
        257: b"ustar\x0000",
        345: prefix,
    }
    for at, value in fields.items():
        block[at : at + len(value)] = value
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def _split_ustar(raw: bytes) -> tuple[bytes, bytes] | None:
    """Return prefix and name as a ustar header holds them, None if the name is too long or not ASCII."""
    if not raw.isascii():
        return None
    if len(raw) <= 100:
        return b"", raw
    slash = raw.find(b"/", len(raw) - 101)
    return (raw[:slash], raw[slash + 1 :]) if 0 < slash <= 155 else None


def _pax_record(key: bytes, value: bytes) -> bytes:
    """Return "length key=value" and a line feed, where the length counts its own digits."""
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest) + 1
    while len(b"%d" % length) + len(rest) != length:
        length = len(b"%d" % length) + len(rest)
    return b"%d" % length + rest
