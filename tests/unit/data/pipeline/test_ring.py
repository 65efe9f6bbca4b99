"""Threads fill batches in order, no further ahead than there is memory, and always come to an end."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from support.builders.loaders import wait_for_rest
from support.processes.command import LIMIT
from support.processes.forked import wait_until
from trainstone.data import loader
from trainstone.data.pipeline import ring
from trainstone.data.pipeline.feed import BadImage, Worker
from trainstone.data.pipeline.order import SampleIndex
from trainstone.data.pipeline.ring import Ring


class Made:
    """Rings over lists, and what their threads were asked."""

    def __init__(self) -> None:
        self.rings: list[Ring[list[int]]] = []
        self.planned: list[int] = []
        self.filled: list[tuple[int, int]] = []
        self.gate = threading.Event()
        self.gate.set()

    def plan(self, step: int) -> Sequence[SampleIndex]:
        self.planned.append(step)
        return [SampleIndex(step, row) for row in range(4)]

    def fill(self, memory: list[int], row: int, place: SampleIndex, _worker: Worker, _bad: list[BadImage]) -> None:
        assert self.gate.wait(LIMIT)
        memory[row] = place.epoch * 100 + place.image
        self.filled.append((place.epoch, row))

    def open(self, num_slots: int = 5, **requests) -> Any:
        requests = {"threads": 3, "keep": 2, "plan": self.plan, "fill_row": self.fill, **requests}
        self.rings.append(Ring([[0] * 32 for _ in range(num_slots)], **requests))
        return self.rings[-1]


@pytest.fixture
def made():
    before = set(threading.enumerate())
    some = Made()
    yield some
    some.gate.set()
    for one in some.rings:
        one.close()
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("threads", [1, 5])
@pytest.mark.parametrize("num_slots", [3, 6])
@pytest.mark.parametrize("first_step", [0, 37])
def test_batches_come_in_order_in_memory_that_comes_round(made: Made, threads: int, num_slots: int, first_step: int):
    one = made.open(num_slots, threads=threads, first_step=first_step)
    seen = []
    for step in range(first_step, first_step + 30):
        slot = one.take()
        assert slot.memory[:4] == [step * 100 + row for row in range(4)]
        seen.append(id(slot.memory))
    assert len(set(seen)) == num_slots
    assert seen == (seen[:num_slots] * 30)[:30]
    assert min(made.planned) == first_step


@pytest.mark.parametrize(("steps", "first_step", "left"), [(3, 0, [0, 100, 200]), (3, 3, []), (3, 10, []), (0, 0, [])])
def test_there_is_an_end(made: Made, steps: int, first_step: int, left: list[int]):
    one = made.open(steps=steps, first_step=first_step)
    assert [slot.memory[0] for slot in iter(one.take, None)] == left
    assert one.take() is None
    assert made.planned == list(range(len(left)))
    wait_until(lambda: not any(thread.is_alive() for thread in one._threads))


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_no_more_batches_begin_than_there_is_memory_and_those_taken_stay(made: Made, keep: int):
    one, held = made.open(5, keep=keep), []
    wait_for_rest(one)
    assert made.planned == list(range(5))
    for taken in range(1, 20):
        slot = one.take()
        held = [*held, (slot.memory, list(slot.memory))][-keep:] if keep else []
        wait_for_rest(one)
        assert made.planned == list(range(5 + max(0, taken - keep)))
        assert sorted(made.filled) == [(step, row) for step in made.planned for row in range(4)]
        assert all(memory == content for memory, content in held)


def test_closing_while_someone_waits_for_a_batch(made: Made):
    made.gate.clear()
    one = made.open()
    with ThreadPoolExecutor(2) as pool:
        taken = pool.submit(one.take)
        wait_until(lambda: bool(one._batch_ready._waiters))
        closed = pool.submit(one.close)
        with pytest.raises(RuntimeError, match="closed"):
            taken.result(LIMIT)
        made.gate.set()
        closed.result(LIMIT)


def test_a_pause_lets_rows_begun_be_finished(made: Made):
    made.gate.clear()
    one = made.open()
    one.pause()
    made.gate.set()
    wait_for_rest(one)
    assert len(made.filled) <= 3  # a row for each thread
    one.go_on()
    slot = one.take()
    assert slot.memory[:4] == [0, 1, 2, 3]


class Panic(BaseException):
    """As Rust's panics come to Python."""


@pytest.mark.parametrize("kind", [ValueError, Panic])
def test_errors_come_with_their_batch_by_row_and_are_forgotten_with_it(made: Made, kind: type[BaseException]):
    def fill(memory: list[int], row: int, place: SampleIndex, worker: Worker, bad: list[BadImage]) -> None:
        made.fill(memory, row, place, worker, bad)
        if place.epoch == 1 and row in (1, 3):
            raise kind(row)

    def plan(step: int) -> Sequence[SampleIndex]:
        if step == 2:
            raise ValueError("no plan")
        return made.plan(step)

    one = made.open(3, fill_row=fill, plan=plan, keep=1)
    found = [sorted(one.take().errors) for _ in range(7)]
    assert found == [[], [1, 3], [0], [], [], [], []]


def test_empty_batches_pass(made: Made):
    one = made.open(plan=lambda step: [] if step % 2 else made.plan(step), steps=6)
    assert [len(slot.places) for slot in iter(one.take, None)] == [4, 0, 4, 0, 4, 0]


def test_time_waited_is_told_while_threads_still_wait(made: Made, monkeypatch: pytest.MonkeyPatch):
    """A loader that is far ahead does nothing: its threads' time is not work on batches."""

    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr(ring, "time", clock)
    monkeypatch.setattr(loader, "time", clock)
    idle = loader.Loader.__new__(loader.Loader)
    idle._began = 0.0
    idle._ring = one = made.open()
    wait_for_rest(one)
    clock.now = 100.0
    assert idle.stages().seconds["batch"] == pytest.approx(0, abs=1)
    one.take()
    wait_for_rest(one)
    assert idle.stages().seconds["batch"] == pytest.approx(0, abs=1)
