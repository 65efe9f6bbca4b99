"""TensorFlow's word on TFRecord and Example. Run by the interpreter of the environment tensorflow, jobs on stdin:

write    {path: [record]}   record = {feature: [kind, values]}, byte strings in hexadecimal; .gz is compressed
read     [path]             answer {path: [record]}, byte strings as sha256, floats as their 32 bits in hexadecimal
parse    [message]          answer [record or null], of messages in hexadecimal
encode   [record]           answer [message in hexadecimal]
"""

import hashlib
import json
import struct
import sys

import tensorflow as tf
from google.protobuf.message import DecodeError

LISTS = {"bytes": "bytes_list", "int64": "int64_list", "float": "float_list"}


def make_example(record):
    example = tf.train.Example()
    for name, (kind, values) in record.items():
        feature = example.features.feature[name]
        if kind == "none":
            continue
        values = [bytes.fromhex(value) for value in values] if kind == "bytes" else values
        chosen = getattr(feature, LISTS[kind])
        chosen.SetInParent()
        chosen.value.extend(values)
    return example


def describe(message):
    example = tf.train.Example.FromString(message)
    return {name: describe_feature(feature) for name, feature in example.features.feature.items()}


def describe_feature(feature):
    kind = {chosen: kind for kind, chosen in LISTS.items()}.get(feature.WhichOneof("kind"), "none")
    values = list(getattr(feature, LISTS[kind]).value) if kind != "none" else []
    if kind == "bytes":
        values = [hashlib.sha256(value).hexdigest() for value in values]
    if kind == "float":
        values = [struct.pack("<f", value).hex() for value in values]
    return [kind, values]


def parse(message):
    try:
        return describe(bytes.fromhex(message))
    except DecodeError:
        return None


def write(path, records):
    with tf.io.TFRecordWriter(path, "GZIP" if path.endswith(".gz") else None) as writer:
        for record in records:
            writer.write(make_example(record).SerializeToString(deterministic=True))


def main():
    jobs = json.load(sys.stdin)
    for path, records in jobs.get("write", {}).items():
        write(path, records)
    answers = {
        "read": {
            path: [describe(message.numpy()) for message in tf.data.TFRecordDataset(path)]
            for path in jobs.get("read", [])
        },
        "parse": [parse(message) for message in jobs.get("parse", [])],
        "encode": [
            make_example(record).SerializeToString(deterministic=True).hex() for record in jobs.get("encode", [])
        ],
    }
    print(json.dumps(answers))


main()
