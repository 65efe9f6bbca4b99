"""The upper part of a picture is bit for bit that of the whole, and damage is told as it is of the whole."""

import functools
from collections.abc import Callable

import numpy as np
import pytest
import simplejpeg

from made_pictures import busy, mean_difference, put_before, save, save_sampled, save_scans
from trainstone.data.picture import decode as decoding
from trainstone.data.picture.decode import (
    MAX_KEPT_BYTES,
    Scratch,
    can_stop_early,
    choose_shrink,
    decode,
    decode_upper,
    look_sized,
)
from trainstone.errors import DataError

WIDTH, HEIGHT = 45, 59
STALE = 77
LAYOUTS = {
    **{
        sampling: save_sampled(busy(WIDTH, HEIGHT), sampling)
        for sampling in ("444", "422", "420", "440", "411", "Gray")
    },
    "progressive": save(busy(WIDTH, HEIGHT), progressive=True),
    "progressive 444": save(busy(WIDTH, HEIGHT), progressive=True, subsampling=0),
    "restart rows": save(busy(WIDTH, HEIGHT), restart_marker_rows=1),
    "restart blocks": save(busy(WIDTH, HEIGHT), restart_marker_blocks=2),
    "progressive restart": save(busy(WIDTH, HEIGHT), progressive=True, restart_marker_rows=1),
    "scans": save_scans(busy(WIDTH, HEIGHT)),
    "scans restart": save_scans(busy(WIDTH, HEIGHT), restart_marker_rows=1),
}
TALL = busy(64, 192)
MANY_SCANS = {
    "progressive": save(TALL, progressive=True),
    "scans": save_scans(TALL),
    "scans restart": save_scans(TALL, restart_marker_rows=1),
}


def used_scratch(size: int = 1 << 20) -> Scratch:
    """Memory in which the picture before can still be seen."""
    scratch = Scratch()
    scratch.take(size, 1)[:] = STALE
    return scratch


@pytest.fixture
def count_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each decoded picture claimed to have."""
    rows: list[int] = []

    def spy(data, *arguments, **options):
        rows.append(look_sized(bytes(data)).height)
        return real(data, *arguments, **options)

    real = simplejpeg.decode_jpeg
    monkeypatch.setattr(decoding.simplejpeg, "decode_jpeg", spy)
    return rows


@pytest.mark.parametrize(("fast", "shrink"), [(False, 1), (True, 1), (True, 2), (True, 4), (True, 8)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_above_are_those_of_the_whole(layout: str, fast: bool, shrink: int):
    data, scratch = LAYOUTS[layout], used_scratch()
    whole = simplejpeg.decode_jpeg(data, "RGB", fast, False, -(-HEIGHT // shrink), -(-WIDTH // shrink), shrink)
    for bottom in range(1, HEIGHT + 1, 1 if shrink == 1 else 3):
        part = decode_upper(data, bottom, scratch, fast=fast, shrink=shrink)
        rows = round(bottom / shrink)
        assert part.shrink == shrink
        assert rows <= len(part.pixels) <= len(whole)
        assert np.array_equal(part.pixels[:rows], whole[:rows])


@pytest.mark.parametrize("layout", ["444", "420", "422", "Gray", "restart rows"])
def test_no_more_than_the_rows_needed_are_decoded(layout: str, count_rows: list[int]):
    assert can_stop_early()
    count_rows.clear()
    for bottom in (10, 30, 31, HEIGHT):
        decode_upper(LAYOUTS[layout], bottom, Scratch(), fast=True)
    assert count_rows == [16, 32, 48, HEIGHT]


@pytest.mark.parametrize(("kind", "mode"), [("PNG", "RGB"), ("WEBP", "RGB"), ("JPEG", "CMYK"), ("GIF", "RGB")])
def test_other_pictures_are_decoded_whole_into_memory_of_their_own(kind: str, mode: str):
    data = save(busy(WIDTH, HEIGHT), kind, mode)
    part = decode_upper(data, 3, Scratch(), fast=True, shrink=4)
    assert part.shrink == 1
    assert part.owned
    assert np.array_equal(part.pixels, decode(data))


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [(100, 100, 1), (447, 448, 1), (448, 448, 2), (895, 2_000, 2), (896, 900, 4), (1_792, 1_792, 8), (9_000, 9_000, 8)],
)
def test_pictures_shrink_only_while_they_stay_large_enough(width: int, height: int, expected: int):
    assert choose_shrink(width, height, 224) == expected


@pytest.mark.parametrize("layout", ["420", "444", "restart rows", "progressive", "scans"])
@pytest.mark.parametrize("share", [0.2, 0.6, 0.97])
def test_a_picture_cut_off_is_an_error_where_its_rows_are_needed(layout: str, share: float):
    data = LAYOUTS[layout]
    start = data.index(b"\xff\xda")
    with pytest.raises(DataError, match=r"truncated|corrupt"):
        decode_upper(data[: start + int((len(data) - start) * share)], HEIGHT, used_scratch(), fast=True)


@pytest.mark.parametrize("layout", MANY_SCANS)
def test_a_picture_of_many_scans_cut_off_is_never_taken_for_a_whole_one(layout: str):
    """Each scan covers all rows: with one missing, the upper rows are wrong, too."""
    data = MANY_SCANS[layout]
    whole = decode(data)
    wrong = {}
    for end in range(data.index(b"\xff\xda") + 50, len(data) - 2, 97):
        try:
            pixels = decode_upper(data[:end], 40, used_scratch(), fast=False).pixels
        except DataError:
            continue
        wrong[end] = mean_difference(pixels[:40], whole[:40])
    assert not any(wrong.values()), f"{len(wrong)} pass, off by up to {max(wrong.values()):.1f} grey levels"


@pytest.mark.parametrize("marker", [b"\xff\xda", b"\xff\xc4"], ids=["before the scan", "before a table"])
@pytest.mark.parametrize("bottom", [10, HEIGHT])
@pytest.mark.parametrize("layout", ["420", "progressive"])
@pytest.mark.parametrize("astray", [b"\1\2\3", b"\1\2\xff\xd3", b"\xff\xd3", b"\xff\xff\xff", b"\0" * 300])
def test_bytes_astray_in_the_head_never_show_the_picture_before(layout: str, bottom: int, marker: bytes, astray: bytes):
    """The decoder gives up before it writes a pixel; what memory held must not pass for this picture."""
    data = LAYOUTS[layout]
    frame_at = look_sized(data).frame_at
    broken = data[:frame_at] + put_before(data[frame_at:], marker, astray)
    try:
        pixels = decode_upper(broken, bottom, used_scratch(), fast=False).pixels
    except DataError:
        return
    assert np.array_equal(pixels[:bottom], decode(data)[:bottom])


def test_bytes_astray_at_the_end_are_passed_over_as_in_the_whole():
    data = LAYOUTS["420"]
    broken = data[:-2] + bytes(range(1, 20)) + data[-2:]
    assert np.array_equal(decode_upper(broken, HEIGHT, used_scratch(), fast=False).pixels, decode(data))
    assert np.array_equal(decode(broken), decode(data))


def try_decoding(decoder: Callable[[bytes], np.ndarray], data: bytes) -> np.ndarray | str:
    """Pixels, or what is wrong."""
    try:
        return decoder(data)
    except DataError as err:
        return err.message


def decode_all(data: bytes) -> np.ndarray:
    return decode_upper(data, HEIGHT, used_scratch(), fast=False).pixels


@pytest.mark.parametrize("layout", ["420", "444", "restart rows", "progressive"])
def test_corrupt_bits_are_an_error_where_they_are_for_the_whole(layout: str):
    data, told = LAYOUTS[layout], 0
    for at in range(data.index(b"\xff\xda") + 14, len(data) - 2, 5):
        broken = data[:at] + bytes((data[at] ^ 0x5A,)) + data[at + 1 :]
        whole, ours = (try_decoding(decoder, broken) for decoder in (decode, decode_all))
        assert np.array_equal(ours, whole)
        told += isinstance(whole, str)
    assert told


def test_memory_of_a_thread_is_used_again():
    scratch = Scratch()
    first = scratch.take(20, 10)
    assert first.shape == (20, 10, 3)
    assert np.shares_memory(first, scratch.take(5, 4))
    assert not np.shares_memory(first, scratch.take(200, 100))
    kept = scratch.take(200, 100)
    huge = scratch.take(MAX_KEPT_BYTES // 3 + 1, 1)
    assert not np.shares_memory(huge, kept)
    assert np.shares_memory(scratch.take(200, 100), kept)


def test_without_a_decoder_that_stops_early_all_is_decoded(monkeypatch: pytest.MonkeyPatch, count_rows: list[int]):
    monkeypatch.setattr(decoding, "can_stop_early", functools.cache(lambda: False))
    part = decode_upper(LAYOUTS["420"], 10, Scratch(), fast=False)
    assert count_rows == [HEIGHT]
    assert np.array_equal(part.pixels, decode(LAYOUTS["420"]))
