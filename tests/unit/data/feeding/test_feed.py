"""One picture after the other: what is bad is told by its place; a cache keeps what fits and changes no pixel."""

import contextlib
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from made_pictures import busy, make_samples, save
from small_loaders import make_config
from small_sets import SHARDS, Counting, Listed, flip, locate, make_set
from trainstone.data.feeding.feed import IGNORED, OVERHEAD_BYTES, SUBSTITUTES, Bad, Cache, Feed, Worker
from trainstone.data.feeding.order import Place
from trainstone.data.feeding.transform import Transform
from trainstone.data.picture.decode import Region, look_sized
from trainstone.data.recognise import open_dataset
from trainstone.data.sample import Box, Sample, Source
from trainstone.errors import DataError

SIZE = 40
SAMPLES = make_samples(14)
BROKEN = Sample("broken.jpg", b"no picture", 1)


def make_feed(source: Source, keeps: Any = "off", limit: int = 0, crop: Any = "area", **wishes: Any) -> Feed:
    transform = Transform(make_config(SIZE, crop=crop, cache=keeps, decode="exact", shrink=False), train=True)
    return Feed(source, transform, 5, cache=Cache(keeps, limit), **wishes)


def fill(feed: Feed, picture: int, epoch: int = 0) -> tuple[int, np.ndarray, list[Bad]]:
    """Label, pixels and what was left out."""
    out, bad = np.full((SIZE, SIZE, 3), 99, np.uint8), list[Bad]()
    return feed.fill(Place(epoch, picture), out, Worker(), bad).label, out, bad


@pytest.mark.parametrize("storage", ["recordio", "tfrecord", "wds", "folder"])
def test_file_and_byte_of_a_bad_picture_are_told_once(storage: str, tmp_path: Path):
    root = make_set(tmp_path / "set", storage, count=6)
    where = open_dataset(root).splits[0].source.where(3)
    if storage == "folder":
        Path(where).write_bytes(b"no picture")
    else:
        path = root / SHARDS[storage]
        span = locate(path, storage)[3]
        for at in range(span.offset, span.offset + span.size, 7):
            flip(path, at)
    with pytest.raises(DataError) as told:
        fill(make_feed(open_dataset(root).splits[0].source), 3)
    assert told.value.message.count(str(tmp_path)) == 1
    assert storage == "folder" or "byte" in told.value.message


@pytest.mark.parametrize(
    ("sample", "message", "hint"),
    [
        (BROKEN, "listed 0: not a picture", "known are"),
        (Sample("cut", save(busy(80, 80))[:900], 0), "listed 0: truncated JPEG", "loader.on_bad=skip"),
        (Sample("a.jpg", SAMPLES[0].image), "listed 0: a.jpg has no class", "one class"),
        (Sample("a.jpg", SAMPLES[0].image, 3), "listed 0: class 3 of a.jpg", "model.num_classes=4"),
        (Sample("a.jpg", SAMPLES[0].image, 10**12), "listed 0: class 10", "model.num_classes=1000000000001"),
        (Sample("a.jpg", SAMPLES[0].image, -1), "listed 0: class -1 of a.jpg", "trainstone data verify"),
    ],
)
def test_a_bad_picture_is_named_with_what_to_do_or_replaced(sample: Sample, message: str, hint: str):
    source = Listed([sample, *(Sample("good", one.image, 2) for one in SAMPLES[:3])])
    with pytest.raises(DataError) as told:
        fill(make_feed(source, num_classes=3), 0)
    assert told.value.message.startswith(message)
    assert hint in (told.value.hint or "")
    label, out, bad = fill(make_feed(source, num_classes=3, skip_bad=True), 0)
    assert (label, bad[0].where) == (2, "listed 0")
    again = fill(make_feed(source, num_classes=3, skip_bad=True), 0)
    assert (again[0], again[2], again[1].tobytes()) == (label, bad, out.tobytes())


def test_where_labels_do_not_matter_none_is_needed():
    assert fill(make_feed(Listed([Sample("a.jpg", SAMPLES[0].image)])), 0)[0] == IGNORED


def test_if_all_are_bad_there_is_an_end():
    with pytest.raises(
        DataError, match=rf"{SUBSTITUTES} pictures in a row cannot be used, the last one listed \d: not"
    ):
        fill(make_feed(Listed([BROKEN] * 5), skip_bad=True), 0)


@pytest.mark.parametrize("edge", [math.nan, math.inf, -math.inf, 1e300])
def test_a_box_that_is_no_number_never_stops_the_program(edge: float):
    """WebDataset's JSON may hold NaN. The picture is bad, or the box does not count."""
    source = Listed([Sample("a", SAMPLES[0].image, 0, (Box(0, 0.1, edge, 0.5, 0.9),))])
    with contextlib.suppress(DataError):
        assert fill(make_feed(source, crop="boxes"), 0)[0] == 0


def test_errors_that_are_not_the_datas_are_not_passed_over():
    class Failing(Listed):
        def read(self, index: int) -> Sample:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fill(make_feed(Failing(SAMPLES), skip_bad=True), 0)


@pytest.mark.parametrize("keeps", ["off", "files", "pixels"])
@pytest.mark.parametrize("limit", [0, 30_000, 1 << 30])
def test_kept_pictures_are_read_once_and_give_the_same_batches(keeps: str, limit: int):
    source = Counting(SAMPLES)
    plain, kept = make_feed(Listed(SAMPLES)), make_feed(source, keeps, limit)
    for epoch in range(3):
        for picture in range(len(SAMPLES)):
            assert np.array_equal(fill(kept, picture, epoch)[1], fill(plain, picture, epoch)[1])
            assert kept.cache.used_bytes <= limit
    num_kept = 0 if keeps == "off" else {0: 0, 1 << 30: 14}.get(limit, len(kept.cache._kept))
    assert source.reads == 3 * 14 - 2 * num_kept
    assert limit != 30_000 or keeps == "off" or 0 < num_kept < 14


def test_many_threads_do_not_break_the_limit():
    pixels, limit = busy(20, 20), 50 * (1_200 + OVERHEAD_BYTES)
    cache, image = Cache("pixels", limit), save(pixels)
    sample, seen = Sample("x", image, 0), look_sized(image)

    def work() -> None:
        for index in range(200):
            cache.put(index, sample, seen, Region(pixels, owned=True))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (cache.used_bytes, len(cache._kept)) == (limit, 50)


@pytest.mark.parametrize("keeps", ["files", "pixels"])
def test_room_in_the_cache_does_not_decide_whether_a_picture_is_bad(keeps: str):
    """Which pictures find room is chance: threads race for it. A batch must not follow from that."""
    image = bytearray(save(busy(80, 200), restart_marker_rows=1))
    image[image.index(b"\xff\xd7") + 2 :] = b""
    outcomes = []
    for limit in (0, 1 << 20):
        feed = make_feed(Listed([Sample("damaged below", bytes(image), 0)]), keeps, limit)
        outcomes.append([is_bad(feed, epoch) for epoch in range(30)])
    assert outcomes[0] == outcomes[1]
    assert any(outcomes[0])


def is_bad(feed: Feed, epoch: int) -> bool:
    try:
        return bool(fill(feed, 0, epoch)[2])
    except DataError:
        return True
