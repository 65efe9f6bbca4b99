"""MXNet's word on RecordIO. Run by the interpreter of the environment mxnet, jobs on stdin:

write    {path of .rec: [record]}   record = {key, labels, vector, id2, image}, the image in hexadecimal; .idx beside it
read     [path of .rec]             answer {path: [record]}, in the order of the .idx, images as sha256
"""

import hashlib
import json
import sys

import mxnet as mx
import numpy as np


def index_of(path):
    return path.removesuffix(".rec") + ".idx"


def write(path, records):
    file = mx.recordio.MXIndexedRecordIO(index_of(path), path, "w")
    for record in records:
        label = np.array(record["labels"], np.float32) if record["vector"] else record["labels"][0]
        header = mx.recordio.IRHeader(0, label, record["key"], record["id2"])
        file.write_idx(record["key"], mx.recordio.pack(header, bytes.fromhex(record["image"])))
    file.close()


def read(path):
    file = mx.recordio.MXIndexedRecordIO(index_of(path), path, "r")
    records = []
    for key in file.keys:
        header, image = mx.recordio.unpack(file.read_idx(key))
        assert header.id == key
        vector = header.flag > 0
        labels = [float(value) for value in header.label] if vector else [header.label]
        digest = hashlib.sha256(image).hexdigest()
        records.append({"key": key, "labels": labels, "vector": vector, "id2": header.id2, "image": digest})
    file.close()
    return records


def main():
    jobs = json.load(sys.stdin)
    for path, records in jobs.get("write", {}).items():
        write(path, records)
    print(json.dumps({"read": {path: read(path) for path in jobs.get("read", [])}}))


main()
