"""Open the data set at a path; its storage format is recognised by file names and first bytes."""

import contextlib
import itertools
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from trainstone.data.manifest import WORK, Manifest, check_files, read_manifest
from trainstone.data.sample import ClassName, DataSet, ImageSource, Sample, Selection, Source, Split, clip_box
from trainstone.data.sources.class_folders import find_class_folders, find_tiny_imagenet, open_class_folders
from trainstone.data.sources.coco import CocoSource, find_coco, open_splits
from trainstone.data.sources.listing import is_image_file
from trainstone.data.storage.recordio import RecordIOShard
from trainstone.data.storage.records import DamagedRecords, RecordAnnotations, RecordSource, ShardReader
from trainstone.data.storage.tfrecord import TFRecordShard
from trainstone.data.storage.wds import WdsShard
from trainstone.errors import ConfigError, DataError
from trainstone.formats.recordio import MAGIC_BYTES
from trainstone.formats.tfrecord import TFRecordFile

log = logging.getLogger(__name__)

Value = TypeVar("Value")

SHARD_READERS: dict[str, type[ShardReader]] = {"recordio": RecordIOShard, "tfrecord": TFRecordShard, "wds": WdsShard}
STORAGE_NAMES = {"recordio": "RecordIO", "tfrecord": "TFRecord", "wds": "WebDataset", "folder": "class folders"}
SPLITS = {"validation": "val", "valid": "val", "val": "val", "test": "test", "train": "train", "training": "train"}
# train-00000-of-01024, flowers_validation_00001-of-00005.tfrecord, train.0_of_4.tfrecord, train_3.rec, train-000012.tar
NUMBER = re.compile(r"[-_.]?(\d+[-_]of[-_]\d+|\d+)$")
SHARD = re.compile(r"-\d+-of-\d+$")
SUFFIXES = (".rec", ".tar", ".tfrecord", ".tfrecords")
MAX_CLASSES = 1_000_000
VERIFIED_RECORDS = 100
MAX_LISTED_FILES = 50
GZIP_HINT = "records in a compressed file cannot be read at random: decompress it first with gunzip"
MAX_LABELS_BYTES = 64 << 20
HINT = (
    "supported: class folders, COCO, RecordIO (.rec), TFRecord, WebDataset (.tar), folders written by trainstone data"
)


def open_dataset(path: Path, *, classes: bool = True, damaged: bool = False) -> DataSet:
    """Return the data set at a path: a folder or a single record file.

    Without `classes` no record is read, so damaged data sets can be opened too. With `damaged` records after a damaged
    byte range are found, and file lengths are not compared with the manifest.
    """
    source = DamagedRecords if damaged else RecordSource
    if path.is_file():
        return open_file(path, source, classes=classes)
    if not path.is_dir():
        raise DataError(f"no such file or folder: {path}")
    manifest = read_manifest(path)
    if manifest is not None:
        if classes and not damaged:
            check_files(path, manifest)
        if manifest.storage != "folder":
            files = {split.name: [path / shard.file for shard in split.shards] for split in manifest.splits}
            return open_records(files, manifest, source)
        known = tuple(ClassName(name, text) for name, text in manifest.classes)
        folders = {split.name: split.shards[0].file for split in manifest.splits}
        found = open_splits(path, folders) if manifest.kind == "detect" else open_class_folders(path, folders, known)
        return replace(found, name=manifest.dataset, classes=known)
    if (path / WORK).is_dir():
        raise DataError(f"{path} is unfinished", hint="run the command that writes it again: it resumes")
    recognised = find_records(path, source, classes=classes) or find_image_files(path)
    if recognised is None:
        raise DataError(f"{path} does not contain a known data set", hint=HINT)
    return recognised


def open_file(path: Path, source: type[RecordSource], *, classes: bool) -> DataSet:
    """Open a single image or a single record file; a manifest in its folder may describe it."""
    if is_image_file(path.name):
        return DataSet("classify", "an image", (), [Split(path.name, ImageSource([path]))])
    manifest = read_manifest(path.parent)
    if manifest is not None and manifest.storage != "folder":
        for split in manifest.splits:
            if any(shard.file == path.name for shard in split.shards):
                return open_records({split.name: [path]}, manifest, source)
    storage = recognise_file(path)
    if storage is None:
        raise DataError(f"{path} is not a record file", hint=GZIP_HINT if read_head(path)[:2] == b"\x1f\x8b" else HINT)
    return build_data_set(storage, {name_split(path): [path]}, source, classes=classes)


def recognise_file(path: Path) -> str | None:
    head = read_head(path)
    if head.startswith(MAGIC_BYTES):
        return "recordio"
    if head[257:262] == b"ustar" or (path.suffix == ".tar" and len(head) == 512):
        return "wds"
    if path.suffix in (".tfrecord", ".tfrecords"):
        return "tfrecord"
    with TFRecordFile(path) as file, contextlib.suppress(DataError):  # the first record's length has a checksum
        return "tfrecord" if next(file.spans(), None) else None
    return None


def read_head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(512)
    except OSError as err:
        raise DataError(f"cannot read {path}: {err.strerror}") from err


def find_records(path: Path, source: type[RecordSource], *, classes: bool) -> DataSet | None:
    """Open the record files of a folder by split; index files and other sidecars are ignored."""
    files = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
    shards = [p for p in files if p.suffix in SUFFIXES or SHARD.search(p.name)]
    if not shards:
        return None
    empty = [p for p in shards if p.stat().st_size == 0]
    if len(empty) < len(shards):  # im2rec's last chunk may be empty; so is a file that was lost
        shards = [p for p in shards if p not in empty]
        for file in empty:
            log.warning("%s is empty", file)
    by_storage: dict[str, dict[str, list[Path]]] = {}
    for file in shards:
        storage = recognise_file(file)
        if storage is None:
            raise DataError(f"{file} is named like a record file but is not one")
        by_storage.setdefault(storage, {}).setdefault(name_split(file), []).append(file)
    if len(by_storage) > 1:
        formats = " and ".join(STORAGE_NAMES[storage] for storage in by_storage)
        raise DataError(f"{path} mixes {formats}; one format is allowed", hint="give the path of one file")
    storage, splits = next(iter(by_storage.items()))
    return build_data_set(storage, splits, source, classes=classes)


def name_split(path: Path) -> str:
    """Return the split in a file's name: train, val or test; otherwise the name without its number."""
    stem = path.name.removesuffix(path.suffix) if path.suffix in SUFFIXES else path.name
    stem = NUMBER.sub("", stem)
    for word in re.split(r"[-_.]", stem.lower()):
        if word.rstrip("0123456789") in SPLITS:
            return SPLITS[word.rstrip("0123456789")]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._") or "train"


def build_data_set(
    storage: str, splits: dict[str, list[Path]], source: type[RecordSource], *, classes: bool
) -> DataSet:
    """Open record files without a manifest: kind and classes are read from the records."""
    sources = [source(paths, SHARD_READERS[storage]) for paths in splits.values()]
    parts = [Split(name, records) for name, records in zip(splits, sources, strict=True)]
    if not classes:
        return DataSet("classify", STORAGE_NAMES[storage], (), parts)
    # Detection records have a field for boxes instead of a class.
    is_detection = query_records(sources, lambda source, index: source.read_annotations(index).is_detection)
    first = query_records(sources, read_first_label) if storage == "tfrecord" else None
    kind = "detect" if is_detection else "classify"
    return DataSet(kind, STORAGE_NAMES[storage], read_class_names(sources), parts, first_label=first)


def query_records(sources: Sequence[RecordSource], query: Callable[[RecordSource, int], Value]) -> Value | None:
    """Return the query's result for the first readable record; damaged ones are reported when they are read later."""
    for source in sources:
        for index in range(min(len(source), VERIFIED_RECORDS)):
            with contextlib.suppress(DataError):
                return query(source, index)
    return None


def read_first_label(source: RecordSource, index: int) -> int:
    shard, offset = source.locate(index)
    with contextlib.closing(TFRecordShard(source.paths[shard])) as reader:
        return reader.first_label(reader.features(offset))


def read_class_names(sources: Sequence[RecordSource]) -> tuple[ClassName, ...]:
    """Return the class names in the records, by label; a class without a name is called by its number."""
    names: dict[int, ClassName] = {}
    for source in sources:
        for index in range(len(source)):
            try:
                labels = source.read_annotations(index).labels
            except DataError:  # an unreadable record has no class name
                continue
            for label, class_name in labels:
                if not 0 <= label < MAX_CLASSES:
                    raise DataError(
                        f"{source.where(index)}: invalid label {label}; 0 to {MAX_CLASSES - 1:,} are allowed"
                    )
                if label not in names or not names[label].name:
                    names[label] = class_name
    listed: dict[int, str] = {}  # from a labels.txt beside the records: TF-Slim's lines `0:daisy`
    folders = {path.parent for source in sources for path in source.paths}
    files = [path for folder in folders for path in folder.glob("*labels.txt") if path.is_file()]
    if len(files) == 1 and files[0].stat().st_size <= MAX_LABELS_BYTES:
        pairs = [line.split(":", 1) for line in files[0].read_text("utf-8", "replace").splitlines() if ":" in line]
        listed = {int(number): name.strip() for number, name in pairs if number.isdecimal() and len(number) < 8}
    found = [names.get(label, ClassName("")) for label in range(max(names, default=-1) + 1)]
    return tuple(known if known.name else ClassName(listed.get(label, str(label))) for label, known in enumerate(found))


def open_records(files: Mapping[str, Sequence[Path]], manifest: Manifest, source: type[RecordSource]) -> DataSet:
    """Open record files, all or some, described by a manifest."""
    first = manifest.first_label if manifest.storage == "tfrecord" else None
    opener = partial(SHARD_READERS[manifest.storage], first_label=first)
    splits = [Split(name, source(paths, opener)) for name, paths in files.items()]
    classes = tuple(ClassName(name, text) for name, text in manifest.classes)
    return DataSet(manifest.kind, STORAGE_NAMES[manifest.storage], classes, splits, manifest.dataset, first)


def drop_images_without_boxes(found: DataSet) -> DataSet:
    """Return a detection set without training images that have no box."""
    if found.kind != "detect":
        raise ConfigError(f"--skip-empty requires a data set with boxes: this one is {found.kind}")
    kept = [
        Split(name, select_images_with_boxes(source) if name == "train" else source) for name, source in found.splits
    ]
    return replace(found, splits=kept)


def select_images_with_boxes(source: Source) -> Source:
    """Return the images with at least one box; unreadable ones are included, so that reading them reports the error.

    All records are read for this, without their images: 10 to 20 s for COCO's 118,287.
    """
    if isinstance(source, CocoSource):
        return source.select_images_with_boxes()
    read: Callable[[int], Sample | RecordAnnotations] = (
        source.read_annotations if isinstance(source, RecordSource) else source.read
    )
    numbers = []
    for number in range(len(source)):
        with contextlib.suppress(DataError):
            if not any(clip_box(box) for box in read(number).boxes):
                continue
        numbers.append(number)
    return Selection(source, numbers) if len(numbers) < len(source) else source


def find_image_files(path: Path) -> DataSet | None:
    """Open a folder of image files: COCO's layout, Tiny-ImageNet, class folders or plain images."""
    if any(path.glob("annotations/*instances*.json")):
        return find_coco(path)
    if (path / "val_annotations.txt").is_file() or (path / "val" / "val_annotations.txt").is_file():
        return find_tiny_imagenet(path)
    entries = [entry for entry in sorted(path.iterdir()) if not entry.name.startswith(".")]
    images = [entry for entry in entries if is_image_file(entry.name)]
    if images and not any(entry.is_dir() for entry in entries):
        return DataSet("classify", "images", (), [Split(path.resolve().name, ImageSource(images))])
    if any(entry.is_dir() for entry in path.iterdir()):
        check_not_parent(path)
        return find_class_folders(path)
    return None


def check_not_parent(path: Path) -> None:
    """Raise DataError if the subfolders are data sets: they would be taken for classes."""
    if any((path / name).is_dir() for name in ("train", "val")):
        return
    folders = [entry for entry in list_first_entries(path) if entry.is_dir()]
    for folder in (*folders, *(inner for entry in folders for inner in list_first_entries(entry) if inner.is_dir())):
        marks = (folder / "manifest.json", folder / "annotations", folder / "train", folder / "val")
        records = (file.suffix in SUFFIXES or SHARD.search(file.name) for file in list_first_entries(folder))
        if any(mark.exists() for mark in marks) or any(records):
            raise DataError(f"{path} is not a data set, but its subfolder is", hint=f"give the path {folder}")


def list_first_entries(folder: Path) -> list[Path]:
    """Return up to MAX_LISTED_FILES entries of a folder: enough to recognise it, fast for a million images."""
    return sorted(itertools.islice(folder.iterdir(), MAX_LISTED_FILES))
