"""Batches: the same bit for bit whatever the threads, ranks, storage and first step; memory that comes round."""

import gc
import logging
import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch

from made_pictures import busy, make_samples, save
from small_sets import CLASSES, Listed, write_set
from trainstone.config.pictures import AugmentConfig, LoaderConfig
from trainstone.data.feeding.feed import Worker
from trainstone.data.feeding.order import TrainOrder
from trainstone.data.feeding.shown import IGNORED
from trainstone.data.loader import KEEP, STAGES, Loader, open_loader
from trainstone.data.recognise import open_dataset
from trainstone.data.sample import DataSet, Sample, Source, Split
from trainstone.errors import ConfigError, DataError
from trainstone.machine.cpus import available_cores
from trainstone.machine.ranks import Rank

SIZE = 32
SAMPLES = make_samples(21)
Batch = tuple[torch.Tensor, torch.Tensor]


def make(source: Source | None = None, **wishes: Any) -> Loader:
    """A loader of few pictures; wishes of the recipe's sections go there."""
    told = {name: wishes.pop(name) for name in list(wishes) if name in LoaderConfig.model_fields}
    kinds = {"threads": 2, "prefetch": 2, **told}
    augment = {name: wishes.pop(name) for name in list(wishes) if name in AugmentConfig.model_fields}
    return open_loader(
        Listed(SAMPLES) if source is None else source,
        augment=AugmentConfig(**augment),
        loader=LoaderConfig(**kinds),
        **{"image_size": SIZE, "batch_size": 4, "seed": 3, **wishes},
    )


def take(loader: Loader, count: int | None = None) -> list[Batch]:
    """Copies of the next batches, or of all."""
    with loader:
        taken = loader if count is None else (next(loader) for _ in range(count))
        return [(images.clone(), labels.clone()) for images, labels in taken]


def same(one: list[Batch], other: list[Batch]) -> bool:
    pairs = list(zip(one, other, strict=True))
    return all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in pairs)


@pytest.fixture(scope="module")
def two_epochs() -> list[Batch]:
    return take(make(threads=1, prefetch=1), 11)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("prefetch", [1, 4])
def test_threads_and_batches_ahead_change_nothing(two_epochs: list[Batch], threads: int, prefetch: int):
    assert same(take(make(threads=threads, prefetch=prefetch), 11), two_epochs)


@pytest.mark.parametrize("first_step", range(11))
def test_work_goes_on_from_any_step(two_epochs: list[Batch], first_step: int):
    loader = make(first_step=first_step)
    assert loader.step == first_step
    assert same(take(loader, 11 - first_step), two_epochs[first_step:])
    assert loader.step == 11


def test_shape_and_type_and_something_to_see(two_epochs: list[Batch]):
    for images, labels in two_epochs:
        assert images.shape == (4, SIZE, SIZE, 3)
        assert images.dtype == torch.uint8
        assert labels.dtype == torch.int64
        assert images.float().std(dim=(1, 2, 3)).min() > 5
    assert not same(two_epochs[:1], take(make(seed=4), 1))


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("last", ["carry", "drop"])
def test_ranks_together_train_on_what_one_would(world: int, last: str):
    steps = 2 * 21 // (3 * world)
    alone = take(make(batch_size=3 * world, last=last), steps)
    ranks = [take(make(batch_size=3, last=last, rank=Rank(number, world)), steps) for number in range(world)]
    together = [
        (torch.cat([rank[step][0] for rank in ranks]), torch.cat([rank[step][1] for rank in ranks]))
        for step in range(steps)
    ]
    assert same(together, alone)
    names = Listed([Sample(sample.name, sample.image, number) for number, sample in enumerate(SAMPLES)])
    loaders = (make(names, batch_size=3, last=last, rank=Rank(number, world)) for number in range(world))
    seen = torch.cat([labels for loader in loaders for _, labels in take(loader, 21 // (3 * world))])
    assert len(set(seen.tolist())) == len(seen) == 21 // (3 * world) * 3 * world


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [21, 20, 5])
def test_validation_shows_each_picture_once(world: int, count: int):
    source = Listed([Sample(sample.name, sample.image, number) for number, sample in enumerate(SAMPLES[:count])])
    ranks = [take(make(source, train=False, rank=Rank(number, world))) for number in range(world)]
    assert len({len(rank) for rank in ranks}) == 1
    labels = torch.cat([labels for rank in ranks for _, labels in rank])
    images = torch.cat([images for rank in ranks for images, _ in rank])
    assert sorted(labels[labels != IGNORED].tolist()) == list(range(count))
    assert not images[labels == IGNORED].any()
    whole = take(make(source, train=False, batch_size=count))[0]
    order = torch.argsort(labels)[-count:]
    assert torch.equal(images[order], whole[0])


@pytest.mark.parametrize("world", [1, 2, 3])
def test_validation_leaves_out_what_fills_no_batch_where_asked(world: int):
    source = Listed([Sample(sample.name, sample.image, number) for number, sample in enumerate(SAMPLES)])
    ranks = [take(make(source, train=False, rank=Rank(number, world), parts=4)) for number in range(world)]
    labels = torch.cat([labels for rank in ranks for _, labels in rank])
    assert sorted(labels[labels != IGNORED].tolist()) == list(range(20))  # of 21, whatever the ranks


def test_rows_that_fill_up_are_clean_when_memory_is_used_again():
    loader = make(train=False, batch_size=8, prefetch=1)
    images, labels = take(loader)[-1]
    assert labels[5:].tolist() == [IGNORED] * 3
    assert not images[5:].any()
    with pytest.raises(StopIteration):
        next(loader)


def test_a_batch_stays_until_two_more_were_asked_for():
    with make(threads=3, prefetch=1, batch_size=2) as loader:
        held: list[tuple[torch.Tensor, torch.Tensor, Batch]] = []
        for _ in range(60):
            images, labels = next(loader)
            held = [*held, (images, labels, (images.clone(), labels.clone()))][-KEEP:]
            wait_for_rest(loader)
            assert all(same([(images, labels)], [copy]) for images, labels, copy in held)


def wait_for_rest(loader: Loader) -> None:
    """Until the threads wait for memory."""
    ring, pause = loader._ring, threading.Event()
    while len(ring._work_to_do._waiters) < len(ring._threads):  # type: ignore[attr-defined]
        pause.wait(0.0005)


def test_the_same_tensors_come_round():
    with make(prefetch=3, batch_size=2) as loader:
        places = [next(loader)[0].data_ptr() for _ in range(50)]
    assert len(set(places)) == 3 + KEEP
    assert places == places[: 3 + KEEP] * 10


def test_memory_does_not_grow():
    with make(threads=2, prefetch=2, batch_size=4) as loader:
        for _ in range(60):
            next(loader)
        gc.collect()
        tracemalloc.start()
        try:
            for _ in range(20):
                next(loader)
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(300):
                next(loader)
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] - before < 100_000
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("keeps", ["files", "pixels"])
@pytest.mark.parametrize("limit", [0, 100_000, 1 << 30])
def test_a_cache_changes_nothing_but_what_is_read(keeps: str, limit: int):
    plain = {"decode": "exact", "shrink": False}
    expected = take(make(**plain), 15)
    loader = make(cache=keeps, cache_bytes=limit, threads=3, **plain)
    assert same(take(loader, 15), expected)
    assert loader.feed.cache.used_bytes <= limit


def test_a_cache_of_files_keeps_the_quick_ways(two_epochs: list[Batch]):
    assert same(take(make(cache="files"), 11), two_epochs)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Source]:
    """The same pictures in every storage, in the same order."""
    root = tmp_path_factory.mktemp("stored")
    pictures = [
        Sample(f"{'ab'[number >= 7]}/{number:04d}.jpg", save(busy(60 + number, 50, number)), int(number >= 7))
        for number in range(13)
    ]
    found = DataSet("classify", "made up", CLASSES, [Split("train", Listed(pictures))], "made-up")
    sources: dict[str, Source] = {"listed": Listed(pictures)}
    for storage in ("recordio", "tfrecord", "wds", "folder"):
        sources[storage] = open_dataset(write_set(root / storage, found, storage)).splits[0].source
    return sources


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("storage", ["recordio", "tfrecord", "wds", "folder"])
def test_every_storage_gives_the_same_batches(stored: dict[str, Source], storage: str, train: bool):
    expected = take(make(stored["listed"], train=train), 4)
    assert same(take(make(stored[storage], train=train, threads=3), 4), expected)


def with_broken(*numbers: int) -> Listed:
    broken = Sample("broken.jpg", b"no picture", 1)
    return Listed([broken if number in numbers else sample for number, sample in enumerate(SAMPLES)])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_first_bad_picture_in_order_is_named(threads: int):
    order = [place.picture for place in TrainOrder(21, 4, 3).batch(1)]
    with make(with_broken(order[1], order[3]), threads=threads) as loader:
        next(loader)
        with pytest.raises(DataError, match=f"^listed {order[1]}: not a picture"):
            next(loader)
        assert loader.step == 1


def test_bad_pictures_are_replaced_alike_by_all(caplog: pytest.LogCaptureFixture):
    source = with_broken(2, 5, 11)
    with caplog.at_level(logging.WARNING):
        first = make(source, threads=1, on_bad="skip")
        expected = take(first, 12)
    told = [record.getMessage() for record in caplog.records]
    assert first.skipped >= 6  # three a epoch, and what they were replaced by
    assert len(told) == len(first.bad_pictures)
    assert told[0].startswith("left out: listed ")
    for threads in (2, 5):
        loader = make(source, threads=threads, on_bad="skip")
        caplog.clear()
        assert same(take(loader, 12), expected)
        assert loader.skipped == first.skipped
        assert [record.getMessage() for record in caplog.records] == told
    ranks = [make(source, batch_size=2, rank=Rank(number, 2), on_bad="skip") for number in range(2)]
    halves = [take(rank, 12) for rank in ranks]
    together = [(torch.cat((a[0], b[0])), torch.cat((a[1], b[1]))) for a, b in zip(*halves, strict=True)]
    assert same(together, expected)
    assert sum(rank.skipped for rank in ranks) == first.skipped


def test_good_pictures_are_untouched_by_bad_ones(two_epochs: list[Batch]):
    order = TrainOrder(21, 4, 3)
    taken = take(make(with_broken(2), on_bad="skip"), 11)
    for step, (images, _) in enumerate(taken):
        for row, place in enumerate(order.batch(step)):
            assert torch.equal(images[row], two_epochs[step][0][row]) == (place.picture != 2)


def test_bad_pictures_of_validation_do_not_count():
    loader = make(with_broken(2, 5), train=False, on_bad="skip")
    labels = torch.cat([labels for _, labels in take(loader)])
    assert loader.skipped == 2
    assert labels[[2, 5]].tolist() == [IGNORED, IGNORED]
    assert (labels[:21] == IGNORED).sum() == 2


def test_a_set_of_bad_pictures_only_is_an_error():
    with make(with_broken(*range(21)), on_bad="skip") as loader, pytest.raises(DataError, match="in a row"):
        next(loader)


@pytest.mark.parametrize("label", [None, 9])
def test_labels_that_the_network_does_not_know(label: int | None):
    source = Listed([Sample("odd.jpg", SAMPLES[0].image, label)] * 4)
    with make(source, num_classes=9) as loader, pytest.raises(DataError, match=r"odd\.jpg"):
        next(loader)


def test_no_picture_at_all():
    with pytest.raises(DataError, match="no training picture"):
        make(Listed([]))
    assert take(make(Listed([]), train=False)) == []


def test_a_shorter_side_below_the_picture_is_refused():
    with pytest.raises(ConfigError, match="val_shorter"):
        make(val_shorter=32, image_size=64)


def test_threads_end_with_the_loader():
    before = set(threading.enumerate())
    loader = make(threads=4)
    next(loader)
    assert len(set(threading.enumerate()) - before) == 4
    loader.close()
    assert set(threading.enumerate()) <= before
    loader.close()


def test_batches_taken_outlive_the_loader():
    with make() as loader:
        images, _ = next(loader)
        copy = images.clone()
    assert torch.equal(images, copy)


def test_auto_is_one_thread_a_core():
    with make(threads="auto") as loader:
        assert len(loader._ring.workers) == available_cores().threads


def test_a_pause_reads_nothing():
    class Counting(Listed):
        reads = 0

        def read(self, index: int) -> Sample:
            self.reads += 1
            return super().read(index)

    source = Counting(SAMPLES)
    with make(source) as loader:
        wait_for_rest(loader)
        loader.pause()
        reads = source.reads
        for _ in range(2):
            next(loader)
        wait_for_rest(loader)
        assert source.reads == reads
        loader.go_on()
        for _ in range(10):
            next(loader)
        assert source.reads > reads


def test_stages_add_up():
    with make() as loader:
        for _ in range(5):
            next(loader)
        wait_for_rest(loader)
        stages = loader.stages()
    assert tuple(stages.seconds) == STAGES
    assert min(stages.seconds.values()) >= 0
    assert stages.pictures >= 20
    assert stages.read_bytes > 20 * 500


def test_pixels_are_those_of_the_transform():
    """The loader adds nothing of its own: a picture in a batch is what one thread alone makes of it."""
    with make() as loader:
        images, labels = next(loader)
        for row, place in enumerate(loader.order.batch(0)):
            out = np.zeros((SIZE, SIZE, 3), np.uint8)
            assert loader.feed.fill(place, out, Worker(), []).label == labels[row]
            assert np.array_equal(images[row].numpy(), out)


def test_sources_survive_many_threads_at_once(stored: dict[str, Source]):
    for storage in ("recordio", "tfrecord", "wds", "folder"):
        expected = take(make(stored[storage], threads=1, batch_size=13), 6)
        assert same(take(make(stored[storage], threads=8, batch_size=13), 6), expected)
