"""Shared by the benchmarks: generated JPEGs similar to ImageNet's."""

from pathlib import Path

import cv2
import numpy as np

SIDES = (500, 375)
DIFFERENT = 200
CLASSES = 100


def make_images(folder: Path, count: int) -> int:
    """Write class folders of JPEGs about as large as ImageNet's (95 kB) and return their total bytes."""
    made = encode_images()
    size_bytes = 0
    for number in range(count):
        path = folder / f"n{number % CLASSES:08d}" / f"n{number % CLASSES:08d}_{number}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        size_bytes += path.write_bytes(made[number % DIFFERENT])
    return size_bytes


def encode_images() -> list[bytes]:
    """Return JPEGs of smooth colours with the noise of a photo, always the same ones."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(DIFFERENT):
        coarse = rng.integers(0, 256, (12, 16, 3)).astype(np.uint8)
        pixels = cv2.resize(coarse, SIDES, interpolation=cv2.INTER_CUBIC).astype(np.float32)
        pixels += rng.normal(0, 14, pixels.shape)
        encoded = cv2.imencode(".jpg", pixels.clip(0, 255).astype(np.uint8), [cv2.IMWRITE_JPEG_QUALITY, 92])[1]
        made.append(encoded.tobytes())
    return made
