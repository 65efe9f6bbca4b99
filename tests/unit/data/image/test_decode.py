"""Tests of image headers, decoding (whole or top rows), errors for damaged images, and repairs."""

import contextlib
import functools
import struct
import zlib
from collections.abc import Callable

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from support.builders.damage import damaged
from support.builders.images import insert_before, mean_difference, noisy, save, save_sampled, save_scans
from trainstone.data.image import decode as decoding
from trainstone.data.image.decode import (
    MAX_PIXELS,
    MAX_SCRATCH_BYTES,
    Scratch,
    apply_exif_orientation,
    can_stop_early,
    choose_shrink,
    decode,
    decode_strict,
    decode_top_rows,
    encode_jpeg,
    read_checked_header,
    resize_shorter,
)
from trainstone.data.image.inspect import ImageHeader, read_header
from trainstone.data.prepare import repair
from trainstone.errors import DataError

BOTH = pytest.mark.parametrize("decoder", [decode, decode_strict])
ORIENTATION = 0x0112
Y, X = np.mgrid[:32, :48]
PHOTO = np.stack([X * 4 % 256, Y * 6 % 256, (X + Y) * 2 % 256], axis=2).astype(np.uint8)
"""Smooth, so that JPEG compression changes it little."""


@pytest.mark.parametrize(
    ("kind", "mode", "options", "colour", "tolerance"),
    [
        ("JPEG", "RGB", {"quality": 98}, "rgb", 3),
        ("JPEG", "RGB", {"quality": 98, "progressive": True}, "rgb", 3),
        ("JPEG", "L", {}, "grey", 80),
        ("JPEG", "CMYK", {"quality": 98}, "cmyk", 3),
        ("PNG", "RGB", {}, "rgb", 0),
        ("PNG", "RGBA", {}, "rgba", 0),
        ("PNG", "P", {}, "palette", 40),
        ("PNG", "P", {"transparency": b"\0\x80"}, "palette", 40),
        ("PNG", "L", {}, "grey", 80),
        ("PNG", "1", {}, "grey", 130),
        ("PNG", "LA", {}, "grey with alpha", 80),
        ("GIF", "RGB", {}, "palette", 40),
        ("BMP", "RGB", {}, "rgb", 0),
        ("BMP", "P", {}, "palette", 40),
        ("WEBP", "RGB", {}, "rgb", 20),
        ("WEBP", "RGB", {"lossless": True}, "rgb", 0),
        ("WEBP", "RGBA", {}, "rgba", 20),
        ("TIFF", "RGB", {}, "rgb", 0),
        ("TIFF", "RGB", {"big_endian": True}, "rgb", 0),
        ("TIFF", "CMYK", {}, "cmyk", 40),
    ],
)
def test_read_header_and_decode_support_every_format(kind: str, mode: str, options: dict, colour: str, tolerance: int):
    data = save(PHOTO, kind, mode, **options)
    header = read_header(data)
    assert header._replace(frame_at=-1) in [
        ImageHeader(kind.lower(), 48, 32, name, progressive="progressive" in options)
        for name in {colour, *(("rgb",) if kind == "WEBP" else ())}  # an opaque image may be stored without alpha
    ]
    assert read_header(memoryview(data)) == header
    for decoder in (decode, decode_strict):
        pixels = decoder(data)
        assert (pixels.dtype, pixels.shape) == (np.uint8, (32, 48, 3))
        assert np.abs(pixels.astype(int) - PHOTO).mean() <= tolerance


@BOTH
def test_decode_keeps_upper_byte_of_16_bit_images(decoder):
    data = save(np.full((4, 5), 0xABCD, np.uint16), "PNG", "I;16")
    assert np.array_equal(decoder(data), np.full((4, 5, 3), 0xAB, np.uint8))


@pytest.mark.parametrize("orientation", [*range(1, 9), 99])
def test_apply_exif_orientation_matches_pillow_and_cv2(orientation: int):
    image = Image.fromarray(PHOTO)
    image.getexif()[ORIENTATION] = orientation
    data = save(PHOTO, quality=98, exif=image.getexif())
    assert np.array_equal(apply_exif_orientation(PHOTO, data), np.asarray(ImageOps.exif_transpose(image)))
    shown = cv2.cvtColor(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    assert np.abs(apply_exif_orientation(decode(data), data).astype(int) - shown).mean() < 2


def test_read_header_skips_jpeg_segments_by_length():
    plain = save(PHOTO[:8, :16])
    comment = b"\xff\xfe" + struct.pack(">H", 60_000) + b"\xff\xc0" * 29_999
    data = plain[:2] + comment + b"\xff\xff" + plain[2:]
    header = read_header(data)
    assert header._replace(frame_at=-1) == ImageHeader("jpeg", 16, 8, "rgb")
    assert data[header.frame_at : header.frame_at + 9] == bytes.fromhex("ffc0 0011 08 0008 0010")


@BOTH
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not an image: empty"),
        (b"<html><body>404", "not an image: begins with 3c 68 74 6d"),
        (b"\xff\xd8\xff\xd9\0\0", "JPEG without a frame header: ends at byte 2"),
        (b"\xff\xd8\xff\xda\0\x08", "JPEG without a frame header: scan begins at byte 2"),
        (b"\xff\xd8abcdefgh", "JPEG without a frame header: no marker at byte 2"),
        (b"\xff\xd8\xff\xe0\0\x10", "JPEG without a frame header in 6 bytes"),
        (b"\xff\xd8\xff\xe0\0\0 more", "invalid length 0 of the JPEG segment at byte 2"),
        (b"\xff\xd8\xff\xc0\0\x11\x08\0\x01", "truncated image header: 9 bytes"),
        (b"\xff\xd8\xff\xc0\0\x11\x08\0\x01\0\x01\x02", "JPEG with 2 components; 1, 3 and 4 are allowed"),
        (b"\xff\xd8\xff\xc0\0\x11\x08\0\0\0\x01\x03", "invalid JPEG size: 1x0 pixels"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\x0dIDAT", "corrupt PNG: "),
        (b"II*\0\x08\0\0\0\0\0", "corrupt TIFF: "),
        (b"RIFF\0\0\0\0WEBPXXXX", "corrupt WEBP: "),
        (b"GIF89a", "corrupt GIF: "),
        (b"BM", "corrupt BMP: "),
    ],
)
def test_read_header_and_decode_report_reason_for_invalid_data(decoder, data: bytes, reason: str):
    for function in (read_header, decoder):
        with pytest.raises(DataError) as caught:
            function(data)
        assert caught.value.message.startswith(reason)


@BOTH
@pytest.mark.parametrize("progressive", [False, True])
def test_decode_rejects_truncated_jpeg(decoder, progressive: bool):
    whole = save(PHOTO, progressive=progressive)
    for length in range(1, len(whole), 7):
        with pytest.raises(DataError):
            decoder(whole[:length])
    with pytest.raises(DataError, match="truncated JPEG"):
        decoder(whole[:-2])
    assert np.array_equal(decoder(whole + bytes(700)), decoder(whole))  # trailing bytes are ignored


def test_extraneous_bytes_are_ignored_by_decode_and_rejected_by_decode_strict():
    whole = save(PHOTO)
    extraneous = whole[:-2] + b"extra" * 8 + whole[-2:]
    assert np.array_equal(decode(extraneous), decode(whole))
    upper = decode_top_rows(extraneous, len(PHOTO), used_scratch(), fast=False)
    assert np.array_equal(upper.pixels, decode(whole))
    with pytest.raises(DataError, match="extraneous bytes"):
        decode_strict(extraneous)


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP", "WEBP", "TIFF"])
def test_decode_strict_rejects_truncated_image_of_other_formats(kind: str):
    whole = save(noisy(64, 64), kind)
    assert decode_strict(whole).shape == (64, 64, 3)
    with pytest.raises(DataError, match=f"(truncated|corrupt) {kind}"):
        decode_strict(whole[: len(whole) // 2])


def test_decode_strict_checks_png_to_its_last_chunk():
    whole = save(PHOTO, "PNG")
    with pytest.raises(DataError, match="truncated PNG"):
        decode_strict(whole[:-12])
    flipped = bytearray(whole)
    flipped[whole.index(b"IDAT") + 24] ^= 0x10
    with pytest.raises(DataError, match=r"corrupt PNG: .*checksum"):
        decode_strict(bytes(flipped))


@BOTH
def test_decode_rejects_header_with_too_many_pixels(decoder):
    jpeg = bytearray(save(PHOTO))
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = struct.pack(">HH", 65000, 65000)
    header = b"IHDR" + struct.pack(">IIBBBBB", 2**31 - 1, 2**31 - 1, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    for claim in (bytes(jpeg), png + save(PHOTO, "PNG")[33:]):
        with pytest.raises(DataError, match=f"at most {MAX_PIXELS:,}"):
            decoder(claim)


KINDS = [save(PHOTO, kind) for kind in ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF")]
KINDS += [save(PHOTO, "JPEG", "CMYK"), save(PHOTO, "PNG", "P")]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.sampled_from(KINDS).flatmap(damaged))
def test_decode_of_damaged_image_returns_pixels_or_raises_data_error(data: bytes):
    for decoder in (decode, decode_strict):
        with contextlib.suppress(DataError):
            header = read_header(data)
            assert min(header.width, header.height) > 0
            if header.width * header.height > 1_000_000:
                return  # allowed, but slow
            assert decoder(data).shape[2:] == (3,)


@pytest.mark.parametrize("quality", [75, 100])
def test_encode_jpeg_matches_cv2_with_420_subsampling(quality: int):
    encoded = encode_jpeg(PHOTO, quality)
    done, expected = cv2.imencode(".jpg", PHOTO[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
    assert done
    assert encoded == expected.tobytes()
    frame = encoded.index(b"\xff\xc0")
    assert [encoded[frame + place] for place in (11, 14, 17)] == [0x22, 0x11, 0x11]


@pytest.mark.parametrize(
    ("width", "height", "side", "expected"),
    [(500, 375, 240, (320, 240)), (375, 500, 240, (240, 320)), (333, 500, 256, (256, 384)), (64, 64, 100, (100, 100))],
)
def test_resize_shorter_matches_im2rec(width: int, height: int, side: int, expected: tuple[int, int]):
    pixels = noisy(width, height)
    assert np.array_equal(resize_shorter(pixels, side), cv2.resize(pixels, expected))
    with pytest.raises(DataError, match="resized to"):
        resize_shorter(np.zeros((1, 60_000, 3), np.uint8), side)


@pytest.mark.parametrize(
    ("name", "image", "reason"),
    [
        ("n02105855/n02105855_2933.JPEG", save(PHOTO, "PNG"), "PNG named .JPEG"),
        ("a.jpg", save(PHOTO, "GIF"), "GIF named .jpg"),
        ("a.jpeg", save(PHOTO, "PNG", "RGBA"), "PNG named .jpeg"),
        ("n01739381/n01739381_1309.JPEG", save(PHOTO, "JPEG", "CMYK"), "CMYK JPEG"),
        ("a.png", save(PHOTO, "JPEG", "CMYK"), "CMYK JPEG"),
        ("a.jpg", save(PHOTO), None),
        ("a.JPEG", save(PHOTO, "JPEG", "L"), None),
        ("a.png", save(PHOTO, "PNG"), None),
        ("b.png", save(PHOTO), None),
        ("c", save(PHOTO, "BMP"), None),
    ],
)
def test_repair_reencodes_only_faulty_images_and_returns_reason(name: str, image: bytes, reason: str | None):
    repaired, found = repair(name, image, read_header(image))
    assert found == reason
    if reason is None:
        assert repaired == image
    else:
        assert read_header(repaired)[:4] == ("jpeg", 48, 32, "rgb")
        assert np.abs(decode(repaired).astype(int) - decode(image)).mean() < 3


WIDTH, HEIGHT = 45, 59
STALE = 77
LAYOUTS = {
    **{
        sampling: save_sampled(noisy(WIDTH, HEIGHT), sampling)
        for sampling in ("444", "422", "420", "440", "411", "Gray")
    },
    "progressive": save(noisy(WIDTH, HEIGHT), progressive=True),
    "progressive 444": save(noisy(WIDTH, HEIGHT), progressive=True, subsampling=0),
    "restart rows": save(noisy(WIDTH, HEIGHT), restart_marker_rows=1),
    "restart blocks": save(noisy(WIDTH, HEIGHT), restart_marker_blocks=2),
    "progressive restart": save(noisy(WIDTH, HEIGHT), progressive=True, restart_marker_rows=1),
    "scans": save_scans(noisy(WIDTH, HEIGHT)),
    "scans restart": save_scans(noisy(WIDTH, HEIGHT), restart_marker_rows=1),
}
TALL = noisy(64, 192)
MANY_SCANS = [save(TALL, progressive=True), save_scans(TALL), save_scans(TALL, restart_marker_rows=1)]


def used_scratch(size: int = 1 << 20) -> Scratch:
    """Return a decode buffer that still contains the previous image."""
    scratch = Scratch()
    scratch.take(size, 1)[:] = STALE
    return scratch


@pytest.fixture
def count_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list of heights in the headers of all decoded images."""
    rows: list[int] = []

    def spy(data, *arguments, **options):
        rows.append(read_checked_header(bytes(data)).height)
        return real(data, *arguments, **options)

    real = simplejpeg.decode_jpeg
    monkeypatch.setattr(decoding.simplejpeg, "decode_jpeg", spy)
    return rows


@pytest.mark.parametrize(("fast", "shrink"), [(False, 1), (True, 1), (True, 2), (True, 4), (True, 8)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_decode_top_rows_equals_rows_of_whole_image(layout: str, fast: bool, shrink: int):
    data, scratch = LAYOUTS[layout], used_scratch()
    whole = simplejpeg.decode_jpeg(data, "RGB", fast, False, -(-HEIGHT // shrink), -(-WIDTH // shrink), shrink)
    for bottom in range(1, HEIGHT + 1, 1 if shrink == 1 else 3):
        part = decode_top_rows(data, bottom, scratch, fast=fast, shrink=shrink)
        rows = round(bottom / shrink)
        assert part.shrink == shrink
        assert rows <= len(part.pixels) <= len(whole)
        assert np.array_equal(part.pixels[:rows], whole[:rows])


@pytest.mark.parametrize("layout", ["444", "420", "422", "Gray", "restart rows"])
def test_decode_top_rows_stops_after_needed_rows(layout: str, count_rows: list[int]):
    assert can_stop_early()
    count_rows.clear()
    for bottom in (10, 30, 31, HEIGHT):
        decode_top_rows(LAYOUTS[layout], bottom, Scratch(), fast=True)
    assert count_rows == [16, 32, 48, HEIGHT]


@pytest.mark.parametrize(("kind", "mode"), [("PNG", "RGB"), ("WEBP", "RGB"), ("JPEG", "CMYK"), ("GIF", "RGB")])
def test_decode_top_rows_decodes_other_formats_whole_into_own_memory(kind: str, mode: str):
    data = save(noisy(WIDTH, HEIGHT), kind, mode)
    part = decode_top_rows(data, 3, Scratch(), fast=True, shrink=4)
    assert part.shrink == 1
    assert part.owned
    assert np.array_equal(part.pixels, decode(data))


def test_choose_shrink_keeps_image_at_least_target_size():
    sizes = [(100, 100), (447, 448), (448, 448), (895, 2_000), (896, 900), (1_792, 1_792), (9_000, 9_000)]
    assert [choose_shrink(width, height, 224) for width, height in sizes] == [1, 1, 2, 2, 4, 8, 8]


@pytest.mark.parametrize("layout", ["420", "444", "restart rows", "progressive", "scans"])
@pytest.mark.parametrize("share", [0.2, 0.6, 0.97])
def test_decode_top_rows_rejects_truncation_within_needed_rows(layout: str, share: float):
    data = LAYOUTS[layout]
    start = data.index(b"\xff\xda")
    with pytest.raises(DataError, match=r"truncated|corrupt"):
        decode_top_rows(data[: start + int((len(data) - start) * share)], HEIGHT, used_scratch(), fast=True)


@pytest.mark.parametrize("data", MANY_SCANS, ids=["progressive", "scans", "scans restart"])
def test_decode_top_rows_never_accepts_missing_scans(data: bytes):
    """Each scan covers all rows, so a missing scan also makes the top rows wrong."""
    whole = decode(data)
    wrong = {}
    for end in range(data.index(b"\xff\xda") + 50, len(data) - 2, 97):
        try:
            pixels = decode_top_rows(data[:end], 40, used_scratch(), fast=False).pixels
        except DataError:
            continue
        wrong[end] = mean_difference(pixels[:40], whole[:40])
    assert not any(wrong.values()), f"{len(wrong)} pass, off by up to {max(wrong.values()):.1f} grey levels"


@pytest.mark.parametrize("marker", [b"\xff\xda", b"\xff\xc4"], ids=["before the scan", "before a table"])
@pytest.mark.parametrize("bottom", [10, HEIGHT])
@pytest.mark.parametrize("layout", ["420", "progressive"])
@pytest.mark.parametrize("extraneous", [b"\1\2\3", b"\1\2\xff\xd3", b"\xff\xd3", b"\xff\xff\xff", b"\0" * 300])
def test_decode_top_rows_never_returns_previous_image_after_extraneous_bytes(
    layout: str, bottom: int, marker: bytes, extraneous: bytes
):
    """The decoder aborts before it writes a pixel; the previous buffer content must not be returned as this image."""
    data = LAYOUTS[layout]
    frame_at = read_checked_header(data).frame_at
    broken = data[:frame_at] + insert_before(data[frame_at:], marker, extraneous)
    try:
        pixels = decode_top_rows(broken, bottom, used_scratch(), fast=False).pixels
    except DataError:
        return
    assert np.array_equal(pixels[:bottom], decode(data)[:bottom])


def decode_or_message(decoder: Callable[[bytes], np.ndarray], data: bytes) -> np.ndarray | str:
    """Return the pixels or the error message."""
    try:
        return decoder(data)
    except DataError as err:
        return err.message


def decode_all(data: bytes) -> np.ndarray:
    return decode_top_rows(data, HEIGHT, used_scratch(), fast=False).pixels


@pytest.mark.parametrize("layout", ["420", "444", "restart rows", "progressive"])
def test_decode_top_rows_reports_same_corruption_as_decode(layout: str):
    data, num_errors = LAYOUTS[layout], 0
    for at in range(data.index(b"\xff\xda") + 14, len(data) - 2, 5):
        broken = data[:at] + bytes((data[at] ^ 0x5A,)) + data[at + 1 :]
        whole, ours = (decode_or_message(decoder, broken) for decoder in (decode, decode_all))
        assert np.array_equal(ours, whole)
        num_errors += isinstance(whole, str)
    assert num_errors


def test_scratch_reuses_memory():
    scratch = Scratch()
    first = scratch.take(20, 10)
    assert first.shape == (20, 10, 3)
    assert np.shares_memory(first, scratch.take(5, 4))
    assert not np.shares_memory(first, scratch.take(200, 100))
    kept = scratch.take(200, 100)
    huge = scratch.take(MAX_SCRATCH_BYTES // 3 + 1, 1)
    assert not np.shares_memory(huge, kept)
    assert np.shares_memory(scratch.take(200, 100), kept)


def test_decode_top_rows_without_early_stop_decodes_whole_image(monkeypatch: pytest.MonkeyPatch, count_rows: list[int]):
    monkeypatch.setattr(decoding, "can_stop_early", functools.cache(lambda: False))
    part = decode_top_rows(LAYOUTS["420"], 10, Scratch(), fast=False)
    assert count_rows == [HEIGHT]
    assert np.array_equal(part.pixels, decode(LAYOUTS["420"]))
