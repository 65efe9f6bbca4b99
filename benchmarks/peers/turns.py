"""Command loop of every arm of benchmarks/input.py: wait for a command, make batches, print the seconds, become idle.

Uses only the standard library, because it runs in the environments of other systems. Lines on stdin:

go VARIANT BATCHES          time this many batches, after some untimed ones
save VARIANT PATH           write the first batch's images as .npy
"""

import gc
import json
import sys
import time

WARM_UP_BATCHES = 8  # AUTOTUNE of tf.data begins with one thread


def serve(system, variants, open_batches) -> None:
    """Run commands until stdin ends; `open_batches(variant, job)` is an infinite generator of (images, labels)."""
    job = json.loads(sys.argv[1])
    answer({"system": system, "variants": variants})
    for line in sys.stdin:
        word, variant, value = line.rstrip("\n").split("\t")
        batches = open_batches(variant, job)
        seconds = measure(batches, int(value), job) if word == "go" else save(next(batches), value)
        # Stop threads and workers: prefetching would disturb the next arm.
        batches.close()
        del batches
        gc.collect()
        answer({"seconds": seconds})


def answer(message) -> None:
    print(json.dumps(message), flush=True)


def measure(batches, num_batches, job) -> float:
    """Return the seconds for `num_batches` batches, after the warm-up."""
    for _ in range(WARM_UP_BATCHES):
        touch(next(batches), job)
    begin = time.perf_counter()
    for _ in range(num_batches):
        touch(next(batches), job)
    return time.perf_counter() - begin


def touch(batch, job) -> None:
    """Read a few bytes of a batch, so that lazy work is done."""
    images, labels = batch
    assert sorted(images.shape) == sorted((job["batch"], job["size"], job["size"], 3)), images.shape
    assert len(labels) == job["batch"], labels.shape
    assert float(images[-1, ::64, ::64].sum()) >= 0
    assert float(labels[-1].sum()) >= 0


def save(batch, path) -> None:
    """Write the images of a batch as uint8, channels last."""
    import numpy as np

    images = np.asarray(batch[0])
    if images.shape[1] == 3:
        images = images.transpose(0, 2, 3, 1)
    np.save(path, images.round().clip(0, 255).astype(np.uint8))
