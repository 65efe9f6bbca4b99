"""Generated pictures as a data set on disk, made once: where it lies follows from what is in it."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trainstone.config.schema import Config
from trainstone.data.generated.source import GeneratedSource, generate
from trainstone.data.manifest import Storage, read_manifest
from trainstone.data.parallel import Progress
from trainstone.data.plan import Plan, make_plan
from trainstone.data.prepare import prepare
from trainstone.errors import ConfigError
from trainstone.files import cache_folder
from trainstone.machine.ranks import ALONE

MARGIN = 8 / 7
"""Stored pictures are larger than what is trained on, as in ImageNet's validation: 256 for 224."""


class Stored(NamedTuple):
    """A generated set: how to make it, and where."""

    plan: Plan
    target: Path


def plan_stored(
    train: GeneratedSource, val: int, storage: Storage = "folder", shards: dict[str, int] | None = None
) -> Stored:
    """Plan a generated set in the cache folder: a training split, and so many images like it for validation."""
    made = generate(train, {"train": train.count, "val": val} if val else {"train": train.count})
    size = f"{train.width}x{train.height}-{train.count}-{val}-seed-{train.seed}{'' if train.clutter else '-alone'}"
    plan = make_plan(made, storage, shuffle=False, shards=shards or {})
    return Stored(plan, cache_folder() / "data" / f"{train.kind}-{train.num_classes}-classes-{size}-{storage}")


def find_stored(config: Config) -> Stored:
    """Return the generated set that a recipe trains on; there or not."""
    data, num_classes = config.data, config.model.num_classes
    if num_classes == "auto":
        raise ConfigError("data.source = generated needs a number of classes", hint="--set model.num_classes=10")
    size = round(data.image_size * MARGIN)
    train = GeneratedSource(
        config.workload, "train", data.generated_train, size, size, num_classes, clutter=data.generated_clutter
    )
    return plan_stored(train, data.generated_val, "recordio")


def provide_stored(config: Config, workers: int) -> Iterator[Progress]:
    """Make a recipe's generated set where it is not there yet."""
    stored = find_stored(config)
    if read_manifest(stored.target) is None:
        yield from prepare(stored.plan, stored.target, ALONE, workers)
