"""Batches of real pictures as tensors: the one file of data/ that knows torch.

Same seed, same batches, whatever the threads; any step can be the first. Training never ends, validation does.
"""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainstone.config.schema import AugmentConfig, LoaderConfig
from trainstone.data.feeding.cache import Cache
from trainstone.data.feeding.dali import READERS, Dali
from trainstone.data.feeding.feed import IGNORED, Bad, Feed, Worker
from trainstone.data.feeding.order import EvalOrder, Place, TrainOrder
from trainstone.data.feeding.ring import Ring
from trainstone.data.feeding.transform import make_transform
from trainstone.data.picture.decode import Pixels
from trainstone.data.sample import Source
from trainstone.machine.cpus import available_cores
from trainstone.machine.ranks import ALONE, Rank
from trainstone.text import printable

log = logging.getLogger(__name__)

KEEP = 2
"""A batch stays valid until so many more were asked for: the copy to a device may lag behind."""
TOLD_BAD = 100


@dataclass
class Memory:
    """One batch, as tensors and as the arrays of the same memory that threads write into."""

    images: Tensor
    labels: Tensor
    pixels: Pixels
    classes: NDArray[np.int64]
    on_device: Tensor | None = None
    """The images of this batch instead, where DALI made them on a CUDA device."""

    def put(self, rows: list[int], made: Any) -> None:
        """Copy what DALI made into these rows."""
        images = torch.from_dlpack(made)
        if not images.is_cuda:
            self.images[rows] = images
            return
        # Not run here. New memory each time: a step may still read that of the last batch.
        self.on_device = torch.zeros_like(self.images, device=images.device)
        self.on_device[rows] = images
        for row in set(range(len(self.images))) - set(rows):  # made by ourselves
            self.on_device[row] = self.images[row].to(images.device)
        torch.cuda.current_stream(images.device).synchronize()

    def take(self, filled: int) -> tuple[Tensor, Tensor]:
        """Return the batch; rows that no picture fills are zero, without a class."""
        images = self.images if self.on_device is None else self.on_device
        self.on_device = None
        if filled < len(images):
            self.labels[filled:] = IGNORED
            images[filled:] = 0
        return images, self.labels


STAGES = ("read", "decode", "crop-resize", "batch")


class Stages(NamedTuple):
    """What the threads did: seconds by stage, pictures made, bytes read."""

    seconds: dict[str, float]
    pictures: int
    read_bytes: int


class Loader:
    """Yields (images, labels): uint8 (batch, size, size, 3) and int64 (batch). Close it, or use it as a context.

    Rows of a short batch and damaged pictures of a validation set have the label IGNORED and pixels of zero.
    """

    def __init__(
        self,
        feed: Feed,
        order: TrainOrder | EvalOrder,
        *,
        threads: int,
        prefetch: int,
        pinned: bool = False,
        first_step: int = 0,
        dali: Dali | None = None,
    ) -> None:
        cv2.setNumThreads(0)  # our threads share the cores; OpenCV's own would fight them
        self.feed, self.order = feed, order
        self.num_slots, self.first_step = prefetch + KEEP, first_step
        self.step = first_step
        """The step that comes next: what to go on from."""
        self.skipped = 0
        """How often a damaged picture was left out; bad_pictures says which."""
        self.bad_pictures: set[str] = set()
        slots = [allocate(order.batch_size, feed.transform.size, pinned=pinned) for _ in range(self.num_slots)]
        self._began = time.perf_counter()
        self._dali = dali
        self._ring = Ring(
            slots, self._plan, self._fill, threads=threads, keep=KEEP, first_step=first_step, steps=order.steps
        )

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        slot = self._ring.take()
        if slot is None:
            raise StopIteration
        if slot.errors:
            raise slot.errors[min(slot.errors)]
        self._tell_skipped(slot.bad)
        self.step += 1
        return slot.memory.take(len(slot.places))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the threads and let go of what is cached; batches taken stay as they are."""
        self._ring.close()
        self.feed.cache.clear()
        if self._dali:
            self._dali.close()

    def pause(self) -> None:
        """Do no work for a while, such as while something else is measured."""
        self._ring.pause()

    def go_on(self) -> None:
        """Work again."""
        self._ring.go_on()

    def stages(self) -> Stages:
        """Sum up what the threads did so far; batch is all that is neither reading, decoding nor resizing."""
        workers = self._ring.workers
        spent = [
            sum(worker.read_seconds for worker in workers),
            sum(worker.decode_seconds for worker in workers),
            sum(worker.resize_seconds for worker in workers),
        ]
        now = time.perf_counter()
        # Threads that are waiting now have not added that yet.
        waited = sum(worker.waited_until(now) for worker in workers)
        lived = (now - self._began) * len(workers)
        spent.append(max(0.0, lived - waited - sum(spent)))
        pictures, read_bytes = sum(worker.pictures for worker in workers), sum(worker.read_bytes for worker in workers)
        return Stages(dict(zip(STAGES, spent, strict=True)), pictures, read_bytes)

    def _plan(self, step: int) -> list[Place]:
        places = self.order.batch(step)
        return self._dali.plan(places) if self._dali else places

    def _fill(self, memory: Memory, row: int, place: Place, worker: Worker, bad: list[Bad]) -> None:
        if self._dali:
            self._dali.fill(memory, row, place, worker, bad)
            return
        memory.classes[row] = self.feed.fill(place, memory.pixels[row], worker, bad)

    def _tell_skipped(self, bad: list[Bad]) -> None:
        self.skipped += len(bad)
        for one in sorted(bad):
            if one.where not in self.bad_pictures and len(self.bad_pictures) < TOLD_BAD:
                log.warning("left out: %s: %s", printable(one.where), printable(one.why))
            self.bad_pictures.add(one.where)


def open_loader(
    source: Source,
    *,
    augment: AugmentConfig,
    loader: LoaderConfig,
    image_size: int,
    batch_size: int,
    seed: int,
    train: bool = True,
    rank: Rank = ALONE,
    num_classes: int | None = None,
    pinned: bool = False,
    first_step: int = 0,
    parts: int = 1,
    storage: str = "",
) -> Loader:
    """Return the loader that a recipe asks for, begun at a batch.

    `parts`: to train on, batches of a step; to validate with, pictures come in a multiple of it, the rest is left out.
    """
    order: TrainOrder | EvalOrder
    if train:
        order = TrainOrder(len(source), batch_size, seed, rank, last=loader.last, parts=parts)
    else:
        order = EvalOrder(len(source) // parts * parts, batch_size, rank)
    feed = Feed(
        source,
        make_transform(augment, loader, image_size, train=train),
        seed,
        num_classes,
        skip_bad=loader.on_bad == "skip",
        cache=Cache(loader.cache, loader.cache_bytes),
        storage=storage,
    )
    threads = available_cores().threads if loader.threads == "auto" else loader.threads
    dali = None
    if loader.engine == "dali":
        # Page-locked memory is asked for where a CUDA device is fed: DALI works there.
        dali = Dali(feed, batch_size, threads, torch.cuda.current_device() if pinned else None)
        threads = min(threads, READERS)
    return Loader(
        feed, order, threads=threads, prefetch=loader.prefetch, pinned=pinned, first_step=first_step, dali=dali
    )


def allocate(batch_size: int, size: int, *, pinned: bool) -> Memory:
    """Make room for a batch; page-locked, a CUDA device fetches it by itself."""
    images = torch.zeros(batch_size, size, size, 3, dtype=torch.uint8, pin_memory=pinned)
    labels = torch.zeros(batch_size, dtype=torch.int64, pin_memory=pinned)
    return Memory(images, labels, images.numpy(), labels.numpy())
