"""The upper part of a picture is bit for bit that of the whole, and damage is told as it is of the whole."""

import functools
from collections.abc import Callable

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from PIL import Image

from damage import damaged, quick, real_data
from made_pictures import busy, mean_difference, put_before, save, save_sampled, save_scans, smooth
from trainstone.data.feeding.crops import Crop
from trainstone.data.feeding.transform import cut
from trainstone.data.picture import region
from trainstone.data.picture.decode import MAX_PIXELS, decode, look_sized
from trainstone.data.picture.region import (
    MAX_KEPT_BYTES,
    Region,
    Scratch,
    can_stop_early,
    choose_shrink,
    decode_upper,
    with_height,
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
    monkeypatch.setattr(region.simplejpeg, "decode_jpeg", spy)
    return rows


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_above_are_those_of_the_whole(layout: str, fast: bool):
    data, scratch = LAYOUTS[layout], used_scratch()
    whole = simplejpeg.decode_jpeg(data, "RGB", fast)
    for bottom in range(1, HEIGHT + 1):
        part = decode_upper(data, bottom, scratch, fast=fast)
        assert part.shrink == 1
        assert bottom <= len(part.pixels) <= HEIGHT
        assert np.array_equal(part.pixels[:bottom], whole[:bottom])


@pytest.mark.parametrize("layout", ["444", "420", "422", "Gray", "restart rows"])
def test_no_more_than_the_rows_needed_are_decoded(layout: str, count_rows: list[int]):
    can_stop_early()
    count_rows.clear()
    decode_upper(LAYOUTS[layout], 10, Scratch(), fast=True)
    decode_upper(LAYOUTS[layout], 30, Scratch(), fast=True)
    decode_upper(LAYOUTS[layout], 31, Scratch(), fast=True)
    decode_upper(LAYOUTS[layout], HEIGHT, Scratch(), fast=True)
    assert count_rows == [16, 32, 48, HEIGHT]


@pytest.mark.parametrize("shrink", [2, 4, 8])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_smaller_pictures_are_those_of_the_decoder(layout: str, shrink: int):
    data = LAYOUTS[layout]
    size = -(-HEIGHT // shrink), -(-WIDTH // shrink)
    whole = simplejpeg.decode_jpeg(data, "RGB", True, False, *size, shrink)
    assert whole.shape[:2] == size
    scratch = used_scratch()
    for bottom in range(1, HEIGHT + 1):
        part = decode_upper(data, bottom, scratch, fast=True, shrink=shrink)
        rows = round(bottom / shrink)
        assert part.shrink == shrink
        assert np.array_equal(part.pixels[:rows], whole[:rows])


@pytest.mark.parametrize("shrink", [1, 2, 4, 8])
def test_pictures_of_every_width_find_room(shrink: int):
    for width in range(1, 40):
        for height in (1, 2, 9, 16, 17, 31):
            data = save(smooth(width, height))
            for bottom in (1, height):
                pixels = decode_upper(data, bottom, Scratch(), fast=True, shrink=shrink).pixels
                assert pixels.shape[1] == -(-width // shrink)


@pytest.mark.parametrize(("kind", "mode"), [("PNG", "RGB"), ("WEBP", "RGB"), ("JPEG", "CMYK"), ("GIF", "RGB")])
def test_other_pictures_are_decoded_whole_into_memory_of_their_own(kind: str, mode: str):
    data = save(busy(WIDTH, HEIGHT), kind, mode)
    part = decode_upper(data, 3, Scratch(), fast=True, shrink=4)
    assert part.shrink == 1
    assert part.owned
    assert np.array_equal(part.pixels, decode(data))


@pytest.mark.parametrize("shrink", [2, 4, 8])
def test_crops_of_a_shrunk_picture_look_like_those_of_the_whole(shrink: int):
    crops = [Crop(33, 21, 201, 190), Crop(0, 0, 400, 320), Crop(199, 101, 201, 219)]
    data, pixels = save(smooth(400, 320), quality=95), smooth(400, 320)
    for crop in crops:
        small = cut(decode_upper(data, crop.bottom, Scratch(), fast=True, shrink=shrink), crop)
        plain = pixels[crop.top : crop.bottom, crop.left : crop.right]
        assert abs(small.shape[0] * shrink - crop.height) <= shrink
        assert abs(small.shape[1] * shrink - crop.width) <= shrink
        size = small.shape[1] // 2, small.shape[0] // 2
        assert mean_difference(shrink_to(small, size), shrink_to(plain, size)) < 3


def shrink_to(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BOX))


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [(100, 100, 1), (447, 448, 1), (448, 448, 2), (895, 2_000, 2), (896, 900, 4), (1_792, 1_792, 8), (9_000, 9_000, 8)],
)
def test_pictures_shrink_only_while_they_stay_large_enough(width: int, height: int, expected: int):
    assert choose_shrink(width, height, 224) == expected


@pytest.mark.parametrize("layout", ["420", "444", "restart rows", "progressive", "scans"])
@pytest.mark.parametrize("share", [0.2, 0.4, 0.6, 0.8, 0.97])
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


@pytest.mark.parametrize("layout", MANY_SCANS)
def test_damage_in_a_later_scan_is_seen_as_in_the_whole(layout: str):
    """What the whole decode calls corrupt, and changes the upper rows, is no good picture."""
    data = MANY_SCANS[layout]
    whole, passed = decode(data), 0
    for at in range(data.rindex(b"\xff\xda") + 20, len(data) - 2, 31):
        broken = data[:at] + bytes((data[at] ^ 0x55,)) + data[at + 1 :]
        try:
            decode(broken)
        except DataError:
            pass
        else:
            continue
        try:
            pixels = decode_upper(broken, 40, used_scratch(), fast=False).pixels
        except DataError:
            continue
        passed += mean_difference(pixels[:40], whole[:40]) > 0
    assert passed == 0


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


def decode_all(data: bytes) -> np.ndarray:
    return decode_upper(data, HEIGHT, used_scratch(), fast=False).pixels


def try_decoding(decoder: Callable[[bytes], np.ndarray], data: bytes) -> np.ndarray | str:
    """Pixels, or what is wrong."""
    try:
        return decoder(data)
    except DataError as err:
        return err.message


@pytest.mark.parametrize("layout", ["420", "444", "restart rows", "progressive"])
def test_corrupt_bits_are_an_error_where_they_are_for_the_whole(layout: str):
    data, told = LAYOUTS[layout], 0
    for at in range(data.index(b"\xff\xda") + 14, len(data) - 2, 5):
        broken = data[:at] + bytes((data[at] ^ 0x5A,)) + data[at + 1 :]
        whole, ours = (try_decoding(decoder, broken) for decoder in (decode, decode_all))
        assert np.array_equal(ours, whole)
        told += isinstance(whole, str)
    assert told


@pytest.mark.parametrize("shrink", [1, 8])
def test_a_huge_claimed_size_is_refused_before_memory_is_taken(shrink: int, monkeypatch: pytest.MonkeyPatch):
    data = LAYOUTS["420"]
    frame_at = look_sized(data).frame_at
    huge = data[: frame_at + 5] + b"\xff\xff\xff\xff" + data[frame_at + 9 :]
    monkeypatch.setattr(Scratch, "take", lambda *_: pytest.fail("took memory"))
    with pytest.raises(DataError, match=f"65535x65535 pixels; at most {MAX_PIXELS:,}"):
        decode_upper(huge, 10, Scratch(), fast=True, shrink=shrink)


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xd8", b"\xff\xd8\xff\xd9", b"no picture at all", b"\xff\xd8\xff\xc0\0\x11\x08"]
)
def test_no_picture_is_an_error(data: bytes):
    with pytest.raises(DataError):
        decode_upper(data, 10, Scratch(), fast=True)


@pytest.mark.parametrize("layout", ["420", "progressive", "restart rows"])
@pytest.mark.parametrize("shrink", [1, 2])
def test_damaged_pictures_give_a_region_or_a_data_error(layout: str, shrink: int):
    scratch = Scratch()

    @quick
    @given(damaged(LAYOUTS[layout]))
    def check(data: bytes) -> None:
        try:
            part = decode_upper(data, 20, scratch, fast=True, shrink=shrink)
        except DataError:
            return
        assert isinstance(part, Region)
        assert part.pixels.ndim == 3
        assert part.pixels.dtype == np.uint8

    check()


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
    monkeypatch.setattr(region, "can_stop_early", functools.cache(lambda: False))
    part = decode_upper(LAYOUTS["420"], 10, Scratch(), fast=False)
    assert count_rows == [HEIGHT]
    assert np.array_equal(part.pixels, decode(LAYOUTS["420"]))


def test_this_decoder_stops_early():
    assert can_stop_early()


def test_another_height_changes_nothing_else():
    data = LAYOUTS["420"]
    changed = with_height(data, look_sized(data).frame_at, 0x0102)
    differing = [at for at in range(len(data)) if data[at] != changed[at]]
    assert look_sized(bytes(changed))[:3] == ("jpeg", WIDTH, 0x0102)
    assert len(changed) == len(data)
    assert len(differing) <= 2


def test_real_photos_and_damaged_ones():
    folder = real_data("jpeg-edge-cases/torchvision")
    for path in sorted(folder.glob("*.jpg")):
        data = path.read_bytes()
        try:
            whole = decode(data)
        except DataError:
            with pytest.raises(DataError):
                decode_upper(data, 10**6, used_scratch(), fast=False)
            continue
        for bottom in (1, len(whole) // 3, len(whole)):
            assert np.array_equal(
                decode_upper(data, bottom, used_scratch(), fast=False).pixels[:bottom], whole[:bottom]
            )
