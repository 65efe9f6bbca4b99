from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from trainstone.config.load import load_config
from trainstone.errors import TrainstoneError
from trainstone.measure.clock import HostTimer
from trainstone.models.resnet import build_resnet
from trainstone.train.loop import train_steps
from trainstone.train.task import WeightAverage, apply_process_settings, build_task, seed_network

CPU = torch.device("cpu")
TINY = ["model.depth=18", "data.image_size=32", "train.precision=fp32", "train.batch_size=2", "engine.threads=1"]


def losses(*settings: str) -> list[float]:
    task = build_task(load_config("resnet50", settings=[*TINY, *settings]), CPU)
    return [record.loss for record in train_steps(task, HostTimer(), num_steps=4)]


def test_the_same_seed_gives_the_same_bits():
    assert losses() == losses()
    assert losses() != losses("seed=1")


def test_channels_last_and_not_are_the_same_mathematics():
    last = losses()
    first = losses("engine.channels_last=false")
    assert abs(last[0] - first[0]) < 1e-4


def test_building_applies_what_the_process_has_only_once():
    threads = torch.get_num_threads()
    config = load_config("resnet50", settings=[*TINY, "engine.deterministic=true"])
    try:
        build_task(config, CPU)
        assert torch.get_num_threads() == 1
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.benchmark
    finally:
        apply_process_settings(load_config("resnet50", settings=[*TINY, f"engine.threads={threads}"]))
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.benchmark


def build_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))


def move(model: nn.Module, seed: int) -> None:
    """Change weights and, by a forward pass, the batch norm's statistics and counter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator))
        model(torch.randn(5, 3, 2, 2, generator=generator))


def copy_state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_the_average_is_the_recursion():
    model, decay = build_model(), 0.5
    average = WeightAverage(model, decay)
    expected = {name: tensor.double() for name, tensor in copy_state(model).items()}
    for step in range(12):
        move(model, step)
        average.update(step)
        d = min(decay, (1 + step) / (10 + step))
        for name, tensor in model.state_dict().items():
            expected[name] = d * expected[name] + (1 - d) * tensor.double()
    for name, tensor in average.tensors.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-6, atol=1e-6)
    assert average.tensors["1.num_batches_tracked"] == 12
    assert "1.running_var" in average.tensors


def test_swapping_brings_the_trained_weights_back_bit_for_bit():
    model = build_model()
    average = WeightAverage(model, 0.9)
    move(model, 1)
    average.update(100)
    with torch.no_grad():
        model[3].weight[0, 0] = -0.0
        model[3].bias[0] = float("nan")
    trained = [parameter.detach().clone().view(torch.int32) for parameter in model.parameters()]
    tensors = [id(parameter) for parameter in model.parameters()]
    kept = {name: tensor.clone() for name, tensor in average.tensors.items()}
    with average.swapped():
        assert same(copy_state(model), kept)
        move(model, 2)  # not even this stays
    assert [id(parameter) for parameter in model.parameters()] == tensors
    for parameter, bits in zip(model.parameters(), trained, strict=True):
        assert torch.equal(parameter.detach().view(torch.int32), bits)
    assert same(average.tensors, kept)


def test_an_update_never_waits_for_the_device():
    """Meta tensors have no content: reading one number of them would raise."""
    average = WeightAverage(build_model().to("meta"), 0.9)
    average.update(0)
    assert all(tensor.is_meta for tensor in average.tensors.values())


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
