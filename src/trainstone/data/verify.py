"""Decode every record of a data set and report each bad one by file, record and byte offset."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from trainstone.data.image.decode import decode_strict
from trainstone.data.manifest import NAME, TEXT, Manifest, ShardEntry, checksum_file, measure_file
from trainstone.data.parallel import Pool, map_in_order, open_pool
from trainstone.data.sample import DataSet, Sample, Selection, Source
from trainstone.data.storage.records import RecordSource, walk_records
from trainstone.errors import DataError
from trainstone.formats.files import ByteSpan
from trainstone.machine.ranks import SINGLE_RANK, Rank


class BadSample(NamedTuple):
    file: str
    record: int | None
    """Index in its file; None if the whole file is bad."""
    span: ByteSpan
    """Byte range of the record; size 0 means up to the next record that can be found."""
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
    """Index files that do not match their records."""

    def add(self, other: "VerifyFindings") -> None:
        self.records += other.records
        self.bytes += other.bytes
        self.bad += other.bad


def verify(
    found: DataSet, workers: int, manifest: Manifest | None, folder: Path, rank: Rank = SINGLE_RANK
) -> Iterator[VerifyFindings]:
    """Check all records, or this rank's part; yield the same findings object repeatedly while it grows."""
    findings = VerifyFindings()
    num_classes = len(found.classes) or None
    folders = manifest.splits if manifest is not None and manifest.storage == "folder" and rank.world == 1 else ()
    sums = {split.name: split.shards[0] for split in folders}
    if manifest is not None:
        findings.bad += check_checksums(folder, manifest, rank)
        yield findings
    with open_pool(workers) as pool:
        for split in found.splits:
            source = split.source
            if isinstance(source, RecordSource):
                part = RecordSource(source.paths[rank.number :: rank.world], source.open_shard)
                yield from verify_shards(part, findings, pool, num_classes)
            else:
                selection = Selection(source, range(rank.number, len(source), rank.world))
                yield from verify_files(selection, findings, pool, num_classes, sums.get(split.name))
    yield findings  # also when the last file cannot be opened


def verify_shards(
    source: RecordSource, findings: VerifyFindings, pool: Pool, num_classes: int | None
) -> Iterator[VerifyFindings]:
    for path in source.paths:
        if not path.exists() and any(bad.file == str(path) for bad in findings.bad):
            continue  # already reported from the manifest
        try:
            shard = source.open_shard(path)
            shard.check_sidecars()  # otherwise each of its records would be reported as bad
        except DataError as err:
            findings.bad.append(BadSample(str(path), None, ByteSpan(0, 0), "", err.message))
            continue
        before = len(findings.bad)
        records = (
            (span.offset, BadSample(str(path), number, span, "", strip_location(why, path)))
            for number, span, why in walk_records(shard)
        )
        for found, _ in map_in_order(partial(check_records, shard.read, num_classes), records, pool):
            findings.add(found)
            yield findings
        if len(findings.bad) == before:
            findings.stale += [index for index, text in shard.index_files() if index.read_bytes() != text.encode(*TEXT)]
        shard.close()


def verify_files(
    source: Source, findings: VerifyFindings, pool: Pool, num_classes: int | None, folder: ShardEntry | None
) -> Iterator[VerifyFindings]:
    """Check image files; with a manifest entry, also compare the checksum of the whole folder."""
    files = ((n, BadSample(source.where(n), None, ByteSpan(0, 0), source.name(n), "")) for n in range(len(source)))
    crc = 0
    for part, checksum in map_in_order(partial(check_records, source.read, num_classes), files, pool):
        findings.add(part)
        crc = (crc + checksum) % (1 << 32)
        yield findings
    if folder is not None and f"{crc:08x}" != folder.crc32c:
        found = f"{len(source):,} images with checksum {crc:08x}; {NAME} says {folder.records:,} with {folder.crc32c}"
        why = f"{found}: images were added, removed or changed"
        findings.bad.append(BadSample(folder.file, None, ByteSpan(0, 0), "", why))
        yield findings


def check_records(
    read: Callable[[int], Sample], num_classes: int | None, records: Sequence[tuple[int, BadSample]]
) -> tuple[VerifyFindings, int]:
    """Decode records; return the findings and the sum of the checksums of image files.

    Each record comes with the BadSample to report if it is bad; a damaged byte range already has its reason.
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
                    crc += checksum_file(sample.name, sample.image)
                check_sample(sample, num_classes)
            except DataError as err:
                record = record._replace(why=strip_location(err.message, Path(record.file)))
        if record.why:
            found.bad.append(record)
    return found, crc


def check_sample(sample: Sample, num_classes: int | None) -> None:
    """Raise DataError if a sample's image, label or boxes cannot be used for training."""
    decode_strict(sample.image)
    for label in (sample.label, *(box.label for box in sample.boxes)):
        if label is not None and num_classes is not None and not 0 <= label < num_classes:
            raise DataError(f"invalid label {label}: the data set has {num_classes} classes")
    for box in sample.boxes:
        if not (0 <= box.left < box.right <= 1 and 0 <= box.top < box.bottom <= 1):
            edges = ", ".join(f"{edge:g}" for edge in box[1:5])
            raise DataError(f"invalid box with edges {edges}: it is outside the image or has no area")


def strip_location(message: str, path: Path) -> str:
    """Return an error's reason without its location, which is reported separately."""
    _, named, rest = message.rpartition(f"{path}")
    _, _, reason = rest.partition(": ") if named else ("", "", message)
    return reason or message


def check_checksums(folder: Path, manifest: Manifest, rank: Rank = SINGLE_RANK) -> Iterator[BadSample]:
    """Yield the files whose length or CRC-32C differs from the manifest."""
    for shard in manifest.shards[rank.number :: rank.world]:
        for entry in (*shard.sidecars, *([] if manifest.storage == "folder" else [shard])):
            why = ""
            try:
                found = measure_file(folder, entry.file)
                if found.bytes != entry.bytes:
                    why = f"{found.bytes} bytes; {NAME} says {entry.bytes}"
                elif found.crc32c != entry.crc32c:
                    why = f"CRC-32C {found.crc32c}; {NAME} says {entry.crc32c}"
            except OSError as err:
                why = f"cannot be read: {err.strerror}"
            if why:
                yield BadSample(str(folder / entry.file), None, ByteSpan(0, 0), "", why)
