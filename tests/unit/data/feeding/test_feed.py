"""One picture after the other: what is bad is told by its place, or replaced in the same way by everyone."""

import contextlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from made_pictures import busy, make_samples, save
from small_sets import SHARDS, Listed, flip, locate, make_set
from trainstone.config.pictures import AugmentConfig, LoaderConfig
from trainstone.data.feeding.feed import SUBSTITUTES, Bad, Feed, Worker
from trainstone.data.feeding.order import Place
from trainstone.data.feeding.shown import IGNORED
from trainstone.data.feeding.transform import make_transform
from trainstone.data.recognise import open_dataset
from trainstone.data.sample import Box, Sample, Source
from trainstone.errors import DataError

SIZE = 40
SAMPLES = make_samples(10)
BROKEN = Sample("broken.jpg", b"no picture", 1)


def make_feed(source: Source, train: bool = True, **wishes: Any) -> Feed:
    return Feed(source, make_transform(AugmentConfig(), LoaderConfig(), SIZE, train=train), seed=5, **wishes)


def fill(feed: Feed, picture: int, epoch: int = 0) -> tuple[int, np.ndarray, list[Bad]]:
    """Label, pixels and what was left out."""
    out, bad = np.full((SIZE, SIZE, 3), 99, np.uint8), list[Bad]()
    return feed.fill(Place(epoch, picture), out, Worker(), bad).label, out, bad


def with_broken(*numbers: int) -> Listed:
    return Listed([BROKEN if number in numbers else sample for number, sample in enumerate(SAMPLES)])


def test_a_picture_and_its_label():
    feed = make_feed(Listed(SAMPLES))
    for number, sample in enumerate(SAMPLES):
        label, out, bad = fill(feed, number)
        assert label == sample.label
        assert not bad
        assert not (out == 99).all()


def test_epochs_and_pictures_look_different_and_the_same_again():
    feed = make_feed(Listed(SAMPLES))
    views = {(epoch, number): fill(feed, number, epoch)[1].tobytes() for epoch in range(3) for number in range(10)}
    assert len(set(views.values())) == 30
    again = make_feed(Listed(SAMPLES))
    for (epoch, number), view in reversed(views.items()):
        assert fill(again, number, epoch)[1].tobytes() == view
    other = Feed(Listed(SAMPLES), feed.transform, seed=6)
    assert fill(other, 0)[1].tobytes() != views[0, 0]


def test_a_bad_picture_is_named_with_what_to_do():
    with pytest.raises(DataError, match=r"^listed 4: not a picture") as told:
        fill(make_feed(with_broken(4)), 4)
    assert told.value.hint


def test_a_bad_picture_without_a_hint_of_its_own_can_be_skipped():
    source = Listed([Sample("cut", save(busy(80, 80))[:900], 0)])
    with pytest.raises(DataError, match=r"^listed 0: truncated JPEG") as told:
        fill(make_feed(source), 0)
    assert "loader.on_bad=skip" in (told.value.hint or "")


@pytest.mark.parametrize("storage", ["recordio", "tfrecord", "wds", "folder"])
def test_file_and_byte_of_a_bad_picture_are_told_once(storage: str, tmp_path: Path):
    root = make_set(tmp_path / "set", storage, count=6)
    source = open_dataset(root).splits[0].source
    where = source.where(3)
    if storage == "folder":
        Path(where).write_bytes(b"no picture")
    else:
        path = root / SHARDS[storage]
        span = locate(path, storage)[3]
        for at in range(span.offset, span.offset + span.size, 7):
            flip(path, at)
    source = open_dataset(root).splits[0].source
    with pytest.raises(DataError) as told:
        fill(make_feed(source), 3)
    assert str(tmp_path) in told.value.message
    assert told.value.message.count(str(tmp_path)) == 1
    assert storage == "folder" or "byte" in told.value.message


def test_another_picture_takes_the_place_of_a_bad_one():
    source = with_broken(2, 5)
    seen = set()
    for epoch in range(20):
        feed = make_feed(source, skip_bad=True)
        label, out, bad = fill(feed, 2, epoch)
        assert bad[0] == Bad("listed 2", bad[0].why)
        assert "not a picture" in bad[0].why
        assert {one.where for one in bad} <= {"listed 2", "listed 5"}
        again = fill(feed, 2, epoch)
        assert (again[0], again[2]) == (label, bad)
        assert np.array_equal(again[1], out)
        seen.add(label)
    assert seen <= {0, 1, 3, 4, 6, 7, 8, 9}
    assert len(seen) > 4


def test_a_bad_picture_of_validation_does_not_count():
    label, out, bad = fill(make_feed(with_broken(2), train=False, skip_bad=True), 2)
    assert label == IGNORED
    assert not out.any()
    assert [one.where for one in bad] == ["listed 2"]


def test_if_all_are_bad_there_is_an_end():
    feed = make_feed(Listed([BROKEN] * 5), skip_bad=True)
    with pytest.raises(
        DataError, match=rf"{SUBSTITUTES} pictures in a row cannot be used, the last one listed \d: not a"
    ):
        fill(feed, 0)


def test_a_picture_without_a_class():
    source = Listed([Sample("a.jpg", SAMPLES[0].image)])
    with pytest.raises(DataError, match=r"^listed 0: a.jpg has no class"):
        fill(make_feed(source, num_classes=3), 0)
    assert fill(make_feed(source), 0)[0] == IGNORED


@pytest.mark.parametrize("label", [3, -1, 10**12])
def test_a_class_that_the_network_does_not_know(label: int):
    source = Listed([Sample("a.jpg", SAMPLES[0].image, label), *SAMPLES[:2]])
    with pytest.raises(DataError, match=f"class {label} of a.jpg: the network has classes 0 to 2") as told:
        fill(make_feed(source, num_classes=3), 0)
    assert label < 0 or f"model.num_classes={label + 1}" in (told.value.hint or "")
    assert fill(make_feed(source, num_classes=3, skip_bad=True), 0)[0] in (0, 1)


def test_the_hint_for_a_negative_class_can_be_followed():
    source = Listed([Sample("a.jpg", SAMPLES[0].image, -1)])
    with pytest.raises(DataError) as told:
        fill(make_feed(source, num_classes=3), 0)
    assert "num_classes=0" not in (told.value.hint or "")


def test_the_last_class_is_allowed():
    assert fill(make_feed(Listed([Sample("a", SAMPLES[0].image, 2)]), num_classes=3), 0)[0] == 2


@pytest.mark.parametrize("edge", [math.nan, math.inf, -math.inf, 1e300])
def test_a_box_that_is_no_number_never_stops_the_program(edge: float):
    """WebDataset's JSON may hold NaN. The picture is bad, or the box does not count."""
    source = Listed([Sample("a", SAMPLES[0].image, 0, (Box(0, 0.1, edge, 0.5, 0.9),))])
    transform = make_transform(AugmentConfig(crop="boxes"), LoaderConfig(), SIZE, train=True)
    feed = Feed(source, transform, seed=0)
    with contextlib.suppress(DataError):
        assert fill(feed, 0)[0] == 0


def test_errors_that_are_not_the_datas_are_not_passed_over():
    class Failing(Listed):
        def read(self, index: int) -> Sample:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fill(make_feed(Failing(SAMPLES), skip_bad=True), 0)


def test_work_is_counted():
    feed, worker = make_feed(Listed(SAMPLES)), Worker()
    for number in range(3):
        feed.fill(Place(0, number), np.zeros((SIZE, SIZE, 3), np.uint8), worker, [])
    assert worker.pictures == 3
    assert worker.read_bytes == sum(len(sample.image) for sample in SAMPLES[:3])
    assert min(worker.read_seconds, worker.decode_seconds, worker.resize_seconds) > 0
