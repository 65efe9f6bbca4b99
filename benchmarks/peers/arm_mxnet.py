"""Arm of benchmarks/input.py: MXNet's RecordIO iterator, as in its ImageNet example. Images are (3, 224, 224)."""

from collections.abc import Iterator

import mxnet as mx
import numpy as np
from turns import serve

# MXNet decodes on at most half of the cores minus one, at least one: one of two cores. The second variant uses all
# cores: one iterator per thread, each with its part of the file.
VARIANTS = ["one iterator", "one iterator per thread"]


def open_batches(variant, job) -> Iterator:
    num_parts = 1 if variant == "one iterator" else job["threads"]
    parts = [open_part(part, num_parts, job) for part in range(num_parts)]
    while True:
        for part in parts:
            batch = next(part, None)
            if batch is None:
                part.reset()
                batch = next(part)
            batch.data[0].wait_to_read()
            yield Planes(batch.data[0]), batch.label[0].asnumpy()


def open_part(part, num_parts, job) -> mx.io.MXDataIter:
    """Return the iterator over one part of the file; uint8 is 10 % faster than float32."""
    return mx.io.ImageRecordUInt8Iter(
        path_imgrec=job["recordio"],
        path_imgidx=job["index"],  # without it 64 MB of images are decoded in advance for shuffling
        part_index=part,
        num_parts=num_parts,
        data_shape=(3, job["size"], job["size"]),
        batch_size=job["batch"],
        shuffle=True,
        random_resized_crop=True,
        min_random_area=0.08,
        max_random_area=1.0,
        min_aspect_ratio=3 / 4,
        max_aspect_ratio=4 / 3,
        rand_mirror=True,
        preprocess_threads=job["threads"] // num_parts,
        prefetch_buffer=4,
        round_batch=True,
        verbose=False,
    )


class Planes:
    """MXNet's array with NumPy indexing; copies only the elements that are read."""

    def __init__(self, array) -> None:
        self.array = array
        self.shape = array.shape

    def __getitem__(self, place) -> np.ndarray:
        image, *rest = place
        return self.array[image].asnumpy()[(slice(None), *rest)]

    def __array__(self, dtype=None) -> np.ndarray:
        return self.array.asnumpy()


serve(f"MXNet {mx.__version__}", VARIANTS, open_batches)
