"""Which pictures come when: each once an epoch, whatever the ranks, and any step can be the first."""

from collections import Counter

import pytest

from trainstone.data.feeding.order import KEPT_EPOCHS, EvalOrder, Place, TrainOrder
from trainstone.errors import DataError
from trainstone.machine.ranks import Rank

WORLDS = pytest.mark.parametrize("world", [1, 2, 3, 7])


def take(count: int, batch_size: int, world: int, steps: int, drop: bool = False) -> list[list[Place]]:
    """All ranks' pictures of each step, rank 0 first."""
    orders = [TrainOrder(count, batch_size, 3, Rank(number, world), drop=drop) for number in range(world)]
    return [[place for order in orders for place in order.batch(step)] for step in range(steps)]


@WORLDS
@pytest.mark.parametrize(("count", "batch_size"), [(1, 1), (10, 4), (84, 3), (85, 3), (5, 16)])
def test_every_picture_comes_once_an_epoch(count: int, batch_size: int, world: int):
    steps = 3 * count // (batch_size * world) + 1
    row = [place for step in take(count, batch_size, world, steps) for place in step]
    assert len(row) == steps * batch_size * world
    for epoch in range(3):
        part = row[epoch * count : (epoch + 1) * count]
        assert {place.epoch for place in part} == {epoch}
        assert sorted(place.picture for place in part) == list(range(count))


@WORLDS
def test_dropping_leaves_out_what_does_not_fill_a_step(world: int):
    count, batch_size = 50, 3
    steps = count // (batch_size * world)
    orders = [TrainOrder(count, batch_size, 3, Rank(number, world), drop=True) for number in range(world)]
    for epoch in range(3):
        places = [p for step in range(steps) for order in orders for p in order.batch(epoch * steps + step)]
        assert {place.epoch for place in places} == {epoch}
        assert len({place.picture for place in places}) == len(places) == steps * batch_size * world
        assert orders[0].epoch_of(epoch * steps) == orders[0].epoch_of((epoch + 1) * steps - 1) == epoch
    assert orders[0].epoch_pictures == steps * batch_size * world


def test_what_is_dropped_is_another_each_epoch():
    order = TrainOrder(10, 4, 0, drop=True)
    seen = Counter(place.picture for step in range(200) for place in order.batch(step))
    assert set(seen) == set(range(10))
    assert max(seen.values()) - min(seen.values()) < 45  # each is left out of about 20 of 100 epochs


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("world", [2, 3, 6])
def test_the_pictures_of_a_step_do_not_depend_on_how_many_ranks_share_them(world: int, drop: bool):
    assert take(50, 12 // world, world, 20, drop) == take(50, 12, 1, 20, drop)


def test_any_step_can_come_first():
    forward = TrainOrder(17, 4, 1)
    expected = [forward.batch(step) for step in range(40)]
    backward = TrainOrder(17, 4, 1)
    assert [backward.batch(step) for step in reversed(range(40))] == expected[::-1]


def test_epochs_and_seeds_differ():
    def pictures(seed: int, epoch: int) -> list[int]:
        return [place.picture for place in TrainOrder(30, 30, seed).batch(epoch)]

    assert len({tuple(pictures(seed, epoch)) for seed in range(4) for epoch in range(4)}) == 16


def test_the_epoch_of_a_step_is_the_one_it_begins_in():
    order = TrainOrder(10, 4, 0)
    assert [order.epoch_of(step) for step in range(6)] == [order.batch(step)[0].epoch for step in range(6)]
    assert [order.epoch_of(step) for step in range(6)] == [0, 0, 0, 1, 1, 2]
    assert order.steps is None


def test_few_epochs_are_kept_in_memory():
    order = TrainOrder(10, 4, 0)
    for step in range(100):
        order.batch(step)
    assert len(order._epochs) == KEPT_EPOCHS


def test_a_batch_may_span_many_epochs():
    places = TrainOrder(3, 20, 0).batch(5)
    assert len(places) == 20
    assert places[0].epoch == 33
    assert places[-1].epoch == 39


def test_no_picture_is_an_error():
    with pytest.raises(DataError, match="no training picture"):
        TrainOrder(0, 4, 0)


def test_dropping_all_is_an_error():
    with pytest.raises(DataError, match=r"7 pictures do not fill a batch of 8 \(all ranks\)") as told:
        TrainOrder(7, 4, 0, Rank(0, 2), drop=True)
    assert "loader.last=carry" in (told.value.hint or "")
    assert TrainOrder(8, 4, 0, Rank(0, 2), drop=True).epoch_pictures == 8


@WORLDS
@pytest.mark.parametrize("count", [0, 1, 6, 7, 8, 20, 21, 50])
@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_validation_shows_every_picture_once_in_as_many_steps_for_all(count: int, batch_size: int, world: int):
    orders = [EvalOrder(count, batch_size, Rank(number, world)) for number in range(world)]
    steps = {order.steps for order in orders}
    assert len(steps) == 1
    places = [place for order in orders for step in range(order.steps) for place in order.batch(step)]
    assert places == [Place(0, picture) for picture in range(count)]
    for order in orders:
        assert all(len(order.batch(step)) <= batch_size for step in range(order.steps))
        assert order.batch(order.steps) == []


def test_no_step_of_validation_is_empty_for_all_ranks():
    for count in range(1, 40):
        orders = [EvalOrder(count, 4, Rank(number, 3)) for number in range(3)]
        assert any(order.batch(orders[0].steps - 1) for order in orders)
