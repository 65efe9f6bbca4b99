"""Write a planned data set shard by shard, in parallel over ranks and threads; an interrupted run resumes at a shard.

A shard is written under a temporary name. It is renamed only after it is on disk and its `.done` file describes it, so
at any point, kill -9 included, a shard is either complete or written again from its first record. Ranks share only the
file system: the rank that finds the `.done` files of all shards writes the manifest.
"""

import contextlib
import errno
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple, Self

import google_crc32c

from trainstone.data.image.inspect import ImageHeader, read_header
from trainstone.data.manifest import (
    TEXT,
    WORK,
    FileEntry,
    Manifest,
    ShardEntry,
    SplitEntry,
    check_files,
    checksum_file,
    parse_record,
    read_manifest,
    write_manifest,
)
from trainstone.data.parallel import WorkProgress, lock_file, map_in_order, open_pool
from trainstone.data.sample import Sample, Source
from trainstone.data.shard_plan import ENCODERS, DataSetPlan, Treatment
from trainstone.data.storage.box_file import SUFFIX
from trainstone.data.storage.records import Encoded, Encoder, Shard
from trainstone.errors import DataError
from trainstone.files import dump_json, sync_path, write_atomically
from trainstone.formats.files import ByteSpan
from trainstone.machine.ranks import Rank
from trainstone.units import format_bytes

NUM_SAMPLED_SIZES = 500
"""Images per shard whose size is read to estimate the disk space; reading all sizes would take minutes."""
DEFAULT_QUALITY = 95
"""im2rec's default."""
REPAIR_QUALITY = 100
"""As TensorFlow's build_imagenet_data.py did."""
JPEG_EXTENSIONS = (".jpg", ".jpeg", ".jpe")
SYNC_BYTES = 64 << 20
"""Bytes between two syncs to disk; writing continues during a sync."""
MAX_BUFFERS = 1024
"""IOV_MAX: the limit of buffers per writev call."""


class Outcome(NamedTuple):
    """The encoded sample, with the reason if its image was repaired; or no sample, with the reason it was skipped."""

    name: str
    encoded: Encoded | None
    reason: str | None


@dataclass(frozen=True)
class SampleProcessor:
    """Reads, checks, repairs and encodes samples, in a thread or a worker process."""

    source: Source
    encoder: Encoder
    treatment: Treatment
    num_classes: int

    def __call__(self, numbers: Sequence[int]) -> list[Outcome]:
        return [self.process(number) for number in numbers]

    def process(self, number: int) -> Outcome:
        try:
            sample, header, reason = process_sample(self.source.read(number), self.treatment, self.num_classes)
            return Outcome(sample.name, self.encoder.encode(sample, number, header), reason)
        except DataError as err:
            name = where = self.source.where(number)
            if not self.treatment.skip_bad:
                has_location = where.split(",", 1)[0] in err.message
                message = err.message if has_location else f"{where}: {err.message}"
                raise DataError(message, hint="skip damaged images with --on-bad skip, into a new folder") from err
            with contextlib.suppress(DataError):
                name = self.source.name(number)
            return Outcome(name, None, err.message)


def process_sample(sample: Sample, treatment: Treatment, num_classes: int) -> tuple[Sample, ImageHeader, str | None]:
    """Return the sample to store, its image header, and the reason if its image was repaired.

    With `skip_bad` the whole image must decode, as in `data verify`. A re-encoded image is rotated by its EXIF
    orientation unless it has boxes: boxes refer to the stored orientation.
    """
    numbers = (*sample.values, *(edge for box in sample.boxes for edge in box[1:5]))
    if not all(map(math.isfinite, numbers)):  # not every storage can represent NaN or infinity
        raise DataError(f"{sample.name} has a label or a box that is NaN or infinite")
    if treatment.skip_bad:
        from trainstone.data.verify import check_sample  # heavy import: decoders

        check_sample(sample, num_classes or None)
    header = read_header(sample.image)
    image, reason = sample.image, None
    if treatment.resize or treatment.quality:
        # Imported here: most data sets are copied without decoding.
        from trainstone.data.image.decode import apply_exif_orientation, decode, encode_jpeg, resize_shorter

        pixels = decode(image)
        if not sample.boxes:
            pixels = apply_exif_orientation(pixels, image)
        if treatment.resize:
            pixels = resize_shorter(pixels, treatment.resize)
        image = encode_jpeg(pixels, treatment.quality or DEFAULT_QUALITY)
    elif treatment.repair:
        image, reason = repair(sample.name, image, header)
    if image is sample.image:
        return sample, header, reason
    return replace(sample, image=image), read_header(image), reason


def repair(name: str, image: bytes, header: ImageHeader) -> tuple[bytes, str | None]:
    """Re-encode CMYK JPEGs, and other formats with a JPEG name, as RGB JPEG; return the bytes and the reason.

    Such images are found by their header, not from a list of names: ImageNet has one PNG named .JPEG and 22 CMYK JPEGs.
    """
    if header.kind == "jpeg" and header.colour == "cmyk":
        reason = "CMYK JPEG"
    elif header.kind != "jpeg" and (extension := PurePosixPath(name).suffix).lower() in JPEG_EXTENSIONS:
        reason = f"{header.kind.upper()} named {extension}"
    else:
        return image, None
    from trainstone.data.image.decode import decode, encode_jpeg  # heavy, and rarely needed

    return encode_jpeg(decode(image), REPAIR_QUALITY), reason


def prepare(plan: DataSetPlan, target: Path, rank: Rank, workers: int) -> Iterator[WorkProgress]:
    """Write this rank's shards and yield progress; the last rank to finish also writes the manifest."""
    identity = plan.identity()
    if is_complete(target, identity):
        shutil.rmtree(target / WORK, ignore_errors=True)
        return
    work = target / WORK
    try:
        target.mkdir(parents=True, exist_ok=True)
        if not work.exists() and any(target.iterdir()) and not is_complete(target, identity):
            raise DataError(f"{target} is not empty", hint="choose an empty folder or a new one")
        work.mkdir(exist_ok=True)
        started = work / "plan"  # written by an interrupted run
        if started.exists() and started.read_text() != identity:
            hint = f"run that command again to finish it, or remove {target}"
            raise DataError(f"{target} contains unfinished output of another command", hint=hint)
        write_atomically(started, identity)
        yield from write_shards(plan, target, rank, workers)
        write_manifest_when_complete(plan, target, identity)
    except OSError as err:
        where = err.filename or target
        if err.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "free some space, then run the same command again: it resumes at the unfinished file"
            raise DataError(f"the disk is full: {where}", hint=hint) from err
        raise DataError(f"cannot write {where}: {os.strerror(err.errno or 0)}") from err


def is_complete(target: Path, identity: str) -> bool:
    """Return whether the target is complete and was made by this plan; raise DataError for another data set."""
    manifest = read_manifest(target)
    if manifest is None:
        return False
    if manifest.plan != identity:
        hint = "choose another folder, or remove this one"
        raise DataError(f"{target} already contains another data set, or the same one with other options", hint=hint)
    check_files(target, manifest)
    return True


def write_shards(plan: DataSetPlan, target: Path, rank: Rank, workers: int) -> Iterator[WorkProgress]:
    own_shards = plan.shards[rank.number :: rank.world]
    total = sum(shard.end - shard.start for shard in own_shards)
    check_space(plan, target, own_shards)
    done = written = 0
    phase = f"writing {target.name}"
    encoder = ENCODERS[plan.storage](plan.kind, plan.classes, plan.first_label)
    processes = any(getattr(split.source, "needs_processes", False) for split in plan.splits)
    with open_pool(workers, processes=processes) as pool:
        for shard in own_shards:
            if find_finished_shard(target, shard) is None:
                split, keys = plan.split(shard.split), set[str]()
                processor = SampleProcessor(split.source, encoder, plan.treatment, len(plan.classes))
                with ShardWriter(target, shard, encoder, folder=plan.storage == "folder") as writer:
                    for outcomes in map_in_order(processor, split.order[shard.start : shard.end], pool):
                        writer.append([reject_duplicate(outcome, keys, plan.treatment) for outcome in outcomes])
                        yield WorkProgress(phase, done + writer.num_processed, total, "images", written + writer.bytes)
                    writer.finish()
                    yield WorkProgress(phase, done + writer.num_processed, total, "images", written + writer.bytes)
                written += writer.bytes
            done += shard.end - shard.start


def reject_duplicate(outcome: Outcome, keys: set[str], treatment: Treatment) -> Outcome:
    """Skip a sample whose key another sample of the shard has, or raise DataError without `skip_bad`."""
    key = outcome.encoded.key if outcome.encoded else ""
    if key in keys:
        if not treatment.skip_bad:
            hint = "skip the second with --on-bad skip, or use a format without unique names: recordio, tfrecord"
            raise DataError(f"two images are named {key}; names must be unique", hint=hint)
        return Outcome(outcome.name, None, "another image has the same name")
    if key:
        keys.add(key)
    return outcome


def check_space(plan: DataSetPlan, target: Path, own_shards: Sequence[Shard]) -> None:
    """Raise DataError if the shards do not fit on the disk, as far as image sizes are known in advance."""
    if plan.treatment.resize or plan.treatment.quality:
        return
    needed = 0
    for shard in own_shards:
        split = plan.split(shard.split)
        size_bytes = getattr(split.source, "size_bytes", None)
        if size_bytes is None or find_finished_shard(target, shard) is not None:
            continue
        positions = range(shard.start, shard.end, max(1, (shard.end - shard.start) // NUM_SAMPLED_SIZES))
        sizes = [size_bytes(split.order[position]) for position in positions]
        needed += sum(sizes) * (shard.end - shard.start) // max(1, len(sizes))
    free = shutil.disk_usage(target).free
    if needed > free:
        message = (
            f"not enough disk space in {target}: {format_bytes(free)} free, the images need {format_bytes(needed)}"
        )
        raise DataError(message, hint="free some space or choose another disk")


def write_manifest_when_complete(plan: DataSetPlan, target: Path, identity: str) -> None:
    """Write the manifest if the shards of all ranks are finished."""
    found = {shard.file: entry for shard in plan.shards if (entry := find_finished_shard(target, shard)) is not None}
    if len(found) < len(plan.shards):
        return
    splits = []
    for split in plan.splits:
        shards = tuple(found[shard.file] for shard in split.shards)
        records, size = sum(s.records for s in shards), sum(s.bytes for s in shards)
        splits.append(SplitEntry(name=split.name, records=records, bytes=size, shards=shards))
    manifest = Manifest(
        dataset=plan.dataset,
        kind="detect" if plan.kind == "detect" else "classify",
        storage=plan.storage,
        first_label=1 if plan.first_label else 0,
        classes=tuple((name, text) for name, text in plan.classes),
        treatment=asdict(plan.treatment),
        plan=identity,
        splits=tuple(splits),
    )
    write_manifest(target, manifest)
    shutil.rmtree(target / WORK, ignore_errors=True)


class ShardWriter:
    """Appends samples to a new shard; as a context manager it locks the shard against a second writer."""

    def __init__(self, target: Path, shard: Shard, encoder: Encoder, *, folder: bool) -> None:
        self._target, self._shard, self._encoder = target, shard, encoder
        self._path = _work_file(target, shard.file, "partial")
        self._exits = contextlib.ExitStack()
        self._file: IO[bytes] | None = None
        self._is_folder = folder
        self._lines: list[list[str]] = [[] for _ in encoder.sidecars(shard)]
        self._unsynced: list[Path] = []
        self._synced_bytes = 0
        self._syncer = ThreadPoolExecutor(1, thread_name_prefix="sync")
        self._syncing: Iterator[object] = iter(())
        self._crc = 0
        self._records = 0
        self._repaired: list[tuple[str, str]] = []
        self._skipped: list[tuple[str, str]] = []
        self.bytes = 0
        """Bytes written so far."""

    def __enter__(self) -> Self:
        self._exits.enter_context(lock_file(self._path.with_suffix(".lock"), self._target / self._shard.file))
        if self._is_folder:
            shutil.rmtree(self._path, ignore_errors=True)
            self._path.mkdir()
        else:
            self._file = self._exits.enter_context(self._path.open("wb", buffering=0))
        return self

    def __exit__(self, *_: object) -> None:
        self._syncer.shutdown(wait=True)
        self._exits.close()

    @property
    def num_processed(self) -> int:
        """Number of processed samples, skipped ones included."""
        return self._records + len(self._skipped)

    def append(self, outcomes: Sequence[Outcome]) -> None:
        encoded = [outcome.encoded for outcome in outcomes if outcome.encoded is not None]
        for sample in encoded:
            size = sum(len(buffer) for buffer in sample.buffers)
            for lines, line in zip(
                self._lines, self._encoder.sidecar_lines(sample, ByteSpan(self.bytes, size)), strict=True
            ):
                lines.append(line)
            self.bytes += size
        if self._is_folder:
            for sample in encoded:
                self._crc = (self._crc + checksum_file(sample.name, b"".join(sample.buffers))) % (1 << 32)
                path = self._path / sample.name
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as file:
                    file.writelines(sample.buffers)
                self._unsynced.append(path)
        else:
            self._write([buffer for sample in encoded for buffer in sample.buffers])
        self._records += len(encoded)
        for outcome in outcomes:
            if outcome.reason is not None:
                (self._skipped if outcome.encoded is None else self._repaired).append((outcome.name, outcome.reason))
        if self.bytes - self._synced_bytes >= SYNC_BYTES:
            self._sync()

    def finish(self) -> None:
        """Complete the shard: sync it to disk, write its `.done` file, then rename it."""
        if self._encoder.tail and not self._is_folder:
            self._write([self._encoder.tail])
            self.bytes += len(self._encoder.tail)
        self._sync()
        names = self._encoder.sidecars(self._shard)
        sidecars = [self._write_sidecar(*pair) for pair in zip(names, self._lines, strict=True)]
        self._await_sync()
        entry = ShardEntry(
            file=self._shard.file,
            bytes=self.bytes,
            crc32c=f"{self._crc:08x}",
            records=self._records,
            sidecars=tuple(sidecar for sidecar in sidecars if sidecar is not None),
            repaired=tuple(self._repaired),
            skipped=tuple(self._skipped),
        )
        done = _work_file(self._target, self._shard.file, "done")
        write_atomically(done, dump_json(entry.model_dump(mode="json")))
        move_into_place(self._target, entry)

    def _write(self, buffers: Sequence[bytes | memoryview]) -> None:
        assert self._file is not None
        for buffer in buffers:
            self._crc = google_crc32c.extend(self._crc, buffer)
        write_all(self._file, buffers)

    def _sync(self) -> None:
        """Start a sync of all written bytes in the background."""
        self._await_sync()
        paths = [*(self._unsynced if self._is_folder else [self._path]), *{path.parent for path in self._unsynced}]
        self._syncing = self._syncer.map(lambda files: list(map(sync_path, files)), [paths])  # one task for all files
        self._unsynced = []
        self._synced_bytes = self.bytes

    def _await_sync(self) -> None:
        for _ in self._syncing:
            pass

    def _write_sidecar(self, name: str, lines: list[str]) -> FileEntry | None:
        text = self._encoder.format_sidecar("".join(lines), self._records).encode(*TEXT)
        if not text and name.endswith(SUFFIX):  # an index of no records is an empty file, as in im2rec
            return None
        path = _work_file(self._target, name, "partial")
        path.write_bytes(text)
        sync_path(path)
        return FileEntry(file=name, bytes=len(text), crc32c=f"{google_crc32c.value(text):08x}")


def find_finished_shard(target: Path, shard: Shard) -> ShardEntry | None:
    """Return the manifest entry of a complete shard; rename it first if a run was killed before that."""
    done = _work_file(target, shard.file, "done")
    try:
        entry = parse_record(ShardEntry, done.read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    if move_into_place(target, entry):
        return entry
    done.unlink()  # the shard was removed: write it again
    return None


def move_into_place(target: Path, entry: ShardEntry) -> bool:
    """Rename a complete shard and its sidecars to their final names; return whether all exist."""
    for file in (*entry.sidecars, entry):
        final = target / file.file
        with contextlib.suppress(FileNotFoundError):  # another rank may rename it at the same moment
            final.parent.mkdir(parents=True, exist_ok=True)
            _work_file(target, file.file, "partial").replace(final)
            sync_path(final.parent)
        if not final.exists():
            return False
    return True


def write_all(file: IO[bytes], buffers: Sequence[bytes | memoryview]) -> None:
    """Write buffers with one writev call, or more if the system writes only a part."""
    for start in range(0, len(buffers), MAX_BUFFERS):
        chunk = buffers[start : start + MAX_BUFFERS]
        written = os.writev(file.fileno(), chunk)
        rest = memoryview(b"".join(chunk))[written:] if written < sum(map(len, chunk)) else memoryview(b"")
        while rest:
            rest = rest[os.write(file.fileno(), rest) :]


def _work_file(target: Path, name: str, ending: str) -> Path:
    return target / WORK / f"{name.replace('/', '%')}.{ending}"
