"""SSD: shapes, parameters and initialisation of SSD300 against numbers worked out by hand; other sizes; memory."""

import math

import pytest
import torch
from torch import nn

from trainstone.models.boxes import default_boxes
from trainstone.models.ssd import build_ssd

# ResNet-34 as published, without its classifier (512 x 1000 + 1000) and its fourth stage.
TRUNK = 21_797_672 - 513_000 - (256 * 512 * 9 + 5 * 512 * 512 * 9 + 256 * 512 + 7 * 2 * 512)
# 1x1 and 3x3 of each further layer, with biases.
EXTRAS = (
    (256 * 256 + 256) + (9 * 256 * 512 + 512),
    (512 * 256 + 256) + (9 * 256 * 512 + 512),
    (512 * 128 + 128) + (9 * 128 * 256 + 256),
    (256 * 128 + 128) + (9 * 128 * 256 + 256),
    (256 * 128 + 128) + (9 * 128 * 256 + 256),
)
CHANNELS, BOXES, CELLS = (256, 512, 512, 256, 256, 256), (4, 6, 6, 6, 4, 4), (38, 19, 10, 5, 3, 1)
HEADS = tuple((9 * channels + 1) * number * 85 for channels, number in zip(CHANNELS, BOXES, strict=True))


def build_on_meta(depth: int = 34, **options) -> nn.Module:
    with torch.device("meta"):
        return build_ssd(depth, **{"num_classes": 80, "image_size": 300} | options)


def num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_every_part_has_as_many_parameters_as_worked_out_by_hand():
    model = build_on_meta()
    assert num_parameters(model.backbone) == TRUNK == 8_170_304
    assert tuple(map(num_parameters, model.extras)) == EXTRAS
    assert tuple(map(num_parameters, model.heads)) == HEADS
    assert num_parameters(model) == 19_972_534


def test_every_map_has_the_shape_of_the_original():
    model = build_on_meta()
    seen = {}
    for name, module in model.named_modules():
        if name.startswith(("backbone.layer", "extras.", "heads.")) and name.count(".") == 1:
            module.register_forward_hook(lambda _, inputs, output, name=name: seen.update({name: tuple(output.shape)}))
    scores, offsets = model(torch.empty(2, 3, 300, 300, device="meta"))
    assert [seen[f"backbone.layer{stage}"] for stage in (1, 2, 3)] == [
        (2, 64, 75, 75),
        (2, 128, 38, 38),
        (2, 256, 38, 38),
    ]
    for number, (channels, boxes, cells) in enumerate(zip(CHANNELS, BOXES, CELLS, strict=True)):
        assert seen[f"heads.{number}"] == (2, boxes * 85, cells, cells)
        if number:
            assert seen[f"extras.{number - 1}"] == (2, channels, cells, cells)
    assert scores.shape == (2, 8732, 81)
    assert offsets.shape == (2, 8732, 4)


@pytest.mark.parametrize("image_size", [64, 91, 96, 112, 128, 160, 300, 321, 512])
def test_every_size_has_as_many_outputs_as_default_boxes(image_size):
    model = build_on_meta(18, num_classes=3, image_size=image_size, width=16)
    scores, offsets = model(torch.empty(1, 3, image_size, image_size, device="meta"))
    number = len(default_boxes(image_size))
    assert (scores.shape, offsets.shape) == ((1, number, 4), (1, number, 4))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_scores_and_offsets_come_in_the_order_of_the_default_boxes(memory_format):
    """The heads' outputs are replaced by what tells row, column and channel."""
    model = build_ssd(18, num_classes=2, image_size=64, width=16)
    cells, boxes = (8, 4, 2, 1), (4, 6, 4, 4)

    def say_place(level: int) -> torch.Tensor:
        size, channels = cells[level], boxes[level] * 7
        row, column = torch.arange(size).view(-1, 1) * 1e3, torch.arange(size).view(1, -1) * 1e4
        return (level * 1e5 + column + row + torch.arange(channels).view(1, -1, 1, 1)).to(memory_format=memory_format)

    for level, head in enumerate(model.heads):
        head.register_forward_hook(lambda _, inputs, output, level=level: say_place(level))
    scores, offsets = model(torch.zeros(1, 3, 64, 64))
    expected_scores, expected_offsets = [], []
    for level, (size, number) in enumerate(zip(cells, boxes, strict=True)):
        for row in range(size):
            for column in range(size):
                place = level * 1e5 + column * 1e4 + row * 1e3
                expected_scores += [[place + 3 * box + output for output in range(3)] for box in range(number)]
                expected_offsets += [
                    [place + 3 * number + 4 * box + side for side in range(4)] for box in range(number)
                ]
    assert scores[0].tolist() == expected_scores
    assert offsets[0].tolist() == expected_offsets


def test_weights_are_drawn_as_the_originals():
    torch.manual_seed(0)
    model = build_ssd(18, num_classes=80, image_size=300)
    layers = [
        (layer, [layer.out_channels]) for extra in model.extras for layer in extra if isinstance(layer, nn.Conv2d)
    ]
    layers += [(head, [number * 81, number * 4]) for head, number in zip(model.heads, BOXES, strict=True)]
    for layer, parts in layers:
        pixels = layer.kernel_size[0] ** 2
        for weight in layer.weight.split(parts):
            limit = math.sqrt(6 / (pixels * (layer.in_channels + len(weight))))
            assert 0.99 * limit < weight.abs().max().item() <= limit * (1 + 1e-6)
            assert weight.std().item() == pytest.approx(limit / math.sqrt(3), rel=0.03)
        limit = 1 / math.sqrt(pixels * layer.in_channels)
        assert 0.9 * limit < layer.bias.abs().max().item() <= limit * (1 + 1e-6)
    stem = model.backbone.conv1.weight
    assert stem.std().item() == pytest.approx(math.sqrt(2 / (64 * 49)), rel=0.03)


def test_norms_stay_in_fp32_under_reduced_precision():
    model = build_ssd(18, num_classes=3, image_size=64, width=16).to(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        scores, offsets = model(torch.randn(2, 3, 64, 64).to(memory_format=torch.channels_last))
    assert scores.dtype == offsets.dtype == torch.bfloat16
    (scores.float().square().mean() + offsets.float().square().mean()).backward()
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32, torch.int64}
    assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.backbone.bn1.running_mean.abs().sum() > 0
