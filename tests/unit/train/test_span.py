"""Batch norm over ranks, beside torch's own over the whole batch: four real ranks, in pairs and all together."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ranks import join_world, run_ranks
from trainstone.config.schema import ParallelConfig
from trainstone.errors import ConfigError
from trainstone.machine.ranks import Rank
from trainstone.models.resnet import build_resnet
from trainstone.train.distributed import SpanBatchNorm2d, World, share_statistics, span_batch_norm

CPU = torch.device("cpu")
RANKS = 4
COUNTS = (3, 1, 2, 2)  # pictures of each rank


def make_network() -> nn.Sequential:
    torch.manual_seed(3)
    network = nn.Sequential(nn.Conv2d(3, 5, 3, bias=False), nn.Sequential(nn.BatchNorm2d(5), nn.SiLU()))
    norm = network[1][0]
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    nn.init.uniform_(norm.bias, -1, 1)
    return network


def make_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures of all ranks, and what their loss weighs outputs with."""
    numbers = torch.Generator().manual_seed(11)
    images = torch.randn(sum(COUNTS), 3, 6, 6, generator=numbers) + 1
    return images, torch.randn(sum(COUNTS), 5, 4, 4, generator=numbers)


def run_network(network: nn.Module, images: torch.Tensor, weights: torch.Tensor, case: str = "fp32") -> dict[str, Any]:
    """Two steps' worth of forward and backward, without updates: outputs, gradients, running statistics."""
    images = images.clone()
    if case == "channels_last":
        network.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    images.requires_grad_()
    for factor in (1.0, 0.5):
        network.zero_grad()
        images.grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
            output = network(images * factor)
        (output.float() * weights).sum().backward()
    norm = network[1][0]
    outcome = {
        "output": output,
        "images": images.grad,
        "conv": network[0].weight.grad,
        "weight": norm.weight.grad,
        "bias": norm.bias.grad,
        "mean": norm.running_mean,
        "var": norm.running_var,
        "batches": norm.num_batches_tracked,
        "evaluated": network.eval()(images.detach()),
    }
    found: dict[str, Any] = {name: tensor.tolist() for name, tensor in outcome.items()}
    network.train()
    return found | {"dtype": str(output.dtype), "dense": output.is_contiguous(memory_format=torch.channels_last)}


def run_half(norm: nn.Module, images: torch.Tensor, weights: torch.Tensor, dtype: torch.dtype) -> dict[str, Any]:
    """Activations of 16 bits, parameters and statistics of 32."""
    norm.train()
    images = images.to(dtype).requires_grad_()
    output = norm(images)
    (output.float() * weights).sum().backward()
    assert output.dtype == dtype
    assert images.grad.dtype == dtype
    outcome = {"output": output, "images": images.grad, "weight": norm.weight.grad, "var": norm.running_var}
    return {name: tensor.float().tolist() for name, tensor in outcome.items()}


def take_part(number: int) -> slice:
    first = sum(COUNTS[:number])
    return slice(first, first + COUNTS[number])


def check_world(world: World) -> dict[str, Any]:
    images, weights = (tensor[take_part(world.rank.number)] for tensor in make_batch())
    found: dict[str, Any] = {}
    for bn_ranks in (2, 4):
        network = span_batch_norm(make_network(), world, bn_ranks)
        shared = {id(network[1][0].group): network[1][0].group}  # a process group cannot be copied
        for case in ("fp32", "channels_last", "autocast"):
            found[f"{case} of {bn_ranks}"] = run_network(copy.deepcopy(network, dict(shared)), images, weights, case)
        activations = make_network()[0](images).detach()
        for dtype in (torch.bfloat16, torch.float16):
            half = run_half(copy.deepcopy(network[1][0], dict(shared)), activations, weights, dtype)
            found[f"{dtype} of {bn_ranks}"] = half
    far, near, _ = share_statistics(images + 3000 + world.rank.number, network[1][0].group)
    found["far"] = [far.tolist(), near.tolist()]
    return found


def norm_in_ranks() -> dict[str, Any]:
    with join_world(ParallelConfig(timeout_seconds=60.0)) as world:
        return check_world(world)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return run_ranks(RANKS, norm_in_ranks, Path(tmp_path_factory.mktemp("span")))


def groups_of(bn_ranks: int) -> list[range]:
    return [range(first, first + bn_ranks) for first in range(0, RANKS, bn_ranks)]


def join_parts(ranks: list[Any], members: range, case: str, name: str) -> torch.Tensor:
    return torch.cat([torch.tensor(ranks[number][case][name]) for number in members])


def add_parts(ranks: list[Any], members: range, case: str, name: str) -> torch.Tensor:
    return torch.stack([torch.tensor(ranks[number][case][name]) for number in members]).sum(dim=0)


@pytest.mark.parametrize("bn_ranks", [2, 4])
@pytest.mark.parametrize("layout", ["fp32", "channels_last"])
def test_a_span_is_like_one_process_with_the_whole_batch(layout: str, bn_ranks: int, ranks: list[Any]):
    case = f"{layout} of {bn_ranks}"
    images, weights = make_batch()
    for members in groups_of(bn_ranks):
        whole = slice(take_part(members[0]).start, take_part(members[-1]).stop)
        # In double precision: what both should be.
        network = make_network().double()
        expected = run_network(network, images[whole].double(), weights[whole].double(), layout)
        for name in ("output", "images", "evaluated"):
            assert close(join_parts(ranks, members, case, name), expected[name]), name
        for name in ("conv", "weight", "bias"):
            assert close(add_parts(ranks, members, case, name), expected[name]), name
        for number in members:
            found = ranks[number][case]
            assert close(torch.tensor(found["mean"]), expected["mean"])
            assert close(torch.tensor(found["var"]), expected["var"])
            assert found["batches"] == 2
            assert found["dense"] == (layout == "channels_last")


def close(found: torch.Tensor, expected: Any) -> bool:
    reference = torch.tensor(expected)
    return bool(((found - reference).abs() <= 1e-5 * max(1.0, float(reference.abs().max()))).all())


def test_groups_do_not_hear_each_other(ranks: list[Any]):
    pairs = [rank["fp32 of 2"]["mean"] for rank in ranks]
    assert pairs[0] == pairs[1] != pairs[2] == pairs[3]
    assert len({tuple(rank["fp32 of 4"]["mean"]) for rank in ranks}) == 1


@pytest.mark.parametrize(("dtype", "error"), [(torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_activations_of_16_bits_have_statistics_of_32(dtype: torch.dtype, error: float, ranks: list[Any]):
    images, weights = make_batch()
    activations = make_network()[0](images).detach()
    expected = run_half(make_network()[1][0], activations, weights, dtype)
    case, members = f"{dtype} of 4", range(4)
    found = {name: join_parts(ranks, members, case, name) for name in ("output", "images")}
    found["weight"] = add_parts(ranks, members, case, "weight")
    for name, tensor in found.items():
        reference = torch.tensor(expected[name])
        assert torch.allclose(tensor, reference, atol=error * float(reference.abs().max())), name
    for rank in ranks:  # not rounded to 16 bits
        assert torch.allclose(torch.tensor(rank[case]["var"]), torch.tensor(expected["var"]), rtol=1e-5)


def test_a_large_mean_does_not_hide_the_variance(ranks: list[Any]):
    images, _ = make_batch()
    moved = torch.cat([images[take_part(number)] + 3000 + number for number in range(RANKS)]).double()
    variance, mean = torch.var_mean(moved, dim=(0, 2, 3), correction=0)
    for rank in ranks:
        found_mean, found_variance = (torch.tensor(values) for values in rank["far"])
        assert torch.allclose(found_mean.double(), mean, rtol=1e-6)
        # A square of these, 9 million, is off by up to 0.5 in fp32.
        assert torch.allclose(found_variance.double(), variance, rtol=1e-3)


def test_a_span_that_does_not_divide_the_ranks_is_refused():
    with pytest.raises(ConfigError, match="bn_ranks = 3"):
        span_batch_norm(make_network(), World(Rank(0, 4), CPU), 3)


def test_every_batch_norm_is_replaced_and_keeps_its_tensors(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trainstone.train.distributed.open_group", lambda world, bn_ranks: object())
    model = build_resnet(18, num_classes=10)
    before = {name: id(tensor) for name, tensor in model.state_dict(keep_vars=True).items()}
    count = sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    spanned = span_batch_norm(model.eval(), World(Rank(0, 2), CPU), 2)
    assert {name: id(tensor) for name, tensor in spanned.state_dict(keep_vars=True).items()} == before
    assert sum(isinstance(module, SpanBatchNorm2d) for module in spanned.modules()) == count > 10
    assert not any(module.training for module in spanned.modules())
    images = torch.ones(1, 3, 32, 32)
    assert torch.equal(copy.deepcopy(spanned)(images), spanned(images))  # evaluation asks no other rank
