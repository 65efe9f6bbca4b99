"""Decode and encode images: JPEGs with simplejpeg, CMYK JPEGs and other formats with Pillow.

Pixels are uint8, height x width x 3, RGB. EXIF orientation is not applied; apply_exif_orientation does that. An
image's size is checked before memory is allocated for it.
A crop needs only some rows, so JPEGs are decoded down to its last row and optionally at a smaller scale. JPEG rows are
stored from top to bottom: with a smaller height in the header the decoder stops early, and the rows above are the same.
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

from trainstone.data.image.inspect import LONE_MARKERS, Bytes, ImageHeader, read_header
from trainstone.errors import DataError

Pixels = npt.NDArray[np.uint8]

# Twice Pillow's MAX_IMAGE_PIXELS, its limit for decompression bombs: half a gigabyte of pixels.
MAX_PIXELS = 178_956_970
ORIENTATION_TAG = 274
# Warning filters are global to the process: only one thread may change them at a time.
_warnings_lock = threading.Lock()


def decode(data: Bytes) -> Pixels:
    """Decode an image for training; extraneous bytes between JPEG segments are allowed, truncation is not."""
    header = read_checked_header(data)
    if header.kind != "jpeg" or header.colour == "cmyk":
        return _decode_with_pillow(data, header)
    try:
        return _decode_jpeg(data, strict=True)
    except DataError as err:
        if "extraneous bytes" not in err.message:
            raise
    return _decode_jpeg(data, strict=False)


def decode_strict(data: Bytes) -> Pixels:
    """Decode an image completely; raise DataError for any damage."""
    header = read_checked_header(data)
    if header.kind == "jpeg":
        pixels = _decode_jpeg(data, strict=True)
        if header.colour != "cmyk":
            return pixels
    with _warnings_lock, warnings.catch_warnings():
        warnings.filterwarnings("error", module=r"PIL\.")
        return _decode_with_pillow(data, header, strict=True)


def read_checked_header(data: Bytes) -> ImageHeader:
    """Read an image's header; raise DataError if the image has more than MAX_PIXELS."""
    header = read_header(data)
    if header.width * header.height > MAX_PIXELS:
        raise DataError(f"image too large: {header.width}x{header.height} pixels; at most {MAX_PIXELS:,} are allowed")
    return header


def _decode_jpeg(data: Bytes, *, strict: bool) -> Pixels:
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(data, "RGB", strict=strict)
    except ValueError as err:
        raise build_jpeg_error(err) from err
    return pixels


def build_jpeg_error(err: ValueError) -> DataError:
    if "Premature end" in str(err):
        return DataError("truncated JPEG: the data ends before the image does")
    return DataError(f"corrupt JPEG: {err}")


def _decode_with_pillow(data: Bytes, header: ImageHeader, *, strict: bool = False) -> Pixels:
    """Decode the first image in the file with Pillow's reader for the header's format."""
    try:
        if strict and header.kind == "png":  # checks checksums and the last chunk, which decoding ignores
            with Image.open(io.BytesIO(data), formats=[header.kind]) as image:
                image.verify()
        with Image.open(io.BytesIO(data), formats=[header.kind]) as image:
            image.load()
            if image.mode.startswith("I;16"):  # use the upper byte
                upper = np.asarray(image).astype(np.uint16) >> 8
                return np.repeat(upper.astype(np.uint8)[:, :, None], 3, axis=2)
            # Transparency is dropped; CMYK is inverted as Adobe writes it.
            return np.array((image.convert("RGBA") if "transparency" in image.info else image).convert("RGB"))
    except Exception as err:  # Pillow's readers raise anything on damaged files
        truncated = "truncated" in str(err).lower() or isinstance(err, EOFError)
        raise DataError(f"{'truncated' if truncated else 'corrupt'} {header.kind.upper()}: {err}") from err


def encode_jpeg(pixels: Pixels, quality: int) -> bytes:
    """Return a JPEG with 4:2:0 chroma subsampling, as cv2 writes for im2rec, and as TensorFlow's encode_jpeg."""
    options = [cv2.IMWRITE_JPEG_QUALITY, quality]
    done, encoded = cv2.imencode(".jpg", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), options)
    assert done
    return encoded.tobytes()


def resize_shorter(pixels: Pixels, side: int) -> Pixels:
    """Resize so that the shorter side has `side` pixels, the longer one rounded down (im2rec's --resize)."""
    height, width = pixels.shape[:2]
    size = (side, height * side // width) if height > width else (width * side // height, side)
    if size[0] * size[1] > MAX_PIXELS:
        raise DataError(
            f"image too large: {width}x{height} resized to {size[0]}x{size[1]} pixels; at most {MAX_PIXELS:,}"
        )
    resized: Any = cv2.resize(pixels, size, interpolation=cv2.INTER_LINEAR)
    return resized  # type: ignore[no-any-return]


def apply_exif_orientation(pixels: Pixels, data: Bytes) -> Pixels:
    """Rotate and flip pixels by the image's EXIF orientation, 1 to 8, as cv2.imread, and so im2rec, does."""
    orientation = 1  # also if EXIF is missing or damaged
    with contextlib.suppress(Exception), Image.open(io.BytesIO(data), formats=["JPEG", "TIFF"]) as image:
        if isinstance(image, TiffImageFile):
            orientation = int(image.tag_v2.get(ORIENTATION_TAG, 1))
        else:
            exif = Image.Exif()  # not image.getexif(), which also uses XMP's orientation
            exif.load(image.info.get("exif", b""))
            orientation = int(exif.get(ORIENTATION_TAG, 1))
    if orientation in (5, 6, 7, 8):
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


# Rows of an MCU with 4:2:0 subsampling; and how many rows further its chroma upsampling reads.
BLOCK_ROWS, REACH_ROWS = 16, 2
# The decoder is faster only at these scales: they have SIMD code.
SHRINKS = (8, 4, 2)
# Larger images get new memory each time, so that one of them does not leave a thread with half a gigabyte.
MAX_SCRATCH_BYTES = 64 << 20


class Region(NamedTuple):
    """Decoded pixels: the top rows of an image, or all of it."""

    pixels: Pixels
    shrink: int = 1
    """Factor by which the pixels are smaller than the image."""
    owned: bool = False
    """Whether this is the whole image in memory of its own, which may be cached."""


class Scratch:
    """Decode buffer of a thread, overwritten by each image."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def take(self, height: int, width: int) -> Pixels:
        size = height * width * 3
        if size > MAX_SCRATCH_BYTES:
            return np.empty((height, width, 3), np.uint8)
        if size > self._memory.size:
            self._memory = np.empty(size + size // 4, np.uint8)
        return self._memory[:size].reshape(height, width, 3)


def decode_top_rows(
    data: Bytes, bottom: int, scratch: Scratch, *, fast: bool, shrink: int = 1, header: ImageHeader | None = None
) -> Region:
    """Return the rows above `bottom`, or more, as `decode` would; valid until `scratch` is used again.

    Damage below these rows is not detected. `shrink`: decode a JPEG at 1/2, 1/4 or 1/8 of its size.
    """
    header = header or read_checked_header(data)
    if header.kind != "jpeg" or header.colour == "cmyk":
        return Region(decode(data), owned=True)
    # Chroma may have half the resolution of the shrunk image.
    height = min(header.height, -(-(bottom + REACH_ROWS * shrink) // BLOCK_ROWS) * BLOCK_ROWS)
    stored: Bytes | bytearray = data
    stops_early = height < header.height and can_stop_early() and has_one_scan(data, header)
    if stops_early:
        stored = replace_jpeg_height(data, header.frame_at, height)
    else:
        height = header.height
    buffer = scratch.take(-(-height // shrink), -(-header.width // shrink))
    try:
        simplejpeg.decode_jpeg(stored, "RGB", fast, False, *buffer.shape[:2], shrink, buffer)
    except ValueError as err:
        if "extraneous bytes" in str(err):
            # Caused by the skipped rows; otherwise decode again, because pixels may be missing.
            return Region(buffer, shrink) if stops_early else Region(decode(data), owned=True)
        raise build_jpeg_error(err) from err
    return Region(buffer, shrink)


def has_one_scan(data: Bytes, header: ImageHeader) -> bool:
    """Return whether intact segments lead from a JPEG's frame header to one scan of all its components.

    The decoder reports only its first warning. That one is about the skipped rows, and would hide damage in later scans
    and an abort caused by extraneous bytes before the first pixel.
    """
    place, components = header.frame_at, data[header.frame_at + 9]
    while not header.progressive and place + 4 < len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xDA:
            return data[place + 4] == components
        if marker < 0xC0 or marker in LONE_MARKERS or marker == 0xFF:
            return False
        place += 2 + int.from_bytes(data[place + 2 : place + 4])
    return False


def choose_shrink(width: int, height: int, size: int) -> int:
    """Return the largest factor by which a part may be shrunk and stay at least `size` high and wide."""
    smaller = min(width, height) // size
    return next((shrink for shrink in SHRINKS if smaller >= shrink), 1)


def replace_jpeg_height(data: Bytes, frame_at: int, height: int) -> bytearray:
    changed = bytearray(data)
    changed[frame_at + 5 : frame_at + 7] = height.to_bytes(2)
    return changed


@functools.cache
def can_stop_early() -> bool:
    """Test once whether this decoder writes all pixels although it warns about the skipped rows."""
    rows = np.add.outer(np.arange(64), np.arange(48)) * 2
    pixels = np.stack([rows, rows[::-1], 255 - rows], axis=2).astype(np.uint8)
    data = encode_jpeg(pixels, 90)
    buffer = np.zeros((32, 48, 3), np.uint8)
    try:
        simplejpeg.decode_jpeg(
            replace_jpeg_height(data, read_checked_header(data).frame_at, 32), "RGB", True, False, 32, 48, 1, buffer
        )
    except ValueError as err:
        if "extraneous bytes" not in str(err):
            return False
    return bool((buffer[:30] == simplejpeg.decode_jpeg(data, "RGB", True)[:30]).all())
