"""Tests of ResNet and SSD: sizes, names, initialisations, pooling and memory formats against published values."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trainstone.measure.flops import count_work
from trainstone.models.boxes import default_boxes
from trainstone.models.resnet import TRUNCATED_NORMAL_STD, average_pool, build_resnet, max_pool
from trainstone.models.ssd import build_ssd

CONV_INITS = ("normal_fan_in", "truncated_fan_in", "normal_fan_out", "truncated_fan_out")
# Published with torchvision's weights (docs: torchvision/models.html).
PARAMETERS = {18: 11_689_512, 34: 21_797_672, 50: 25_557_032, 101: 44_549_160, 152: 60_192_808}


def build_on_meta(depth: int, **options) -> nn.Module:
    with torch.device("meta"):
        return build_resnet(depth, **options)


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_build_resnet_has_published_parameter_counts_and_shapes():
    assert {depth: num_parameters(build_on_meta(depth)) for depth in PARAMETERS} == PARAMETERS
    model = build_on_meta(50, num_classes=1001)
    assert num_parameters(model) == PARAMETERS[50] + 2048 + 1
    assert len(list(model.parameters())) == 161
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 53
    assert {(norm.eps, norm.momentum) for norm in norms} == {(1e-5, 0.1)}
    block = model.layer2[0]  # v1.5: the stride is on the 3x3 convolution
    assert [block.conv1.stride, block.conv2.stride, block.conv3.stride] == [(1, 1), (2, 2), (1, 1)]
    assert block.conv2.kernel_size == (3, 3)
    assert model(torch.empty(2, 3, 64, 48, device="meta")).shape == (2, 1001)


def test_build_resnet_state_names_equal_torchvision():
    norm_names = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    expected = {"conv1.weight", "fc.weight", "fc.bias"} | {f"bn1.{name}" for name in norm_names}
    for stage, units in enumerate((3, 4, 6, 3), start=1):
        for unit in range(units):
            pairs = [("conv1", "bn1"), ("conv2", "bn2"), ("conv3", "bn3")]
            pairs += [("downsample.0", "downsample.1")] if unit == 0 else []
            for conv, norm in pairs:
                expected |= {f"layer{stage}.{unit}.{conv}.weight"}
                expected |= {f"layer{stage}.{unit}.{norm}.{name}" for name in norm_names}
    assert set(build_on_meta(50).state_dict()) == expected


@pytest.mark.parametrize("conv_init", CONV_INITS)
def test_build_resnet_convolutions_have_initial_deviation(conv_init):
    torch.manual_seed(0)
    for module in build_resnet(18, conv_init=conv_init).modules():
        if not isinstance(module, nn.Conv2d):
            continue
        channels = module.in_channels if conv_init.endswith("fan_in") else module.out_channels
        std = math.sqrt(2 / (channels * module.kernel_size[0] ** 2))
        assert module.weight.std().item() == pytest.approx(std, rel=4 / math.sqrt(2 * module.weight.numel()))
        furthest = module.weight.abs().max().item() / (std / TRUNCATED_NORMAL_STD)
        assert (furthest <= 2 * (1 + 1e-6)) == conv_init.startswith("truncated")


@pytest.mark.parametrize(
    ("fc_init", "std"),
    [
        ("normal_001", 0.01),
        ("truncated_fan_out", math.sqrt(2 / 1000)),
        ("torch_default", 1 / math.sqrt(3 * 512)),  # uniform within 1 / sqrt(fan_in)
    ],
)
def test_build_resnet_classifier_has_initial_deviation(fc_init, std):
    torch.manual_seed(0)
    fc = build_resnet(18, fc_init=fc_init).fc
    assert fc.weight.std().item() == pytest.approx(std, rel=0.005)
    assert bool(fc.bias.any()) == (fc_init == "torch_default")
    if fc_init == "truncated_fan_out":
        assert fc.weight.abs().max().item() <= 2 * std / TRUNCATED_NORMAL_STD * (1 + 1e-6)


@pytest.mark.parametrize(("depth", "last", "zero"), [(18, "bn2", True), (50, "bn3", True), (18, "none", False)])
def test_build_resnet_zero_gamma_zeroes_last_norm_of_each_block(depth, last, zero):
    model = build_resnet(depth, zero_gamma=zero)
    for name, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            expected = 0.0 if name.startswith("layer") and name.endswith(last) else 1.0
            assert torch.equal(module.weight, torch.full_like(module.weight, expected)), name
            assert not module.bias.any()


def test_build_resnet_on_meta_draws_no_random_numbers():
    before = torch.get_rng_state()
    model = build_on_meta(152, conv_init="truncated_fan_in", fc_init="truncated_fan_out", zero_gamma=True)
    assert torch.equal(before, torch.get_rng_state())
    assert all(tensor.is_meta for tensor in model.state_dict().values())


def pool_same_by_padding(x: torch.Tensor) -> torch.Tensor:
    """Pad with -inf by TensorFlow's published SAME rule, then pool without padding."""
    padding: list[int] = []
    for size in (x.shape[-1], x.shape[-2]):
        total = max((math.ceil(size / 2) - 1) * 2 + 3 - size, 0)
        padding += [total // 2, total - total // 2]
    return F.max_pool2d(F.pad(x, padding, value=-math.inf), 3, stride=2)


@pytest.mark.parametrize(("height", "width"), [(8, 8), (9, 9), (8, 9), (7, 10), (2, 3), (112, 112)])
def test_max_pool_same_equals_explicit_padding(height, width):
    x = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(0)) - 5
    assert torch.equal(max_pool(x, "same"), pool_same_by_padding(x))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_average_pool_equals_mean_and_keeps_gradient_format(memory_format):
    x = torch.randn(2, 5, 3, 4).to(memory_format=memory_format).requires_grad_()
    pooled = average_pool(x)
    assert torch.allclose(pooled, F.adaptive_avg_pool2d(x, 1).flatten(1), atol=1e-6)
    (gradient,) = torch.autograd.grad(pooled.square().sum(), x)
    assert gradient.is_contiguous(memory_format=memory_format)


@pytest.mark.parametrize(("depth", "pool_padding"), [(18, "symmetric"), (50, "same")])
def test_resnet_keeps_channels_last_without_copies(depth, pool_padding):
    model = build_resnet(depth, num_classes=10, pool_padding=pool_padding).to(memory_format=torch.channels_last)
    seen = {"forward": 0, "backward": 0}

    def check(tensor: torch.Tensor, direction: str) -> None:
        assert tensor.is_contiguous(memory_format=torch.channels_last), direction
        seen[direction] += 1

    def watch(module: nn.Module, inputs: object, output: torch.Tensor) -> None:
        if output.dim() == 4:
            check(output, "forward")
            output.register_hook(lambda gradient: check(gradient, "backward"))

    for module in model.modules():
        module.register_forward_hook(watch)
    images = torch.randn(2, 3, 64, 64).to(memory_format=torch.channels_last)
    work = count_work(lambda: model(images).square().mean())
    assert seen["forward"] == seen["backward"] > depth
    kernels = [parameter for parameter in model.parameters() if parameter.dim() == 4]
    assert all(kernel.grad.is_contiguous(memory_format=torch.channels_last) for kernel in kernels)
    copies = {"aten.copy_.default", "aten.clone.default", "aten._to_copy.default"}
    assert copies.isdisjoint(op.name for op in work.ops)


# Published ResNet-34 without its classifier (512 x 1000 + 1000) and its fourth stage.
TRUNK = 21_797_672 - 513_000 - (256 * 512 * 9 + 5 * 512 * 512 * 9 + 256 * 512 + 7 * 2 * 512)
# 1x1 and 3x3 of each extra layer, with biases.
EXTRAS = (
    (256 * 256 + 256) + (9 * 256 * 512 + 512),
    (512 * 256 + 256) + (9 * 256 * 512 + 512),
    (512 * 128 + 128) + (9 * 128 * 256 + 256),
    (256 * 128 + 128) + (9 * 128 * 256 + 256),
    (256 * 128 + 128) + (9 * 128 * 256 + 256),
)
CHANNELS, BOXES, CELLS = (256, 512, 512, 256, 256, 256), (4, 6, 6, 6, 4, 4), (38, 19, 10, 5, 3, 1)
HEADS = tuple((9 * channels + 1) * number * 85 for channels, number in zip(CHANNELS, BOXES, strict=True))


def build_ssd_on_meta(depth: int = 34, **options) -> nn.Module:
    with torch.device("meta"):
        return build_ssd(depth, **{"num_classes": 80, "image_size": 300} | options)


def test_build_ssd_has_original_parameters_and_map_shapes():
    model = build_ssd_on_meta()
    assert num_parameters(model.backbone) == TRUNK == 8_170_304
    assert tuple(map(num_parameters, model.extras)) == EXTRAS
    assert tuple(map(num_parameters, model.heads)) == HEADS
    assert num_parameters(model) == 19_972_534
    seen = {}
    for name, module in model.named_modules():
        if name.startswith(("backbone.layer", "extras.", "heads.")) and name.count(".") == 1:
            module.register_forward_hook(lambda _, inputs, output, name=name: seen.update({name: tuple(output.shape)}))
    scores, offsets = model(torch.empty(2, 3, 300, 300, device="meta"))
    stages = [seen[f"backbone.layer{stage}"] for stage in (1, 2, 3)]
    assert stages == [(2, 64, 75, 75), (2, 128, 38, 38), (2, 256, 38, 38)]
    for number, (channels, boxes, cells) in enumerate(zip(CHANNELS, BOXES, CELLS, strict=True)):
        assert seen[f"heads.{number}"] == (2, boxes * 85, cells, cells)
        if number:
            assert seen[f"extras.{number - 1}"] == (2, channels, cells, cells)
    assert scores.shape == (2, 8732, 81)
    assert offsets.shape == (2, 8732, 4)


@pytest.mark.parametrize("image_size", [64, 91, 96, 112, 128, 160, 300, 321, 512])
def test_ssd_outputs_match_number_of_default_boxes(image_size):
    model = build_ssd_on_meta(18, num_classes=3, image_size=image_size, width=16)
    scores, offsets = model(torch.empty(1, 3, image_size, image_size, device="meta"))
    number = len(default_boxes(image_size))
    assert (scores.shape, offsets.shape) == ((1, number, 4), (1, number, 4))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_ssd_outputs_are_in_order_of_default_boxes(memory_format):
    """The heads' outputs are replaced by numbers that encode row, column and channel."""
    model = build_ssd(18, num_classes=2, image_size=64, width=16)
    cells, boxes = (8, 4, 2, 1), (4, 6, 4, 4)

    def encode_position(level: int) -> torch.Tensor:
        size, channels = cells[level], boxes[level] * 7
        row, column = torch.arange(size).view(-1, 1) * 1e3, torch.arange(size).view(1, -1) * 1e4
        return (level * 1e5 + column + row + torch.arange(channels).view(1, -1, 1, 1)).to(memory_format=memory_format)

    for level, head in enumerate(model.heads):
        head.register_forward_hook(lambda _, inputs, output, level=level: encode_position(level))
    scores, offsets = model(torch.zeros(1, 3, 64, 64))
    expected_scores, expected_offsets = [], []
    for level, (size, number) in enumerate(zip(cells, boxes, strict=True)):
        for row in range(size):
            for column in range(size):
                place = level * 1e5 + column * 1e4 + row * 1e3
                after = place + 3 * number
                expected_scores += [[place + 3 * box + output for output in range(3)] for box in range(number)]
                expected_offsets += [[after + 4 * box + side for side in range(4)] for box in range(number)]
    assert scores[0].tolist() == expected_scores
    assert offsets[0].tolist() == expected_offsets


def test_build_ssd_initial_weights_equal_original():
    torch.manual_seed(0)
    model = build_ssd(18, num_classes=80, image_size=300)
    extras = [layer for extra in model.extras for layer in extra if isinstance(layer, nn.Conv2d)]
    layers = [(layer, [layer.out_channels]) for layer in extras]
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


def test_ssd_norms_stay_fp32_under_autocast():
    model = build_ssd(18, num_classes=3, image_size=64, width=16).to(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        scores, offsets = model(torch.randn(2, 3, 64, 64).to(memory_format=torch.channels_last))
    assert scores.dtype == offsets.dtype == torch.bfloat16
    (scores.float().square().mean() + offsets.float().square().mean()).backward()
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32, torch.int64}
    assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.backbone.bn1.running_mean.abs().sum() > 0
