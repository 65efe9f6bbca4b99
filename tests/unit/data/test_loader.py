"""Batches: the same bit for bit whatever the threads, ranks, storage and first step; memory that comes round."""

import logging
import threading
from typing import Any

import pytest
import torch

from made_pictures import make_samples
from small_loaders import Batch, make_loader, same, take
from small_sets import Listed
from trainstone.data.feeding.feed import IGNORED
from trainstone.data.feeding.order import TrainOrder
from trainstone.data.loader import STAGES, Loader
from trainstone.data.sample import Sample, Source
from trainstone.errors import DataError
from trainstone.machine.ranks import Rank

SIZE = 32
SAMPLES = make_samples(21)
NUMBERED = Listed([Sample(sample.name, sample.image, number) for number, sample in enumerate(SAMPLES)])


def make(source: Source | None = None, **wishes: Any) -> Loader:
    return make_loader(Listed(SAMPLES) if source is None else source, **{"image_size": SIZE, **wishes})


def join(ranks: list[list[Batch]]) -> list[Batch]:
    """The batches of all ranks, side by side."""
    steps = zip(*ranks, strict=True)
    return [tuple(torch.cat(parts) for parts in zip(*batches, strict=True)) for batches in steps]


def wait_for_rest(loader: Loader) -> None:
    """Until the threads wait for memory."""
    ring, pause = loader._ring, threading.Event()
    while len(ring._work_to_do._waiters) < len(ring._threads):  # type: ignore[attr-defined]
        pause.wait(0.0005)


@pytest.fixture(scope="module")
def two_epochs() -> list[Batch]:
    return take(make(threads=1, prefetch=1), 11)


@pytest.mark.parametrize("how", [{"threads": 5}, {"threads": 2, "prefetch": 4}, {"cache": "files"}])
def test_threads_batches_ahead_and_kept_files_change_nothing(two_epochs: list[Batch], how: dict[str, Any]):
    loader = make(**how)
    assert same(take(loader, 11), two_epochs)
    assert loader.feed.cache.used_bytes == 0  # let go at the end


@pytest.mark.parametrize("first_step", [1, 5, 10])
def test_work_goes_on_from_any_step(two_epochs: list[Batch], first_step: int):
    loader = make(first_step=first_step)
    assert loader.step == first_step
    assert same(take(loader, 11 - first_step), two_epochs[first_step:])
    assert loader.step == 11


@pytest.mark.parametrize("world", [1, 2, 7])
@pytest.mark.parametrize("last", ["carry", "drop"])
def test_ranks_together_train_on_what_one_would(world: int, last: Any):
    steps = 2 * 21 // (3 * world)
    ranks = [take(make(NUMBERED, batch_size=3, last=last, rank=Rank(number, world)), steps) for number in range(world)]
    assert same(join(ranks), take(make(NUMBERED, batch_size=3 * world, last=last), steps))
    seen = torch.cat([labels for rank in ranks for _, labels in rank[: 21 // (3 * world)]])
    assert len(set(seen.tolist())) == len(seen)


@pytest.mark.parametrize("world", [1, 3, 7])
@pytest.mark.parametrize(("count", "parts"), [(21, 1), (5, 1), (21, 4)])
def test_validation_shows_each_picture_once(world: int, count: int, parts: int):
    source = Listed(NUMBERED.samples[:count])
    ranks = [take(make(source, train=False, rank=Rank(number, world), parts=parts)) for number in range(world)]
    assert len({len(rank) for rank in ranks}) == 1
    images, labels = (torch.cat([batch[part] for rank in ranks for batch in rank]) for part in (0, 1))
    shown = count // parts * parts
    assert sorted(labels[labels != IGNORED].tolist()) == list(range(shown))
    assert not images[labels == IGNORED].any()
    whole = take(make(source, train=False, batch_size=count))[0]
    assert torch.equal(images[torch.argsort(labels)[-shown:]], whole[0][:shown])


def test_rows_that_fill_up_are_clean_when_memory_is_used_again():
    loader = make(train=False, batch_size=8, prefetch=1)
    images, labels = take(loader)[-1]
    assert labels[5:].tolist() == [IGNORED] * 3
    assert not images[5:].any()
    with pytest.raises(StopIteration):
        next(loader)


def with_broken(*numbers: int) -> Listed:
    broken = Sample("broken.jpg", b"no picture", 1)
    return Listed([broken if number in numbers else sample for number, sample in enumerate(SAMPLES)])


@pytest.mark.parametrize("threads", [1, 5])
def test_the_first_bad_picture_in_order_is_named(threads: int):
    order = [place.picture for place in TrainOrder(21, 4, 3).batch(1)]
    with make(with_broken(order[1], order[3]), threads=threads) as loader:
        next(loader)
        with pytest.raises(DataError, match=f"^listed {order[1]}: not a picture"):
            next(loader)
        assert loader.step == 1


def test_bad_pictures_are_replaced_alike_by_all(two_epochs: list[Batch], caplog: pytest.LogCaptureFixture):
    source, order = with_broken(2, 5, 11), TrainOrder(21, 4, 3)
    with caplog.at_level(logging.WARNING):
        first = make(source, threads=1, on_bad="skip")
        expected = take(first, 11)
    told = [record.getMessage() for record in caplog.records]
    assert first.skipped >= 6  # three a epoch, and what they were replaced by
    assert len(told) == len(first.bad_pictures)
    for step, (images, _) in enumerate(expected):
        for row, place in enumerate(order.batch(step)):
            assert torch.equal(images[row], two_epochs[step][0][row]) == (place.picture not in (2, 5, 11))
    caplog.clear()
    loader = make(source, threads=5, on_bad="skip")
    assert same(take(loader, 11), expected)
    assert loader.skipped == first.skipped
    assert [record.getMessage() for record in caplog.records] == told
    ranks = [make(source, batch_size=2, rank=Rank(number, 2), on_bad="skip") for number in range(2)]
    assert same(join([take(rank, 11) for rank in ranks]), expected)
    assert sum(rank.skipped for rank in ranks) == first.skipped


def test_bad_pictures_of_validation_do_not_count():
    loader = make(with_broken(2, 5), train=False, on_bad="skip")
    images, labels = (torch.cat(parts) for parts in zip(*take(loader), strict=True))
    assert loader.skipped == 2
    assert (labels[:21] == IGNORED).nonzero().flatten().tolist() == [2, 5]
    assert not images[[2, 5]].any()


def test_no_picture_at_all():
    with pytest.raises(DataError, match="no training picture"):
        make(Listed([]))
    assert take(make(Listed([]), train=False)) == []


def test_a_pause_makes_nothing_and_stages_add_up():
    with make() as loader:
        wait_for_rest(loader)
        loader.pause()
        before = loader.stages()
        for _ in range(2):
            next(loader)
        wait_for_rest(loader)
        assert loader.stages().pictures == before.pictures
        loader.go_on()
        for _ in range(10):
            next(loader)
        wait_for_rest(loader)
        stages = loader.stages()
    assert tuple(stages.seconds) == STAGES
    assert min(stages.seconds.values()) >= 0
    assert stages.pictures >= before.pictures + 32
    assert stages.read_bytes > stages.pictures * 500
