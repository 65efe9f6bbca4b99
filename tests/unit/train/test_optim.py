"""Optimisers against slow ones written out anew, tensor by tensor in float64."""

import copy

import pytest
import torch
from torch import Tensor, nn

from trainstone.config.learning import OptimizerConfig
from trainstone.models.resnet import build_resnet
from trainstone.train.optim import Lars, build_optimizer, decay_term, set_rate, split_parameters

CPU = torch.device("cpu")
RATES = [0.0, 0.5, 2.0, 2.0, 0.3, 0.0, 0.0, 1.0]


class OwnNorm2d(nn.Module):
    """A normalisation that is none of torch's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width, 1, 1))


class Renamed(nn.BatchNorm2d):
    """One of torch's by another name."""


class PreNorm(nn.Module):
    """Holds a normalisation and something else."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(4), inner


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


def test_sgd_with_kerass_momentum_is_the_slow_one():
    config = OptimizerConfig(momentum_correction=False, weight_decay=0.05, decay="not_norm")
    compare(build_model(), config, [rate / 20 for rate in RATES], trusted=set())


def test_torchs_sgd_has_the_corrected_momentum():
    config = OptimizerConfig(weight_decay=0.05, decay="weights")
    compare(build_model(), config, [0.01, 0.05, 0.05, 0.002, 0.03], trusted=set())


def test_kerass_momentum_differs_only_where_the_rate_changes():
    def train(correction: bool, rates: list[float]) -> Tensor:
        model = build_model()
        optimizer = build_optimizer(model, OptimizerConfig(momentum_correction=correction), CPU, rate=rates[0])
        for rate in rates:
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            set_rate(optimizer, rate)
            optimizer.step()
        return model[4].weight.detach()

    torch.testing.assert_close(train(True, [0.1] * 4), train(False, [0.1] * 4), rtol=1e-6, atol=1e-6)
    assert not torch.allclose(train(True, [0.1, 0.1, 0.01]), train(False, [0.1, 0.1, 0.01]))


def test_lars_leaves_parameters_without_a_gradient_alone():
    model = build_model()
    optimizer = build_optimizer(model, OptimizerConfig(name="lars"), CPU, rate=1.0)
    before = copy.deepcopy(model.state_dict())
    optimizer.step()
    assert all(group["previous_lr"] == 0 for group in optimizer.param_groups)
    model[4].weight.grad = torch.ones_like(model[4].weight)
    optimizer.step()
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"4.weight"}


def test_lars_goes_on_from_saved_state_bit_for_bit():
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        set_rate(optimizer, 0.1 * (number + 1))
        optimizer.step()

    config = OptimizerConfig(name="lars", weight_decay=0.01)
    model = build_model()
    optimizer = build_optimizer(model, config, CPU, rate=0.1)
    for number in range(2):
        step(model, optimizer, number)
    resumed = copy.deepcopy(model)
    other = build_optimizer(resumed, config, CPU, rate=0.1)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for number in range(2, 4):
        step(model, optimizer, number)
        step(resumed, other, number)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), resumed.parameters(), strict=True))


def test_lars_takes_a_channels_last_network_and_copies_no_gradients():
    model = build_model().to(memory_format=torch.channels_last)
    optimizer = build_optimizer(model, OptimizerConfig(name="lars"), CPU, rate=0.1)
    gradients = [torch.randn_like(parameter) for parameter in model.parameters()]
    kept = [gradient.clone() for gradient in gradients]
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()
    buffer = optimizer.state[model[0].weight]["momentum_buffer"]
    assert buffer.is_contiguous(memory_format=torch.channels_last)
    assert all(torch.equal(a, b) for a, b in zip(gradients, kept, strict=True))


def test_lars_never_waits_for_the_device():
    """Meta tensors have no content: reading one number of them would raise."""
    model = build_model().to("meta")
    optimizer = build_optimizer(model, OptimizerConfig(name="lars", decay="not_norm"), torch.device("meta"), rate=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.step()
    assert decay_term(model.parameters(), 1e-4).is_meta


@pytest.mark.parametrize("config", [OptimizerConfig(), OptimizerConfig(name="lars")], ids=lambda config: config.name)
def test_momentum_is_zeros_from_the_start(config: OptimizerConfig):
    model = build_model()
    optimizer = build_optimizer(model, config, CPU, rate=0.1)
    for parameter in model.parameters():
        assert torch.equal(optimizer.state[parameter]["momentum_buffer"], torch.zeros_like(parameter))


def test_plain_sgd_is_torchs_in_one_group():
    optimizer = build_optimizer(build_model(), OptimizerConfig(weight_decay=1e-4), CPU, rate=0.3)
    assert type(optimizer) is torch.optim.SGD
    (group,) = optimizer.param_groups
    assert (group["lr"], group["weight_decay"], group["fused"]) == (0.3, 1e-4, True)


def test_sgd_without_momentum_keeps_no_buffers():
    assert not build_optimizer(build_model(), OptimizerConfig(momentum=0), CPU, rate=0.1).state


def test_mlperfs_groups():
    config = OptimizerConfig(name="lars", weight_decay=5e-5, decay="not_norm")
    model = build_resnet(18, num_classes=3)
    optimizer = build_optimizer(model, config, CPU, rate=1.0)
    assert isinstance(optimizer, Lars)
    found = {(group["trust"], group["weight_decay"]): len(group["params"]) for group in optimizer.param_groups}
    # 20 convolutions and the classifier; its bias decays; 20 gammas and betas do not.
    assert found == {(True, 5e-5): 21, (False, 5e-5): 1, (False, 0.0): 40}


@pytest.mark.parametrize("name", ["sgd", "lars"])
def test_decay_in_the_loss_is_not_in_the_optimizer(name: str):
    config = OptimizerConfig(name=name, weight_decay=1e-4, decay_in="loss", decay="not_norm")
    optimizer = build_optimizer(build_model(), config, CPU, rate=0.1)
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0}


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


def test_normalisation_is_told_by_class_not_by_name():
    model = nn.ModuleDict({"norm": nn.Linear(2, 2), "conv": Renamed(2), "a": nn.GroupNorm(1, 2), "b": nn.LayerNorm(2)})
    model["c"] = PreNorm(nn.Linear(4, 4))
    spared = names(split_parameters(model, "not_norm")[1])
    assert spared == {f"{name}.{part}" for name in ("conv", "a", "b", "c.norm") for part in ("weight", "bias")}


def test_a_parameter_used_twice_is_moved_once():
    model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    model[1].weight = model[0].weight
    optimizer = build_optimizer(model, OptimizerConfig(name="lars"), CPU, rate=0.1)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 3


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


def test_tbds_l2_is_a_factor_of_two_less_in_name():
    """keras l2(1e-4) = 1e-4 x sum of squares: weight_decay 2e-4."""
    weights = [torch.randn(4, 3, requires_grad=True), torch.randn(5, requires_grad=True), torch.zeros(2)]
    weights[2].requires_grad_()
    expected = 1e-4 * sum((w**2).sum() for w in weights)
    term = decay_term(weights, 2e-4)
    torch.testing.assert_close(term, expected)
    gradients = torch.autograd.grad(term, weights)
    for weight, gradient in zip(weights, gradients, strict=True):
        torch.testing.assert_close(gradient, 2e-4 * weight.detach())


def test_set_rate_reaches_all_groups():
    optimizer = build_optimizer(build_model(), OptimizerConfig(name="lars", decay="not_norm"), CPU, rate=1.0)
    set_rate(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25] * 3
