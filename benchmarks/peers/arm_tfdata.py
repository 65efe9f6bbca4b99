"""Arm of benchmarks/input.py: tf.data like ResNet's reference input. Decodes only the crop, with the fast transform."""

import json
import math
import sys
from collections.abc import Iterator

import tensorflow as tf
from turns import serve

AUTOTUNE = tf.data.AUTOTUNE
FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}
LOG_ASPECT = math.log(4 / 3)
# The number of parallel calls is fixed, or chosen by AUTOTUNE.
VARIANTS = ["threads", "AUTOTUNE"]


def open_batches(variant, job) -> Iterator:
    calls, ahead = (AUTOTUNE, AUTOTUNE) if variant == "AUTOTUNE" else (job["threads"], 2)
    # Shuffled as bytes, before decoding; after repeat, so that the buffer stays full at the end of an epoch.
    records = tf.data.TFRecordDataset(job["tfrecord"], num_parallel_reads=len(job["tfrecord"])).repeat().shuffle(512)
    prepared = records.map(lambda record: prepare(record, job["size"]), calls, deterministic=False)
    batches = prepared.batch(job["batch"], drop_remainder=True).prefetch(ahead)
    options = tf.data.Options()
    options.threading.private_threadpool_size = job["threads"]
    options.threading.max_intra_op_parallelism = 1  # parallel over images, not within one
    options.deterministic = False
    for images, labels in batches.with_options(options):
        yield images.numpy(), labels.numpy()  # shares TensorFlow's memory: no copy


def prepare(record, size) -> tuple:
    """Convert one Example into an image and its label."""
    parsed = tf.io.parse_single_example(record, FEATURES)
    encoded = parsed["image/encoded"]
    window = draw_crop(tf.image.extract_jpeg_shape(encoded, tf.int32)[:2])
    image = tf.image.decode_and_crop_jpeg(encoded, window, channels=3, dct_method="INTEGER_FAST")
    image = tf.image.random_flip_left_right(tf.image.resize(image, [size, size], "bilinear"))
    # float32 batches are four times as large to copy: 10 % slower.
    return tf.cast(image, tf.uint8), parsed["image/class/label"]


def draw_crop(sides) -> tf.Tensor:
    """Return top, left, height, width with the same distribution as the other arms; all ten attempts at once.

    TensorFlow's sample_distorted_bounding_box draws uniform heights, not areas: smaller crops, less work.
    """
    sides = tf.cast(sides, tf.float32)[:, tf.newaxis]  # (2, 1): height, width
    draws = tf.random.uniform([4, 10])
    area = tf.reduce_prod(sides) * (0.08 + 0.92 * draws[0])
    aspect = tf.exp(LOG_ASPECT * (2 * draws[1] - 1))
    extents = tf.round(tf.sqrt(tf.stack([area / aspect, area * aspect])))  # (2, 10)
    chosen = tf.argmax(tf.reduce_all(extents <= sides, 0), output_type=tf.int32)
    extent = tf.minimum(extents[:, chosen], sides[:, 0])  # clipped if none fits, which is rare
    place = tf.floor(draws[2:, chosen] * (sides[:, 0] - extent + 1))
    return tf.cast(tf.concat([place, extent], 0), tf.int32)


def main() -> None:
    threads = json.loads(sys.argv[1])["threads"]
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    serve(f"TensorFlow {tf.__version__}", VARIANTS, open_batches)


main()
