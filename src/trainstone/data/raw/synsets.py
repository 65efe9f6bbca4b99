"""Reads what is published beside ImageNet's pictures: labels of the validation pictures, and the classes' names."""

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from trainstone.data.raw.archives import read_tar
from trainstone.errors import DataError
from trainstone.formats.files import damaged_line, read_lines
from trainstone.formats.mat5 import read_mat
from trainstone.text import printable

NUM_CLASSES = 1000
META_FILE = "meta.mat"
TRUTH_FILE = "ILSVRC2012_validation_ground_truth.txt"
DEVKIT_FILES = (META_FILE, TRUTH_FILE)
SYNSET = re.compile(r"n\d{8}", re.ASCII)
VAL_PICTURE = re.compile(r"ILSVRC2012_val_(\d{8})", re.ASCII)
_MOVE = re.compile(r"\bmv\s+\S*ILSVRC2012_val_(\d{8})\S*\s+\S*?(n\d{8})", re.ASCII)
_TEXT_LINE = re.compile(r"(n\d{8})[ \t]+(.*)", re.ASCII)
_PACKED_NAMES = (".tar", ".tar.gz", ".tgz")
_ALLOWED = (
    "allowed are ILSVRC2012_devkit_t12.tar.gz, a synset on each line in the order of the pictures, "
    "Kaggle's LOC_val_solution.csv, and valprep.sh"
)


class Devkit(NamedTuple):
    """What ILSVRC2012's development kit says."""

    labels: dict[int, str]
    """Synset of each validation picture, by its number from 1."""
    texts: dict[str, str]


def read_val_labels(path: Path) -> dict[int, str]:
    """Return the synset of each validation picture by the number in its name, from any of the published forms."""
    if is_devkit(path):
        return read_devkit(path).labels
    lines = list(read_lines(path))
    if lines and lines[0][1].lower().startswith("imageid,"):
        return _read_solution(path, lines[1:])
    texts = [text.strip() for _, text in lines]
    moves = {int(match[1]): match[2] for text in texts if (match := _MOVE.search(text))}
    if moves:
        return moves
    for number, text in lines:
        if not SYNSET.fullmatch(text.strip()):
            raise damaged_line(path, number, f"'{printable(text[:100])}' is no synset; {_ALLOWED}")
    if not lines:
        raise DataError(f"{printable(str(path))}: empty, labels of ImageNet's validation pictures were expected")
    return dict(enumerate(texts, 1))


def is_devkit(path: Path) -> bool:
    """Say whether a path is the development kit, packed or not."""
    return path.is_dir() or path.name.lower().endswith(_PACKED_NAMES)


def read_devkit(path: Path) -> Devkit:
    """Read the development kit's tar, or the folder it extracts to, or its folder data."""
    if path.is_dir():
        folder = path / "data" if (path / "data").is_dir() else path
        found = {name: (folder / name).read_bytes() for name in DEVKIT_FILES if (folder / name).is_file()}
    else:
        named = ((name.rpartition("/")[2], content) for name, content in read_tar(path))
        found = {name: content for name, content in named if name in DEVKIT_FILES}
    missing = [name for name in DEVKIT_FILES if name not in found]
    if missing:
        raise DataError(
            f"{printable(str(path))}: not an ILSVRC2012 devkit, {' and '.join(missing)} not found",
            hint="give ILSVRC2012_devkit_t12.tar.gz",
        )
    synsets, texts = _read_meta(found[META_FILE], path)
    truth = found[TRUTH_FILE].decode("ascii", errors="replace").split()
    return Devkit(_label_by_id(path, truth, synsets), texts)


def read_texts(path: Path) -> dict[str, str]:
    """Return what people call each synset, from lines of a synset, a space or a tab, and words."""
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


def _label_by_id(path: Path, truth: Sequence[str], synsets: dict[int, str]) -> dict[int, str]:
    labels = {}
    for number, text in enumerate(truth, 1):
        synset = synsets.get(int(text)) if text.isascii() and text.isdigit() and len(text) < 9 else None
        if synset is None:
            raise DataError(
                f"{printable(str(path))}, {TRUTH_FILE}, line {number}: '{printable(text[:20])}' is no class; "
                f"1 to {NUM_CLASSES} are, and {len(synsets)} of them are in {META_FILE}"
            )
        labels[number] = synset
    return labels


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
