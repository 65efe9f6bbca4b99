"""Decodes no more of a picture than a part of it needs. JPEGs stop below the part, and shrink while they are decoded.

A JPEG's rows come one after the other: with a smaller height written into its head, the decoder stops there. The bits
of the rows it did decode are the same as always.
"""

import functools
from typing import NamedTuple

import numpy as np
import simplejpeg  # type: ignore[import-untyped]

from trainstone.data.picture.decode import Pixels, bad_jpeg, decode, encode_jpeg, look_sized
from trainstone.data.picture.look import LONE_MARKERS, Bytes, Look

# Rows of a block with its colours at half size; and how far below a row its colours reach.
BLOCK_ROWS, REACH_ROWS = 16, 2
# The decoder is quicker at these scales, not at those between: SIMD code exists for them only.
SHRINKS = (8, 4, 2)
# Larger pictures get memory of their own each time: a thread does not sit on half a gigabyte because of one of them.
MAX_KEPT_BYTES = 64 << 20


class Region(NamedTuple):
    """Pixels of the upper part of a picture, or of all of it."""

    pixels: Pixels
    shrink: int = 1
    """The picture is so many times larger than these pixels."""
    owned: bool = False
    """All of the picture, in memory of its own: may be kept."""


class Scratch:
    """Memory that a thread decodes into again and again: what was decoded before is gone."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def take(self, height: int, width: int) -> Pixels:
        """Return room for so many pixels."""
        size = height * width * 3
        if size > MAX_KEPT_BYTES:
            return np.empty((height, width, 3), np.uint8)
        if size > self._memory.size:
            self._memory = np.empty(size + size // 4, np.uint8)
        return self._memory[:size].reshape(height, width, 3)


def decode_upper(
    data: Bytes, bottom: int, scratch: Scratch, *, fast: bool, shrink: int = 1, seen: Look | None = None
) -> Region:
    """Return the rows above `bottom`, perhaps more, as `decode` would; valid until `scratch` is used again.

    Damage below these rows is not seen. `shrink`: 2, 4 or 8 for JPEGs at that part of their size.
    """
    seen = seen or look_sized(data)
    if seen.kind != "jpeg" or seen.colour == "cmyk":
        return Region(decode(data), owned=True)
    # Colours may lie half as dense as the pixels of the smaller picture.
    height = min(seen.height, -(-(bottom + REACH_ROWS * shrink) // BLOCK_ROWS) * BLOCK_ROWS)
    stored: Bytes | bytearray = data
    stops_early = height < seen.height and can_stop_early() and has_one_scan(data, seen)
    if stops_early:
        stored = with_height(data, seen.frame_at, height)
    else:
        height = seen.height
    room = scratch.take(-(-height // shrink), -(-seen.width // shrink))
    try:
        simplejpeg.decode_jpeg(stored, "RGB", fast, False, *room.shape[:2], shrink, room)
    except ValueError as err:
        if "extraneous bytes" in str(err):  # the rows left out; else bytes astray, perhaps before any pixel was written
            return Region(room, shrink) if stops_early else Region(decode(data), owned=True)
        raise bad_jpeg(err) from err
    return Region(room, shrink)


def has_one_scan(data: Bytes, seen: Look) -> bool:
    """Say whether whole segments lead from a JPEG's frame header to a scan of all its components.

    The decoder tells its first complaint only, which is that of rows left out: it would hide what is missing from later
    scans, which hold all rows, too, and that it gave up over bytes astray before it wrote a pixel.
    """
    place, components = seen.frame_at, data[seen.frame_at + 9]
    while not seen.progressive and place + 4 < len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xDA:
            return data[place + 4] == components
        if marker < 0xC0 or marker in LONE_MARKERS or marker == 0xFF:
            return False
        place += 2 + int.from_bytes(data[place + 2 : place + 4])
    return False


def choose_shrink(width: int, height: int, size: int) -> int:
    """Return how many times smaller a part of this size may be decoded to stay at least `size` high and wide."""
    smaller = min(width, height) // size
    return next((shrink for shrink in SHRINKS if smaller >= shrink), 1)


def with_height(data: Bytes, frame_at: int, height: int) -> bytearray:
    """Return a JPEG whose head says another height."""
    changed = bytearray(data)
    changed[frame_at + 5 : frame_at + 7] = height.to_bytes(2)
    return changed


@functools.cache
def can_stop_early() -> bool:
    """Try once whether this decoder fills our memory although it complains of the rows left out."""
    rows = np.add.outer(np.arange(64), np.arange(48)) * 2
    pixels = np.stack([rows, rows[::-1], 255 - rows], axis=2).astype(np.uint8)
    data = encode_jpeg(pixels, 90)
    room = np.zeros((32, 48, 3), np.uint8)
    try:
        simplejpeg.decode_jpeg(with_height(data, look_sized(data).frame_at, 32), "RGB", True, False, 32, 48, 1, room)
    except ValueError as err:
        if "extraneous bytes" not in str(err):
            return False
    return bool((room[:30] == simplejpeg.decode_jpeg(data, "RGB", True)[:30]).all())
