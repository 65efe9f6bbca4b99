"""Loaders of few pictures, and what they give."""

from typing import Any

import torch

from trainstone.config.schema import AugmentConfig, LoaderConfig
from trainstone.data.loader import Loader, open_loader
from trainstone.data.sample import Source

Batch = tuple[torch.Tensor, ...]


def make_loader(source: Source, **wishes: Any) -> Loader:
    told = {name: wishes.pop(name) for name in list(wishes) if name in LoaderConfig.model_fields}
    augment = {name: wishes.pop(name) for name in list(wishes) if name in AugmentConfig.model_fields}
    return open_loader(
        source,
        augment=AugmentConfig(**augment),
        loader=LoaderConfig(**{"threads": 2, "prefetch": 2, **told}),
        **{"batch_size": 4, "seed": 3, **wishes},
    )


def take(loader: Loader, count: int | None = None) -> list[Batch]:
    with loader:
        taken = loader if count is None else (next(loader) for _ in range(count))
        return [tuple(part.clone() for part in batch) for batch in taken]


def same(one: list[Batch], other: list[Batch]) -> bool:
    return all(
        torch.equal(a, b) for left, right in zip(one, other, strict=True) for a, b in zip(left, right, strict=True)
    )
