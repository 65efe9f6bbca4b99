"""Boxes of classified images in a CSV file: `file,left,top,right,bottom`, edges as shares of the image.

It is the form of process_bounding_boxes.py. Prepared sets whose records have no place for boxes keep them so; there the
file is named with its folder, as two classes may have an image of the same name.
"""

import csv
from collections.abc import Iterable
from pathlib import Path

from trainstone.data.sample import Box, Edges
from trainstone.errors import DataError
from trainstone.formats.files import damaged_line, read_lines

SUFFIX = "-boxes.csv"


def box_lines(name: str, boxes: Iterable[Box]) -> str:
    """Return an image's lines: four decimals as the original wrote them, more where they are needed.

    Edges beyond the image's are cut there; of a box that lies outside nothing is left.
    """
    if "\r" in name or "\n" in name:
        raise DataError(f"{name!r} has boxes, and their file has no place for a line break in a name")
    quoted = f'"{name.replace(chr(34), chr(34) * 2)}"' if "," in name or '"' in name else name
    clipped = (tuple(min(max(edge, 0.0), 1.0) for edge in box[1:5]) for box in boxes)
    kept = [edges for edges in clipped if edges[0] < edges[2] and edges[1] < edges[3]]
    texts = ([short if float(short := f"{edge:.4f}") == edge else repr(edge) for edge in edges] for edges in kept)
    return "".join(",".join((quoted, *four)) + "\n" for four in texts)


def make_key(name: str) -> str:
    folder, slash, base = name.rpartition("/")
    return f"{folder}{slash}{base.rpartition('.')[0] or base}"


def read_box_file(path: Path) -> dict[str, tuple[Edges, ...]]:
    """Return boxes by image, named as in the file but without the extension."""
    found: dict[str, tuple[Edges, ...]] = {}
    for number, line in read_lines(path):
        try:
            (fields,) = csv.reader([line], strict=True)
            file, *edges = fields
            left, top, right, bottom = map(float, edges)
        except (ValueError, csv.Error) as err:
            raise damaged_line(path, number, "file,left,top,right,bottom was expected") from err
        if not (0 <= left <= right <= 1 and 0 <= top <= bottom <= 1):
            raise damaged_line(path, number, "edges should go from 0 to 1, left before right, top before bottom")
        if left == right or top == bottom:  # thinner than four decimals show
            continue
        key = make_key(file)
        found[key] = (*found.get(key, ()), (left, top, right, bottom))
    return found
