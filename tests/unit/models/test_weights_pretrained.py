"""model.pretrained: a network begins with the weights of a file, wholly or with an error."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from trainstone.errors import DataError
from trainstone.models.convert import convert_weights
from trainstone.models.resnet import build_resnet
from trainstone.models.ssd import build_ssd
from trainstone.models.tensorfile import seal, write_tensors
from trainstone.models.weights import load_pretrained, write_weights


def make_resnet(depth: int = 34, *, num_classes: int = 5, width: int = 16) -> nn.Module:
    model = build_resnet(depth, num_classes=num_classes, width=width)
    model(torch.rand(2, 3, 33, 33))
    return model


def make_backbone(depth: int = 34, *, width: int = 16, norm: str = "batch") -> nn.Module:
    return build_ssd(depth, num_classes=3, image_size=300, width=width, norm=norm).backbone


def copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def is_backbone_of(module: nn.Module, state: dict[str, Tensor], *, counters: bool = True) -> bool:
    names = [n for n in module.state_dict() if counters or not n.endswith("num_batches_tracked")]
    return all(torch.equal(module.state_dict()[name], state[name]) for name in names)


@pytest.mark.parametrize("kind", ["pth", "legacy", "safetensors", "pickle", "exported", "checkpoint"])
def test_a_detector_begins_with_any_kind_of_file(tmp_path: Path, kind: str):
    state = make_resnet().state_dict()
    path = tmp_path / "w.pth"
    torch.save(state, path, _use_new_zipfile_serialization=kind != "legacy")
    if kind in ("safetensors", "pickle"):
        convert_weights(path, tmp_path / f"w.{kind}")
        path = tmp_path / f"w.{kind}"
    elif kind == "exported":
        path = tmp_path / "w.safetensors"
        write_weights(path, state, {"recipe": "resnet34", "step": "12"})
    elif kind == "checkpoint":
        path = tmp_path / "step-00000012.safetensors"
        tensors = {f"model.{name}": tensor for name, tensor in state.items()}
        write_tensors(path, tensors, seal({"step": 12}, tensors))
    backbone = make_backbone()
    load_pretrained(backbone, path)
    assert is_backbone_of(backbone, state, counters=kind != "pickle")


def test_a_whole_network_needs_all_of_its_tensors(tmp_path: Path):
    state = make_resnet().state_dict()
    torch.save(state, tmp_path / "w.pth")
    model = make_resnet()
    load_pretrained(model, tmp_path / "w.pth")
    assert is_backbone_of(model, state)
    convert_weights(tmp_path / "w.pth", tmp_path / "w.pickle")
    with pytest.raises(DataError, match=r"does not fit the model: 37 missing \(layer4\.0"):
        load_pretrained(model, tmp_path / "w.pickle")


@pytest.mark.parametrize(
    ("backbone", "words"),
    [
        (lambda: make_backbone(18), r"unknown \(layer1\.2\.conv1\.weight"),
        (lambda: make_backbone(34, width=32), r"conv1\.weight \(16, 3, 7, 7\) for \(32, 3, 7, 7\)"),
        (lambda: make_backbone(34, norm="group"), r"unknown \(bn1\.running_mean"),
    ],
)
def test_weights_of_another_network_are_refused_and_nothing_changes(tmp_path: Path, backbone, words: str):
    torch.save(make_resnet().state_dict(), tmp_path / "w.pth")
    module = backbone()
    before = copied(module)
    with pytest.raises(DataError, match=words) as caught:
        load_pretrained(module, tmp_path / "w.pth")
    assert caught.value.hint == "the file is of ResNet-34: --set model.depth=34 --set model.width=16"
    assert is_backbone_of(module, before)
