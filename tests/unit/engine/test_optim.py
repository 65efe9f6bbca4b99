"""Optimisers compared with float64 references, tensor by tensor; learning rate schedules that the original benchmarks
do not have (theirs: test_originals.py); usual learning rates.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from trainstone.config.schema import OptimizerConfig, ScheduleConfig
from trainstone.engine.lr_schedule import build_rate, check_rate, peak_rate
from trainstone.engine.optim import (
    CpuSgd,
    LossScale,
    build_optimizer,
    decay_term,
    init_momentum,
    set_rate,
    split_parameters,
)
from trainstone.measure.profiler import LOG_LEVEL

CPU = torch.device("cpu")
RATES = [0.0, 0.5, 2.0, 2.0, 0.3, 0.0, 0.0, 1.0]


class OwnNorm2d(nn.Module):
    """A norm layer that is not from torch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width, 1, 1))


def build_model() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), OwnNorm2d(4), nn.Flatten(), nn.Linear(4, 5))


def names(parameters: list[tuple[str, nn.Parameter]]) -> set[str]:
    return {name for name, _ in parameters}


class ReferenceLars:
    """Reference: the update as documented in originals.md, one tensor at a time, in float64."""

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
    reference = ReferenceLars(dict(model.named_parameters()), config, decayed, trusted)
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
        reference.step(gradients, rate)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.detach().double(), reference.weights[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scaled", [False, True])
def test_cpu_sgd_equals_torch_sgd_without_copying_channels_last_weights(scaled: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(*LOG_LEVEL)  # read at the first profile of a process
    sides = []
    for build in (CpuSgd, torch.optim.SGD):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(5, 7, 3), nn.Conv2d(7, 3, 1), nn.Flatten(), nn.Linear(12, 3))
        model.to(memory_format=torch.channels_last)
        optimizer = build(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3, fused=True)
        init_momentum(optimizer)
        scale = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=scaled)
        for number in range(3):
            optimizer.param_groups[0]["lr"] = 0.1 / (number + 1)
            scale.scale(model(torch.ones(2, 5, 4, 4).to(memory_format=torch.channels_last)).square().sum()).backward()
            with torch.profiler.profile() as profiler:
                scale.step(optimizer)
            scale.update()
            optimizer.zero_grad()
        copies = [event.name for event in profiler.events() if event.name == "aten::clone"]
        moments = [state["momentum_buffer"] for state in optimizer.state_dict()["state"].values()]
        sides.append(([*model.parameters(), *moments], len(copies)))
    (ours, our_copies), (theirs, _) = sides
    assert len(ours) == 12
    assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(ours, theirs, strict=True))
    assert our_copies == 0


@pytest.mark.parametrize("correction", [True, False])
@pytest.mark.parametrize("decay", ["all", "not_norm", "weights"])
@pytest.mark.parametrize("epsilon", [0.0, 1e-2])
def test_lars_equals_float64_reference(correction: bool, decay: str, epsilon: float):
    config = OptimizerConfig(
        name="lars", momentum_correction=correction, decay=decay, weight_decay=0.05, lars_eta=0.1, lars_epsilon=epsilon
    )
    model = build_model()
    nn.init.zeros_(model[4].weight)  # norm 0: plain rate
    compare(model, config, RATES, trusted={"0.weight", "4.weight"})


@pytest.mark.parametrize(
    ("correction", "decay", "rates"),
    [(False, "not_norm", [rate / 20 for rate in RATES]), (True, "weights", [0.01, 0.05, 0.05, 0.002, 0.03])],
)
def test_sgd_equals_float64_reference(correction: bool, decay: str, rates: list[float]):
    config = OptimizerConfig(momentum_correction=correction, weight_decay=0.05, decay=decay)
    compare(build_model(), config, rates, trusted=set())


@pytest.mark.parametrize(
    ("decay", "not_decaying"),
    [
        ("all", set()),
        ("not_norm", {"1.weight", "1.bias", "2.scale"}),
        ("weights", {"0.bias", "1.weight", "1.bias", "2.scale", "4.bias"}),
    ],
)
def test_split_parameters_returns_decayed_and_not_decayed(decay: str, not_decaying: set[str]):
    model = build_model()
    decayed, not_decayed = split_parameters(model, decay)
    assert names(not_decayed) == not_decaying
    assert names(decayed) == {name for name, _ in model.named_parameters()} - not_decaying


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


def test_decay_in_loss_equals_decay_in_optimizer():
    """wd x 0.5 x sum of squares over all but batch norm equals weight decay in SGD."""
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
def test_loss_scale_does_not_change_update(scale: LossScale):
    assert updated_weight(scale) == pytest.approx(updated_weight(LossScale(CPU, "fp32", "dynamic")), rel=1e-5)


def test_dynamic_loss_scale_skips_overflow_and_keeps_momentum_zero():
    """torch creates momentum uninitialised in the first step; build_optimizer initialises it with zeros."""
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


STEPS, FILLED = {"name": "steps", "decay_epochs": (30, 60, 80)}, {"steps_per_epoch": 230, "epochs": 80}
BY_IMAGES, UNFILLED = {"warm_up_epochs": 5.25, "warm_up_by": "images"}, {"unfilled_steps": 117266 / 512}
ALL_WARM_UP = {"name": "polynomial", "warm_up_epochs": 2}
COARSE = {"name": "steps", "by": "epoch", "decay_epochs": (1, 3)}
SCHEDULES = {
    "cosine with offset goes from the peak down to the end": (
        {"name": "cosine", "warm_up_epochs": 1, "end_rate": 0.025},
        {"steps_per_epoch": 10, "epochs": 5},
        {10: 1.0, 30: (1 + 0.025) / 2, 50: 0.025},
    ),
    "300 of 1000 images per step": (
        COARSE,
        {"steps_per_epoch": 1000 / 300, "epochs": 4},
        {step: 0.1 ** ((step * 300 // 1000 >= 1) + (step * 300 // 1000 >= 3)) for step in range(13)},
    ),
    # 0.57 x 100 is 56.99999999999999
    "a warm-up lasts complete steps": (
        {"warm_up_epochs": 0.57},
        {"steps_per_epoch": 100, "epochs": 1},
        {56: 56 / 57, 57: 1},
    ),
    "a warm-up shorter than a step is skipped": (
        {"warm_up_epochs": 0.57},
        {"steps_per_epoch": 1.5, "epochs": 1},
        {0: 1},
    ),
    "all warm-up ends at the peak": (ALL_WARM_UP, {"steps_per_epoch": 10, "epochs": 2}, {20: 1}),
    "a warm-up longer than the run stays where it ends": (ALL_WARM_UP, {"steps_per_epoch": 10, "epochs": 1}, {99: 0.5}),
    "decay starts at the boundary": (
        STEPS,
        {"steps_per_epoch": 100, "epochs": 90},
        {2999: 1, 3000: 0.1, 3001: 0.1},
    ),
    "late decay starts after the boundary": (
        {**STEPS, "decay_late": True},
        {"steps_per_epoch": 100, "epochs": 90},
        {2999: 1, 3000: 1, 3001: 0.1},
    ),
    "padding of an epoch does not count": (BY_IMAGES, FILLED | UNFILLED, {601: 0.5}),  # of 1202
    "an epoch without padding": (BY_IMAGES, FILLED, {1207: 1}),
    "padding counts with warm_up_by steps": (
        BY_IMAGES | {"warm_up_by": "steps"},
        FILLED | UNFILLED,
        {1206: 1206 / 1207},
    ),
}


@pytest.mark.parametrize("case", SCHEDULES)
def test_build_rate_gives_the_rates_of_the_table(case: str):
    schedule, run, expected = SCHEDULES[case]
    rate = build_rate(ScheduleConfig(**schedule), 1.0, **run)
    assert {step: rate(step) for step in expected} == pytest.approx(expected)


@settings(deadline=None)
@given(
    st.builds(
        ScheduleConfig,
        name=st.sampled_from(["constant", "polynomial", "cosine", "steps"]),
        by=st.sampled_from(["step", "epoch"]),
        warm_up_epochs=st.floats(0, 20),
        warm_up_from=st.sampled_from([0.0, 0.3, 1.0, "rank"]),
        first_step=st.sampled_from([0, 1]),
        warm_up_offset=st.booleans(),
        end_rate=st.just(0.0),
        decay_epochs=st.just((3, 7.5)),
    ),
    st.floats(0.05, 500),
    st.floats(0.1, 30),
)
def test_build_rate_stays_between_end_and_peak(schedule, steps_per_epoch, epochs):
    rate = build_rate(schedule, 0.5, steps_per_epoch=steps_per_epoch, epochs=epochs, ranks=3)
    total = round(steps_per_epoch * epochs)
    rates = [rate(step) for step in range(0, total + 2, max(1, total // 50))]
    assert all(0 <= value <= 0.5 * (1 + 1e-12) for value in rates)
    if schedule.by == "step":
        assert rate(total + 1) == rate(total + 10**6)
    highest = rates.index(max(rates))
    assert all(later <= earlier + 1e-12 for earlier, later in zip(rates[highest:], rates[highest + 1 :], strict=False))


@pytest.mark.parametrize(
    ("rate", "rate_for", "batch", "expected"),
    [
        (2.92e-3, 32, 512, 0.0475),
        (5.84e-3, 32, 1024, 0.1875),
        (3.2e-3, 32, 896, 0.09),
        (2.5e-3, 32, 1, 0.0025),  # at least one
        (2.5e-3, "rank", 64, 0.01),
        (0.0031, "run", 512, 0.0031),  # not scaled
    ],
)
def test_peak_rate_is_multiple_of_unit(rate: float, rate_for, batch: int, expected: float):
    optimizer = OptimizerConfig(learning_rate=rate, rate_for=rate_for, rate_unit=2.5e-3)
    assert peak_rate(optimizer, global_batch=batch, ranks=4) == pytest.approx(expected, rel=1e-12)


USUAL = [("lars", 10.5, 3264), ("lars", 3.0, 408), ("lars", 24.699, 67456), ("sgd", 0.1, 256), ("sgd", 4.096, 4096)]
FAR = [("lars", 10.5, 8), ("sgd", 10.5, 8), ("sgd", 1.024, 32), ("sgd", 1e-4, 256), ("lars", 0.01, 408), ("sgd", 0, 1)]


@pytest.mark.parametrize(("name", "peak", "batch"), USUAL + FAR)
def test_check_rate_reports_only_unusual_rates(name: str, peak: float, batch: int):
    message = check_rate(OptimizerConfig(name=name), peak=peak, global_batch=batch)
    assert (message is not None) == ((name, peak, batch) in FAR)
