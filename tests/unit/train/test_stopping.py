import math
from pathlib import Path

import pytest
import torch

from trainstone.config.schema import MeasureConfig
from trainstone.errors import RunError
from trainstone.machine.ranks import ALONE
from trainstone.machine.signals import StopSignals
from trainstone.measure.clock import HostTimer
from trainstone.measure.recorder import StepRecorder
from trainstone.results.schema import Device
from trainstone.results.steps import StepRecord
from trainstone.train.conclude import sum_energy
from trainstone.train.distributed import World
from trainstone.train.stopping import Pact, StopRule

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
    assert energy is not None
    assert (energy.average_watts, energy.joules_per_image, energy.meter) == (500.0, 0.5, "NVML energy counter")
    shared, lacking = [device("a", "cpu", 200.0)] * 2, [device("a", "cuda:0", 200.0), device("a", "cuda:1", None)]
    for devices in (shared, lacking, [device("a", "cpu", None)]):
        assert sum_energy(devices, 1000.0) is None
