"""Where a network's first weights come from."""

from pathlib import Path

import pytest
import torch

from trainstone.config.load import load_config
from trainstone.errors import TrainstoneError
from trainstone.models.resnet import build_resnet
from trainstone.train.network import seed_network

CPU = torch.device("cpu")
SMALL = ["data.image_size=64", "model.width=16"]


def write_backbone(path: Path, depth: int = 18) -> dict[str, torch.Tensor]:
    torch.manual_seed(7)
    weights = build_resnet(depth, width=16, num_classes=10).state_dict()
    torch.save(weights, path)
    return weights


def test_a_detector_begins_with_the_backbone_it_is_given(tmp_path: Path):
    weights = write_backbone(tmp_path / "r18.pth")
    settings = [*SMALL, f"model.pretrained={tmp_path / 'r18.pth'}"]
    model = seed_network(load_config("demo-detect", settings=settings), CPU)
    for name, tensor in model.backbone.state_dict().items():
        assert tensor.equal(weights[name]), name
    plain = seed_network(load_config("demo-detect", settings=SMALL), CPU)
    assert not plain.backbone.conv1.weight.equal(weights["conv1.weight"])
    # The rest is drawn from the seed as without.
    assert all(tensor.equal(plain.state_dict()[f"heads.{name}"]) for name, tensor in model.heads.state_dict().items())


def test_a_run_that_goes_on_does_not_need_the_file(tmp_path: Path):
    settings = [*SMALL, f"model.pretrained={tmp_path / 'gone.pth'}"]
    config = load_config("demo-detect", settings=settings)
    seed_network(config, CPU, begins=False)
    with pytest.raises(TrainstoneError, match=r"gone\.pth"):
        seed_network(config, CPU)


def test_weights_of_another_network_are_refused(tmp_path: Path):
    write_backbone(tmp_path / "r34.pth", depth=34)
    with pytest.raises(TrainstoneError, match=r"r34\.pth"):
        seed_network(load_config("demo-detect", settings=[*SMALL, f"model.pretrained={tmp_path / 'r34.pth'}"]), CPU)
