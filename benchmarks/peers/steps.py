"""Command loop of every arm of benchmarks/step.py: read a number of steps, run them, print the seconds, become idle.

Uses only the standard library and NumPy, because it runs in the environments of other systems.
"""

import json
import sys
import time

from turns import answer

# The same update in all arms. The rate is low because training starts without a warm-up.
RATE, MOMENTUM, WEIGHT_DECAY = 0.001, 0.9, 5e-5
SMOOTHING = 0.1
NUM_BATCHES = 4  # different batches, used in turn, as trainstone's synthetic batches


def read_job() -> dict:
    return json.loads(sys.argv[1])


def serve(system, flops_per_image, run_step) -> None:
    """Run commands until stdin ends; `run_step()` trains one step and returns its loss, read back as a number."""
    answer({"system": system, "flops_per_image": flops_per_image})
    for line in sys.stdin:
        begin = time.perf_counter()
        for _ in range(int(line)):
            loss = run_step()
        answer({"seconds": time.perf_counter() - begin, "loss": loss})


def make_batches(job) -> list:
    """Return (images, labels) of a few batches: normalised float32 images, channels last."""
    import numpy as np

    random = np.random.default_rng(0)
    shape = (job["batch"], job["size"], job["size"], 3)
    return [
        (random.standard_normal(shape, dtype=np.float32), random.integers(job["classes"], size=job["batch"]))
        for _ in range(NUM_BATCHES)
    ]


def count_flops(layers) -> int:
    """Return the FLOPs per image, forward and backward, of convolutions and dense layers, the first layer first.

    `layers`: (number of weights, number of output positions). Each weight is one multiply-add per position, forward,
    for the gradient of the weights and for the gradient of the input, which the first layer does not need.
    """
    multiply_adds = [weights * positions for weights, positions in layers]
    return 2 * (3 * sum(multiply_adds) - multiply_adds[0])
