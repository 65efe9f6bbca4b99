"""Which ResNet weights are of, told by their names and shapes alone; and the ResNet in weights of a detector."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trainstone.models.mxnet_names import HEADS
from trainstone.models.resnet import COUNTER, DEPTHS, build_resnet, list_names

BACKBONE = "backbone."
"""What a detector of ours calls its ResNet."""
ENDS = ("layer4.", "fc.")
"""Parts that a backbone may lack: a detector has other layers there."""


class Network(NamedTuple):
    """A ResNet."""

    depth: int
    width: int
    """Channels of the stem and the first stage."""
    norm: str
    ends: tuple[str, ...]
    """Which of ENDS are there."""

    def __str__(self) -> str:
        kind = "" if self.norm == "batch" else f" with {self.norm} norm"
        whole = {0: " up to layer3", 1: " without fc", 2: ""}[len(self.ends)]
        return f"ResNet-{self.depth}{kind}{whole}"


def take_backbone(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the ResNet in weights, also in those of a detector, and the names of the tensors outside it."""
    inner = {n.removeprefix(BACKBONE): t for n, t in weights.items() if n.startswith(BACKBONE)}
    if inner:
        return inner, tuple(name for name in weights if not name.startswith(BACKBONE))
    heads = tuple(name for name in weights if name.startswith(HEADS))
    return {name: tensor for name, tensor in weights.items() if name not in heads}, heads


def recognise(weights: Mapping[str, Tensor]) -> tuple[Network, nn.Module] | None:
    """Return the ResNet that most names are of, and that network on the meta device; None for other networks."""
    names = {name for name in weights if not name.endswith(COUNTER)}
    norm = "batch" if any(name.endswith(("running_mean", "running_var")) for name in names) else "group"
    last = any(name.startswith("fc.") for name in names)  # a classifier needs the stage before it
    ends = ENDS if last else tuple(end for end in ENDS if any(name.startswith(end) for name in names))
    absent = tuple(end for end in ENDS if end not in ends)
    listed = {depth: {n for n in list_names(depth, norm) if not n.startswith(absent)} for depth in DEPTHS}
    depth = min(DEPTHS, key=lambda depth: len(listed[depth] ^ names))
    if 2 * len(listed[depth] & names) < len(listed[depth]):
        return None
    first, last = weights.get("conv1.weight"), weights.get("fc.weight")
    width = first.shape[0] if first is not None and first.dim() == 4 and len(first) else 64
    num_classes = last.shape[0] if last is not None and last.dim() and len(last) else 1000
    stem = "small" if first is not None and first.shape[2:] == (3, 3) else "imagenet"
    with torch.device("meta"):
        skeleton = build_resnet(depth, num_classes=num_classes, stem=stem, width=width, norm=norm)
    for end in absent:
        delattr(skeleton, end.rstrip("."))
    return Network(depth, width, norm, ends), skeleton
