from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from flows import LateTimer, follow
from made_results import make_timeline
from trainstone.config.load import load_config
from trainstone.config.schema import Config
from trainstone.errors import MachineError
from trainstone.measure.clock import HostTimer
from trainstone.measure.peaks import Peaks
from trainstone.measure.profiler import Window
from trainstone.results.breakdown import PARTS
from trainstone.results.schema import Result
from trainstone.results.steps import read_columns
from trainstone.results.store import RunFolder, create_run, read_result
from trainstone.train import observation, profiling
from trainstone.train.profiling import describe_profiled, judge_overhead, plan_window, run_profile

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


@pytest.fixture(scope="module", autouse=True)
def quick_peaks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observation, "measure_peaks", lambda _device, _precision: Peaks(1e11, "made up", 1e10))
        yield


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, Result]:
    """A profile of steps 7 to 9, for all tests that only look at it."""
    return profile_here(tmp_path_factory.mktemp("profiled"), start=7, iterations=3)


def make_config(*changes: str) -> Config:
    return load_config("resnet50", settings=[*SMALL, *changes])


def profile_here(folder: Path, *changes: str, start: int | None = 6, iterations: int = 2) -> tuple[RunFolder, Result]:
    config = make_config(*changes)
    run = create_run(folder, "profile", config, "trainstone profile")
    for _ in follow(partial(run_profile, start=start, iterations=iterations), config, run):
        pass
    return run, read_result(run.path)


def test_a_profile_says_where_the_steps_went(profiled: tuple[RunFolder, Result]):
    run, result = profiled
    timeline = result.timeline
    assert result.status == "ok"
    assert timeline is not None
    assert [step.step for step in timeline.steps] == [7, 8, 9]
    for step in timeline.steps:
        assert sum(getattr(step, name) for name in PARTS.values()) == pytest.approx(step.seconds, rel=1e-9)
        assert step.compute_seconds > step.optimizer_seconds > 0
    assert timeline.accounted_share > 0.9
    assert (timeline.trace, timeline.rank) == ("trace/rank0000.json.gz", 0)
    assert (run.path / timeline.trace).stat().st_size > 10_000
    assert timeline.trace in result.files
    assert result.verdict is not None
    assert result.verdict.startswith("ResNet-18: operators run for ")


def test_every_step_is_kept_and_the_profiled_ones_do_not_count(profiled: tuple[RunFolder, Result]):
    run, result = profiled
    columns = read_columns(run.path / "steps-rank0000.csv", ("step_seconds",))
    assert len(columns["step_seconds"]) == 7 + 3 + profiling.AFTER_STEPS
    assert result.timeline is not None
    assert result.timeline.overhead is not None
    assert result.timeline.overhead.profiled_steps == 3
    assert result.throughput is not None
    # Six before the profiler warmed up, five after it; some of them are warm-up.
    assert result.throughput.num_steps + result.throughput.steady_from_step == 6 + profiling.AFTER_STEPS
    (told,) = (found for found in result.findings if found.code == "profiled")
    assert told.message.startswith("steps 7 to 9 were profiled: each took ")
    assert "few-steps" not in [found.code for found in result.findings]


def test_the_roofline_knows_convolutions_and_the_optimiser(profiled: tuple[RunFolder, Result]):
    _, result = profiled
    assert result.timeline is not None
    roofline = result.timeline.roofline
    assert roofline is not None
    assert (roofline.peak_flops, roofline.peak_source, roofline.peak_bytes_per_second) == (1e11, "made up", 1e10)
    assert roofline.covered_share > 0.5
    found = {point.operator: point for point in roofline.operators}
    assert any("fused_sgd" in name for name in found)
    convolutions = [found["aten::convolution"], found["aten::convolution_backward"]]
    # 20 of them in ResNet-18, and one FLOP count for all: that of the whole run, less the classifier's.
    assert [point.calls for point in convolutions] == [20, 20]
    products = [found[name] for name in ("aten::addmm", "aten::mm") if name in found]
    assert result.utilisation is not None
    assert result.utilisation.flops_per_image is not None
    flops = sum(point.flops for point in convolutions + products)
    assert flops == pytest.approx(2 * result.utilisation.flops_per_image)


def test_steps_that_are_read_late_have_the_right_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(profiling, "choose_timer", lambda _device: LateTimer())
    run, result = profile_here(tmp_path, start=8, iterations=2)
    assert result.timeline is not None
    assert [step.step for step in result.timeline.steps] == [8, 9]
    assert len(read_columns(run.path / "steps-rank0000.csv", ("step",))["step"]) == 10 + profiling.AFTER_STEPS


def test_a_profile_that_costs_much_warns_of_its_shares(tmp_path: Path):
    seconds = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.5, 1.5, 1.0, 1.0])
    window = Window(begin=5, first=5, end=7)
    timeline = make_timeline("cpu").model_copy(update={"overhead": judge_overhead(seconds, window)})
    told = describe_profiled(timeline, window)
    assert told.severity == "warning"
    assert "each took 50.0 % longer than 7 steps of this run" in told.message
    assert "small operators and Python, has a larger share" in told.message


@pytest.mark.parametrize(
    ("start", "lag", "window"),
    [(6, 0, Window(5, 6, 8)), (0, 0, Window(0, 0, 2)), (9, 2, Window(6, 9, 11)), (4, 2, Window(3, 4, 6)),
     (0, 2, Window(3, 3, 5))],
)  # fmt: skip
def test_the_window_begins_where_it_is_asked_for_or_can(start: int, lag: int, window: Window):
    timer = LateTimer() if lag else HostTimer()
    assert plan_window(start, lag + 1, 2, timer) == window


def test_cores_need_an_nvidia_device(tmp_path: Path):
    config = make_config()
    run = create_run(tmp_path, "profile", config, "trainstone profile")
    with pytest.raises(MachineError, match="--cores reads the counters of an NVIDIA device by ncu; this run is on cpu"):
        list(follow(partial(run_profile, start=3, iterations=1, cores=True), config, run))
    assert read_result(run.path).status == "failed"


def test_the_profilers_cost_is_held_against_steps_before_and_after():
    seconds = np.array([9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 5.0, 1.3, 1.2, 1.0, 1.0, 1.0])
    cost = judge_overhead(seconds, Window(begin=6, first=7, end=9))
    assert cost.plain_step_seconds == 1.0
    assert cost.profiled_step_seconds == pytest.approx(1.25)
    assert cost.share == pytest.approx(0.25)
    assert (cost.plain_steps, cost.profiled_steps, cost.noise) == (8, 2, 0.0)
