"""Writes a planned data set: every rank its shards, every core its images. Interrupted, it resumes at a shard.

A shard is written under a temporary name, and is on disk and described by a file of facts before it gets its own: at
any point, kill -9 included, it is either complete or written again from its first record. Ranks share nothing but the
file system: who finds the facts of all shards writes the manifest.
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

from trainstone.data.image.inspect import Look, look
from trainstone.data.manifest import (
    TEXT,
    WORK,
    FileFacts,
    Manifest,
    ShardFacts,
    SplitFacts,
    check_files,
    parse_record,
    read_manifest,
    sum_file,
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

REQUESTED_SIZES = 500
"""Files of a shard that are asked for their size before anything is written: all would take minutes."""
DEFAULT_QUALITY = 95
"""im2rec's."""
REPAIR_QUALITY = 100
"""As TensorFlow's build_imagenet_data.py did."""
JPEG_ENDINGS = (".jpg", ".jpeg", ".jpe")
SYNC_BYTES = 64 << 20
"""So much is written before it is brought to disk, while more is written."""
MAX_BUFFERS = 1024
"""The system's limit of buffers a call."""


class Outcome(NamedTuple):
    """What became of a sample: encoded as it was or repaired, and why; or skipped, and why."""

    name: str
    made: Encoded | None
    why: str | None


@dataclass(frozen=True)
class SampleMaker:
    """Reads, checks, repairs and encodes images; sent to threads and processes."""

    source: Source
    encoder: Encoder
    treatment: Treatment
    num_classes: int

    def __call__(self, numbers: Sequence[int]) -> list[Outcome]:
        return [self.make(number) for number in numbers]

    def make(self, number: int) -> Outcome:
        try:
            sample, seen, why = treat(self.source.read(number), self.treatment, self.num_classes)
            return Outcome(sample.name, self.encoder.encode(sample, number, seen), why)
        except DataError as err:
            name = where = self.source.where(number)
            if not self.treatment.skip_bad:
                named = where.split(",", 1)[0] in err.message
                message = err.message if named else f"{where}: {err.message}"
                raise DataError(message, hint="drop what is damaged with --on-bad skip, into a new folder") from err
            with contextlib.suppress(DataError):
                name = self.source.name(number)
            return Outcome(name, None, err.message)


def treat(sample: Sample, treatment: Treatment, num_classes: int) -> tuple[Sample, Look, str | None]:
    """Return a sample as it is to be stored, what it is, and why its image was repaired, if it was.

    Where damaged ones are dropped it must be sound to its last pixel, as `data verify` wants it. An image that is
    encoded anew is turned upright, unless boxes lie on it as it is stored.
    """
    numbers = (*sample.values, *(edge for box in sample.boxes for edge in box[1:5]))
    if not all(map(math.isfinite, numbers)):  # not every storage could tell them again
        raise DataError(f"{sample.name} has a label or a box that is no number")
    if treatment.skip_bad:
        from trainstone.data.verify import check_sample  # heavy: it decodes

        check_sample(sample, num_classes or None)
    seen = look(sample.image)
    image, why = sample.image, None
    if treatment.resize or treatment.quality:
        # Most sets are passed through; they need not wait for these libraries.
        from trainstone.data.image.decode import decode, encode_jpeg, resize_shorter, turn_upright

        pixels = decode(image)
        if not sample.boxes:
            pixels = turn_upright(pixels, image)
        if treatment.resize:
            pixels = resize_shorter(pixels, treatment.resize)
        image = encode_jpeg(pixels, treatment.quality or DEFAULT_QUALITY)
    elif treatment.repair:
        image, why = repair(sample.name, image, seen)
    if image is sample.image:
        return sample, seen, why
    return replace(sample, image=image), look(image), why


def repair(name: str, image: bytes, seen: Look) -> tuple[bytes, str | None]:
    """Re-encode a CMYK JPEG, and what is named JPEG but is none, as JPEG RGB; return the bytes and what was wrong.

    Found by looking, never from a list of names: ImageNet holds one PNG named .JPEG and 22 CMYK JPEGs.
    """
    if seen.kind == "jpeg" and seen.colour == "cmyk":
        why = "CMYK JPEG"
    elif seen.kind != "jpeg" and (ending := PurePosixPath(name).suffix).lower() in JPEG_ENDINGS:
        why = f"{seen.kind.upper()} named {ending}"
    else:
        return image, None
    from trainstone.data.image.decode import decode, encode_jpeg  # heavy, and seldom needed

    return encode_jpeg(decode(image), REPAIR_QUALITY), why


def prepare(plan: DataSetPlan, target: Path, rank: Rank, workers: int) -> Iterator[WorkProgress]:
    """Write this rank's shards; yields how far it is. The manifest is there at the end if no other rank is behind."""
    identity = plan.identity()
    if is_finished(target, identity):
        shutil.rmtree(target / WORK, ignore_errors=True)
        return
    work = target / WORK
    try:
        target.mkdir(parents=True, exist_ok=True)
        if not work.exists() and any(target.iterdir()) and not is_finished(target, identity):
            raise DataError(f"{target} is not empty", hint="choose an empty or a new folder")
        work.mkdir(exist_ok=True)
        started = work / "plan"  # by an interrupted run of the same plan
        if started.exists() and started.read_text() != identity:
            hint = f"finish it with that command, or remove {target}"
            raise DataError(f"{target} holds unfinished work of another command", hint=hint)
        write_atomically(started, identity)
        yield from write_shards(plan, target, rank, workers)
        conclude(plan, target, identity)
    except OSError as err:
        where = err.filename or target
        if err.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "free some space, then give the same command again: it resumes at the unfinished file"
            raise DataError(f"the disk is full: {where}", hint=hint) from err
        raise DataError(f"cannot write {where}: {os.strerror(err.errno or 0)}") from err


def is_finished(target: Path, identity: str) -> bool:
    """Say whether a set is whole and the one meant; another set is not touched."""
    manifest = read_manifest(target)
    if manifest is None:
        return False
    if manifest.plan != identity:
        hint = "choose another folder, or remove that one"
        raise DataError(f"{target} already holds another data set, or the same made with other options", hint=hint)
    check_files(target, manifest)
    return True


def write_shards(plan: DataSetPlan, target: Path, rank: Rank, workers: int) -> Iterator[WorkProgress]:
    mine = plan.shards[rank.number :: rank.world]
    total = sum(shard.end - shard.start for shard in mine)
    check_space(plan, target, mine)
    done = written = 0
    phase = f"writing {target.name}"
    encoder = ENCODERS[plan.storage](plan.kind, plan.classes, plan.first_label)
    processes = any(getattr(split.source, "is_drawn", False) for split in plan.splits)
    with open_pool(workers, processes=processes) as pool:
        for shard in mine:
            if find_done(target, shard) is None:
                split, keys = plan.split(shard.split), set[str]()
                maker = SampleMaker(split.source, encoder, plan.treatment, len(plan.classes))
                with ShardWriter(target, shard, encoder, folder=plan.storage == "folder") as writer:
                    for outcomes in map_in_order(maker, split.order[shard.start : shard.end], pool):
                        writer.append([find_twin(outcome, keys, plan.treatment) for outcome in outcomes])
                        yield WorkProgress(phase, done + writer.places, total, "images", written + writer.bytes)
                    writer.finish()
                    yield WorkProgress(phase, done + writer.places, total, "images", written + writer.bytes)
                written += writer.bytes
            done += shard.end - shard.start


def find_twin(outcome: Outcome, keys: set[str], treatment: Treatment) -> Outcome:
    """Refuse, or skip, a sample with the key of one before it, where a storage finds samples by key."""
    key = outcome.made.key if outcome.made else ""
    if key in keys:
        if not treatment.skip_bad:
            hint = "drop the second with --on-bad skip, or take recordio or tfrecord, which need no names"
            raise DataError(f"two images are named {key}", hint=hint)
        return Outcome(outcome.name, None, "another image has the same name")
    if key:
        keys.add(key)
    return outcome


def check_space(plan: DataSetPlan, target: Path, mine: Sequence[Shard]) -> None:
    """Refuse to begin what cannot fit, where sizes are known beforehand."""
    if plan.treatment.resize or plan.treatment.quality:
        return
    needed = 0
    for shard in mine:
        split = plan.split(shard.split)
        size_bytes = getattr(split.source, "size_bytes", None)
        if size_bytes is None or find_done(target, shard) is not None:
            continue
        places = range(shard.start, shard.end, max(1, (shard.end - shard.start) // REQUESTED_SIZES))
        requested = [size_bytes(split.order[place]) for place in places]
        needed += sum(requested) * (shard.end - shard.start) // max(1, len(requested))
    free = shutil.disk_usage(target).free
    if needed > free:
        message = f"{target} has {format_bytes(free)} free; the images alone need {format_bytes(needed)}"
        raise DataError(message, hint="free some space or choose another disk")


def conclude(plan: DataSetPlan, target: Path, identity: str) -> None:
    found = {shard.file: facts for shard in plan.shards if (facts := find_done(target, shard)) is not None}
    if len(found) < len(plan.shards):
        return
    splits = []
    for split in plan.splits:
        shards = tuple(found[shard.file] for shard in split.shards)
        records, size = sum(s.records for s in shards), sum(s.bytes for s in shards)
        splits.append(SplitFacts(name=split.name, records=records, bytes=size, shards=shards))
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
    """Appends samples to a new shard; `with` locks it against a second writer."""

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
        """Written so far."""

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
    def places(self) -> int:
        """How many samples are done, skipped ones included."""
        return self._records + len(self._skipped)

    def append(self, outcomes: Sequence[Outcome]) -> None:
        made = [outcome.made for outcome in outcomes if outcome.made is not None]
        for sample in made:
            size = sum(len(buffer) for buffer in sample.buffers)
            for lines, line in zip(self._lines, self._encoder.lines(sample, ByteSpan(self.bytes, size)), strict=True):
                lines.append(line)
            self.bytes += size
        if self._is_folder:
            for sample in made:
                self._crc = (self._crc + sum_file(sample.name, b"".join(sample.buffers))) % (1 << 32)
                path = self._path / sample.name
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as file:
                    file.writelines(sample.buffers)
                self._unsynced.append(path)
        else:
            self._write([buffer for sample in made for buffer in sample.buffers])
        self._records += len(made)
        for outcome in outcomes:
            if outcome.why is not None:
                (self._skipped if outcome.made is None else self._repaired).append((outcome.name, outcome.why))
        if self.bytes - self._synced_bytes >= SYNC_BYTES:
            self._sync()

    def finish(self) -> None:
        """End the shard: everything on disk, then its facts, then its name."""
        if self._encoder.tail and not self._is_folder:
            self._write([self._encoder.tail])
            self.bytes += len(self._encoder.tail)
        self._sync()
        names = self._encoder.sidecars(self._shard)
        sidecars = [self._write_sidecar(*pair) for pair in zip(names, self._lines, strict=True)]
        self._await_sync()
        facts = ShardFacts(
            file=self._shard.file,
            bytes=self.bytes,
            crc32c=f"{self._crc:08x}",
            records=self._records,
            sidecars=tuple(sidecar for sidecar in sidecars if sidecar is not None),
            repaired=tuple(self._repaired),
            skipped=tuple(self._skipped),
        )
        done = _work_file(self._target, self._shard.file, "done")
        write_atomically(done, dump_json(facts.model_dump(mode="json")))
        put_in_place(self._target, facts)

    def _write(self, buffers: Sequence[bytes | memoryview]) -> None:
        assert self._file is not None
        for buffer in buffers:
            self._crc = google_crc32c.extend(self._crc, buffer)
        write_all(self._file, buffers)

    def _sync(self) -> None:
        """Begin to bring all that is written to disk; meanwhile more can be written."""
        self._await_sync()
        paths = [*(self._unsynced if self._is_folder else [self._path]), *{path.parent for path in self._unsynced}]
        self._syncing = self._syncer.map(lambda some: list(map(sync_path, some)), [paths])  # one task, not one a file
        self._unsynced = []
        self._synced_bytes = self.bytes

    def _await_sync(self) -> None:
        for _ in self._syncing:
            pass

    def _write_sidecar(self, name: str, lines: list[str]) -> FileFacts | None:
        text = self._encoder.finish("".join(lines), self._records).encode(*TEXT)
        if not text and name.endswith(SUFFIX):  # an index of no records is an empty file, as im2rec's
            return None
        path = _work_file(self._target, name, "partial")
        path.write_bytes(text)
        sync_path(path)
        return FileFacts(file=name, bytes=len(text), crc32c=f"{google_crc32c.value(text):08x}")


def find_done(target: Path, shard: Shard) -> ShardFacts | None:
    """Return the facts of a complete shard; one that was killed just before it got its name gets it now."""
    done = _work_file(target, shard.file, "done")
    try:
        facts = parse_record(ShardFacts, done.read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    if put_in_place(target, facts):
        return facts
    done.unlink()  # the shard was removed: it is made again
    return None


def put_in_place(target: Path, facts: ShardFacts) -> bool:
    """Give a complete shard and its sidecars their names; say whether all are there."""
    for file in (*facts.sidecars, facts):
        final = target / file.file
        with contextlib.suppress(FileNotFoundError):  # another rank may look at the same moment, and do it
            final.parent.mkdir(parents=True, exist_ok=True)
            _work_file(target, file.file, "partial").replace(final)
            sync_path(final.parent)
        if not final.exists():
            return False
    return True


def write_all(file: IO[bytes], buffers: Sequence[bytes | memoryview]) -> None:
    """Write buffers by one call to the system: a thread waits once. More calls if it takes only a part."""
    for start in range(0, len(buffers), MAX_BUFFERS):
        some = buffers[start : start + MAX_BUFFERS]
        written = os.writev(file.fileno(), some)
        rest = memoryview(b"".join(some))[written:] if written < sum(map(len, some)) else memoryview(b"")
        while rest:
            rest = rest[os.write(file.fileno(), rest) :]


def _work_file(target: Path, name: str, ending: str) -> Path:
    return target / WORK / f"{name.replace('/', '%')}.{ending}"
