"""What a picture is, from its head."""

import io
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from trainstone.data.picture.look import Look, look
from trainstone.errors import DataError


def make(kind: str, mode: str = "RGB", size: tuple[int, int] = (37, 21), **options) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (make("JPEG"), Look("jpeg", 37, 21, "rgb")),
        (make("JPEG", progressive=True), Look("jpeg", 37, 21, "rgb", progressive=True)),
        (make("JPEG", "L"), Look("jpeg", 37, 21, "grey")),
        (make("JPEG", "CMYK"), Look("jpeg", 37, 21, "cmyk")),
        (make("PNG"), Look("png", 37, 21, "rgb")),
        (make("PNG", "RGBA"), Look("png", 37, 21, "rgba")),
        (make("PNG", "P"), Look("png", 37, 21, "palette")),
        (make("PNG", "LA"), Look("png", 37, 21, "grey with alpha")),
        (make("GIF"), Look("gif", 37, 21, "palette")),
        (make("BMP"), Look("bmp", 37, 21, "rgb")),
        (make("BMP", "L"), Look("bmp", 37, 21, "palette")),
        (make("WEBP"), Look("webp", 37, 21, "rgb")),
        (make("WEBP", lossless=True), Look("webp", 37, 21, "rgb")),
        (make("WEBP", "RGBA", exif=b"II*\0"), Look("webp", 37, 21, "rgb")),
        (make("TIFF"), Look("tiff", 37, 21, "rgb")),
        (make("TIFF", "CMYK"), Look("tiff", 37, 21, "cmyk")),
        (make("TIFF", big_endian=True), Look("tiff", 37, 21, "rgb")),
    ],
)
def test_every_kind_is_told(data: bytes, expected: Look):
    assert look(data)._replace(colour="", orientation=1, frame_at=-1) == expected._replace(colour="")
    if data[8:16] != b"WEBPVP8X":  # an opaque picture may say that it has alpha
        assert look(data).colour == expected.colour
    assert look(memoryview(data)) == look(data)


@pytest.mark.parametrize("turned", range(1, 9))
def test_the_orientation_that_exif_states(turned: int):
    exif = Image.Exif()
    exif[274] = turned
    assert look(make("JPEG", exif=exif)).orientation == turned


def test_an_orientation_out_of_range_is_none():
    exif = Image.Exif()
    exif[274] = 99
    assert look(make("JPEG", exif=exif)).orientation == 1


def test_segments_on_the_way_are_skipped_by_their_length():
    plain = make("JPEG", size=(16, 8))
    comment = b"\xff\xfe" + struct.pack(">H", 60_000) + b"\xff\xc0" * 29_999
    data = plain[:2] + comment + b"\xff\xff" + plain[2:]
    seen = look(data)
    assert seen._replace(frame_at=-1) == Look("jpeg", 16, 8, "rgb")
    assert data[seen.frame_at : seen.frame_at + 9] == bytes.fromhex("ffc0 0011 08 0008 0010")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not a picture: empty"),
        (b"<html><body>404", "not a picture: begins with 3c 68 74 6d"),
        (b"\xff\xd8\xff\xd9\0\0", "JPEG without a frame header: ends at byte 2"),
        (b"\xff\xd8\xff\xda\0\x08", "JPEG without a frame header: scan begins at byte 2"),
        (b"\xff\xd8abcdefgh", "JPEG without a frame header: no marker at byte 2"),
        (b"\xff\xd8\xff\xe0\0\x10", "JPEG without a frame header in 6 bytes"),
        (b"\xff\xd8\xff\xe0\0\0 more", "JPEG segment of length 0 at byte 2"),
        (b"\xff\xd8\xff\xc0\0\x11\x08\0\x01", "breaks off in the picture's head"),
        (b"\xff\xd8\xff\xc0\0\x11\x08\0\x01\0\x01\x02", "JPEG of 2 components; 1, 3 and 4 are allowed"),
        (b"\xff\xd8\xff\xc0\0\x11\x08\0\0\0\x01\x03", "JPEG of 1x0 pixels"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\x0dIDAT", "PNG without a header"),
        (b"II*\0\x08\0\0\0\0\0", "TIFF of 0x0 pixels"),
        (b"RIFF\0\0\0\0WEBPXXXX", "WebP whose first chunk is"),
    ],
)
def test_what_is_no_picture_is_told_why(data: bytes, why: str):
    with pytest.raises(DataError) as caught:
        look(data, where="train/a.jpg")
    assert caught.value.message.startswith(f"train/a.jpg: {why}")


KINDS = [make("JPEG"), make("PNG"), make("GIF"), make("BMP"), make("WEBP"), make("TIFF")]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.sampled_from(KINDS),
    st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), max_size=8),
    st.integers(0, 900),
)
def test_damaged_heads_give_a_look_or_a_data_error(data: bytes, changes: list[tuple[int, int]], length: int):
    damaged = bytearray(data[:length])
    for place, value in changes:
        if place < len(damaged):
            damaged[place] = value
    try:
        seen = look(bytes(damaged))
    except DataError:
        return
    assert seen.width > 0
    assert seen.height > 0


def test_real_pictures_are_seen_as_pillow_sees_them():
    root = os.environ.get("TRAINSTONE_REAL_DATA")
    if root is None:
        pytest.skip("needs TRAINSTONE_REAL_DATA")
    paths = [*Path(root, "jpeg-edge-cases").rglob("*.jpg"), *sorted(Path(root, "detection").rglob("*.jpg"))[:40]]
    assert len(paths) > 40
    for path in paths:
        with Image.open(path) as image:
            seen = look(path.read_bytes(), str(path))
            assert (seen.width, seen.height) == image.size, path
            assert {"RGB": "rgb", "L": "grey", "CMYK": "cmyk"}[image.mode] == seen.colour, path
