"""Run tasks on a pool of threads or processes with ordered, bounded results; file locks; progress records."""

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
"""Tasks per submission to a worker: fewer switches between threads."""


class WorkProgress(NamedTuple):
    """Progress of writing, downloading, unpacking or checking; drawn by cli/render/progress.py."""

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
    """Hold a lock against a second process that writes the same file; the lock file is not removed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as err:
        raise BusyError(f"{written} is being written by another process", hint="wait until it has finished") from err
    finally:
        os.close(descriptor)


class Pool(NamedTuple):
    """Worker threads, or processes for work that holds Python's global lock."""

    executor: Executor
    workers: int


@contextmanager
def open_pool(workers: int, *, processes: bool = False) -> Iterator[Pool]:
    """Start workers; tasks still queued at the end, or after an error, are cancelled."""
    executor: Executor
    if processes:
        # Spawn, not fork: libraries in the parent process may have started threads.
        context = multiprocessing.get_context("spawn")
        executor = ProcessPoolExecutor(workers, mp_context=context, initializer=end_with_parent)
    else:
        executor = ThreadPoolExecutor(workers, thread_name_prefix="data")
    try:
        yield Pool(executor, workers)
    except BrokenProcessPool as err:
        raise MachineError("a worker process died", hint="often out of memory: try --workers 1") from err
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def end_with_parent() -> None:
    """Exit this worker when its parent process ends, even by kill -9."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def map_in_order(
    function: Callable[[list[Task]], Done], tasks: Iterable[Task], pool: Pool, chunk: int = CHUNK
) -> Iterator[Done]:
    """Apply a function to chunks of tasks; yield results in order, with a bounded number waiting in memory."""
    waiting: deque[Future[Done]] = deque()
    remaining = iter(tasks)
    try:
        while batch := list(islice(remaining, chunk)):
            waiting.append(pool.executor.submit(function, batch))
            if len(waiting) >= WAITING_PER_WORKER * pool.workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
