"""Images for loader tests: smooth or noisy pixels, JPEGs of every layout, samples of many sizes and formats."""

import io
from typing import Any

import cv2
import numpy as np
import simplejpeg  # type: ignore[import-untyped]
from numpy.typing import NDArray
from PIL import Image

from trainstone.data.sample import Box, Sample

Pixels = NDArray[np.uint8]
SIZES = ((64, 48), (40, 72), (50, 50), (97, 33), (130, 140))
BOXES = (Box(0, 0.1, 0.2, 0.6, 0.9), Box(1, 0.5, 0.5, 0.95, 0.8))


def smooth(width: int, height: int) -> Pixels:
    """Return pixels with slow waves, which remain visible after shrinking."""
    y, x = np.mgrid[:height, :width]
    waves = [
        np.sin(x * across / width * 6 + y * down / height * 6) for across, down in ((1, 0.3), (0.2, 1), (0.7, 0.7))
    ]
    return (np.stack(waves, axis=2) * 110 + 128).astype(np.uint8)


def noisy(width: int, height: int, seed: int = 0) -> Pixels:
    """Return coloured noise a few pixels in size: no two regions are alike, and a JPEG of it is not small."""
    small = np.random.default_rng(seed).integers(0, 256, (height // 4 + 2, width // 4 + 2, 3), dtype=np.uint8)
    return np.asarray(cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC))


def save(pixels: Pixels, kind: str = "JPEG", mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind, **options)
    return file.getvalue()


def save_sampled(pixels: Pixels, sampling: str) -> bytes:
    """Return a JPEG with this chroma subsampling: 444, 422, 420, 440, 411 or Gray."""
    return bytes(simplejpeg.encode_jpeg(pixels, 90, "RGB", sampling))


def save_scans(pixels: Pixels, **options: Any) -> bytes:
    """Return a baseline JPEG with one scan per component, built from three grey JPEGs."""
    greys = [save(np.ascontiguousarray(pixels[..., channel]), mode="L", quality=90, **options) for channel in range(3)]
    frame_at = greys[0].index(b"\xff\xc0")
    height_width = greys[0][frame_at + 5 : frame_at + 9]
    frame = b"\xff\xc0\0\x11\x08" + height_width + b"\x03" + b"".join(bytes((n, 0x11, 0)) for n in (1, 2, 3))
    parts = [greys[0][:frame_at], frame]
    for number, grey in enumerate(greys, 1):
        scan_at = grey.index(b"\xff\xda")
        if number == 1:
            parts.append(grey[frame_at + 13 : scan_at])
        parts.append(b"\xff\xda\0\x08\x01" + bytes((number, 0)) + grey[scan_at + 7 : -2])
    return b"".join(parts) + b"\xff\xd9"


def insert_before(data: bytes, marker: bytes, extraneous: bytes) -> bytes:
    """Return the data with extraneous bytes before the first such marker."""
    at = data.index(marker)
    return data[:at] + extraneous + data[at:]


def make_samples(count: int) -> list[Sample]:
    """Return samples of many sizes: mostly JPEGs, some progressive, grey or PNG; some with boxes."""
    samples = []
    for number in range(count):
        how = {3: {"kind": "PNG"}, 5: {"mode": "L"}, 6: {"quality": 85, "progressive": True}}.get(number % 7)
        image = save(noisy(*SIZES[number % len(SIZES)], seed=number), **(how or {"quality": 85}))
        samples.append(Sample(f"{number:04d}", image, number % 10, BOXES[: number % 3]))
    return samples


def mean_difference(one: Pixels, other: Pixels) -> float:
    return float(np.abs(one.astype(np.int16) - other).mean())
