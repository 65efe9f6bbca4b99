"""SSD on a ResNet-18 or -34; with 300 pixels it is MLPerf's SSD300.

It consists of the ResNet up to its third stage (without that stage's stride), extra layers down to a single cell, and
one convolution per feature map that predicts classes and offsets of its boxes. The number of extra layers follows from
the levels in models/boxes.py; all widths grow with `width`.
"""

import math

import torch
from torch import Tensor, nn

from trainstone.models.boxes import Level, list_levels
from trainstone.models.resnet import build_trunk

WIDE_LAYERS = 2  # the first extra layers have 8 times the width, the others 4 times


class Ssd(nn.Module):
    """Scores (batch, boxes, classes + 1), logits with the background first, and offsets (batch, boxes, 4)."""

    def __init__(self, depth: int, num_classes: int, levels: tuple[Level, ...], width: int, norm: str) -> None:
        super().__init__()
        self.num_outputs = num_classes + 1
        self.boxes_per_cell = [level.boxes_per_cell for level in levels]
        self.backbone = build_trunk(depth, width=width, norm=norm, last_stride=1)
        channels = [4 * width] + [(8 if number < WIDE_LAYERS else 4) * width for number in range(len(levels) - 1)]
        self.extras = nn.ModuleList(
            _shrink(before, after, level.padded)
            for before, after, level in zip(channels, channels[1:], levels[1:], strict=False)
        )
        self.heads = nn.ModuleList(
            nn.Conv2d(size, number * (self.num_outputs + 4), 3, padding=1)
            for size, number in zip(channels, self.boxes_per_cell, strict=True)
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self.backbone(images)
        maps = [self._read(x, 0)]
        for number, extra in enumerate(self.extras, start=1):
            x = extra(x)
            maps.append(self._read(x, number))
        return torch.cat([scores for scores, _ in maps], dim=1), torch.cat([offsets for _, offsets in maps], dim=1)

    def _read(self, x: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """Return the scores and offsets of one map; the head's channels are all scores, then all offsets."""
        output = self.heads[number](x).permute(0, 2, 3, 1)  # no copy with channels last
        num_scores = self.boxes_per_cell[number] * self.num_outputs
        scores = output[..., :num_scores].reshape(len(x), -1, self.num_outputs)
        return scores, output[..., num_scores:].reshape(len(x), -1, 4)


def _shrink(in_channels: int, out_channels: int, padded: bool) -> nn.Sequential:
    narrow = out_channels // 2
    stride, padding = (2, 1) if padded else (1, 0)
    return nn.Sequential(
        nn.Conv2d(in_channels, narrow, 1),
        nn.ReLU(inplace=True),
        nn.Conv2d(narrow, out_channels, 3, stride=stride, padding=padding),
        nn.ReLU(inplace=True),
    )


def _initialise(model: Ssd) -> None:
    """Draw Xavier uniform weights, separately for scores and offsets, and uniform biases within 1 / sqrt(fan in)."""
    for extra in model.extras:
        for layer in extra:
            if isinstance(layer, nn.Conv2d):
                _draw(layer, layer.out_channels)
    for head, number in zip(model.heads, model.boxes_per_cell, strict=True):
        _draw(head, number * model.num_outputs, number * 4)


@torch.no_grad()
def _draw(layer: nn.Conv2d, *parts: int) -> None:
    """Initialise a convolution whose output channels consist of `parts`, each like a separate layer."""
    pixels = layer.kernel_size[0] * layer.kernel_size[1]
    for weight in layer.weight.split(parts):
        limit = math.sqrt(6 / (pixels * (layer.in_channels + len(weight))))
        weight.uniform_(-limit, limit)
    limit = 1 / math.sqrt(pixels * layer.in_channels)
    layer.bias.uniform_(-limit, limit)


def build_ssd(depth: int, *, num_classes: int, image_size: int, width: int = 64, norm: str = "batch") -> nn.Module:
    """Build an SSD on torch's default device, from its default generator; `num_classes` is without the background.

    It accepts only images of `image_size`: its boxes are those of default_boxes(image_size), in the same order.
    """
    model = Ssd(depth, num_classes, list_levels(image_size), width, norm)
    if not model.heads[0].weight.is_meta:
        _initialise(model)
    return model
