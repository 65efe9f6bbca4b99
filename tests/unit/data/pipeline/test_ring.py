"""Tests of the ring buffer: batches in order, bounded prefetch, errors, pause and close."""

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
from trainstone.data.pipeline.input_pipeline import BadImage, WorkerState
from trainstone.data.pipeline.order import SampleIndex
from trainstone.data.pipeline.ring import Ring


class RingFactory:
    """Opens rings over lists and records the planned steps and filled rows."""

    def __init__(self) -> None:
        self.rings: list[Ring[list[int]]] = []
        self.planned: list[int] = []
        self.filled: list[tuple[int, int]] = []
        self.gate = threading.Event()
        self.gate.set()

    def plan(self, step: int) -> Sequence[SampleIndex]:
        self.planned.append(step)
        return [SampleIndex(step, row) for row in range(4)]

    def fill(self, memory: list[int], row: int, place: SampleIndex, _worker: WorkerState, _bad: list[BadImage]) -> None:
        assert self.gate.wait(LIMIT)
        memory[row] = place.epoch * 100 + place.image
        self.filled.append((place.epoch, row))

    def open(self, num_slots: int = 5, **options) -> Any:
        options = {"threads": 3, "keep": 2, "plan": self.plan, "fill_row": self.fill, **options}
        self.rings.append(Ring([[0] * 32 for _ in range(num_slots)], **options))
        return self.rings[-1]


@pytest.fixture
def factory():
    before = set(threading.enumerate())
    factory = RingFactory()
    yield factory
    factory.gate.set()
    for batch_ring in factory.rings:
        batch_ring.close()
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("threads", [1, 5])
@pytest.mark.parametrize("num_slots", [3, 6])
@pytest.mark.parametrize("first_step", [0, 37])
def test_take_returns_batches_in_order_in_reused_memory(
    factory: RingFactory, threads: int, num_slots: int, first_step: int
):
    batch_ring = factory.open(num_slots, threads=threads, first_step=first_step)
    seen = []
    for step in range(first_step, first_step + 30):
        slot = batch_ring.take()
        assert slot.memory[:4] == [step * 100 + row for row in range(4)]
        seen.append(id(slot.memory))
    assert len(set(seen)) == num_slots
    assert seen == (seen[:num_slots] * 30)[:30]
    assert min(factory.planned) == first_step


@pytest.mark.parametrize(
    ("steps", "first_step", "expected"), [(3, 0, [0, 100, 200]), (3, 3, []), (3, 10, []), (0, 0, [])]
)
def test_take_returns_none_after_last_step(factory: RingFactory, steps: int, first_step: int, expected: list[int]):
    batch_ring = factory.open(steps=steps, first_step=first_step)
    assert [slot.memory[0] for slot in iter(batch_ring.take, None)] == expected
    assert batch_ring.take() is None
    assert factory.planned == list(range(len(expected)))
    wait_until(lambda: not any(thread.is_alive() for thread in batch_ring._threads))


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_ring_prefetches_up_to_its_memory_and_keeps_taken_batches_valid(factory: RingFactory, keep: int):
    batch_ring, valid = factory.open(5, keep=keep), []
    wait_for_rest(batch_ring)
    assert factory.planned == list(range(5))
    for taken in range(1, 20):
        slot = batch_ring.take()
        valid = [*valid, (slot.memory, list(slot.memory))][-keep:] if keep else []
        wait_for_rest(batch_ring)
        assert factory.planned == list(range(5 + max(0, taken - keep)))
        assert sorted(factory.filled) == [(step, row) for step in factory.planned for row in range(4)]
        assert all(memory == content for memory, content in valid)


def test_close_while_take_waits_raises_runtime_error(factory: RingFactory):
    factory.gate.clear()
    batch_ring = factory.open()
    with ThreadPoolExecutor(2) as pool:
        taken = pool.submit(batch_ring.take)
        wait_until(lambda: bool(batch_ring._batch_ready._waiters))
        closed = pool.submit(batch_ring.close)
        with pytest.raises(RuntimeError, match="closed"):
            taken.result(LIMIT)
        factory.gate.set()
        closed.result(LIMIT)


def test_pause_finishes_started_rows_and_resume_continues(factory: RingFactory):
    factory.gate.clear()
    batch_ring = factory.open()
    batch_ring.pause()
    factory.gate.set()
    wait_for_rest(batch_ring)
    assert len(factory.filled) <= 3  # one row per thread
    batch_ring.resume()
    slot = batch_ring.take()
    assert slot.memory[:4] == [0, 1, 2, 3]


class Panic(BaseException):
    """An error that is not an Exception, like a Rust panic in Python."""


@pytest.mark.parametrize("kind", [ValueError, Panic])
def test_errors_are_returned_with_their_batch_by_row(factory: RingFactory, kind: type[BaseException]):
    def fill(memory: list[int], row: int, place: SampleIndex, worker: WorkerState, bad: list[BadImage]) -> None:
        factory.fill(memory, row, place, worker, bad)
        if place.epoch == 1 and row in (1, 3):
            raise kind(row)

    def plan(step: int) -> Sequence[SampleIndex]:
        if step == 2:
            raise ValueError("no plan")
        return factory.plan(step)

    batch_ring = factory.open(3, fill_row=fill, plan=plan, keep=1)
    found = [sorted(batch_ring.take().errors) for _ in range(7)]
    assert found == [[], [1, 3], [0], [], [], [], []]


def test_take_returns_empty_batches(factory: RingFactory):
    batch_ring = factory.open(plan=lambda step: [] if step % 2 else factory.plan(step), steps=6)
    assert [len(slot.places) for slot in iter(batch_ring.take, None)] == [4, 0, 4, 0, 4, 0]


def test_stages_exclude_wait_that_has_not_ended(factory: RingFactory, monkeypatch: pytest.MonkeyPatch):
    """Waiting threads of a loader that is far ahead must not count as work on batches."""

    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr(ring, "time", clock)
    monkeypatch.setattr(loader, "time", clock)
    idle = loader.Loader.__new__(loader.Loader)
    idle._began = 0.0
    idle._ring = batch_ring = factory.open()
    wait_for_rest(batch_ring)
    clock.now = 100.0
    assert idle.stages().seconds["batch"] == pytest.approx(0, abs=1)
    batch_ring.take()
    wait_for_rest(batch_ring)
    assert idle.stages().seconds["batch"] == pytest.approx(0, abs=1)
