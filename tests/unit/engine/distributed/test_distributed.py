"""Collectives, stop agreement and data parallelism on three real gloo ranks, which then resume.

Synchronised batch norm on four real ranks, in pairs and all together, compared with torch's over the whole batch.
"""

import copy
import json
import math
import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from support.processes.forked import join_world, run_ranks
from trainstone.config.schema import ParallelConfig
from trainstone.engine import fit, sync_batch_norm, torch_errors
from trainstone.engine.distributed import collectives, data_parallel
from trainstone.engine.distributed.collectives import World
from trainstone.engine.distributed.data_parallel import average_buffers, rebuild_buckets, wrap_model
from trainstone.engine.distributed.rendezvous import log_isolated_devices
from trainstone.engine.distributed.roll_call import RollCall
from trainstone.engine.distributed.stop_agreement import StopAgreement
from trainstone.engine.distributed.store import Deadline
from trainstone.engine.sync_batch_norm import convert_sync_batch_norm
from trainstone.errors import ConfigError, MachineError, PeerLostError
from trainstone.machine.ranks import Rank
from trainstone.machine.signals import StopSignals
from trainstone.models.resnet import build_resnet
from trainstone.results.steps import StepRecord

CPU = torch.device("cpu")
SMALL = {"bucket_bytes": 1024, "timeout_seconds": 60.0}  # many buckets even of a small network
# Settings of the gradient all-reduce, and batches per step. A resumed run must be exact with each.
SETTINGS: dict[str, tuple[dict[str, Any], int]] = {
    "plain": ({}, 1),
    "static": ({"static_graph": True}, 1),
    "accumulated and compressed": ({"compression": "bf16"}, 2),
}
State = dict[str, list[Any]]


def make_network() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 24, 3),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 10),
    )


def compute_loss(model: nn.Module, number: int) -> torch.Tensor:
    numbers = torch.Generator().manual_seed(number)
    images = torch.randn(4, 3, 10, 10, generator=numbers)
    return nn.functional.cross_entropy(model(images), torch.randint(10, (4,), generator=numbers))


def train(
    world: World, parallel: dict[str, Any], accumulate: int = 1, start: State | None = None, rebuilt: bool = True
) -> dict[str, State]:
    """Train steps 0 to 5, or 3 to 5 from a saved state; return the states after steps 2 and 5."""
    network = make_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    if start:
        for parameter, momentum in zip(network.parameters(), start["momenta"], strict=True):
            optimizer.state[parameter]["momentum_buffer"] = torch.tensor(momentum)
        for tensor, values in zip(network.state_dict().values(), start["tensors"], strict=True):
            tensor.copy_(torch.tensor(values, dtype=tensor.dtype))
    model = wrap_model(network, world, ParallelConfig(**SMALL, **parallel))
    torch.manual_seed(100 + world.rank.number)
    if rebuilt:
        rebuild_buckets(model, lambda: compute_loss(model, 0).backward())
    halfway = start or {}
    for step in range(3 if start else 0, 6):
        torch.manual_seed(1000 * step + world.rank.number)
        for part in range(accumulate):
            last = part == accumulate - 1
            with nullcontext() if last else model.no_sync():
                (compute_loss(model, 100 * step + 10 * part + world.rank.number) / accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 2:
            average_buffers(model.buffers(), world)
            halfway = save_state(network, optimizer)
    return {"halfway": halfway, "end": save_state(network, optimizer)}


def save_state(network: nn.Module, optimizer: torch.optim.Optimizer) -> State:
    momenta = [optimizer.state[parameter]["momentum_buffer"].tolist() for parameter in network.parameters()]
    return {"momenta": momenta, "tensors": [tensor.tolist() for tensor in network.state_dict().values()]}


def drop_statistics(state: State) -> State:
    """Return the state without running statistics, which differ between ranks until they are averaged."""
    names = make_network().state_dict()
    kept = [values for name, values in zip(names, state["tensors"], strict=True) if "running" not in name]
    return {**state, "tensors": kept}


def check_messages(world: World) -> dict[str, Any]:
    number = world.rank.number
    norm = nn.BatchNorm2d(2)
    norm.running_mean.fill_(number)
    norm.running_var.copy_(torch.tensor([1.0, 4.0]) * number)
    norm.num_batches_tracked.fill_(number)
    average_buffers(norm.buffers(), world)
    collectives.barrier(world)
    rows = collectives.gather_rows(world, torch.full((2 * number, 2), float(number)))
    return {
        "place": [world.rank, str(world.device), world.is_single_rank],
        "gathered": collectives.gather(world, {"name": "ä" * number, "rank": number, "loss": [1.5, None]}),
        "rows": rows if rows is None else rows.tolist(),
        "received": collectives.broadcast_dict(world, {"run": "ö", "seed": 3} if number == 0 else None),
        "norm": [norm.running_mean.tolist(), norm.running_var.tolist(), int(norm.num_batches_tracked)],
    }


def check_agreement(world: World) -> list[list[int]]:
    """Rank 0 requests the end at step 1, rank 1 gets a signal at step 2, rank 2 a NaN and a checkpoint at step 3."""
    signals, known = StopSignals(), []
    agreement = StopAgreement(world, signals)
    for step in range(5):
        now = (step, world.rank.number)
        signals.received = "SIGTERM" if now == (2, 1) else None
        loss = math.nan if now == (3, 2) else 1.0
        agreement.update(StepRecord(step, 0, 0.0, 0.0, 0.1, 4, loss, 0.1), end=now == (1, 0), checkpoint=now == (3, 2))
        known.append(list(agreement.agreed))
    agreement.finish()
    return [*known, list(agreement.agreed)]


def check_gradients(world: World) -> dict[str, Any]:
    """Return the gradients of one backward for each compression, and the mean of all ranks' own gradients."""
    found = {}
    for compression in ("none", "fp16", "bf16"):
        network = make_network().eval()
        with torch.no_grad():
            network[0].weight.add_(world.rank.number)  # wrapping makes them equal again
        model = wrap_model(network, world, ParallelConfig(**SMALL, compression=compression))
        compute_loss(model, world.rank.number).backward()
        found[compression] = network[0].weight.grad.flatten().tolist()
    own = make_network().eval()
    compute_loss(own, world.rank.number).backward()
    dist.all_reduce(own[0].weight.grad)
    found["mean"] = (own[0].weight.grad / world.rank.world).flatten().tolist()
    return found


def check_rebuild(world: World) -> dict[str, Any]:
    """Check that rebuild_buckets restores weights, gradients and random state."""
    network = make_network()
    model = wrap_model(network, world, ParallelConfig(**SMALL))
    before = [tensor.tolist() for tensor in network.state_dict().values()]
    torch.manual_seed(5)
    rebuild_buckets(model, lambda: compute_loss(model, 0).backward())
    drawn = torch.rand(3).tolist()
    torch.manual_seed(5)
    return {
        "same": before == [tensor.tolist() for tensor in network.state_dict().values()],
        "gradients": sum(parameter.grad is not None for parameter in network.parameters()),
        "random": drawn == torch.rand(3).tolist(),
    }


def check_and_train(folder: str) -> Any:
    """Run all checks on three ranks; rank 2 exits at the end, rank 0 returns the answers of all."""
    with join_world(ParallelConfig(**SMALL)) as world:
        found = {
            "messages": check_messages(world),
            "agreement": check_agreement(world),
            "gradients": check_gradients(world),
            "rebuild": check_rebuild(world),
            "trained": {name: train(world, *setting) for name, setting in SETTINGS.items()},
        }
        answers = collectives.gather(world, found)
        if answers:
            Path(folder, "checkpoint.json").write_text(json.dumps(answers[0]["trained"]))
        collectives.barrier(world)
        if world.rank.number == 2:
            os._exit(0)
        try:
            dist.all_reduce(torch.ones(1), group=world.control)
        except RuntimeError as err:
            explained = torch_errors.explain_torch_error(err)
            return {"answers": answers, "peer": [explained.message, explained.hint] if explained else str(err)}
        return None


def resume(folder: str) -> Any:
    saved = json.loads(Path(folder, "checkpoint.json").read_text())
    with join_world(ParallelConfig(**SMALL)) as world:
        ends = {name: train(world, *setting, start=saved[name]["halfway"])["end"] for name, setting in SETTINGS.items()}
        not_rebuilt = train(world, {}, start=saved["plain"]["halfway"], rebuilt=False)["end"]
        return {**ends, "not_rebuilt": not_rebuilt}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def returned(folder: Path) -> list[Any]:
    return run_ranks(3, check_and_train, folder, str(folder))


@pytest.fixture(scope="module")
def answers(returned: list[Any]) -> list[Any]:
    """The results of each rank."""
    answers: list[Any] = returned[0]["answers"]
    assert len(answers) == 3
    return answers


@pytest.fixture(scope="module")
def resumed(folder: Path, answers: list[Any]) -> list[Any]:
    return run_ranks(3, resume, folder / "resumed", str(folder))


def test_gather_and_broadcast_between_ranks(answers: list[Any]):
    messages = [answer["messages"] for answer in answers]
    assert [message["place"] for message in messages] == [[[number, 3, number], "cpu", False] for number in range(3)]
    documents = [{"name": "ä" * number, "rank": number, "loss": [1.5, None]} for number in range(3)]
    assert [message["gathered"] for message in messages] == [documents, None, None]
    assert [message["rows"] for message in messages] == [[[1.0, 1.0]] * 2 + [[2.0, 2.0]] * 4, None, None]
    assert all(message["received"] == {"run": "ö", "seed": 3} for message in messages)
    # Running statistics are averaged, counters are not changed.
    assert [message["norm"] for message in messages] == [[[1.0, 1.0], [1.0, 4.0], number] for number in range(3)]


def test_stop_agreement_is_known_one_step_later(answers: list[Any]):
    for answer in answers:
        none, enough, stop = [0, 0, 0, 0], [0, 0, 1, 0], [0, 1, 1, 0]
        assert answer["agreement"] == [none, none, enough, stop, [4, 1, 1, 1], [4, 1, 1, 1]]


def test_wrap_model_averages_gradients(answers: list[Any]):
    found = [answer["gradients"] for answer in answers]
    assert found[0] == found[1] == found[2]
    gradients = {name: torch.tensor(values) for name, values in found[0].items()}
    size = gradients["mean"].abs().max()
    assert torch.allclose(gradients["none"], gradients["mean"], atol=1e-6 * size)
    for compression, error in (("fp16", 1e-3), ("bf16", 1e-2)):
        assert not torch.equal(gradients[compression], gradients["none"])  # it was compressed
        assert torch.allclose(gradients[compression], gradients["mean"], atol=error * size)


@pytest.mark.parametrize("setting", SETTINGS)
def test_resumed_ranks_equal_uninterrupted_ranks(setting: str, answers: list[Any], resumed: list[Any]):
    for straight, again in zip(answers, resumed, strict=True):
        assert straight["trained"][setting]["end"] != straight["trained"][setting]["halfway"]
        assert again[setting] == straight["trained"][setting]["end"]
    assert all(
        drop_statistics(again[setting]) == drop_statistics(resumed[0][setting]) for again in resumed
    )  # all ranks have the same model


def test_rebuild_buckets_keeps_state_and_makes_resume_exact(answers: list[Any], resumed: list[Any]):
    assert [answer["rebuild"] for answer in answers] == [{"same": True, "gradients": 0, "random": True}] * 3
    assert drop_statistics(resumed[0]["not_rebuilt"]) != drop_statistics(answers[0]["trained"]["plain"]["end"])


def test_dead_rank_is_reported_as_lost_peer(returned: list[Any]):
    assert returned[2] is None
    for answer in returned[:2]:
        message, hint = answer["peer"]
        assert message.startswith("another rank died or does not answer: ")
        assert "--resume" in hint


@pytest.mark.parametrize(
    ("text", "recognised"),
    [
        ("[pair.cc:537] Read error [127.0.0.1]:42375: Connection reset by peer. GLHF!", True),
        ("[unbound_buffer.cc:81] Timed out waiting 5000ms for recv operation to complete", True),
        ("NCCL error: ncclRemoteError: A call failed possibly due to a network error or a remote process exited", True),
        ("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)", True),
        ("CUDA out of memory", False),
    ],
)
def test_explain_torch_error_recognises_peer_errors(text: str, recognised: bool):
    explained = torch_errors.explain_torch_error(RuntimeError(text))
    assert isinstance(explained, PeerLostError) == recognised


def test_place_device_gives_each_rank_its_own_device(monkeypatch: pytest.MonkeyPatch):
    cuda, rank = torch.device("cuda"), Rank(5, 8, 1)
    assert data_parallel.place_device(CPU, rank) == CPU
    assert data_parallel.place_device(torch.device("cuda:3"), rank) == torch.device("cuda:3")
    for seen, index in ((4, 1), (1, 0)):
        monkeypatch.setattr(torch.accelerator, "device_count", lambda seen=seen: seen)
        assert data_parallel.place_device(cuda, rank) == torch.device("cuda", index)
        assert data_parallel.place_device(torch.device("xpu"), rank) == torch.device("xpu", index)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    with pytest.raises(MachineError, match=r"no CUDA device for rank 6 \(local rank 2\): its host has 2 CUDA devices"):
        data_parallel.place_device(cuda, Rank(6, 8, 2))


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
@pytest.mark.parametrize("requested", ["auto", "the kind"])
def test_choose_rank_device_places_ranks_on_any_kind_of_accelerator(
    requested: str, kind: str, monkeypatch: pytest.MonkeyPatch
):
    bound: list[Any] = []
    monkeypatch.setattr(fit, "bind_cores", lambda rank, gpus=None: bound.append((rank.local, gpus)))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind))
    for module in (torch.accelerator, torch.cuda):
        monkeypatch.setattr(module, "device_count", lambda: 3)
    numbers = {0: (0, 0x1B, 0), 1: (0, 0x3D, 0), 2: (1, 0x00, 0x1F)}
    properties = {
        index: SimpleNamespace(pci_domain_id=domain, pci_bus_id=bus, pci_device_id=device)
        for index, (domain, bus, device) in numbers.items()
    }
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties.get)
    name = kind if requested == "the kind" else requested
    assert [fit.choose_rank_device(name, Rank(number, 3, number)) for number in range(3)] == [
        torch.device(kind, number) for number in range(3)
    ]
    gpus = ["0000:1b:00.0", "0000:3d:00.0", "0001:00:1f.0"]
    assert bound == ([(number, gpus) for number in range(3)] if kind == "cuda" else [])
    assert fit.choose_rank_device("cpu", Rank(1, 3, 1)) == CPU
    assert bound[-1] == (1, None)


def test_log_isolated_devices_warns_when_each_rank_sees_one_gpu(caplog: pytest.LogCaptureFixture):
    def log_hosts(backend: str, *hosts: tuple[str, int, int]) -> str:
        caplog.clear()
        documents = [{"host": name, "devices": devices, "ranks": list(range(ranks))} for name, devices, ranks in hosts]
        log_isolated_devices(RollCall(None, CPU, backend, "eth0", documents, Deadline.after(1)))
        return caplog.text

    assert "each rank on n2 sees only its own GPU" in log_hosts("nccl", ("n1", 4, 4), ("n2", 1, 4))
    assert log_hosts("nccl", ("n1", 4, 4), ("n2", 1, 1)) == ""
    assert log_hosts("gloo", ("n1", 0, 4)) == ""


RANKS = 4
COUNTS = (3, 1, 2, 2)  # images of each rank


def make_normed() -> nn.Sequential:
    torch.manual_seed(3)
    network = nn.Sequential(nn.Conv2d(3, 5, 3, bias=False), nn.Sequential(nn.BatchNorm2d(5), nn.SiLU()))
    norm = network[1][0]
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    nn.init.uniform_(norm.bias, -1, 1)
    return network


def make_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the images of all ranks, and the weights of the outputs in their loss."""
    numbers = torch.Generator().manual_seed(11)
    images = torch.randn(sum(COUNTS), 3, 6, 6, generator=numbers) + 1
    return images, torch.randn(sum(COUNTS), 5, 4, 4, generator=numbers)


def run_network(network: nn.Module, images: torch.Tensor, weights: torch.Tensor, layout: str) -> dict[str, Any]:
    """Run forward and backward twice without updates; return outputs, gradients and running statistics."""
    images = images.clone()
    if layout == "channels_last":
        network.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    images.requires_grad_()
    for factor in (1.0, 0.5):
        network.zero_grad()
        images.grad = None
        output = network(images * factor)
        (output * weights).sum().backward()
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
    return found | {"dense": output.is_contiguous(memory_format=torch.channels_last)}


def run_half(norm: nn.Module, images: torch.Tensor, weights: torch.Tensor, dtype: torch.dtype) -> dict[str, Any]:
    """Run with 16-bit activations and fp32 parameters and statistics."""
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


def norm_in_ranks() -> dict[str, Any]:
    with join_world(ParallelConfig(timeout_seconds=60.0)) as world:
        images, weights = (tensor[take_part(world.rank.number)] for tensor in make_batch())
        found: dict[str, Any] = {}
        for bn_ranks in (2, 4):
            network = convert_sync_batch_norm(make_normed(), world, bn_ranks)
            shared = {id(network[1][0].group): network[1][0].group}  # a process group cannot be copied
            for layout in ("fp32", "channels_last"):
                copied = copy.deepcopy(network, dict(shared))
                found[f"{layout} of {bn_ranks}"] = run_network(copied, images, weights, layout)
            activations = make_normed()[0](images).detach()
            for dtype in (torch.bfloat16, torch.float16):
                half = run_half(copy.deepcopy(network[1][0], dict(shared)), activations, weights, dtype)
                found[f"{dtype} of {bn_ranks}"] = half
        far, near, _ = sync_batch_norm.share_statistics(images + 3000 + world.rank.number, network[1][0].group)
        return found | {"far": [far.tolist(), near.tolist()]}


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return run_ranks(RANKS, norm_in_ranks, Path(tmp_path_factory.mktemp("span")))


def list_parts(groups: list[Any], members: range, case: str, name: str) -> list[torch.Tensor]:
    return [torch.tensor(groups[number][case][name]) for number in members]


@pytest.mark.parametrize("bn_ranks", [2, 4])
@pytest.mark.parametrize("layout", ["fp32", "channels_last"])
def test_sync_batch_norm_equals_batch_norm_on_whole_batch(layout: str, bn_ranks: int, groups: list[Any]):
    case = f"{layout} of {bn_ranks}"
    images, weights = make_batch()
    for members in (range(first, first + bn_ranks) for first in range(0, RANKS, bn_ranks)):
        whole = slice(take_part(members[0]).start, take_part(members[-1]).stop)
        # Reference in double precision.
        network = make_normed().double()
        expected = run_network(network, images[whole].double(), weights[whole].double(), layout)
        for name in ("output", "images", "evaluated"):
            assert close(torch.cat(list_parts(groups, members, case, name)), expected[name]), name
        for name in ("conv", "weight", "bias"):
            assert close(torch.stack(list_parts(groups, members, case, name)).sum(dim=0), expected[name]), name
        for number in members:
            found = groups[number][case]
            assert close(torch.tensor(found["mean"]), expected["mean"])
            assert close(torch.tensor(found["var"]), expected["var"])
            assert found["batches"] == 2
            assert found["dense"] == (layout == "channels_last")


def close(found: torch.Tensor, expected: Any) -> bool:
    reference = torch.tensor(expected)
    return bool(((found - reference).abs() <= 1e-5 * max(1.0, float(reference.abs().max()))).all())


def test_sync_batch_norm_groups_are_independent(groups: list[Any]):
    pairs = [rank["fp32 of 2"]["mean"] for rank in groups]
    assert pairs[0] == pairs[1] != pairs[2] == pairs[3]
    assert len({tuple(rank["fp32 of 4"]["mean"]) for rank in groups}) == 1


@pytest.mark.parametrize(("dtype", "error"), [(torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_sync_batch_norm_keeps_fp32_statistics_for_16_bit_activations(
    dtype: torch.dtype, error: float, groups: list[Any]
):
    images, weights = make_batch()
    activations = make_normed()[0](images).detach()
    expected = run_half(make_normed()[1][0], activations, weights, dtype)
    case, members = f"{dtype} of 4", range(4)
    found = {name: torch.cat(list_parts(groups, members, case, name)) for name in ("output", "images")}
    found["weight"] = torch.stack(list_parts(groups, members, case, "weight")).sum(dim=0)
    for name, tensor in found.items():
        reference = torch.tensor(expected[name])
        assert torch.allclose(tensor, reference, atol=error * float(reference.abs().max())), name
    for rank in groups:  # not rounded to 16 bits
        assert torch.allclose(torch.tensor(rank[case]["var"]), torch.tensor(expected["var"]), rtol=1e-5)


def test_share_statistics_is_exact_with_large_mean(groups: list[Any]):
    images, _ = make_batch()
    moved = torch.cat([images[take_part(number)] + 3000 + number for number in range(RANKS)]).double()
    variance, mean = torch.var_mean(moved, dim=(0, 2, 3), correction=0)
    for rank in groups:
        found_mean, found_variance = (torch.tensor(values) for values in rank["far"])
        assert torch.allclose(found_mean.double(), mean, rtol=1e-6)
        # The squares, about 9 million, have an fp32 error of up to 0.5.
        assert torch.allclose(found_variance.double(), variance, rtol=1e-3)


class RecordedBackward(TorchDispatchMode):
    """Records the arguments and the result of native_batch_norm_backward."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.native_batch_norm_backward.default:
            self.arguments, self.result = args, result
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_sync_batch_norm_backward_has_the_tensors_that_cuda_requires(
    layout: torch.memory_format, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
):
    """CUDA's kernel asserts that saved mean and inverse are tensors, the CPU's does not use them."""
    monkeypatch.setattr(sync_batch_norm.dist, "all_reduce", lambda *_, **__: None)
    images = (torch.randn(4, 6, 5, 5) * 3 + 2).to(dtype, memory_format=layout).requires_grad_()
    weight, bias = torch.rand(6, requires_grad=True), torch.zeros(6, requires_grad=True)
    variance, mean = torch.var_mean(images.detach().float(), dim=(0, 2, 3), correction=0)
    with RecordedBackward() as recorded:
        output = sync_batch_norm.Normalise.apply(images, weight, bias, mean, variance, torch.tensor(100.0), 1e-5, None)
        output.square().sum().backward()
    *before, saved_mean, saved_inverse, training, eps, mask = recorded.arguments
    assert torch.equal(saved_mean, mean)
    assert torch.allclose(saved_inverse, 1 / (variance + 1e-5).sqrt())
    assert saved_mean.dtype == saved_inverse.dtype == torch.float32
    without = torch.ops.aten.native_batch_norm_backward(*before, None, None, training, eps, mask)
    assert all(torch.equal(one, other) for one, other in zip(recorded.result[1:], without[1:], strict=True))


def test_convert_sync_batch_norm_refuses_group_size_that_does_not_divide_ranks():
    with pytest.raises(ConfigError, match="bn_ranks = 3"):
        convert_sync_batch_norm(make_normed(), World(Rank(0, 4), CPU), 3)


def test_convert_sync_batch_norm_replaces_all_and_keeps_tensors(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trainstone.engine.sync_batch_norm.open_group", lambda world, bn_ranks: object())
    model = build_resnet(18, num_classes=10)
    before = {name: id(tensor) for name, tensor in model.state_dict(keep_vars=True).items()}
    count = sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    converted = convert_sync_batch_norm(model.eval(), World(Rank(0, 2), CPU), 2)
    assert {name: id(tensor) for name, tensor in converted.state_dict(keep_vars=True).items()} == before
    assert sum(isinstance(module, sync_batch_norm.SyncBatchNorm2d) for module in converted.modules()) == count > 10
    assert not any(module.training for module in converted.modules())
    images = torch.ones(1, 3, 32, 32)
    assert torch.equal(copy.deepcopy(converted)(images), converted(images))  # evaluation does not communicate
