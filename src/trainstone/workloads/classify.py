"""Image classification: uint8 NHWC pictures and integer labels in, cross-entropy out."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainstone.config.schema import Config
from trainstone.data.feeding.feed import IGNORED
from trainstone.data.loader import Loader, open_loader
from trainstone.data.sample import DataSet
from trainstone.data.splits import OpenSplit
from trainstone.errors import DataError
from trainstone.machine.ranks import ALONE, Rank
from trainstone.models.losses import cross_entropy
from trainstone.models.mixing import draw_mix, mix_images, mix_loss
from trainstone.models.pixels import Normaliser
from trainstone.models.resnet import build_resnet
from trainstone.workloads.mlperf_resnet import RESNET
from trainstone.workloads.workload import Batch, Judge, Loss, Scores, Workload, choose_eval_batch


def build_model(config: Config) -> nn.Module:
    """Return the network."""
    return build_resnet(
        config.model.depth,
        num_classes=config.model.num_classes,
        conv_init=config.model.conv_init,
        fc_init=config.model.fc_init,
        zero_gamma=config.model.zero_gamma,
        pool_padding=config.model.pool_padding,
        stem=config.model.stem,
        width=config.model.width,
        norm=config.model.norm,
    )


def synthetic_batches(config: Config, batch_size: int) -> list[Batch]:
    """Random pictures and labels; the same for the same seed on every machine."""
    generator = torch.Generator().manual_seed(config.seed)
    shape = (batch_size, config.data.image_size, config.data.image_size, 3)
    return [
        (
            torch.randint(256, shape, dtype=torch.uint8, generator=generator),
            torch.randint(config.model.num_classes, (batch_size,), generator=generator),
        )
        for _ in range(config.data.num_synthetic_batches)
    ]


def open_training(
    config: Config, opened: OpenSplit, device: torch.device, rank: Rank = ALONE, first_batch: int = 0
) -> Loader:
    """Feed training pictures as the recipe asks."""
    assert isinstance(config.train.batch_size, int)  # train/fit.py resolved it
    how = {"loader": config.loader, "batch_size": config.train.batch_size, "first_step": first_batch}
    how["parts"] = config.train.accumulate
    return open_rank_loader(config, opened, device, rank, **how)


def open_validation(config: Config, opened: OpenSplit, device: torch.device, rank: Rank = ALONE) -> Loader:
    """Feed this rank's share of the validation pictures, each once: a cache would be for nothing."""
    loader = config.loader.model_copy(update={"cache": "off"})
    batch_size = choose_eval_batch(config)
    parts = batch_size if config.eval.drop_rest else 1
    how = {"loader": loader, "batch_size": batch_size, "train": False, "parts": parts}
    return open_rank_loader(config, opened, device, rank, **how)


def open_rank_loader(config: Config, opened: OpenSplit, device: torch.device, rank: Rank, **how: Any) -> Loader:
    """Open a rank's loader of a data set that this network can tell apart."""
    dataset, _, source = opened
    check_classes(config, dataset)
    return open_loader(
        source,
        augment=config.augment,
        image_size=config.data.image_size,
        seed=config.seed,
        rank=rank,
        num_classes=config.model.num_classes,
        pinned=device.type == "cuda",
        storage=dataset.storage,
        **how,
    )


def mix(config: Config, batches: Iterable[Batch], rank: Rank = ALONE, first_batch: int = 0) -> Iterator[Batch]:
    """Add what mixup draws for each batch: who is mixed with whom, and by how much."""
    alpha = config.train.mixup
    if not alpha:
        yield from batches
        return
    for number, batch in enumerate(batches, first_batch):
        drawn = draw_mix(len(batch[1]), alpha, seed=config.seed, step=number, rank_number=rank.number)
        yield (*batch, *drawn)


def check_classes(config: Config, dataset: DataSet) -> None:
    """Refuse a data set that this network cannot tell apart, before anything is measured."""
    if dataset.kind != "classify":
        raise DataError(
            f"{config.data.root} has boxes, not a class for each picture",
            hint="this recipe classifies: give another set",
        )
    if config.model.num_classes != "auto" and len(dataset.classes) > config.model.num_classes:
        raise DataError(
            f"{config.data.root} has {len(dataset.classes)} classes, the network {config.model.num_classes}",
            hint=f"--set model.num_classes={len(dataset.classes)}",
        )


def build_loss(config: Config, device: torch.device) -> Loss:
    """Return the loss function: normalise on the device, forward, cross-entropy in fp32."""
    see = build_input(config, device)

    def measure(logits: Tensor, labels: Tensor) -> Tensor:
        train = config.train
        return cross_entropy(logits, labels, smoothing=train.label_smoothing, over=train.smoothing_over)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        if len(batch) == 2:
            images, labels = batch
            return measure(model(see(images)).float(), labels)
        images, labels, permutation, share = batch
        logits = model(mix_images(see(images), permutation, share)).float()
        return mix_loss(measure, logits, labels, permutation, share)

    return loss


def build_judge(config: Config, device: torch.device) -> Judge:
    """Return what counts a validation batch: first guesses and first five that are right, loss, pictures."""
    see = build_input(config, device)

    def judge(model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        logits = model(see(images)).float()
        counted = labels != IGNORED
        guesses = logits.topk(min(5, logits.shape[1])).indices
        # A network that gives no numbers guesses nothing.
        right = (guesses == labels[:, None]) & logits.isfinite().all(1, keepdim=True)
        losses = F.cross_entropy(logits, labels.clamp(min=0), reduction="none") * counted
        sums = right[:, 0].sum(), right.any(1).sum(), losses.sum(), counted.sum()
        return torch.stack([one.float() for one in sums])

    return judge


def build_scores(config: Config, device: torch.device) -> Scores:
    """Return what computes the scores of classes (before softmax, fp32) of a batch of pictures."""
    see = build_input(config, device)
    return lambda model, images: model(see(images)).float()


def finish_eval(sums: Tensor) -> tuple[dict[str, float], int]:
    """Shares of pictures, and the loss of one."""
    top1, top5, loss, images = sums.tolist()
    if not images:
        raise DataError("no validation picture could be judged", hint="trainstone data verify names what is wrong")
    return {"top1": top1 / images, "top5": top5 / images, "loss": loss / images}, int(images)


def build_input(config: Config, device: torch.device) -> Normaliser:
    """Return what turns uint8 pictures into the network's input, in the memory format of its weights."""
    return Normaliser(config.augment.normalise, device, channels_last=config.engine.channels_last)


def empty_batch(config: Config, batch_size: int) -> Batch:
    """A batch's shapes, without content."""
    size = config.data.image_size
    return torch.empty(batch_size, size, size, 3, dtype=torch.uint8), torch.empty(batch_size, dtype=torch.int64)


CLASSIFY = Workload(
    name="classify",
    title=lambda config: f"ResNet-{config.model.depth}",
    build_model=build_model,
    synthetic_batches=synthetic_batches,
    check_classes=check_classes,
    open_training=open_training,
    open_validation=open_validation,
    mix=mix,
    build_loss=build_loss,
    build_judge=build_judge,
    build_scores=build_scores,
    finish_eval=finish_eval,
    empty_batch=empty_batch,
    mllog=RESNET,
)
