"""The names that MXNet gives to our tensors: in MLPerf's ResNet-50, whose rules of 2022 ask for each in the log, and
in the backbone of MLPerf's SSD of 2020 (Gluon), with ours for them.

Gluon counts the layers of a stage: stage2_conv3_weight. It knows the stem and three stages of ResNet-18 and -34.
"""

import re
from collections.abc import Mapping
from typing import TypeVar

Value = TypeVar("Value")

PREFIX = "ssd0_resnetmlperf0_"
HEADS = "ssd0_"
"""What the names of the original's other layers begin with."""
# Number of a layer in its block, and what it is called there. The shortcut's comes last.
_LAYERS = {"conv1": 0, "conv2": 1, "downsample.0": 2, "bn1": 0, "bn2": 1, "downsample.1": 2}
_CONVS = ("conv1", "conv2", "downsample.0")
_NORMS = ("bn1", "bn2", "downsample.1")
_NORM_KINDS = {"weight": "gamma", "bias": "beta", "running_mean": "running_mean", "running_var": "running_var"}
_OURS = re.compile(r"layer([1-3])\.([0-9]{1,3})\.(conv[12]|bn[12]|downsample\.[01])\.([a-z_]+)")
_THEIRS = re.compile(
    r"(?:stage([1-3])_)?(conv|batchnorm)([0-9]{1,3})_(weight|gamma|beta|running_mean|running_var|moving_mean|moving_var)"
)


def name_in_gluon(name: str) -> str | None:
    """Return stage2_conv3_weight for layer2.1.conv1.weight; None for what the original leaves out or does not have."""
    stem = re.fullmatch(r"(conv|bn)1\.([a-z_]+)", name)
    if stem:
        return _add_kind("conv0" if stem[1] == "conv" else "batchnorm0", stem[2])
    block = _OURS.fullmatch(name)
    if block is None:
        return None
    stage, unit, layer, kind = int(block[1]), int(block[2]), block[3], block[4]
    # Blocks after the first of stages 2 and 3 have the shortcut of the first before them.
    number = 2 * unit + _LAYERS[layer] + (1 if stage > 1 and unit > 0 else 0)
    return _add_kind(f"stage{stage}_{'conv' if layer in _CONVS else 'batchnorm'}{number}", kind)


def name_from_gluon(name: str) -> str | None:
    """Return layer2.1.conv1.weight for stage2_conv3_weight; None for a name of another network."""
    found = _THEIRS.fullmatch(name.removeprefix(PREFIX))
    if found is None or (found[2] == "conv") != (found[4] == "weight"):
        return None
    number = int(found[3])
    kinds = {theirs: ours for ours, theirs in _NORM_KINDS.items()}
    kind = "weight" if found[2] == "conv" else kinds[found[4].replace("moving", "running")]
    if found[1] is None:
        return f"{'conv' if found[2] == 'conv' else 'bn'}1.{kind}" if number == 0 else None
    layers = _CONVS if found[2] == "conv" else _NORMS
    if found[1] == "1":
        unit, layer = divmod(number, 2)
    else:
        unit, layer = divmod(number - 1, 2) if number > 2 else (0, number)
    return f"layer{found[1]}.{unit}.{layers[layer]}.{kind}"


def rename_from_gluon(weights: Mapping[str, Value]) -> dict[str, Value]:
    """Return weights under our names if they have Gluon's; what has no such name keeps its own. ValueError: a clash."""
    renamed = {name: name_from_gluon(name) for name in weights}
    if "conv1.weight" not in renamed.values():
        return dict(weights)
    made: dict[str, Value] = {}
    for name, ours in renamed.items():
        if (ours or name) in made:
            raise ValueError(f"two tensors that are both {ours or name}")
        made[ours or name] = weights[name]
    return made


def _add_kind(layer: str, kind: str) -> str | None:
    if "conv" in layer:
        return f"{layer}_weight" if kind == "weight" else None
    return f"{layer}_{_NORM_KINDS[kind]}" if kind in _NORM_KINDS else None


_STEM = {"conv1": "conv0", "bn1": "bn0", "fc": "fc1"}
_SHORTCUT = {"downsample.0": "conv1sc", "downsample.1": "bnsc"}
_BLOCK = re.compile(r"layer([0-9]+)\.([0-9]+)\.(.+)")


def name_in_mxnet(name: str) -> str:
    """Return stage1_unit1_bnsc_gamma for layer1.0.downsample.1.weight; a name of another network is kept."""
    module, _, kind = name.rpartition(".")
    block = _BLOCK.fullmatch(module)
    if block:
        stage, unit, part = block.groups()
        layer = f"stage{stage}_unit{int(unit) + 1}_{_SHORTCUT.get(part, part)}"
    elif module in _STEM:
        layer = _STEM[module]
    else:
        return name
    if "_bn" in layer or layer.startswith("bn"):
        kind = {"weight": "gamma", "bias": "beta"}.get(kind, kind)
    return f"{layer}_{kind}"
