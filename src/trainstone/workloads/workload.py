"""The Workload record: all the loop must know of what is trained. A new one: a file and a line in registry.py.

What workloads on images share stands here, too: loaders, the check of classes, and the network's input.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trainstone.config.schema import Config, change_section
from trainstone.data.loader import Loader, LoaderOptions
from trainstone.data.pipeline.feed import Holds
from trainstone.data.sample import DataSet, Edges
from trainstone.data.splits import OpenSplit
from trainstone.errors import ConfigError, DataError
from trainstone.machine.ranks import SINGLE_RANK, Rank
from trainstone.results.schema.quality import QualitySample, QualityTable
from trainstone.results.schema.run import Finding

Batch = tuple[Tensor, ...]
Loss = Callable[[nn.Module, Batch], Tensor]
Evaluator = Callable[[nn.Module, Batch], Tensor]
Scores = Callable[[nn.Module, Tensor], Any]
MIN_EVAL_BATCH = 32


class Prediction(NamedTuple):
    """A class that an image shows, and where, if that was looked for."""

    label: int
    score: float
    edges: Edges | None = None


Look = Callable[[nn.Module, Tensor], list[list[Prediction]]]


class EvalScores(NamedTuple):
    metrics: dict[str, float]
    images: int
    tables: tuple[QualityTable, ...] = ()
    samples: tuple[tuple[QualitySample, bytes], ...] = ()
    """To be looked at: each with its JPEG."""


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
    eval_holds: Holds
    """What a validation batch has beside the pixels."""
    mix: Callable[[Config, Iterable[Batch], Rank, int], Iterator[Batch]]
    """Batches as the loss wants them, begun at a batch: with the draws of mixup, where it is on."""
    build_loss: Callable[[Config, torch.device], Loss]
    """Loss of a model on a batch that lies on the device, normalisation included."""
    build_evaluator: Callable[[Config, torch.device], Evaluator]
    """Rows of numbers for a validation batch, float32 on the device: (any number, columns)."""
    build_scores: Callable[[Config, torch.device], Scores]
    """What a network gives for images that lie on the device, normalisation included; no labels, no loss."""
    build_predictor: Callable[[Config, torch.device], Look]
    """What is seen in each image of a batch that lies on the device, the likeliest first."""
    finish_eval: Callable[[Config, OpenSplit, Tensor], EvalScores]
    """What the rows of all batches and ranks (float32 in host memory) amount to. It may run beside the next steps."""
    min_classes: int
    """Fewer there is nothing to learn with."""
    count_classes: Callable[[Mapping[str, Tensor]], int | None]
    """How many classes saved weights know; None: they do not say."""
    find_trunk: Callable[[nn.Module], nn.Module]
    """The part of the network that model.pretrained is for."""
    list_warnings: Callable[[Config], list[Finding]]
    """What is to be said of a training with this configuration."""

    def empty_batch(self, config: Config, batch_size: int) -> Batch:
        """Return a batch of that size without content, for counting work."""
        return tuple(part.new_empty(batch_size, *part.shape[1:]) for part in self.synthetic_batches(config, 1)[0])

    def check_classes(self, config: Config, dataset: DataSet) -> None:
        if dataset.kind != self.name:
            raise DataError(
                f"{config.data.root} is a data set to {dataset.kind}, recipe {config.name} needs one to {self.name}",
                hint="give another set, or take a recipe that fits: trainstone recipes",
            )
        if config.model.num_classes != "auto" and len(dataset.classes) > config.model.num_classes:
            raise DataError(
                f"{config.data.root} has {len(dataset.classes)} classes, the network {config.model.num_classes}",
                hint=f"--set model.num_classes={len(dataset.classes)}",
            )

    def open_training(
        self, config: Config, opened: OpenSplit, device: torch.device, rank: Rank = SINGLE_RANK, first_batch: int = 0
    ) -> Loader:
        self.check_classes(config, opened.dataset)
        if config.engine.cuda_graphs and self.holds == "boxes":
            raise ConfigError(
                "engine.cuda_graphs = true: batches of real images differ in their number of boxes",
                hint="--set engine.cuda_graphs=false",
            )
        assert isinstance(config.train.batch_size, int)  # engine/fit.py resolved it
        how = {"holds": self.holds, "parts": config.train.accumulate, "first_step": first_batch}
        return _open_for_rank(config, opened, device, rank, batch_size=config.train.batch_size, **how)

    def open_validation(
        self, config: Config, opened: OpenSplit, device: torch.device, rank: Rank = SINGLE_RANK
    ) -> Loader:
        """Open the loader of a rank's share of the validation images, each once: a cache would be for nothing."""
        self.check_classes(config, opened.dataset)
        batch_size = choose_eval_batch(config)
        parts = batch_size if config.eval.drop_rest else 1
        if len(opened.source) < parts:
            raise DataError(
                f"{len(opened.source)} validation images do not fill a batch of {batch_size} (eval.drop_rest)",
                hint="--set eval.drop_rest=false judges all",
            )
        how = {"holds": self.eval_holds, "parts": parts, "train": False}
        config = change_section(config, "loader", cache="off")
        return _open_for_rank(config, opened, device, rank, batch_size=batch_size, **how)


def choose_eval_batch(config: Config) -> int:
    requested, trained = config.eval.batch_size, config.train.batch_size
    if requested != "auto":
        return requested
    return MIN_EVAL_BATCH if trained == "auto" else max(MIN_EVAL_BATCH, trained)


def _open_for_rank(config: Config, opened: OpenSplit, device: torch.device, rank: Rank, **how: Any) -> Loader:
    classes, pinned = config.model.num_classes, device.type == "cuda"
    how = {"num_classes": classes, "pinned": pinned, "storage": opened.dataset.storage, **how}
    return Loader(opened.source, config, LoaderOptions(rank=rank, **how))


class Normalisation(NamedTuple):
    """(pixel / scale - mean) / deviation, per channel of RGB."""

    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]
    scale: float = 1.0


MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MEAN_255, DEVIATION_255 = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
TENSORFLOW_MEAN = (123.68, 116.78, 103.94)
NORMALISATIONS = {
    "standard": Normalisation(MEAN_255, DEVIATION_255),  # MLPerf's ResNet-50 in MXNet, also DALI's usual
    "standard_unit": Normalisation(MEAN, DEVIATION, 255.0),  # torchvision: ToTensor, then Normalize
    "mean": Normalisation(TENSORFLOW_MEAN, (1.0, 1.0, 1.0)),  # TensorFlow's official models: no division
    "mean_255": Normalisation(TENSORFLOW_MEAN, (255.0, 255.0, 255.0)),  # WMLCE's tf.data path
    "wmlce_dali": Normalisation((121.0, 115.0, 100.0), (70.0, 68.0, 71.0)),  # WMLCE's DALI path
}


class Normaliser:
    """A normalisation whose numbers lie on the device."""

    def __init__(self, name: str, device: torch.device, *, channels_last: bool = True) -> None:
        chosen = NORMALISATIONS[name]
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        self._scale = chosen.scale
        self._mean = torch.tensor(chosen.mean, device=device)
        self._deviation = torch.tensor(chosen.deviation, device=device) if set(chosen.deviation) != {1.0} else None

    def __call__(self, images: Tensor) -> Tensor:
        """uint8 (batch, height, width, 3) to float32 (batch, 3, height, width), in the memory format asked for."""
        pixels = images.float()
        if self._scale != 1.0:
            pixels.div_(self._scale)
        pixels.sub_(self._mean)
        if self._deviation is not None:
            pixels.div_(self._deviation)
        return pixels.permute(0, 3, 1, 2).contiguous(memory_format=self._format)


def build_input(config: Config, device: torch.device) -> Normaliser:
    return Normaliser(config.augment.normalise, device, channels_last=config.engine.channels_last)
