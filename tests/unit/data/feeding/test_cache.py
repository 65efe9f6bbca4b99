"""A cache keeps what fits, changes no pixel and never grows beyond its limit."""

import threading
from typing import Any

import numpy as np
import pytest

from made_pictures import busy, make_samples, save
from small_sets import Listed
from trainstone.config.pictures import AugmentConfig, LoaderConfig
from trainstone.data.feeding.cache import OVERHEAD_BYTES, Cache
from trainstone.data.feeding.feed import Feed, Worker
from trainstone.data.feeding.order import Place
from trainstone.data.feeding.transform import make_transform
from trainstone.data.picture.decode import look_sized
from trainstone.data.picture.region import Region
from trainstone.data.sample import Sample
from trainstone.errors import DataError

SIZE = 40
SAMPLES = make_samples(14)


class Counting(Listed):
    """Counts what is read."""

    def __init__(self, samples: list[Sample]) -> None:
        super().__init__(samples)
        self.reads = 0

    def read(self, index: int) -> Sample:
        self.reads += 1
        return super().read(index)


def make_feed(source: Listed, keeps: Any, limit: int, **wishes: Any) -> Feed:
    loader = LoaderConfig(cache=keeps, decode="exact", shrink=False)
    return Feed(
        source, make_transform(AugmentConfig(), loader, SIZE, train=True), 0, cache=Cache(keeps, limit), **wishes
    )


def show(feed: Feed, place: Place) -> np.ndarray:
    out = np.zeros((SIZE, SIZE, 3), np.uint8)
    feed.fill(place, out, Worker(), [])
    return out


def add(cache: Cache, index: int, pixels: np.ndarray, owned: bool = True) -> None:
    image = save(pixels)
    cache.put(index, Sample("x", image, 0), look_sized(image), Region(pixels, owned=owned))


@pytest.mark.parametrize("keeps", ["files", "pixels"])
@pytest.mark.parametrize("limit", [0, 30_000, 1 << 30])
def test_kept_pictures_give_the_same_batches(keeps: str, limit: int):
    plain, kept = make_feed(Listed(SAMPLES), "off", 0), make_feed(Listed(SAMPLES), keeps, limit)
    for epoch in range(3):
        for picture in range(len(SAMPLES)):
            place = Place(epoch, picture)
            assert np.array_equal(show(kept, place), show(plain, place))
            assert kept.cache.used_bytes <= limit
    if limit == 30_000:
        assert 0 < len(kept.cache._kept) < len(SAMPLES)


@pytest.mark.parametrize("keeps", ["files", "pixels"])
def test_what_is_kept_is_read_once(keeps: str):
    source = Counting(SAMPLES)
    feed = make_feed(source, keeps, 1 << 30)
    for epoch in range(3):
        for picture in range(len(SAMPLES)):
            show(feed, Place(epoch, picture))
    assert source.reads == len(SAMPLES)


def test_without_a_cache_all_is_read_each_time():
    source = Counting(SAMPLES)
    feed = make_feed(source, "off", 1 << 30)
    for epoch in range(3):
        show(feed, Place(epoch, 1))
    assert source.reads == 3
    assert feed.cache.used_bytes == 0


def test_no_more_is_kept_than_fits():
    pixels = busy(20, 20)
    cache = Cache("pixels", 3 * (1_200 + OVERHEAD_BYTES) + 10)
    for index in range(10):
        add(cache, index, pixels)
    assert [cache.get(index) is not None for index in range(5)] == [True, True, True, False, False]
    assert cache.used_bytes == 3 * (1_200 + OVERHEAD_BYTES)


def test_a_smaller_picture_may_still_find_room():
    cache = Cache("pixels", 3_000)
    add(cache, 0, busy(40, 40))
    add(cache, 1, busy(10, 10))
    assert cache.get(0) is None
    assert cache.get(1) is not None


def test_a_picture_that_comes_twice_counts_once():
    cache = Cache("pixels", 1 << 20)
    for _ in range(5):
        add(cache, 7, busy(20, 20))
    assert cache.used_bytes == 1_200 + OVERHEAD_BYTES


def test_pixels_that_are_written_over_are_not_kept():
    cache = Cache("pixels", 1 << 20)
    add(cache, 0, busy(20, 20), owned=False)
    assert cache.get(0) is None


def test_kept_pixels_let_the_stored_bytes_go():
    cache = Cache("pixels", 1 << 20)
    add(cache, 0, busy(20, 20))
    kept = cache.get(0)
    assert kept is not None
    assert kept.sample.image == b""
    assert kept.pixels is not None


def test_only_pictures_that_fit_are_decoded_whole():
    seen = look_sized(save(busy(20, 20)))
    assert Cache("pixels", 1_200 + OVERHEAD_BYTES).wants_pixels(seen)
    assert not Cache("pixels", 1_199 + OVERHEAD_BYTES).wants_pixels(seen)
    assert not Cache("files", 1 << 30).wants_pixels(seen)
    assert not Cache().wants_pixels(seen)


def test_many_threads_do_not_break_the_limit():
    pixels, limit = busy(20, 20), 50 * (1_200 + OVERHEAD_BYTES)
    cache = Cache("pixels", limit)
    image = save(pixels)
    sample, seen = Sample("x", image, 0), look_sized(image)

    def work() -> None:
        for index in range(200):
            cache.put(index, sample, seen, Region(pixels, owned=True))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.used_bytes == limit
    assert len(cache._kept) == 50


def test_a_damaged_picture_is_never_kept():
    broken = save(busy(80, 80))[:900]
    feed = make_feed(Listed([Sample("broken", broken, 0)]), "files", 1 << 20)
    for _ in range(2):
        with pytest.raises(DataError):
            show(feed, Place(0, 0))
    assert feed.cache.used_bytes == 0


@pytest.mark.parametrize("keeps", ["files", "pixels"])
def test_room_in_the_cache_does_not_decide_whether_a_picture_is_bad(keeps: str):
    """Which pictures find room is chance: threads race for it. A batch must not follow from that."""
    image = bytearray(save(busy(80, 200), restart_marker_rows=1))
    image[image.index(b"\xff\xd7") + 2 :] = b""
    source = Listed([Sample("damaged below", bytes(image), 0)])
    outcomes = []
    for limit in (0, 1 << 20):
        feed, told = make_feed(source, keeps, limit), []
        for epoch in range(30):
            try:
                show(feed, Place(epoch, 0))
                told.append("shown")
            except DataError:
                told.append("bad")
        outcomes.append(told)
    assert outcomes[0] == outcomes[1]
