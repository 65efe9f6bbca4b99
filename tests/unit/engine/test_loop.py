import itertools
import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from support.processes.flows import LateTimer, SimulatedDevice
from trainstone.config.load import load_config
from trainstone.config.schema import MeasureConfig, OptimizerConfig
from trainstone.engine.distributed.collectives import World
from trainstone.engine.distributed.stop_agreement import StopAgreement
from trainstone.engine.ema import WeightAverage
from trainstone.engine.loop import StepMarks, capture_update, train_steps, update_weights
from trainstone.engine.network import apply_process_settings, seed_network
from trainstone.engine.optim import LossScale, set_rate
from trainstone.engine.task import DecayedLoss, Task, build_task
from trainstone.errors import RunError, TrainstoneError
from trainstone.flows.bench.stop_rule import StopRule
from trainstone.flows.speed_summary import sum_energy
from trainstone.machine.ranks import SINGLE_RANK
from trainstone.machine.signals import StopSignals
from trainstone.measure.clock import HostTimer
from trainstone.measure.recorder import StepRecorder
from trainstone.models.resnet import build_resnet
from trainstone.results.schema.run import Device
from trainstone.results.steps import StepRecord
from trainstone.workloads.registry import WORKLOADS

CPU = torch.device("cpu")


class ScriptedClock:
    """A clock that only the fake work moves."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def make_task(clock: ScriptedClock, *, split: bool = False) -> Task:
    """Build a task that takes 0.25 s for data, 1 s forward, 2 s backward and 0.5 s optimiser on the scripted clock."""
    model = nn.Linear(1, 1)

    def batches():
        for _ in itertools.count():
            clock.seconds += 0.25
            yield (torch.ones(4, 1),)

    def loss(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        clock.seconds += 1.0
        return model(batch[0]).square().mean()

    class Scale(LossScale):
        def backward(self, loss: torch.Tensor) -> None:
            clock.seconds += 2.0
            super().backward(loss)

        def step(self, optimizer: torch.optim.Optimizer) -> None:
            clock.seconds += 0.5
            super().step(optimizer)

    return Task(
        device=CPU,
        model=model,
        plain=model,
        loss=loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        rate=lambda _step: 0.1,
        scale=Scale(CPU, "fp32", "dynamic"),
        autocast=nullcontext,
        batches=batches(),
        loader=None,
        images_per_step=4,
        split_phases=split,
        cuda_graphs=False,
    )


def test_train_steps_times_step_from_data_wait_to_end():
    clock = ScriptedClock()
    records = list(train_steps(make_task(clock), HostTimer(now=clock), num_steps=3))
    assert [record.step for record in records] == [0, 1, 2]
    assert [record.step_seconds for record in records] == [3.75] * 3
    assert [record.data_seconds for record in records] == [0.25] * 3
    assert [record.start_seconds for record in records] == [0.0, 3.75, 7.5]
    assert {record.images for record in records} == {4}
    assert records[0].forward_seconds is None


@pytest.mark.parametrize("num_steps", [0, 1, 2, 5])
def test_train_steps_with_late_timer_yields_all_records_in_order(num_steps: int):
    clock, losses = ScriptedClock(), []
    for timer in (HostTimer(now=clock), LateTimer(now=clock)):
        torch.manual_seed(0)
        records = list(train_steps(make_task(clock), timer, num_steps=num_steps))
        assert [record.step for record in records] == list(range(num_steps))
        losses.append([record.loss for record in records])
    assert losses[0] == losses[1]


def test_train_steps_with_late_timer_yields_after_lag():
    clock = ScriptedClock()
    steps = train_steps(make_task(clock), LateTimer(now=clock))
    assert next(steps).step == 0
    assert clock.seconds == 100.0 + 3 * 3.75  # three steps were launched before the first came out


def make_queued_task(device: SimulatedDevice, device_seconds: float) -> Task:
    """Build a task that takes 0.25 s for data and 0.75 s to launch on the host, then device_seconds on the device."""
    task = make_task(ScriptedClock())

    def batches():
        while True:
            device.work_on_host(0.25)
            yield (torch.ones(4, 1),)

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        device.work_on_host(0.75)
        device.launch(device_seconds)
        return model(batch[0]).square().mean()

    return replace(task, loss=loss, batches=batches())


@pytest.mark.parametrize(("device_seconds", "step_seconds"), [(0.25, 1.5), (1.25, 1.5), (8.0, 8.0)])
def test_train_steps_with_late_timer_count_host_time_between_steps(device_seconds: float, step_seconds: float):
    """The host needs 1 s per step and 0.5 s to record it: a device that is faster than both waits for the host."""
    device, records = SimulatedDevice(), []
    for record in train_steps(make_queued_task(device, device_seconds), device, num_steps=20):
        records.append(record)
        device.work_on_host(0.5)
    steps = records[10:17]  # before, the device may have a queue; the last ones are recorded together
    assert [record.step_seconds for record in steps] == [step_seconds] * len(steps)
    if device_seconds < 1:  # nothing is queued: the steps follow the host's clock
        assert {record.data_seconds for record in steps} == {0.25}
        starts = [record.start_seconds for record in steps]
        assert np.diff(starts) == pytest.approx(step_seconds)


def test_train_steps_with_late_timer_leave_out_pauses():
    device, records = SimulatedDevice(), []
    for record in train_steps(make_queued_task(device, 0.25), device, num_steps=20):
        records.append(record)
        device.work_on_host(0.5)
        if record.step == 7:
            device.work_on_host(1000.0)
            device.pause()
    # Ten steps have been started. The eleventh begins after the pause.
    assert [record.step_seconds for record in records[3:17]] == [1.5] * 7 + [1.25] + [1.5] * 6
    assert records[10].start_seconds - records[9].start_seconds == 1000.0 + 2.0  # with 0.5 s to record two steps
    again = next(train_steps(make_queued_task(device, 0.25), device))  # a new loop with the same timer
    assert again.step_seconds < 2


@pytest.mark.parametrize("timer", [HostTimer(), LateTimer()])
def test_train_steps_records_decay_loss(timer: HostTimer):
    task = make_task(ScriptedClock())
    weights = [parameter.detach().clone() for parameter in task.plain.parameters()]
    decayed = DecayedLoss(task.loss, task.plain, OptimizerConfig(weight_decay=0.5, decay_in="loss"))
    first, *_, last = list(train_steps(replace(task, loss=decayed), timer, num_steps=5))
    assert first.decay_loss == pytest.approx(0.25 * sum(w.square().sum().item() for w in weights))
    assert last.decay_loss < first.decay_loss  # the term of its own step
    assert first.loss == pytest.approx(first.decay_loss + (weights[0] + weights[1]).square().item())
    assert next(train_steps(make_task(ScriptedClock()), HostTimer(), num_steps=1)).decay_loss is None


def step(number: int, seconds: float = 0.1, loss: float = 1.0) -> StepRecord:
    return StepRecord(number, 0, number * seconds, 0.0, seconds, 4, loss=loss, lr=0.1)


@pytest.mark.parametrize(
    ("measure", "seconds", "fewest", "most"),
    [
        ({"seconds": 10, "half_width": 1e-9}, 0.5, 20, 20),  # the budget ends at 10 s
        ({"seconds": 30, "half_width": 1e-9}, 0.5, 37, 37),  # it is used, but steps get 60 % of it after the first
        ({"seconds": 10, "half_width": 1e-9}, 0.55, 20, 20),  # 11 s for the two steps that an interval lacks
        ({"seconds": 10, "half_width": 1e-9}, 0.8, 13, 13),  # the missing ones would take too long
        ({"seconds": 600, "half_width": 0.05}, 0.1, 101, 199),  # narrow: ten seconds, and the next check after them
        ({"seconds": 1, "iterations": 500}, 0.5, 1000, 1000),  # a fixed number of steps ends by itself
    ],
)
def test_stop_rule_is_met_after_time_or_narrow_interval(
    tmp_path: Path, measure: dict[str, float], seconds: float, fewest: int, most: int
):
    """Count the steps until the rule is met, on a fake clock."""
    now = 0.0
    with StepRecorder(tmp_path / "steps.csv", split_phases=False) as recorder:
        rule = StopRule(MeasureConfig(**measure), HostTimer(now=lambda: now), recorder, end=10.0)
        for number in range(1000):
            now += seconds
            # Not all equal: equal steps give no interval.
            recorder.step(step(number, seconds * (1 + 0.01 * (number % 3))))
            if rule.is_met():
                break
    assert fewest <= number + 1 <= most


def test_stop_agreement_on_single_rank_is_immediate():
    with StopSignals() as signals:
        agreement = StopAgreement(World(SINGLE_RANK, CPU), signals)
        agreement.update(step(0))
        assert not any(agreement.agreed)
        assert not agreement.request_end(False)
        assert agreement.request_end(True)
        signals.received = "SIGTERM"
        agreement.update(step(1))
        assert agreement.agreed.stop
        with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
            agreement.raise_if_stopped()
        with pytest.raises(RunError, match="the loss of step 2 is nan"):
            agreement.update(step(2, loss=math.nan))


def device(host: str, label: str, watts: float | None, uuid: str | None = None) -> Device:
    telemetry = {} if watts is None else {"average_watts": watts, "meter": "NVML energy counter"}
    return Device(host=host, name="x", label=label, uuid=uuid, telemetry=telemetry)


def test_sum_energy_adds_devices_with_own_meters():
    energy = sum_energy([device("a", "cuda:0", 200.0), device("a", "cuda:1", 300.0)], 1000.0)
    assert (energy.average_watts, energy.joules_per_image, energy.meter) == (500.0, 0.5, "NVML energy counter")
    # Slurm may show each rank one GPU only.
    energy = sum_energy([device("a", "cuda:0", 200.0, "GPU-1"), device("a", "cuda:0", 300.0, "GPU-2")], 1000.0)
    assert energy.average_watts == 500.0
    same = [device("a", "cuda:0", 200.0, "GPU-1"), device("a", "cuda:1", 200.0, "GPU-1")]
    shared, lacking = [device("a", "cpu", 200.0)] * 2, [device("a", "cuda:0", 200.0), device("a", "cuda:1", None)]
    for devices in (same, shared, lacking, [device("a", "cpu", None)]):
        assert sum_energy(devices, 1000.0) is None


def test_capture_update_allows_other_threads_to_call_cuda(monkeypatch: pytest.MonkeyPatch):
    modes: list[str] = []
    fake = SimpleNamespace(
        Stream=lambda _device: SimpleNamespace(wait_stream=lambda _stream: None),
        current_stream=lambda _device: SimpleNamespace(wait_stream=lambda _stream: None),
        stream=nullcontext,
        CUDAGraph=lambda: SimpleNamespace(replay=lambda: None),
        graph=lambda _graph, capture_error_mode: nullcontext(modes.append(capture_error_mode)),
    )
    monkeypatch.setattr(torch, "cuda", fake)
    replay = capture_update(make_task(ScriptedClock()), (torch.ones(4, 1),), HostTimer())
    assert modes == ["thread_local"]
    assert isinstance(replay(None, (torch.zeros(4, 1),), None, None), Tensor)


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        *(
            ("demo-classify", [f"train.precision={precision}", "train.ema=0.9"])
            for precision in ("fp32", "bf16", "fp16")
        ),
        ("demo-classify", ["optimizer.name=lars", "train.precision=bf16"]),
        ("demo-classify", ["optimizer.name=lars", "train.precision=fp16", "train.loss_scale=1024.0"]),
        ("demo-classify", ["optimizer.momentum_correction=false", "optimizer.decay_in=loss", "train.precision=fp32"]),
        ("demo-detect", ["train.precision=bf16"]),
    ],
)
def test_update_reads_no_value_from_the_device(recipe: str, settings: list[str]):
    """Each would make the host wait for the device. Fake tensors have no data: reading a value raises."""
    config = load_config(recipe, settings=["data.image_size=64", "train.batch_size=4", "engine.threads=1", *settings])
    with FakeTensorMode(allow_non_fake_inputs=True):
        workload = WORKLOADS[config.workload]
        task = build_task(config, CPU, network=workload.build_model(config).train())
        batch = workload.empty_batch(config, 4)
        for step in range(3):
            set_rate(task.optimizer, 0.1 * step)
            loss = update_weights(task, batch, HostTimer(), StepMarks(0.0, None))
            if task.average:
                task.average.update(step)
        with pytest.raises(DataDependentOutputException):
            loss.item()


TINY = ["model.depth=18", "data.image_size=32", "train.precision=fp32", "train.batch_size=2", "engine.threads=1"]


def losses(*settings: str) -> list[float]:
    task = build_task(load_config("resnet50", settings=[*TINY, *settings]), CPU)
    return [record.loss for record in train_steps(task, HostTimer(), num_steps=4)]


def test_losses_depend_on_seed_only():
    found = losses()
    assert losses() == found != losses("seed=1")
    assert abs(losses("engine.channels_last=false")[0] - found[0]) < 1e-4


def test_build_task_applies_process_settings():
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


def test_weight_average_equals_recursion():
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


def test_weight_average_swapped_restores_trained_weights_bit_for_bit():
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
        move(model, 2)  # discarded, too
    assert [id(parameter) for parameter in model.parameters()] == tensors
    for parameter, bits in zip(model.parameters(), trained, strict=True):
        assert torch.equal(parameter.detach().view(torch.int32), bits)
    assert same(average.tensors, kept)


def test_weight_average_update_does_not_sync_device():
    """Meta tensors have no data: reading a value would raise."""
    average = WeightAverage(build_model().to("meta"), 0.9)
    average.update(0)
    assert all(tensor.is_meta for tensor in average.tensors.values())


SMALL = ["data.image_size=64", "model.width=16"]


def test_seed_network_loads_pretrained_backbone(tmp_path: Path):
    torch.manual_seed(7)
    weights = build_resnet(18, width=16, num_classes=10).state_dict()
    torch.save(weights, tmp_path / "r18.pth")
    settings = [*SMALL, f"model.pretrained={tmp_path / 'r18.pth'}"]
    model = seed_network(load_config("demo-detect", settings=settings), CPU)
    for name, tensor in model.backbone.state_dict().items():
        assert tensor.equal(weights[name]), name
    plain = seed_network(load_config("demo-detect", settings=SMALL), CPU)
    assert not plain.backbone.conv1.weight.equal(weights["conv1.weight"])
    # The other weights are initialised from the seed, as without pretrained weights.
    assert all(tensor.equal(plain.state_dict()[f"heads.{name}"]) for name, tensor in model.heads.state_dict().items())


@pytest.mark.parametrize("name", ["gone.pth", "r34.pth"])
def test_seed_network_reads_pretrained_weights_only_when_run_begins(tmp_path: Path, name: str):
    torch.save(build_resnet(34, width=16, num_classes=10).state_dict(), tmp_path / "r34.pth")
    config = load_config("demo-detect", settings=[*SMALL, f"model.pretrained={tmp_path / name}"])
    seed_network(config, CPU, begins=False)
    with pytest.raises(TrainstoneError, match=name.replace(".", r"\.")):
        seed_network(config, CPU)
