"""Find the data sets of `data imagenet`: ILSVRC2012 in its common layouts, Tiny-ImageNet, ImageNetV2, class folders.

ILSVRC2012 may be the published tars (read in place), folders, Kaggle's layout, or a mixture. Samples are in the order
of im2rec.py: sorted by synset, then by name. Nothing is extracted or moved.
Labels of validation images, class names and bounding boxes are read from the published files. Boxes are XML, read by
the rules of TensorFlow's process_bounding_boxes.py, or the CSV that it writes; they are found by an image's file name
without extension, such as n01440764_10026.
"""

import csv
import io
import logging
import math
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from trainstone.data.manifest import WORK
from trainstone.data.sample import ClassName, DataSet, Edges, Split
from trainstone.data.sources.archives import extract_once, list_tar, read_tar
from trainstone.data.sources.class_folders import find_class_folders, find_imagenetv2, find_tiny_imagenet
from trainstone.data.sources.listing import FileLocation, ListingBuilder, is_image_file, list_entries, walk_files
from trainstone.data.storage.box_file import read_box_file
from trainstone.errors import DataError
from trainstone.formats.files import damaged_line, read_lines
from trainstone.formats.mat5 import read_mat
from trainstone.text import printable
from trainstone.units import format_count

log = logging.getLogger(__name__)

NUM_CLASSES = 1000
TARS = {"train": "ILSVRC2012_img_train.tar", "val": "ILSVRC2012_img_val.tar"}
FOLDERS = {"train": ("train",), "val": ("val", "validation")}
DEVKITS = ("ILSVRC2012_devkit_t12.tar.gz", "ILSVRC2012_devkit_t12")
META_FILE = "meta.mat"
TRUTH_FILE = "ILSVRC2012_validation_ground_truth.txt"
LABEL_FILES = ("imagenet_2012_validation_synset_labels.txt", "LOC_val_solution.csv", *DEVKITS, "valprep.sh")
TEXT_FILES = ("LOC_synset_mapping.txt", "synset_words.txt", "imagenet_metadata.txt")
BOX_CSV = "imagenet_2012_bounding_boxes.csv"
BOX_FILES = ("Annotation", "Annotations", "bbox", "ILSVRC2012_bbox_train_v2.tar.gz", "ILSVRC2012_bbox_val_v3.tgz")
KAGGLE_FOLDERS = ("ILSVRC/Data/CLS-LOC", "Data/CLS-LOC")
# A folder with more subfolders than this has class folders, not parts of a data set.
MAX_PARTS = 64
MAX_XML_BYTES = 2**20
SYNSET = re.compile(r"n\d{8}", re.ASCII)
VAL_IMAGE = re.compile(r"ILSVRC2012_val_(\d{8})", re.ASCII)
_MOVE = re.compile(r"\bmv\s+\S*ILSVRC2012_val_(\d{8})\S*\s+\S*?(n\d{8})", re.ASCII)
_TEXT_LINE = re.compile(r"(n\d{8})[ \t]+(.*)", re.ASCII)
_PACKED_NAMES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_ALLOWED = (
    "allowed are ILSVRC2012_devkit_t12.tar.gz, one synset per line in the order of the images, "
    "Kaggle's LOC_val_solution.csv, and valprep.sh"
)


def find_raw_data_set(
    dataset: str, source: Path, target: Path, *, val_labels: Path | None = None, boxes: Path | None = None
) -> DataSet:
    """Find a raw data set; compressed archives are extracted into the target's work folder."""
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
        message = "%s has %d classes, ImageNet has 1,000; select another data set with --dataset"
        log.warning(message, source, len(found.classes))
    return found


def find_imagenet(path: Path, *, val_labels: Path | None = None, boxes: Path | None = None, work: Path) -> DataSet:
    """Find train and val by their known names in a folder, its subfolders and Kaggle's folders.

    Tars have priority over folders, and `val_labels` and `boxes` over files that are found. Only compressed tars are
    extracted, below `work`. One of train and val is enough.
    """
    path = path.parent if path.is_file() else path
    inner = [folder for folder in _list_by_name(path).values() if folder.is_dir() and not SYNSET.fullmatch(folder.name)]
    parts = {name for names in FOLDERS.values() for name in names}
    folders = [path, *(path / name for name in KAGGLE_FOLDERS if (path / name).is_dir())]
    if len(inner) <= MAX_PARTS:
        folders += [folder for folder in inner if folder.name.lower() not in parts]
    listings = [_list_by_name(folder) for folder in folders]
    builders = {split: builder for split in TARS if (builder := _list_split(path, listings, split, val_labels, work))}
    if not builders:
        missing = f"no ImageNet; looked for {', '.join(TARS.values())}, train/<synset>/ and val/"
        raise DataError(f"{path}: {missing}", hint="give the folder that contains them")
    for split in TARS.keys() - builders.keys():
        log.warning("%s: no images for %s; looked for %s and %s/", path, split, TARS[split], FOLDERS[split][0])
    classes = sorted(builders[next(iter(builders))].classes)
    found_boxes = _find_boxes(listings, boxes, classes)
    splits = []
    for split, builder in builders.items():
        listing = builder.build(classes, found_boxes, skip_other_classes=split == "val")
        if len(listing) < len(builder):
            num_dropped, others = len(builder) - len(listing), sorted(set(builder.classes) - set(classes))
            message = "%s: val: skipped %s of classes that are not in train (%s ...)"
            log.warning(message, path, format_count(num_dropped, "image"), others[0])
        splits.append(Split(split, listing))
    texts: dict[str, str] = {}
    if listed := _find_first(listings, *TEXT_FILES):
        texts = {match[1]: match[2].strip() for _, line in read_lines(listed) if (match := _TEXT_LINE.fullmatch(line))}
    elif (devkit := _find_first(listings, *DEVKITS)) and is_devkit(devkit):
        _, texts = read_devkit(devkit)
    tars = any(_find_first(listings, TARS[split], f"{TARS[split]}.gz") for split in builders)
    return DataSet(
        "classify",
        "ILSVRC2012 tars" if tars else "ILSVRC2012 folders",
        [ClassName(name, texts.get(name, "")) for name in classes],
        splits,
        name="imagenet",
    )


def _list_by_name(folder: Path) -> dict[str, Path]:
    """Return the entries of a folder by lower-case name."""
    return {file.name.lower(): file for file in reversed(list_entries(folder))}


def _find_first(listings: Sequence[dict[str, Path]], *names: str) -> Path | None:
    """Return the path of the first name that exists, ignoring case."""
    return next((listing[name.lower()] for name in names for listing in listings if name.lower() in listing), None)


def _list_split(
    path: Path, listings: Sequence[dict[str, Path]], split: str, val_labels: Path | None, work: Path
) -> ListingBuilder | None:
    """List the images of a split; None if there are none."""
    found = _find_first(listings, TARS[split], f"{TARS[split]}.gz", *FOLDERS[split])
    if found is None and split == "train" and any(SYNSET.match(name) for name in listings[0]):
        found = path
    if found is None:
        return None
    if found.suffix == ".gz":
        found = extract_once(found, work)
    builder = ListingBuilder(found)
    flat: list[tuple[int, str, FileLocation]] = []
    num_outside = 0
    for file, synset, location in _list_images(found):
        if synset is not None:
            builder.add(f"{synset}/{file}", synset, location)
        elif split == "val" and (match := VAL_IMAGE.match(file)):
            flat.append((int(match[1]), file, location))
        else:
            num_outside += 1
    if num_outside:
        log.warning("%s: skipped %s outside synset folders", found, format_count(num_outside, "image"))
    if flat:
        _add_flat_val_images(builder, found, flat, val_labels or _find_first(listings, *LABEL_FILES))
    return builder or None


def _list_images(path: Path) -> Iterator[tuple[str, str | None, FileLocation]]:
    """Yield file name, synset and location of the images in a folder or tar, and in synset tars inside it.

    The synset is None if no folder or tar name contains it.
    """
    for name, location in walk_files(path):
        parent, _, file = name.rpartition("/")
        if location.offset < 0 and parent and not _synset_of(parent):
            continue  # an unrelated folder, such as a backup
        if file.lower().endswith(".tar"):
            inner = (
                (location.container, location.offset, location.size)
                if location.offset >= 0
                else (location.container / file,)
            )
            for inner_name, offset, size in list_tar(*inner):
                folder, _, image = inner_name.rpartition("/")
                if is_image_file(image):
                    synset = _synset_of(file) or _synset_of(folder.rpartition("/")[2])
                    yield image, synset, FileLocation(inner[0], offset, size)
        elif is_image_file(file):
            yield file, _synset_of(path.name) or _synset_of(parent.rpartition("/")[2]), location


def _synset_of(name: str) -> str | None:
    stem = name.lower().removesuffix(".tar")
    return stem if SYNSET.fullmatch(stem) else None


def _add_flat_val_images(
    builder: ListingBuilder, where: Path, flat: Sequence[tuple[int, str, FileLocation]], labels_path: Path | None
) -> None:
    """Add validation images that are not in class folders, as published; the number in the name gives the label."""
    if labels_path is None:
        missing = f"validation images are not in class folders, and none of {', '.join(LABEL_FILES)} was found"
        raise DataError(f"{where}: {missing}", hint="put ILSVRC2012_devkit_t12.tar.gz into the same folder")
    labels = read_val_labels(labels_path)
    for number, file, location in flat:
        if number not in labels:
            hint = "these labels belong to other images; ImageNet has 50,000 validation images and labels"
            raise DataError(f"{labels_path}: no label for {file} among {len(labels):,} labels", hint=hint)
        builder.add(f"{labels[number]}/{file}", labels[number], location)
    if len(builder) < len(labels):
        log.warning("%s: found %d of %d validation images", where, len(builder), len(labels))


def read_val_labels(path: Path) -> dict[int, str]:
    """Return the synset of each validation image by the number in its name, from any of the published formats."""
    if is_devkit(path):
        labels, _ = read_devkit(path)
        return labels
    lines = list(read_lines(path))
    if not lines:
        raise DataError(f"{printable(str(path))}: empty file; expected labels of ImageNet's validation images")
    if lines[0][1].lower().startswith("imageid,"):
        labels = {}
        for number, line in lines[1:]:
            fields = next(csv.reader([line]), [])
            image = VAL_IMAGE.fullmatch(fields[0].strip()) if len(fields) == 2 else None
            synset = SYNSET.match(fields[1].strip()) if len(fields) == 2 else None
            if image is None or synset is None:
                raise damaged_line(path, number, "expected ILSVRC2012_val_<number>,<synset> <box>")
            labels[int(image[1])] = synset[0]
        return labels
    moves = {int(match[1]): match[2] for _, text in lines if (match := _MOVE.search(text))}
    if moves:
        return moves
    for number, text in lines:
        if not SYNSET.fullmatch(text.strip()):
            raise damaged_line(path, number, f"invalid synset '{printable(text[:100])}'; {_ALLOWED}")
    return {number: text.strip() for number, (_, text) in enumerate(lines, 1)}


def is_devkit(path: Path) -> bool:
    return path.is_dir() or path.name.lower().endswith(_PACKED_NAMES)


def read_devkit(path: Path) -> tuple[dict[int, str], dict[str, str]]:
    """Read the development kit from its tar, its extracted folder or that folder's subfolder data.

    Returns the synset of each validation image, by its number from 1, and the class name of each synset.
    """
    names = (META_FILE, TRUTH_FILE)
    if path.is_dir():
        folder = path / "data" if (path / "data").is_dir() else path
        found = {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}
    else:
        found = {name.rpartition("/")[2]: content for name, content in read_tar(path) if name.endswith(names)}
    missing = [name for name in names if name not in found]
    if missing:
        raise DataError(
            f"{printable(str(path))}: not an ILSVRC2012 devkit; {' and '.join(missing)} not found",
            hint="give ILSVRC2012_devkit_t12.tar.gz",
        )
    where = f"{printable(str(path))}, {META_FILE}"
    entries = read_mat(found[META_FILE], where).get("synsets")
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{where}: no struct array 'synsets'")
    synsets: dict[int, str] = {}
    texts: dict[str, str] = {}
    for number, entry in enumerate(entries):
        try:
            synset_id, synset = int(entry["ILSVRC2012_ID"].item()), str(SYNSET.fullmatch(entry["WNID"])[0])  # type: ignore[index]
        except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as err:
            raise DataError(f"{where}: entry {number} of synsets has no ILSVRC2012_ID and WNID") from err
        if 0 < synset_id <= NUM_CLASSES:  # higher ids are groups of classes
            synsets[synset_id] = synset
            words = entry.get("words")
            texts[synset] = printable(words) if isinstance(words, str) else ""
    labels = {}
    for number, text in enumerate(found[TRUTH_FILE].decode("ascii", errors="replace").split(), 1):
        label = synsets.get(int(text)) if text.isascii() and text.isdigit() and len(text) < 9 else None
        if label is None:
            raise DataError(
                f"{printable(str(path))}, {TRUTH_FILE}, line {number}: invalid class '{printable(text[:20])}'; "
                f"1 to {NUM_CLASSES} are allowed, {len(synsets)} of them are in {META_FILE}"
            )
        labels[number] = label
    return labels, texts


def _find_boxes(
    listings: Sequence[dict[str, Path]], given: Path | None, classes: Sequence[str]
) -> dict[str, tuple[Edges, ...]]:
    """Read the boxes of all sources; if the CSV has boxes, only the CSV is used."""
    if given is not None:
        return read_boxes(given, classes)
    table = _find_first(listings, BOX_CSV)
    boxes = read_boxes(table, classes) if table else {}
    for name in () if boxes else BOX_FILES:
        found = _find_first(listings, name)
        if found is not None:
            boxes |= read_boxes(found, classes)
    return boxes


def read_boxes(path: Path, synsets: Collection[str]) -> dict[str, tuple[Edges, ...]]:
    """Return boxes by image from a CSV, a folder of XML files, or a tar of it, which may contain tars.

    XML in the folder of another synset is skipped without reading; outside synset folders (val/) all are read.
    """
    if path.is_file() and path.suffix.lower() == ".csv":
        return {name.rpartition("/")[2]: boxes for name, boxes in read_box_file(path).items()}
    known = frozenset(synsets)
    found: dict[str, tuple[Edges, ...]] = {}
    for where, name, content in _list_xml(path, known):
        folder, _, file = name.rpartition("/")
        if boxes := read_box_xml(content, _nearest_synset(folder), known, where=where):
            found[file.removesuffix(".xml")] = tuple(boxes)
    log.info("%s: boxes for %d images", path, len(found))
    return found


def _list_xml(path: Path, known: Collection[str]) -> Iterator[tuple[str, str, bytes]]:
    """Yield a location for messages, the relative name and the content of each XML file to read."""

    def is_wanted(name: str) -> bool:
        folder, _, file = name.rpartition("/")
        synset = _nearest_synset(folder) if file.endswith(".xml") else _nearest_synset(file.split(".")[0])
        return not file.startswith(".") and (synset is None or synset in known)

    if path.is_dir():
        for file in sorted(path.rglob("*.xml")):
            name = file.relative_to(path.parent).as_posix()
            if is_wanted(name) and file.is_file():
                try:
                    content = file.read_bytes()
                except OSError as err:
                    raise DataError(f"{file}: cannot be read: {err.strerror}") from err
                yield str(file), name, content
        return
    for name, content in read_tar(path):
        archive, entries = path, iter([(name, content)])
        if name.lower().endswith(_PACKED_NAMES) and is_wanted(name):
            archive = Path(f"{path}, {name}")
            entries = read_tar(archive, io.BytesIO(content))
        for inner_name, data in entries:
            if inner_name.endswith(".xml") and is_wanted(inner_name):
                yield printable(f"{archive}, {inner_name}"), inner_name, data


def _nearest_synset(folder: str) -> str | None:
    """Return the synset in the last part of a folder's path that is one, or None."""
    return next((part for part in reversed(folder.split("/")) if SYNSET.fullmatch(part)), None)


def read_box_xml(content: bytes, synset: str | None, known_synsets: Collection[str], *, where: str) -> list[Edges]:
    """Return the boxes of one XML file as shares of its stated image size, rounded to four decimals.

    Edges are sorted and clipped to the image; boxes without area are skipped. A file labelled with another known synset
    is skipped too; any other label is accepted, because many dogs are labelled with words. Without a synset labels are
    ignored. XML with a document type is rejected, because its entities may expand without limit or name files.
    """
    if len(content) > MAX_XML_BYTES:
        raise DataError(f"{where}: file too large: {len(content):,} bytes; at most {MAX_XML_BYTES:,} are allowed")
    try:
        text = content.decode("utf-8-sig")
        if "<!DOCTYPE" in text or "<!ENTITY" in text:
            raise DataError(f"{where}: document types and entities are not allowed")
        if "\0" in text:  # The parser could read it as UTF-16, which the check above does not cover.
            raise DataError(f"{where}: invalid XML: it has zero bytes")
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, UnicodeError, ValueError) as err:
        raise DataError(f"{where}: invalid XML: {err}", hint="download the annotations again") from err
    width, height = _read_number(root, "size/width", where), _read_number(root, "size/height", where)
    if width <= 0 or height <= 0:
        raise DataError(f"{where}: invalid image size: {width:g} x {height:g} pixels")
    # The first label applies to all boxes of the file, as in the original, whose published totals depend on it.
    label = next((name.text for name in root.iter("name")), None)
    if synset and label != synset and label in known_synsets:
        return []
    boxes: list[Edges] = []
    for box in root.iter("bndbox"):
        shares = [_read_number(box, tag, where) / width for tag in ("xmin", "xmax")]
        shares += [_read_number(box, tag, where) / height for tag in ("ymin", "ymax")]
        left, right, top, bottom = (min(max(share, 0.0), 1.0) for share in (*sorted(shares[:2]), *sorted(shares[2:])))
        if left < right and top < bottom:
            boxes.append((round(left, 4), round(top, 4), round(right, 4), round(bottom, 4)))
    return boxes


def _read_number(element: ElementTree.Element, tag: str, where: str) -> float:
    text = element.findtext(tag)
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{where}: invalid {tag}: {printable(repr(text))}; a finite number is required")
    return value
