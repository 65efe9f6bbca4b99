"""Plan a prepared data set: the order of samples and the shard files, as the original tools chose them."""

import hashlib
import json
import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import numpy as np

from trainstone.data.manifest import Storage
from trainstone.data.sample import ClassName, DataSet, Source
from trainstone.data.storage.folder import FolderEncoder
from trainstone.data.storage.recordio import RecordIOEncoder
from trainstone.data.storage.records import Encoder, Shard
from trainstone.data.storage.tfrecord import TFRecordEncoder
from trainstone.data.storage.wds import WdsEncoder

ENCODERS: dict[Storage, type[Encoder]] = {
    "recordio": RecordIOEncoder,
    "tfrecord": TFRecordEncoder,
    "wds": WdsEncoder,
    "folder": FolderEncoder,
}
# The seeds of im2rec.py, build_imagenet_data.py and (detection) create_tfrecord.py; WebDataset uses TFRecord's.
SHUFFLE_SEEDS = {
    "recordio": {"classify": 100, "detect": 100},
    "tfrecord": {"classify": 12345, "detect": 2020},
    "wds": {"classify": 12345, "detect": 2020},
}
IMAGENET_SHARDS = {"train": 1024, "val": 128}
TENSORFLOW_THREADS = 8
"""build_imagenet_data.py splits first among threads, then among each thread's shards, which affects the rounding."""
TENSORFLOW_NAMES = {"val": "validation"}
RECORDS_PER_SHARD = 1280
"""For data sets without an original shard count: about as many as in each of ImageNet's 1024 shards."""


@dataclass(frozen=True)
class Treatment:
    """How images are changed when they are written; by default only images that decoders fail on are re-encoded."""

    repair: bool = True
    resize: int | None = None
    quality: int | None = None
    skip_bad: bool = False
    """Decode every image and skip damaged ones; otherwise the first file that is not an image is an error."""


@dataclass(frozen=True)
class SplitPlan:
    """A split: sample indexes in writing order, and the shard files."""

    name: str
    source: Source
    order: Sequence[int]
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class DataSetPlan:
    """Everything that determines the files of a prepared data set."""

    dataset: str
    kind: str
    storage: Storage
    classes: tuple[ClassName, ...]
    first_label: int
    splits: tuple[SplitPlan, ...]
    treatment: Treatment

    @property
    def shards(self) -> list[Shard]:
        """All shards in writing order; the original tools wrote validation first."""
        return [shard for split in sorted(self.splits, key=lambda s: s.name == "train") for shard in split.shards]

    def split(self, name: str) -> SplitPlan:
        return next(split for split in self.splits if split.name == name)

    def identity(self) -> str:
        """Return a checksum of everything that determines the written bytes."""
        document = {name: getattr(self, name) for name in ("dataset", "kind", "storage", "classes", "first_label")}
        document["treatment"] = asdict(self.treatment)
        document["splits"] = [(s.name, len(s.order), s.shards, s.source.fingerprint()) for s in self.splits]
        digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode())
        for split in self.splits:
            digest.update(hashlib.sha256(str(list(split.order[:1000])).encode()).digest())
        return digest.hexdigest()


def build_plan(
    found: DataSet,
    storage: Storage,
    *,
    shuffle: bool = True,
    limit: int | None = None,
    shards: dict[str, int] | None = None,
    first_label: int | None = None,
    treatment: Treatment | None = None,
) -> DataSetPlan:
    """Build the plan for a data set; `shards` sets the number of files per split."""
    splits = []
    for split in found.splits:
        order = build_sample_order(len(split.source), storage, found.kind if shuffle else None)[:limit]
        count = 1 if storage in ("recordio", "folder") else math.ceil(len(order) / RECORDS_PER_SHARD)
        if storage in ("tfrecord", "wds") and found.name == "imagenet":
            count = IMAGENET_SHARDS.get(split.name, 1)
        count = (shards or {}).get(split.name) or count
        files = divide_into_shards(split.name, len(order), max(1, min(count, len(order))), storage, found.kind)
        splits.append(SplitPlan(split.name, split.source, order, files))
    if first_label is None:
        first_label = (1 if found.first_label is None else found.first_label) if storage == "tfrecord" else 0
    names_so_far: set[str] = set()
    classes = []  # with unique names for folders: ImageNet has two classes named crane
    for label, (name, text) in enumerate(found.classes):
        unique = f"{name}-{label}" if name in names_so_far else name
        classes.append(ClassName(unique, text or (name if unique != name else "")))
        names_so_far.add(unique)
    return DataSetPlan(
        found.name, found.kind, storage, tuple(classes), first_label, tuple(splits), treatment or Treatment()
    )


def build_sample_order(count: int, storage: str, kind: str | None) -> list[int]:
    """Return sample indexes in the order of the format's original tool; with kind None, in source order."""
    order = list(range(count))
    if kind is not None and storage in SHUFFLE_SEEDS:
        random.Random(SHUFFLE_SEEDS[storage][kind]).shuffle(order)
    return order


def divide_into_shards(split: str, records: int, count: int, storage: str, kind: str) -> tuple[Shard, ...]:
    """Return a split's shards with the names and boundaries of im2rec, build_imagenet_data.py, create_tfrecord.py."""
    if storage == "folder":
        return (Shard(split, split, 0, records),)
    size = -(-records // count)  # im2rec: equal chunks, the last one may be smaller
    bounds = [(min(number * size, records), min((number + 1) * size, records)) for number in range(count)]
    if storage == "tfrecord":
        bounds = compute_tensorflow_bounds(records, count)
    shards = []
    for number, (start, end) in enumerate(bounds):
        if storage == "recordio":
            file = f"{split}.rec" if count == 1 else f"{split}_{number}.rec"
        elif storage == "wds":  # WebDataset's convention
            file = f"{split}-{number:06d}.tar"
        elif kind == "detect":
            file = f"{split}.{number}_of_{count}.tfrecord"
        else:
            file = f"{TENSORFLOW_NAMES.get(split, split)}-{number:05d}-of-{count:05d}"
        shards.append(Shard(split, file, start, end))
    return tuple(shards)


def compute_tensorflow_bounds(records: int, count: int) -> list[tuple[int, int]]:
    """Return the bounds of build_imagenet_data.py: np.linspace over threads, then over shards, both rounded down."""
    threads = math.gcd(TENSORFLOW_THREADS, count)
    edges = np.linspace(0, records, threads + 1).astype(int).tolist()
    inner = (np.linspace(start, end, count // threads + 1).astype(int).tolist() for start, end in pairwise(edges))
    return [bounds for part in inner for bounds in pairwise(part)]
