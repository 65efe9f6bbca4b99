"""The same batches through NVIDIA DALI (extra `dali`): it decodes, resizes, mirrors; order, crops and labels are ours.

The ring's threads read; the one that reads a batch's last picture has DALI make it. What DALI cannot decode is left to
feed.py, which tells of damage; DALI passes over damage that libjpeg only warns of (bad Huffman codes), we do not.
loader.shrink does nothing here. Knows nothing of torch.
"""

import logging
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from trainstone.data.feeding.crops import Crop
from trainstone.data.feeding.draws import make_key
from trainstone.data.feeding.feed import Bad, Feed, Worker
from trainstone.data.feeding.order import Place
from trainstone.data.feeding.shown import Shown
from trainstone.data.feeding.transform import Transform, View
from trainstone.data.picture.decode import Pixels, look_sized
from trainstone.data.picture.look import Look
from trainstone.data.picture.region import Region
from trainstone.errors import ConfigError, DataError, MachineError

log = logging.getLogger(__name__)

KINDS = frozenset(("jpeg", "png", "bmp"))
"""What DALI decodes to the same pixels as we do, but for CMYK. It has no GIF, not all of WebP, and turns some TIFFs."""
READERS = 4
"""Threads of ours, at most: they only read."""
NO_PIXELS = Region(np.empty((0, 0, 3), np.uint8))
"""For a cache that keeps files."""


class Cut(NamedTuple):
    """What to decode of a picture, in whole pixels, and which part of that to resize."""

    start: tuple[int, int]
    """Top, left."""
    shape: tuple[int, int]
    """Height, width."""
    window_start: tuple[float, float]
    window_end: tuple[float, float]


class Request(NamedTuple):
    """A picture for DALI."""

    image: bytes
    label: int
    cut: Cut
    flip: bool


@dataclass
class Batch:
    """The requests of a batch, by row, while they come in."""

    places: Sequence[Place]
    rows_left: int
    requests: dict[int, Request] = field(default_factory=dict)
    failed: bool = False
    """A row that was not for DALI is an error already."""


class Asked(Place):
    """A place, and the batch it is of."""

    batch: Batch


class Room(Protocol):
    """Memory of a batch."""

    @property
    def pixels(self) -> Pixels: ...

    @property
    def shown(self) -> list[Shown]: ...

    def put(self, rows: list[int], made: Any) -> None:
        """Copy what DALI made into these rows."""
        ...


class Dali:
    """Fills batches; `plan` and `fill` are what a ring asks for."""

    def __init__(self, feed: Feed, batch_size: int, threads: int, device_id: int | None = None) -> None:
        if feed.cache.keeps == "pixels":
            raise ConfigError(
                "loader.cache = pixels, but DALI decodes in one go with resizing", hint="--set loader.cache=files"
            )
        if feed.transform.may_colour:
            raise ConfigError(
                "loader.engine = dali changes no colours; augment.saturation, hue_degrees, contrast, brightness do",
                hint="--set loader.engine=threads",
            )
        # DALI cannot decode at a smaller scale: rows that are made by ourselves should look like its own.
        self._feed = replace(feed, transform=replace(feed.transform, may_shrink=False))
        self._batch_size, self._threads, self._device_id = batch_size, threads, device_id
        self._pipeline: Any = self._build()
        self._counting, self._running = threading.Lock(), threading.Lock()

    def plan(self, places: Sequence[Place]) -> list[Place]:
        """Begin a batch of these pictures."""
        batch = Batch(places, len(places))
        asked = [Asked(*place) for place in places]
        for one in asked:
            one.batch = batch
        return [*asked]

    def fill(self, room: Room, row: int, place: Place, worker: Worker, bad: list[Bad]) -> None:
        """Read a picture; with the last one of its batch, make the batch."""
        assert isinstance(place, Asked)
        batch = place.batch
        try:
            request = self._read(place, worker)
            if request is None:
                room.shown[row] = self._feed.fill(place, room.pixels[row], worker, bad)
            else:
                batch.requests[row] = request
        except BaseException:
            batch.failed = True
            raise
        finally:
            with self._counting:
                batch.rows_left -= 1
                is_last = batch.rows_left == 0
        if is_last and batch.requests and not batch.failed:
            self._make(batch, room, worker, bad)

    def close(self) -> None:
        """End DALI's threads."""
        self._pipeline = None

    def _read(self, place: Place, worker: Worker) -> Request | None:
        """Return what DALI needs to know of a picture; None where feed.py should see to it."""
        begin, feed = time.perf_counter(), self._feed
        try:
            kept = feed.cache.get(place.picture)
            sample = kept.sample if kept else feed.source.read(place.picture)
            label = feed.check_label(sample)
            seen = kept.seen if kept else look_sized(sample.image)
        except DataError:
            return None
        if kept is None:
            feed.cache.put(place.picture, sample, seen, NO_PIXELS)
        if seen.kind not in KINDS or seen.colour == "cmyk":
            return None
        view = feed.transform.choose(seen, sample.boxes, make_key(feed.seed, place.epoch, place.picture))
        request = Request(sample.image, label, plan_cut(view, seen, feed.transform.size), view.flip)
        worker.read_seconds += time.perf_counter() - begin
        return request

    def _make(self, batch: Batch, room: Room, worker: Worker, bad: list[Bad]) -> None:
        """Have DALI make the rows that are for it; where it fails, make them ourselves, or tell which is damaged."""
        rows = sorted(batch.requests)
        requests = [batch.requests[row] for row in rows]
        begin = time.perf_counter()
        with self._running:
            began = time.perf_counter()
            failure = self._run(rows, requests, room)
        seconds = time.perf_counter() - began
        # All of DALI's threads work meanwhile, of which this one is none: it stands for the first of them.
        worker.wait_seconds += began - begin - seconds * (self._threads - 1)
        worker.decode_seconds += seconds * self._threads
        if failure is None:
            for row, request in zip(rows, requests, strict=True):
                room.shown[row] = Shown(request.label)
            worker.pictures += len(rows)
            worker.read_bytes += sum(len(request.image) for request in requests)
            return
        found = len(bad)
        for row in rows:
            room.shown[row] = self._feed.fill(batch.places[row], room.pixels[row], worker, bad)
        if len(bad) == found:
            log.warning("DALI did not make a batch although nothing is damaged; made without it: %s", failure)

    def _run(self, rows: list[int], requests: list[Request], room: Room) -> str | None:
        """Run the pipeline once; return why it failed, if it did. It is of no use then: the next run has another."""
        try:
            if self._pipeline is None:
                self._pipeline = self._build()
            (made,) = self._pipeline.run(**list_inputs(requests))
            room.put(rows, made.as_tensor())
        except RuntimeError as err:
            self._pipeline = None
            return " ".join(str(err).split("encountered:")[-1].split())
        return None

    def _build(self) -> Any:
        return build_pipeline(self._feed.transform, self._batch_size, self._threads, self._device_id)


def plan_cut(view: View, seen: Look, size: int) -> Cut:
    """Return what of a picture to decode: the crop, or all that a window's outermost pixels are made of."""
    part = view.part
    if isinstance(part, Crop):
        shape = (part.height, part.width)
        return Cut((part.top, part.left), shape, (0, 0), shape)
    down, across = (max(1.0, length / size) + 1 for length in (part.bottom - part.top, part.right - part.left))
    top, left = max(0, math.floor(part.top - down)), max(0, math.floor(part.left - across))
    bottom, right = (
        min(seen.height, math.ceil(part.bottom + down)),
        min(seen.width, math.ceil(part.right + across)),
    )
    return Cut(
        (top, left),
        (bottom - top, right - left),
        (part.top - top, part.left - left),
        (part.bottom - top, part.right - left),
    )


def list_inputs(requests: Sequence[Request]) -> dict[str, Any]:
    """Return the inputs of the pipeline, by name."""
    cuts = [request.cut for request in requests]
    return {
        "image": [np.frombuffer(request.image, np.uint8) for request in requests],
        "start": np.array([cut.start for cut in cuts], np.int32),
        "shape": np.array([cut.shape for cut in cuts], np.int32),
        "window_start": np.array([cut.window_start for cut in cuts], np.float32),
        "window_end": np.array([cut.window_end for cut in cuts], np.float32),
        "flip": np.array([request.flip for request in requests], np.int32),
    }


def build_pipeline(transform: Transform, batch_size: int, threads: int, device_id: int | None) -> Any:
    """Return a pipeline for batches of at most so many pictures; with a CUDA device, decoding and the rest go there."""
    try:
        from nvidia.dali import Pipeline, fn, types  # type: ignore[import-not-found, unused-ignore]
    except ImportError as err:
        raise MachineError(
            f"loader.engine = dali, but NVIDIA DALI cannot be loaded: {err}", hint='pip install "trainstone[dali]"'
        ) from err

    def receive(name: str, kind: Any, ndim: int) -> Any:
        return fn.external_source(name=name, batch=True, dtype=kind, ndim=ndim)

    pipeline = Pipeline(batch_size=batch_size, num_threads=threads, device_id=device_id, prefetch_queue_depth=1)
    with pipeline:
        pixels = fn.decoders.image_slice(
            receive("image", types.UINT8, 1),
            device="cpu" if device_id is None else "mixed",  # mixed: not run here
            start=receive("start", types.INT32, 1),
            shape=receive("shape", types.INT32, 1),
            axis_names="HW",
            output_type=types.RGB,
            adjust_orientation=False,  # as ours, DALI's pictures stay as they lie
            use_fast_idct=transform.fast,
            jpeg_fancy_upsampling=True,
        )
        pixels = fn.resize(
            pixels,
            size=(transform.size, transform.size),
            interp_type=types.INTERP_LINEAR,
            antialias=transform.antialias,
            roi_start=receive("window_start", types.FLOAT, 1),
            roi_end=receive("window_end", types.FLOAT, 1),
        )
        pipeline.set_outputs(fn.flip(pixels, horizontal=receive("flip", types.INT32, 0)))
    pipeline.build()
    return pipeline
