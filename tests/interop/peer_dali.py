"""Read files and indexes with DALI. Run with the Python of the environment dali; jobs are on stdin:

tfrecord     {path, index, count, features: {name: kind}}    answer {name: [values of each record]}
mxnet        {path, index, count}                            answer [{labels, image}]
webdataset   {path, index or null, count, extensions}        answer [{extension: sha256}]
coco         {path, annotations, count}                      answer [{id, labels, boxes, image}], edges as shares
box_crops    {boxes, overlaps, attempts, count, seed}        answer [[left, top, width, height, boxes kept]]
colours      {pixels, colours: [four numbers each]}          answer [pixels]: Hsv, then BrightnessContrast

Paths and indexes are one or a list; `count` is the expected total number of records. Byte strings are returned as
sha256, missing lists as empty lists. No GPU is needed.
"""

import hashlib
import json
import sys

import numpy as np
import nvidia.dali.tfrecord as tfrec
from nvidia.dali import fn, pipeline_def

KINDS = {
    "bytes": lambda: tfrec.FixedLenFeature((), tfrec.string, ""),
    "int64": lambda: tfrec.VarLenFeature(tfrec.int64, -1),
    "float": lambda: tfrec.VarLenFeature(tfrec.float32, -1.0),
}


def run(count, make, **how):
    """Return the outputs of one batch with all records, as lists of arrays."""

    @pipeline_def(batch_size=count, num_threads=1, device_id=None, prefetch_queue_depth=1, **how)
    def pipeline():
        return tuple(make())

    made = pipeline()
    made.build()
    assert all(meta["epoch_size"] == count for meta in made.reader_meta().values())
    return [[output.at(place) for place in range(count)] for output in made.run()]


def digest(array):
    return hashlib.sha256(array.tobytes()).hexdigest()


def read_tfrecord(job):
    names = list(job["features"])
    features = {name: KINDS[job["features"][name]]() for name in names}

    def make():
        read = fn.readers.tfrecord(path=job["path"], index_path=job["index"], features=features)
        return [read[name] for name in names]

    outputs = run(job["count"], make)
    return {
        name: [digest(value) if job["features"][name] == "bytes" else value.tolist() for value in values]
        for name, values in zip(names, outputs, strict=True)
    }


def read_mxnet(job):
    images, labels = run(job["count"], lambda: fn.readers.mxnet(path=job["path"], index_path=job["index"]))
    return [{"labels": label.tolist(), "image": digest(image)} for image, label in zip(images, labels, strict=True)]


def read_webdataset(job):
    index = {"index_paths": job["index"]} if job["index"] else {}

    def make():
        read = fn.readers.webdataset(
            paths=job["path"], ext=job["extensions"], missing_component_behavior="empty", **index
        )
        return read if isinstance(read, list | tuple) else [read]

    outputs = run(job["count"], make)
    return [dict(zip(job["extensions"], map(digest, values), strict=True)) for values in zip(*outputs, strict=True)]


def read_coco(job):
    how = {"file_root": job["path"], "annotations_file": job["annotations"]}
    outputs = run(job["count"], lambda: fn.readers.coco(**how, ltrb=True, ratio=True, image_ids=True))
    return [
        {"id": int(number[0]), "labels": labels.tolist(), "boxes": boxes.tolist(), "image": digest(image)}
        for image, boxes, labels, number in zip(*outputs, strict=True)
    ]


def draw_box_crops(job):
    boxes = np.array(job["boxes"], np.float32)
    labels = np.arange(len(boxes), dtype=np.int32)

    def make():
        return fn.random_bbox_crop(
            fn.external_source(lambda _: boxes, batch=False),
            fn.external_source(lambda _: labels, batch=False),
            bbox_layout="xyXY",
            thresholds=job["overlaps"],
            scaling=[0.3, 1.0],
            aspect_ratio=[0.5, 2.0],
            allow_no_crop=True,
            num_attempts=job["attempts"],
        )

    outputs = run(job["count"], make, seed=job["seed"])[:3]
    return [[*start.tolist(), *shape.tolist(), len(kept)] for start, shape, kept in zip(*outputs, strict=True)]


def change_colours(job):
    pixels, colours = np.array(job["pixels"], np.uint8), np.array(job["colours"], np.float32)

    def pick(at):
        return fn.external_source(lambda sample: colours[sample.idx_in_batch, at], batch=False)

    def make():
        saturation, hue, contrast, brightness = map(pick, range(4))
        turned = fn.hsv(fn.external_source(lambda _: pixels, batch=False), saturation=saturation, hue=hue)
        return [fn.brightness_contrast(turned, brightness=brightness, contrast=contrast)]

    (made,) = run(len(colours), make)
    return [one.tolist() for one in made]


READERS = {
    "tfrecord": read_tfrecord,
    "mxnet": read_mxnet,
    "webdataset": read_webdataset,
    "coco": read_coco,
    "box_crops": draw_box_crops,
    "colours": change_colours,
}


def main():
    jobs = json.load(sys.stdin)
    print(json.dumps({name: READERS[kind](job) for name, (kind, job) in jobs.items()}))


main()
