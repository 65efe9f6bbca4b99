"""What an image is, told from its first bytes: kind, size, colours. Decodes nothing, so a whole image may be bad."""

import io
import struct
from typing import NamedTuple

from trainstone.errors import DataError

Bytes = bytes | memoryview


class Look(NamedTuple):
    """What an image's head says."""

    kind: str
    """jpeg, png, gif, bmp, webp or tiff."""
    width: int
    height: int
    colour: str
    """rgb, grey, cmyk, palette, rgba or grey with alpha."""
    progressive: bool = False
    """Of JPEGs."""
    frame_at: int = -1
    """JPEG: the byte its frame header begins at."""


MODES = {"P": "palette", "PA": "palette", "LA": "grey with alpha", "RGBA": "rgba", "CMYK": "cmyk"}
MODES |= dict.fromkeys(("1", "L", "I", "F", "I;16", "I;16B"), "grey")
"""What Pillow's modes are called here; all others are rgb."""
JPEG_COLOURS = {1: "grey", 3: "rgb", 4: "cmyk"}
# Start of frame: all of C0 to CF but C4 (Huffman tables), C8 (reserved) and CC (arithmetic tables); ITU-T T.81, B.1.1.3
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
PROGRESSIVE = frozenset((0xC2, 0xC6, 0xCA, 0xCE))
LONE_MARKERS = frozenset((0x01, *range(0xD0, 0xD8)))
SHORTS = struct.Struct(">HH").unpack_from
FRAME = struct.Struct(">BHHB").unpack_from


ENDINGS = {"jpeg": "jpg", "png": "png", "gif": "gif", "bmp": "bmp", "webp": "webp", "tiff": "tiff"}
"""What files of each kind are called."""


def find_ending(data: Bytes) -> str:
    """Return the ending for an image that has no name; one that cannot be told is taken for a JPEG."""
    try:
        return ENDINGS[look(data).kind]
    except DataError:
        return ENDINGS["jpeg"]


def look(data: Bytes) -> Look:
    """Return what the image is; DataError for what is none or breaks off."""
    head = bytes(data[:12])
    if head.startswith(b"\xff\xd8"):  # nearly all are
        kind = "jpeg"
    elif head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        kind = "webp"
    else:
        kind = next((kind for kind, starts in SIGNATURES.items() if head.startswith(starts)), "")
    if not kind:
        begin = f"begins with {head.hex(' ')}" if head else "empty"
        raise DataError(f"not an image: {begin}", hint="known are JPEG, PNG, GIF, BMP, WebP and TIFF")
    try:
        seen = look_jpeg(data) if kind == "jpeg" else look_by_pillow(data, kind)
    except struct.error as err:
        raise DataError(f"breaks off in the image's head, after {len(data)} bytes") from err
    if seen.width < 1 or seen.height < 1:
        raise DataError(f"{seen.kind.upper()} of {seen.width}x{seen.height} pixels")
    return seen


SIGNATURES = {
    "png": (b"\x89PNG\r\n\x1a\n",),
    "gif": (b"GIF87a", b"GIF89a"),
    "bmp": (b"BM",),
    "tiff": (b"II*\0", b"MM\0*"),
}


def look_jpeg(data: Bytes) -> Look:
    """Walk the markers to the frame header; segments on the way are skipped by their length."""
    place, end = 2, len(data)
    while place + 4 <= end:
        if data[place] != 0xFF:
            raise DataError(f"JPEG without a frame header: no marker at byte {place}")
        marker = data[place + 1]
        if marker == 0xFF:  # fill byte
            place += 1
        elif marker in LONE_MARKERS:
            place += 2
        elif marker in FRAMES:
            _, height, width, components = FRAME(data, place + 4)
            colour = JPEG_COLOURS.get(components)
            if colour is None:
                raise DataError(f"JPEG of {components} components; 1, 3 and 4 are allowed")
            return Look("jpeg", width, height, colour, marker in PROGRESSIVE, place)
        elif marker in (0xD9, 0xDA):
            raise DataError(
                f"JPEG without a frame header: {'ends' if marker == 0xD9 else 'scan begins'} at byte {place}"
            )
        else:
            length = SHORTS(data, place)[1]
            if length < 2:
                raise DataError(f"JPEG segment of length {length} at byte {place}")
            place += 2 + length
    raise DataError(f"JPEG without a frame header in {end} bytes")


def look_by_pillow(data: Bytes, kind: str) -> Look:
    from PIL import Image, UnidentifiedImageError  # seldom needed

    Image.MAX_IMAGE_PIXELS = None  # look_sized has the limit, whoever decodes
    try:
        with Image.open(io.BytesIO(data), formats=[kind]) as image:
            return Look(kind, *image.size, MODES.get(image.mode, "rgb"))
    except UnidentifiedImageError as err:
        raise DataError(f"corrupt {kind.upper()}: its head is damaged or breaks off") from err
    except Exception as err:  # Pillow's readers raise anything on damaged files
        raise DataError(f"corrupt {kind.upper()}: {err}") from err
