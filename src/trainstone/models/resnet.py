"""ResNet-18/34/50/101/152 v1.5, with the initialisations and poolings of the benchmarks that trainstone replaces.

Module names equal torchvision's, so published weights load. The caller chooses device, dtype and memory format; the
loss casts the logits.
"""

import math
from collections.abc import Callable
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TRUNCATED_NORMAL_STD = 0.87962566103423978  # of N(0, 1) cut at +-2; TensorFlow and Keras divide by it
WITHIN_TWO = math.erf(math.sqrt(2.0))  # the share of N(0, 1) between -2 and 2

COUNTER = "num_batches_tracked"
Norm = Callable[[int], nn.Module]


NORMS: dict[str, Norm] = {
    "batch": partial(nn.BatchNorm2d, eps=1e-5, momentum=0.1),  # torch's sense: new = 0.9 * old + 0.1 * batch
    "group": lambda channels: nn.GroupNorm(math.gcd(32, channels), channels),
}


def _conv(in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=False)


def _shortcut(in_channels: int, out_channels: int, stride: int, norm: Norm) -> nn.Sequential | None:
    same = stride == 1 and in_channels == out_channels
    return None if same else nn.Sequential(_conv(in_channels, out_channels, 1, stride), norm(out_channels))


class BasicBlock(nn.Module):
    """3x3 (strided), 3x3, and the shortcut."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(in_channels, width, 3, stride), norm(width)
        self.conv2, self.bn2 = _conv(width, width, 3), norm(width)
        self.downsample = _shortcut(in_channels, width, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        # In place is safe here and below: neither BatchNorm nor a sum needs its output for backward.
        out = self.bn1(self.conv1(x)).relu_()
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return out.relu_()


class Bottleneck(nn.Module):
    """1x1, 3x3 (strided: this is v1.5), 1x1 to four times the width, and the shortcut."""

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        out_channels = width * self.expansion
        self.conv1, self.bn1 = _conv(in_channels, width, 1), norm(width)
        self.conv2, self.bn2 = _conv(width, width, 3, stride), norm(width)
        self.conv3, self.bn3 = _conv(width, out_channels, 1), norm(out_channels)
        self.downsample = _shortcut(in_channels, out_channels, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn1(self.conv1(x)).relu_()
        out = self.bn2(self.conv2(out)).relu_()
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return out.relu_()


BlockClass = type[BasicBlock] | type[Bottleneck]
_LAYOUTS: dict[int, tuple[BlockClass, tuple[int, int, int, int]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
    152: (Bottleneck, (3, 8, 36, 3)),
}
DEPTHS = tuple(_LAYOUTS)


def _stage(block: BlockClass, in_channels: int, width: int, stride: int, units: int, norm: Norm) -> nn.Sequential:
    rest = [block(width * block.expansion, width, 1, norm) for _ in range(units - 1)]
    return nn.Sequential(block(in_channels, width, stride, norm), *rest)


def max_pool(x: Tensor, padding: str) -> Tensor:
    """Max-pool 3x3 with stride 2; "same" pads like TensorFlow: only right and bottom of an even size."""
    if padding == "symmetric":
        return F.max_pool2d(x, 3, stride=2, padding=1)
    # ceil_mode lets the last window overlap the edge: SAME's one-sided padding without a padded copy.
    return F.max_pool2d(x, 3, stride=2, padding=(x.shape[-2] % 2, x.shape[-1] % 2), ceil_mode=True)


def average_pool(x: Tensor) -> Tensor:
    """Average (batch, channels, height, width) to (batch, channels); the gradient keeps the memory format of `x`."""
    # adaptive_avg_pool2d always returns an NCHW gradient: 3 times slower on a CPU (torch 2.13).
    if x.is_contiguous(memory_format=torch.channels_last):
        return x.permute(0, 2, 3, 1).mean((1, 2))
    return x.mean((2, 3))


class Trunk(nn.Module):
    """The stem and the first three stages of a ResNet, shared by the classifier and the SSD backbone."""

    def __init__(self, depth: int, pool_padding: str, stem: str, width: int, norm: Norm, last_stride: int = 2) -> None:
        super().__init__()
        block, units = _LAYOUTS[depth]
        self.pool_padding, self.stem = pool_padding, stem
        self.conv1, self.bn1 = _conv(3, width, 7 if stem == "imagenet" else 3, 2), norm(width)
        self.layer1 = _stage(block, width, width, 1, units[0], norm)
        self.layer2 = _stage(block, width * block.expansion, 2 * width, 2, units[1], norm)
        self.layer3 = _stage(block, 2 * width * block.expansion, 4 * width, last_stride, units[2], norm)

    def forward(self, images: Tensor) -> Tensor:  # (batch, 3, height, width) to (batch, channels, rows, columns)
        x = self.bn1(self.conv1(images)).relu_()
        if self.stem == "imagenet":
            x = max_pool(x, self.pool_padding)
        return self.layer3(self.layer2(self.layer1(x)))


class ResNet(Trunk):
    def __init__(self, depth: int, num_classes: int, pool_padding: str, stem: str, width: int, norm: Norm) -> None:
        super().__init__(depth, pool_padding, stem, width, norm)
        block, units = _LAYOUTS[depth]
        self.layer4 = _stage(block, 4 * width * block.expansion, 8 * width, 2, units[3], norm)
        self.fc = nn.Linear(8 * width * block.expansion, num_classes)

    def forward(self, images: Tensor) -> Tensor:  # (batch, 3, height, width) to (batch, num_classes)
        return self.fc(average_pool(self.layer4(super().forward(images))))


def _draw(weight: Tensor, init: str) -> None:
    """Fill `weight` from the distribution named `init`: variance 2 / fan, or 0.01 squared."""
    fan = weight.numel() // weight.shape[0 if init.endswith("fan_in") else 1]
    std = 0.01 if init == "normal_001" else math.sqrt(2.0 / fan)
    if init.startswith("truncated"):
        # By the inverse distribution function: nn.init.trunc_normal_ redraws values, which fails for a fake tensor.
        scale = math.sqrt(2.0) * std / TRUNCATED_NORMAL_STD
        with torch.no_grad():
            weight.uniform_(-WITHIN_TWO, WITHIN_TWO).erfinv_().mul_(scale)
    else:
        nn.init.normal_(weight, std=std)


def _initialise(model: Trunk, conv_init: str, zero_gamma: bool) -> None:
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            _draw(module.weight, conv_init)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()  # gamma 1, beta 0, running mean 0, running variance 1
    for block in model.modules():
        if zero_gamma and isinstance(block, BasicBlock | Bottleneck):
            nn.init.zeros_(block.bn3.weight if isinstance(block, Bottleneck) else block.bn2.weight)


def build_resnet(
    depth: int,
    *,
    num_classes: int = 1000,
    conv_init: str = "normal_fan_out",
    fc_init: str = "torch_default",
    zero_gamma: bool = False,
    pool_padding: str = "symmetric",
    stem: str = "imagenet",
    width: int = 64,
    norm: str = "batch",
) -> nn.Module:
    """Build a ResNet on torch's default device, with weights from torch's default generator (torch.manual_seed)."""
    model = ResNet(depth, num_classes, pool_padding, stem, width, NORMS[norm])
    if not model.fc.weight.is_meta:
        _initialise(model, conv_init, zero_gamma)
        if fc_init == "torch_default":
            model.fc.reset_parameters()
        else:
            _draw(model.fc.weight, fc_init)
            nn.init.zeros_(model.fc.bias)
    return model


def build_trunk(depth: int, *, width: int = 64, norm: str = "batch", last_stride: int = 2) -> Trunk:
    """Build a ResNet's stem and first three stages with build_resnet's defaults; `last_stride` is the third stage's."""
    trunk = Trunk(depth, "symmetric", "imagenet", width, NORMS[norm], last_stride)
    if not trunk.conv1.weight.is_meta:
        _initialise(trunk, "normal_fan_out", zero_gamma=False)
    return trunk


@cache
def list_names(depth: int, norm: str) -> frozenset[str]:
    with torch.device("meta"):
        return frozenset(n for n in build_resnet(depth, norm=norm).state_dict() if not n.endswith(COUNTER))
