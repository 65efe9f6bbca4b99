"""Image classification: uint8 NHWC pictures and integer labels in, cross-entropy out."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainstone.config.schema import Config
from trainstone.data.loader import Loader, open_loader
from trainstone.data.sample import DataSet
from trainstone.data.splits import OpenSplit
from trainstone.errors import DataError
from trainstone.machine.ranks import read_rank
from trainstone.models.pixels import Normaliser
from trainstone.models.resnet import build_resnet
from trainstone.workloads.workload import Batch, Loss, Workload


def build_model(config: Config) -> nn.Module:
    """Return the network."""
    return build_resnet(
        config.model.depth,
        num_classes=config.model.num_classes,
        conv_init=config.model.conv_init,
        fc_init=config.model.fc_init,
        zero_gamma=config.model.zero_gamma,
        pool_padding=config.model.pool_padding,
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


def open_training(config: Config, opened: OpenSplit, device: torch.device, first_step: int = 0) -> Loader:
    """Feed training pictures as the recipe asks."""
    assert isinstance(config.train.batch_size, int)  # train/fit.py resolved it
    dataset, _, source = opened
    check_classes(config, dataset)
    return open_loader(
        source,
        augment=config.augment,
        loader=config.loader,
        image_size=config.data.image_size,
        batch_size=config.train.batch_size,
        seed=config.seed,
        rank=read_rank(),
        num_classes=config.model.num_classes,
        pinned=device.type == "cuda",
        first_step=first_step,
        storage=dataset.storage,
    )


def check_classes(config: Config, dataset: DataSet) -> None:
    """Refuse a data set that this network cannot tell apart, before anything is measured."""
    if dataset.kind != "classify":
        raise DataError(
            f"{config.data.root} has boxes, not a class for each picture",
            hint="this recipe classifies: give another set",
        )
    if len(dataset.classes) > config.model.num_classes:
        raise DataError(
            f"{config.data.root} has {len(dataset.classes)} classes, the network {config.model.num_classes}",
            hint=f"--set model.num_classes={len(dataset.classes)}",
        )


def build_loss(config: Config, device: torch.device) -> Loss:
    """Return the loss function: normalise on the device, forward, cross-entropy in fp32."""
    smoothing = config.train.label_smoothing
    normalise = Normaliser(config.augment.normalise, device)
    memory_format = torch.channels_last if config.engine.channels_last else torch.contiguous_format

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        logits = model(normalise(images).contiguous(memory_format=memory_format))
        return F.cross_entropy(logits.float(), labels, label_smoothing=smoothing)

    return loss


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
    build_loss=build_loss,
    empty_batch=empty_batch,
)
