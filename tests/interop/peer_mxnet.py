"""Write and read RecordIO with MXNet. Run with the Python of the environment mxnet; jobs are on stdin:

write    {path of .rec: [record]}   record = {key, labels, vector, image}, the image in hexadecimal; .idx beside it
iterate  {path of .rec: {count, width, height, pixels}}   answer {path: [label]} of ImageRecordIter; pixels to that .npy
detect   {path of .rec: {count, width, height}}           answer {path: {name of an iterator: [[numbers of an object]]}}
"""

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
        header = mx.recordio.IRHeader(0, label, record["key"], 0)
        file.write_idx(record["key"], mx.recordio.pack(header, bytes.fromhex(record["image"])))
    file.close()


def shape_of(job):
    return {"data_shape": (3, job["height"], job["width"]), "batch_size": job["count"]}


def iterate(path, job):
    batches = list(mx.io.ImageRecordIter(path_imgrec=path, shuffle=False, round_batch=False, **shape_of(job)))
    assert [(len(batch.data), batch.pad) for batch in batches] == [(1, 0)]
    np.save(job["pixels"], batches[0].data[0].asnumpy())
    return batches[0].label[0].asnumpy().tolist()


def detect(path, job):
    (flat,) = mx.image.ImageDetIter(path_imgrec=path, **shape_of(job))
    (native,) = mx.io.ImageDetRecordIter(path_imgrec=path, shuffle=False, **shape_of(job))
    return {
        "ImageDetIter": [objects[objects[:, 0] >= 0].tolist() for objects in flat.label[0].asnumpy()],
        "ImageDetRecordIter": [unfold(labels) for labels in native.label[0].asnumpy()],
    }


def unfold(labels):
    """Return the objects of a padded row: three image sizes, the number of values, then the record's values."""
    count = int(labels[3])
    head, width = int(labels[4]), int(labels[5])
    return labels[4 + head : 4 + count].reshape(-1, width).tolist()


def main():
    jobs = json.load(sys.stdin)
    for path, records in jobs.get("write", {}).items():
        write(path, records)
    answers = {
        "iterate": {path: iterate(path, job) for path, job in jobs.get("iterate", {}).items()},
        "detect": {path: detect(path, job) for path, job in jobs.get("detect", {}).items()},
    }
    print(json.dumps(answers))


main()
