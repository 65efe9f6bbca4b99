"""Image classification: uint8 NHWC pictures and integer labels in, cross-entropy out."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainstone.config.schema import Config
from trainstone.models.resnet import build_resnet
from trainstone.workloads.workload import Batch, Loss, Workload

# Mean and standard deviation of ImageNet's pixels in 0..255, the usual ones.
PIXEL_MEAN = (123.675, 116.28, 103.53)
PIXEL_STD = (58.395, 57.12, 57.375)


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


def build_loss(config: Config, device: torch.device) -> Loss:
    """Return the loss function: normalise on the device, forward, cross-entropy in fp32."""
    smoothing = config.train.label_smoothing
    mean = torch.tensor(PIXEL_MEAN, device=device)
    std = torch.tensor(PIXEL_STD, device=device)
    memory_format = torch.channels_last if config.engine.channels_last else torch.contiguous_format

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        logits = model(normalise(images, mean, std).contiguous(memory_format=memory_format))
        return F.cross_entropy(logits.float(), labels, label_smoothing=smoothing)

    return loss


def normalise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """uint8 (batch, height, width, 3) to float32 (batch, 3, height, width); its bytes stay NHWC: channels-last."""
    return images.float().sub_(mean).div_(std).permute(0, 3, 1, 2)


def empty_batch(config: Config, batch_size: int) -> Batch:
    """A batch's shapes, without content."""
    size = config.data.image_size
    return torch.empty(batch_size, size, size, 3, dtype=torch.uint8), torch.empty(batch_size, dtype=torch.int64)


CLASSIFY = Workload(
    name="classify",
    title=lambda config: f"ResNet-{config.model.depth}",
    build_model=build_model,
    synthetic_batches=synthetic_batches,
    build_loss=build_loss,
    empty_batch=empty_batch,
)
