"""Loaders for tests, and helpers to take and compare their batches."""

from typing import Any

import torch

from support.processes.forked import wait_until
from trainstone.config.schema import AugmentConfig, Config, DataConfig, LoaderConfig
from trainstone.data.loader import Loader, LoaderOptions
from trainstone.data.sample import Source

Batch = tuple[torch.Tensor, ...]


def make_config(image_size: int = 32, seed: int = 3, **keys: Any) -> Config:
    """Return a recipe with these keys in its sections augment and loader, without checking their combination."""
    config = Config(name="made-up", version=1, summary="", seed=seed, data=DataConfig(image_size=image_size))
    sections = {
        name: kind(**{key: keys[key] for key in kind.model_fields.keys() & keys})
        for name, kind in (("augment", AugmentConfig), ("loader", LoaderConfig))
    }
    return config.model_copy(update=sections)


def make_loader(source: Source, batch_size: int = 4, **options: Any) -> Loader:
    keys = {*AugmentConfig.model_fields, *LoaderConfig.model_fields, "image_size", "seed"}
    config = make_config(**{"threads": 2, "prefetch": 2, **{key: options.pop(key) for key in keys & options.keys()}})
    return Loader(source, config, LoaderOptions(batch_size, **options))


def take_batches(loader: Loader, count: int | None = None) -> list[Batch]:
    with loader:
        taken = loader if count is None else (next(loader) for _ in range(count))
        return [tuple(part.clone() for part in batch) for batch in taken]


def batches_equal(one: list[Batch], other: list[Batch]) -> bool:
    return all(
        torch.equal(a, b) for left, right in zip(one, other, strict=True) for a, b in zip(left, right, strict=True)
    )


def wait_for_rest(ring: Any) -> None:
    """Wait until all threads wait for memory or for the end of a pause."""
    wait_until(lambda: len(ring._work_to_do._waiters) == len(ring._threads))
