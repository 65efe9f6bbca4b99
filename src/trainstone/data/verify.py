"""Decodes every record of a data set and names each bad one by file, record and byte."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from trainstone.data.image.decode import decode_strict
from trainstone.data.manifest import NAME, TEXT, Manifest, ShardFacts, measure, sum_file
from trainstone.data.parallel import Pool, map_in_order, open_pool
from trainstone.data.sample import DataSet, Sample, Selection, Source
from trainstone.data.storage.records import RecordSource, walk
from trainstone.errors import DataError
from trainstone.formats.files import ByteSpan
from trainstone.machine.ranks import SINGLE_RANK, Rank


class BadSample(NamedTuple):
    file: str
    record: int | None
    """Number in its file; None where the file itself is meant."""
    span: ByteSpan
    """Where it lies; size 0: up to the next record that can be found."""
    name: str
    why: str

    def describe(self) -> str:
        at = "" if self.record is None else f", record {self.record} at byte {self.span.offset}"
        named = f" ({self.name})" if self.name and not self.file.endswith(self.name) else ""
        return f"{self.file}{at}{named}: {self.why}"


@dataclass
class VerifyFindings:
    records: int = 0
    bytes: int = 0
    bad: list[BadSample] = field(default_factory=list)
    stale: list[Path] = field(default_factory=list)
    """Index files that do not fit their records."""

    def add(self, other: "VerifyFindings") -> None:
        self.records += other.records
        self.bytes += other.bytes
        self.bad += other.bad


def verify(
    found: DataSet, workers: int, manifest: Manifest | None, folder: Path, rank: Rank = SINGLE_RANK
) -> Iterator[VerifyFindings]:
    """Look at everything, or at this rank's part; yields the same findings again and again as they grow."""
    findings = VerifyFindings()
    num_classes = len(found.classes) or None
    folders = manifest.splits if manifest is not None and manifest.storage == "folder" and rank.world == 1 else ()
    sums = {split.name: split.shards[0] for split in folders}
    if manifest is not None:
        findings.bad += check_sums(folder, manifest, rank)
        yield findings
    with open_pool(workers) as pool:
        for split in found.splits:
            source = split.source
            if isinstance(source, RecordSource):
                mine = RecordSource(source.paths[rank.number :: rank.world], source.open_shard)
                yield from verify_shards(mine, findings, pool, num_classes)
            else:
                part = Selection(source, range(rank.number, len(source), rank.world))
                yield from verify_files(part, findings, pool, num_classes, sums.get(split.name))
    yield findings  # a file that cannot be opened has no record to be told after


def verify_shards(
    source: RecordSource, findings: VerifyFindings, pool: Pool, num_classes: int | None
) -> Iterator[VerifyFindings]:
    for path in source.paths:
        if not path.exists() and any(one.file == str(path) for one in findings.bad):
            continue  # the manifest told
        try:
            shard = source.open_shard(path)
            shard.check_beside()  # else each of its records would seem bad
        except DataError as err:
            findings.bad.append(BadSample(str(path), None, ByteSpan(0, 0), "", err.message))
            continue
        before = len(findings.bad)
        records = (
            (span.offset, BadSample(str(path), number, span, "", shorten_reason(why, path)))
            for number, span, why in walk(shard)
        )
        for seen, _ in map_in_order(partial(look_at, shard.read, num_classes), records, pool):
            findings.add(seen)
            yield findings
        if len(findings.bad) == before:
            findings.stale += [index for index, text in shard.index_files() if index.read_bytes() != text.encode(*TEXT)]
        shard.close()


def verify_files(
    source: Source, findings: VerifyFindings, pool: Pool, num_classes: int | None, folder: ShardFacts | None
) -> Iterator[VerifyFindings]:
    """Look at images that are files; those of a folder that a manifest describes must have its checksum, too."""
    files = ((n, BadSample(source.where(n), None, ByteSpan(0, 0), source.name(n), "")) for n in range(len(source)))
    crc = 0
    for seen, checksum in map_in_order(partial(look_at, source.read, num_classes), files, pool):
        findings.add(seen)
        crc = (crc + checksum) % (1 << 32)
        yield findings
    if folder is not None and f"{crc:08x}" != folder.crc32c:
        found = f"{len(source):,} images with checksum {crc:08x}; {NAME} says {folder.records:,} with {folder.crc32c}"
        why = f"{found}: some were added, removed or changed"
        findings.bad.append(BadSample(folder.file, None, ByteSpan(0, 0), "", why))
        yield findings


def look_at(
    read: Callable[[int], Sample], num_classes: int | None, records: Sequence[tuple[int, BadSample]]
) -> tuple[VerifyFindings, int]:
    """Decode some records; return what was found and the checksum of those that are files.

    Each comes with how it is listed where it is bad; a damaged place has its reason already.
    """
    found, crc = VerifyFindings(len(records)), 0
    for key, record in records:
        found.bytes += record.span.size
        if not record.why:
            try:
                sample = read(key)
                record = record._replace(name=sample.name)
                if record.record is None:
                    found.bytes += len(sample.image)
                    crc += sum_file(sample.name, sample.image)
                check_sample(sample, num_classes)
            except DataError as err:
                record = record._replace(why=shorten_reason(err.message, Path(record.file)))
        if record.why:
            found.bad.append(record)
    return found, crc


def check_sample(sample: Sample, num_classes: int | None) -> None:
    """Raise DataError if a sample cannot be used."""
    decode_strict(sample.image)
    for label in (sample.label, *(box.label for box in sample.boxes)):
        if label is not None and num_classes is not None and not 0 <= label < num_classes:
            raise DataError(f"label {label}, but there are {num_classes} classes")
    for box in sample.boxes:
        if not (0 <= box.left < box.right <= 1 and 0 <= box.top < box.bottom <= 1):
            edges = ", ".join(f"{edge:g}" for edge in box[1:5])
            raise DataError(f"a box with edges {edges}: not inside the image, or without a size")


def shorten_reason(message: str, path: Path) -> str:
    """Return a reason without the place, which is told apart."""
    _, named, rest = message.rpartition(f"{path}")
    _, _, reason = rest.partition(": ") if named else ("", "", message)
    return reason or message


def check_sums(folder: Path, manifest: Manifest, rank: Rank = SINGLE_RANK) -> Iterator[BadSample]:
    for shard in manifest.shards[rank.number :: rank.world]:
        for facts in (*shard.sidecars, *([] if manifest.storage == "folder" else [shard])):
            why = ""
            try:
                found = measure(folder, facts.file)
                if found.bytes != facts.bytes:
                    why = f"{found.bytes} bytes; {NAME} says {facts.bytes}"
                elif found.crc32c != facts.crc32c:
                    why = f"CRC-32C {found.crc32c}; {NAME} says {facts.crc32c}"
            except OSError as err:
                why = f"cannot be read: {err.strerror}"
            if why:
                yield BadSample(str(folder / facts.file), None, ByteSpan(0, 0), "", why)
