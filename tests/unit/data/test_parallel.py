"""Work over threads and processes: in order, few waiting, and an error ends it."""

import os
import threading
from collections.abc import Iterator

import pytest

from command import LIMIT
from trainstone.data.parallel import WAITING_PER_WORKER, map_in_order, open_pool
from trainstone.errors import DataError, MachineError


def die(_: list[int]) -> None:
    os._exit(1)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_results_come_in_the_order_of_tasks(workers: int):
    gates = [threading.Event() for _ in range(workers)]

    def wait_for_the_next(numbers: list[int]) -> int:
        (number,) = numbers
        if number + 1 < workers:
            gates[number + 1].wait(LIMIT)
        if number < workers:
            gates[number].set()
        return number

    with open_pool(workers) as pool:
        assert list(map_in_order(wait_for_the_next, range(30), pool, chunk=1)) == list(range(30))


@pytest.mark.parametrize("workers", [1, 3])
def test_only_few_results_wait(workers: int):
    taken = 0

    def tasks() -> Iterator[int]:
        nonlocal taken
        for number in range(1000):
            taken += 1
            yield number

    with open_pool(workers) as pool:
        for done, _ in enumerate(map_in_order(sum, tasks(), pool, chunk=1)):
            assert taken <= done + WAITING_PER_WORKER * workers
    assert taken == 1000


def test_an_error_comes_in_its_place_and_ends_the_work():
    began = []

    def work(numbers: list[int]) -> int:
        (number,) = numbers
        began.append(number)
        if number == 5:
            raise DataError("the sixth is bad")
        return number

    done: list[int] = []
    with pytest.raises(DataError, match="the sixth is bad"), open_pool(2) as pool:
        done.extend(map_in_order(work, range(1000), pool, chunk=1))
    assert done == [0, 1, 2, 3, 4]
    assert max(began) <= 5 + WAITING_PER_WORKER * 2


def test_a_process_that_dies_is_one_message():
    with pytest.raises(MachineError, match="a worker process died") as caught, open_pool(1, processes=True) as pool:
        list(map_in_order(die, range(2), pool))
    assert "--workers 1" in (caught.value.hint or "")
