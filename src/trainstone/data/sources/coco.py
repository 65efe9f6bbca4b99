"""Read and prepare data sets in COCO's layout: annotations/instances_<split>.json and one image folder per split.

Any categories are allowed. `prepare_coco` writes such a folder, with all images checked, from the published zips or the
folders in them. It adds bbox_only_instances_<split>.json, <split>-images.txt (images with a box) and classes.txt;
manifest.json is written last. A killed run resumes at a part (the annotations, or the images of a split); a part is
renamed when it is complete.
"""

import hashlib
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainstone.data import manifest as manifests
from trainstone.data.image.inspect import read_header
from trainstone.data.parallel import Pool, WorkProgress, lock_file, map_in_order, open_pool
from trainstone.data.sample import ClassName, DataSet, Sample, Split, build_box
from trainstone.data.sources.archives import extract_zip, list_zip
from trainstone.data.sources.listing import MAX_IMAGE_BYTES
from trainstone.errors import DataError
from trainstone.files import sync_path, write_atomically
from trainstone.formats.coco import (
    NAME_OF_ID,
    CocoCategory,
    CocoImage,
    Instances,
    drop_images,
    format_box_only,
    number_categories,
    read_instances,
)
from trainstone.text import printable
from trainstone.units import format_bytes, format_count

log = logging.getLogger(__name__)

ANNOTATIONS = re.compile(r"(bbox_only_)?instances_([A-Za-z0-9._-]+)\.json")
YEAR = re.compile(r"20\d\d$")
# Number of images, and of images with an annotation (None: unknown); https://cocodataset.org
PUBLISHED_COUNTS = {"train2017": (118_287, 117_266), "val2017": (5_000, None)}


def find_coco(path: Path) -> DataSet:
    """Open a folder in COCO's layout; splits without images are skipped with a warning."""
    usable = find_splits(path)
    found = find_annotations(path / "annotations")
    if not usable:
        stems = ", ".join(found) or "train2017"
        missing = "no images for its annotations" if found else "no annotations/instances_<split>.json"
        hint = f"put the images of a split into a folder of its name ({stems}), or into one below images/"
        raise DataError(f"{path} is not in COCO's layout: {missing}", hint=hint)
    missing_splits: dict[str, str] = {}  # keys: train2017 and train
    for stem, file in found.items():
        if stem not in usable:
            reason = f"annotations/{file.name} exists, but {stem}/ does not"
            log.warning("%s: skipped split %s: %s", path, stem, reason)
            for name in (stem, YEAR.sub("", stem)):
                missing_splits.setdefault(name, reason)
    splits: list[Split] = []
    categories: Sequence[CocoCategory] = ()
    for stem, (file, folder) in usable.items():
        instances = read_instances(file)
        if splits and list_classes(instances.categories) != list_classes(categories):
            raise DataError(f"{file} has other categories than the other annotation files")
        categories = instances.categories
        splits.append(Split(name_split(stem, usable), build_source(instances, file, folder)))
    classes = [ClassName(name) for _, name in list_classes(categories)]
    return DataSet("detect", "COCO", classes, splits, name_data_set(categories), missing_splits=missing_splits)


def open_splits(path: Path, folders: Mapping[str, str]) -> DataSet:
    """Open the splits of a prepared data set by image folder; its name is also that of the annotations."""
    splits = []
    for name, folder in folders.items():
        annotations = path / "annotations" / f"instances_{folder}.json"
        splits.append(Split(name, build_source(read_instances(annotations), annotations, path / folder)))
    return DataSet("detect", "COCO", (), splits)


def find_splits(path: Path) -> dict[str, tuple[Path, Path]]:
    """Return the annotation file and image folder of each split, such as train2017; train comes first."""
    found = {stem: (file, find_images(path, stem)) for stem, file in find_annotations(path / "annotations").items()}
    return {stem: (file, folder) for stem, (file, folder) in found.items() if folder is not None}


def find_annotations(folder: Path) -> dict[str, Path]:
    """Return the annotation file of each split, preferring full ones to box-only ones; train comes first."""
    found: dict[str, Path] = {}
    for file in sorted(folder.glob("*.json"), reverse=True):  # instances_ before bbox_only_
        named = ANNOTATIONS.fullmatch(file.name)
        if named is not None:
            found.setdefault(named[2], file)
    return dict(sorted(found.items(), key=lambda item: (not item[0].startswith("train"), item[0])))


def find_images(path: Path, stem: str) -> Path | None:
    names = dict.fromkeys((stem, YEAR.sub("", stem) or stem))
    folders = [path / below / name for name in names for below in ("", "images")]
    return next((folder for folder in folders if folder.is_dir()), None)


def name_split(stem: str, among: Sequence[str] | dict[str, Any]) -> str:
    """Return train for train2017, unless train2014 also exists."""
    short = YEAR.sub("", stem) or stem
    return short if sum((YEAR.sub("", other) or other) == short for other in among) == 1 else stem


def list_classes(categories: Sequence[CocoCategory]) -> list[tuple[int, str]]:
    return sorted((item.id, item.name) for item in categories)


def name_data_set(categories: Sequence[CocoCategory]) -> str:
    return "coco" if {item.id: item.name for item in categories} == NAME_OF_ID else ""


@dataclass(frozen=True)
class CocoSource:
    """Source of the images of one split; boxes are in arrays, so that processes can share them."""

    annotations: Path
    images: Path
    names: Sequence[str]
    ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    """Index of the first box of each image, plus the total."""
    edges: NDArray[np.float64]
    """Left, top, right, bottom as shares of width and height. (boxes, 4)"""
    labels: NDArray[np.int64]
    crowds: NDArray[np.bool_]
    areas: NDArray[np.float64]
    """Areas of objects as shares of the image's area; NaN if only the box's area is known."""

    def __len__(self) -> int:
        return len(self.names)

    def read(self, index: int) -> Sample:
        try:
            image = (self.images / self.names[index]).read_bytes()
        except OSError as err:
            raise DataError(
                f"cannot read {self.where(index)}: {err.strerror}", hint=f"{self.annotations} lists it"
            ) from err
        chosen = slice(int(self.starts[index]), int(self.starts[index + 1]))
        columns = (self.labels, self.edges, self.crowds, self.areas)
        boxes = tuple(
            build_box(label, edges, crowd, None if math.isnan(area) else area)
            for label, edges, crowd, area in zip(*(column[chosen].tolist() for column in columns), strict=True)
        )
        return Sample(self.names[index], image, boxes=boxes, id=int(self.ids[index]))

    def name(self, index: int) -> str:
        return self.names[index]

    def where(self, index: int) -> str:
        return str(self.images / self.names[index])

    def size_bytes(self, index: int) -> int:
        """Return an image's length; 0 if it is missing, which reading it reports."""
        try:
            return (self.images / self.names[index]).stat().st_size
        except OSError:
            return 0

    def fingerprint(self) -> str:
        """Return a hash of the annotation file's name, size and time, and of the images' names and lengths."""
        stat = self.annotations.stat()
        header = f"{self.annotations.name} {stat.st_size} {stat.st_mtime_ns} {self.images.name}\n"
        digest = hashlib.sha256(header.encode("utf-8", "surrogateescape"))
        for index, name in enumerate(self.names):
            digest.update(f"{self.size_bytes(index)} {name}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def select_images_with_boxes(self) -> "CocoSource":
        """Return the images with at least one box."""
        counts = np.diff(self.starts)
        kept = np.flatnonzero(counts)
        starts = np.concatenate([[0], np.cumsum(counts[kept])])
        return replace(self, names=[self.names[i] for i in kept.tolist()], ids=self.ids[kept], starts=starts)


def build_source(instances: Instances, annotations: Path, images: Path) -> CocoSource:
    """Build the source of a split: boxes grouped by image and clipped to it, in file order."""
    numbers = number_categories(instances.categories)
    place_of = {image.id: write_part for write_part, image in enumerate(instances.images)}
    places = np.array([place_of[item.image_id] for item in instances.annotations], dtype=np.int64)
    sizes = np.array([(image.width, image.height) for image in instances.images], dtype=np.float64).reshape(-1, 2)
    boxes = np.array([item.bbox for item in instances.annotations], dtype=np.float64).reshape(-1, 4)
    ends = sizes[places]
    low = np.clip(boxes[:, :2], 0, ends) / ends
    high = np.clip(boxes[:, :2] + boxes[:, 2:], 0, ends) / ends
    kept = np.flatnonzero((high > low).all(axis=1))
    if len(kept) < len(boxes):
        log.warning("%s: skipped %d boxes without area inside their image", annotations, len(boxes) - len(kept))
    order = kept[np.argsort(places[kept], kind="stable")]
    counts = np.bincount(places[kept], minlength=len(instances.images))
    # Areas of objects in pixels, if the file has real ones: the original's prepared files have 1 everywhere, and ours
    # have the box's area, to three decimals, if the object's is unknown.
    areas = np.array([np.nan if item.area is None else item.area for item in instances.annotations], dtype=np.float64)
    width, height = boxes[:, 2], boxes[:, 3]
    as_box = np.abs(areas - width * height) <= 0.001 * (1 + np.abs(width) + np.abs(height))
    areas[as_box | (areas < 0) | (areas == 1).all()] = np.nan
    return CocoSource(
        annotations=annotations,
        images=images,
        names=[image.file_name for image in instances.images],
        ids=np.array([image.id for image in instances.images], dtype=np.int64),
        starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        edges=np.concatenate([low, high], axis=1)[order],
        labels=np.array([numbers[item.category_id] - 1 for item in instances.annotations], dtype=np.int64)[order],
        crowds=np.array([item.crowd for item in instances.annotations], dtype=np.bool_)[order],
        areas=(areas / ends.prod(axis=1))[order],
    )


class CocoPart(NamedTuple):
    """A folder to write (annotations, train2017 or val2017) and its source, a zip or a folder."""

    name: str
    origin: Path

    @property
    def is_zip(self) -> bool:
        return self.origin.suffix == ".zip"


def prepare_coco(source: Path, target: Path, workers: int = 1, *, skip_bad: bool = False) -> Iterator[WorkProgress]:
    """Unpack and check COCO, and write its lists; yield progress, or nothing if the target is already complete.

    Files of folders in `source` are hard-linked if the file system allows it, otherwise copied; `source` may be
    `target`. The full annotation files stay, because metrics are computed with them. `skip_bad`: decode every image and
    drop damaged and missing ones from the copy and its annotations.
    """
    try:
        parts = find_parts(source)
        if is_complete(target, parts, skip_bad=skip_bad):
            return
        if len(parts) < 2:
            raise DataError(
                f"{source} has no {'images for its annotations' if parts else 'COCO annotations'}",
                hint="required: annotations_trainval2017.zip and train2017.zip or val2017.zip, or the folders in them",
            )
        # Never drop images from the source's own folders or from the target of a link.
        for final, origin in ((target / part.name, part.origin) for part in parts if skip_bad):
            if final.is_symlink() or origin.resolve() == final.resolve():
                raise DataError(
                    f"{final} is the source's own folder or a link; --on-bad skip only changes a copy",
                    hint="choose another folder with --to DIR",
                )
        work = target / manifests.WORK
        work.mkdir(parents=True, exist_ok=True)
        with lock_file(work / "lock", target):
            try:
                (target / manifests.NAME).unlink(missing_ok=True)
                remove_partial_files(target, work)
                for part in parts:
                    yield from write_part(part, target, work, workers)
                yield from write_lists(parts, target, workers, skip_bad=skip_bad)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as err:
        raise DataError(f"cannot prepare COCO in {target}: {err.strerror or err}") from err


def find_parts(source: Path) -> list[CocoPart]:
    """Return the parts in the source: annotations first, then splits with images; the list may be incomplete."""
    zips = {file.name: file for below in ("annotations", "zips", "") for file in sorted((source / below).glob("*.zip"))}
    packed = zips.get("annotations_trainval2017.zip") or next(
        (file for name, file in zips.items() if name.startswith("annotations")), None
    )
    if packed is not None:
        names = [ANNOTATIONS.fullmatch(name.rpartition("/")[2]) for name in list_zip(packed)]
        parts, stems = [CocoPart("annotations", packed)], sorted({named[2] for named in names if named is not None})
    else:
        stems = list(find_annotations(source / "annotations"))
        parts = [CocoPart("annotations", source / "annotations")] if stems else []
    for stem in stems:
        origin = zips.get(f"{stem}.zip") or find_images(source, stem)
        if origin is not None:
            parts.append(CocoPart(stem, origin))
    return parts


def measure_inputs(parts: Sequence[CocoPart]) -> dict[str, int]:
    """Return the lengths of the zips, and of annotation files outside a zip."""
    files = [part.origin for part in parts if part.is_zip]
    if parts and not parts[0].is_zip:
        files += find_annotations(parts[0].origin).values()
    return {file.name: file.stat().st_size for file in files}


def is_complete(target: Path, parts: Sequence[CocoPart], *, skip_bad: bool) -> bool:
    """Return whether the target is complete and was made from everything in the source; zips may be gone since.

    Raise DataError if the target is another data set.
    """
    manifest = manifests.read_manifest(target)
    if manifest is None:
        return False
    inputs = manifest.treatment.get("inputs")
    if (manifest.kind, manifest.storage) != ("detect", "folder") or not isinstance(inputs, dict):
        raise DataError(
            f"{target} already contains another data set: {manifest.dataset or 'unnamed'}, format {manifest.storage}",
            hint="choose another folder with --to DIR, or remove this one",
        )
    shards = {shard.file: shard for shard in manifest.shards}
    is_known = measure_inputs(parts).items() <= inputs.items() and {part.name for part in parts[1:]} <= shards.keys()
    if not is_known or (skip_bad and not manifest.treatment.get("skip_bad")):
        return False
    try:
        manifests.check_files(target, manifest)
    except DataError as err:
        log.info("%s: it is written again", err.message)
        return False
    lengths = {name: list_files(target / name).values() for name in shards}
    return all(len(lengths[n]) >= s.records and sum(lengths[n]) >= s.bytes for n, s in shards.items())


def remove_partial_files(target: Path, work: Path) -> None:
    for folder in (path for path in work.iterdir() if path.is_dir()):
        shutil.rmtree(folder)
    for pattern in ("*.json.????????.partial", "*.txt.????????.partial"):
        for path in (*target.glob(pattern), *target.glob(f"annotations/{pattern}")):
            path.unlink()


def write_part(part: CocoPart, target: Path, work: Path, workers: int) -> Iterator[WorkProgress]:
    """Write a part and rename it into the target when it is complete; existing files are not overwritten."""
    final = target / part.name
    if part.origin.resolve() == final.resolve():
        return
    if final.exists():
        files = list_zip(part.origin) if part.is_zip else list_files(part.origin)
        prefix = f"{part.name}/"
        if part.is_zip and any(name.startswith(prefix) for name in files):
            files = {name.removeprefix(prefix): size for name, size in files.items() if name.startswith(prefix)}
        missing_files = files.items() - list_files(final).items()
        num_missing = sum(not name.startswith("bbox_only_") for name, _ in missing_files)  # these are written again
        if num_missing:
            raise DataError(
                f"{final} already exists, and {num_missing:,} of the {format_count(len(files), 'file')} of "
                f"{part.origin} are missing there or have another length",
                hint=f"move {final} away and run the command again",
            )
        return
    made = work / part.name
    if part.is_zip:
        yield from extract_zip(part.origin, made, workers)
    else:
        yield from link_files(part, made)
    inner = made / part.name
    (inner if part.is_zip and inner.is_dir() else made).rename(final)
    sync_path(target)


def link_files(part: CocoPart, folder: Path) -> Iterator[WorkProgress]:
    """Hard-link all files of a part into a new folder; copy them if the file system does not allow links."""
    files = list_files(part.origin)
    for done, name in enumerate(files, start=1):
        source, target = part.origin / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            target.hardlink_to(source.resolve())
        except OSError:
            shutil.copyfile(source, target)
        yield WorkProgress(f"link {part.name}", done, len(files), "files")
    os.sync()


def list_files(folder: Path) -> dict[str, int]:
    files = (Path(parent) / name for parent, _, names in os.walk(folder) for name in names)
    return {file.relative_to(folder).as_posix(): file.stat().st_size for file in files}


def write_lists(parts: Sequence[CocoPart], target: Path, workers: int, *, skip_bad: bool) -> Iterator[WorkProgress]:
    """Check each split's images, then write the lists, the class map and, last, the manifest."""
    found = find_splits(target)
    splits: list[manifests.SplitEntry] = []
    categories: Sequence[CocoCategory] = ()
    dropped: list[Path] = []
    with open_pool(workers) as pool:
        for part in parts[1:]:
            if part.name not in found:
                raise DataError(f"{target / 'annotations'} has no instances_{part.name}.json")
            annotations = found[part.name][0]
            instances = read_instances(annotations)
            if splits and list_classes(instances.categories) != list_classes(categories):
                raise DataError(f"{annotations} has other categories than the other annotation files")
            categories = instances.categories
            shard = yield from check_images(instances, annotations, target / part.name, pool, skip_bad=skip_bad)
            warn_about_differences(part.name, instances, target / part.name)
            if shard.skipped:
                dropped += [target / part.name / name for name, _ in shard.skipped]
                write_atomically(annotations, drop_images(annotations, {name for name, _ in shard.skipped}))
                instances = read_instances(annotations)
            yield WorkProgress(f"write lists of {part.name}", 0, 2, "files")
            boxes, images = f"annotations/bbox_only_instances_{part.name}.json", f"{part.name}-images.txt"
            write_atomically(target / boxes, format_box_only(instances))
            with_boxes = {item.image_id for item in instances.annotations}
            write_atomically(target / images, (f"{i.file_name}\n" for i in instances.images if i.id in with_boxes))
            sidecars = [f"annotations/{annotations.name}", boxes, images]
            if not splits:  # the class map: label, COCO's category id, name
                numbers = number_categories(categories)
                lines = (f"{numbers[id_]}\t{id_}\t{printable(name)}\n" for id_, name in list_classes(categories))
                write_atomically(target / "classes.txt", lines)
                sidecars.append("classes.txt")
            entries = tuple(manifests.measure_file(target, file) for file in dict.fromkeys(sidecars))
            shard = shard.model_copy(update={"sidecars": entries})
            name = name_split(part.name, found)
            splits.append(manifests.SplitEntry(name=name, records=shard.records, bytes=shard.bytes, shards=(shard,)))
    inputs = measure_inputs(parts)
    manifest = manifests.Manifest(
        dataset=name_data_set(categories),
        kind="detect",
        storage="folder",
        first_label=0,
        classes=tuple((name, "") for _, name in list_classes(categories)),
        treatment={"inputs": inputs, **({"skip_bad": True} if skip_bad else {})},
        plan=hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest(),
        splits=tuple(splits),
    )
    manifests.write_manifest(target, manifest)
    for path in dropped:  # no longer in the annotations; a hard link in the source stays
        path.unlink(missing_ok=True)
    yield WorkProgress("finished", len(splits), len(splits), "files")


def check_images(
    instances: Instances, annotations: Path, folder: Path, pool: Pool, *, skip_bad: bool
) -> Generator[WorkProgress, None, manifests.ShardEntry]:
    """Read every image once: compare its header with the annotations, add its checksum, with `skip_bad` decode it."""
    images = instances.images
    checked: list[tuple[int, int, str]] = []
    for part in map_in_order(
        lambda chunk: [check_image(folder, image, decoded=skip_bad) for image in chunk], images, pool
    ):
        checked += part
        yield WorkProgress(f"check {folder.name}", len(checked), len(images), "files")
    problems = [(image.file_name, problem) for image, (_, _, problem) in zip(images, checked, strict=True) if problem]
    if problems and (not skip_bad or len(problems) == len(images)):
        shown = "; ".join(f"{name} {problem}" for name, problem in problems[:3])
        raise DataError(
            f"{folder}: {len(problems):,} of {format_count(len(images), 'image')} differ from "
            f"{annotations.name}: {shown}",
            hint=f"move {folder} away, put the right zip or folder into the source and run the command again, "
            "or skip these images with --on-bad skip",
        )
    num_bytes, checksum = sum(size for size, _, _ in checked), sum(share for _, share, _ in checked) % (1 << 32)
    return manifests.ShardEntry(
        file=folder.name,
        bytes=num_bytes,
        crc32c=f"{checksum:08x}",
        records=len(images) - len(problems),
        skipped=tuple(problems),
    )


def check_image(folder: Path, image: CocoImage, *, decoded: bool) -> tuple[int, int, str]:
    """Return an image's length, its checksum, and its problem or ""."""
    path = folder / image.file_name
    try:
        if path.stat().st_size > MAX_IMAGE_BYTES:
            raise DataError(f"it is larger than {format_bytes(MAX_IMAGE_BYTES)}")
        data = path.read_bytes()
        header = read_header(data)
        if header.kind != "jpeg" and image.file_name.lower().endswith((".jpg", ".jpeg")):
            raise DataError(f"it is {header.kind.upper()}, not JPEG")
        if (header.width, header.height) != (image.width, image.height):
            raise DataError(f"it has {header.width}x{header.height} pixels, not {image.width}x{image.height}")
        if decoded:
            from trainstone.data.image.decode import decode_strict  # heavy

            decode_strict(data)
    except (OSError, DataError) as err:
        reason = err.strerror if isinstance(err, OSError) and err.strerror else err
        return 0, 0, f"is unusable: {reason}"
    return len(data), manifests.checksum_file(image.file_name, data), ""


def warn_about_differences(stem: str, instances: Instances, folder: Path) -> None:
    """Warn about counts that differ from the published ones, and about files that are not in the annotations."""
    names = {image.file_name for image in instances.images}
    found = (len(names), len({item.image_id for item in instances.annotations}))
    published = PUBLISHED_COUNTS.get(stem, (None, None))
    if any(expected not in (None, number) for number, expected in zip(found, published, strict=True)):
        message = "%s has %d images, %d of them with boxes; the published data set has %s and %s"
        log.warning(message, stem, *found, *(number or "unknown" for number in published))
    extra = list_files(folder).keys() - names
    if extra:
        log.warning("%s has %s that are not in its annotations", stem, format_count(len(extra), "file"))
