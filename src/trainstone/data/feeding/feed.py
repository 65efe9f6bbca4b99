"""One picture of a batch: read it (or remember it), decode, transform, write; deal with those that are damaged.

Called by many threads at once; what it does depends on seed, epoch and picture alone.
"""

import logging
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from trainstone.data.feeding.crops import Crop
from trainstone.data.feeding.draws import make_key
from trainstone.data.feeding.order import Place
from trainstone.data.feeding.shown import IGNORED, NOTHING, Holds, Shown, list_boxes
from trainstone.data.feeding.transform import Transform, find_part
from trainstone.data.picture.decode import Pixels, decode, look_sized
from trainstone.data.picture.look import Look
from trainstone.data.picture.region import Region, Scratch, decode_upper
from trainstone.data.sample import Box, Sample, Source, clip_box
from trainstone.errors import DataError
from trainstone.text import printable

log = logging.getLogger(__name__)

SUBSTITUTES = 100
"""So many other pictures are tried in the place of a damaged one."""
OVERHEAD_BYTES = 400
"""Of a sample's objects, about."""
BOX_BYTES = 250
"""Of each of its boxes, about."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A picture in memory; with pixels its stored bytes are gone."""

    sample: Sample
    seen: Look
    stored_bytes: int
    pixels: Pixels | None = None


@dataclass
class Cache:
    """Pictures kept in memory up to a limit, as they are stored or decoded; the rest is read each time.

    Nothing is thrown out: in a shuffled epoch the oldest is as likely to come again as any other.
    """

    keeps: Literal["off", "files", "pixels"] = "off"
    limit_bytes: int = 0
    used_bytes: int = 0
    _kept: dict[int, Kept] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, index: int) -> Kept | None:
        """Return a picture that is kept."""
        return self._kept.get(index)

    def clear(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._kept.clear()
            self.used_bytes = 0

    def wants_pixels(self, seen: Look) -> bool:
        """Say whether this picture should be decoded whole, to be kept."""
        size = seen.width * seen.height * 3 + OVERHEAD_BYTES
        return self.keeps == "pixels" and self.used_bytes + size <= self.limit_bytes

    def put(self, index: int, sample: Sample, seen: Look, region: Region) -> None:
        """Keep a picture if there is room; of pixels only those of a whole picture that nobody writes over."""
        if self.keeps == "off":
            return
        if self.keeps == "pixels":
            if not region.owned:
                return
            kept, size = Kept(replace(sample, image=b""), seen, len(sample.image), region.pixels), region.pixels.nbytes
        else:
            kept, size = Kept(sample, seen, len(sample.image)), len(sample.image)
        size += OVERHEAD_BYTES + BOX_BYTES * len(sample.boxes)
        with self._lock:
            if index in self._kept or self.used_bytes + size > self.limit_bytes:
                return
            self._kept[index] = kept
            self.used_bytes += size


class Bad(NamedTuple):
    """A picture left out."""

    where: str
    why: str


@dataclass
class Worker:
    """What a thread keeps: memory to decode into, seconds spent in each stage, pictures made."""

    scratch: Scratch = field(default_factory=Scratch)
    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    resize_seconds: float = 0.0
    wait_seconds: float = 0.0
    """For memory: the batches made ahead are enough."""
    waits_since: float | None = None
    pictures: int = 0
    read_bytes: int = 0

    def waited_until(self, now: float) -> float:
        """Return the seconds waited, with the wait that goes on."""
        since = self.waits_since
        return self.wait_seconds + (0.0 if since is None else now - since)


@dataclass(frozen=True)
class Feed:
    """Fills rows of batches with pictures of a source."""

    source: Source
    transform: Transform
    seed: int
    num_classes: int | None = None
    """Labels must be below; None: labels do not matter."""
    skip_bad: bool = False
    cache: Cache = field(default_factory=Cache)
    storage: str = ""
    """What the source lies in, for people."""
    holds: Holds = "class"
    warned: threading.Event = field(default_factory=threading.Event)
    """Set once a box without any area was met."""

    def fill(self, place: Place, out: Pixels, worker: Worker, bad: list[Bad]) -> Shown:
        """Write a picture into `out` and return what it shows; a damaged one is replaced, or is an error."""
        key = make_key(self.seed, place.epoch, place.picture)
        index = place.picture
        for attempt in range(SUBSTITUTES):
            try:
                return self.show(index, key, out, worker)
            except DataError as err:
                where = self.source.where(index)
                if not self.skip_bad:
                    path = where.partition(", record ")[0]
                    told = err.message if path in err.message else f"{where}: {err.message}"
                    hint = err.hint or "--set loader.on_bad=skip leaves such pictures out; trainstone data verify"
                    raise DataError(told, hint=hint) from err
                bad.append(Bad(where, err.message))
            if not self.transform.train:
                out[:] = 0
                return NOTHING
            # Another one, the same whatever thread or rank asks.
            key = make_key(key, attempt)
            index = key % len(self.source)
        raise DataError(
            f"{SUBSTITUTES} pictures in a row cannot be used, the last one {bad[-1].where}: {bad[-1].why}",
            hint="look at the whole set: trainstone data verify",
        )

    def show(self, index: int, key: int, out: Pixels, worker: Worker) -> Shown:
        """Write one view of a picture; DataError where that cannot be done."""
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
        worker.pictures += 1
        worker.read_bytes += kept.stored_bytes if kept else len(sample.image)
        if self.holds == "class":
            return Shown(label)
        size = seen.width, seen.height
        if self.holds == "truth":
            return Shown(boxes=list_boxes(boxes, size, Crop(0, 0, *size), flip=False), facts=(index, *size))
        return Shown(boxes=list_boxes(view.boxes, size, find_part(region, view), flip=view.flip))

    def check_label(self, sample: Sample) -> int:
        """Return the class; DataError for a picture that has none the network knows."""
        if sample.label is None:
            if self.num_classes is None:
                return IGNORED
            raise DataError(f"{sample.name} has no class", hint="this recipe needs pictures with one class each")
        self.check_class(sample.label, sample.name)
        return sample.label

    def check_boxes(self, index: int, sample: Sample) -> tuple[Box, ...]:
        """Return the boxes that have an area in their picture; DataError for a class the network does not know."""
        for box in sample.boxes:
            self.check_class(box.label, f"a box in {sample.name}")
        found = tuple(clipped for box in sample.boxes if (clipped := clip_box(box)) is not None)
        if len(found) < len(sample.boxes) and not self.warned.is_set():
            self.warned.set()
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
