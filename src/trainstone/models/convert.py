"""Turns the weights of a ResNet from one kind of file into another: torch's, safetensors, MLPerf SSD's pickle."""

import io
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from trainstone.errors import ConfigError, DataError
from trainstone.models.legacy_pickle import pickle_arrays
from trainstone.models.mxnet_names import name_in_gluon
from trainstone.models.resnet import COUNTER, DEPTHS
from trainstone.models.weights import (
    Network,
    gather_tensors,
    load_weights,
    read_weights,
    recognise,
    refuse_not_finite,
    take_backbone,
    write_bytes,
    write_weights,
)
from trainstone.text import printable

KINDS = {".pth": "torch", ".pt": "torch", ".safetensors": "safetensors", ".pickle": "mlperf_ssd", ".pkl": "mlperf_ssd"}
"""Kind of a file by its suffix."""
GLUON_DEPTHS = (18, 34)
NO_BATCHES = torch.tensor(0)
"""For counters of batches that a file has not: MLPerf's and torch's before 0.4.1 have none."""
BUFFERS = ("running_mean", "running_var", COUNTER)


class Converted(NamedTuple):
    network: str
    format: str
    tensors: int
    parameters: int
    bytes: int
    left_out: tuple[str, ...]
    """Names in the source that are not in the target."""


def choose_kind(target: Path) -> str:
    """Return what to write by the target's name; what is there already is not written over."""
    if target.suffix not in KINDS:
        raise ConfigError(f"{target}: what shall it be?", hint=f"end its name in one of {', '.join(KINDS)}")
    if target.exists() or target.is_symlink():
        raise ConfigError(f"{target} exists; it is not written over", hint="choose another name, or remove it first")
    return KINDS[target.suffix]


def convert_weights(source: Path, target: Path) -> Converted:
    """Write the ResNet in a file as another kind of file, whole or not at all."""
    kind, where = choose_kind(target), str(source)
    found = read_weights(source)
    weights, others = take_backbone(found)
    recognised = recognise(weights)
    if recognised is None:
        shown = ", ".join(printable(name)[:60] for name in list(found)[:3])
        raise DataError(
            f"{source} is of no network that is known here: its tensors are called {shown}, ...",
            hint=f"known: ResNet-{', -'.join(map(str, DEPTHS))} by torchvision's names, MLPerf SSD's backbone in MXNet",
        )
    network, skeleton = recognised
    load_weights(skeleton, weights, where, of=str(network))
    refuse_not_finite(weights, where)
    complete = {name: weights.get(name, NO_BATCHES) for name in skeleton.state_dict()}
    kept = _choose_kept(kind, network, complete, where)
    _write(target, kind, kept)
    parameters = sum(tensor.numel() for name, tensor in kept.items() if not name.endswith(BUFFERS))
    left_out = (*others, *(name for name in weights if name not in kept))
    told = network._replace(ends=tuple(end for end in network.ends if any(name.startswith(end) for name in kept)))
    return Converted(str(told), kind, len(kept), parameters, target.stat().st_size, left_out)


def _choose_kept(kind: str, network: Network, weights: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """Return what the target can hold: MLPerf SSD's backbone has no last stage, no classifier and no counters."""
    if kind != "mlperf_ssd":
        return dict(weights)
    if network.depth not in GLUON_DEPTHS or network.norm != "batch":
        known = " and -".join(map(str, GLUON_DEPTHS))
        raise ConfigError(
            f"{where} is of {network}; MLPerf SSD's names are for ResNet-{known} with batch norm",
            hint="write .pth or .safetensors",
        )
    return {name: tensor for name, tensor in weights.items() if name_in_gluon(name) is not None}


def _write(target: Path, kind: str, weights: Mapping[str, Tensor]) -> None:
    if kind == "safetensors":
        write_weights(target, weights, {})
    elif kind == "mlperf_ssd":
        arrays = {str(name_in_gluon(n)): t.detach().float().cpu().numpy() for n, t in weights.items()}
        write_bytes(target, pickle_arrays(arrays))
    else:
        memory = io.BytesIO()
        torch.save(OrderedDict(gather_tensors(weights)), memory)
        write_bytes(target, memory.getvalue())
