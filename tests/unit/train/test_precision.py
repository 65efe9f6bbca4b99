import pytest
import torch
from torch import nn

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


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_autocast(precision: str, dtype: torch.dtype):
    with autocast(CPU, precision):
        assert torch.nn.functional.conv2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3)).dtype == dtype
