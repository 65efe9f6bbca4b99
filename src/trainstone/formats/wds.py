"""WebDataset: tar files in which the members of a sample share a name and stand together; and DALI's index of them.

000001.jpg  000001.cls  000002.jpg  000002.cls ...
"""

import tarfile
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from trainstone.errors import DataError
from trainstone.formats.files import MappedFile
from trainstone.formats.names import is_inside
from trainstone.formats.span import Span
from trainstone.formats.tarmember import BLOCK_BYTES, Member, find_header, read_members
from trainstone.text import printable

END = bytes(2 * BLOCK_BYTES)
INDEX_VERSION = "v1.2"


class TarSample(NamedTuple):
    """The members of a sample by extension (lower case), and where it lies with all headers and padding."""

    key: str
    members: dict[str, Span]
    span: Span
    names: tuple[str, ...]
    """The members' names as they stand in the tar, in the order of `members`."""


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

    def spans(self, start: int = 0) -> Iterator[Span]:
        """Yield where each sample lies from this byte on."""
        return (sample.span for sample in self.samples(start))

    def first_sample(self, start: int) -> TarSample:
        """Return the sample that begins at this byte, up to a member of another one or a damaged place."""
        found = next(self._gather(_stop_at_damage(read_members(self, start))), None)
        if found is None:
            raise self.damaged(start, "no sample starts there")
        return found

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
        return self.view[span.offset : span.end]

    def resync(self, offset: int) -> int | None:
        """Return the next byte after this one with a valid header; the sample there may lack its first members."""
        return find_header(self, offset)


def index_text(samples: Iterable[TarSample]) -> str:
    """Return the index that DALI's wds2idx writes."""
    lines = [_index_line(sample) for sample in samples]
    return f"{INDEX_VERSION} {len(lines)}\n" + "".join(lines)


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
    fields: list[str] = []
    for name, data in zip(sample.names, sample.members.values(), strict=True):
        extension = name[len(sample.key) + 1 :]
        if not extension or any(char.isspace() for char in name):
            what = f"DALI's index cannot hold the name {printable(name)!r}: it has a space, or no extension"
            raise DataError(what, hint="rename the member, or read the tar without an index")
        fields += (extension, str(data.offset), str(data.size), name)
    return " ".join(fields) + "\n"
