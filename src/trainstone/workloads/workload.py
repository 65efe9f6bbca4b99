"""The Workload record: all the loop must know of what is trained. A new one: a file and a line in registry.py."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainstone.config.schema import Config
from trainstone.data.loader import Loader
from trainstone.data.sample import DataSet
from trainstone.data.splits import OpenSplit

Batch = tuple[Tensor, ...]
Loss = Callable[[nn.Module, Batch], Tensor]


@dataclass(frozen=True)
class Workload:
    """Functions, not a class to inherit from. If train/ asks which workload it is, a field is missing here."""

    name: str
    title: Callable[[Config], str]
    """How a sentence calls it: ResNet-50."""
    build_model: Callable[[Config], nn.Module]
    synthetic_batches: Callable[[Config, int], list[Batch]]
    """Host batches of the given size from the seed."""
    check_classes: Callable[[Config, DataSet], None]
    """Raise DataError where a data set is not of this workload's kind."""
    open_training: Callable[[Config, OpenSplit, torch.device, int], Loader]
    """Real batches of a data set, begun at a step."""
    build_loss: Callable[[Config, torch.device], Loss]
    """Loss of a model on a batch that lies on the device, normalisation included."""
    empty_batch: Callable[[Config, int], Batch]
    """A batch of that size without content, for counting work."""
