"""What workloads on pictures share: loaders, whatever stands beside the pixels of a batch, and the network's input."""

from typing import Any

import torch

from trainstone.config.schema import Config
from trainstone.data.feeding.shown import Holds
from trainstone.data.loader import Loader, open_loader
from trainstone.data.sample import DataSet
from trainstone.data.splits import OpenSplit
from trainstone.errors import DataError
from trainstone.machine.ranks import Rank
from trainstone.models.pixels import Normaliser
from trainstone.workloads.workload import choose_eval_batch


def open_to_train(
    holds: Holds, config: Config, opened: OpenSplit, device: torch.device, rank: Rank, first_batch: int
) -> Loader:
    """Feed training pictures, begun at a batch."""
    assert isinstance(config.train.batch_size, int)  # train/fit.py resolved it
    how = {"loader": config.loader, "batch_size": config.train.batch_size, "first_step": first_batch}
    how["parts"] = config.train.accumulate
    return open_for_rank(holds, config, opened, device, rank, **how)


def open_to_judge(holds: Holds, config: Config, opened: OpenSplit, device: torch.device, rank: Rank) -> Loader:
    """Feed this rank's share of the validation pictures, each once: a cache would be for nothing."""
    loader = config.loader.model_copy(update={"cache": "off"})
    batch_size = choose_eval_batch(config)
    parts = batch_size if config.eval.drop_rest else 1
    if len(opened.source) < parts:
        raise DataError(
            f"{len(opened.source)} validation pictures do not fill a batch of {batch_size} (eval.drop_rest)",
            hint="--set eval.drop_rest=false judges all",
        )
    how = {"loader": loader, "batch_size": batch_size, "train": False, "parts": parts}
    return open_for_rank(holds, config, opened, device, rank, **how)


def open_for_rank(
    holds: Holds, config: Config, opened: OpenSplit, device: torch.device, rank: Rank, **how: Any
) -> Loader:
    """Open a rank's loader."""
    return open_loader(
        opened.source,
        augment=config.augment,
        image_size=config.data.image_size,
        seed=config.seed,
        rank=rank,
        num_classes=config.model.num_classes,
        pinned=device.type == "cuda",
        storage=opened.dataset.storage,
        holds=holds,
        **how,
    )


def refuse_more_classes(config: Config, dataset: DataSet) -> None:
    """Refuse a data set with classes that the network does not have."""
    if config.model.num_classes != "auto" and len(dataset.classes) > config.model.num_classes:
        raise DataError(
            f"{config.data.root} has {len(dataset.classes)} classes, the network {config.model.num_classes}",
            hint=f"--set model.num_classes={len(dataset.classes)}",
        )


def build_input(config: Config, device: torch.device) -> Normaliser:
    """Return what turns uint8 pictures into the network's input, in the memory format of its weights."""
    return Normaliser(config.augment.normalise, device, channels_last=config.engine.channels_last)
