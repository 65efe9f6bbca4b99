"""Tests of the sampling order (each image once per epoch, for any number of ranks) and of the random numbers."""

import numpy as np
import pytest
from scipy import stats

from trainstone.data.pipeline.order import EvalOrder, Last, SampleIndex, TrainOrder
from trainstone.data.pipeline.random_draws import MASK, STEP, Draws, derive_key, mix, shuffle
from trainstone.errors import DataError
from trainstone.machine.ranks import Rank

WORLDS = pytest.mark.parametrize("world", [1, 2, 7])


def take(count: int, batch_size: int, world: int, steps: int, last: Last = "carry") -> list[list[SampleIndex]]:
    """Return the images of all ranks for each step, rank 0 first."""
    orders = [TrainOrder(count, batch_size, 3, Rank(number, world), last=last) for number in range(world)]
    return [[place for order in orders for place in order.batch(step)] for step in range(steps)]


@WORLDS
@pytest.mark.parametrize(("count", "batch_size"), [(1, 1), (10, 4), (84, 3), (85, 3), (5, 16)])
def test_train_order_has_each_image_once_per_epoch(count: int, batch_size: int, world: int):
    steps = 3 * count // (batch_size * world) + 1
    row = [place for step in take(count, batch_size, world, steps) for place in step]
    assert len(row) == steps * batch_size * world
    for epoch in range(3):
        part = row[epoch * count : (epoch + 1) * count]
        assert {place.epoch for place in part} == {epoch}
        assert sorted(place.image for place in part) == list(range(count))


@WORLDS
def test_train_order_drop_skips_images_that_do_not_fill_a_step(world: int):
    count, batch_size = 50, 3
    steps = count // (batch_size * world)
    rows = take(count, batch_size, world, 3 * steps, "drop")
    skipped = set()
    for epoch in range(3):
        places = [place for step in rows[epoch * steps : (epoch + 1) * steps] for place in step]
        assert {place.epoch for place in places} == {epoch}
        assert len({place.image for place in places}) == len(places) == steps * batch_size * world
        skipped.add(frozenset(range(count)) - {place.image for place in places})
    assert len(skipped) == 3


@pytest.mark.parametrize("last", ["carry", "drop", "fill"])
@pytest.mark.parametrize("world", [2, 6])
def test_train_order_images_of_a_step_do_not_depend_on_world_size(world: int, last: Last):
    assert take(50, 12 // world, world, 20, last) == take(50, 12, 1, 20, last)


def test_train_order_can_start_at_any_step():
    forward, backward = TrainOrder(17, 4, 1), TrainOrder(17, 4, 1)
    expected = [forward.batch(step) for step in range(40)]
    assert [backward.batch(step) for step in reversed(range(40))] == expected[::-1]
    others = [TrainOrder(30, 30, seed).batch(epoch) for seed in range(4) for epoch in range(4)]
    assert len({tuple(place.image for place in places) for places in others}) == 16


def test_epoch_of_returns_epoch_of_first_image_of_step():
    order = TrainOrder(10, 4, 0)
    assert [order.epoch_of(step) for step in range(6)] == [order.batch(step)[0].epoch for step in range(6)]
    assert [order.epoch_of(step) for step in range(6)] == [0, 0, 0, 1, 1, 2]
    places = TrainOrder(3, 20, 0).batch(5)  # of many epochs
    assert (len(places), places[0].epoch, places[-1].epoch) == (20, 33, 39)


def test_train_order_drop_rejects_fewer_images_than_a_step():
    with pytest.raises(DataError) as caught:
        TrainOrder(7, 4, 0, Rank(0, 2), last="drop")
    assert "loader.last=carry" in (caught.value.hint or "")
    assert TrainOrder(8, 4, 0, Rank(0, 2), last="drop").epoch_images == 8


@pytest.mark.parametrize(
    ("count", "world", "batch_size", "last", "steps"),
    [
        (1_281_167, 8, 408, "fill_even", 393),  # MLPerf's ResNet-50: ceil(int(images / ranks) / batch)
        (1_281_167, 1024, 35, "fill_even", 36),
        (1_281_167, 4216, 16, "fill_even", 19),
        (10_000, 4, 64, "fill", 40),  # SC22 on ImageNetV2
        (17, 4, 4, "fill", 2),
        (17, 4, 4, "fill_even", 1),  # the seventeenth image is skipped
        (3, 4, 4, "fill_even", 1),
        (1_281_167, 4, 256, "drop", 1251),  # WMLCE
    ],
)
def test_train_order_rounds_steps_per_epoch_like_the_originals(
    count: int, world: int, batch_size: int, last: Last, steps: int
):
    order = TrainOrder(count, batch_size, 0, Rank(0, world), last=last)
    assert order.epoch_images == steps * batch_size * world
    assert (order.epoch_of(steps - 1), order.epoch_of(steps)) == (0, 1)


def test_train_order_fill_repeats_images_of_same_epoch():
    places = [place for step in take(10, 4, 1, 6, "fill") for place in step]
    for epoch in range(2):
        part = places[12 * epoch : 12 * (epoch + 1)]
        assert {place.epoch for place in part} == {epoch}
        assert sorted(place.image for place in part[:10]) == list(range(10))
        assert part[10:] == part[:2]
    few = [place.image for place in TrainOrder(3, 8, 0, last="fill").batch(0)]
    assert few[:6] == [place.image for place in TrainOrder(3, 3, 0).batch(0)] * 2


@pytest.mark.parametrize(("last", "steps"), [("drop", 2), ("fill", 3), ("fill_even", 3)])
def test_train_order_with_parts_has_whole_steps_per_epoch(last: Last, steps: int):
    assert TrainOrder(50, 5, 0, last=last, parts=4).epoch_images == steps * 4 * 5


@WORLDS
@pytest.mark.parametrize("count", [0, 1, 6, 8, 21, 50])
@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_eval_order_has_each_image_once_and_equal_steps_per_rank(count: int, batch_size: int, world: int):
    orders = [EvalOrder(count, batch_size, Rank(number, world)) for number in range(world)]
    (steps,) = {order.steps for order in orders}
    batches = [order.batch(step) for order in orders for step in range(steps)]
    assert [place for batch in batches for place in batch] == [SampleIndex(0, image) for image in range(count)]
    assert max(map(len, batches), default=0) <= batch_size
    assert not any(order.batch(steps) for order in orders)
    assert not count or any(order.batch(steps - 1) for order in orders)


# The first numbers of SplitMix64 for seeds 1234567 and 0, from the reference C program.
PUBLISHED = {
    1234567: [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431],
    0: [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F],
}


@pytest.mark.parametrize("seed", PUBLISHED)
def test_draws_match_published_splitmix64_numbers(seed: int):
    draws = Draws(seed)
    for step, number in enumerate(PUBLISHED[seed], 1):
        assert mix(seed + step * STEP & MASK) == number
        assert draws.uniform() == (number >> 11) / 2**53


def test_draws_below_and_between_stay_in_range():
    draws = Draws(5)
    counts = np.bincount([draws.below(7) for _ in range(7_000)])
    assert len(counts) == 7
    assert stats.chisquare(counts).pvalue > 0.01
    values = [draws.between(0.75, 4 / 3) for _ in range(1_000)]
    assert 0.75 <= min(values) < 0.76
    assert 1.32 < max(values) < 4 / 3


def test_derive_key_depends_on_all_numbers_and_their_order():
    keys = {derive_key(*numbers) for numbers in [(), (0,), (0, 0), (1, 0), (0, 1), (1, 2, 3), (3, 2, 1), (2**63 - 1,)]}
    assert len(keys) == 8
    assert all(0 <= key <= MASK for key in keys)


def test_shuffle_is_the_same_in_every_version():
    """Runs of older versions must be repeatable, so these numbers must not change."""
    assert shuffle(10, derive_key(0, 0)).tolist() == [0, 7, 8, 2, 5, 9, 4, 6, 3, 1]
    assert derive_key(1, 2, 3) == 0xD0734750FDE362B3
