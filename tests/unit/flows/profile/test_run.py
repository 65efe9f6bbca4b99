from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from support.builders.results import make_timeline
from support.processes.flows import LateTimer, SimulatedDevice, drain, follow
from trainstone.config.load import load_config
from trainstone.engine.distributed.collectives import World
from trainstone.engine.distributed.stop_agreement import StopAgreement
from trainstone.engine.fit import Fitted
from trainstone.engine.task import build_task
from trainstone.errors import MachineError
from trainstone.flows import observation
from trainstone.flows.profile import run as profiling
from trainstone.flows.profile.run import assess_overhead, build_finding, plan_window, record_window, run_profile
from trainstone.machine.ranks import SINGLE_RANK
from trainstone.machine.signals import StopSignals
from trainstone.measure import profiler as measure_profiler
from trainstone.measure.clock import HostTimer
from trainstone.measure.flops import StepWork
from trainstone.measure.peaks import Peaks
from trainstone.measure.profiler import ProfileWindow
from trainstone.measure.recorder import StepRecorder
from trainstone.results.run_folder import RunFolder, create_run, read_result
from trainstone.results.schema.run import Result
from trainstone.results.step_parts import PARTS
from trainstone.results.steps import read_columns

SMALL = (
    "device='cpu'",
    "engine.threads=1",
    "engine.keep_memory=false",
    "model.depth=18",
    "model.width=16",
    "data.image_size=32",
    "train.batch_size=2",
    "train.precision='fp32'",
)


@pytest.fixture(autouse=True)
def _quick_peaks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(observation, "measure_peaks", lambda *_: Peaks(1e11, "made up", 1e10))


def profile_here(folder: Path, **how: Any) -> tuple[RunFolder, Result]:
    config = load_config("resnet50", settings=SMALL)
    run = create_run(folder, "profile", config, "trainstone profile")
    drain(follow(partial(run_profile, **how), config, run))
    return run, read_result(run.path)


def test_run_profile_result_accounts_for_step_time(tmp_path: Path):
    run, result = profile_here(tmp_path, start=7, iterations=3)
    timeline = result.timeline
    assert result.status == "ok"
    assert [step.step for step in timeline.steps] == [7, 8, 9]
    for step in timeline.steps:
        assert sum(getattr(step, name) for name in PARTS.values()) == pytest.approx(step.seconds, rel=1e-9)
        assert step.compute_seconds > step.optimizer_seconds > 0
    assert timeline.accounted_share > 0.9
    assert (timeline.trace, timeline.rank) == ("trace/rank0000.json.gz", 0)
    assert (run.path / timeline.trace).stat().st_size > 10_000
    assert timeline.trace in result.files
    assert result.verdict.startswith("ResNet-18: operators run for ")
    # Every step is recorded, and the profiled ones do not count.
    columns = read_columns(run.path / "steps-rank0000.csv", ("step_seconds",))
    assert len(columns["step_seconds"]) == 7 + 3 + profiling.AFTER_STEPS
    assert timeline.overhead.profiled_steps == 3
    # Six before the profiler's warm-up, five after it; some of them are warm-up of the run.
    assert result.throughput.num_steps + result.throughput.steady_from_step == 6 + profiling.AFTER_STEPS
    (message,) = (found for found in result.findings if found.code == "profiled")
    assert message.message.startswith("steps 7 to 9 were profiled: each took ")
    assert "few-steps" not in [found.code for found in result.findings]
    # The roofline includes convolutions and the optimiser.
    roofline = timeline.roofline
    assert (roofline.peak_flops, roofline.peak_source, roofline.peak_bytes_per_second) == (1e11, "made up", 1e10)
    assert roofline.covered_share > 0.5
    found = {point.operator: point for point in roofline.operators}
    assert any("fused_sgd" in name for name in found)
    convolutions = [found["aten::convolution"], found["aten::convolution_backward"]]
    # ResNet-18 has 20 convolutions; with the classifier their FLOPs are those of the whole step.
    assert [point.calls for point in convolutions] == [20, 20]
    products = [found[name] for name in ("aten::addmm", "aten::mm") if name in found]
    flops = sum(point.flops for point in convolutions + products)
    assert flops == pytest.approx(2 * result.utilisation.flops_per_image)


def test_run_profile_with_late_timer_profiles_requested_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(profiling, "choose_timer", lambda _device: LateTimer())
    run, result = profile_here(tmp_path, start=8, iterations=2)
    assert [step.step for step in result.timeline.steps] == [8, 9]
    assert len(read_columns(run.path / "steps-rank0000.csv", ("step",))["step"]) == 10 + profiling.AFTER_STEPS


class SimulatedProfiler:
    """Stands in for torch.profiler.profile: notes how many steps the device has finished at each step."""

    def __init__(self, device: SimulatedDevice) -> None:
        self.device, self.finished = device, list[int]()
        self.step_num, self.current_action = 0, None

    def start(self) -> None:
        self.device.work_on_host(30.0)
        self.finished.append(self.device.count_finished())

    def step(self) -> None:
        self.device.work_on_host(0.125)
        self.finished.append(self.device.count_finished())

    def stop(self) -> None:
        self.device.work_on_host(60.0)

    def add_metadata_json(self, *_: str) -> None:
        pass

    def export_chrome_trace(self, path: str) -> None:
        Path(path).touch()


def test_record_window_profiles_the_device_work_of_its_steps_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The device needs 1 s per step, the host 0.25 s, and both are read two steps late."""
    device = SimulatedDevice()
    profiler = SimulatedProfiler(device)
    clocks = SimpleNamespace(perf_counter=lambda: device.host_seconds, process_time=lambda: len(device.ends) / 4)
    monkeypatch.setattr(profiling, "choose_timer", lambda _device: device)
    monkeypatch.setattr(profiling, "time", clocks)
    monkeypatch.setattr(measure_profiler, "profile", lambda **_: profiler)
    for module in (profiling, measure_profiler):
        monkeypatch.setattr(module, "synchronize", lambda _device: device.synchronize(), raising=False)
    config = load_config("resnet50", settings=SMALL)
    fitted = Fitted(config, torch.device("cpu"), StepWork(0, 0, (), 0, ()), ())
    task = build_task(config, fitted.device)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        device.work_on_host(0.25)
        device.launch(1.0)
        return model.fc.weight.square().mean()

    task = replace(task, loss=loss)
    with StopSignals() as signals, StepRecorder(tmp_path / "steps.csv", split_phases=False) as recorder:
        agreement = StopAgreement(World(SINGLE_RANK, fitted.device), signals)
        _, recorded = drain(record_window(task, fitted, tmp_path, recorder, agreement, 9, 4))
    window = recorded.window
    assert window == ProfileWindow(6, 9, 13)
    # Started, then each step of the window, warm-up included. Recording begins with step 9 and ends with step 12.
    begin, end = profiler.finished[window.first - window.begin], profiler.finished[-1]
    assert (begin, end) == (9, 13)
    # Four steps on the device, and the launch of the first; the profiler's own time is part of the steps between.
    assert recorded.cores_used == pytest.approx(4 / 4 / (4.0 + 0.25))
    seconds = recorder.column("step_seconds")
    assert seconds[window.first : window.end].tolist() == [1.25, 1.0, 1.0, 1.0]
    assert max(seconds) == 1.25  # no step has the time in which the profiler starts, stops and writes


@pytest.mark.parametrize(
    ("start", "lag", "window"),
    [(6, 0, (5, 6, 8)), (0, 0, (0, 0, 2)), (9, 2, (6, 9, 11)), (4, 2, (3, 4, 6)), (0, 2, (3, 3, 5))],
)
def test_plan_window_starts_at_requested_or_earliest_step(start: int, lag: int, window: tuple[int, int, int]):
    assert plan_window(start, lag + 1, 2, LateTimer() if lag else HostTimer()) == ProfileWindow(*window)


def test_run_profile_cores_needs_nvidia_device(tmp_path: Path):
    with pytest.raises(MachineError, match=r"--cores needs an NVIDIA GPU .*: this run is on cpu"):
        profile_here(tmp_path, start=3, iterations=1, cores=True)
    (run,) = tmp_path.iterdir()
    assert read_result(run).status == "failed"


def test_assess_overhead_compares_with_steps_before_and_after():
    seconds = np.array([9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 5.0, 1.3, 1.2, 1.0, 1.0, 1.0])
    cost = assess_overhead(seconds, ProfileWindow(begin=6, first=7, end=9))
    assert cost.plain_step_seconds == 1.0
    assert cost.profiled_step_seconds == pytest.approx(1.25)
    assert cost.share == pytest.approx(0.25)
    assert (cost.plain_steps, cost.profiled_steps, cost.noise) == (8, 2, 0.0)
    # A profile with high overhead has a warning.
    seconds = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.5, 1.5, 1.0, 1.0])
    window = ProfileWindow(begin=5, first=5, end=7)
    timeline = make_timeline("cpu").model_copy(update={"overhead": assess_overhead(seconds, window)})
    message = build_finding(timeline, window)
    assert message.severity == "warning"
    assert "each took 50.0 % longer than 7 steps of this run" in message.message
    assert "the shares of small operators and of Python are overstated" in message.message
