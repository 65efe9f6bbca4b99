"""Batches by our threads and by DALI, side by side. Run by the interpreter of the environment dali, jobs on stdin:

{name: {set, steps, ranks, augment, loader, ... arguments of open_loader}}, and for each the answer
{threads, dali: {labels, digests: [of each batch, rank after rank], skipped, error}, worst}

`worst` is the largest difference of a picture: mean, in grey levels. Nothing needs a GPU.
"""

import hashlib
import itertools
import json
import sys
from pathlib import Path

import numpy as np

from trainstone.config.pictures import AugmentConfig, LoaderConfig
from trainstone.data.loader import open_loader
from trainstone.data.splits import open_split
from trainstone.errors import TrainstoneError
from trainstone.machine.ranks import Rank


def load(engine, job):
    """What a loader gives, and its pictures."""
    job = {"batch_size": 8, "image_size": 40, "seed": 3, "ranks": 1, "augment": {}, "loader": {}, **job}
    source = open_split(Path(job.pop("set")), "train" if job.get("train", True) else "val").source
    augment, ranks, steps = AugmentConfig(**job.pop("augment")), job.pop("ranks"), job.pop("steps")
    loader = LoaderConfig(**{"threads": 2, "shrink": False, "engine": engine, **job.pop("loader")})
    told, pictures = {"labels": [], "digests": [], "skipped": 0, "error": None}, []
    try:
        for number in range(ranks):
            with open_loader(source, augment=augment, loader=loader, rank=Rank(number, ranks), **job) as batches:
                for images, labels in itertools.islice(batches, steps):
                    pictures.append(images.numpy().copy())
                    told["labels"].append(labels.tolist())
                    told["digests"].append(hashlib.sha256(pictures[-1]).hexdigest())
                told["skipped"] += batches.skipped
    except TrainstoneError as err:
        told["error"] = [type(err).__name__, err.message, err.hint]
    return told, pictures


def compare(job):
    (threads, expected), (dali, found) = (load(engine, job) for engine in ("threads", "dali"))
    apart = [np.abs(ours.astype(int) - its).mean(axis=(1, 2, 3)) for ours, its in zip(expected, found, strict=False)]
    return {"threads": threads, "dali": dali, "worst": float(np.max(apart, initial=0))}


print(json.dumps({name: compare(job) for name, job in json.load(sys.stdin).items()}))
