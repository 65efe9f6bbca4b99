"""The names that MXNet's ResNet gives to our parameters: MLPerf's rules of 2022 ask for each of them in the log."""

import re

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
