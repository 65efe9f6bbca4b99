"""Ring buffer of prefetched batches, filled by threads. It does not use torch.

Threads take the next few rows of the newest batch; batches are returned in order. Which thread fills a row varies, its
content does not.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from trainstone.data.pipeline.input_pipeline import BadImage, WorkerState
from trainstone.data.pipeline.order import SampleIndex

Memory = TypeVar("Memory")
MAX_ROWS_AT_ONCE = 8
JOIN_SECONDS = 5.0


@dataclass
class Slot(Generic[Memory]):
    """The memory of one batch and its state."""

    memory: Memory
    places: Sequence[SampleIndex] = ()
    rows_left: int = 0
    errors: dict[int, BaseException] = field(default_factory=dict)
    """By row; raised when the batch is taken, so that the first row is reported, not the first in time."""
    bad: list[BadImage] = field(default_factory=list)


class Ring(Generic[Memory]):
    """Threads that fill slots. A batch stays valid until `keep` more are taken: a copy to a device may be running."""

    def __init__(
        self,
        slots: Sequence[Memory],
        plan: Callable[[int], Sequence[SampleIndex]],
        fill_row: Callable[[Memory, int, SampleIndex, WorkerState, list[BadImage]], None],
        *,
        threads: int,
        keep: int = 1,
        first_step: int = 0,
        steps: int | None = None,
    ) -> None:
        assert len(slots) > keep
        self.workers = [WorkerState() for _ in range(threads)]
        self._slots = [Slot(memory) for memory in slots]
        self._plan, self._fill_row = plan, fill_row
        self._keep, self._steps = keep, steps
        # Batches begun by threads, taken by the consumer, and released for reuse.
        self._begun = self._taken = self._free = first_step
        self._row = 0
        """The next row to fill of the newest batch."""
        self._closed = self._paused = False
        self._lock = threading.Lock()
        self._work_to_do = threading.Condition(self._lock)
        self._batch_ready = threading.Condition(self._lock)
        self._threads = [
            threading.Thread(target=self._work, args=(worker,), name=f"loader-{number}", daemon=True)
            for number, worker in enumerate(self.workers)
        ]
        for thread in self._threads:
            thread.start()

    def take(self) -> Slot[Memory] | None:
        """Wait for the next batch and return it; None after the last."""
        with self._lock:
            if self._steps is not None and self._taken >= self._steps:
                return None
            if self._taken - self._free >= self._keep:
                self._free += 1
                self._work_to_do.notify_all()
            slot = self._slot(self._taken)
            while self._begun == self._taken or slot.rows_left:
                if self._closed:
                    raise RuntimeError("the loader is closed")
                self._batch_ready.wait()
            self._taken += 1
            return slot

    def pause(self) -> None:
        """Make the threads wait after their current rows."""
        with self._lock:
            self._paused = True

    def resume(self) -> None:
        with self._lock:
            self._paused = False
            self._work_to_do.notify_all()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._work_to_do.notify_all()
            self._batch_ready.notify_all()
        for thread in self._threads:
            # A thread blocked by a dead disk cannot be stopped; daemon threads do not block exit.
            thread.join(JOIN_SECONDS)

    def _slot(self, step: int) -> Slot[Memory]:
        return self._slots[step % len(self._slots)]

    def _work(self, worker: WorkerState) -> None:
        while (job := self._next_rows(worker)) is not None:
            slot, rows = job
            for row in rows:
                try:
                    self._fill_row(slot.memory, row, slot.places[row], worker, slot.bad)
                except BaseException as err:  # noqa: BLE001  (raised when the batch is taken)
                    slot.errors[row] = err
            with self._lock:
                slot.rows_left -= len(rows)
                if slot.rows_left == 0:
                    self._batch_ready.notify_all()

    def _next_rows(self, worker: WorkerState) -> tuple[Slot[Memory], range] | None:
        """Wait for memory and return the next few rows to fill; None at the end."""
        with self._lock:
            while not self._closed:
                newest = self._slot(self._begun - 1)
                rows_open = self._row < len(newest.places)
                if self._steps is not None and self._begun >= self._steps and not rows_open:
                    return None
                if rows_open and not self._paused:
                    # Several rows at once mean fewer locks; too many would leave threads idle at the end of a batch.
                    num_rows = len(newest.places)
                    most = max(1, min(MAX_ROWS_AT_ONCE, num_rows // (4 * len(self.workers))))
                    rows = range(self._row, min(self._row + most, num_rows))
                    self._row = rows.stop
                    return newest, rows
                if self._begun - self._free < len(self._slots) and not self._paused:
                    self._begin_batch()
                    continue
                begin = worker.waiting_since = time.perf_counter()
                self._work_to_do.wait()
                worker.wait_seconds += time.perf_counter() - begin
                worker.waiting_since = None
        return None

    def _begin_batch(self) -> None:
        slot = self._slot(self._begun)
        slot.errors, slot.bad = {}, []
        try:
            slot.places = self._plan(self._begun)
        except Exception as err:  # noqa: BLE001
            slot.places, slot.errors = (), {0: err}
        slot.rows_left = len(slot.places)
        self._row = 0
        self._begun += 1
        self._work_to_do.notify_all()
        if not slot.places:
            self._batch_ready.notify_all()
