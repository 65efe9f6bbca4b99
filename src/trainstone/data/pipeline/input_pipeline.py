"""Input pipeline of one image: read or take it from the cache, decode, transform, write; replace damaged images.

Many threads call it at once. The result depends only on seed, epoch and image. It does not use torch.
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
from trainstone.data.image.decode import Pixels, Region, Scratch, decode, decode_top_rows, read_checked_header
from trainstone.data.image.inspect import ImageHeader
from trainstone.data.pipeline.crops import Crop, CropWindow
from trainstone.data.pipeline.order import SampleIndex
from trainstone.data.pipeline.random_draws import derive_key
from trainstone.data.pipeline.transform import Transform, find_shown_part
from trainstone.data.sample import Box, Sample, Source, clip_box
from trainstone.errors import DataError
from trainstone.text import printable

TargetKind = Literal["class", "boxes", "truth"]
"""Targets of a batch. class: one label per image. boxes: for training, edges as shares of the transformed image.
truth: for validation, edges as shares of the stored image, crowd flags, areas, and the image's index and size."""
IGNORED = -1
"""Label of padding: rows that fill up a batch, damaged validation images, padding boxes."""
BOX_COUNT_MULTIPLE = 8
"""Boxes per image are padded to a multiple of this: few batch shapes, so compiled code is rarely recompiled."""


class BoxTargets(NamedTuple):
    """The boxes of one image as arrays."""

    edges: NDArray[np.float32]
    """Left, top, right, bottom as shares. (boxes, 4)"""
    labels: NDArray[np.int64]
    crowds: NDArray[np.bool_]
    areas: NDArray[np.float32]
    """In pixels of the stored image."""


class RowTargets(NamedTuple):
    """The targets of one image in a batch."""

    label: int = IGNORED
    boxes: BoxTargets | None = None
    facts: tuple[int, int, int] = (IGNORED, 0, 0)
    """Index of the image in its source, its width and height."""


NO_TARGETS = RowTargets()


def transform_boxes(boxes: Sequence[Box], size: tuple[int, int], part: Crop | CropWindow, *, flip: bool) -> BoxTargets:
    """Return boxes relative to a part of an image, clipped to it; boxes outside the part are dropped.

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
    inside = (edges[:, 2:] > edges[:, :2]).all(axis=1)
    return BoxTargets(
        edges[inside],
        np.array([box.label for box in boxes], dtype=np.int64)[inside],
        np.array([box.crowd for box in boxes], dtype=np.bool_)[inside],
        areas[inside].astype(np.float32),
    )


BOX_FIELDS = (((4,), 0, np.float32), ((), IGNORED, np.int64), ((), 0, np.bool_), ((), 0, np.float32))
"""Shape per box, padding value and dtype of each field of BoxTargets."""


def collate_targets(rows: Sequence[RowTargets], target_kind: TargetKind) -> tuple[NDArray[Any], ...]:
    if target_kind == "class":
        return (np.array([row.label for row in rows], dtype=np.int64),)
    most = max((len(row.boxes.labels) for row in rows if row.boxes is not None), default=0)
    places = max(1, -(-most // BOX_COUNT_MULTIPLE)) * BOX_COUNT_MULTIPLE
    fields = BOX_FIELDS[:2] if target_kind == "boxes" else BOX_FIELDS
    packed = tuple(np.full((len(rows), places, *shape), empty, dtype=kind) for shape, empty, kind in fields)
    for number, row in enumerate(rows):
        given: tuple[NDArray[Any], ...] = row.boxes or ()
        for array, values in zip(packed, given, strict=False):
            array[number, : len(values)] = values
    return packed if target_kind == "boxes" else (*packed, np.array([row.facts for row in rows], dtype=np.int64))


log = logging.getLogger(__name__)

MAX_REPLACEMENTS = 100
"""Other images that are tried in place of a damaged one."""
OVERHEAD_BYTES = 400
"""Approximate size of a sample's Python objects."""
BOX_BYTES = 250
"""Approximate size of each box."""


@dataclass(frozen=True, slots=True)
class CachedImage:
    """A cached image: its encoded bytes, or its pixels without them."""

    sample: Sample
    header: ImageHeader
    stored_bytes: int
    pixels: Pixels | None = None


@dataclass
class Cache:
    """In-memory cache of encoded files or decoded pixels up to a limit; images beyond it are read each time.

    Nothing is evicted: in a shuffled epoch every image is equally likely to be the next.
    """

    mode: Literal["off", "files", "pixels"] = "off"
    limit_bytes: int = 0
    used_bytes: int = 0
    _images: dict[int, CachedImage] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, index: int) -> CachedImage | None:
        return self._images.get(index)

    def clear(self) -> None:
        with self._lock:
            self._images.clear()
            self.used_bytes = 0

    def has_room_for_pixels(self, header: ImageHeader) -> bool:
        size = header.width * header.height * 3 + OVERHEAD_BYTES
        return self.mode == "pixels" and self.used_bytes + size <= self.limit_bytes

    def put(self, index: int, sample: Sample, header: ImageHeader, region: Region) -> None:
        """Cache an image if it fits; pixels only of a whole image in memory of its own, not in a reused buffer."""
        if self.mode == "off" or (self.mode == "pixels" and not region.owned):
            return
        size = len(sample.image)
        if self.mode == "files":
            cached = CachedImage(sample, header, size)
        else:
            cached, size = CachedImage(replace(sample, image=b""), header, size, region.pixels), region.pixels.nbytes
        size += OVERHEAD_BYTES + BOX_BYTES * len(sample.boxes)
        with self._lock:
            if index in self._images or self.used_bytes + size > self.limit_bytes:
                return
            self._images[index] = cached
            self.used_bytes += size


class BadImage(NamedTuple):
    where: str
    why: str


@dataclass
class WorkerState:
    """State of a loader thread: decode buffer, seconds per stage, number of images."""

    scratch: Scratch = field(default_factory=Scratch)
    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    resize_seconds: float = 0.0
    wait_seconds: float = 0.0
    """Waiting for free memory: all prefetched batches are full."""
    waiting_since: float | None = None
    images: int = 0
    read_bytes: int = 0

    def seconds_waited_until(self, now: float) -> float:
        """Return the seconds waited, the current wait included."""
        since = self.waiting_since
        return self.wait_seconds + (0.0 if since is None else now - since)


class InputPipeline:
    """Reads, decodes and transforms the images of a source as a recipe says."""

    def __init__(
        self,
        source: Source,
        config: Config,
        *,
        train: bool,
        num_classes: int | None = None,
        storage: str = "",
        target_kind: TargetKind = "class",
    ) -> None:
        """Labels must be below `num_classes` (None skips the check); `storage` is the source's format, for messages."""
        self.source, self.num_classes, self.storage, self.target_kind = source, num_classes, storage, target_kind
        self.transform = Transform(config, train=train)
        self.cache = Cache(config.loader.cache, config.loader.cache_bytes)
        self._seed, self._skip_bad = config.seed, config.loader.on_bad == "skip"
        self._warned = threading.Event()
        """Set after the warning about boxes without area."""

    def fill_row(self, place: SampleIndex, out: Pixels, worker: WorkerState, bad: list[BadImage]) -> RowTargets:
        """Write an image into `out` and return its targets; replace a damaged image, or raise DataError."""
        key = derive_key(self._seed, place.epoch, place.image)
        index = place.image
        for attempt in range(MAX_REPLACEMENTS):
            try:
                return self.process_image(index, key, out, worker)
            except DataError as err:
                where = self.source.where(index)
                if not self._skip_bad:
                    path = where.partition(", record ")[0]
                    message = err.message if path in err.message else f"{where}: {err.message}"
                    hint = (
                        err.hint
                        or "skip damaged images with --set loader.on_bad=skip; list them: trainstone data verify"
                    )
                    raise DataError(message, hint=hint) from err
                bad.append(BadImage(where, err.message))
            if not self.transform.train:
                out[:] = 0
                return NO_TARGETS
            # The replacement does not depend on thread or rank.
            key = derive_key(key, attempt)
            index = key % len(self.source)
        raise DataError(
            f"{MAX_REPLACEMENTS} images in a row are unusable, the last one {bad[-1].where}: {bad[-1].why}",
            hint="check the whole data set with trainstone data verify",
        )

    def process_image(self, index: int, key: int, out: Pixels, worker: WorkerState) -> RowTargets:
        """Write one random view of an image into `out`; raise DataError if the image is damaged."""
        begin = time.perf_counter()
        cached = self.cache.get(index)
        sample = cached.sample if cached else self.source.read(index)
        label, boxes = IGNORED, sample.boxes
        if self.target_kind == "class":
            label = self.check_label(sample)
        else:
            boxes = self.check_boxes(index, sample)
        header = cached.header if cached else read_checked_header(sample.image)
        was_read = time.perf_counter()
        view = self.transform.choose_view(header, boxes, key)
        if cached is not None and cached.pixels is not None:
            region = Region(cached.pixels)
        elif self.cache.has_room_for_pixels(header):
            region = Region(decode(sample.image), owned=True)
        else:
            # With a pixel cache decode all rows: whether an image fits it must not decide which damage is found.
            rows = header.height if self.cache.mode == "pixels" else self.transform.rows_needed(view, header)
            region = decode_top_rows(
                sample.image, rows, worker.scratch, fast=self.transform.fast, shrink=view.shrink, header=header
            )
        decoded = time.perf_counter()
        self.transform.write(region, view, out)
        resized = time.perf_counter()
        if cached is None:
            self.cache.put(index, sample, header, region)
        worker.read_seconds += was_read - begin
        worker.decode_seconds += decoded - was_read
        worker.resize_seconds += resized - decoded
        worker.images += 1
        worker.read_bytes += cached.stored_bytes if cached else len(sample.image)
        if self.target_kind == "class":
            return RowTargets(label)
        size = header.width, header.height
        if self.target_kind == "truth":
            return RowTargets(boxes=transform_boxes(boxes, size, Crop(0, 0, *size), flip=False), facts=(index, *size))
        return RowTargets(boxes=transform_boxes(view.boxes, size, find_shown_part(region, view), flip=view.flip))

    def check_label(self, sample: Sample) -> int:
        if sample.label is None:
            if self.num_classes is None:
                return IGNORED
            raise DataError(f"{sample.name} has no class label", hint="this recipe requires images with one class each")
        self.check_class(sample.label, sample.name)
        return sample.label

    def check_boxes(self, index: int, sample: Sample) -> tuple[Box, ...]:
        """Return the boxes with an area inside their image; raise DataError for a class that the network lacks."""
        for box in sample.boxes:
            self.check_class(box.label, f"a box in {sample.name}")
        found = tuple(clipped for box in sample.boxes if (clipped := clip_box(box)) is not None)
        if len(found) < len(sample.boxes) and not self._warned.is_set():
            self._warned.set()
            where = printable(self.source.where(index))
            log.warning("skipped boxes without area inside their image, first in %s", where)
        return found

    def check_class(self, label: int, owner: str) -> None:
        if self.num_classes is None:
            return
        if not 0 <= label < self.num_classes:
            raise DataError(
                f"invalid class {label} of {owner}: the network has classes 0 to {self.num_classes - 1}",
                hint=f"--set model.num_classes={label + 1}"
                if label >= 0
                else "find such labels with trainstone data verify",
            )
