"""Find data sets whose class labels are folder names: any train/<class>, Tiny-ImageNet, ImageNetV2.

Labels are assigned as in im2rec.py, by sorted folder name; if all folder names are numbers, they are sorted as numbers.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainstone.data.sample import ClassName, DataSet, Edges, Split
from trainstone.data.sources.archives import extract_once
from trainstone.data.sources.listing import (
    FileLocation,
    ListingBuilder,
    is_image_file,
    list_entries,
    open_tree,
    walk_folder,
)
from trainstone.data.storage.box_file import SUFFIX, read_box_file
from trainstone.errors import DataError
from trainstone.text import printable

log = logging.getLogger(__name__)

OTHER_SUFFIXES = (".webp", ".bmp", ".gif", ".tif", ".tiff")
VAL_FOLDERS = ("val", "valid", "validation", "test")
TINY_NAME = "tiny-imagenet-200"
TINY_PIXELS = 64
_PACKED_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_TINY_TRAIN = re.compile(r"train/([^/]+)/(?:images/)?([^/]+)")
_TINY_VAL = re.compile(r"val/(?:([^/]+)/)?(?:images/)?([^/]+)")
_NUMBERED = re.compile(r"(?:(.*)/)?([0-9]{1,9})/([^/]+)", re.ASCII)


def find_class_folders(path: Path) -> DataSet:
    """Find train/<class> and val/<class> (or valid, validation, test), or class folders directly in the path."""
    folders = {folder.name.lower(): folder for folder in _list_folders(path)}
    found = {"train": folders["train"]} if "train" in folders else {}
    for folder in (folders[name] for name in VAL_FOLDERS if name in folders):
        # A folder with only images is a class, or has no labels.
        if any(inner.name != folder.name and not inner.name.startswith(".") for inner in _list_folders(folder)):
            found["val"] = folder
            break
        log.warning("%s: has no class folders; not used for validation", printable(str(folder)))
    builders = {name: _list_class_folders(folder) for name, folder in (found or {"train": path}).items()}
    classes = next(iter(builders.values())).classes  # in folder order
    if all(name.isascii() and name.isdigit() for name in classes):
        classes.sort(key=lambda name: (int(name), name))
    splits = [Split(name, builder.build(classes, _find_boxes(path, name))) for name, builder in builders.items()]
    return DataSet("classify", "class folders", [ClassName(name) for name in classes], splits)


def open_class_folders(path: Path, folders: Mapping[str, str], classes: Sequence[ClassName]) -> DataSet:
    """Open the splits of a prepared data set by folder; classes and splits may be empty."""
    names = [entry.name for entry in classes]
    splits = []
    for name, folder in folders.items():
        builder = _list_class_folders(path / folder, may_be_empty=True)
        splits.append(Split(name, builder.build(names, _find_boxes(path, name))))
    return DataSet("classify", "class folders", classes, splits)


def _find_boxes(path: Path, split: str) -> dict[str, tuple[Edges, ...]]:
    """Return the boxes from the CSV file of a prepared data set."""
    file = path / f"{split}{SUFFIX}"
    return read_box_file(file) if file.is_file() else {}


def find_tiny_imagenet(path: Path) -> DataSet:
    """Find Tiny-ImageNet: the downloaded zip, the extracted folder, or one with val sorted into class folders."""
    tree = open_tree(_find_tiny_imagenet_path(path))
    train, val = ListingBuilder(path), ListingBuilder(path)
    builders = {"train": train, "val": val}
    boxes: dict[str, tuple[Edges, ...]] = {}
    annotations = tree.read_lines("val/val_annotations.txt") or tree.read_lines("val_annotations.txt")
    wnids = {fields[0]: fields[1] for line in annotations if len(fields := line.split("\t")) >= 2}
    for name, location in tree.files.items():
        if not is_image_file(name):
            if name.endswith("_boxes.txt"):
                boxes |= _read_tiny_boxes(tree.read_lines(name), 1)
        elif match := _TINY_TRAIN.fullmatch(name):
            train.add(f"{match[1]}/{match[2]}", match[1], location)
        elif match := _TINY_VAL.fullmatch(name):
            folder, file = match.groups()
            wnid = wnids.get(file) if folder in (None, "images") else folder
            if wnid is None:
                raise DataError(f"val/{printable(file)} of Tiny-ImageNet is not in val_annotations.txt")
            val.add(f"{wnid}/{file}", wnid, location)
    if not train and not val:
        raise DataError(f"{printable(str(path))}: no images of Tiny-ImageNet; expected train/<wnid>/ and val/")
    for name in (name for name, builder in builders.items() if not builder):
        log.warning("%s: no images for %s", printable(str(path)), name)
    classes = sorted((train or val).classes)
    boxes |= _read_tiny_boxes(annotations, 2)
    words = tree.read_lines("words.txt") or tree.read_lines("classes.txt")
    texts = {key: text.strip() for key, _, text in (line.partition("\t") for line in words)}
    return DataSet(
        "classify",
        "Tiny-ImageNet zip" if tree.path.is_file() else "Tiny-ImageNet folders",
        [ClassName(name, texts.get(name, "")) for name in classes],
        [Split(name, builder.build(classes, boxes)) for name, builder in builders.items() if builder],
        name="tiny-imagenet",
    )


def find_imagenetv2(path: Path, *, work: Path) -> DataSet:
    """Find ImageNetV2 in a folder or a tar; a compressed tar is extracted below `work`.

    Folder names are ImageNet's labels: 1000 classes named 0 to 999, some of which may be missing.
    """
    found = path
    if path.is_dir():  # the only ImageNetV2 tar in a folder without subfolders
        tars = sorted(file for file in path.glob("imagenetv2*.tar*") if file.is_file())
        found = tars[0] if len(tars) == 1 and not _list_folders(path) else path
    elif not path.is_file():
        raise DataError(f"{printable(str(path))}: no such file or folder")
    if found.name.lower().endswith(_PACKED_SUFFIXES):
        found = extract_once(found, work)
    builder = ListingBuilder(path)
    parents: set[str] = set()
    for name, location in open_tree(found).files.items():
        match = _NUMBERED.fullmatch(name)
        if match is None or not is_image_file(name):
            continue
        parents.add(match[1] or "")
        if int(match[2]) > 999:
            raise DataError(
                f"{printable(str(path))}: invalid class folder {match[2]} of ImageNetV2; 0 to 999 are allowed"
            )
        builder.add(f"{int(match[2])}/{match[3]}", str(int(match[2])), location)
        if len(parents) > 1:
            names = ", ".join(sorted(parents))
            raise DataError(
                f"{path}: contains several variants of ImageNetV2: {names}", hint="give the path of one of them"
            )
    if not builder:
        raise DataError(f"{printable(str(path))}: no images of ImageNetV2; expected images in folders 0 to 999")
    classes = [str(number) for number in range(1000)]
    storage = "ImageNetV2 tar" if found.is_file() else "ImageNetV2 folders"
    splits = [Split("val", builder.build(classes))]
    return DataSet("classify", storage, [ClassName(name) for name in classes], splits, name="imagenetv2")


def _list_class_folders(root: Path, *, may_be_empty: bool = False) -> ListingBuilder:
    builder = ListingBuilder(root)
    others: list[str] = []
    for folder, path, files in walk_folder(root):
        images = [file for file in files if is_image_file(file)]
        if images and not folder:
            hint = "put each image into the folder of its class"
            raise DataError(f"{root}: {images[0]} is not in a class folder", hint=hint)
        others += [file for file in files if file.lower().endswith(OTHER_SUFFIXES)]
        location = FileLocation(path)
        for file in images:
            builder.add(f"{folder}/{file}", folder, location)
    if others:
        message = "%s: skipped %d files like %s: class folders may have .jpg, .jpeg and .png, as in im2rec"
        log.warning(message, printable(str(root)), len(others), printable(others[0]))
    if not builder and not may_be_empty:
        raise DataError(f"{root}: no images; expected .jpeg, .jpg or .png files in class folders")
    return builder


def _list_folders(path: Path) -> list[Path]:
    return [entry for entry in list_entries(path) if entry.is_dir()]


def _find_tiny_imagenet_path(path: Path) -> Path:
    for candidate in (path, path / TINY_NAME):
        if candidate.is_file() or (candidate / "train").is_dir() or (candidate / "val").is_dir():
            return candidate
    if (path / f"{TINY_NAME}.zip").is_file():
        return path / f"{TINY_NAME}.zip"
    hint = f"give {TINY_NAME}.zip or the folder it extracts to"
    raise DataError(f"{path}: no Tiny-ImageNet; expected train/ and val/, or {TINY_NAME}.zip", hint=hint)


def _read_tiny_boxes(lines: Sequence[str], first: int) -> dict[str, tuple[Edges, ...]]:
    """Parse lines with a file name and, from field `first`, four edges in pixels."""
    boxes: dict[str, tuple[Edges, ...]] = {}
    for line in lines:
        fields = line.split("\t")
        try:
            left, top, right, bottom = (min(max(int(field) / TINY_PIXELS, 0.0), 1.0) for field in fields[first:])
        except ValueError as err:
            raise DataError(f"invalid box of Tiny-ImageNet: '{printable(line[:200])}'") from err
        if left < right and top < bottom:
            boxes[fields[0].rpartition(".")[0]] = ((left, top, right, bottom),)
    return boxes
