"""Data loader: batches of real images as tensors. The only module of data/ that imports torch.

The same seed gives the same batches for any number of threads, and loading can start at any step. Training batches
never end; validation is one pass.
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
from trainstone.data.pipeline.input_pipeline import (
    NO_TARGETS,
    BadImage,
    InputPipeline,
    TargetKind,
    WorkerState,
    collate_targets,
)
from trainstone.data.pipeline.order import EvalOrder, SampleIndex, TrainOrder
from trainstone.data.pipeline.ring import Ring
from trainstone.data.sample import Source
from trainstone.machine.cpus import available_cores
from trainstone.machine.ranks import SINGLE_RANK, Rank
from trainstone.text import printable

log = logging.getLogger(__name__)

KEEP = 2
"""A batch stays valid until this many further batches were taken: its copy to a device may still be running."""
MAX_LOGGED_BAD = 100


class BatchMemory:
    """Memory of one batch: the image tensor, a NumPy view that threads write into, and the targets of each row."""

    def __init__(self, batch_size: int, size: int, target_kind: TargetKind, *, pinned: bool) -> None:
        # Pinned memory allows asynchronous copies to a CUDA device.
        self.images = torch.zeros(batch_size, size, size, 3, dtype=torch.uint8, pin_memory=pinned)
        self.pixels: Pixels = self.images.numpy()
        self.targets = [NO_TARGETS] * batch_size
        self.target_kind, self.pinned = target_kind, pinned

    def take(self, filled: int) -> tuple[Tensor, ...]:
        """Return the batch with `filled` rows; the other rows are zero and have no targets."""
        if filled < len(self.images):
            self.targets[filled:] = [NO_TARGETS] * (len(self.images) - filled)
            self.images[filled:] = 0
        targets = (torch.from_numpy(array) for array in collate_targets(self.targets, self.target_kind))
        return self.images, *(tensor.pin_memory() if self.pinned else tensor for tensor in targets)


STAGES = ("read", "decode", "crop-resize", "batch")


class Stages(NamedTuple):
    """Work of the loader threads: seconds by stage, number of images, bytes read."""

    seconds: dict[str, float]
    images: int
    read_bytes: int


@dataclass(frozen=True)
class LoaderOptions:
    """Loader options that are not in the recipe."""

    batch_size: int
    train: bool = True
    rank: Rank = SINGLE_RANK
    num_classes: int | None = None
    """Labels must be below it; None skips the check."""
    pinned: bool = False
    first_step: int = 0
    parts: int = 1
    """Training: batches per step. Validation: the number of images is rounded down to a multiple of it."""
    storage: str = ""
    """Storage format of the source, for messages."""
    target_kind: TargetKind = "class"


class Loader:
    """Iterator over batches. Close it, or use it as a context manager.

    The first tensor is images, uint8 (batch, size, size, 3); the others depend on the target kind:
    class: labels, int64 (batch).
    boxes: edges, float32 (batch, boxes, 4), and labels, int64 (batch, boxes); padding boxes are zero and IGNORED.
    truth: also crowds, bool (batch, boxes), areas, float32 (batch, boxes), and facts, int64 (batch, 3): index in the
    source, width, height.

    Padding rows of a short batch and damaged validation images have zero pixels and the label or index IGNORED.
    """

    def __init__(self, source: Source, config: Config, options: LoaderOptions) -> None:
        cv2.setNumThreads(0)  # the loader threads use all cores; OpenCV's own threads would compete with them
        loader, size = config.loader, config.data.image_size
        order: TrainOrder | EvalOrder
        batch_size, rank, parts = options.batch_size, options.rank, options.parts
        if options.train:
            order = TrainOrder(len(source), batch_size, config.seed, rank, last=loader.last, parts=parts)
        else:
            order = EvalOrder(len(source) // parts * parts, batch_size, rank)
        self.order = order
        self.pipeline = InputPipeline(
            source,
            config,
            train=options.train,
            num_classes=options.num_classes,
            storage=options.storage,
            target_kind=options.target_kind,
        )
        self.num_slots = loader.prefetch + KEEP
        self.step = options.first_step
        """The next step; a resumed run starts here."""
        self.skipped = 0
        """How often a damaged image was skipped; bad_images lists which."""
        self.bad_images: set[str] = set()
        slots = [
            BatchMemory(batch_size, size, options.target_kind, pinned=options.pinned) for _ in range(self.num_slots)
        ]
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
        for image in sorted(slot.bad):
            if image.where not in self.bad_images and len(self.bad_images) < MAX_LOGGED_BAD:
                log.warning("skipped image: %s: %s", printable(image.where), printable(image.why))
            self.bad_images.add(image.where)
        self.step += 1
        return slot.memory.take(len(slot.places))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the threads and clear the cache; batches already taken stay valid."""
        self._ring.close()
        self.pipeline.cache.clear()

    def pause(self) -> None:
        """Stop loading until `resume`, for example while something else is measured."""
        self._ring.pause()

    def resume(self) -> None:
        self._ring.resume()

    def stages(self) -> Stages:
        """Return the work of all threads so far; the stage `batch` is the time outside read, decode and crop-resize."""
        workers = self._ring.workers
        kinds = ("read_seconds", "decode_seconds", "resize_seconds")
        spent = [sum(getattr(worker, kind) for worker in workers) for kind in kinds]
        now = time.perf_counter()
        # Threads that are waiting now have not added this wait yet.
        waited = sum(worker.seconds_waited_until(now) for worker in workers)
        lived = (now - self._began) * len(workers)
        spent.append(max(0.0, lived - waited - sum(spent)))
        images, read_bytes = sum(worker.images for worker in workers), sum(worker.read_bytes for worker in workers)
        return Stages(dict(zip(STAGES, spent, strict=True)), images, read_bytes)

    def _fill(
        self, memory: BatchMemory, row: int, place: SampleIndex, worker: WorkerState, bad: list[BadImage]
    ) -> None:
        memory.targets[row] = self.pipeline.fill_row(place, memory.pixels[row], worker, bad)
