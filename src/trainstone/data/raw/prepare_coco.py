"""Makes a checked COCO folder from the published zips, or from folders they were unpacked to.

Beside the originals it writes what training reads: bbox_only_instances_<split>.json, <split>-images.txt (pictures with
a box) and classes.txt; manifest.json comes last and says that all is there. Killed at any time, it goes on.
"""

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from trainstone.data.manifest import NAME, Manifest, ShardFacts, SplitFacts, check_files, read_manifest, write_manifest
from trainstone.data.manifest import measure as measure_file
from trainstone.data.parallel import Pool, map_in_order, open_pool
from trainstone.data.partial import sum_file
from trainstone.data.picture.look import look
from trainstone.data.progress import Progress
from trainstone.data.raw.coco import find_annotations, find_splits, list_classes, name_set, name_split
from trainstone.data.raw.coco_parts import Part, is_placed, list_files, measure, name_work, place, survey
from trainstone.data.raw.listing import MAX_PICTURE_BYTES
from trainstone.errors import DataError
from trainstone.files import write_atomically
from trainstone.formats.coco import (
    CocoCategory,
    CocoImage,
    Instances,
    box_only,
    number_categories,
    read_instances,
)
from trainstone.machine.ranks import Rank
from trainstone.text import printable
from trainstone.units import format_bytes, format_count

log = logging.getLogger(__name__)

ALONE = Rank()
PARTIAL = re.compile(r"(manifest\.json|classes\.txt|.+-images\.txt|bbox_only_instances_.+\.json)\.[0-9a-f]{8}\.partial")
CHUNK = 16
"""Pictures that a thread takes at once."""
# Pictures, and those with at least one annotation, where that is known; https://cocodataset.org
OFFICIAL = {"train2017": (118_287, 117_266), "val2017": (5_000, None)}


class Seen(NamedTuple):
    """What a look at some pictures brought: their bytes, their share of the folder's checksum, what is wrong."""

    num_images: int
    num_bytes: int
    checksum: int
    problems: list[str]


def prepare_coco(source: Path, target: Path, rank: Rank = ALONE, workers: int = 1) -> Iterator[Progress]:
    """Unpack, check and write; nothing is yielded where an earlier time has done it all.

    Of several ranks each unpacks some parts, and who finds all in place does the rest: it comes out the same whoever
    does it. Folders in `source` are not copied but linked file by file where the file system can, else copied; `source`
    may be `target`. The full annotation files stay: scores are computed with them.
    """
    try:
        parts = survey(source)
        if is_finished(target, parts):
            return
        if len(parts) < 2:
            raise DataError(
                f"{source} has no {'pictures for its annotations' if parts else 'annotations of COCO'}",
                hint="it needs annotations_trainval2017.zip and train2017.zip or val2017.zip, or the folders in them",
            )
        target.mkdir(parents=True, exist_ok=True)
        (target / NAME).unlink(missing_ok=True)
        for part in parts[rank.number :: rank.world]:
            yield from place(part, target, workers)
        if all(is_placed(part, target) for part in parts):
            if rank.world == 1:  # else they may be those of another rank
                clear_partial(target)
            yield from conclude(parts, target, workers)
    except OSError as err:
        raise DataError(f"cannot prepare COCO in {target}: {err.strerror or err}") from err


def is_finished(target: Path, parts: Sequence[Part]) -> bool:
    """Say whether a whole folder is there, made from all that the source offers now; zips may be gone since.

    DataError: it is another data set.
    """
    manifest = read_manifest(target)
    if manifest is None:
        return False
    inputs = manifest.treatment.get("inputs")
    if (manifest.kind, manifest.storage) != ("detect", "folder") or not isinstance(inputs, dict):
        raise DataError(
            f"{target} already holds another data set: {manifest.dataset or 'one'} as {manifest.storage}",
            hint="choose another folder with --to DIR, or remove that one",
        )
    shards = {shard.file: shard for shard in manifest.shards}
    if not measure(parts).items() <= inputs.items() or not {part.name for part in parts[1:]} <= shards.keys():
        return False
    try:
        check_files(target, manifest)
    except DataError as err:
        log.info("%s: it is made again", err.message)
        return False
    newest = max((file.stat().st_mtime_ns for file in find_annotations(target / "annotations").values()), default=0)
    return newest <= (target / NAME).stat().st_mtime_ns and all(holds(target, shard) for shard in shards.values())


def holds(target: Path, shard: ShardFacts) -> bool:
    """Say whether a folder can hold all its pictures; it may hold files that do not count."""
    lengths = list_files(target / shard.file).values()
    return len(lengths) >= shard.records and sum(lengths) >= shard.bytes


def clear_partial(target: Path) -> None:
    """Remove files that a killed time had not finished."""
    for folder in (target, target / "annotations"):
        for path in folder.glob("*.partial"):
            if PARTIAL.fullmatch(path.name):
                path.unlink(missing_ok=True)


def conclude(parts: Sequence[Part], target: Path, workers: int) -> Iterator[Progress]:
    """Check each split's pictures, then write the lists, the classes and, last, the manifest."""
    found = find_splits(target)
    splits: list[SplitFacts] = []
    categories: Sequence[CocoCategory] = ()
    with open_pool(workers) as pool:
        for part in parts[1:]:
            if part.name not in found:
                raise DataError(f"{target / 'annotations'} has no instances_{part.name}.json")
            annotations = found[part.name][0]
            instances = read_instances(annotations)
            if splits and list_classes(instances.categories) != list_classes(categories):
                raise DataError(f"{annotations} has other categories than the files beside it")
            categories = instances.categories
            seen = yield from check_pictures(instances, annotations, target / part.name, pool)
            warn(part.name, instances, target / part.name)
            yield Progress(f"write lists of {part.name}", 0, 2, "files")
            sidecars = [f"annotations/{annotations.name}", *write_lists(part.name, instances, target)]
            if not splits:
                sidecars.append(write_classes(categories, target))
            splits.append(describe_split(part.name, name_split(part.name, found), seen, sidecars, target))
    for part in parts:
        shutil.rmtree(name_work(target, part), ignore_errors=True)  # of a time that was killed in the last moment
    write_manifest(target, make_manifest(splits, categories, measure(parts)))
    yield Progress("finished", len(splits), len(splits), "files")


def describe_split(stem: str, name: str, seen: Seen, sidecars: Sequence[str], target: Path) -> SplitFacts:
    """Return what the manifest says of a split: one folder of pictures, and the files beside it."""
    shard = ShardFacts(
        file=stem,
        bytes=seen.num_bytes,
        crc32c=f"{seen.checksum:08x}",
        records=seen.num_images,
        sidecars=tuple(measure_file(target, file) for file in dict.fromkeys(sidecars)),
    )
    return SplitFacts(name=name, records=seen.num_images, bytes=seen.num_bytes, shards=(shard,))


def make_manifest(splits: Sequence[SplitFacts], categories: Sequence[CocoCategory], inputs: dict[str, int]) -> Manifest:
    """Return the manifest; the lengths of what it was made from tell the next time whether there is more."""
    return Manifest(
        dataset=name_set(categories),
        kind="detect",
        storage="folder",
        first_label=0,
        classes=tuple((name, "") for _, name in list_classes(categories)),
        treatment={"inputs": inputs},
        plan=hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest(),
        splits=tuple(splits),
    )


def check_pictures(
    instances: Instances, annotations: Path, folder: Path, pool: Pool
) -> Generator[Progress, None, Seen]:
    """Read every picture once: compare its head with the annotations, and sum it up."""
    images = instances.images
    chunks = (images[start : start + CHUNK] for start in range(0, len(images), CHUNK))
    whole = Seen(0, 0, 0, [])
    for seen in map_in_order(partial(look_at, folder), chunks, pool):
        done, checksum = whole.num_images + seen.num_images, (whole.checksum + seen.checksum) % (1 << 32)
        whole = Seen(done, whole.num_bytes + seen.num_bytes, checksum, whole.problems + seen.problems)
        yield Progress(f"check {folder.name}", done, len(images), "files")
    if whole.problems:
        shown = "; ".join(whole.problems[:3]) + ("; ..." if len(whole.problems) > 3 else "")
        raise DataError(
            f"{folder}: {len(whole.problems):,} of {format_count(len(images), 'picture')} are not as "
            f"{annotations.name} says: {shown}",
            hint=f"move {folder} away, put the right zip or folder in the source and run it again",
        )
    return whole


def look_at(folder: Path, images: Sequence[CocoImage]) -> Seen:
    """Read some pictures."""
    num_bytes = checksum = 0
    problems = []
    for image in images:
        try:
            data = read_picture(folder / image.file_name)
            problem = find_problem(image, data)
        except FileNotFoundError:
            problem = "is missing"
        except (OSError, DataError) as err:
            problem = f"cannot be read: {err}"
        if problem:
            problems.append(f"{image.file_name} {problem}")
            continue
        num_bytes += len(data)
        checksum += sum_file(image.file_name, data)
    return Seen(len(images), num_bytes, checksum, problems)


def read_picture(path: Path) -> bytes:
    """Return a picture's bytes."""
    size = path.stat().st_size
    if size > MAX_PICTURE_BYTES:
        raise DataError(f"{format_bytes(size)}; pictures have at most {format_bytes(MAX_PICTURE_BYTES)}")
    return path.read_bytes()


def find_problem(image: CocoImage, data: bytes) -> str:
    """Return what is wrong with a picture, or nothing."""
    seen = look(data)
    if seen.kind != "jpeg" and image.file_name.lower().endswith((".jpg", ".jpeg")):
        return f"is {seen.kind.upper()}, not JPEG"
    if (seen.width, seen.height) != (image.width, image.height):
        return f"has {seen.width}x{seen.height} pixels, not {image.width}x{image.height}"
    return ""


def write_lists(stem: str, instances: Instances, target: Path) -> tuple[str, str]:
    """Write a split's boxes and the names of its pictures that have some; return the files' names."""
    boxes, pictures = f"annotations/bbox_only_instances_{stem}.json", f"{stem}-images.txt"
    write_atomically(target / boxes, box_only(instances))
    with_boxes = {item.image_id for item in instances.annotations}
    write_atomically(target / pictures, (f"{i.file_name}\n" for i in instances.images if i.id in with_boxes))
    return boxes, pictures


def write_classes(categories: Sequence[CocoCategory], target: Path) -> str:
    """Write the class map: number as detectors count, COCO's number, name."""
    numbers = number_categories(categories)
    lines = [f"{numbers[number]}\t{number}\t{printable(name)}\n" for number, name in list_classes(categories)]
    write_atomically(target / "classes.txt", lines)
    return "classes.txt"


def warn(stem: str, instances: Instances, folder: Path) -> None:
    """Tell what is not as in the published set, and what lies about."""
    num_images = len(instances.images)
    num_filled = len({item.image_id for item in instances.annotations})
    official, official_filled = OFFICIAL.get(stem, (num_images, None))
    if num_images != official:
        log.warning("%s has %s pictures; the published set has %s", stem, f"{num_images:,}", f"{official:,}")
    elif official_filled not in (None, num_filled):
        told = f"{num_filled:,} pictures with boxes; the published set has {official_filled:,}"
        log.warning("%s has %s", stem, told)
    extra = list_files(folder).keys() - {image.file_name for image in instances.images}
    if extra:
        log.warning("%s has %s that its annotations do not name", stem, format_count(len(extra), "file"))
