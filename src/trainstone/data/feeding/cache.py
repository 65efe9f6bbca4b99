"""Pictures kept in memory up to a limit, as they are stored or decoded. What comes when it is full is read each time.

Nothing is thrown out: in a shuffled epoch the oldest is as likely to come again as any other.
"""

import threading
from dataclasses import dataclass, field, replace
from typing import Literal

from trainstone.data.picture.decode import Pixels
from trainstone.data.picture.look import Look
from trainstone.data.picture.region import Region
from trainstone.data.sample import Sample

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
    """Off unless told otherwise."""

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
