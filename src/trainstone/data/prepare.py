"""Writes a planned data set: every rank its shards, every core its pictures. Interrupted, it resumes at a shard.

Ranks share nothing but the file system: a shard's facts are a file, and who finds all of them writes the manifest.
"""

import errno
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath

from trainstone.data.manifest import WORK, Manifest, SplitFacts, check_files, read_manifest, write_manifest
from trainstone.data.parallel import Pool, Progress, map_in_order, open_pool
from trainstone.data.picture.look import Look, look
from trainstone.data.plan import Plan, Treatment
from trainstone.data.sample import Sample, Source
from trainstone.data.shardfile import Outcome, ShardWriter, find_done
from trainstone.data.storage.records import Encoder, Shard
from trainstone.errors import DataError
from trainstone.files import write_atomically
from trainstone.machine.ranks import Rank
from trainstone.units import format_bytes

SIZES_ASKED = 500
"""Files of a shard that are asked for their size before anything is written: all would take minutes."""
DEFAULT_QUALITY = 95
"""im2rec's."""
REPAIR_QUALITY = 100
"""As TensorFlow's build_imagenet_data.py did."""
JPEG_ENDINGS = (".jpg", ".jpeg", ".jpe")


@dataclass(frozen=True)
class Maker:
    """Reads, checks, repairs and encodes pictures; sent to threads and processes."""

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
            where = self.source.where(number)
            if not self.treatment.skip_bad:
                named = where.split(",", 1)[0] in err.message
                told = err.message if named else f"{where}: {err.message}"
                raise DataError(told, hint="drop what is damaged with --on-bad skip, into a new folder") from err
            return Outcome(find_name(self.source, number), None, err.message)


def find_name(source: Source, number: int) -> str:
    """Return the name of a sample or, where even that cannot be read, its place."""
    try:
        return source.name(number)
    except DataError:
        return source.where(number)


def treat(sample: Sample, treatment: Treatment, num_classes: int) -> tuple[Sample, Look, str | None]:
    """Return a sample as it is to be stored, what it is, and why its picture was repaired, if it was.

    Where damaged ones are dropped it must be sound to its last pixel, as `data verify` wants it.
    """
    check_numbers(sample)
    if treatment.skip_bad:
        from trainstone.data.verify import check_sample  # heavy: it decodes

        check_sample(sample, num_classes or None)
    seen = look(sample.image)
    why = None
    image = sample.image
    if treatment.resize or treatment.quality:
        image = encode_anew(sample, treatment)
    elif treatment.repair:
        image, why = repair(sample.name, sample.image, seen)
    if image is sample.image:
        return sample, seen, why
    return replace(sample, image=image), look(image), why


def check_numbers(sample: Sample) -> None:
    """Refuse labels and edges that are no numbers: not every storage could tell them again."""
    numbers = (*sample.values, *(edge for box in sample.boxes for edge in box[1:5]))
    if not all(map(math.isfinite, numbers)):
        raise DataError(f"{sample.name} has a label or a box that is no number")


def repair(name: str, image: bytes, seen: Look) -> tuple[bytes, str | None]:
    """Re-encode a CMYK JPEG, and what is named JPEG but is none, as JPEG RGB; return the bytes and what was wrong.

    Found by looking, never from a list of names: ImageNet holds one PNG named .JPEG and 22 CMYK JPEGs.
    """
    ending = PurePosixPath(name).suffix
    if seen.kind == "jpeg" and seen.colour == "cmyk":
        why = "CMYK JPEG"
    elif seen.kind != "jpeg" and ending.lower() in JPEG_ENDINGS:
        why = f"{seen.kind.upper()} named {ending}"
    else:
        return image, None
    from trainstone.data.picture.decode import decode, encode_jpeg  # heavy, and seldom needed

    return encode_jpeg(decode(image), REPAIR_QUALITY), why


def encode_anew(sample: Sample, treatment: Treatment) -> bytes:
    """Return a picture resized and encoded as asked, turned upright unless boxes lie on it as it is stored."""
    # Most sets are passed through; they need not wait for these libraries.
    from trainstone.data.picture.decode import decode, encode_jpeg, resize_shorter, turn_upright

    pixels = decode(sample.image)
    if not sample.boxes:
        pixels = turn_upright(pixels, sample.image)
    if treatment.resize:
        pixels = resize_shorter(pixels, treatment.resize)
    return encode_jpeg(pixels, treatment.quality or DEFAULT_QUALITY)


def prepare(plan: Plan, target: Path, rank: Rank, workers: int) -> Iterator[Progress]:
    """Write this rank's shards; yields how far it is. The manifest is there at the end if no other rank is behind."""
    identity = plan.identity()
    if find_finished(target, identity) is not None:
        shutil.rmtree(target / WORK, ignore_errors=True)
        return
    work = begin(target, identity)
    try:
        yield from write_shards(plan, target, work, rank, workers)
        conclude(plan, target, work, identity)
    except OSError as err:
        raise tell_os_error(err, target) from err


def find_finished(target: Path, identity: str) -> Manifest | None:
    """Return the manifest of a set that is whole and the one meant; another set is not touched."""
    manifest = read_manifest(target)
    if manifest is None:
        return None
    if manifest.plan != identity:
        hint = "choose another folder, or remove that one"
        raise DataError(f"{target} already holds another data set, or the same made with other options", hint=hint)
    check_files(target, manifest)
    return manifest


def begin(target: Path, identity: str) -> Path:
    """Make the work folder, or find the one that an interrupted run of the same plan left."""
    work = target / WORK
    try:
        target.mkdir(parents=True, exist_ok=True)
        if not work.exists() and any(target.iterdir()) and find_finished(target, identity) is None:
            raise DataError(f"{target} is not empty", hint="choose an empty or a new folder")
        work.mkdir(exist_ok=True)
        started = work / "plan"
        if started.exists() and started.read_text() != identity:
            hint = f"finish it with that command, or remove {target}"
            raise DataError(f"{target} holds unfinished work of another command", hint=hint)
        write_atomically(started, identity)
    except OSError as err:
        raise tell_os_error(err, target) from err
    return work


def write_shards(plan: Plan, target: Path, work: Path, rank: Rank, workers: int) -> Iterator[Progress]:
    mine = plan.shards[rank.number :: rank.world]
    total = sum(shard.end - shard.start for shard in mine)
    check_space(plan, target, work, mine)
    done = written = 0
    processes = any(getattr(split.source, "is_drawn", False) for split in plan.splits)
    with open_pool(workers, processes=processes) as pool:
        for shard in mine:
            if find_done(work, target, shard) is None:
                size = 0
                for places, size in write_shard(plan, shard, target, work, pool):
                    yield Progress(f"writing {target.name}", done + places, total, "pictures", written + size)
                written += size
            done += shard.end - shard.start


def write_shard(plan: Plan, shard: Shard, target: Path, work: Path, pool: Pool) -> Iterator[tuple[int, int]]:
    """Write one shard; yields places done and bytes written."""
    split, encoder = plan.split(shard.split), plan.encoder()
    maker, keys = Maker(split.source, encoder, plan.treatment, len(plan.classes)), set[str]()
    with ShardWriter(work, target, shard, encoder, folder=plan.storage == "folder") as writer:
        for outcomes in map_in_order(maker, split.order[shard.start : shard.end], pool):
            writer.append([find_twin(outcome, keys, plan.treatment) for outcome in outcomes])
            yield writer.places, writer.bytes
        writer.finish()
        yield writer.places, writer.bytes


def find_twin(outcome: Outcome, keys: set[str], treatment: Treatment) -> Outcome:
    """Refuse, or skip, a sample with the key of one before it, where a storage finds samples by key."""
    key = outcome.made.key if outcome.made else ""
    if key in keys:
        if not treatment.skip_bad:
            hint = "drop the second with --on-bad skip, or take recordio or tfrecord, which need no names"
            raise DataError(f"two images are named {key}", hint=hint)
        return Outcome(outcome.name, None, "another picture has the same name")
    if key:
        keys.add(key)
    return outcome


def check_space(plan: Plan, target: Path, work: Path, mine: Sequence[Shard]) -> None:
    """Refuse to begin what cannot fit, where sizes are known beforehand."""
    if plan.treatment.resize or plan.treatment.quality:
        return
    needed = 0
    for shard in mine:
        split = plan.split(shard.split)
        size_bytes = getattr(split.source, "size_bytes", None)
        if size_bytes is None or find_done(work, target, shard) is not None:
            continue
        places = range(shard.start, shard.end, max(1, (shard.end - shard.start) // SIZES_ASKED))
        asked = [size_bytes(split.order[place]) for place in places]
        needed += sum(asked) * (shard.end - shard.start) // max(1, len(asked))
    free = shutil.disk_usage(target).free
    if needed > free:
        message = f"{target} has {format_bytes(free)} free; the images alone need {format_bytes(needed)}"
        raise DataError(message, hint="free some space or choose another disk")


def conclude(plan: Plan, target: Path, work: Path, identity: str) -> None:
    found = {shard.file: find_done(work, target, shard) for shard in plan.shards}
    if any(facts is None for facts in found.values()):
        return
    splits = []
    for split in plan.splits:
        shards = tuple(facts for shard in split.shards if (facts := found[shard.file]) is not None)
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
    shutil.rmtree(work, ignore_errors=True)


def tell_os_error(err: OSError, target: Path) -> DataError:
    if err.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "free some space, then give the same command again: it resumes at the unfinished file"
        return DataError(f"the disk is full: {err.filename or target}", hint=hint)
    return DataError(f"cannot write {err.filename or target}: {os.strerror(err.errno or 0)}")
