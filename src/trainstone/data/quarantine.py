"""Takes bad records out of a data set: they go into the folder `quarantine` beside it, with the reason; the rest stays.

A record file is rewritten without them under a temporary name and then replaced; picture files are moved. COCO's
annotations lose the pictures that were moved, and those that they name but that are not there.
"""

import json
import os
from collections.abc import Iterable, Sequence
from itertools import count, groupby
from pathlib import Path
from typing import IO, NamedTuple

from trainstone.data.manifest import QUARANTINE, FileFacts, Manifest, ShardFacts, SplitFacts, measure, write_manifest
from trainstone.data.partial import sum_file
from trainstone.data.raw.coco import CocoSource, drop_images
from trainstone.data.recognise import open_prepared
from trainstone.data.sample import DataSet, Source
from trainstone.data.storage.records import RecordSource, ShardReader
from trainstone.data.storage.wds import WdsShard
from trainstone.data.verify import Bad
from trainstone.errors import DataError
from trainstone.files import dump_json, sync_path, write_atomically
from trainstone.formats.span import Span
from trainstone.formats.wds import END

COPY_BYTES = 16 << 20


class Mended(NamedTuple):
    """What was done."""

    place: Path | None
    """Where bad records, and annotations as they were, are now; None: there was nothing to take out."""
    changed: frozenset[Path]
    """Record files, index files and folders of pictures that are not what they were."""
    moved: int
    """Records and pictures that are in that place now."""
    dropped: int
    """Pictures that are missing and that annotations no longer name."""


def quarantine(found: DataSet, bad: Sequence[Bad], stale: Sequence[Path], folder: Path) -> Mended:
    """Take bad records out, and write index files that do not fit anew."""
    root = folder if folder.is_dir() else folder.parent
    place = root / QUARANTINE
    moved: list[dict[str, object]] = []
    try:
        pictures = [one for one in bad if one.record is None and one.name and Path(one.file).is_file()]
        missing = find_missing(found, bad)
        for split in found.splits:
            if isinstance(split.source, RecordSource):
                moved += clear_shards(split.source, bad, place)
        moved += move_pictures(pictures, root, place)
        dropped = drop_pictures(found, pictures, missing, root)
        for index in stale:
            keep_copy(index, place)
            rewrite_index(found, index)
        if moved or dropped:
            write_atomically(place / "reasons.json", dump_json([*read_reasons(place), *moved, *dropped]))
    except OSError as err:
        raise DataError(f"cannot mend {err.filename or root}: {err.strerror}") from err
    spoilt = {Path(one.file) for one in bad if one.record is not None}
    folders = {parent for one in (*pictures, *missing) for parent in Path(one.file).parents}
    changed = frozenset({*spoilt, *folders, *stale})
    return Mended(place if moved or dropped else None, changed, len(moved), len(dropped))


def find_missing(found: DataSet, bad: Sequence[Bad]) -> list[Bad]:
    """Return the pictures that annotations name but that are not there; DataError where a split has no other."""
    if found.kind != "detect":
        return []
    missing = [one for one in bad if one.record is None and one.name and not Path(one.file).exists()]
    files = {one.file for one in missing}
    for split in found.splits:
        source = split.source
        if not isinstance(source, CocoSource) or not 0 < len(source) <= len(files):
            continue
        if all(source.where(number) in files for number in range(len(source))):
            raise DataError(
                f"{source.pictures} has none of the {len(source):,} pictures that {source.annotations} names: "
                "nothing was changed",
                hint="put the pictures there (is the disk mounted?), or move that annotation file away",
            )
    return missing


def drop_pictures(found: DataSet, moved: Sequence[Bad], missing: Sequence[Bad], root: Path) -> list[dict[str, object]]:
    """Take pictures out of COCO's annotations; return what is to be told of those that were missing."""
    if found.kind != "detect" or not (moved or missing):
        return []
    gone = drop_images(root, {Path(one.file).name for one in (*moved, *missing)}, root / QUARANTINE)
    dropped = [one for one in missing if Path(one.file) in gone]
    return [{"file": str(find_relative(Path(one.file), root)), "why": one.why, "kept": None} for one in dropped]


def keep_copy(path: Path, place: Path) -> None:
    """Keep a file that is written anew as it was."""
    place.mkdir(exist_ok=True)
    write_atomically(find_free(place / path.name), [path.read_bytes()])


def read_reasons(place: Path) -> list[dict[str, object]]:
    """Return what an earlier run put there."""
    try:
        found = json.loads((place / "reasons.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return found if isinstance(found, list) else []


def clear_shards(source: RecordSource, bad: Iterable[Bad], place: Path) -> list[dict[str, object]]:
    """Rewrite each record file that has bad records without them."""
    moved = []
    by_file = groupby(sorted((one for one in bad if one.record is not None), key=lambda b: b.file), lambda b: b.file)
    paths = {str(path): path for path in source.paths}
    for file, group in by_file:
        if file not in paths:
            continue
        spoilt = sorted(group, key=lambda one: one.span.offset)
        place.mkdir(exist_ok=True)
        for one in spoilt:
            kept = find_free(place / f"{paths[file].name}-record{one.record}-byte{one.span.offset}.bin")
            copy_spans(paths[file], [one.span], kept, b"")
            moved.append(
                {"file": file, "record": one.record, "byte": one.span.offset, "why": one.why, "kept": kept.name}
            )
        drop_records(paths[file], source, [one.span for one in spoilt])
    return moved


def drop_records(path: Path, source: RecordSource, spoilt: Sequence[Span]) -> None:
    """Write a record file anew without these spans, and its index files."""
    size = path.stat().st_size
    shard = source.open_shard(path)
    is_tar = isinstance(shard, WdsShard)
    shard.close()
    gaps = sorted(spoilt)
    kept, at = [], 0
    for gap in gaps:
        kept.append(Span(at, gap.offset - at))
        at = gap.end
    kept.append(Span(at, size - at))
    copy_spans(path, [span for span in kept if span.size > 0], path, END if is_tar and gaps[-1].end >= size else b"")
    shard = source.open_shard(path)
    for index, text in shard.index_files():
        write_index(index, text)
    shard.close()


def copy_spans(source: Path, spans: Sequence[Span], target: Path, tail: bytes) -> None:
    """Write parts of a file, and a tail, to another file or to the same one; whole or not at all."""
    partial = target.with_name(f"{target.name}.partial")
    try:
        with source.open("rb") as read, partial.open("wb") as write:
            for span in spans:
                copy_range(read, write, span)
            write.write(tail)
            write.flush()
            os.fsync(write.fileno())
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_path(target.parent)


def copy_range(read: IO[bytes], write: IO[bytes], span: Span) -> None:
    """Copy a part without holding it whole."""
    read.seek(span.offset)
    left = span.size
    while left > 0 and (block := read.read(min(left, COPY_BYTES))):
        write.write(block)
        left -= len(block)


def move_pictures(bad: Sequence[Bad], root: Path, place: Path) -> list[dict[str, object]]:
    """Move picture files, keeping their folders' names; none at all if one of them lies elsewhere."""
    names = [find_relative(Path(one.file), root) for one in bad]
    moved: list[dict[str, object]] = []
    for one, name in zip(bad, names, strict=True):
        target = find_free(place / name)
        target.parent.mkdir(parents=True, exist_ok=True)
        Path(one.file).replace(target)
        moved.append({"file": str(name), "why": one.why, "kept": str(target.relative_to(place))})
    return moved


def find_free(path: Path) -> Path:
    """Return this name, or one like it that nothing of an earlier time has."""
    names = (path.with_stem(f"{path.stem}-{number}") for number in count(2))
    return path if not path.exists() else next(name for name in names if not name.exists())


def find_relative(path: Path, root: Path) -> Path:
    """Return a file's name below a folder; of a link it is the link that is moved."""
    try:
        return path.absolute().relative_to(root.absolute())
    except ValueError:
        raise DataError(f"{path} lies outside {root} and is left alone") from None


def rewrite_index(found: DataSet, index: Path) -> None:
    """Write an index file that does not fit its records anew."""
    for split in found.splits:
        if not isinstance(split.source, RecordSource):
            continue
        for path in split.source.paths:
            shard: ShardReader = split.source.open_shard(path)
            texts = [text for file, text in shard.index_files() if file == index]
            shard.close()
            if texts:
                write_index(index, texts[0])
                return


def write_index(path: Path, text: str) -> None:
    """Write an index; names in it keep their bytes, whatever they are."""
    write_atomically(path, [text.encode("utf-8", "surrogateescape")])


def refresh_manifest(folder: Path, manifest: Manifest, changed: frozenset[Path]) -> None:
    """Write what the manifest says of files that were changed here anew; what others changed stays told."""
    found = open_prepared(folder, manifest, check=False)
    sources = {split.name: split.source for split in found.splits}
    splits = []
    for split in manifest.splits:
        shards = tuple(
            measure_shard(folder, shard, sources[split.name])
            if any(folder / facts.file in changed for facts in (shard, *shard.sidecars))
            else shard
            for shard in split.shards
        )
        records, total = sum(shard.records for shard in shards), sum(shard.bytes for shard in shards)
        splits.append(SplitFacts(name=split.name, records=records, bytes=total, shards=shards))
    write_manifest(folder, manifest.model_copy(update={"splits": tuple(splits)}))


def measure_shard(folder: Path, shard: ShardFacts, source: Source) -> ShardFacts:
    """Return a shard's facts as it is now."""
    sidecars = tuple(measure(folder, facts.file) for facts in shard.sidecars if (folder / facts.file).is_file())
    if isinstance(source, RecordSource):
        reader = source.open_shard(folder / shard.file)
        records = sum(1 for _ in reader.scan())
        reader.close()
        own = measure(folder, shard.file)
    else:
        records = len(source)
        own = measure_folder(shard.file, source)
    changed = {"records": records, "bytes": own.bytes, "crc32c": own.crc32c, "sidecars": sidecars}
    return shard.model_copy(update=changed)


def measure_folder(name: str, source: Source) -> FileFacts:
    """Return a folder's bytes and checksum."""
    crc = size = 0
    for number in range(len(source)):
        sample = source.read(number)
        crc = (crc + sum_file(sample.name, sample.image)) % (1 << 32)
        size += len(sample.image)
    return FileFacts(file=name, bytes=size, crc32c=f"{crc:08x}")
