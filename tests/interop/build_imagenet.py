"""ImageNet in TFRecord as build_imagenet_data.py made it, by TensorFlow. Run by the environment tensorflow, on stdin:

[{source, target, shards: {train, validation}, threads, sorted}]   `sorted` features have one order, as ours have

Files of a class are taken by name: TensorFlow's glob has them in the file system's order.
"""

import json
import random
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import tensorflow as tf

FOLDERS = {"train": "train", "validation": "val"}
PNG = "n02105855_2933.JPEG"
CMYK = "n01739381_1309.JPEG"


def list_pictures(folder, synsets):
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


def read_picture(path):
    data = tf.io.gfile.GFile(path, "rb").read()
    if PNG in path:
        data = tf.io.encode_jpeg(tf.io.decode_png(data, channels=3), format="rgb", quality=100).numpy()
    elif CMYK in path:
        data = tf.io.encode_jpeg(tf.io.decode_jpeg(data, channels=0), format="rgb", quality=100).numpy()
    height, width, channels = tf.io.decode_jpeg(data, channels=3).shape
    assert channels == 3
    return data, height, width


def make_example(path, label, synset, text, boxes):
    data, height, width = read_picture(path)
    edges = {name: [box[place] for box in boxes] for place, name in enumerate(("xmin", "ymin", "xmax", "ymax"))}
    features = {
        "image/height": integers(height),
        "image/width": integers(width),
        "image/colorspace": texts(b"RGB"),
        "image/channels": integers(3),
        "image/class/label": integers(label),
        "image/class/synset": texts(synset.encode()),
        "image/class/text": texts(text.encode()),
        **{f"image/object/bbox/{name}": floats(*values) for name, values in edges.items()},
        "image/object/bbox/label": integers(*[label] * len(boxes)),
        "image/format": texts(b"JPEG"),
        "image/filename": texts(Path(path).name.encode()),
        "image/encoded": texts(data),
    }
    return tf.train.Example(features=tf.train.Features(feature=features))


def integers(*values):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def floats(*values):
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def texts(*values):
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def build(job):
    source, target, threads = Path(job["source"]), Path(job["target"]), job["threads"]
    target.mkdir()
    lines = (source / "imagenet_metadata.txt").read_text().splitlines()
    names = dict(line.split("\t") for line in lines)
    synsets = sorted(names)
    boxes = read_boxes(source / "imagenet_2012_bounding_boxes.csv")
    for split, count in job["shards"].items():
        pictures = list_pictures(source / FOLDERS[split], synsets)
        assert count % threads == 0
        ranges = [
            part
            for start, end in split_evenly(0, len(pictures), threads)
            for part in split_evenly(start, end, count // threads)
        ]
        for number, (start, end) in enumerate(ranges):
            with tf.io.TFRecordWriter(str(target / f"{split}-{number:05d}-of-{count:05d}")) as writer:
                for path, label in pictures[start:end]:
                    synset = synsets[label - 1]
                    example = make_example(path, label, synset, names[synset], boxes.get(Path(path).name, []))
                    writer.write(example.SerializeToString(deterministic=job["sorted"]))


def main():
    for job in json.load(sys.stdin):
        build(job)


main()
