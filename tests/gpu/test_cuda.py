"""The CUDA paths: not run here by their authors, who had no GPU; `pytest -m gpu` runs them where there is one."""

import pytest
import torch

from trainstone.config.load import load_config
from trainstone.measure.clock import CudaTimer
from trainstone.measure.devices import choose_reader
from trainstone.measure.peaks import measure_peaks
from trainstone.train.fit import fit_to_machine
from trainstone.train.loop import train_steps
from trainstone.train.task import build_task
from trainstone.train.trial import fastest, try_precisions

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
}


def run(*settings: str):
    device = torch.device("cuda:0")
    task = build_task(load_config("resnet50", settings=[*SMALL, *settings]), device)
    return list(train_steps(task, CudaTimer(), num_steps=12))


@pytest.mark.parametrize("case", CASES)
def test_steps_come_in_order_and_take_time(case: str):
    records = run(*CASES[case])
    assert [record.step for record in records] == list(range(12))
    assert all(0 < record.step_seconds < 60 for record in records)
    assert all(0 <= record.data_seconds <= record.step_seconds for record in records)
    assert all(record.loss == record.loss for record in records)


def test_graphs_do_the_same_mathematics():
    """A captured step has three ordinary ones before it, on the first batch."""
    plain = [r.loss for r in run("train.precision=fp32", "data.num_synthetic_batches=1")]
    graphed = [r.loss for r in run("train.precision=fp32", "data.num_synthetic_batches=1", "engine.cuda_graphs=true")]
    assert graphed[:5] == pytest.approx(plain[3:8], rel=1e-2)  # the capture itself runs nothing


def test_events_add_up_to_the_wall():
    records = run("train.precision=fp32")
    wall = records[-1].start_seconds + records[-1].step_seconds - records[4].start_seconds
    assert sum(record.step_seconds for record in records[4:]) == pytest.approx(wall, rel=0.2)


def test_a_peak_at_every_precision():
    device = torch.device("cuda:0")
    assert measure_peaks(device, "fp16").flops > measure_peaks(device, "fp32").flops


def test_auto_takes_something_faster_than_fp32():
    trials = try_precisions("cuda:0", ["fp32", "tf32", "bf16", "fp16"], 1)
    assert all(trial.failure is None for trial in trials)
    assert fastest(trials) != "fp32"


def test_telemetry_reads_the_device():
    reader = choose_reader(torch.device("cuda:0"))
    reading = reader.read()
    reader.close()
    assert reading.mem_used_bytes
    assert reading.clock_mhz


@pytest.mark.multigpu
def test_the_second_device_is_timed_by_its_own_clock():
    config = load_config("resnet50", settings=[*SMALL, "train.precision=fp32", "device=cuda:1"])
    fitted = fit_to_machine(config, strict=False)
    records = list(train_steps(build_task(fitted.config, fitted.device), CudaTimer(), num_steps=12))
    assert torch.cuda.current_device() == 1
    wall = records[-1].start_seconds + records[-1].step_seconds - records[4].start_seconds
    assert sum(record.step_seconds for record in records[4:]) == pytest.approx(wall, rel=0.2)
