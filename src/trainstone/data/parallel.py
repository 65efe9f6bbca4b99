"""Work over cores with results in order and a bounded number of them waiting; locks, and how far it has come."""

import fcntl
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

from trainstone.errors import DataError, MachineError

Task = TypeVar("Task")
Done = TypeVar("Done")

WAITING_PER_WORKER = 3
CHUNK = 16
"""Tasks that a worker takes at once: fewer hand-overs between threads."""


class WorkProgress(NamedTuple):
    """How far preparing, fetching, unpacking or checking has come; drawn by cli/render/progress.py."""

    phase: str
    done: int
    total: int | None
    unit: str
    """bytes, files or images."""
    written_bytes: int = 0


class BusyError(DataError):
    """Another process holds the lock."""


@contextmanager
def lock_file(path: Path, written: Path) -> Iterator[None]:
    """Hold a lock against a second process that writes the same; the file of the lock stays."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as err:
        raise BusyError(f"{written} is being written by another process", hint="let it end") from err
    finally:
        os.close(descriptor)


class Pool(NamedTuple):
    """Threads, or processes where Python itself is the work."""

    executor: Executor
    workers: int


@contextmanager
def open_pool(workers: int, *, processes: bool = False) -> Iterator[Pool]:
    """Start workers; at the end, also that of an error, what still waits is dropped."""
    executor: Executor
    if processes:
        # Spawned, not forked: libraries of the parent may have threads.
        context = multiprocessing.get_context("spawn")
        executor = ProcessPoolExecutor(workers, mp_context=context, initializer=end_with_parent)
    else:
        executor = ThreadPoolExecutor(workers, thread_name_prefix="data")
    try:
        yield Pool(executor, workers)
    except BrokenProcessPool as err:
        raise MachineError("a worker process died", hint="often for want of memory: try --workers 1") from err
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def end_with_parent() -> None:
    """Let this worker end when the process that started it is gone, kill -9 included."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def map_in_order(
    function: Callable[[list[Task]], Done], tasks: Iterable[Task], pool: Pool, chunk: int = CHUNK
) -> Iterator[Done]:
    """Apply a function to chunks of tasks; yield results in order, with few waiting, so memory stays bounded."""
    waiting: deque[Future[Done]] = deque()
    left = iter(tasks)
    try:
        while some := list(islice(left, chunk)):
            waiting.append(pool.executor.submit(function, some))
            if len(waiting) >= WAITING_PER_WORKER * pool.workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
