"""Rows of numbers that judging pictures with boxes gives, and what they say when all ranks' are together."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainstone.results.detection import Found, Truth

ROW = ("picture", "kind", "label", "value", "left", "top", "right", "bottom", "area")
"""Columns. picture: its number in the source; label: class, negative for a row that is none; value: score of a found
box, whether a true one is a crowd; edges in pixels of the stored picture, whose size those of a picture's row are."""
FOUND, TRUTH, PICTURE = 0, 1, 2
"""Kinds of rows."""


class Rows(NamedTuple):
    """What was judged."""

    truth: Truth
    found: Found
    pictures: NDArray[np.int64]
    """Numbers of the pictures that were judged, rising."""
    sizes: NDArray[np.float64]
    """Their widths and heights. (pictures, 2)"""


def split_rows(rows: NDArray[np.float32]) -> Rows:
    """Take rows apart. A picture that several ranks judged counts once."""
    rows = rows[rows[:, ROW.index("label")] >= 0].astype(np.float64)
    found, truth, pictures = (rows[rows[:, ROW.index("kind")] == kind] for kind in (FOUND, TRUTH, PICTURE))
    numbers, first = np.unique(pictures[:, 0].astype(np.int64), return_index=True)
    return Rows(
        Truth(*_columns(truth), area=truth[:, 8], crowd=truth[:, 3] > 0),
        Found(*_columns(found), score=found[:, 3]),
        numbers,
        pictures[first, 6:8],
    )


def _columns(rows: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Picture, label and edges."""
    return rows[:, 0].astype(np.int64), rows[:, 2].astype(np.int64), rows[:, 4:8]
