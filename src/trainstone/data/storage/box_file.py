"""Boxes of classified images in a CSV file: `file,left,top,right,bottom`, edges as shares of the image.

This is the format of process_bounding_boxes.py. Prepared data sets use it if their records have no field for boxes;
file names then include the folder, because two classes may have an image of the same name.
"""

import csv
from collections.abc import Iterable
from pathlib import Path

from trainstone.data.sample import Box, Edges
from trainstone.errors import DataError
from trainstone.formats.files import damaged_line, read_lines

SUFFIX = "-boxes.csv"


def format_box_lines(name: str, boxes: Iterable[Box]) -> str:
    """Return an image's lines, with four decimals as in the original, or more if needed.

    Boxes are clipped to the image; boxes outside it are dropped.
    """
    if "\r" in name or "\n" in name:
        raise DataError(f"invalid name of an image with boxes: {name!r}; line breaks are not allowed")
    quoted = f'"{name.replace(chr(34), chr(34) * 2)}"' if "," in name or '"' in name else name
    clipped = (tuple(min(max(edge, 0.0), 1.0) for edge in box[1:5]) for box in boxes)
    kept = [edges for edges in clipped if edges[0] < edges[2] and edges[1] < edges[3]]
    texts = ([short if float(short := f"{edge:.4f}") == edge else repr(edge) for edge in edges] for edges in kept)
    return "".join(",".join((quoted, *four)) + "\n" for four in texts)


def drop_extension(name: str) -> str:
    folder, slash, base = name.rpartition("/")
    return f"{folder}{slash}{base.rpartition('.')[0] or base}"


def read_box_file(path: Path) -> dict[str, tuple[Edges, ...]]:
    """Return boxes by image name without extension."""
    found: dict[str, tuple[Edges, ...]] = {}
    for number, line in read_lines(path):
        try:
            (fields,) = csv.reader([line], strict=True)
            file, *edges = fields
            left, top, right, bottom = map(float, edges)
        except (ValueError, csv.Error) as err:
            raise damaged_line(path, number, "expected file,left,top,right,bottom") from err
        if not (0 <= left <= right <= 1 and 0 <= top <= bottom <= 1):
            raise damaged_line(path, number, "expected edges from 0 to 1 with left <= right and top <= bottom")
        if left == right or top == bottom:  # thinner than four decimals can express
            continue
        key = drop_extension(file)
        found[key] = (*found.get(key, ()), (left, top, right, bottom))
    return found
