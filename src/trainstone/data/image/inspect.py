"""Read an image's header: format, size and colours. Nothing is decoded, so the image may still be damaged."""

import io
import struct
from typing import NamedTuple

from trainstone.errors import DataError

Bytes = bytes | memoryview


class ImageHeader(NamedTuple):
    """Format, size and colours of an image, read from its header."""

    kind: str
    """jpeg, png, gif, bmp, webp or tiff."""
    width: int
    height: int
    colour: str
    """rgb, grey, cmyk, palette, rgba or grey with alpha."""
    progressive: bool = False
    """Only for JPEGs."""
    frame_at: int = -1
    """JPEG: byte offset of the frame header."""


MODES = {"P": "palette", "PA": "palette", "LA": "grey with alpha", "RGBA": "rgba", "CMYK": "cmyk"}
MODES |= dict.fromkeys(("1", "L", "I", "F", "I;16", "I;16B"), "grey")
"""Colour names of Pillow's modes; all others are rgb."""
JPEG_COLOURS = {1: "grey", 3: "rgb", 4: "cmyk"}
# Start of frame: C0 to CF except C4 (Huffman tables), C8 (reserved) and CC (arithmetic tables); ITU-T T.81, B.1.1.3
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
PROGRESSIVE = frozenset((0xC2, 0xC6, 0xCA, 0xCE))
LONE_MARKERS = frozenset((0x01, *range(0xD0, 0xD8)))
SHORTS = struct.Struct(">HH").unpack_from
FRAME = struct.Struct(">BHHB").unpack_from


EXTENSIONS = {"jpeg": "jpg", "png": "png", "gif": "gif", "bmp": "bmp", "webp": "webp", "tiff": "tiff"}
"""File extension of each format."""


def find_extension(data: Bytes) -> str:
    """Return the file extension for image data; jpg if the format is unknown."""
    try:
        return EXTENSIONS[read_header(data).kind]
    except DataError:
        return EXTENSIONS["jpeg"]


def read_header(data: Bytes) -> ImageHeader:
    """Return an image's header; raise DataError if the data is not an image or its header is truncated."""
    head = bytes(data[:12])
    if head.startswith(b"\xff\xd8"):  # by far the most frequent
        kind = "jpeg"
    elif head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        kind = "webp"
    else:
        kind = next((kind for kind, starts in SIGNATURES.items() if head.startswith(starts)), "")
    if not kind:
        begin = f"begins with {head.hex(' ')}" if head else "empty"
        raise DataError(f"not an image: {begin}", hint="supported formats: JPEG, PNG, GIF, BMP, WebP, TIFF")
    try:
        header = read_jpeg_header(data) if kind == "jpeg" else read_header_with_pillow(data, kind)
    except struct.error as err:
        raise DataError(f"truncated image header: {len(data)} bytes") from err
    if header.width < 1 or header.height < 1:
        raise DataError(f"invalid {header.kind.upper()} size: {header.width}x{header.height} pixels")
    return header


SIGNATURES = {
    "png": (b"\x89PNG\r\n\x1a\n",),
    "gif": (b"GIF87a", b"GIF89a"),
    "bmp": (b"BM",),
    "tiff": (b"II*\0", b"MM\0*"),
}


def read_jpeg_header(data: Bytes) -> ImageHeader:
    """Find the frame header by walking the markers; other segments are skipped by their length."""
    position, end = 2, len(data)
    while position + 4 <= end:
        if data[position] != 0xFF:
            raise DataError(f"JPEG without a frame header: no marker at byte {position}")
        marker = data[position + 1]
        if marker == 0xFF:  # fill byte
            position += 1
        elif marker in LONE_MARKERS:
            position += 2
        elif marker in FRAMES:
            _, height, width, components = FRAME(data, position + 4)
            colour = JPEG_COLOURS.get(components)
            if colour is None:
                raise DataError(f"JPEG with {components} components; 1, 3 and 4 are allowed")
            return ImageHeader("jpeg", width, height, colour, marker in PROGRESSIVE, position)
        elif marker in (0xD9, 0xDA):
            raise DataError(
                f"JPEG without a frame header: {'ends' if marker == 0xD9 else 'scan begins'} at byte {position}"
            )
        else:
            length = SHORTS(data, position)[1]
            if length < 2:
                raise DataError(f"invalid length {length} of the JPEG segment at byte {position}")
            position += 2 + length
    raise DataError(f"JPEG without a frame header in {end} bytes")


def read_header_with_pillow(data: Bytes, kind: str) -> ImageHeader:
    from PIL import Image, UnidentifiedImageError  # rarely needed

    Image.MAX_IMAGE_PIXELS = None  # read_checked_header has our limit
    try:
        with Image.open(io.BytesIO(data), formats=[kind]) as image:
            return ImageHeader(kind, *image.size, MODES.get(image.mode, "rgb"))
    except UnidentifiedImageError as err:
        raise DataError(f"corrupt {kind.upper()}: its header is damaged or truncated") from err
    except Exception as err:  # Pillow's readers raise anything on damaged files
        raise DataError(f"corrupt {kind.upper()}: {err}") from err
