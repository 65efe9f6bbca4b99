"""Makes a checked COCO folder from the published zips, or from folders they were unpacked to.

Beside the originals it writes what training reads: bbox_only_instances_<split>.json, <split>-images.txt (pictures with
a box) and classes.txt; manifest.json comes last and says that all is there. Killed at any time, it resumes at a part:
the annotations or the pictures of a split, which get their name when they are complete.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from trainstone.data.manifest import (
    NAME,
    WORK,
    Manifest,
    ShardFacts,
    SplitFacts,
    check_files,
    measure,
    read_manifest,
    write_manifest,
)
from trainstone.data.parallel import Pool, Progress, map_in_order, open_pool
from trainstone.data.picture.look import look
from trainstone.data.raw.archives import extract_zip, list_zip, sync_folder
from trainstone.data.raw.coco import (
    ANNOTATIONS,
    find_annotations,
    find_pictures,
    find_splits,
    list_classes,
    name_set,
    name_split,
)
from trainstone.data.raw.listing import MAX_PICTURE_BYTES
from trainstone.data.shardfile import sum_file
from trainstone.errors import DataError
from trainstone.files import sync_path, write_atomically
from trainstone.formats.coco import (
    CocoCategory,
    CocoImage,
    Instances,
    box_only,
    drop_images,
    number_categories,
    read_instances,
)
from trainstone.machine.ranks import ALONE, Rank
from trainstone.text import printable
from trainstone.units import format_bytes, format_count

log = logging.getLogger(__name__)

PARTIAL = re.compile(r"(manifest\.json|classes\.txt|.+-images\.txt|bbox_only_instances_.+\.json)\.[0-9a-f]{8}\.partial")
CHUNK = 16
"""Pictures that a thread takes at once."""
# Pictures, and those with at least one annotation, where that is known; https://cocodataset.org
OFFICIAL = {"train2017": (118_287, 117_266), "val2017": (5_000, None)}


class Part(NamedTuple):
    """A folder to be: annotations, train2017 or val2017, and the zip or folder it comes from."""

    name: str
    origin: Path

    @property
    def is_zip(self) -> bool:
        """Say whether it has to be unpacked."""
        return self.origin.suffix == ".zip"


class Seen(NamedTuple):
    """What a look at some pictures brought: their bytes, their share of the folder's checksum, what is wrong."""

    num_images: int
    num_bytes: int
    checksum: int
    problems: list[tuple[str, str]]
    """Name and cause."""


def prepare_coco(
    source: Path, target: Path, rank: Rank = ALONE, workers: int = 1, *, skip_bad: bool = False
) -> Iterator[Progress]:
    """Unpack, check and write; nothing is yielded where an earlier time has done it all.

    Of several ranks each unpacks some parts, and who finds all in place does the rest: it comes out the same whoever
    does it. Folders in `source` are not copied but linked file by file where the file system can, else copied; `source`
    may be `target`. The full annotation files stay: scores are computed with them. `skip_bad`, for a single rank:
    every picture is decoded, and what is damaged or missing is dropped from the copy and its annotations.
    """
    try:
        parts = survey(source)
        if is_finished(target, parts, skip_bad=skip_bad):
            return
        if len(parts) < 2:
            raise DataError(
                f"{source} has no {'pictures for its annotations' if parts else 'annotations of COCO'}",
                hint="it needs annotations_trainval2017.zip and train2017.zip or val2017.zip, or the folders in them",
            )
        if skip_bad:
            refuse_in_place(parts, target)
        target.mkdir(parents=True, exist_ok=True)
        (target / NAME).unlink(missing_ok=True)
        for part in parts[rank.number :: rank.world]:
            yield from place(part, target, workers)
        if all((target / part.name).is_dir() for part in parts):
            if rank.world == 1:  # else they may be those of another rank
                clear_partial(target)
            yield from conclude(parts, target, workers, skip_bad=skip_bad)
    except OSError as err:
        raise DataError(f"cannot prepare COCO in {target}: {err.strerror or err}") from err


def survey(source: Path) -> list[Part]:
    """Return what the source offers: annotations first, then the splits with pictures; may be too little."""
    zips = {file.name: file for below in ("annotations", "zips", "") for file in sorted((source / below).glob("*.zip"))}
    packed = zips.get("annotations_trainval2017.zip") or next(
        (file for name, file in zips.items() if name.startswith("annotations")), None
    )
    if packed is not None:
        names = [ANNOTATIONS.fullmatch(name.rpartition("/")[2]) for name in list_zip(packed)]
        parts, stems = [Part("annotations", packed)], sorted({named[2] for named in names if named is not None})
    else:
        stems = list(find_annotations(source / "annotations"))
        parts = [Part("annotations", source / "annotations")] if stems else []
    for stem in stems:
        origin = zips.get(f"{stem}.zip") or find_pictures(source, stem)
        if origin is not None:
            parts.append(Part(stem, origin))
    return parts


def measure_parts(parts: Sequence[Part]) -> dict[str, int]:
    """Return the length of zips and of annotation files that are not in one."""
    files = [part.origin for part in parts if part.is_zip]
    if parts and not parts[0].is_zip:
        files += find_annotations(parts[0].origin).values()
    return {file.name: file.stat().st_size for file in files}


def is_finished(target: Path, parts: Sequence[Part], *, skip_bad: bool) -> bool:
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
    if skip_bad and not manifest.treatment.get("skip_bad"):
        return False
    shards = {shard.file: shard for shard in manifest.shards}
    if not measure_parts(parts).items() <= inputs.items() or not {part.name for part in parts[1:]} <= shards.keys():
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


def refuse_in_place(parts: Sequence[Part], target: Path) -> None:
    """Refuse to drop pictures from the source's own folders, or from where a link leads: only a copy is changed."""
    for part in parts:
        final = target / part.name
        if final.is_symlink() or part.origin.resolve() == final.resolve():
            raise DataError(
                f"{final} is not a copy: --on-bad skip does not change the source's own files",
                hint="choose another folder with --to DIR",
            )


@contextlib.contextmanager
def hold(target: Path, part: Part) -> Iterator[Path]:
    """Give an empty work folder for a part, locked against a second process; it vanishes at the end."""
    work = target / f"{WORK}-{part.name}"
    work.mkdir(exist_ok=True)
    descriptor = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The other process may have ended and removed it between our opening and our locking.
        if not os.path.samestat(os.fstat(descriptor), work.stat()):
            raise BlockingIOError
    except (BlockingIOError, FileNotFoundError) as err:
        os.close(descriptor)
        raise DataError(f"{target / part.name} is being prepared by another process", hint="let it end") from err
    try:
        for left in work.iterdir():  # by a time that was killed
            shutil.rmtree(left)
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(descriptor)


def place(part: Part, target: Path, workers: int) -> Iterator[Progress]:
    """Bring a part to its name below the target, whole or not at all; nothing there already is overwritten."""
    final = target / part.name
    if part.origin.resolve() == final.resolve():
        return
    if final.exists():
        compare(part, final)
        return
    with hold(target, part) as work:
        if final.exists():  # another process was faster
            return
        whole = work / "whole"
        if part.is_zip:
            yield from extract_zip(part.origin, whole, workers)
        else:
            yield from link_all(part, whole)
        inner = whole / part.name if part.is_zip else whole
        (inner if inner.is_dir() else whole).rename(final)
        sync_path(target)


def compare(part: Part, final: Path) -> None:
    """Refuse a folder that is there already but does not hold what the part does."""
    if part.is_zip:
        files = list_zip(part.origin)
        prefix = f"{part.name}/"
        inside = {name.removeprefix(prefix): size for name, size in files.items() if name.startswith(prefix)}
        files = inside or files
    else:
        files = list_files(part.origin)
    lacking = files.items() - list_files(final).items()
    num_lacking = sum(not name.startswith("bbox_only_") for name, _ in lacking)  # those we write again
    if num_lacking:
        raise DataError(
            f"{final} is there already and lacks {num_lacking:,} of the {format_count(len(files), 'file')} of "
            f"{part.origin}, or has them with another length",
            hint=f"move {final} away and run it again",
        )


def link_all(part: Part, folder: Path) -> Iterator[Progress]:
    """Give all files of a part a second name in a new folder; where the file system does not let us, copy them."""
    files = list_files(part.origin)
    for done, name in enumerate(files, start=1):
        source, target = part.origin / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            target.hardlink_to(source.resolve())
        except OSError:
            shutil.copyfile(source, target)
        yield Progress(f"link {part.name}", done, len(files), "files")
    yield from sync_folder(folder, part.name)


def list_files(folder: Path) -> dict[str, int]:
    """Return relative names and lengths of all files below a folder."""
    return {
        (Path(parent) / name).relative_to(folder).as_posix(): (Path(parent) / name).stat().st_size
        for parent, _, names in os.walk(folder)
        for name in names
    }


def clear_partial(target: Path) -> None:
    """Remove files that a killed time had not finished."""
    for folder in (target, target / "annotations"):
        for path in folder.glob("*.partial"):
            if PARTIAL.fullmatch(path.name):
                path.unlink(missing_ok=True)


def conclude(parts: Sequence[Part], target: Path, workers: int, *, skip_bad: bool) -> Iterator[Progress]:
    """Check each split's pictures, then write the lists, the classes and, last, the manifest."""
    found = find_splits(target)
    splits: list[SplitFacts] = []
    categories: Sequence[CocoCategory] = ()
    dropped: list[Path] = []
    with open_pool(workers) as pool:
        for part in parts[1:]:
            if part.name not in found:
                raise DataError(f"{target / 'annotations'} has no instances_{part.name}.json")
            annotations = found[part.name][0]
            instances = read_instances(annotations)
            if splits and list_classes(instances.categories) != list_classes(categories):
                raise DataError(f"{annotations} has other categories than the files beside it")
            categories = instances.categories
            seen = yield from check_pictures(instances, annotations, target / part.name, pool, skip_bad=skip_bad)
            warn(part.name, instances, target / part.name)
            yield Progress(f"write lists of {part.name}", 0, 2, "files")
            if seen.problems:
                dropped += [target / part.name / name for name, _ in seen.problems]
                write_atomically(annotations, drop_images(annotations, {name for name, _ in seen.problems}))
                instances = read_instances(annotations)
            sidecars = [f"annotations/{annotations.name}", *write_lists(part.name, instances, target)]
            if not splits:
                sidecars.append(write_classes(categories, target))
            splits.append(describe_split(part.name, name_split(part.name, found), seen, sidecars, target))
    for part in parts:
        shutil.rmtree(target / f"{WORK}-{part.name}", ignore_errors=True)  # of a time killed in the last moment
    write_manifest(target, make_manifest(splits, categories, measure_parts(parts), skip_bad=skip_bad))
    for path in dropped:  # nothing names them any more; of a link the other name stays
        path.unlink(missing_ok=True)
    yield Progress("finished", len(splits), len(splits), "files")


def describe_split(stem: str, name: str, seen: Seen, sidecars: Sequence[str], target: Path) -> SplitFacts:
    """Return what the manifest says of a split: one folder of pictures, and the files beside it."""
    shard = ShardFacts(
        file=stem,
        bytes=seen.num_bytes,
        crc32c=f"{seen.checksum:08x}",
        records=seen.num_images - len(seen.problems),
        sidecars=tuple(measure(target, file) for file in dict.fromkeys(sidecars)),
        skipped=tuple(seen.problems),
    )
    return SplitFacts(name=name, records=shard.records, bytes=seen.num_bytes, shards=(shard,))


def make_manifest(
    splits: Sequence[SplitFacts], categories: Sequence[CocoCategory], inputs: dict[str, int], *, skip_bad: bool
) -> Manifest:
    """Return the manifest; the lengths of what it was made from tell the next time whether there is more."""
    return Manifest(
        dataset=name_set(categories),
        kind="detect",
        storage="folder",
        first_label=0,
        classes=tuple((name, "") for _, name in list_classes(categories)),
        treatment={"inputs": inputs, **({"skip_bad": True} if skip_bad else {})},
        plan=hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest(),
        splits=tuple(splits),
    )


def check_pictures(
    instances: Instances, annotations: Path, folder: Path, pool: Pool, *, skip_bad: bool
) -> Generator[Progress, None, Seen]:
    """Read every picture once: compare its head with the annotations, and sum it up; decode it if bad ones go."""
    images = instances.images
    chunks = (images[start : start + CHUNK] for start in range(0, len(images), CHUNK))
    whole = Seen(0, 0, 0, [])
    for seen in map_in_order(partial(look_at, folder, skip_bad), chunks, pool):
        done, checksum = whole.num_images + seen.num_images, (whole.checksum + seen.checksum) % (1 << 32)
        whole = Seen(done, whole.num_bytes + seen.num_bytes, checksum, whole.problems + seen.problems)
        yield Progress(f"check {folder.name}", done, len(images), "files")
    if whole.problems and (not skip_bad or len(whole.problems) == len(images)):
        shown = "; ".join(f"{name} {problem}" for name, problem in whole.problems[:3])
        raise DataError(
            f"{folder}: {len(whole.problems):,} of {format_count(len(images), 'picture')} are not as "
            f"{annotations.name} says: {shown}" + ("; ..." if len(whole.problems) > 3 else ""),
            hint=f"move {folder} away, put the right zip or folder in the source and run it again"
            + ("" if skip_bad else "; or drop them with --on-bad skip"),
        )
    return whole


def look_at(folder: Path, decoded: bool, images: Sequence[CocoImage]) -> Seen:
    """Read some pictures."""
    num_bytes = checksum = 0
    problems = []
    for image in images:
        try:
            data = read_picture(folder / image.file_name)
            problem = find_problem(image, data)
            if decoded and not problem:
                from trainstone.data.picture.decode import decode_strict  # heavy

                decode_strict(data)
        except FileNotFoundError:
            problem = "is missing"
        except (OSError, DataError) as err:
            problem = f"cannot be read: {err}"
        if problem:
            problems.append((image.file_name, problem))
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
    """Warn of what is not as in the published set, and of further files."""
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
