"""Images to pixels and back. JPEGs by simplejpeg, all others and CMYK by Pillow; turning is left to turn_upright.

Pixels are uint8, height x width x 3, RGB. An image's size is looked at before anything is allocated for it.
To decode no more than a part needs, JPEGs stop below it, and shrink while they are decoded: their rows come one after
the other, and with a smaller height in the head the decoder stops there. The bits of the rows before stay the same.
"""

import contextlib
import functools
import io
import threading
import warnings
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg  # type: ignore[import-untyped]
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

from trainstone.data.image.inspect import LONE_MARKERS, Bytes, Look, look
from trainstone.errors import DataError

Pixels = npt.NDArray[np.uint8]

# Twice Pillow's MAX_IMAGE_PIXELS, where it calls an image a bomb: half a gigabyte of pixels.
MAX_PIXELS = 178_956_970
ORIENTATION_TAG = 274
# Filters for warnings belong to the whole process: only one thread changes them at a time.
_warnings_lock = threading.Lock()


def decode(data: Bytes) -> Pixels:
    """Return the pixels for training: bytes astray between a JPEG's segments are passed over, a missing part is not."""
    seen = look_sized(data)
    if seen.kind != "jpeg" or seen.colour == "cmyk":
        return _decode_by_pillow(data, seen)
    try:
        return _decode_jpeg(data, strict=True)
    except DataError as err:
        if "extraneous bytes" not in err.message:
            raise
    return _decode_jpeg(data, strict=False)


def decode_strict(data: Bytes) -> Pixels:
    """Return the pixels if every one of them is sound; DataError with the reason otherwise."""
    seen = look_sized(data)
    if seen.kind == "jpeg":
        pixels = _decode_jpeg(data, strict=True)
        if seen.colour != "cmyk":
            return pixels
    with _warnings_lock, warnings.catch_warnings():
        warnings.filterwarnings("error", module=r"PIL\.")
        return _decode_by_pillow(data, seen, strict=True)


def look_sized(data: Bytes) -> Look:
    """Look at an image and refuse one that claims more pixels than any real one has."""
    seen = look(data)
    if seen.width * seen.height > MAX_PIXELS:
        raise DataError(f"{seen.width}x{seen.height} pixels; at most {MAX_PIXELS:,} in all are decoded")
    return seen


def _decode_jpeg(data: Bytes, *, strict: bool) -> Pixels:
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(data, "RGB", strict=strict)
    except ValueError as err:
        raise bad_jpeg(err) from err
    return pixels


def bad_jpeg(err: ValueError) -> DataError:
    if "Premature end" in str(err):
        return DataError("truncated JPEG: the data ends before the image does")
    return DataError(f"corrupt JPEG: {err}")


def _decode_by_pillow(data: Bytes, seen: Look, *, strict: bool = False) -> Pixels:
    """Return the first image in the file; only the reader for what was seen may open it."""
    try:
        if strict and seen.kind == "png":  # checksums and the last chunk: decoding passes over both
            with Image.open(io.BytesIO(data), formats=[seen.kind]) as image:
                image.verify()
        with Image.open(io.BytesIO(data), formats=[seen.kind]) as image:
            image.load()
            if image.mode.startswith("I;16"):  # the upper byte
                upper = np.asarray(image).astype(np.uint16) >> 8
                return np.repeat(upper.astype(np.uint8)[:, :, None], 3, axis=2)
            # Transparency is dropped; CMYK is inverted as Adobe writes it.
            return np.array((image.convert("RGBA") if "transparency" in image.info else image).convert("RGB"))
    except Exception as err:  # Pillow's readers raise anything on damaged files
        truncated = "truncated" in str(err).lower() or isinstance(err, EOFError)
        raise DataError(f"{'truncated' if truncated else 'corrupt'} {seen.kind.upper()}: {err}") from err


def encode_jpeg(pixels: Pixels, quality: int) -> bytes:
    """Return a JPEG with colours at half size (4:2:0), as cv2 does for im2rec, and TensorFlow's encode_jpeg."""
    options = [cv2.IMWRITE_JPEG_QUALITY, quality]
    done, encoded = cv2.imencode(".jpg", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), options)
    assert done
    return encoded.tobytes()


def resize_shorter(pixels: Pixels, side: int) -> Pixels:
    """Scale so that the shorter side has so many pixels, the longer one rounded down (im2rec's --resize)."""
    height, width = pixels.shape[:2]
    size = (side, height * side // width) if height > width else (width * side // height, side)
    if size[0] * size[1] > MAX_PIXELS:
        raise DataError(f"{width}x{height} pixels would become {size[0]}x{size[1]}; at most {MAX_PIXELS:,} in all")
    resized: Any = cv2.resize(pixels, size, interpolation=cv2.INTER_LINEAR)
    return resized  # type: ignore[no-any-return]


def turn_upright(pixels: Pixels, data: Bytes) -> Pixels:
    """Turn and mirror an image's pixels as its EXIF orientation, 1 to 8, asks: what cv2.imread, and so im2rec, does."""
    orientation = 1  # also where EXIF states none or is damaged: the pixels are fine without
    with contextlib.suppress(Exception), Image.open(io.BytesIO(data), formats=["JPEG", "TIFF"]) as image:
        if isinstance(image, TiffImageFile):
            orientation = int(image.tag_v2.get(ORIENTATION_TAG, 1))
        else:
            exif = Image.Exif()  # not image.getexif(), which takes XMP's orientation, too
            exif.load(image.info.get("exif", b""))
            orientation = int(exif.get(ORIENTATION_TAG, 1))
    if orientation in (5, 6, 7, 8):
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


# Rows of a block with its colours at half size; and how far below a row its colours reach.
BLOCK_ROWS, REACH_ROWS = 16, 2
# The decoder is quicker at these scales, not at those between: SIMD code exists for them only.
SHRINKS = (8, 4, 2)
# Larger images get memory of their own each time: a thread does not sit on half a gigabyte because of one of them.
MAX_KEPT_BYTES = 64 << 20


class Region(NamedTuple):
    """Pixels of the upper part of an image, or of all of it."""

    pixels: Pixels
    shrink: int = 1
    """The image is so many times larger than these pixels."""
    owned: bool = False
    """All of the image, in memory of its own: may be kept."""


class Scratch:
    """Memory that a thread decodes into again and again: what was decoded before is gone."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def take(self, height: int, width: int) -> Pixels:
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
    # Colours may lie half as dense as the pixels of the smaller image.
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
