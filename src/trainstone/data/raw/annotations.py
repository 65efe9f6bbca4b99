"""Reads what is published beside ImageNet's pictures: labels of validation pictures, names of classes, bounding boxes.

Boxes are XML, read by the rules of TensorFlow's process_bounding_boxes.py, or the CSV it writes; they are found by a
picture's file name without extension, such as n01440764_10026.
"""

import csv
import io
import logging
import math
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from trainstone.data.raw.archives import read_tar
from trainstone.data.sample import Edges
from trainstone.data.storage.boxfile import read_box_file
from trainstone.errors import DataError
from trainstone.formats.files import damaged_line, read_lines
from trainstone.formats.mat5 import read_mat
from trainstone.text import printable

log = logging.getLogger(__name__)

NUM_CLASSES = 1000
META_FILE = "meta.mat"
TRUTH_FILE = "ILSVRC2012_validation_ground_truth.txt"
SYNSET = re.compile(r"n\d{8}", re.ASCII)
VAL_PICTURE = re.compile(r"ILSVRC2012_val_(\d{8})", re.ASCII)
MAX_XML_BYTES = 2**20
_MOVE = re.compile(r"\bmv\s+\S*ILSVRC2012_val_(\d{8})\S*\s+\S*?(n\d{8})", re.ASCII)
_TEXT_LINE = re.compile(r"(n\d{8})[ \t]+(.*)", re.ASCII)
_PACKED_NAMES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_ALLOWED = (
    "allowed are ILSVRC2012_devkit_t12.tar.gz, a synset on each line in the order of the pictures, "
    "Kaggle's LOC_val_solution.csv, and valprep.sh"
)


class Devkit(NamedTuple):
    labels: dict[int, str]
    """Synset of each validation picture, by its number from 1."""
    texts: dict[str, str]


def read_val_labels(path: Path) -> dict[int, str]:
    """Return the synset of each validation picture by the number in its name, from any of the published forms."""
    if is_devkit(path):
        return read_devkit(path).labels
    lines = list(read_lines(path))
    if not lines:
        raise DataError(f"{printable(str(path))}: empty, labels of ImageNet's validation pictures were expected")
    if lines[0][1].lower().startswith("imageid,"):
        return _read_solution(path, lines[1:])
    moves = {int(match[1]): match[2] for _, text in lines if (match := _MOVE.search(text))}
    if moves:
        return moves
    for number, text in lines:
        if not SYNSET.fullmatch(text.strip()):
            raise damaged_line(path, number, f"'{printable(text[:100])}' is no synset; {_ALLOWED}")
    return {number: text.strip() for number, (_, text) in enumerate(lines, 1)}


def is_devkit(path: Path) -> bool:
    return path.is_dir() or path.name.lower().endswith(_PACKED_NAMES)


def read_devkit(path: Path) -> Devkit:
    """Read the development kit's tar, or the folder it extracts to, or its folder data."""
    names = (META_FILE, TRUTH_FILE)
    if path.is_dir():
        folder = path / "data" if (path / "data").is_dir() else path
        found = {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}
    else:
        found = {name.rpartition("/")[2]: content for name, content in read_tar(path) if name.endswith(names)}
    missing = [name for name in names if name not in found]
    if missing:
        raise DataError(
            f"{printable(str(path))}: not an ILSVRC2012 devkit, {' and '.join(missing)} not found",
            hint="give ILSVRC2012_devkit_t12.tar.gz",
        )
    synsets, texts = _read_meta(found[META_FILE], path)
    labels = {}
    for number, text in enumerate(found[TRUTH_FILE].decode("ascii", errors="replace").split(), 1):
        synset = synsets.get(int(text)) if text.isascii() and text.isdigit() and len(text) < 9 else None
        if synset is None:
            raise DataError(
                f"{printable(str(path))}, {TRUTH_FILE}, line {number}: '{printable(text[:20])}' is no class; "
                f"1 to {NUM_CLASSES} are, and {len(synsets)} of them are in {META_FILE}"
            )
        labels[number] = synset
    return Devkit(labels, texts)


def read_texts(path: Path) -> dict[str, str]:
    return {match[1]: match[2].strip() for _, line in read_lines(path) if (match := _TEXT_LINE.fullmatch(line))}


def _read_meta(data: bytes, path: Path) -> tuple[dict[int, str], dict[str, str]]:
    """Return synsets by ILSVRC2012_ID, 1 to 1000, and their words; higher numbers are groups of classes."""
    where = f"{printable(str(path))}, {META_FILE}"
    synsets = read_mat(data, where).get("synsets")
    if not isinstance(synsets, list) or not synsets:
        raise DataError(f"{where}: holds no struct array 'synsets'")
    ids: dict[int, str] = {}
    texts: dict[str, str] = {}
    for number, entry in enumerate(synsets):
        try:
            synset_id, synset = int(entry["ILSVRC2012_ID"].item()), str(SYNSET.fullmatch(entry["WNID"])[0])  # type: ignore[index]
        except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as err:
            raise DataError(f"{where}: entry {number} of synsets has no ILSVRC2012_ID and WNID") from err
        if 0 < synset_id <= NUM_CLASSES:
            ids[synset_id] = synset
            words = entry.get("words")
            texts[synset] = printable(words) if isinstance(words, str) else ""
    return ids, texts


def _read_solution(path: Path, lines: Sequence[tuple[int, str]]) -> dict[int, str]:
    labels = {}
    for number, line in lines:
        fields = next(csv.reader([line]), [])
        picture = VAL_PICTURE.fullmatch(fields[0].strip()) if len(fields) == 2 else None
        synset = SYNSET.match(fields[1].strip()) if len(fields) == 2 else None
        if picture is None or synset is None:
            raise damaged_line(path, number, "ILSVRC2012_val_<number>,<synset> <box> was expected")
        labels[int(picture[1])] = synset[0]
    return labels


def read_boxes(path: Path, synsets: Collection[str]) -> dict[str, tuple[Edges, ...]]:
    """Return boxes by picture, from a folder of XML files, a tar of it (tars in it, too), or a CSV.

    XML below the folder of another synset is skipped unread; below none (val/), all labels are taken.
    """
    if path.is_file() and path.suffix.lower() == ".csv":
        return {name.rpartition("/")[2]: boxes for name, boxes in read_box_file(path).items()}
    known = frozenset(synsets)
    found: dict[str, tuple[Edges, ...]] = {}
    for where, name, content in _list_xml(path, known):
        folder, _, file = name.rpartition("/")
        if boxes := read_box_xml(content, _synset_of(folder), known, where=where):
            found[file.removesuffix(".xml")] = tuple(boxes)
    log.info("%s: boxes for %d pictures", path, len(found))
    return found


def read_box_xml(content: bytes, synset: str | None, known_synsets: Collection[str], *, where: str) -> list[Edges]:
    """Return the boxes of one file as shares of the size it states, rounded to four decimals.

    Edges are put in order and cut at the picture's, boxes without area skipped. So is a file labelled with another
    known synset; any other label is taken for the synset's, as many dogs are labelled in words. Without a synset
    labels are not looked at.
    """
    root = _parse_xml(content, where)
    width, height = _number(root, "size/width", where), _number(root, "size/height", where)
    if width <= 0 or height <= 0:
        raise DataError(f"{where}: states a picture of {width:g} x {height:g} pixels")
    # The first label counts for all boxes of the file, as in the original: its published totals come from that.
    label = next((name.text for name in root.iter("name")), None)
    if synset and label != synset and label in known_synsets:
        return []
    boxes: list[Edges] = []
    for box in root.iter("bndbox"):
        shares = [_number(box, tag, where) / width for tag in ("xmin", "xmax")]
        shares += [_number(box, tag, where) / height for tag in ("ymin", "ymax")]
        left, right, top, bottom = (min(max(share, 0.0), 1.0) for share in (*sorted(shares[:2]), *sorted(shares[2:])))
        if left < right and top < bottom:
            boxes.append((round(left, 4), round(top, 4), round(right, 4), round(bottom, 4)))
    return boxes


def _parse_xml(content: bytes, where: str) -> ElementTree.Element:
    """Parse XML that defines nothing: no document type, so no entities that grow or name files."""
    if len(content) > MAX_XML_BYTES:
        raise DataError(f"{where}: {len(content):,} bytes, boxes of a picture take at most {MAX_XML_BYTES:,}")
    try:
        text = content.decode("utf-8-sig")
        if "<!DOCTYPE" in text or "<!ENTITY" in text:
            raise DataError(f"{where}: has a document type or entities, which are not read")
        if "\0" in text:  # The parser would take it for UTF-16, in which the above looks different.
            raise DataError(f"{where}: damaged XML: it has zero bytes")
        return ElementTree.fromstring(text)
    except (ElementTree.ParseError, UnicodeError, ValueError) as err:
        raise DataError(f"{where}: damaged XML: {err}", hint="get the annotations again") from err


def _number(element: ElementTree.Element, tag: str, where: str) -> float:
    text = element.findtext(tag)
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{where}: {tag} is {printable(repr(text))}, a number was expected")
    return value


def _synset_of(folder: str) -> str | None:
    """Return the synset a folder is named for, or the nearest parent that is."""
    return next((part for part in reversed(folder.split("/")) if SYNSET.fullmatch(part)), None)


def _list_xml(path: Path, known: Collection[str]) -> Iterator[tuple[str, str, bytes]]:
    """Yield what to call it, relative name and content of each XML file that is of use."""
    if path.is_dir():
        for file in sorted(path.rglob("*.xml")):
            name = file.relative_to(path.parent).as_posix()
            if _is_wanted(name, known) and file.is_file():
                try:
                    content = file.read_bytes()
                except OSError as err:
                    raise DataError(f"{file}: cannot be read: {err.strerror}") from err
                yield str(file), name, content
        return
    for name, content in read_tar(path):
        archive, entries = path, iter([(name, content)])
        if name.lower().endswith(_PACKED_NAMES) and _is_wanted(name, known):
            archive = Path(f"{path}, {name}")
            entries = read_tar(archive, io.BytesIO(content))
        for inner_name, data in entries:
            if inner_name.endswith(".xml") and _is_wanted(inner_name, known):
                yield printable(f"{archive}, {inner_name}"), inner_name, data


def _is_wanted(name: str, known: Collection[str]) -> bool:
    folder, _, file = name.rpartition("/")
    synset = _synset_of(folder) if file.endswith(".xml") else _synset_of(file.split(".")[0])
    return not file.startswith(".") and (synset is None or synset in known)
