"""One image of a batch: read it (or remember it), decode, transform, write; deal with those that are damaged.

Called by many threads at once; what it does depends on seed, epoch and image alone. No torch here.
"""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainstone.config.schema import Config
from trainstone.data.image.decode import Pixels, Region, Scratch, decode, decode_upper, look_sized
from trainstone.data.image.inspect import Look
from trainstone.data.pipeline.crops import Crop, CropWindow
from trainstone.data.pipeline.order import SampleIndex
from trainstone.data.pipeline.random_draws import make_key
from trainstone.data.pipeline.transform import Transform, find_part
from trainstone.data.sample import Box, Sample, Source, clip_box
from trainstone.errors import DataError
from trainstone.text import printable

Holds = Literal["class", "boxes", "truth"]
"""What batches hold beside images. class: one for each. boxes: to train on, edges as shares of the row's own pixels.
truth: to validate with, edges as shares of the stored image, crowds, areas and the image's facts."""
IGNORED = -1
"""Label of what does not count: rows that fill up a batch, damaged images in validation, places without a box."""
BOX_STEP = 8
"""Places for boxes come in multiples: few shapes of batches, so that compiled code is not made anew for each."""


class Boxes(NamedTuple):
    edges: NDArray[np.float32]
    """Left, top, right, bottom as shares. (boxes, 4)"""
    labels: NDArray[np.int64]
    crowds: NDArray[np.bool_]
    areas: NDArray[np.float32]
    """In pixels of the stored image."""


class RowTargets(NamedTuple):
    label: int = IGNORED
    boxes: Boxes | None = None
    facts: tuple[int, int, int] = (IGNORED, 0, 0)
    """Number of the image in its source, its width and height."""


NOTHING = RowTargets()


def list_boxes(boxes: Sequence[Box], size: tuple[int, int], part: Crop | CropWindow, *, flip: bool) -> Boxes:
    """Return boxes as they lie in a part of an image, cut at its edges; those of which nothing is left are left out.

    `size`: width and height of the image.
    """
    width, height = size
    stored = np.array([box[1:5] for box in boxes], dtype=np.float64).reshape(-1, 4)
    share = (stored[:, 2] - stored[:, 0]) * (stored[:, 3] - stored[:, 1])
    known = np.array([np.nan if box.area is None else box.area for box in boxes], dtype=np.float64)
    areas = np.where(np.isnan(known), share, known) * (width * height)
    origin = np.array([part.left, part.top] * 2)
    extent = np.array([part.right - part.left, part.bottom - part.top] * 2)
    edges = ((stored * [width, height, width, height] - origin) / extent).clip(0, 1)
    if flip:
        edges[:, [0, 2]] = 1 - edges[:, [2, 0]]
    edges = edges.astype(np.float32)
    left = (edges[:, 2:] > edges[:, :2]).all(axis=1)
    return Boxes(
        edges[left],
        np.array([box.label for box in boxes], dtype=np.int64)[left],
        np.array([box.crowd for box in boxes], dtype=np.bool_)[left],
        areas[left].astype(np.float32),
    )


PACKED = (((4,), 0, np.float32), ((), IGNORED, np.int64), ((), 0, np.bool_), ((), 0, np.float32))
"""Shape of one box, value of an empty place and type, of each field of Boxes."""


def pack(rows: Sequence[RowTargets], holds: Holds) -> tuple[NDArray[Any], ...]:
    if holds == "class":
        return (np.array([row.label for row in rows], dtype=np.int64),)
    most = max((len(row.boxes.labels) for row in rows if row.boxes is not None), default=0)
    places = max(1, -(-most // BOX_STEP)) * BOX_STEP
    fields = PACKED[:2] if holds == "boxes" else PACKED
    packed = tuple(np.full((len(rows), places, *shape), empty, dtype=kind) for shape, empty, kind in fields)
    for number, row in enumerate(rows):
        given: tuple[NDArray[Any], ...] = row.boxes or ()
        for array, values in zip(packed, given, strict=False):
            array[number, : len(values)] = values
    return packed if holds == "boxes" else (*packed, np.array([row.facts for row in rows], dtype=np.int64))


log = logging.getLogger(__name__)

SUBSTITUTES = 100
"""So many other images are tried in the place of a damaged one."""
OVERHEAD_BYTES = 400
"""Of a sample's objects, about."""
BOX_BYTES = 250
"""Of each of its boxes, about."""


@dataclass(frozen=True, slots=True)
class CachedImage:
    """An image in memory; with pixels its stored bytes are gone."""

    sample: Sample
    seen: Look
    stored_bytes: int
    pixels: Pixels | None = None


@dataclass
class Cache:
    """Images kept in memory up to a limit, as they are stored or decoded; the rest is read each time.

    Nothing is thrown out: in a shuffled epoch the oldest is as likely to come again as any other.
    """

    keeps: Literal["off", "files", "pixels"] = "off"
    limit_bytes: int = 0
    used_bytes: int = 0
    _kept: dict[int, CachedImage] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, index: int) -> CachedImage | None:
        return self._kept.get(index)

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self.used_bytes = 0

    def wants_pixels(self, seen: Look) -> bool:
        size = seen.width * seen.height * 3 + OVERHEAD_BYTES
        return self.keeps == "pixels" and self.used_bytes + size <= self.limit_bytes

    def put(self, index: int, sample: Sample, seen: Look, region: Region) -> None:
        """Keep an image if there is room; of pixels only those of a whole image that nobody writes over."""
        if self.keeps == "off" or (self.keeps == "pixels" and not region.owned):
            return
        size = len(sample.image)
        if self.keeps == "files":
            kept = CachedImage(sample, seen, size)
        else:
            kept, size = CachedImage(replace(sample, image=b""), seen, size, region.pixels), region.pixels.nbytes
        size += OVERHEAD_BYTES + BOX_BYTES * len(sample.boxes)
        with self._lock:
            if index in self._kept or self.used_bytes + size > self.limit_bytes:
                return
            self._kept[index] = kept
            self.used_bytes += size


class BadImage(NamedTuple):
    where: str
    why: str


@dataclass
class Worker:
    """What a thread keeps: memory to decode into, seconds spent in each stage, images made."""

    scratch: Scratch = field(default_factory=Scratch)
    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    resize_seconds: float = 0.0
    wait_seconds: float = 0.0
    """For memory: the batches made ahead are enough."""
    waits_since: float | None = None
    images: int = 0
    read_bytes: int = 0

    def waited_until(self, now: float) -> float:
        """Return the seconds waited, with the wait that goes on."""
        since = self.waits_since
        return self.wait_seconds + (0.0 if since is None else now - since)


class InputPipeline:
    """What a recipe makes of the images of a source."""

    def __init__(
        self,
        source: Source,
        config: Config,
        *,
        train: bool,
        num_classes: int | None = None,
        storage: str = "",
        holds: Holds = "class",
    ) -> None:
        """Labels must be below `num_classes`, or do not matter; `storage`: what the source lies in, for people."""
        self.source, self.num_classes, self.storage, self.holds = source, num_classes, storage, holds
        self.transform = Transform(config, train=train)
        self.cache = Cache(config.loader.cache, config.loader.cache_bytes)
        self._seed, self._skip_bad = config.seed, config.loader.on_bad == "skip"
        self._warned = threading.Event()
        """Set once a box without any area was met."""

    def fill(self, place: SampleIndex, out: Pixels, worker: Worker, bad: list[BadImage]) -> RowTargets:
        """Write an image into `out` and return what it shows; a damaged one is replaced, or is an error."""
        key = make_key(self._seed, place.epoch, place.image)
        index = place.image
        for attempt in range(SUBSTITUTES):
            try:
                return self.show(index, key, out, worker)
            except DataError as err:
                where = self.source.where(index)
                if not self._skip_bad:
                    path = where.partition(", record ")[0]
                    message = err.message if path in err.message else f"{where}: {err.message}"
                    hint = err.hint or "--set loader.on_bad=skip leaves such images out; trainstone data verify"
                    raise DataError(message, hint=hint) from err
                bad.append(BadImage(where, err.message))
            if not self.transform.train:
                out[:] = 0
                return NOTHING
            # Another one, the same whatever thread or rank asks.
            key = make_key(key, attempt)
            index = key % len(self.source)
        raise DataError(
            f"{SUBSTITUTES} images in a row cannot be used, the last one {bad[-1].where}: {bad[-1].why}",
            hint="look at the whole set: trainstone data verify",
        )

    def show(self, index: int, key: int, out: Pixels, worker: Worker) -> RowTargets:
        """Write one view of an image; DataError where that cannot be done."""
        begin = time.perf_counter()
        kept = self.cache.get(index)
        sample = kept.sample if kept else self.source.read(index)
        label, boxes = IGNORED, sample.boxes
        if self.holds == "class":
            label = self.check_label(sample)
        else:
            boxes = self.check_boxes(index, sample)
        seen = kept.seen if kept else look_sized(sample.image)
        was_read = time.perf_counter()
        view = self.transform.choose(seen, boxes, key)
        if kept is not None and kept.pixels is not None:
            region = Region(kept.pixels)
        elif self.cache.wants_pixels(seen):
            region = Region(decode(sample.image), owned=True)
        else:
            # With kept pixels all rows, too: room in the cache, which is chance, must not decide what damage is seen.
            rows = seen.height if self.cache.keeps == "pixels" else self.transform.rows_needed(view, seen)
            region = decode_upper(
                sample.image, rows, worker.scratch, fast=self.transform.fast, shrink=view.shrink, seen=seen
            )
        decoded = time.perf_counter()
        self.transform.write(region, view, out)
        resized = time.perf_counter()
        if kept is None:
            self.cache.put(index, sample, seen, region)
        worker.read_seconds += was_read - begin
        worker.decode_seconds += decoded - was_read
        worker.resize_seconds += resized - decoded
        worker.images += 1
        worker.read_bytes += kept.stored_bytes if kept else len(sample.image)
        if self.holds == "class":
            return RowTargets(label)
        size = seen.width, seen.height
        if self.holds == "truth":
            return RowTargets(boxes=list_boxes(boxes, size, Crop(0, 0, *size), flip=False), facts=(index, *size))
        return RowTargets(boxes=list_boxes(view.boxes, size, find_part(region, view), flip=view.flip))

    def check_label(self, sample: Sample) -> int:
        if sample.label is None:
            if self.num_classes is None:
                return IGNORED
            raise DataError(f"{sample.name} has no class", hint="this recipe needs images with one class each")
        self.check_class(sample.label, sample.name)
        return sample.label

    def check_boxes(self, index: int, sample: Sample) -> tuple[Box, ...]:
        """Return the boxes that have an area in their image; DataError for a class the network does not know."""
        for box in sample.boxes:
            self.check_class(box.label, f"a box in {sample.name}")
        found = tuple(clipped for box in sample.boxes if (clipped := clip_box(box)) is not None)
        if len(found) < len(sample.boxes) and not self._warned.is_set():
            self._warned.set()
            where = printable(self.source.where(index))
            log.warning("boxes without any area in their image are left out, first in %s", where)
        return found

    def check_class(self, label: int, of: str) -> None:
        if self.num_classes is None:
            return
        if not 0 <= label < self.num_classes:
            raise DataError(
                f"class {label} of {of}: the network has classes 0 to {self.num_classes - 1}",
                hint=f"--set model.num_classes={label + 1} or more" if label >= 0 else "trainstone data verify",
            )
