"""Generated data set that needs no download: JPEG images of drawn shapes, for classification and detection.

An image depends only on (seed, split, index), so any process can generate any of them. The class is the object's shape
and surface; colour, position and size carry no information.
"""

import math
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from trainstone.config.schema import Config
from trainstone.data.image.decode import encode_jpeg
from trainstone.data.manifest import Storage, read_manifest
from trainstone.data.parallel import BusyError, WorkProgress, lock_file
from trainstone.data.prepare import prepare
from trainstone.data.sample import ClassName, DataSet, Sample, Split
from trainstone.data.shard_plan import DataSetPlan, build_plan
from trainstone.data.synthetic.drawing import (
    SHAPES,
    SURFACES,
    apply_camera_effects,
    draw_clutter,
    draw_objects,
    draw_single_object,
    paint_background,
)
from trainstone.errors import ConfigError, DataError
from trainstone.files import cache_folder
from trainstone.machine.ranks import SINGLE_RANK

KINDS = ("classify", "detect")
GENERATOR = 1  # increment when the same seed gives other images
MARGIN = 8 / 7
"""Ratio of the stored size to the training size, as in ImageNet's validation: 256 for 224."""


@dataclass(frozen=True)
class GeneratedSource:
    """Source of one split of generated images; it has only numbers, so it is cheap to send to other processes."""

    kind: str
    split: str
    count: int
    width: int = 96
    height: int = 96
    num_classes: int = 10
    seed: int = 0
    clutter: bool = True
    """Draw clutter around and over the object; otherwise the image has only the object, and it is large."""
    needs_processes: ClassVar[bool] = True
    """Drawing holds Python's global lock, so processes are faster than threads."""

    def __post_init__(self) -> None:
        most = len(SHAPES) * (len(SURFACES) if self.kind == "classify" else 1)
        if self.kind not in KINDS:
            raise ConfigError(f"invalid kind of generated data: {self.kind!r}; {' and '.join(KINDS)} are allowed")
        for name, value, low, high in (
            ("num_classes", self.num_classes, 1 if self.kind == "detect" else 2, most),
            ("count", self.count, 0, 10**9),
            ("width", self.width, 16, 4096),
            ("height", self.height, 16, 4096),
            ("seed", self.seed, 0, 2**63),
        ):
            if not low <= value <= high:
                raise ConfigError(
                    f"invalid {name} of generated data: {value}; {low} to {high} are allowed for {self.kind}"
                )

    def __len__(self) -> int:
        return self.count

    @property
    def classes(self) -> list[ClassName]:
        """Class names in label order, which is the sort order of their folder names."""
        return [ClassName(name, text) for name, text, _, _ in list_classes(self.kind, self.num_classes)]

    def fingerprint(self) -> str:
        return f"{self!r} of generator {GENERATOR}"

    def read(self, index: int) -> Sample:
        name = self.name(index)
        entropy = (self.seed, zlib.crc32(f"{self.kind} {self.split}".encode()), index)
        rng = np.random.default_rng(np.random.SeedSequence(entropy))
        quality = int(rng.integers(75, 96))
        canvas = paint_background(rng, self.height, self.width)
        angle = rng.uniform(0, 2 * math.pi)
        light = (math.cos(angle), math.sin(angle))
        if self.clutter:
            draw_clutter(rng, canvas, light, *((1, 5) if self.kind == "detect" else (2, 6)))
        classes, label = list_classes(self.kind, self.num_classes), self.label(index)
        if label is None:
            boxes = draw_objects(rng, canvas, light, classes, clutter=self.clutter)
            return Sample(name, encode_jpeg(apply_camera_effects(rng, canvas), quality), boxes=boxes, id=index + 1)
        draw_single_object(rng, canvas, light, *classes[label][2:], clutter=self.clutter)
        return Sample(name, encode_jpeg(apply_camera_effects(rng, canvas), quality), label=label)

    def name(self, index: int) -> str:
        """Return a name such as circle-dotted/0000123.jpg, or 000000000124.jpg counted from 1, as in COCO."""
        if not 0 <= index < self.count:
            raise IndexError(f"image {index} of {self.count}")
        if self.kind == "detect":
            return f"{index + 1:012d}.jpg"
        return f"{list_classes(self.kind, self.num_classes)[index % self.num_classes][0]}/{index:07d}.jpg"

    def where(self, index: int) -> str:
        return f"generated image {index} of {self.split}, seed {self.seed}"

    def label(self, index: int) -> int | None:
        """Return the class without drawing. Classes alternate, so any contiguous part is balanced."""
        return None if self.kind == "detect" else index % self.num_classes


def build_generated_set(template: GeneratedSource, counts: Mapping[str, int]) -> DataSet:
    """Return a data set with splits like the template; `counts` has their sizes: {"train": 5000, "val": 500}."""
    splits = [Split(name, replace(template, split=name, count=count)) for name, count in counts.items()]
    return DataSet(template.kind, f"generated, seed {template.seed}", template.classes, splits, name="shapes")


@cache
def list_classes(kind: str, number: int) -> tuple[tuple[str, str, str, str], ...]:
    """Return (name, text, shape, surface) of each class, sorted by name so that class folders give the same labels."""
    if kind == "detect":
        return tuple((shape, shape, shape, "") for shape in sorted(list(SHAPES)[:number]))
    # Choose the numbers of shapes and surfaces with the fewest unused pairs, then the most similar ones.
    counts = [(math.ceil(number / surfaces), surfaces) for surfaces in range(1, len(SURFACES) + 1)]
    num_shapes, num_surfaces = min(
        ((a, b) for a, b in counts if a <= len(SHAPES)),
        key=lambda pair: (math.prod(pair), abs(pair[0] - pair[1]), -pair[0]),
    )
    pairs = [(shape, surface) for surface in list(SURFACES)[:num_surfaces] for shape in list(SHAPES)[:num_shapes]]
    return tuple(sorted((f"{a}-{b}", f"{b} {a}", a, b) for a, b in pairs[:number]))


class StoredSet(NamedTuple):
    """The plan of a generated data set and its folder."""

    plan: DataSetPlan
    target: Path


def plan_generated_set(
    train: GeneratedSource, val: int, storage: Storage = "folder", shards: dict[str, int] | None = None
) -> StoredSet:
    """Plan a generated data set in the cache folder, with a training split and `val` validation images."""
    data_set = build_generated_set(train, {"train": train.count, "val": val} if val else {"train": train.count})
    size = f"{train.width}x{train.height}-{train.count}-{val}-seed-{train.seed}{'' if train.clutter else '-alone'}"
    plan = build_plan(data_set, storage, shuffle=False, shards=shards or {})
    return StoredSet(plan, cache_folder() / "data" / f"{train.kind}-{train.num_classes}-classes-{size}-{storage}")


def plan_recipe_data(config: Config) -> StoredSet:
    """Plan the generated data set of a recipe with data.source = generated."""
    data, num_classes = config.data, config.model.num_classes
    if num_classes == "auto":
        raise ConfigError("data.source = generated requires model.num_classes", hint="--set model.num_classes=10")
    size = round(data.image_size * MARGIN)
    train = GeneratedSource(
        config.workload, "train", data.generated_train, size, size, num_classes, clutter=data.generated_clutter
    )
    return plan_generated_set(train, data.generated_val, "recordio")


def write_recipe_data(config: Config, workers: int) -> Iterator[WorkProgress]:
    """Write a recipe's generated data set if it does not exist; wait if another process is writing it."""
    stored = plan_recipe_data(config)
    lock = stored.target.with_name(f"{stored.target.name}.lock")
    while read_manifest(stored.target) is None:
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            with lock_file(lock, stored.target):
                yield from prepare(stored.plan, stored.target, SINGLE_RANK, workers)
        except BusyError:
            yield WorkProgress("waiting for another process", 0, None, "images")
            time.sleep(0.2)
        except OSError as err:
            raise DataError(f"cannot write {err.filename or lock}: {err.strerror}") from err
