"""Pictures to pixels and back. JPEGs by simplejpeg, all others and CMYK by Pillow; turning is left to turn_upright.

Pixels are uint8, height x width x 3, RGB. A picture's size is looked at before anything is allocated for it.
"""

import contextlib
import io
import threading
import warnings
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg  # type: ignore[import-untyped]
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

from trainstone.data.picture.look import Bytes, Look, look
from trainstone.errors import DataError

Pixels = npt.NDArray[np.uint8]

# Twice Pillow's MAX_IMAGE_PIXELS, where it calls a picture a bomb: half a gigabyte of pixels.
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
    """Look at a picture and refuse one that claims more pixels than any real one has."""
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
    """Return the error for what simplejpeg says."""
    if "Premature end" in str(err):
        return DataError("truncated JPEG: the data ends before the picture does")
    return DataError(f"corrupt JPEG: {err}")


def _decode_by_pillow(data: Bytes, seen: Look, *, strict: bool = False) -> Pixels:
    """Return the first picture in the file; only the reader for what was seen may open it."""
    try:
        if strict and seen.kind == "png":  # checksums and the last chunk: decoding passes over both
            with Image.open(io.BytesIO(data), formats=[seen.kind]) as image:
                image.verify()
        with Image.open(io.BytesIO(data), formats=[seen.kind]) as image:
            image.load()
            return _to_rgb(image)
    except Exception as err:  # Pillow's readers raise anything on damaged files
        truncated = "truncated" in str(err).lower() or isinstance(err, EOFError)
        raise DataError(f"{'truncated' if truncated else 'corrupt'} {seen.kind.upper()}: {err}") from err


def _to_rgb(image: Image.Image) -> Pixels:
    """Drop transparency, undo palettes, take the upper byte of 16 bits; CMYK is inverted as Adobe writes it."""
    if image.mode.startswith("I;16"):
        upper = np.asarray(image).astype(np.uint16) >> 8
        return np.repeat(upper.astype(np.uint8)[:, :, None], 3, axis=2)
    if "transparency" in image.info:
        image = image.convert("RGBA")
    return np.array(image.convert("RGB"))


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
    orientation = find_orientation(data)
    if orientation in (5, 6, 7, 8):
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def find_orientation(data: Bytes) -> int:
    """Return the orientation that EXIF states; 1 where it states none or is damaged: the pixels are fine without."""
    with contextlib.suppress(Exception), Image.open(io.BytesIO(data), formats=["JPEG", "TIFF"]) as image:
        if isinstance(image, TiffImageFile):
            return int(image.tag_v2.get(ORIENTATION_TAG, 1))
        exif = Image.Exif()  # not image.getexif(), which takes XMP's orientation, too
        exif.load(image.info.get("exif", b""))
        return int(exif.get(ORIENTATION_TAG, 1))
    return 1
