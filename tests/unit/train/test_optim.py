"""Optimisers against slow ones written out anew, tensor by tensor in float64."""

import pytest
import torch
from torch import Tensor, nn

from trainstone.config.schema import OptimizerConfig
from trainstone.train.optim import LossScale, build_optimizer, decay_term, set_rate, split_parameters

CPU = torch.device("cpu")
RATES = [0.0, 0.5, 2.0, 2.0, 0.3, 0.0, 0.0, 1.0]


class OwnNorm2d(nn.Module):
    """A normalisation that is none of torch's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width, 1, 1))


def build_model() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), OwnNorm2d(4), nn.Flatten(), nn.Linear(4, 5))


def names(parameters: list[tuple[str, nn.Parameter]]) -> set[str]:
    return {name for name, _ in parameters}


class SlowLars:
    """The update as originals.md tells it; one tensor at a time, in float64."""

    def __init__(self, weights: dict[str, Tensor], config: OptimizerConfig, decayed: set[str], trusted: set[str]):
        self.weights = {name: tensor.detach().double() for name, tensor in weights.items()}
        self.moments = {name: torch.zeros_like(tensor) for name, tensor in self.weights.items()}
        self.config, self.decayed, self.trusted = config, decayed, trusted
        self.previous = 0.0

    def step(self, gradients: dict[str, Tensor], rate: float) -> None:
        config = self.config
        momentum = config.momentum
        if config.momentum_correction and self.previous > 0:
            momentum = config.momentum * rate / self.previous
        for name, w in self.weights.items():
            g = gradients[name].double()
            wd = config.weight_decay if name in self.decayed else 0.0
            local = 1.0
            if name in self.trusted and w.norm() > 0 and g.norm() > 0:
                local = config.lars_eta * w.norm() / (g.norm() + wd * w.norm() + config.lars_epsilon)
            self.moments[name] = momentum * self.moments[name] + rate * local * (g + wd * w)
            self.weights[name] = w - self.moments[name]
        self.previous = rate


def compare(model: nn.Module, config: OptimizerConfig, rates: list[float], trusted: set[str]) -> None:
    decayed = names(split_parameters(model, config.decay)[0])
    slow = SlowLars(dict(model.named_parameters()), config, decayed, trusted)
    optimizer = build_optimizer(model, config, CPU, rate=rates[0])
    generator = torch.Generator().manual_seed(3)
    for step, rate in enumerate(rates):
        gradients = {}
        for name, parameter in model.named_parameters():
            gradients[name] = torch.randn(parameter.shape, generator=generator)
            if step in (2, 6) and name == "0.weight":
                gradients[name].zero_()
            parameter.grad = gradients[name].clone()
        set_rate(optimizer, rate)
        optimizer.step()
        slow.step(gradients, rate)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.detach().double(), slow.weights[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("correction", [True, False])
@pytest.mark.parametrize("decay", ["all", "not_norm", "weights"])
@pytest.mark.parametrize("epsilon", [0.0, 1e-2])
def test_lars_is_the_slow_one_step_by_step(correction: bool, decay: str, epsilon: float):
    config = OptimizerConfig(
        name="lars",
        momentum_correction=correction,
        decay=decay,
        weight_decay=0.05,
        lars_eta=0.1,
        lars_epsilon=epsilon,
    )
    model = build_model()
    nn.init.zeros_(model[4].weight)  # norm 0: plain rate
    compare(model, config, RATES, trusted={"0.weight", "4.weight"})


@pytest.mark.parametrize(
    ("correction", "decay", "rates"),
    [(False, "not_norm", [rate / 20 for rate in RATES]), (True, "weights", [0.01, 0.05, 0.05, 0.002, 0.03])],
)
def test_sgd_with_keras_or_torchs_momentum_is_the_slow_one(correction: bool, decay: str, rates: list[float]):
    config = OptimizerConfig(momentum_correction=correction, weight_decay=0.05, decay=decay)
    compare(build_model(), config, rates, trusted=set())


@pytest.mark.parametrize(
    ("decay", "spared"),
    [
        ("all", set()),
        ("not_norm", {"1.weight", "1.bias", "2.scale"}),
        ("weights", {"0.bias", "1.weight", "1.bias", "2.scale", "4.bias"}),
    ],
)
def test_what_decays(decay: str, spared: set[str]):
    model = build_model()
    decayed, not_decayed = split_parameters(model, decay)
    assert names(not_decayed) == spared
    assert names(decayed) == {name for name, _ in model.named_parameters()} - spared


def train_with(model: nn.Module, config: OptimizerConfig, term) -> list[Tensor]:
    optimizer = build_optimizer(model, config, CPU, rate=0.1)
    images = torch.randn(8, 3, 3, 3, generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        loss = model(images).square().mean() + term(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def plain_model() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 5))


def test_wmlces_decay_in_the_loss_moves_weights_as_the_optimizers_does():
    """wd x 0.5 x sum of squares over all but batch norm; the same numbers with the decay in SGD."""
    factor = 0.02
    inside = OptimizerConfig(weight_decay=factor, decay="not_norm")
    outside = inside.model_copy(update={"decay_in": "loss"})

    def ours(model: nn.Module) -> Tensor:
        return decay_term([p for _, p in split_parameters(model, "not_norm")[0]], factor)

    def theirs(model: nn.Module) -> Tensor:
        return factor * sum((0.5 * p**2).sum() for p in (model[0].weight, model[0].bias, *model[3].parameters()))

    in_sgd = train_with(plain_model(), inside, lambda _: 0)
    for other in (train_with(plain_model(), outside, ours), train_with(plain_model(), outside, theirs)):
        for a, b in zip(in_sgd, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


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


def test_a_dynamic_scale_skips_an_overflow_gets_smaller_and_leaves_no_rubbish_in_the_momentum():
    """torch makes momentum without content in the first step; build_optimizer gives it zeros instead."""
    layer = nn.Linear(64, 64)
    before = layer.weight.detach().clone()
    optimizer = build_optimizer(layer, OptimizerConfig(momentum=0.9, weight_decay=0.0), CPU, rate=0.01)
    scale = LossScale(CPU, "fp16", "dynamic")
    scale.backward(layer(torch.full((1, 64), float("inf"))).sum())
    scale.step(optimizer)
    assert layer.weight.equal(before)
    assert scale._dynamic.get_scale() < 65536
    buffers = [optimizer.state[p]["momentum_buffer"] for p in layer.parameters()]
    assert all(float(buffer.abs().sum()) == 0 for buffer in buffers)
