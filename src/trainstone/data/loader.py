"""Batches of real images as tensors: the one file of data/ that knows torch.

Same seed, same batches, whatever the threads; any step can be the first. Training never ends, validation does.
"""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

import cv2
import torch
from torch import Tensor

from trainstone.config.schema import Config
from trainstone.data.image.decode import Pixels
from trainstone.data.pipeline.feed import NOTHING, BadImage, Holds, InputPipeline, Worker, pack
from trainstone.data.pipeline.order import EvalOrder, SampleIndex, TrainOrder
from trainstone.data.pipeline.ring import Ring
from trainstone.data.sample import Source
from trainstone.machine.cpus import available_cores
from trainstone.machine.ranks import SINGLE_RANK, Rank
from trainstone.text import printable

log = logging.getLogger(__name__)

KEEP = 2
"""A batch stays valid until so many more were asked for: the copy to a device may lag behind."""
MAX_LOGGED_BAD = 100


class BatchMemory:
    """One batch: a tensor, the array of the same memory that threads write into, and what they say of each row."""

    def __init__(self, batch_size: int, size: int, holds: Holds, *, pinned: bool) -> None:
        # Page-locked, a CUDA device fetches it by itself.
        self.images = torch.zeros(batch_size, size, size, 3, dtype=torch.uint8, pin_memory=pinned)
        self.pixels: Pixels = self.images.numpy()
        self.shown = [NOTHING] * batch_size
        self.holds, self.pinned = holds, pinned

    def take(self, filled: int) -> tuple[Tensor, ...]:
        """Return the batch; rows that no image fills are zero and show nothing."""
        if filled < len(self.images):
            self.shown[filled:] = [NOTHING] * (len(self.images) - filled)
            self.images[filled:] = 0
        beside = (torch.from_numpy(array) for array in pack(self.shown, self.holds))
        return self.images, *(tensor.pin_memory() if self.pinned else tensor for tensor in beside)


STAGES = ("read", "decode", "crop-resize", "batch")


class Stages(NamedTuple):
    """What the threads did: seconds by stage, images made, bytes read."""

    seconds: dict[str, float]
    images: int
    read_bytes: int


@dataclass(frozen=True)
class LoaderOptions:
    """What a loader is for, beside the recipe."""

    batch_size: int
    train: bool = True
    rank: Rank = SINGLE_RANK
    num_classes: int | None = None
    """Labels must be below it; None: they are not checked."""
    pinned: bool = False
    first_step: int = 0
    parts: int = 1
    """In training, batches per step; in validation, images come in a multiple of it, the rest is skipped."""
    storage: str = ""
    """The format that the source is stored in, for messages."""
    holds: Holds = "class"


class Loader:
    """Yields batches. Close it, or use it as a context.

    Their first tensor is images, uint8 (batch, size, size, 3); what comes beside is said by `feed.holds`:
    class: labels, int64 (batch).
    boxes: edges, float32 (batch, most, 4), and labels, int64 (batch, most); places without a box are zero and IGNORED.
    truth: also crowds, bool (batch, most), areas, float32 (batch, most), and facts, int64 (batch, 3): number in the
    source, width, height.

    Rows of a short batch and damaged images of a validation set have pixels of zero and the label or number IGNORED.
    """

    def __init__(self, source: Source, config: Config, options: LoaderOptions) -> None:
        cv2.setNumThreads(0)  # our threads share the cores; OpenCV's own would fight them
        loader, size = config.loader, config.data.image_size
        order: TrainOrder | EvalOrder
        batch_size, rank, parts = options.batch_size, options.rank, options.parts
        if options.train:
            order = TrainOrder(len(source), batch_size, config.seed, rank, last=loader.last, parts=parts)
        else:
            order = EvalOrder(len(source) // parts * parts, batch_size, rank)
        self.order = order
        self.feed = InputPipeline(
            source,
            config,
            train=options.train,
            num_classes=options.num_classes,
            storage=options.storage,
            holds=options.holds,
        )
        self.num_slots = loader.prefetch + KEEP
        self.step = options.first_step
        """The step that comes next: what to go on from."""
        self.skipped = 0
        """How often a damaged image was left out; bad_images says which."""
        self.bad_images: set[str] = set()
        slots = [BatchMemory(batch_size, size, options.holds, pinned=options.pinned) for _ in range(self.num_slots)]
        threads = available_cores().threads if loader.threads == "auto" else loader.threads
        self._began = time.perf_counter()
        self._ring = Ring(
            slots, order.batch, self._fill, threads=threads, keep=KEEP, first_step=self.step, steps=order.steps
        )

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return self

    def __next__(self) -> tuple[Tensor, ...]:
        slot = self._ring.take()
        if slot is None:
            raise StopIteration
        if slot.errors:
            raise slot.errors[min(slot.errors)]
        self.skipped += len(slot.bad)
        for one in sorted(slot.bad):
            if one.where not in self.bad_images and len(self.bad_images) < MAX_LOGGED_BAD:
                log.warning("left out: %s: %s", printable(one.where), printable(one.why))
            self.bad_images.add(one.where)
        self.step += 1
        return slot.memory.take(len(slot.places))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads and let go of what is cached; batches taken stay as they are."""
        self._ring.close()
        self.feed.cache.clear()

    def pause(self) -> None:
        """Do no work for a while, such as while something else is measured."""
        self._ring.pause()

    def go_on(self) -> None:
        self._ring.go_on()

    def stages(self) -> Stages:
        """Sum up what the threads did so far; batch is all that is neither reading, decoding nor resizing."""
        workers = self._ring.workers
        kinds = ("read_seconds", "decode_seconds", "resize_seconds")
        spent = [sum(getattr(worker, kind) for worker in workers) for kind in kinds]
        now = time.perf_counter()
        # Threads that are waiting now have not added that yet.
        waited = sum(worker.waited_until(now) for worker in workers)
        lived = (now - self._began) * len(workers)
        spent.append(max(0.0, lived - waited - sum(spent)))
        images, read_bytes = sum(worker.images for worker in workers), sum(worker.read_bytes for worker in workers)
        return Stages(dict(zip(STAGES, spent, strict=True)), images, read_bytes)

    def _fill(self, memory: BatchMemory, row: int, place: SampleIndex, worker: Worker, bad: list[BadImage]) -> None:
        memory.shown[row] = self.feed.fill(place, memory.pixels[row], worker, bad)
