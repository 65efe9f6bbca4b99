"""Finds the data sets of `data imagenet`, above all ILSVRC2012 as people have it.

Of that: the published tars, read in place; folders; Kaggle's layout; mixtures. Samples are in the order of im2rec.py's
walk: synsets sorted, names sorted in each. Nothing is extracted or moved.
"""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from trainstone.data.manifest import WORK
from trainstone.data.raw.annotations import (
    NUM_CLASSES,
    SYNSET,
    VAL_PICTURE,
    is_devkit,
    read_boxes,
    read_devkit,
    read_texts,
    read_val_labels,
)
from trainstone.data.raw.archives import list_tar, unpack_once
from trainstone.data.raw.classfolders import find_class_folders, find_imagenetv2, find_tiny_imagenet
from trainstone.data.raw.listing import ListingBuilder, Place, is_picture, list_entries, walk_files
from trainstone.data.sample import ClassName, DataSet, Edges, Split
from trainstone.errors import DataError
from trainstone.units import format_count

log = logging.getLogger(__name__)

TARS = {"train": "ILSVRC2012_img_train.tar", "val": "ILSVRC2012_img_val.tar"}
FOLDERS = {"train": ("train",), "val": ("val", "validation")}
DEVKITS = ("ILSVRC2012_devkit_t12.tar.gz", "ILSVRC2012_devkit_t12")
LABEL_FILES = ("imagenet_2012_validation_synset_labels.txt", "LOC_val_solution.csv", *DEVKITS, "valprep.sh")
TEXT_FILES = ("LOC_synset_mapping.txt", "synset_words.txt", "imagenet_metadata.txt")
BOX_CSV = "imagenet_2012_bounding_boxes.csv"
BOX_FILES = ("Annotation", "Annotations", "bbox", "ILSVRC2012_bbox_train_v2.tar.gz", "ILSVRC2012_bbox_val_v3.tgz")
KAGGLE_FOLDERS = ("ILSVRC/Data/CLS-LOC", "Data/CLS-LOC")
# A folder with more folders than this holds classes, not parts of a data set.
MAX_PARTS = 64


class Picture(NamedTuple):
    """A picture met in a folder or tar; the synset is None where no folder or tar is named for it."""

    file: str
    synset: str | None
    place: Place


def find_raw(
    dataset: str, source: Path, target: Path, *, val_labels: Path | None = None, boxes: Path | None = None
) -> DataSet:
    """Find a raw data set; what must be extracted first goes into the target's work folder."""
    if not source.exists():
        raise DataError(f"no such folder: {source}")
    work = target / WORK / "extracted"
    if dataset == "tiny-imagenet":
        return find_tiny_imagenet(source)
    if dataset == "imagenetv2":
        return find_imagenetv2(source, work=work)
    if dataset == "folder":
        return find_class_folders(source)
    found = find_imagenet(source, val_labels=val_labels, boxes=boxes, work=work)
    if len(found.classes) != NUM_CLASSES:
        told = "%s has %d classes, ImageNet 1,000; other sets have a --dataset of their own"
        log.warning(told, source, len(found.classes))
    return found


def find_imagenet(path: Path, *, val_labels: Path | None = None, boxes: Path | None = None, work: Path) -> DataSet:
    """Find train and val by their known names in a folder, its subfolders and Kaggle's.

    Tars win over folders, `val_labels` and `boxes` over what is found. Only a tar that somebody compressed is
    extracted, below `work`. Where only one of train and val is there, it is taken.
    """
    path = path.parent if path.is_file() else path
    shelves = _find_shelves(path)
    builders = {split: builder for split in TARS if (builder := _gather(path, shelves, split, val_labels, work))}
    if not builders:
        missing = f"no ImageNet; looked for {', '.join(TARS.values())}, train/<synset>/ and val/"
        raise DataError(f"{path}: {missing}", hint="give the folder that holds them")
    for split in TARS.keys() - builders.keys():
        log.warning("%s: no pictures for %s; looked for %s and %s/", path, split, TARS[split], FOLDERS[split][0])
    classes = sorted(builders[next(iter(builders))].classes)
    found_boxes = _find_boxes(shelves, boxes, classes)
    splits = []
    for split, builder in builders.items():
        listing = builder.finish(classes, found_boxes, skip_other_classes=split == "val")
        if len(listing) < len(builder):
            num_dropped, others = len(builder) - len(listing), sorted(set(builder.classes) - set(classes))
            told = "%s: val: %s of classes that train lacks are dropped (%s ...)"
            log.warning(told, path, format_count(num_dropped, "image"), others[0])
        splits.append(Split(split, listing))
    texts = _find_texts(shelves)
    tars = any(_find(shelves, TARS[split], f"{TARS[split]}.gz") for split in builders)
    return DataSet(
        "classify",
        "ILSVRC2012 tars" if tars else "ILSVRC2012 folders",
        [ClassName(name, texts.get(name, "")) for name in classes],
        splits,
        name="imagenet",
    )


def _find_shelves(path: Path) -> list[dict[str, Path]]:
    """Return what lies in the folders to look in, by names in lower case."""
    inner = [folder for folder in _list(path).values() if folder.is_dir() and not SYNSET.fullmatch(folder.name)]
    parts = {name for names in FOLDERS.values() for name in names}
    folders = [path, *(path / name for name in KAGGLE_FOLDERS if (path / name).is_dir())]
    if len(inner) <= MAX_PARTS:
        folders += [folder for folder in inner if folder.name.lower() not in parts]
    return [_list(folder) for folder in folders]


def _list(folder: Path) -> dict[str, Path]:
    return {file.name.lower(): file for file in reversed(list_entries(folder))}


def _find(shelves: Sequence[dict[str, Path]], *names: str) -> Path | None:
    """Return the first name that is there, in capital letters or small ones."""
    return next((shelf[name.lower()] for name in names for shelf in shelves if name.lower() in shelf), None)


def _gather(
    path: Path, shelves: Sequence[dict[str, Path]], split: str, val_labels: Path | None, work: Path
) -> ListingBuilder | None:
    """List the pictures of a split; None where there are none."""
    found = _find(shelves, TARS[split], f"{TARS[split]}.gz", *FOLDERS[split])
    if found is None and split == "train" and any(SYNSET.match(name) for name in shelves[0]):
        found = path
    if found is None:
        return None
    if found.suffix == ".gz":
        found = unpack_once(found, work)
    builder = ListingBuilder(found)
    flat: list[Picture] = []
    num_strays = 0
    for picture in _list_images(found):
        if picture.synset is not None:
            builder.add(f"{picture.synset}/{picture.file}", picture.synset, picture.place)
        elif split == "val" and VAL_PICTURE.match(picture.file):
            flat.append(picture)
        else:
            num_strays += 1
    if num_strays:
        log.warning("%s: %s in no synset's folder left out", found, format_count(num_strays, "picture"))
    if flat:
        _add_flat(builder, found, flat, val_labels or _find(shelves, *LABEL_FILES))
    return builder or None


def _list_images(path: Path) -> Iterator[Picture]:
    """Yield the images of a folder or a tar, and those in tars of synsets in it."""
    for name, place in walk_files(path):
        parent, _, file = name.rpartition("/")
        if place.offset < 0 and parent and not _synset_of(parent):
            continue  # a folder of something else, such as a backup
        if file.lower().endswith(".tar"):
            inner = (place.container, place.offset, place.size) if place.offset >= 0 else (place.container / file,)
            for member in list_tar(*inner):
                folder, _, image = member.name.rpartition("/")
                if is_picture(image):
                    synset = _synset_of(file) or _synset_of(folder.rpartition("/")[2])
                    yield Picture(image, synset, Place(inner[0], member.offset, member.size))
        elif is_picture(file):
            yield Picture(file, _synset_of(path.name) or _synset_of(parent.rpartition("/")[2]), place)


def _synset_of(name: str) -> str | None:
    stem = name.lower().removesuffix(".tar")
    return stem if SYNSET.fullmatch(stem) else None


def _add_flat(builder: ListingBuilder, where: Path, flat: Sequence[Picture], labels_path: Path | None) -> None:
    """Add validation pictures as published, in no folders; a picture's number says its label."""
    if labels_path is None:
        missing = f"validation images are in no class folders, and none of {', '.join(LABEL_FILES)} was found"
        raise DataError(f"{where}: {missing}", hint="put ILSVRC2012_devkit_t12.tar.gz beside it")
    labels = read_val_labels(labels_path)
    for picture in flat:
        match = VAL_PICTURE.match(picture.file)
        synset = labels.get(int(match[1])) if match else None
        if synset is None:
            hint = "these labels are of another set of images; ImageNet has 50,000 of both"
            raise DataError(f"{labels_path}: has {len(labels):,} labels, and none for {picture.file}", hint=hint)
        builder.add(f"{synset}/{picture.file}", synset, picture.place)
    if len(builder) < len(labels):
        log.warning("%s: %d of %d validation pictures are there", where, len(builder), len(labels))


def _find_boxes(
    shelves: Sequence[dict[str, Path]], given: Path | None, classes: Sequence[str]
) -> dict[str, tuple[Edges, ...]]:
    """Read the boxes of all sources; a CSV that holds any is the whole of them."""
    if given is not None:
        return read_boxes(given, classes)
    table = _find(shelves, BOX_CSV)
    boxes = read_boxes(table, classes) if table else {}
    for name in () if boxes else BOX_FILES:
        found = _find(shelves, name)
        if found is not None:
            boxes |= read_boxes(found, classes)
    return boxes


def _find_texts(shelves: Sequence[dict[str, Path]]) -> dict[str, str]:
    path = _find(shelves, *TEXT_FILES)
    if path is not None:
        return read_texts(path)
    devkit = _find(shelves, *DEVKITS)
    return read_devkit(devkit).texts if devkit is not None and is_devkit(devkit) else {}
