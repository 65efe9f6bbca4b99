"""Profiles of a CUDA device: not run here by their authors, who had no GPU; `pytest -m gpu` runs them elsewhere."""

import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

from flows import follow
from trainstone.config.load import load_config
from trainstone.launch.ncu import add_cores
from trainstone.results.progress import Progress
from trainstone.results.schema import Result
from trainstone.results.store import create_run, read_result
from trainstone.train.lifecycle import Lifecycle
from trainstone.train.profiling import run_profile

pytestmark = pytest.mark.gpu
SMALL = ["model.depth=18", "data.image_size=64", "train.batch_size=16", "device=cuda", "train.precision=fp32"]


def profile_here(folder: Path, *settings: str, cores: bool = False) -> Result:
    config = load_config("resnet50", settings=[*SMALL, *settings])
    run = create_run(folder, "profile", config, "trainstone profile")

    def flow(life: Lifecycle) -> Generator[Progress | str, None, None]:
        yield from run_profile(life, start=20, iterations=3, cores=cores)
        if cores:
            yield from add_cores(life)

    list(follow(flow, config, run))
    return read_result(run.path)


@pytest.mark.parametrize("settings", [[], ["engine.compile=true"], ["engine.cuda_graphs=true"]])
def test_kernels_fill_the_steps(tmp_path: Path, settings: list[str]):
    timeline = profile_here(tmp_path, *settings).timeline
    assert timeline is not None
    assert timeline.device in ("cuda", "rocm")
    assert [step.step for step in timeline.steps] == [20, 21, 22]
    assert 0.1 < timeline.compute_utilisation <= 1
    assert timeline.accounted_share > 0.97
    assert timeline.kernels
    assert (timeline.roofline is not None) == (not settings)


def test_the_roofline_takes_the_devices_times(tmp_path: Path):
    timeline = profile_here(tmp_path).timeline
    assert timeline is not None
    assert timeline.roofline is not None
    assert timeline.roofline.covered_share > 0.5
    assert all(point.share_of_bound < 3 for point in timeline.roofline.operators[:5])


def test_phases_are_marked_for_an_outer_profiler(tmp_path: Path):
    result = profile_here(tmp_path, "engine.nvtx=true")
    assert result.timeline is None
    assert "outer profiler" in next(found.message for found in result.findings if found.code == "profiled")


def test_ncu_counts_the_cores(tmp_path: Path):
    if shutil.which("ncu") is None:
        pytest.skip("needs NVIDIA's ncu")
    result = profile_here(tmp_path, cores=True)
    assert result.timeline is not None
    assert result.timeline.cores is not None, [found.message for found in result.findings]
    assert result.timeline.cores.pipes_percent["fma"] > 0
