"""Arm of benchmarks/input.py: NVIDIA DALI on the CPU. Decodes random crops, resizes and flips uint8 pixels."""

from collections.abc import Iterator

import numpy as np
from nvidia import dali
from nvidia.dali import fn, pipeline_def, types
from turns import serve

# A combined operator or separate ones: the faster one depends on the image sizes.
VARIANTS = ["resize and flip", "resize_crop_mirror"]


def open_batches(variant, job) -> Iterator:
    size = (job["size"], job["size"])
    # antialias would cost 15 %; tf.data, MXNet and trainstone do not use it, either.
    how = {"size": size, "interp_type": types.INTERP_LINEAR, "antialias": False}

    @pipeline_def(batch_size=job["batch"], num_threads=job["threads"], device_id=None, prefetch_queue_depth=2)
    def describe() -> tuple:
        encoded, labels = fn.readers.mxnet(
            path=job["recordio"], index_path=job["index"], random_shuffle=True, initial_fill=512
        )
        images = fn.decoders.image_random_crop(
            encoded,
            random_area=(0.08, 1.0),
            random_aspect_ratio=(3 / 4, 4 / 3),
            num_attempts=10,
            use_fast_idct=True,  # like the others: libjpeg's fast transform
        )
        coin = fn.random.coin_flip()
        if variant == "resize_crop_mirror":
            return fn.resize_crop_mirror(images, crop=size, mirror=coin, **how), labels
        return fn.flip(fn.resize(images, **how), horizontal=coin), labels

    pipeline = describe()
    pipeline.build()
    while True:
        images, labels = pipeline.run()
        yield np.asarray(images.as_tensor()), np.asarray(labels.as_tensor())  # shares DALI's memory: no copy


serve(f"DALI {dali.__version__}", VARIANTS, open_batches)
