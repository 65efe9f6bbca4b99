"""Image classification: uint8 NHWC images and integer labels in, cross-entropy out."""

from collections.abc import Iterable, Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainstone.config.schema import Config
from trainstone.data.pipeline.input_pipeline import IGNORED
from trainstone.data.splits import OpenSplit
from trainstone.errors import DataError
from trainstone.machine.ranks import SINGLE_RANK, Rank
from trainstone.models.losses import cross_entropy, draw_mix, mix_images, mix_loss
from trainstone.models.resnet import build_resnet
from trainstone.workloads import workload


def synthetic_batches(config: Config, batch_size: int) -> list[workload.Batch]:
    """Draw random images and labels; the same for the same seed on every machine."""
    generator = torch.Generator().manual_seed(config.seed)
    shape = (batch_size, config.data.image_size, config.data.image_size, 3)
    return [
        (
            torch.randint(256, shape, dtype=torch.uint8, generator=generator),
            torch.randint(config.model.num_classes, (batch_size,), generator=generator),
        )
        for _ in range(config.data.num_synthetic_batches)
    ]


def mix(
    config: Config, batches: Iterable[workload.Batch], rank: Rank = SINGLE_RANK, first_batch: int = 0
) -> Iterator[workload.Batch]:
    alpha = config.train.mixup
    if not alpha:
        yield from batches
        return
    for number, batch in enumerate(batches, first_batch):
        drawn = draw_mix(len(batch[1]), alpha, seed=config.seed, step=number, rank_number=rank.number)
        yield (*batch, *drawn)


def build_loss(config: Config, device: torch.device) -> workload.Loss:
    normalise = workload.build_input(config, device)

    def smoothed_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
        train = config.train
        return cross_entropy(logits, labels, smoothing=train.label_smoothing, over=train.smoothing_classes)

    def loss(model: nn.Module, batch: workload.Batch) -> Tensor:
        if len(batch) == 2:
            images, labels = batch
            return smoothed_cross_entropy(model(normalise(images)).float(), labels)
        images, labels, permutation, share = batch
        logits = model(mix_images(normalise(images), permutation, share)).float()
        return mix_loss(smoothed_cross_entropy, logits, labels, permutation, share)

    return loss


def build_evaluator(config: Config, device: torch.device) -> workload.Evaluator:
    """Return a function from a batch to one row of sums: top-1 correct, top-5 correct, loss, images."""
    normalise = workload.build_input(config, device)

    def evaluate(model: nn.Module, batch: workload.Batch) -> Tensor:
        images, labels = batch
        logits = model(normalise(images)).float()
        counted = labels != IGNORED
        predicted = logits.topk(min(5, logits.shape[1])).indices
        # Logits with NaN or infinity count as wrong.
        correct = (predicted == labels[:, None]) & logits.isfinite().all(1, keepdim=True)
        losses = F.cross_entropy(logits, labels.clamp(min=0), reduction="none") * counted
        sums = correct[:, 0].sum(), correct.any(1).sum(), losses.sum(), counted.sum()
        return torch.stack([one.float() for one in sums])[None]

    return evaluate


def build_forward(config: Config, device: torch.device) -> workload.Forward:
    normalise = workload.build_input(config, device)
    return lambda model, images: model(normalise(images)).float()


def build_predictor(config: Config, device: torch.device) -> workload.Predictor:
    forward = build_forward(config, device)

    def predict(model: nn.Module, images: Tensor) -> list[list[workload.Prediction]]:
        probabilities, labels = forward(model, images).softmax(1).sort(dim=1, descending=True)
        return [
            [workload.Prediction(label, probability) for label, probability in zip(*image, strict=True)]
            for image in zip(labels.tolist(), probabilities.tolist(), strict=True)
        ]

    return predict


def finish_eval(config: Config, _opened: OpenSplit, rows: Tensor) -> workload.EvalScores:
    """Return top-1 and top-5 accuracy and the mean loss."""
    # A batch's counts are exact in float32, but their sum over many batches is not.
    top1, top5, loss, images = rows.double().sum(0).tolist()
    if not images:
        raise DataError("no validation image could be read", hint=f"trainstone data verify {config.data.root}")
    return workload.EvalScores({"top1": top1 / images, "top5": top5 / images, "loss": loss / images}, int(images))


def count_classes(weights: Mapping[str, Tensor]) -> int | None:
    last = weights.get("fc.bias")
    return len(last) if last is not None and last.dim() == 1 else None


CLASSIFY = workload.Workload(
    name="classify",
    title=lambda config: f"ResNet-{config.model.depth}",
    build_model=lambda config: build_resnet(**config.model.model_dump(exclude={"name", "pretrained"})),
    synthetic_batches=synthetic_batches,
    target_kind="class",
    eval_target_kind="class",
    mix=mix,
    build_loss=build_loss,
    build_evaluator=build_evaluator,
    build_forward=build_forward,
    build_predictor=build_predictor,
    finish_eval=finish_eval,
    min_classes=2,
    count_classes=count_classes,
    find_trunk=lambda model: model,
    list_warnings=lambda _config: [],
)
