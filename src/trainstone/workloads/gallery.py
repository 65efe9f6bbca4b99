"""Rows of numbers that judging pictures with boxes gives, what they say when all ranks' are together, and some
pictures with what is in them and what was found, to be looked at."""

import io
from dataclasses import fields, replace
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from trainstone.data.picture.decode import decode
from trainstone.data.splits import OpenSplit
from trainstone.errors import DataError
from trainstone.results.detection import Found, Truth, match_boxes
from trainstone.results.quality import QualityPicture, ShownBox

Boxes = TypeVar("Boxes", Truth, Found)
ROW = ("picture", "kind", "label", "value", "left", "top", "right", "bottom", "area")
"""Columns. picture: its number in the source; label: class, negative for a row that is none; value: score of a found
box, whether a true one is a crowd; edges in pixels of the stored picture, whose size those of a picture's row are."""
FOUND, TRUTH, PICTURE = 0, 1, 2
"""Kinds of rows."""
PICTURES = 12
MOST_FOUND = 30
"""Boxes of a picture that are kept, the best ones."""
MIN_SCORE = 0.1
LONGER_SIDE = 480
QUALITY = 85


class Rows(NamedTuple):
    truth: Truth
    found: Found
    pictures: NDArray[np.int64]
    """Numbers of the pictures that were judged, rising."""
    sizes: NDArray[np.float64]
    """Their widths and heights. (pictures, 2)"""


def split_rows(rows: NDArray[np.float32]) -> Rows:
    """Take rows apart. A picture that several ranks judged counts once."""
    rows = rows[rows[:, 2] >= 0].astype(np.float64)
    found, truth, pictures = (rows[rows[:, 1] == kind] for kind in (FOUND, TRUTH, PICTURE))
    numbers, first = np.unique(pictures[:, 0].astype(np.int64), return_index=True)
    return Rows(
        Truth(*_columns(truth), area=truth[:, 8], crowd=truth[:, 3] > 0),
        Found(*_columns(found), score=found[:, 3]),
        numbers,
        pictures[first, 6:8],
    )


def _columns(rows: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    return rows[:, 0].astype(np.int64), rows[:, 2].astype(np.int64), rows[:, 4:8]


def show_pictures(opened: OpenSplit, judged: Rows, names: list[str]) -> tuple[tuple[QualityPicture, bytes], ...]:
    """Choose pictures that have something in them, evenly among all: the same ones at every evaluation."""
    full = np.unique(judged.truth.picture)
    chosen = full[np.unique(np.linspace(0, len(full) - 1, min(PICTURES, len(full))).round().astype(np.int64))]
    truth, found = keep_pictures(judged.truth, chosen), keep_pictures(judged.found, chosen)
    is_right, is_found = match_boxes(truth, found)
    shown = []
    for number in chosen.tolist():
        width, height = judged.sizes[np.searchsorted(judged.pictures, number)].tolist()
        boxes = []
        for place in np.flatnonzero(truth.picture == number).tolist():
            edges = shares(truth.edges[place], width, height)
            boxes.append(ShownBox(label=name(names, truth.label[place]), **edges, right_one=bool(is_found[place])))
        best = np.flatnonzero((found.picture == number) & (found.score >= MIN_SCORE))
        for place in best[np.argsort(-found.score[best], kind="stable")][:MOST_FOUND].tolist():
            edges, score = shares(found.edges[place], width, height), round(float(found.score[place]), 3)
            told = name(names, found.label[place])
            boxes.append(ShownBox(label=told, **edges, score=score, right_one=bool(is_right[place])))
        jpeg = shrink(opened, number)
        if jpeg is not None:
            title, file = opened.source.name(number), f"pictures/{number:08d}.jpg"
            made = QualityPicture(file=file, title=title, width=int(width), height=int(height), boxes=boxes)
            shown.append((made, jpeg))
    return tuple(shown)


def keep_pictures(boxes: Boxes, chosen: NDArray[np.int64]) -> Boxes:
    kept = np.isin(boxes.picture, chosen)
    return replace(boxes, **{field.name: getattr(boxes, field.name)[kept] for field in fields(boxes)})


def name(names: list[str], label: int) -> str:
    return names[label] if label < len(names) else f"class {label}"


def shares(edges: np.ndarray, width: float, height: float) -> dict[str, float]:
    """Return edges in pixels as shares, with as many digits as a page can show."""
    sides = (("left", width), ("top", height), ("right", width), ("bottom", height))
    return {side: round(float(edge) / whole, 4) for edge, (side, whole) in zip(edges, sides, strict=True)}


def shrink(opened: OpenSplit, number: int) -> bytes | None:
    """Return a picture as a JPEG of moderate size; None where it can no longer be read."""
    try:
        picture = Image.fromarray(decode(opened.source.read(number).image))
    except DataError:
        return None
    picture.thumbnail((LONGER_SIDE, LONGER_SIDE))
    packed = io.BytesIO()
    picture.save(packed, "JPEG", quality=QUALITY)
    return packed.getvalue()
