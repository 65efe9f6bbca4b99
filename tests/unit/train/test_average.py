"""The average of weights: its recursion, and that nothing of the trained weights is lost."""

import copy

import pytest
import torch
from torch import Tensor, nn

from trainstone.errors import ResultError
from trainstone.train.average import WeightAverage


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
    for name, tensor in average.state().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-6, atol=1e-6)
    assert average.state()["1.num_batches_tracked"] == 12
    assert "1.running_var" in average.state()


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
    kept = {name: tensor.clone() for name, tensor in average.state().items()}
    with average.swapped():
        assert same(copy_state(model), kept)
        move(model, 2)  # not even this stays
    assert [id(parameter) for parameter in model.parameters()] == tensors
    for parameter, bits in zip(model.parameters(), trained, strict=True):
        assert torch.equal(parameter.detach().view(torch.int32), bits)
    assert same(average.state(), kept)


def test_an_error_while_swapped_brings_them_back_too():
    model = build_model()
    average = WeightAverage(model, 0.9)
    move(model, 1)
    trained = copy_state(model)

    def judge() -> None:
        with average.swapped():
            assert not same(copy_state(model), trained)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge()
    assert same(copy_state(model), trained)


def test_the_average_does_not_follow_the_weights_by_itself():
    model = build_model()
    before = copy_state(model)
    average = WeightAverage(model, 0.9)
    move(model, 1)
    assert same(average.state(), before)


def test_a_saved_average_goes_on():
    model = build_model()
    average = WeightAverage(model, 0.9)
    for step in range(3):
        move(model, step)
        average.update(step)
    resumed_model = copy.deepcopy(model)
    resumed = WeightAverage(resumed_model, 0.9)
    resumed.load({name: tensor.clone() for name, tensor in average.state().items()})
    for other, its in ((model, average), (resumed_model, resumed)):
        move(other, 3)
        its.update(3)
    assert same(average.state(), resumed.state())


def test_it_follows_a_model_whose_tensors_are_replaced():
    model = build_model()
    average = WeightAverage(model, 0.9)
    model.double().float()
    move(model, 1)
    average.update(0)
    torch.testing.assert_close(average.state()["1.running_mean"], 0.9 * model[1].running_mean)


def test_an_update_never_waits_for_the_device():
    """Meta tensors have no content: reading one number of them would raise."""
    average = WeightAverage(build_model().to("meta"), 0.9)
    average.update(0)
    assert all(tensor.is_meta for tensor in average.state().values())


def test_a_model_without_counters():
    model = nn.Linear(2, 2)
    average = WeightAverage(model, 0.9)
    average.update(0)
    assert same(average.state(), copy_state(model))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("3.bias"), "3.bias is missing"),
        (lambda state: state.update(other=torch.zeros(1)), "other is unknown"),
        (lambda state: state.update({"3.bias": torch.zeros(7)}), r"3.bias is \(7,\), not \(2,\)"),
    ],
)
def test_another_models_average_is_refused_and_nothing_changed(change, message):
    average = WeightAverage(build_model(), 0.9)
    before = {name: tensor.clone() for name, tensor in average.state().items()}
    state = {name: tensor + 1 for name, tensor in before.items()}
    change(state)
    with pytest.raises(ResultError, match=message):
        average.load(state)
    assert same(average.state(), before)
