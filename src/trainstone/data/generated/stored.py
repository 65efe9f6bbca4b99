"""Generated pictures as a data set on disk, made once: where it lies follows from what is in it."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trainstone.config.schema import Config
from trainstone.data.generated.source import generate
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
    kind: str,
    *,
    train: int,
    val: int,
    width: int,
    height: int,
    num_classes: int,
    seed: int = 0,
    clutter: bool = True,
    storage: Storage = "folder",
    shards: dict[str, int] | None = None,
) -> Stored:
    """Plan a generated set in the cache folder."""
    counts = {"train": train, "val": val} if val else {"train": train}
    made = generate(kind, counts, width=width, height=height, num_classes=num_classes, seed=seed, clutter=clutter)
    crowded = "" if clutter else "-alone"
    name = f"{kind}-{num_classes}-classes-{width}x{height}-{train}-{val}-seed-{seed}{crowded}-{storage}"
    plan = make_plan(made, storage, shuffle=False, shards=shards or {})
    return Stored(plan, cache_folder() / "data" / name)


def find_stored(config: Config) -> Stored:
    """Return the generated set that a recipe trains on; there or not."""
    if config.model.num_classes == "auto":
        raise ConfigError("data.source = generated needs a number of classes", hint="--set model.num_classes=10")
    size = round(config.data.image_size * MARGIN)
    return plan_stored(
        config.workload,
        train=config.data.generated_train,
        val=config.data.generated_val,
        width=size,
        height=size,
        num_classes=config.model.num_classes,
        clutter=config.data.generated_clutter,
        storage="recordio",
    )


def provide_stored(config: Config, workers: int) -> Iterator[Progress]:
    """Make a recipe's generated set where it is not there yet."""
    stored = find_stored(config)
    if read_manifest(stored.target) is None:
        yield from prepare(stored.plan, stored.target, ALONE, workers)
