"""Reads ImageNet's bounding boxes: XML by the rules of TensorFlow's process_bounding_boxes.py, or the CSV it writes.

Boxes are found by a picture's file name without extension, such as n01440764_10026.
"""

import io
import logging
import math
from collections.abc import Collection, Iterator
from pathlib import Path
from xml.etree import ElementTree

from trainstone.data.raw.archives import read_tar
from trainstone.data.raw.synsets import SYNSET
from trainstone.data.sample import Edges
from trainstone.data.storage.boxfile import read_box_file
from trainstone.errors import DataError
from trainstone.text import printable

log = logging.getLogger(__name__)

MAX_XML_BYTES = 2**20
_PACKED_NAMES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


def read_boxes(path: Path, synsets: Collection[str]) -> dict[str, tuple[Edges, ...]]:
    """Return boxes by picture, from a folder of XML files, a tar of it (tars in it, too), or a CSV.

    XML below the folder of another synset is left out unread; below none (val/), all labels are taken.
    """
    if path.is_file() and path.suffix.lower() == ".csv":
        return {name.rpartition("/")[2]: boxes for name, boxes in read_box_file(path).items()}
    known = frozenset(synsets)
    found: dict[str, tuple[Edges, ...]] = {}
    for where, name, content in _list_xml(path, known):
        folder, _, file = name.rpartition("/")
        synset = _synset_of(folder)
        boxes = read_box_xml(content, synset, known, where=where)
        if boxes:
            found[file.removesuffix(".xml")] = tuple(boxes)
    log.info("%s: boxes for %d pictures", path, len(found))
    return found


def read_box_xml(
    content: str | bytes, synset: str | None, known_synsets: Collection[str], *, where: str = "XML"
) -> list[Edges]:
    """Return the boxes of one file as shares of the size it states, rounded to four decimals.

    Edges are put in order and cut at the picture's, boxes without area left out. So is a file labelled with another
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
        left, right = _order(_number(box, "xmin", where) / width, _number(box, "xmax", where) / width)
        top, bottom = _order(_number(box, "ymin", where) / height, _number(box, "ymax", where) / height)
        if left < right and top < bottom:
            boxes.append((_round(left), _round(top), _round(right), _round(bottom)))
    return boxes


def _order(first: float, second: float) -> tuple[float, float]:
    low, high = min(first, second), max(first, second)
    return min(max(low, 0.0), 1.0), min(max(high, 0.0), 1.0)


def _round(value: float) -> float:
    return float(f"{value:.4f}")


def _parse_xml(content: str | bytes, where: str) -> ElementTree.Element:
    """Parse XML that defines nothing: no document type, so no entities that grow or name files."""
    if len(content) > MAX_XML_BYTES:
        raise DataError(f"{where}: {len(content):,} bytes, boxes of a picture take at most {MAX_XML_BYTES:,}")
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
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
        if name.lower().endswith(_PACKED_NAMES) and _is_wanted(name, known):
            archive = Path(f"{path}, {name}")
            inner = ((archive, *entry) for entry in read_tar(archive, io.BytesIO(content)))
        else:
            inner = (entry for entry in [(path, name, content)])
        for archive, inner_name, data in inner:
            if inner_name.endswith(".xml") and _is_wanted(inner_name, known):
                yield printable(f"{archive}, {inner_name}"), inner_name, data


def _is_wanted(name: str, known: Collection[str]) -> bool:
    folder, _, file = name.rpartition("/")
    synset = _synset_of(folder) if file.endswith(".xml") else _synset_of(file.split(".")[0])
    return not file.startswith(".") and (synset is None or synset in known)
