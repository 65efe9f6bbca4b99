import itertools
import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from flows import LateTimer
from trainstone.config.schema import MeasureConfig, OptimizerConfig
from trainstone.errors import RunError
from trainstone.machine.ranks import ALONE
from trainstone.machine.signals import StopSignals
from trainstone.measure.clock import HostTimer
from trainstone.measure.recorder import StepRecorder
from trainstone.results.schema import Device
from trainstone.results.steps import StepRecord
from trainstone.train.conclude import sum_energy
from trainstone.train.distributed import World
from trainstone.train.loop import train_steps
from trainstone.train.optim import LossScale
from trainstone.train.stopping import Pact, StopRule
from trainstone.train.task import DecayedLoss, Task

CPU = torch.device("cpu")


class ScriptedClock:
    """Moves only when the work says so."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def make_task(clock: ScriptedClock, *, split: bool = False) -> Task:
    """A task whose batch takes 0.25 s to come, forward 1 s, backward 2 s, optimiser 0.5 s on the scripted clock."""
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


def test_a_step_is_timed_from_its_wait_for_data_to_its_end():
    clock = ScriptedClock()
    records = list(train_steps(make_task(clock), HostTimer(now=clock), num_steps=3))
    assert [record.step for record in records] == [0, 1, 2]
    assert [record.step_seconds for record in records] == [3.75] * 3
    assert [record.data_seconds for record in records] == [0.25] * 3
    assert [record.start_seconds for record in records] == [0.0, 3.75, 7.5]
    assert {record.images for record in records} == {4}
    assert records[0].forward_seconds is None


@pytest.mark.parametrize("num_steps", [0, 1, 2, 5])
def test_late_records_all_come_in_order(num_steps: int):
    clock, losses = ScriptedClock(), []
    for timer in (HostTimer(now=clock), LateTimer(now=clock)):
        torch.manual_seed(0)
        records = list(train_steps(make_task(clock), timer, num_steps=num_steps))
        assert [record.step for record in records] == list(range(num_steps))
        losses.append([record.loss for record in records])
    assert losses[0] == losses[1]


def test_a_late_record_is_yielded_only_after_its_lag():
    clock = ScriptedClock()
    steps = train_steps(make_task(clock), LateTimer(now=clock))
    assert next(steps).step == 0
    assert clock.seconds == 100.0 + 3 * 3.75  # three steps were launched before the first came out


@pytest.mark.parametrize("timer", [HostTimer(), LateTimer()])
def test_decay_that_is_part_of_the_loss_is_recorded_by_itself(timer: HostTimer):
    task = make_task(ScriptedClock())
    weights = [parameter.detach().clone() for parameter in task.plain.parameters()]
    decayed = DecayedLoss(task.loss, task.plain, OptimizerConfig(weight_decay=0.5, decay_in="loss"))
    first, *_, last = list(train_steps(replace(task, loss=decayed), timer, num_steps=5))
    assert first.decay_loss == pytest.approx(0.25 * sum(w.square().sum().item() for w in weights))
    assert last.decay_loss < first.decay_loss  # it goes on being that of its own step
    assert first.loss == pytest.approx(first.decay_loss + (weights[0] + weights[1]).square().item())
    assert next(train_steps(make_task(ScriptedClock()), HostTimer(), num_steps=1)).decay_loss is None


WORLD = World(ALONE, torch.device("cpu"))


def step(number: int, seconds: float = 0.1, loss: float = 1.0) -> StepRecord:
    return StepRecord(number, 0, number * seconds, 0.0, seconds, 4, loss=loss, lr=0.1)


def count_steps(folder: Path, measure: MeasureConfig, seconds: float, most: int = 1000) -> int:
    """How many steps of so many seconds the rule lets pass, by a clock of its own."""
    now = 0.0
    with StepRecorder(folder / "steps.csv", split_phases=False) as recorder:
        rule = StopRule(measure, HostTimer(now=lambda: now), recorder)
        for number in range(most):
            now += seconds
            # Not all alike: of equal ones nothing can be said.
            recorder.step(step(number, seconds * (1 + 0.01 * (number % 3))))
            if rule.is_enough():
                return number + 1
    return most


@pytest.mark.parametrize(
    ("measure", "seconds", "fewest", "most"),
    [
        ({"seconds": 10, "half_width": 1e-9}, 0.5, 21, 21),  # from the end of the first step
        ({"seconds": 600, "half_width": 0.05}, 0.1, 101, 199),  # narrow: ten seconds, and the next look after them
        ({"seconds": 1, "iterations": 500}, 0.5, 1000, 1000),  # counted steps end by themselves
    ],
)
def test_when_it_is_enough(tmp_path: Path, measure: dict[str, float], seconds: float, fewest: int, most: int):
    assert fewest <= count_steps(tmp_path, MeasureConfig(**measure), seconds) <= most


def test_alone_all_is_known_at_once():
    with StopSignals() as signals:
        pact = Pact(WORLD, signals)
        pact.look(step(0))
        assert not any(pact.agreed)
        assert not pact.wish_end(False)
        assert pact.wish_end(True)
        signals.received = "SIGTERM"
        pact.look(step(1))
        assert pact.agreed.stop
        with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
            pact.end_if_stopped()
        with pytest.raises(RunError, match="the loss of step 2 is nan"):
            pact.look(step(2, loss=math.nan))


def device(host: str, label: str, watts: float | None) -> Device:
    telemetry = {} if watts is None else {"average_watts": watts, "meter": "NVML energy counter"}
    return Device(host=host, name="x", label=label, telemetry=telemetry)


def test_energy_of_several_devices_is_the_sum_of_their_own_meters():
    energy = sum_energy([device("a", "cuda:0", 200.0), device("a", "cuda:1", 300.0)], 1000.0)
    assert (energy.average_watts, energy.joules_per_image, energy.meter) == (500.0, 0.5, "NVML energy counter")
    shared, lacking = [device("a", "cpu", 200.0)] * 2, [device("a", "cuda:0", 200.0), device("a", "cuda:1", None)]
    for devices in (shared, lacking, [device("a", "cpu", None)]):
        assert sum_energy(devices, 1000.0) is None
