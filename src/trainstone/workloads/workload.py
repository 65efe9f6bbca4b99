"""The Workload record: everything the training loop needs from a task. docs/architecture.md lists what a new
workload changes. Code that image workloads share is here, too: loaders, the class check, and input normalisation.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trainstone.config.schema import Config, change_section
from trainstone.data.loader import Loader, LoaderOptions
from trainstone.data.pipeline.input_pipeline import TargetKind
from trainstone.data.sample import DataSet, Edges
from trainstone.data.splits import OpenSplit
from trainstone.errors import ConfigError, DataError
from trainstone.machine.ranks import SINGLE_RANK, Rank
from trainstone.results.schema.quality import QualitySample, QualityTable
from trainstone.results.schema.run import Finding

Batch = tuple[Tensor, ...]
Loss = Callable[[nn.Module, Batch], Tensor]
Evaluator = Callable[[nn.Module, Batch], Tensor]
Forward = Callable[[nn.Module, Tensor], Any]
MIN_EVAL_BATCH = 32


class Prediction(NamedTuple):
    """A predicted class of an image, and the box of a detector."""

    label: int
    score: float
    edges: Edges | None = None


Predictor = Callable[[nn.Module, Tensor], list[list[Prediction]]]


class EvalScores(NamedTuple):
    metrics: dict[str, float]
    images: int
    tables: tuple[QualityTable, ...] = ()
    samples: tuple[tuple[QualitySample, bytes], ...] = ()
    """Example images for the report, each with its JPEG."""


@dataclass(frozen=True)
class Workload:
    """A record of functions, not a base class. If other code needs `if workload.name == ...`, a field is missing."""

    name: str
    title: Callable[[Config], str]
    """Display name, such as ResNet-50."""
    build_model: Callable[[Config], nn.Module]
    synthetic_batches: Callable[[Config, int], list[Batch]]
    """Host batches of the given size from the seed."""
    target_kind: TargetKind
    """Content of a training batch in addition to the pixels."""
    eval_target_kind: TargetKind
    """Content of a validation batch in addition to the pixels."""
    mix: Callable[[Config, Iterable[Batch], Rank, int], Iterator[Batch]]
    """Adds mixup's random draws to batches if it is on; the last argument is the number of the first batch."""
    build_loss: Callable[[Config, torch.device], Loss]
    """Returns the loss function of a model and a batch on the device; it normalises the images."""
    build_evaluator: Callable[[Config, torch.device], Evaluator]
    """Returns a function from a validation batch to rows of numbers, float32 on the device: (any number, columns)."""
    build_forward: Callable[[Config, torch.device], Forward]
    """Returns the forward pass for images on the device; it normalises the images."""
    build_predictor: Callable[[Config, torch.device], Predictor]
    """Returns a function that predicts the images of a batch on the device, the most likely class first."""
    finish_eval: Callable[[Config, OpenSplit, Tensor], EvalScores]
    """Computes the metrics from the rows of all batches and ranks (float32 on the host); may run during next steps."""
    min_classes: int
    """Smallest number of classes that can be trained."""
    count_classes: Callable[[Mapping[str, Tensor]], int | None]
    """Returns the number of classes of saved weights; None if unknown."""
    find_trunk: Callable[[nn.Module], nn.Module]
    """Returns the part of the network that model.pretrained initialises."""
    list_warnings: Callable[[Config], list[Finding]]
    """Returns warnings about training with this configuration."""

    def empty_batch(self, config: Config, batch_size: int) -> Batch:
        """Return an uninitialised batch of that size, for counting FLOPs."""
        return tuple(part.new_empty(batch_size, *part.shape[1:]) for part in self.synthetic_batches(config, 1)[0])

    def check_classes(self, config: Config, dataset: DataSet) -> None:
        if dataset.kind != self.name:
            raise DataError(
                f"wrong kind of data set: {config.data.root} is for {dataset.kind}; recipe {config.name} needs one for "
                f"{self.name}",
                hint="choose another data set, or a recipe from: trainstone recipes",
            )
        if config.model.num_classes != "auto" and len(dataset.classes) > config.model.num_classes:
            raise DataError(
                f"too many classes: {config.data.root} has {len(dataset.classes)}; model.num_classes = "
                f"{config.model.num_classes}",
                hint=f"--set model.num_classes={len(dataset.classes)}",
            )

    def open_training(
        self, config: Config, opened: OpenSplit, device: torch.device, rank: Rank = SINGLE_RANK, first_batch: int = 0
    ) -> Loader:
        self.check_classes(config, opened.dataset)
        if config.engine.cuda_graphs and self.target_kind == "boxes":
            raise ConfigError(
                "engine.cuda_graphs = true cannot be used: batches of real images have different numbers of boxes",
                hint="--set engine.cuda_graphs=false",
            )
        assert isinstance(config.train.batch_size, int)  # engine/fit.py resolved it
        loader_options = {"target_kind": self.target_kind, "parts": config.train.accumulate, "first_step": first_batch}
        return _open_for_rank(config, opened, device, rank, batch_size=config.train.batch_size, **loader_options)

    def open_validation(
        self, config: Config, opened: OpenSplit, device: torch.device, rank: Rank = SINGLE_RANK
    ) -> Loader:
        """Open the loader of a rank's share of the validation images; each is read once, so the cache is off."""
        self.check_classes(config, opened.dataset)
        batch_size = choose_eval_batch(config)
        parts = batch_size if config.eval.drop_last else 1
        if len(opened.source) < parts:
            raise DataError(
                f"too few validation images: {len(opened.source)}; eval.drop_last = true needs a full batch of "
                f"{batch_size}",
                hint="--set eval.drop_last=false",
            )
        loader_options = {"target_kind": self.eval_target_kind, "parts": parts, "train": False}
        config = change_section(config, "loader", cache="off")
        return _open_for_rank(config, opened, device, rank, batch_size=batch_size, **loader_options)


def choose_eval_batch(config: Config) -> int:
    requested, trained = config.eval.batch_size, config.train.batch_size
    if requested != "auto":
        return requested
    return MIN_EVAL_BATCH if trained == "auto" else max(MIN_EVAL_BATCH, trained)


def _open_for_rank(
    config: Config, opened: OpenSplit, device: torch.device, rank: Rank, **loader_options: Any
) -> Loader:
    classes, pinned = config.model.num_classes, device.type == "cuda"
    loader_options = {"num_classes": classes, "pinned": pinned, "storage": opened.dataset.storage, **loader_options}
    return Loader(opened.source, config, LoaderOptions(rank=rank, **loader_options))


class Normalisation(NamedTuple):
    """(pixel / scale - mean) / deviation, per RGB channel."""

    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]
    scale: float = 1.0


MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MEAN_255, DEVIATION_255 = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
TENSORFLOW_MEAN = (123.68, 116.78, 103.94)
NORMALISATIONS = {
    "standard": Normalisation(MEAN_255, DEVIATION_255),  # MLPerf's ResNet-50 in MXNet, also DALI's default
    "standard_unit": Normalisation(MEAN, DEVIATION, 255.0),  # torchvision: ToTensor, then Normalize
    "mean": Normalisation(TENSORFLOW_MEAN, (1.0, 1.0, 1.0)),  # TensorFlow's official models: no division
    "mean_255": Normalisation(TENSORFLOW_MEAN, (255.0, 255.0, 255.0)),  # WMLCE's tf.data path
    "wmlce_dali": Normalisation((121.0, 115.0, 100.0), (70.0, 68.0, 71.0)),  # WMLCE's DALI path
}


class Normaliser:
    """Normalises images, with mean and deviation on the device."""

    def __init__(self, name: str, device: torch.device, *, channels_last: bool = True) -> None:
        chosen = NORMALISATIONS[name]
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        self._scale = chosen.scale
        self._mean = torch.tensor(chosen.mean, device=device)
        self._deviation = torch.tensor(chosen.deviation, device=device) if set(chosen.deviation) != {1.0} else None

    def __call__(self, images: Tensor) -> Tensor:
        """Convert uint8 (batch, height, width, 3) to float32 (batch, 3, height, width) in the chosen memory format."""
        pixels = images.float()
        if self._scale != 1.0:
            pixels.div_(self._scale)
        pixels.sub_(self._mean)
        if self._deviation is not None:
            pixels.div_(self._deviation)
        return pixels.permute(0, 3, 1, 2).contiguous(memory_format=self._format)


def build_input(config: Config, device: torch.device) -> Normaliser:
    return Normaliser(config.augment.normalise, device, channels_last=config.engine.channels_last)
