"""Threads fill batches in order, no further ahead than there is memory, and always come to an end."""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from trainstone.data import loader
from trainstone.data.feeding import ring
from trainstone.data.feeding.feed import Bad, Worker
from trainstone.data.feeding.order import Place
from trainstone.data.feeding.ring import MAX_ROWS_AT_ONCE, Ring

LONG = 20.0
"""Seconds after which a test is lost; none waits so long."""


class Made:
    """Rings over lists, and what their threads were asked."""

    def __init__(self) -> None:
        self.rings: list[Ring[list[int]]] = []
        self.planned: list[int] = []
        self.filled: list[tuple[int, int]] = []
        self.gate = threading.Event()
        self.gate.set()

    def plan(self, step: int) -> Sequence[Place]:
        self.planned.append(step)
        return [Place(step, row) for row in range(4)]

    def fill(self, memory: list[int], row: int, place: Place, _worker: Worker, _bad: list[Bad]) -> None:
        assert self.gate.wait(LONG)
        memory[row] = place.epoch * 100 + place.picture
        self.filled.append((place.epoch, row))

    def open(self, num_slots: int = 5, **wishes) -> Ring[list[int]]:
        wishes = {"threads": 3, "keep": 2, "plan": self.plan, "fill_row": self.fill, **wishes}
        made = Ring([[0] * 32 for _ in range(num_slots)], wishes.pop("plan"), wishes.pop("fill_row"), **wishes)
        self.rings.append(made)
        return made


@pytest.fixture
def made():
    before = set(threading.enumerate())
    some = Made()
    yield some
    some.gate.set()
    for one in some.rings:
        one.close()
    assert set(threading.enumerate()) <= before


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


def is_at_rest(one: Ring) -> bool:
    """All threads wait for memory, or for the end of a pause."""
    return len(one._work_to_do._waiters) == len(one._threads)  # type: ignore[attr-defined]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("num_slots", [3, 6])
def test_batches_come_in_order(made: Made, threads: int, num_slots: int):
    one = made.open(num_slots, threads=threads)
    for step in range(50):
        slot = one.take()
        assert slot is not None
        assert slot.memory[:4] == [step * 100 + row for row in range(4)]


def test_any_step_can_be_the_first(made: Made):
    slot = made.open(first_step=37).take()
    assert slot is not None
    assert slot.memory[0] == 3_700
    assert min(made.planned) == 37


def test_there_is_an_end(made: Made):
    one = made.open(steps=3)
    assert [slot.memory[0] for slot in iter(one.take, None)] == [0, 100, 200]
    assert one.take() is None
    assert made.planned == [0, 1, 2]
    wait_until(lambda: not any(thread.is_alive() for thread in one._threads))


@pytest.mark.parametrize("first_step", [3, 4, 10])
def test_beyond_the_last_step_nothing_comes(made: Made, first_step: int):
    one = made.open(steps=3, first_step=first_step)
    assert one.take() is None
    assert made.planned == []


def test_no_step_at_all(made: Made):
    assert made.open(steps=0).take() is None


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_a_slow_consumer_lets_no_more_batches_begin_than_there_is_memory(made: Made, keep: int):
    one = made.open(5, keep=keep)
    wait_until(lambda: is_at_rest(one))
    assert made.planned == list(range(5))
    for taken in range(1, 20):
        one.take()
        wait_until(lambda: is_at_rest(one))
        assert made.planned == list(range(5 + max(0, taken - keep)))
        assert sorted(made.filled) == [(step, row) for step in made.planned for row in range(4)]


def test_a_batch_stays_until_so_many_more_were_asked_for(made: Made):
    one = made.open(3, keep=2)
    held = []
    for _ in range(30):
        slot = one.take()
        assert slot is not None
        held = [*held, (slot, list(slot.memory))][-2:]
        wait_until(lambda: is_at_rest(one))
        for old, content in held:
            assert old.memory == content


def test_memory_comes_round(made: Made):
    one = made.open(4)
    seen = [id(slot.memory) for _ in range(40) if (slot := one.take())]
    assert len(set(seen)) == 4
    assert seen == seen[:4] * 10


def test_closing_while_someone_waits_for_a_batch(made: Made):
    made.gate.clear()
    one = made.open()
    told: list[BaseException] = []

    def consume() -> None:
        try:
            one.take()
        except RuntimeError as err:
            told.append(err)

    consumer = threading.Thread(target=consume)
    consumer.start()
    wait_until(lambda: bool(one._batch_ready._waiters))  # type: ignore[attr-defined]
    closer = threading.Thread(target=one.close)
    closer.start()
    consumer.join(LONG)
    assert not consumer.is_alive()
    assert "closed" in str(told[0])
    made.gate.set()
    closer.join(LONG)
    assert not closer.is_alive()


def test_closing_while_threads_wait_for_memory_and_twice(made: Made):
    one = made.open()
    wait_until(lambda: is_at_rest(one))
    one.close()
    one.close()
    assert not any(thread.is_alive() for thread in one._threads)


def test_closing_in_a_pause(made: Made):
    one = made.open()
    one.pause()
    one.close()
    assert not any(thread.is_alive() for thread in one._threads)


def test_taking_after_closing_does_not_hang(made: Made):
    one = made.open(3, keep=1)
    wait_until(lambda: is_at_rest(one))
    one.close()
    for _ in range(3):  # those that were made before
        one.take()
    with pytest.raises(RuntimeError, match="closed"):
        one.take()


def test_a_pause_stops_work_until_it_ends(made: Made):
    one = made.open(4, keep=1)
    wait_until(lambda: is_at_rest(one))
    one.pause()
    done = list(made.filled)
    for _ in range(3):
        one.take()
    wait_until(lambda: is_at_rest(one))
    assert made.filled == done
    one.go_on()
    for step in range(3, 30):
        slot = one.take()
        assert slot is not None
        assert slot.memory[0] == step * 100


def test_a_pause_lets_rows_begun_be_finished(made: Made):
    made.gate.clear()
    one = made.open()
    one.pause()
    made.gate.set()
    wait_until(lambda: is_at_rest(one))
    assert len(made.filled) <= 3  # a row for each thread
    one.go_on()
    slot = one.take()
    assert slot is not None
    assert slot.memory[:4] == [0, 1, 2, 3]


def test_an_error_of_the_plan_comes_with_its_batch(made: Made):
    def plan(step: int) -> Sequence[Place]:
        if step == 2:
            raise ValueError("no plan")
        return made.plan(step)

    one = made.open(plan=plan)
    slots = []
    for _ in range(4):
        slot = one.take()
        assert slot is not None
        slots.append((dict(slot.errors), slot.memory[0]))
    assert [bool(errors) for errors, _ in slots] == [False, False, True, False]
    assert str(slots[2][0][0]) == "no plan"
    assert slots[3][1] == 300


def test_errors_of_rows_are_kept_by_row_and_forgotten_with_the_batch(made: Made):
    def fill(memory: list[int], row: int, place: Place, worker: Worker, bad: list[Bad]) -> None:
        made.fill(memory, row, place, worker, bad)
        if place.epoch == 1 and row in (1, 3):
            raise ValueError(row)

    one = made.open(3, fill_row=fill, keep=1)
    found = []
    for _ in range(8):
        slot = one.take()
        assert slot is not None
        found.append(sorted(slot.errors))
    assert found == [[], [1, 3], [], [], [], [], [], []]


def test_an_error_of_any_kind_does_not_let_the_consumer_hang(made: Made, monkeypatch: pytest.MonkeyPatch):
    """Whatever a library raises in a thread, someone waits for that batch."""

    class Panic(BaseException):
        """As Rust's panics come to Python."""

    def fill(*_) -> None:
        raise Panic

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    one = made.open(fill_row=fill, threads=1)

    def consume() -> None:
        with contextlib.suppress(RuntimeError):
            one.take()

    consumer = threading.Thread(target=consume, daemon=True)
    consumer.start()
    consumer.join(1.0)
    hung = consumer.is_alive()
    one.close()
    consumer.join(LONG)
    assert not hung


def test_empty_batches_pass(made: Made):
    one = made.open(plan=lambda step: [] if step % 2 else made.plan(step), steps=6)
    sizes = [len(slot.places) for slot in iter(one.take, None)]
    assert sizes == [4, 0, 4, 0, 4, 0]


@pytest.mark.parametrize(("num_rows", "threads", "most"), [(4, 3, 1), (256, 2, 8), (256, 16, 4), (24, 2, 3)])
def test_threads_take_a_few_rows_at_once(made: Made, num_rows: int, threads: int, most: int):
    one = made.open(threads=threads, steps=0)
    cuts = []
    while one._row < num_rows:
        cuts.append(one._cut_rows(num_rows))
    assert [row for rows in cuts for row in rows] == list(range(num_rows))
    assert max(len(rows) for rows in cuts) == most <= MAX_ROWS_AT_ONCE


def test_time_waited_is_told_while_threads_still_wait(made: Made, monkeypatch: pytest.MonkeyPatch):
    """A loader that is far ahead does nothing: its threads' time is not work on batches."""

    class Clock:
        now = 0.0

        def perf_counter(self) -> float:
            return self.now

    clock = Clock()
    monkeypatch.setattr(ring, "time", clock)
    monkeypatch.setattr(loader, "time", clock)
    idle = loader.Loader.__new__(loader.Loader)
    idle._began = 0.0
    idle._ring = one = made.open()
    wait_until(lambda: is_at_rest(one))
    clock.now = 100.0
    assert idle.stages().seconds["batch"] == pytest.approx(0, abs=1)
    one.take()
    wait_until(lambda: is_at_rest(one))
    assert idle.stages().seconds["batch"] == pytest.approx(0, abs=1)
