"""Translate tensor names between trainstone and MXNet: MLPerf's ResNet-50 (its 2022 rules require each name in the log)
and the Gluon backbone of MLPerf's SSD of 2020.

Gluon numbers the layers of a stage: stage2_conv3_weight. It has the stem and three stages of ResNet-18 and -34.
"""

import re
from collections.abc import Mapping
from typing import TypeVar

from trainstone.models.resnet import list_names

Value = TypeVar("Value")

PREFIX = "ssd0_resnetmlperf0_"
HEADS = "ssd0_"
"""Prefix of the original's other layers."""
# Number of a layer in its block; the shortcut is last.
_LAYERS = {"conv1": 0, "conv2": 1, "downsample.0": 2, "bn1": 0, "bn2": 1, "downsample.1": 2}
_NORM_KINDS = {"weight": "gamma", "bias": "beta", "running_mean": "running_mean", "running_var": "running_var"}
_OURS = re.compile(r"(?:layer([1-3])\.([0-9]{1,3})\.)?(conv[12]|bn[12]|downsample\.[01])\.([a-z_]+)")


def name_in_gluon(name: str) -> str | None:
    """Return stage2_conv3_weight for layer2.1.conv1.weight; None for tensors that the original does not have."""
    found = _OURS.fullmatch(name)
    if found is None or found[4] not in _NORM_KINDS:
        return None
    stage, unit, number = int(found[1] or 0), int(found[2] or 0), _LAYERS[found[3]]
    # In stages 2 and 3 the numbers of later blocks also count the first block's shortcut.
    number += 2 * unit + (1 if stage > 1 and unit > 0 else 0)
    prefix = f"stage{stage}_" if stage else ""
    if found[3] in ("conv1", "conv2", "downsample.0"):
        return f"{prefix}conv{number}_weight"
    return f"{prefix}batchnorm{number}_{_NORM_KINDS[found[4]]}"


def rename_from_gluon(weights: Mapping[str, Value]) -> dict[str, Value]:
    """Rename weights with Gluon's names to trainstone's; other names are kept. ValueError if two names become equal."""
    # ResNet-34 has all names of ResNet-18.
    known = {theirs: ours for ours in list_names(34, "batch") if (theirs := name_in_gluon(ours)) is not None}
    plain = {name: name.removeprefix(PREFIX).replace("moving", "running") for name in weights}
    if "conv0_weight" not in plain.values():
        return dict(weights)
    renamed = {known.get(plain[name], name): value for name, value in weights.items()}
    if len(renamed) < len(weights):
        raise ValueError("two tensors of the same name")
    return renamed


_STEM = {"conv1": "conv0", "bn1": "bn0", "fc": "fc1"}
_SHORTCUT = {"downsample.0": "conv1sc", "downsample.1": "bnsc"}
_BLOCK = re.compile(r"layer([0-9]+)\.([0-9]+)\.(.+)")


def name_in_mxnet(name: str) -> str:
    """Return stage1_unit1_bnsc_gamma for layer1.0.downsample.1.weight; names of other networks are kept."""
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
