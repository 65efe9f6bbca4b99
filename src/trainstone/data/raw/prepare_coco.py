"""Make a checked COCO folder from the published zips, or from folders they were unpacked to.

Beside the originals it writes what training reads: bbox_only_instances_<split>.json, <split>-images.txt (images with
a box) and classes.txt; manifest.json comes last and says that all is there. Killed at any time, it resumes at a part:
the annotations or the images of a split, which get their name when they are complete.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from trainstone.data import manifest as facts
from trainstone.data.parallel import Pool, Progress, lock_file, map_in_order, open_pool
from trainstone.data.picture.look import look
from trainstone.data.raw import coco
from trainstone.data.raw.archives import extract_zip, list_zip
from trainstone.data.raw.listing import MAX_PICTURE_BYTES
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
from trainstone.text import printable
from trainstone.units import format_bytes, format_count

log = logging.getLogger(__name__)

# Images, and those with at least one annotation, where that is known; https://cocodataset.org
OFFICIAL = {"train2017": (118_287, 117_266), "val2017": (5_000, None)}


class Part(NamedTuple):
    """A folder to make: annotations, train2017 or val2017, and the zip or folder it comes from."""

    name: str
    origin: Path

    @property
    def is_zip(self) -> bool:
        return self.origin.suffix == ".zip"


class Seen(NamedTuple):
    """Some images: their bytes, their share of the folder's checksum, and what is wrong by name."""

    num_images: int
    num_bytes: int
    checksum: int
    problems: list[tuple[str, str]]


def prepare_coco(source: Path, target: Path, workers: int = 1, *, skip_bad: bool = False) -> Iterator[Progress]:
    """Unpack, check and write; nothing is yielded where an earlier run has done it all.

    Folders in `source` are not copied but linked file by file where the file system can, else copied; `source` may be
    `target`. The full annotation files stay: scores are computed with them. `skip_bad`: every image is decoded, and
    what is damaged or missing is dropped from the copy and its annotations.
    """
    try:
        parts = survey(source)
        if is_finished(target, parts, skip_bad=skip_bad):
            return
        if len(parts) < 2:
            raise DataError(
                f"{source} has no {'images for its annotations' if parts else 'annotations of COCO'}",
                hint="it needs annotations_trainval2017.zip and train2017.zip or val2017.zip, or the folders in them",
            )
        if skip_bad:
            refuse_in_place(parts, target)
        work = target / facts.WORK
        work.mkdir(parents=True, exist_ok=True)
        with lock_file(work / "lock", target):
            try:
                (target / facts.NAME).unlink(missing_ok=True)
                clear_partial(target, work)
                for part in parts:
                    yield from place(part, target, work, workers)
                yield from conclude(parts, target, workers, skip_bad=skip_bad)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as err:
        raise DataError(f"cannot prepare COCO in {target}: {err.strerror or err}") from err


def survey(source: Path) -> list[Part]:
    """Return what the source offers: annotations first, then the splits with images; may be too little."""
    zips = {file.name: file for below in ("annotations", "zips", "") for file in sorted((source / below).glob("*.zip"))}
    packed = zips.get("annotations_trainval2017.zip") or next(
        (file for name, file in zips.items() if name.startswith("annotations")), None
    )
    if packed is not None:
        names = [coco.ANNOTATIONS.fullmatch(name.rpartition("/")[2]) for name in list_zip(packed)]
        parts, stems = [Part("annotations", packed)], sorted({named[2] for named in names if named is not None})
    else:
        stems = list(coco.find_annotations(source / "annotations"))
        parts = [Part("annotations", source / "annotations")] if stems else []
    for stem in stems:
        origin = zips.get(f"{stem}.zip") or coco.find_pictures(source, stem)
        if origin is not None:
            parts.append(Part(stem, origin))
    return parts


def measure_parts(parts: Sequence[Part]) -> dict[str, int]:
    """Return the length of zips and of annotation files that are not in one."""
    files = [part.origin for part in parts if part.is_zip]
    if parts and not parts[0].is_zip:
        files += coco.find_annotations(parts[0].origin).values()
    return {file.name: file.stat().st_size for file in files}


def is_finished(target: Path, parts: Sequence[Part], *, skip_bad: bool) -> bool:
    """Say whether a complete folder is there, made from all that the source offers now; zips may be removed since.

    DataError: it is another data set.
    """
    manifest = facts.read_manifest(target)
    if manifest is None:
        return False
    inputs = manifest.treatment.get("inputs")
    if (manifest.kind, manifest.storage) != ("detect", "folder") or not isinstance(inputs, dict):
        raise DataError(
            f"{target} already holds another data set: {manifest.dataset or 'one'} as {manifest.storage}",
            hint="choose another folder with --to DIR, or remove that one",
        )
    shards = {shard.file: shard for shard in manifest.shards}
    known = measure_parts(parts).items() <= inputs.items() and {part.name for part in parts[1:]} <= shards.keys()
    if not known or (skip_bad and not manifest.treatment.get("skip_bad")):
        return False
    try:
        facts.check_files(target, manifest)
    except DataError as err:
        log.info("%s: it is made again", err.message)
        return False
    lengths = {name: list_files(target / name).values() for name in shards}
    return all(len(lengths[n]) >= s.records and sum(lengths[n]) >= s.bytes for n, s in shards.items())


def refuse_in_place(parts: Sequence[Part], target: Path) -> None:
    """Refuse to drop images from the source's own folders, or from where a link leads: only a copy is changed."""
    for part in parts:
        final = target / part.name
        if final.is_symlink() or part.origin.resolve() == final.resolve():
            raise DataError(
                f"{final} is not a copy: --on-bad skip does not change the source's own files",
                hint="choose another folder with --to DIR",
            )


def clear_partial(target: Path, work: Path) -> None:
    for folder in (path for path in work.iterdir() if path.is_dir()):
        shutil.rmtree(folder)
    for pattern in ("*.json.????????.partial", "*.txt.????????.partial"):
        for path in (*target.glob(pattern), *target.glob(f"annotations/{pattern}")):
            path.unlink()


def place(part: Part, target: Path, work: Path, workers: int) -> Iterator[Progress]:
    """Bring a part to its name below the target when it is complete; nothing there already is overwritten."""
    final = target / part.name
    if part.origin.resolve() == final.resolve():
        return
    if final.exists():
        compare(part, final)
        return
    made = work / part.name
    if part.is_zip:
        yield from extract_zip(part.origin, made, workers)
    else:
        yield from link_all(part, made)
    inner = made / part.name
    (inner if part.is_zip and inner.is_dir() else made).rename(final)
    sync_path(target)


def compare(part: Part, final: Path) -> None:
    files = list_zip(part.origin) if part.is_zip else list_files(part.origin)
    prefix = f"{part.name}/"
    if part.is_zip and any(name.startswith(prefix) for name in files):
        files = {name.removeprefix(prefix): size for name, size in files.items() if name.startswith(prefix)}
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
    os.sync()


def list_files(folder: Path) -> dict[str, int]:
    files = (Path(parent) / name for parent, _, names in os.walk(folder) for name in names)
    return {file.relative_to(folder).as_posix(): file.stat().st_size for file in files}


def conclude(parts: Sequence[Part], target: Path, workers: int, *, skip_bad: bool) -> Iterator[Progress]:
    """Check each split's images, then write the lists, the classes and, last, the manifest."""
    found = coco.find_splits(target)
    splits: list[facts.SplitFacts] = []
    categories: Sequence[CocoCategory] = ()
    dropped: list[Path] = []
    with open_pool(workers) as pool:
        for part in parts[1:]:
            if part.name not in found:
                raise DataError(f"{target / 'annotations'} has no instances_{part.name}.json")
            annotations = found[part.name][0]
            instances = read_instances(annotations)
            if splits and coco.list_classes(instances.categories) != coco.list_classes(categories):
                raise DataError(f"{annotations} has other categories than the files beside it")
            categories = instances.categories
            seen = yield from check_images(instances, annotations, target / part.name, pool, skip_bad=skip_bad)
            warn(part.name, instances, target / part.name)
            if seen.problems:
                dropped += [target / part.name / name for name, _ in seen.problems]
                write_atomically(annotations, drop_images(annotations, {name for name, _ in seen.problems}))
                instances = read_instances(annotations)
            yield Progress(f"write lists of {part.name}", 0, 2, "files")
            sidecars = [f"annotations/{annotations.name}", *write_lists(part.name, instances, target)]
            if not splits:
                sidecars.append(write_classes(categories, target))
            splits.append(describe_split(part.name, coco.name_split(part.name, found), seen, sidecars, target))
    inputs = measure_parts(parts)
    manifest = facts.Manifest(
        dataset=coco.name_set(categories),
        kind="detect",
        storage="folder",
        first_label=0,
        classes=tuple((name, "") for _, name in coco.list_classes(categories)),
        treatment={"inputs": inputs, **({"skip_bad": True} if skip_bad else {})},
        plan=hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest(),
        splits=tuple(splits),
    )
    facts.write_manifest(target, manifest)
    for path in dropped:  # nothing names them any more; of a link the other name stays
        path.unlink(missing_ok=True)
    yield Progress("finished", len(splits), len(splits), "files")


def describe_split(stem: str, name: str, seen: Seen, sidecars: Sequence[str], target: Path) -> facts.SplitFacts:
    """Return what the manifest says of a split: one folder of images, and the files beside it."""
    shard = facts.ShardFacts(
        file=stem,
        bytes=seen.num_bytes,
        crc32c=f"{seen.checksum:08x}",
        records=seen.num_images - len(seen.problems),
        sidecars=tuple(facts.measure(target, file) for file in dict.fromkeys(sidecars)),
        skipped=tuple(seen.problems),
    )
    return facts.SplitFacts(name=name, records=shard.records, bytes=seen.num_bytes, shards=(shard,))


def check_images(
    instances: Instances, annotations: Path, folder: Path, pool: Pool, *, skip_bad: bool
) -> Generator[Progress, None, Seen]:
    """Read every image once: compare its head with the annotations, sum it up, and decode it with `skip_bad`."""
    images = instances.images
    total = Seen(0, 0, 0, [])
    for seen in map_in_order(partial(look_at, folder, skip_bad), images, pool):
        done, checksum = total.num_images + seen.num_images, (total.checksum + seen.checksum) % (1 << 32)
        total = Seen(done, total.num_bytes + seen.num_bytes, checksum, total.problems + seen.problems)
        yield Progress(f"check {folder.name}", done, len(images), "files")
    if total.problems and (not skip_bad or len(total.problems) == len(images)):
        shown = "; ".join(f"{name} {problem}" for name, problem in total.problems[:3])
        raise DataError(
            f"{folder}: {len(total.problems):,} of {format_count(len(images), 'image')} are not as "
            f"{annotations.name} says: {shown}",
            hint=f"move {folder} away, put the right zip or folder in the source and run it again, "
            "or drop them with --on-bad skip",
        )
    return total


def look_at(folder: Path, decoded: bool, images: Sequence[CocoImage]) -> Seen:
    num_bytes = checksum = 0
    problems = []
    for image in images:
        try:
            data = read_image(folder, image, decoded=decoded)
        except (OSError, DataError) as err:
            reason = err.strerror if isinstance(err, OSError) and err.strerror else err
            problems.append((image.file_name, f"cannot be used: {reason}"))
            continue
        num_bytes += len(data)
        checksum += facts.sum_file(image.file_name, data)
    return Seen(len(images), num_bytes, checksum, problems)


def read_image(folder: Path, image: CocoImage, *, decoded: bool) -> bytes:
    """Return an image's bytes; DataError where it is not as the annotations say."""
    path = folder / image.file_name
    if path.stat().st_size > MAX_PICTURE_BYTES:
        raise DataError(f"larger than {format_bytes(MAX_PICTURE_BYTES)}")
    data = path.read_bytes()
    seen = look(data)
    if seen.kind != "jpeg" and image.file_name.lower().endswith((".jpg", ".jpeg")):
        raise DataError(f"it is {seen.kind.upper()}, not JPEG")
    if (seen.width, seen.height) != (image.width, image.height):
        raise DataError(f"it has {seen.width}x{seen.height} pixels, not {image.width}x{image.height}")
    if decoded:
        from trainstone.data.picture.decode import decode_strict  # heavy

        decode_strict(data)
    return data


def write_lists(stem: str, instances: Instances, target: Path) -> tuple[str, str]:
    boxes, images = f"annotations/bbox_only_instances_{stem}.json", f"{stem}-images.txt"
    write_atomically(target / boxes, box_only(instances))
    with_boxes = {item.image_id for item in instances.annotations}
    write_atomically(target / images, (f"{i.file_name}\n" for i in instances.images if i.id in with_boxes))
    return boxes, images


def write_classes(categories: Sequence[CocoCategory], target: Path) -> str:
    """Write the class map: number as detectors count, COCO's number, name."""
    numbers = number_categories(categories)
    lines = [f"{numbers[number]}\t{number}\t{printable(name)}\n" for number, name in coco.list_classes(categories)]
    write_atomically(target / "classes.txt", lines)
    return "classes.txt"


def warn(stem: str, instances: Instances, folder: Path) -> None:
    """Warn of counts that differ from the published set's, and of further files."""
    names = {image.file_name for image in instances.images}
    found = (len(names), len({item.image_id for item in instances.annotations}))
    published = OFFICIAL.get(stem, (None, None))
    if any(expected not in (None, number) for number, expected in zip(found, published, strict=True)):
        told = "%s has %d images, %d of them with boxes; the published set has %s and %s"
        log.warning(told, stem, *found, *(number or "unknown" for number in published))
    extra = list_files(folder).keys() - names
    if extra:
        log.warning("%s has %s that its annotations do not name", stem, format_count(len(extra), "file"))
