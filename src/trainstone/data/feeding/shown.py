"""What a row of a batch shows beside its pixels, a class or boxes; and how rows become arrays. No torch here."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainstone.data.feeding.crops import Crop, Window
from trainstone.data.sample import Box

Holds = Literal["class", "boxes", "truth"]
"""What batches hold beside pictures. class: one for each. boxes: to train on, edges as shares of the row's own pixels.
truth: to validate with, edges as shares of the stored picture, crowds, areas and the picture's facts."""
IGNORED = -1
"""Label of what does not count: rows that fill up a batch, damaged pictures in validation, places without a box."""
BOX_STEP = 8
"""Places for boxes come in multiples: few shapes of batches, so that compiled code is not made anew for each."""


class Boxes(NamedTuple):
    """The boxes of one row."""

    edges: NDArray[np.float32]
    """Left, top, right, bottom as shares. (boxes, 4)"""
    labels: NDArray[np.int64]
    crowds: NDArray[np.bool_]
    areas: NDArray[np.float32]
    """In pixels of the stored picture."""


class Shown(NamedTuple):
    """One row."""

    label: int = IGNORED
    boxes: Boxes | None = None
    facts: tuple[int, int, int] = (IGNORED, 0, 0)
    """Number of the picture in its source, its width and height."""


NOTHING = Shown()


def list_boxes(boxes: Sequence[Box], size: tuple[int, int], part: Crop | Window, *, flip: bool) -> Boxes:
    """Return boxes as they lie in a part of a picture, cut at its edges; those of which nothing is left are left out.

    `size`: width and height of the picture.
    """
    width, height = size
    stored = np.array([box[1:5] for box in boxes], dtype=np.float64).reshape(-1, 4)
    share = (stored[:, 2] - stored[:, 0]) * (stored[:, 3] - stored[:, 1])
    known = np.array([np.nan if box.area is None else box.area for box in boxes], dtype=np.float64)
    areas = np.where(np.isnan(known), share, known) * (width * height)
    origin = np.array([part.left, part.top] * 2)
    extent = np.array([part.right - part.left, part.bottom - part.top] * 2)
    edges = ((stored * [width, height, width, height] - origin) / extent).clip(0, 1)
    if flip:
        edges[:, [0, 2]] = 1 - edges[:, [2, 0]]
    edges = edges.astype(np.float32)
    left = (edges[:, 2:] > edges[:, :2]).all(axis=1)
    return Boxes(
        edges[left],
        np.array([box.label for box in boxes], dtype=np.int64)[left],
        np.array([box.crowd for box in boxes], dtype=np.bool_)[left],
        areas[left].astype(np.float32),
    )


PACKED = (((4,), 0, np.float32), ((), IGNORED, np.int64), ((), 0, np.bool_), ((), 0, np.float32))
"""Shape of one box, value of an empty place and type, of each field of Boxes."""


def pack(rows: Sequence[Shown], holds: Holds) -> tuple[NDArray[Any], ...]:
    """Return what a batch holds beside its images."""
    if holds == "class":
        return (np.array([row.label for row in rows], dtype=np.int64),)
    most = max((len(row.boxes.labels) for row in rows if row.boxes is not None), default=0)
    places = max(1, -(-most // BOX_STEP)) * BOX_STEP
    fields = PACKED[:2] if holds == "boxes" else PACKED
    packed = tuple(np.full((len(rows), places, *shape), empty, dtype=kind) for shape, empty, kind in fields)
    for number, row in enumerate(rows):
        given: tuple[NDArray[Any], ...] = row.boxes or ()
        for array, values in zip(packed, given, strict=False):
            array[number, : len(values)] = values
    return packed if holds == "boxes" else (*packed, np.array([row.facts for row in rows], dtype=np.int64))
