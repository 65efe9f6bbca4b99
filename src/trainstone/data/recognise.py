"""What lies at a path? Looks at names and first bytes and opens it, whatever storage it is."""

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
from trainstone.data.storage.records import DamagedRecords, Glance, RecordSource, ShardReader
from trainstone.data.storage.tfrecord import TFRecordShard
from trainstone.data.storage.wds import WdsShard
from trainstone.errors import ConfigError, DataError
from trainstone.formats.recordio import MAGIC_BYTES
from trainstone.formats.tfrecord import TFRecordFile

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

OPENERS: dict[str, type[ShardReader]] = {"recordio": RecordIOShard, "tfrecord": TFRecordShard, "wds": WdsShard}
SHOWN = {"recordio": "RecordIO", "tfrecord": "TFRecord", "wds": "WebDataset", "folder": "class folders"}
SPLITS = {"validation": "val", "valid": "val", "val": "val", "test": "test", "train": "train", "training": "train"}
# train-00000-of-01024, flowers_validation_00001-of-00005.tfrecord, train.0_of_4.tfrecord, train_3.rec, train-000012.tar
NUMBER = re.compile(r"[-_.]?(\d+[-_]of[-_]\d+|\d+)$")
SHARD = re.compile(r"-\d+-of-\d+$")
SUFFIXES = (".rec", ".tar", ".tfrecord", ".tfrecords")
MAX_CLASSES = 1_000_000
VERIFIED_RECORDS = 100
LOOKED_AT_FILES = 50
GZIP_HINT = "it is compressed, and records in it cannot be reached: decompress it first (gunzip)"
MAX_LABELS_BYTES = 64 << 20
HINT = "it can be: class folders, COCO, RecordIO (.rec), TFRecord, WebDataset (.tar), or a folder that trainstone made"


def open_dataset(path: Path, *, classes: bool = True, damaged: bool = False) -> DataSet:
    """Return the data set at a path: a folder or a single file of records.

    Without `classes` no record is read, so that damaged sets can be opened, too. With `damaged` the records behind a
    damaged place are found, and lengths of files are not compared with the manifest's.
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
        raise DataError(f"{path} is unfinished", hint="give the command that makes it again: it goes on")
    unknown = find_records(path, source, classes=classes) or find_files(path)
    if unknown is None:
        raise DataError(f"{path} holds no data set that trainstone knows", hint=HINT)
    return unknown


def open_file(path: Path, source: type[RecordSource], *, classes: bool) -> DataSet:
    """Open an image, or a file of records; a manifest beside it may describe it."""
    if is_image_file(path.name):
        return DataSet("classify", "an image", (), [Split(path.name, ImageSource([path]))])
    manifest = read_manifest(path.parent)
    if manifest is not None and manifest.storage != "folder":
        for split in manifest.splits:
            if any(shard.file == path.name for shard in split.shards):
                return open_records({split.name: [path]}, manifest, source)
    storage = recognise_file(path)
    if storage is None:
        raise DataError(f"{path} is no file of records", hint=GZIP_HINT if read_head(path)[:2] == b"\x1f\x8b" else HINT)
    return make_set(storage, {name_split(path): [path]}, source, classes=classes)


def recognise_file(path: Path) -> str | None:
    head = read_head(path)
    if head.startswith(MAGIC_BYTES):
        return "recordio"
    if head[257:262] == b"ustar" or (path.suffix == ".tar" and len(head) == 512):
        return "wds"
    if path.suffix in (".tfrecord", ".tfrecords"):
        return "tfrecord"
    with TFRecordFile(path) as file, contextlib.suppress(DataError):  # its first length has a checksum
        return "tfrecord" if next(file.spans(), None) else None
    return None


def read_head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(512)
    except OSError as err:
        raise DataError(f"cannot read {path}: {err.strerror}") from err


def find_records(path: Path, source: type[RecordSource], *, classes: bool) -> DataSet | None:
    """Return the record files of a folder, by split; index files and the like beside them are not meant."""
    files = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
    meant = [p for p in files if p.suffix in SUFFIXES or SHARD.search(p.name)]
    if not meant:
        return None
    empty = [p for p in meant if p.stat().st_size == 0]
    if len(empty) < len(meant):  # the last of im2rec's chunks may hold nothing; a file that was lost does so, too
        meant = [p for p in meant if p not in empty]
        for file in empty:
            log.warning("%s is empty", file)
    by_storage: dict[str, dict[str, list[Path]]] = {}
    for file in meant:
        storage = recognise_file(file)
        if storage is None:
            raise DataError(f"{file} is named like a file of records, but is none")
        by_storage.setdefault(storage, {}).setdefault(name_split(file), []).append(file)
    if len(by_storage) > 1:
        raise DataError(f"{path} mixes {' and '.join(SHOWN[s] for s in by_storage)}", hint="give one file, or one kind")
    storage, splits = next(iter(by_storage.items()))
    return make_set(storage, splits, source, classes=classes)


def name_split(path: Path) -> str:
    """Return the split that a file's name tells: train, val, test; else the name without its number."""
    stem = path.name.removesuffix(path.suffix) if path.suffix in SUFFIXES else path.name
    stem = NUMBER.sub("", stem)
    for word in re.split(r"[-_.]", stem.lower()):
        if word.rstrip("0123456789") in SPLITS:
            return SPLITS[word.rstrip("0123456789")]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._") or "train"


def make_set(storage: str, splits: dict[str, list[Path]], source: type[RecordSource], *, classes: bool) -> DataSet:
    """Open record files that nothing describes: what they hold is seen from the records."""
    sources = [source(paths, OPENERS[storage]) for paths in splits.values()]
    parts = [Split(name, one) for name, one in zip(splits, sources, strict=True)]
    if not classes:
        return DataSet("classify", SHOWN[storage], (), parts)
    # Those of detection have a place for boxes instead of a class.
    kind = "detect" if first_answer(sources, lambda one, index: one.glance(index).is_detection) else "classify"
    first = first_answer(sources, read_first_label) if storage == "tfrecord" else None
    return DataSet(kind, SHOWN[storage], name_classes(sources), parts, first_label=first)


def first_answer(sources: Sequence[RecordSource], ask: Callable[[RecordSource, int], Answer]) -> Answer | None:
    """Return what the first record tells that can be read; damaged ones are told when they are read in earnest."""
    for source in sources:
        for index in range(min(len(source), VERIFIED_RECORDS)):
            with contextlib.suppress(DataError):
                return ask(source, index)
    return None


def read_first_label(source: RecordSource, index: int) -> int:
    shard, offset = source.locate(index)
    with contextlib.closing(TFRecordShard(source.paths[shard])) as reader:
        return reader.first_label(reader.features(offset))


def name_classes(sources: Sequence[RecordSource]) -> tuple[ClassName, ...]:
    """Return the classes that records name, by label; one that no record names is called by its number."""
    names: dict[int, ClassName] = {}
    for source in sources:
        for index in range(len(source)):
            try:
                labels = source.glance(index).labels
            except DataError:  # of a record that cannot be read none is of use
                continue
            for label, known in labels:
                if not 0 <= label < MAX_CLASSES:
                    raise DataError(f"{source.where(index)}: label {label} is no class number")
                if label not in names or not names[label].name:
                    names[label] = known
    listed: dict[int, str] = {}  # in a labels.txt beside the records: TF-Slim's `0:daisy`, one a line
    folders = {path.parent for source in sources for path in source.paths}
    files = [path for folder in folders for path in folder.glob("*labels.txt") if path.is_file()]
    if len(files) == 1 and files[0].stat().st_size <= MAX_LABELS_BYTES:
        pairs = [line.split(":", 1) for line in files[0].read_text("utf-8", "replace").splitlines() if ":" in line]
        listed = {int(number): name.strip() for number, name in pairs if number.isdecimal() and len(number) < 8}
    found = [names.get(label, ClassName("")) for label in range(max(names, default=-1) + 1)]
    return tuple(known if known.name else ClassName(listed.get(label, str(label))) for label, known in enumerate(found))


def open_records(files: Mapping[str, Sequence[Path]], manifest: Manifest, source: type[RecordSource]) -> DataSet:
    """Open record files, all or some, that a manifest describes."""
    first = manifest.first_label if manifest.storage == "tfrecord" else None
    opener = partial(OPENERS[manifest.storage], first_label=first)
    splits = [Split(name, source(paths, opener)) for name, paths in files.items()]
    classes = tuple(ClassName(name, text) for name, text in manifest.classes)
    return DataSet(manifest.kind, SHOWN[manifest.storage], classes, splits, manifest.dataset, first)


def without_empty(found: DataSet) -> DataSet:
    """Return a detection set whose training images all have a box."""
    if found.kind != "detect":
        raise ConfigError("--skip-empty is for data sets with boxes")
    kept = [Split(name, keep_boxed(source) if name == "train" else source) for name, source in found.splits]
    return replace(found, splits=kept)


def keep_boxed(source: Source) -> Source:
    """Return the images with at least one box; those that cannot be read stay, for whoever reads them to tell.

    Records are gone through for that, without their images: 10 to 20 s for COCO's 118,287.
    """
    if isinstance(source, CocoSource):
        return source.without_empty()
    read: Callable[[int], Sample | Glance] = source.glance if isinstance(source, RecordSource) else source.read
    numbers = []
    for number in range(len(source)):
        with contextlib.suppress(DataError):
            if not any(clip_box(box) for box in read(number).boxes):
                continue
        numbers.append(number)
    return Selection(source, numbers) if len(numbers) < len(source) else source


def find_files(path: Path) -> DataSet | None:
    """Return images in files: COCO's layout, Tiny-ImageNet's, class folders."""
    if any(path.glob("annotations/*instances*.json")):
        return find_coco(path)
    if (path / "val_annotations.txt").is_file() or (path / "val" / "val_annotations.txt").is_file():
        return find_tiny_imagenet(path)
    entries = [entry for entry in sorted(path.iterdir()) if not entry.name.startswith(".")]
    images = [entry for entry in entries if is_image_file(entry.name)]
    if images and not any(entry.is_dir() for entry in entries):
        return DataSet("classify", "images", (), [Split(path.resolve().name, ImageSource(images))])
    if any(entry.is_dir() for entry in path.iterdir()):
        refuse_parent(path)
        return find_class_folders(path)
    return None


def refuse_parent(path: Path) -> None:
    """Raise DataError where a folder holds whole data sets: they would pass for classes."""
    if any((path / name).is_dir() for name in ("train", "val")):
        return
    folders = [entry for entry in list_some(path) if entry.is_dir()]
    for folder in (*folders, *(inner for entry in folders for inner in list_some(entry) if inner.is_dir())):
        marks = (folder / "manifest.json", folder / "annotations", folder / "train", folder / "val")
        records = (file.suffix in SUFFIXES or SHARD.search(file.name) for file in list_some(folder))
        if any(mark.exists() for mark in marks) or any(records):
            raise DataError(f"{path} is no data set, but holds one in {folder}", hint="give the path of that")


def list_some(folder: Path) -> list[Path]:
    """Return some of what lies in a folder: enough to see what it is, few enough for one of a million images."""
    return sorted(itertools.islice(folder.iterdir(), LOOKED_AT_FILES))
