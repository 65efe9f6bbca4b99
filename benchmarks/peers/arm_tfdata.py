"""tf.data, as ResNet's reference input does it: only the crop is decoded (decode_and_crop_jpeg), fast transform."""

import tensorflow as tf
from turns import serve

AUTOTUNE = tf.data.AUTOTUNE
FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}
WHOLE = [[[0.0, 0.0, 1.0, 1.0]]]
VARIANTS = [f"{threads} {kind}" for threads in ("fixed", "autotune") for kind in ("float32", "uint8")]


def open_batches(variant, job):
    threads, kind = variant.split()
    calls = AUTOTUNE if threads == "autotune" else job["threads"]
    # Shuffled as bytes, before decoding; after repeat, so that no epoch's end empties the buffer.
    records = tf.data.TFRecordDataset(job["tfrecord"], num_parallel_reads=2).repeat().shuffle(512)
    pictures = records.map(lambda record: prepare(record, job["size"], kind), calls, deterministic=False)
    batches = pictures.batch(job["batch"], drop_remainder=True).prefetch(AUTOTUNE if threads == "autotune" else 2)
    options = tf.data.Options()
    options.threading.private_threadpool_size = job["threads"]
    options.threading.max_intra_op_parallelism = 1  # pictures are shared out, not the pixels of one
    options.deterministic = False
    for images, labels in batches.with_options(options):
        yield images.numpy(), labels.numpy()  # shares TensorFlow's memory: no copy


def prepare(record, size, kind):
    """Turn one Example into a picture and its label."""
    parsed = tf.io.parse_single_example(record, FEATURES)
    encoded = parsed["image/encoded"]
    begin, extent, _ = tf.image.sample_distorted_bounding_box(
        tf.image.extract_jpeg_shape(encoded),
        bounding_boxes=tf.constant(WHOLE),
        min_object_covered=0.0,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.08, 1.0),
        max_attempts=10,
    )
    window = tf.concat([begin[:2], extent[:2]], 0)
    image = tf.image.decode_and_crop_jpeg(encoded, window, channels=3, dct_method="INTEGER_FAST")
    image = tf.image.random_flip_left_right(tf.image.resize(image, [size, size], "bilinear"))
    if kind == "uint8":
        image = tf.cast(image, tf.uint8)
    return image, parsed["image/class/label"]


def main():
    import json
    import sys

    threads = json.loads(sys.argv[1])["threads"]
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    serve(f"TensorFlow {tf.__version__}", VARIANTS, open_batches)


main()
