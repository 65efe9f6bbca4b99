"""Write and read TFRecord and Example with TensorFlow. Run by the Python of the environment tensorflow, jobs on stdin:

encode   [record]           answer [message in hexadecimal]; record = {feature: [kind, values]}, bytes in hexadecimal
build    [{source, target, shards: {train, validation}, threads, sorted}]   ImageNet as in build_imagenet_data.py;
         `sorted`: features in a fixed order, as in trainstone
glob     [pattern]          answer {pattern: [path]}
train    {name: {paths, pixels}}   answer {name: [features]}, parsed as for ResNet; pixels go to that .npz
detect   {name: [path]}            answer {name: [features]}, parsed as for SSD
crops    {name: {width, height, boxes, covered, area, aspect, attempts, draws, seed}}   answer {name: [crop]}, of
         sample_distorted_bounding_box; boxes are top, left, bottom, right as shares, crops are left, top, width, height
"""

import hashlib
import json
import random
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import tensorflow as tf

TRAIN = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string, default_value=""),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64, default_value=-1),
    "image/class/text": tf.io.FixedLenFeature([], tf.string, default_value=""),
    "image/filename": tf.io.FixedLenFeature([], tf.string),
    **{f"image/object/bbox/{edge}": tf.io.VarLenFeature(tf.float32) for edge in ("xmin", "ymin", "xmax", "ymax")},
}
DETECT = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/fname": tf.io.FixedLenFeature([], tf.string),
    "image/id": tf.io.FixedLenFeature([], tf.int64),
    "image/shape": tf.io.FixedLenFeature([3], tf.int64),
    "image/object/label": tf.io.VarLenFeature(tf.int64),
    "image/object/name": tf.io.VarLenFeature(tf.string),
    "image/object/bbox": tf.io.VarLenFeature(tf.float32),
    "image/object/is_crowd": tf.io.VarLenFeature(tf.int64),
}
FOLDERS = {"train": "train", "validation": "val"}
PNG = "n02105855_2933.JPEG"
CMYK = "n01739381_1309.JPEG"
LISTS = {"bytes": "bytes_list", "int64": "int64_list", "float": "float_list"}


def make_example(record):
    example = tf.train.Example()
    for name, (kind, values) in record.items():
        feature = example.features.feature[name]
        if kind == "none":
            continue
        values = [bytes.fromhex(value) if isinstance(value, str) else value for value in values]
        chosen = getattr(feature, LISTS[kind])
        chosen.SetInParent()
        chosen.value.extend(values)
    return example


def list_images(folder, synsets):
    found = [
        (path, label)
        for label, synset in enumerate(synsets, start=1)
        for path in sorted(tf.io.gfile.glob(f"{folder}/{synset}/*.JPEG"))
    ]
    order = list(range(len(found)))
    random.seed(12345)
    random.shuffle(order)
    return [found[place] for place in order]


def split_evenly(start, end, parts):
    edges = np.linspace(start, end, parts + 1).astype(int)
    return list(pairwise(edges))


def read_boxes(path):
    boxes = {}
    for line in path.read_text().splitlines():
        name, *edges = line.split(",")
        boxes.setdefault(name, []).append([float(edge) for edge in edges])
    return boxes


def read_image(path):
    data = tf.io.gfile.GFile(path, "rb").read()
    if PNG in path:
        data = tf.io.encode_jpeg(tf.io.decode_png(data, channels=3), format="rgb", quality=100).numpy()
    elif CMYK in path:
        data = tf.io.encode_jpeg(tf.io.decode_jpeg(data, channels=0), format="rgb", quality=100).numpy()
    height, width, channels = tf.io.decode_jpeg(data, channels=3).shape
    assert channels == 3
    return data, height, width


def describe(path, label, synset, text, boxes):
    data, height, width = read_image(path)
    edges = {name: [box[place] for box in boxes] for place, name in enumerate(("xmin", "ymin", "xmax", "ymax"))}
    return {
        "image/height": ("int64", [height]),
        "image/width": ("int64", [width]),
        "image/colorspace": ("bytes", [b"RGB"]),
        "image/channels": ("int64", [3]),
        "image/class/label": ("int64", [label]),
        "image/class/synset": ("bytes", [synset.encode()]),
        "image/class/text": ("bytes", [text.encode()]),
        **{f"image/object/bbox/{name}": ("float", values) for name, values in edges.items()},
        "image/object/bbox/label": ("int64", [label] * len(boxes)),
        "image/format": ("bytes", [b"JPEG"]),
        "image/filename": ("bytes", [Path(path).name.encode()]),
        "image/encoded": ("bytes", [data]),
    }


def build(job):
    """Write the TFRecord shards of one job; files of a class are sorted by name, as glob order is undefined."""
    source, target, threads = Path(job["source"]), Path(job["target"]), job["threads"]
    target.mkdir()
    lines = (source / "imagenet_metadata.txt").read_text().splitlines()
    names = dict(line.split("\t") for line in lines)
    synsets = sorted(names)
    boxes = read_boxes(source / "imagenet_2012_bounding_boxes.csv")
    for split, count in job["shards"].items():
        images = list_images(source / FOLDERS[split], synsets)
        assert count % threads == 0
        ranges = [
            part
            for start, end in split_evenly(0, len(images), threads)
            for part in split_evenly(start, end, count // threads)
        ]
        for number, (start, end) in enumerate(ranges):
            with tf.io.TFRecordWriter(str(target / f"{split}-{number:05d}-of-{count:05d}")) as writer:
                for path, label in images[start:end]:
                    synset = synsets[label - 1]
                    example = make_example(describe(path, label, synset, names[synset], boxes.get(Path(path).name, [])))
                    writer.write(example.SerializeToString(deterministic=job["sorted"]))


def read_features(paths, spec):
    """Yield each record's features, parsed as in training code."""
    records = tf.data.TFRecordDataset(paths).map(lambda record: tf.io.parse_single_example(record, spec))
    for record in records:
        dense = {
            name: tf.sparse.to_dense(value) for name, value in record.items() if isinstance(value, tf.SparseTensor)
        }
        yield {**record, **dense}


def dump_features(features):
    """Return features as JSON values: images as sha256, texts and numbers unchanged."""
    return {
        name: hashlib.sha256(value.numpy()).hexdigest() if name == "image/encoded" else dump_value(value.numpy())
        for name, value in features.items()
    }


def dump_value(value):
    if isinstance(value, bytes):
        return value.decode()
    return [dump_value(text) for text in value] if value.dtype == object else value.tolist()


def read_for_training(job):
    records = list(read_features(job["paths"], TRAIN))
    # The default is libjpeg's fast DCT, which differs by up to about 3 of 255.
    accurate = {"channels": 3, "dct_method": "INTEGER_ACCURATE"}
    pixels = [tf.io.decode_jpeg(record["image/encoded"], **accurate).numpy() for record in records]
    np.savez(job["pixels"], *pixels)
    return [dump_features(record) for record in records]


def sample_crops(job):
    boxes = np.array(job["boxes"], np.float32).reshape(1, -1, 4)
    tf.random.set_seed(job["seed"])

    def sample(_):
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            [job["height"], job["width"], 3],
            boxes,
            seed=job["seed"],
            min_object_covered=job["covered"],
            aspect_ratio_range=job["aspect"],
            area_range=job["area"],
            max_attempts=job["attempts"],
            use_image_if_no_bounding_boxes=True,
        )
        return tf.stack([begin[1], begin[0], size[1], size[0]])

    draw_all = tf.function(lambda: tf.map_fn(sample, tf.range(job["draws"])))
    return draw_all().numpy().tolist()


def main():
    jobs = json.load(sys.stdin)
    for job in jobs.get("build", []):
        build(job)
    answers = {
        "encode": [
            make_example(record).SerializeToString(deterministic=True).hex() for record in jobs.get("encode", [])
        ],
        "glob": {pattern: tf.io.gfile.glob(pattern) for pattern in jobs.get("glob", [])},
        "train": {name: read_for_training(job) for name, job in jobs.get("train", {}).items()},
        "detect": {
            name: [dump_features(record) for record in read_features(paths, DETECT)]
            for name, paths in jobs.get("detect", {}).items()
        },
        "crops": {name: sample_crops(job) for name, job in jobs.get("crops", {}).items()},
    }
    print(json.dumps(answers))


main()
