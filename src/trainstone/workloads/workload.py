"""The Workload record: all the loop must know of what is trained. A new one: a file and a line in registry.py."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trainstone.config.schema import Config
from trainstone.data.feeding.shown import Holds
from trainstone.data.loader import Loader
from trainstone.data.sample import DataSet, Edges
from trainstone.data.splits import OpenSplit
from trainstone.machine.ranks import Rank
from trainstone.results.quality import QualityPicture, QualityTable
from trainstone.results.schema import Finding

Batch = tuple[Tensor, ...]
Loss = Callable[[nn.Module, Batch], Tensor]
Judge = Callable[[nn.Module, Batch], Tensor]
Scores = Callable[[nn.Module, Tensor], Any]
MIN_EVAL_BATCH = 32


class Seen(NamedTuple):
    """A class that a picture shows, and where, if that was looked for."""

    label: int
    score: float
    edges: Edges | None = None


Look = Callable[[nn.Module, Tensor], list[list[Seen]]]


class Scored(NamedTuple):
    """What an evaluation found."""

    metrics: dict[str, float]
    images: int
    tables: tuple[QualityTable, ...] = ()
    pictures: tuple[tuple[QualityPicture, bytes], ...] = ()
    """To be looked at: each with its JPEG."""


class RunSizes(NamedTuple):
    """Numbers of a training run that MLPerf's log tells and its rules ask for."""

    ranks: int
    global_batch: int
    """Images a step, of all ranks."""
    train_pictures: int
    """Of the data set."""
    val_pictures: int
    peak_rate: float
    """The schedule's highest."""
    decay_steps: int
    """After the warm-up."""
    warm_up_steps: int = 0


@dataclass(frozen=True)
class Mllog:
    """What mlperf.log says of a workload."""

    benchmark: str
    """MLPerf's name for it."""
    tensor_names: Callable[[nn.Module], list[str]]
    """What its reference calls the parameters of the network."""
    list_values: Callable[[Config, RunSizes], dict[str, Any]]
    """The keys that tell how it is trained; what the recipe cannot say is left out."""
    find_departures: Callable[[Config, RunSizes], list[str]]
    """What is not as the closed division asks for, in words."""


@dataclass(frozen=True)
class Workload:
    """Functions, not a class to inherit from. If train/ asks which workload it is, a field is missing here."""

    name: str
    title: Callable[[Config], str]
    """How a sentence calls it: ResNet-50."""
    build_model: Callable[[Config], nn.Module]
    synthetic_batches: Callable[[Config, int], list[Batch]]
    """Host batches of the given size from the seed."""
    holds: Holds
    """What a training batch has beside the pixels."""
    check_classes: Callable[[Config, DataSet], None]
    """Raise DataError where a data set is not of this workload's kind."""
    open_training: Callable[[Config, OpenSplit, torch.device, Rank, int], Loader]
    """A rank's real batches of a data set, begun at a batch."""
    open_validation: Callable[[Config, OpenSplit, torch.device, Rank], Loader]
    """A rank's share of the pictures to validate with, each once."""
    mix: Callable[[Config, Iterable[Batch], Rank, int], Iterator[Batch]]
    """Batches as the loss wants them, begun at a batch: with the draws of mixup, where it is on."""
    build_loss: Callable[[Config, torch.device], Loss]
    """Loss of a model on a batch that lies on the device, normalisation included."""
    build_judge: Callable[[Config, torch.device], Judge]
    """Rows of numbers for a validation batch, float32 on the device: (any number, columns)."""
    build_scores: Callable[[Config, torch.device], Scores]
    """What a network gives for pictures that lie on the device, normalisation included; no labels, no loss."""
    build_look: Callable[[Config, torch.device], Look]
    """What is seen in each picture of a batch that lies on the device, the likeliest first."""
    finish_eval: Callable[[Config, OpenSplit, Tensor], Scored]
    """What the rows of all batches and ranks (float32 in host memory) amount to. It may run beside the next steps."""
    empty_batch: Callable[[Config, int], Batch]
    """A batch of that size without content, for counting work."""
    min_classes: int
    """Fewer there is nothing to learn with."""
    count_classes: Callable[[Mapping[str, Tensor]], int | None]
    """How many classes saved weights know; None: they do not say."""
    find_trunk: Callable[[nn.Module], nn.Module]
    """The part of the network that model.pretrained is for."""
    list_doubts: Callable[[Config], list[Finding]]
    """What is to be said of a training with this configuration."""
    mllog: Mllog


def choose_eval_batch(config: Config) -> int:
    """Return how many pictures a rank judges at a time."""
    asked, trained = config.eval.batch_size, config.train.batch_size
    if asked != "auto":
        return asked
    return MIN_EVAL_BATCH if trained == "auto" else max(MIN_EVAL_BATCH, trained)
