"""Pixels from whole pictures, reasons from damaged ones."""

import io
import os
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from trainstone.data.picture.decode import MAX_PIXELS, decode, decode_strict, encode_jpeg, resize_shorter, turn_upright
from trainstone.data.picture.look import look
from trainstone.errors import DataError

BOTH = pytest.mark.parametrize("decoder", [decode, decode_strict])


def photo(width: int = 48, height: int = 32) -> np.ndarray:
    """Smooth, so that a JPEG keeps it."""
    y, x = np.mgrid[:height, :width]
    return np.stack([x * 4 % 256, y * 6 % 256, (x + y) * 2 % 256], axis=2).astype(np.uint8)


def save(kind: str, mode: str = "RGB", pixels: np.ndarray | None = None, **options) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(photo() if pixels is None else pixels).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


@BOTH
@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_lossless_pictures_come_back_exactly(decoder, kind: str):
    pixels = decoder(save(kind))
    assert pixels.dtype == np.uint8
    assert np.array_equal(pixels, photo())


@BOTH
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"mode": "CMYK"}])
def test_jpegs_come_back_nearly(decoder, options: dict):
    pixels = decoder(save("JPEG", quality=98, **options))
    assert np.abs(pixels.astype(int) - photo()).mean() < 3


@BOTH
@pytest.mark.parametrize(("kind", "mode"), [("JPEG", "L"), ("PNG", "L"), ("PNG", "LA"), ("PNG", "1")])
def test_grey_becomes_rgb(decoder, kind: str, mode: str):
    pixels = decoder(save(kind, mode))
    assert pixels.shape == (32, 48, 3)
    assert np.array_equal(pixels[..., 0], pixels[..., 2])


@BOTH
@pytest.mark.parametrize(
    ("kind", "mode"), [("PNG", "RGBA"), ("PNG", "P"), ("GIF", "RGB"), ("WEBP", "RGB"), ("TIFF", "CMYK")]
)
def test_other_colours_become_rgb(decoder, kind: str, mode: str):
    assert np.abs(decoder(save(kind, mode)).astype(int) - photo()).mean() < 40


@BOTH
def test_a_palette_with_a_transparent_entry(decoder):
    assert decoder(save("PNG", "P", transparency=b"\0\x80")).shape == (32, 48, 3)


@BOTH
def test_sixteen_bits_keep_their_upper_byte(decoder):
    buffer = io.BytesIO()
    Image.fromarray(np.full((4, 5), 0xABCD, np.uint16)).save(buffer, "PNG")
    assert np.array_equal(decoder(buffer.getvalue()), np.full((4, 5, 3), 0xAB, np.uint8))


@BOTH
@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_cut_anywhere_is_truncated(decoder, progressive: bool):
    whole = save("JPEG", progressive=progressive)
    for length in range(1, len(whole), 7):
        with pytest.raises(DataError):
            decoder(whole[:length])
    with pytest.raises(DataError, match="truncated JPEG"):
        decoder(whole[:-2])


@BOTH
def test_bytes_behind_the_end_do_no_harm(decoder):
    assert decoder(save("JPEG") + b"\0" * 700).shape == (32, 48, 3)


def test_bytes_astray_are_passed_over_for_training_and_told_by_verify():
    whole = save("JPEG")
    astray = whole[:-2] + b"astray" * 8 + whole[-2:]
    assert np.array_equal(decode(astray), decode(whole))
    with pytest.raises(DataError, match="extraneous bytes"):
        decode_strict(astray)


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP", "WEBP", "TIFF"])
def test_other_kinds_cut_in_the_middle_are_bad(kind: str):
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    whole = save(kind, pixels=pixels)
    assert decode_strict(whole).shape == (64, 64, 3)
    with pytest.raises(DataError, match=f"(truncated|corrupt) {kind}"):
        decode_strict(whole[: len(whole) // 2])


def test_a_png_is_checked_to_its_last_chunk():
    whole = save("PNG")
    with pytest.raises(DataError, match="truncated PNG"):
        decode_strict(whole[:-12])
    data_at = whole.index(b"IDAT") + 4
    flipped = bytearray(whole)
    flipped[data_at + 20] ^= 0x10
    with pytest.raises(DataError, match=f"wrong checksum of the chunk at byte {data_at - 8}"):
        decode_strict(bytes(flipped))


@BOTH
def test_a_claim_of_too_many_pixels_is_refused_before_decoding(decoder):
    jpeg = bytearray(save("JPEG"))
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = struct.pack(">HH", 65000, 65000)
    header = struct.pack(">IIBBBBB", 2**31 - 1, 2**31 - 1, 8, 2, 0, 0, 0)
    png = (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13)
        + b"IHDR"
        + header
        + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    )
    for claim in (bytes(jpeg), png):
        with pytest.raises(DataError, match=f"at most {MAX_PIXELS:,}"):
            decoder(claim)


DAMAGED = [
    save("JPEG"),
    save("JPEG", "CMYK"),
    save("PNG"),
    save("PNG", "P"),
    save("GIF"),
    save("BMP"),
    save("WEBP"),
    save("TIFF"),
]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.sampled_from(DAMAGED), st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), min_size=1, max_size=6))
def test_damage_gives_pixels_or_a_data_error(data: bytes, changes: list[tuple[int, int]]):
    damaged = bytearray(data)
    for place, value in changes:
        damaged[place % len(damaged)] = value
    for decoder in (decode, decode_strict):
        try:
            seen = look(bytes(damaged))
            if seen.width * seen.height > 1_000_000:
                return  # allowed, but slow
            pixels = decoder(bytes(damaged))
        except DataError:
            continue
        assert pixels.ndim == 3
        assert pixels.shape[2] == 3


@pytest.mark.parametrize("quality", [75, 95, 100])
def test_jpegs_are_written_as_cv2_writes_them_with_colours_at_half_size(quality: int):
    encoded = encode_jpeg(photo(), quality)
    done, expected = cv2.imencode(".jpg", photo()[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
    assert done
    assert encoded == expected.tobytes()
    frame = encoded.index(b"\xff\xc0")
    assert [encoded[frame + place] for place in (11, 14, 17)] == [0x22, 0x11, 0x11]


@pytest.mark.parametrize(
    ("width", "height", "side", "expected"),
    [(500, 375, 240, (320, 240)), (375, 500, 240, (240, 320)), (333, 500, 256, (256, 384)), (64, 64, 100, (100, 100))],
)
def test_the_shorter_side_is_scaled_as_im2rec_does(width: int, height: int, side: int, expected: tuple[int, int]):
    pixels = np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)
    resized = resize_shorter(pixels, side)
    assert (resized.shape[1], resized.shape[0]) == expected
    assert np.array_equal(resized, cv2.resize(pixels, expected))


def test_a_sliver_is_not_blown_up_without_bounds():
    with pytest.raises(DataError, match="would become"):
        resize_shorter(np.zeros((1, 60_000, 3), np.uint8), 240)


def test_real_damaged_pictures_are_told_from_sound_ones():
    root = os.environ.get("TRAINSTONE_REAL_DATA")
    if root is None:
        pytest.skip("needs TRAINSTONE_REAL_DATA")
    reasons = {}
    for path in Path(root, "jpeg-edge-cases").rglob("*.jpg"):
        try:
            decode_strict(path.read_bytes())
        except DataError as err:
            reasons[path.name] = err.message
    assert set(reasons) == {"bad_huffman.jpg", "corrupt.jpg", "corrupt34_2.jpg", "corrupt34_3.jpg", "corrupt34_4.jpg"}
    assert reasons["corrupt34_2.jpg"] == "truncated JPEG: the data ends before the picture does"
    folder = next(Path(root, "jpeg-edge-cases").rglob("cmyk_pytorch.jpg")).parent
    cmyk, rgb = (decode((folder / f"{kind}_pytorch.jpg").read_bytes()).astype(int) for kind in ("cmyk", "rgb"))
    assert np.abs(cmyk - rgb).mean() < 5


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_as_pillow_turns_them(orientation: int):
    image = Image.fromarray(photo())
    image.getexif()[0x0112] = orientation
    wanted = np.asarray(ImageOps.exif_transpose(image))
    assert np.array_equal(turn_upright(photo(), orientation), wanted)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_jpeg_looks_as_cv2_shows_it(orientation: int):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = save("JPEG", quality=98, exif=exif)
    shown = cv2.cvtColor(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    turned = turn_upright(decode(data), look(data).orientation)
    assert turned.shape == shown.shape
    assert np.abs(turned.astype(int) - shown).mean() < 2
