"""Tests of the CUDA paths: `pytest -m gpu` runs them on a machine with a GPU. They were written without one."""

import shutil
import subprocess
import threading
import time
from collections.abc import Generator
from functools import partial
from pathlib import Path

import pytest
import torch

from support.builders.training_runs import assert_same, list_settings, make_config, read_trained_run, train_here
from support.processes.flows import follow
from support.processes.forked import run_ranks
from trainstone.config.load import load_config
from trainstone.engine import sync_batch_norm
from trainstone.engine.fit import finish, fit_to_machine
from trainstone.engine.loop import train_steps
from trainstone.engine.task import build_task
from trainstone.flows import selftest
from trainstone.flows.lifecycle import Lifecycle
from trainstone.flows.profile.ncu import add_cores
from trainstone.flows.profile.run import run_profile
from trainstone.measure.clock import CudaTimer
from trainstone.measure.devices import choose_reader, list_pci_ids
from trainstone.results.progress import Progress
from trainstone.results.run_folder import create_run, read_result
from trainstone.results.schema.run import Result
from trainstone.workloads.detect import DETECT

pytestmark = pytest.mark.gpu
SMALL = ["model.depth=18", "data.image_size=64", "train.batch_size=16", "device=cuda"]

CASES = {
    "fp32": ["train.precision=fp32"],
    "tf32": ["train.precision=tf32"],
    "bf16": ["train.precision=bf16"],
    "fp16, dynamic scale": ["train.precision=fp16"],
    "fp16, static scale": ["train.precision=fp16", "train.loss_scale=1024.0"],
    "phases": ["train.precision=fp32", "engine.split_phases=true"],
    "nvtx": ["train.precision=fp32", "engine.nvtx=true"],
    "graphs": ["train.precision=fp32", "engine.cuda_graphs=true"],
    "graphs, fp16": ["train.precision=fp16", "engine.cuda_graphs=true"],
    "compiled": ["train.precision=bf16", "engine.compile=true"],
    "compiled, tf32": ["train.precision=tf32", "engine.compile=true"],
}


def run(*settings: str):
    device = torch.device("cuda:0")
    task = build_task(load_config("resnet50", settings=[*SMALL, *settings]), device)
    return list(train_steps(task, CudaTimer(), num_steps=12))


@pytest.mark.parametrize("case", CASES)
def test_train_steps_are_in_order_with_positive_times(case: str):
    records = run(*CASES[case])
    assert [record.step for record in records] == list(range(12))
    assert all(0 < record.step_seconds < 60 for record in records)
    assert all(0 <= record.data_seconds <= record.step_seconds for record in records)
    assert all(record.loss == record.loss for record in records)


def assert_right(name: str, device: str = "cuda:0") -> None:
    """Run a check of `doctor --gpu-selftest`."""
    answer = selftest.CHECKS[name](torch.device(device))
    assert False not in answer.values(), answer


@pytest.mark.parametrize("name", [name for name in selftest.CHECKS if name != "all-reduce"])
def test_selftest_is_right(name: str):
    assert_right(name)


def test_cuda_timer_steps_sum_to_wall_time_when_the_device_waits_for_the_host():
    device = torch.device("cuda:0")
    task = build_task(load_config("resnet50", settings=[*SMALL, "train.precision=fp32"]), device)
    records = []
    for record in train_steps(task, CudaTimer(), num_steps=20):
        records.append(record)
        time.sleep(0.2)
    seconds = [record.step_seconds for record in records[6:17]]
    assert seconds == pytest.approx([0.2] * len(seconds), rel=0.3)
    assert all(record.data_seconds < 0.1 for record in records[6:17])


def test_sync_batch_norm_backward_equals_cpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sync_batch_norm.dist, "all_reduce", lambda *_, **__: None)
    images, weight, bias = torch.randn(4, 6, 5, 5) * 3 + 2, torch.rand(6), torch.rand(6)
    variance, mean = torch.var_mean(images, dim=(0, 2, 3), correction=0)
    found = []
    for device in ("cpu", "cuda"):
        leaves = [tensor.detach().to(device).requires_grad_() for tensor in (images, weight, bias)]
        given = [tensor.to(device) for tensor in (mean, variance, torch.tensor(100.0))]
        sync_batch_norm.Normalise.apply(*leaves, *given, 1e-5, None).square().sum().backward()
        found.append([leaf.grad.cpu() for leaf in leaves])
    for on_cpu, on_cuda in zip(*found, strict=True):
        assert torch.allclose(on_cpu, on_cuda, rtol=1e-3, atol=1e-3)


def test_cuda_graph_capture_survives_threads_that_call_cuda():
    stop = threading.Event()

    def pin() -> None:
        while not stop.is_set():
            torch.empty(1 << 20).pin_memory()

    thread = threading.Thread(target=pin)
    thread.start()
    try:
        assert len(run("train.precision=fp32", "engine.cuda_graphs=true")) == 12
    finally:
        stop.set()
        thread.join()


def test_list_pci_ids_are_devices_of_sysfs():
    assert all((Path("/sys/bus/pci/devices") / gpu / "local_cpulist").is_file() for gpu in list_pci_ids())


def test_automatic_precision_and_batch_are_chosen_by_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRAINSTONE_CACHE", str(tmp_path))
    settings = ["device=cuda", "model.depth=18", "data.image_size=64", "measure.seconds=30"]
    fitted = finish(fit_to_machine(load_config("resnet50", settings=settings), strict=False))
    assert all(trial.failure is None for trial in fitted.trials.precisions)
    assert fitted.config.train.precision != "fp32"
    assert fitted.trials.chosen_batch_size == fitted.config.train.batch_size >= 64


def test_choose_reader_uuid_is_that_of_nvidia_smi():
    reader = choose_reader(torch.device("cuda:0"))
    reader.close()
    assert reader.uuid in subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout


@pytest.mark.multigpu
def test_selftest_all_reduce_is_right():
    assert_right("all-reduce")


@pytest.mark.multigpu
def test_fit_to_machine_selects_second_device_for_timer():
    config = load_config("resnet50", settings=[*SMALL, "train.precision=fp32", "device=cuda:1"])
    finish(fit_to_machine(config, strict=False))
    assert torch.cuda.current_device() == 1
    assert_right("timing", "cuda:1")


TRAININGS = {
    "sgd": {},
    "lars": {"optimizer__name": "lars", "optimizer__learning_rate": 1.0},
    "fp16, dynamic scale": {"train__precision": "fp16"},
    "bf16, average, mixup": {"train__precision": "bf16", "train__ema": 0.9, "train__mixup": 0.2},
    "accumulated": {"train__accumulate": 2},
}


@pytest.mark.parametrize("case", TRAININGS)
def test_train_finishes_with_finite_weights(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = train_here(make_config(device="cuda", eval__target=1.0, **TRAININGS[case]), tmp_path, monkeypatch)
    assert run.result.status in ("target_missed", "target_reached")
    assert run.result.quality is not None
    assert run.result.quality.history[-1].images == 43
    assert all(tensor.isfinite().all() for tensor in read_trained_run(run.path).tensors.values())


def test_train_resumed_run_equals_uninterrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    settings = {"device": "cuda", "engine__deterministic": True, "eval__target": 1.0}
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    whole = train_here(make_config(**settings), tmp_path / "whole", monkeypatch)
    parts = train_here(make_config(**settings, stop__steps=17), tmp_path / "parts", monkeypatch)
    train_here(make_config(**settings), parts.path, monkeypatch, resume=True)
    assert_same(read_trained_run(whole.path), read_trained_run(parts.path))


def train_rank(folder: str) -> str:
    from trainstone.flows.train.run import run_train
    from trainstone.machine.ranks import read_rank

    config = make_config(device="cuda", eval__target=1.0, parallel__compression="bf16", parallel__bn_ranks=2)
    first = read_rank().number == 0
    run = create_run(Path(folder), "train", config, "test") if first else None
    for _ in follow(partial(run_train, strict=False, resume=False), config, run):
        pass
    return run.result.status if run else ""


@pytest.mark.multigpu
def test_train_on_two_devices(tmp_path: Path):
    assert run_ranks(2, train_rank, tmp_path / "ranks", str(tmp_path / "runs"))[0] == "target_missed"


CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SCENES = {"model__width": 16, "data__image_size": 64, "train__batch_size": 8, "stop__epochs": 2.0}


def test_detect_loss_and_boxes_equal_cpu():
    config = load_config("demo-detect", settings=["data.image_size=64"])
    batch = DETECT.synthetic_batches(config, 4)[0]
    torch.manual_seed(0)
    model = DETECT.build_model(config).eval()
    on_cpu = DETECT.build_loss(config, CPU)(model, batch)
    seen = DETECT.build_predictor(config, CPU)(model, batch[0])
    model.to(CUDA)
    moved = tuple(part.to(CUDA) for part in batch)
    on_cuda = DETECT.build_loss(config, CUDA)(model, moved)
    assert float(on_cuda.detach()) == pytest.approx(float(on_cpu.detach()), rel=1e-3)
    found = DETECT.build_predictor(config, CUDA)(model, moved[0])
    assert [len(one) for one in found] == pytest.approx([len(one) for one in seen], abs=2)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_train_detect_has_scores(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    settings = list_settings(device="cuda", train__precision=precision, eval__async=True, **SCENES)
    run = train_here(load_config("demo-detect", settings=settings), tmp_path, monkeypatch)
    assert run.result.quality is not None
    assert run.result.quality.history[-1].images == 43
    assert run.result.quality.tables


def profile_here(folder: Path, *settings: str, cores: bool = False) -> Result:
    config = load_config("resnet50", settings=[*SMALL, "train.precision=fp32", *settings])
    run = create_run(folder, "profile", config, "trainstone profile")

    def flow(life: Lifecycle) -> Generator[Progress | str, None, None]:
        yield from run_profile(life, start=20, iterations=3, cores=cores)
        if cores:
            yield from add_cores(life)

    list(follow(flow, config, run))
    return read_result(run.path)


@pytest.mark.parametrize("settings", [[], ["engine.compile=true"], ["engine.cuda_graphs=true"]])
def test_profile_timeline_accounts_for_kernels(tmp_path: Path, settings: list[str]):
    timeline = profile_here(tmp_path, *settings).timeline
    assert timeline is not None
    assert timeline.device in ("cuda", "rocm")
    assert [step.step for step in timeline.steps] == [20, 21, 22]
    assert 0.1 < timeline.compute_utilisation <= 1
    assert timeline.accounted_share > 0.97
    assert timeline.kernels
    assert (timeline.roofline is not None) == (not settings)
    if timeline.roofline is not None:  # computed from device times
        assert timeline.roofline.covered_share > 0.5
        assert all(point.share_of_bound < 3 for point in timeline.roofline.operators[:5])


def test_profile_nvtx_marks_phases_for_outer_profiler(tmp_path: Path):
    result = profile_here(tmp_path, "engine.nvtx=true")
    assert result.timeline is None
    assert "outer profiler" in next(found.message for found in result.findings if found.code == "profiled")


def test_profile_ncu_measures_core_utilisation(tmp_path: Path):
    if shutil.which("ncu") is None:
        pytest.skip("needs NVIDIA's ncu")
    result = profile_here(tmp_path, cores=True)
    assert result.timeline is not None
    assert result.timeline.cores is not None, [found.message for found in result.findings]
    assert result.timeline.cores.pipes_percent["fma"] > 0
