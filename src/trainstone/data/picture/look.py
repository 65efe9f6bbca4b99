"""What a picture is, told from its first bytes: kind, size, colours. Decodes nothing, so a whole picture may be bad."""

import struct
from typing import NamedTuple

from trainstone.errors import DataError

Bytes = bytes | memoryview


class Look(NamedTuple):
    """What a picture's head says."""

    kind: str
    """jpeg, png, gif, bmp, webp or tiff."""
    width: int
    height: int
    colour: str
    """rgb, grey, cmyk, palette, rgba or grey with alpha."""
    progressive: bool = False
    orientation: int = 1
    """As EXIF counts, 1 (upright) to 8; decoders here do not turn pictures."""
    frame_at: int = -1
    """JPEG: the byte its frame header begins at."""


PNG_HEAD = b"\x89PNG\r\n\x1a\n"
PNG_COLOURS = {0: "grey", 2: "rgb", 3: "palette", 4: "grey with alpha", 6: "rgba"}
TIFF_COLOURS = {0: "grey", 1: "grey", 2: "rgb", 3: "palette", 5: "cmyk", 6: "rgb"}
JPEG_COLOURS = {1: "grey", 3: "rgb", 4: "cmyk"}
# Start of frame: all of C0 to CF but C4 (Huffman tables), C8 (reserved) and CC (arithmetic tables); ITU-T T.81, B.1.1.3
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
PROGRESSIVE = frozenset((0xC2, 0xC6, 0xCA, 0xCE))
LONE_MARKERS = frozenset((0x01, *range(0xD0, 0xD8)))
SHORTS = struct.Struct(">HH").unpack_from
FRAME = struct.Struct(">BHHB").unpack_from
WIDTH_TAG, HEIGHT_TAG, PHOTOMETRIC_TAG, ORIENTATION_TAG = 256, 257, 262, 274


ENDINGS = {"jpeg": "jpg", "png": "png", "gif": "gif", "bmp": "bmp", "webp": "webp", "tiff": "tiff"}
"""What files of each kind are called."""


def find_ending(data: Bytes) -> str:
    """Return the ending for a picture that has no name; one that cannot be told is taken for a JPEG."""
    try:
        return ENDINGS[look(data).kind]
    except DataError:
        return ENDINGS["jpeg"]


def look(data: Bytes, where: str = "") -> Look:
    """Return what the picture is; DataError, opening with `where`, for what is none or breaks off."""
    try:
        seen = _look(data)
    except struct.error as err:
        raise DataError(f"{_open(where)}breaks off in the picture's head, after {len(data)} bytes") from err
    except DataError as err:
        raise DataError(f"{_open(where)}{err.message}", hint=err.hint) from err
    if seen.width < 1 or seen.height < 1:
        raise DataError(f"{_open(where)}{seen.kind.upper()} of {seen.width}x{seen.height} pixels")
    return seen


def _open(where: str) -> str:
    return f"{where}: " if where else ""


def _look(data: Bytes) -> Look:
    head = bytes(data[:12])
    if head[:2] == b"\xff\xd8":
        return look_jpeg(data)
    if head[:8] == PNG_HEAD:
        return look_png(data)
    if head[:6] in (b"GIF87a", b"GIF89a"):
        width, height = struct.unpack_from("<HH", data, 6)
        return Look("gif", width, height, "palette")
    if head[:2] == b"BM":
        return look_bmp(data)
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return look_webp(data)
    if head[:4] in (b"II*\0", b"MM\0*"):
        return look_tiff(data)
    if not head:
        raise DataError("not a picture: empty")
    raise DataError(f"not a picture: begins with {head.hex(' ')}", hint="known are JPEG, PNG, GIF, BMP, WebP and TIFF")


def look_jpeg(data: Bytes) -> Look:
    """Walk the markers to the frame header; segments on the way are skipped by their length."""
    place, end, orientation = 2, len(data), 1
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
            return Look("jpeg", width, height, colour, marker in PROGRESSIVE, orientation, place)
        elif marker in (0xD9, 0xDA):
            raise DataError(
                f"JPEG without a frame header: {'ends' if marker == 0xD9 else 'scan begins'} at byte {place}"
            )
        else:
            length = SHORTS(data, place)[1]
            if length < 2:
                raise DataError(f"JPEG segment of length {length} at byte {place}")
            if marker == 0xE1 and data[place + 4 : place + 10] == b"Exif\0\0":
                orientation = read_orientation(data[place + 10 : place + 2 + length])
            place += 2 + length
    raise DataError(f"JPEG without a frame header in {end} bytes")


def read_orientation(exif: Bytes) -> int:
    """Return the orientation that EXIF states; 1 where it states none or is damaged: the pixels are fine without."""
    try:
        found = read_tags(exif).get(ORIENTATION_TAG, 1)
    except (struct.error, DataError):
        return 1
    return found if 1 <= found <= 8 else 1


def read_tags(tiff: Bytes) -> dict[int, int]:
    """Return the whole numbers of a TIFF's first directory, by tag; longer values are left out."""
    order = {b"II": "<", b"MM": ">"}.get(bytes(tiff[:2]))
    if order is None:
        raise DataError("TIFF without a byte order")
    (place,) = struct.unpack_from(f"{order}I", tiff, 4)
    (count,) = struct.unpack_from(f"{order}H", tiff, place)
    entry = struct.Struct(f"{order}HHI4s")
    tags = {}
    for number in range(count):
        tag, kind, num_values, value = entry.unpack_from(tiff, place + 2 + 12 * number)
        if num_values == 1 and kind in (3, 4):
            (tags[tag],) = struct.unpack_from(f"{order}{'H' if kind == 3 else 'I'}", value)
    return tags


def look_tiff(data: Bytes) -> Look:
    """Read the first directory."""
    tags = read_tags(data)
    width, height = tags.get(WIDTH_TAG, 0), tags.get(HEIGHT_TAG, 0)
    colour = TIFF_COLOURS.get(tags.get(PHOTOMETRIC_TAG, -1), "rgb")
    orientation = tags.get(ORIENTATION_TAG, 1)
    return Look("tiff", width, height, colour, orientation=orientation if 1 <= orientation <= 8 else 1)


def look_png(data: Bytes) -> Look:
    """Read the IHDR chunk, which must come first."""
    if bytes(data[12:16]) != b"IHDR":
        raise DataError("PNG without a header (IHDR) as first chunk")
    width, height, _, colour, _, _, interlaced = struct.unpack_from(">IIBBBBB", data, 16)
    if colour not in PNG_COLOURS:
        raise DataError(f"PNG of colour type {colour}; {', '.join(map(str, PNG_COLOURS))} are allowed")
    return Look("png", width, height, PNG_COLOURS[colour], progressive=interlaced == 1)


def look_bmp(data: Bytes) -> Look:
    """Read the header of OS/2 (12 bytes) or Windows (40 and more)."""
    (size,) = struct.unpack_from("<I", data, 14)
    if size == 12:
        width, height, _, bits = struct.unpack_from("<HHHH", data, 18)
    elif 16 <= size <= 256:
        width, height, _, bits = struct.unpack_from("<iiHH", data, 18)
    else:
        raise DataError(f"BMP with a header of {size} bytes")
    return Look("bmp", width, abs(height), "palette" if bits <= 8 else "rgb")


def look_webp(data: Bytes) -> Look:
    """Read the first chunk: lossy, lossless or extended (RFC 9649)."""
    chunk = bytes(data[12:16])
    if chunk == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return Look("webp", width & 0x3FFF, height & 0x3FFF, "rgb")
    if chunk == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return Look("webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, "rgba" if bits >> 28 & 1 else "rgb")
    if chunk == b"VP8X":
        flags, low_width, high_width, low_height, high_height = struct.unpack_from("<B3xHBHB", data, 20)
        width, height = low_width + (high_width << 16) + 1, low_height + (high_height << 16) + 1
        return Look("webp", width, height, "rgba" if flags & 0x10 else "rgb")
    raise DataError(f"WebP whose first chunk is {chunk!r}")
