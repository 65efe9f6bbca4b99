import pytest
import torch
from torch import nn

from trainstone.config.learning import OptimizerConfig
from trainstone.train.optim import build_optimizer
from trainstone.train.precision import LossScale, autocast

CPU = torch.device("cpu")


def updated_weight(scale: LossScale) -> float:
    torch.manual_seed(0)
    layer = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scale.backward(layer(torch.ones(2, 3)).square().sum())
    scale.step(optimizer)
    return float(layer.weight.detach().sum())


@pytest.mark.parametrize(
    "scale", [LossScale(CPU, "fp16", 1024.0), LossScale(CPU, "fp16", "dynamic"), LossScale(CPU, "bf16", 8.0)]
)
def test_a_scale_changes_nothing_in_the_update(scale: LossScale):
    assert updated_weight(scale) == pytest.approx(updated_weight(LossScale(CPU, "fp32", "dynamic")), rel=1e-5)


def test_a_fixed_scale_really_scales():
    layer = nn.Linear(1, 1, bias=False)
    LossScale(CPU, "fp16", 1024.0).backward(layer(torch.ones(1, 1)).sum())
    assert layer.weight.grad is not None
    assert float(layer.weight.grad) == 1024.0


def test_a_dynamic_scale_skips_an_overflow_and_gets_smaller():
    layer = nn.Linear(1, 1, bias=False)
    before = float(layer.weight.detach())
    scale = LossScale(CPU, "fp16", "dynamic")
    scale.backward(layer(torch.full((1, 1), float("inf"))).sum())
    scale.step(torch.optim.SGD(layer.parameters(), lr=0.1))
    assert float(layer.weight.detach()) == before
    assert scale._dynamic.get_scale() < 65536


def test_a_skipped_first_step_leaves_no_rubbish_in_the_momentum():
    """torch makes momentum without content in the first step; build_optimizer gives it zeros instead."""
    layer = nn.Linear(64, 64)
    optimizer = build_optimizer(layer, OptimizerConfig(momentum=0.9, weight_decay=0.0), CPU, rate=0.01)
    scale = LossScale(CPU, "fp16", "dynamic")
    scale.backward(layer(torch.full((1, 64), float("inf"))).sum())
    scale.step(optimizer)
    buffers = [optimizer.state[p]["momentum_buffer"] for p in layer.parameters()]
    assert all(float(buffer.abs().sum()) == 0 for buffer in buffers)


def test_momentum_from_zeros_is_the_same_as_torchs():
    def train(make) -> torch.Tensor:
        torch.manual_seed(0)
        layer = nn.Linear(3, 1)
        optimizer = make(layer)
        for _ in range(3):
            layer(torch.ones(2, 3)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return layer.weight.detach()

    config = OptimizerConfig(learning_rate=0.01, momentum=0.9, weight_decay=1e-4)
    ours = train(lambda layer: build_optimizer(layer, config, CPU, rate=0.01))
    plain = train(lambda layer: torch.optim.SGD(layer.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4))
    assert torch.allclose(ours, plain, rtol=1e-6)


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_autocast(precision: str, dtype: torch.dtype):
    with autocast(CPU, precision):
        assert torch.nn.functional.conv2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3)).dtype == dtype
