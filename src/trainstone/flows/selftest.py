"""`trainstone doctor --gpu-selftest`: check that what trainstone measures on this device is right.

A check trains a small network and compares two measurements of the same thing, or one with a known answer.
"""

import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from trainstone.config.load import load_config
from trainstone.engine.distributed.rendezvous import connect_ranks
from trainstone.engine.loop import train_steps
from trainstone.engine.task import build_task
from trainstone.files import dump_json, write_atomically
from trainstone.flows.doctor import Check
from trainstone.machine.facts import read_facts, read_software
from trainstone.machine.ranks import LOOPBACK, SINGLE_RANK
from trainstone.measure import devices
from trainstone.measure.clock import choose_timer
from trainstone.measure.peaks import measure_peaks
from trainstone.measure.profiler import Capture, ProfileWindow
from trainstone.measure.telemetry import NvmlReader
from trainstone.results.run_folder import explain_os_error
from trainstone.trace.breakdown import analyse_trace
from trainstone.units import format_bytes, format_percent, format_seconds

Answer = dict[str, bool | None]
"""Statements about measured values -> whether they hold; None: the reason why the check is skipped."""
# One batch at a high learning rate: the loss falls by 2 to 7 % per step, so a missing or additional update is visible.
SMALL: tuple[str, ...] = ("model.depth=18", "data.image_size=64", "data.num_synthetic_batches=1", "train.batch_size=16")
SMALL += ("optimizer.learning_rate=0.006", "optimizer.rate_for=run", "schedule.warm_up_epochs=0", "engine.threads=1")
SMALL += ("train.precision=fp32", "train.loss_scale=1024.0", "parallel.timeout_seconds=30")
# Lowest and highest error of measure_error: fp32 rounds to 24 bits, tf32 and fp16 to 11 bits, bf16 to 8 bits.
ERRORS = {"fp32": (0.0, 5e-5), "tf32": (5e-5, 3e-3), "bf16": (5e-4, 1.5e-2), "fp16": (5e-5, 3e-3)}


def run_selftest(device_name: str, path: Path) -> Iterator[Check]:
    """Yield one check after the other, and write all so far to `path`: a driver may crash the process."""
    device = devices.choose_device(device_name)
    if device.type != "cpu":
        torch.accelerator.set_device_index(device)
    document: dict[str, Any] = {"device": f"{device}: {devices.name_device(device)}", "build": torch.__config__.show()}
    document |= {"software": read_software(), "machine": read_facts(), "checks": [], "tracebacks": {}}
    for name, check in CHECKS.items():
        try:
            answer = check(device)
        except Exception as err:  # noqa: BLE001  a driver may raise anything; the other checks must run
            answer = {f"{type(err).__name__}: {err}": False}
            document["tracebacks"][name] = traceback.format_exc()
        message = "; ".join(f"wrong: {text}" if holds is False else text for text, holds in answer.items())
        status = "wrong" if False in answer.values() else "skipped" if None in answer.values() else "ok"
        done = Check(name, status, message)
        document["checks"].append(asdict(done))
        with explain_os_error(f"cannot write {path}", "choose another folder: --out DIR"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, dump_json(document))
        yield done


def train_losses(device: torch.device, *settings: str) -> list[float]:
    task = build_task(load_config("resnet50", settings=[*SMALL, *settings]), device)
    return [step.loss for step in train_steps(task, choose_timer(device), num_steps=10)]


def compare_losses(losses: list[float], reference: list[float], name: str, limit: float) -> Answer:
    """State the largest difference of losses from those of a reference; it is NaN if any loss is."""
    difference = (torch.tensor(losses) / torch.tensor(reference) - 1).abs().max().item()
    shown = " ".join(f"{loss:.3f}" for loss in losses)
    most = f"{format_percent(difference, 2)} (limit {format_percent(limit, 0)})"
    return {f"losses {shown} differ from those {name} by at most {most}": difference <= limit}


def check_timing(device: torch.device) -> Answer:
    task, timer = build_task(load_config("resnet50", settings=SMALL), device), choose_timer(device)
    list(train_steps(task, timer, num_steps=5))
    began = time.perf_counter()
    steps = list(train_steps(task, timer, num_steps=20, first_step=5))
    wall = time.perf_counter() - began
    timed = sum(step.step_seconds for step in steps)
    shown = f"{format_seconds(timed)} by the device's timer, {format_seconds(wall)} by the wall clock"
    return {
        f"20 steps take {shown} (limit 5 %)": abs(timed - wall) <= 0.05 * wall,
        "data waits are part of their steps": all(0 <= step.data_seconds <= step.step_seconds for step in steps),
    }


def check_graphs(device: torch.device) -> Answer:
    if device.type != "cuda":
        return {"needs CUDA": None}
    # Three updates on the same batch precede the capture.
    eager, graphed = train_losses(device)[3:], train_losses(device, "engine.cuda_graphs=true")[:-3]
    return compare_losses(graphed, eager, "without CUDA graphs", 0.01)


def check_precision(device: torch.device, precision: str) -> Answer:
    claimed = precision in devices.candidate_precisions(device)
    if not claimed or (precision == "tf32" and not torch.cuda.is_tf32_supported()):
        return {f"this device has no {precision}": None}
    # The last training sets the TF32 mode of the error, too.
    reference, losses = train_losses(torch.device("cpu")), train_losses(device, f"train.precision={precision}")
    error, (low, high) = measure_error(device, precision), ERRORS[precision]
    answer = compare_losses(losses, reference, "in fp32 on the CPU", 0.02)
    return answer | {f"error {error:.1e} (limits {low:g} and {high:g})": low <= error <= high}


def measure_error(device: torch.device, precision: str) -> float:
    """Return the error of a convolution and a matrix product of random numbers, relative to float64 on the CPU."""
    generator = torch.Generator().manual_seed(0)
    shapes = (4, 64, 28, 28), (64, 64, 3, 3), (26, 1024)
    images, weights, matrix = (torch.randn(shape, generator=generator) for shape in shapes)
    exact = torch.conv2d(images.double(), weights.double()) @ matrix.double()
    with devices.autocast(device, precision):
        found = torch.conv2d(images.to(device), weights.to(device)) @ matrix.to(device)
    return float((found.cpu().double() - exact).norm() / exact.norm())


def check_telemetry(device: torch.device) -> Answer:
    reader = devices.choose_reader(device)
    if not isinstance(reader, NvmlReader):
        return {"needs an NVIDIA GPU": None}
    began, before = time.perf_counter(), reader.read()
    measure_peaks(device, "fp32", 2.0)
    after, seconds = reader.read(), time.perf_counter() - began
    reader.close()
    shown, held = "; ".join([str(after), *reader.unsupported]), torch.cuda.memory_reserved(device)
    answer = {f"{shown}; torch uses {format_bytes(held)} of the memory": (after.mem_used_bytes or 0) >= held}
    if reader.meter and after.power_watts:
        watts = (after.energy_joules - before.energy_joules) / seconds
        answer[f"{watts:.0f} W by the energy counter (limit: factor 3)"] = 1 / 3 <= watts / after.power_watts <= 3
    return answer


def check_profile(device: torch.device) -> Answer:
    task = replace(build_task(load_config("resnet50", settings=SMALL), device), mark=torch.profiler.record_function)
    steps, window = train_steps(task, choose_timer(device)), ProfileWindow(0, 5, 10)
    with TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json.gz"
        with Capture(trace, device, SINGLE_RANK, window) as capture:
            for number in range(window.end):
                next(steps)
                devices.synchronize(device)
                ended = time.perf_counter()
                capture.step(number)
                if number < window.first:
                    began = time.perf_counter()
        timeline = analyse_trace(trace).timeline
    wall, seconds = ended - began, sum(step.seconds for step in timeline.steps)
    shown = f"{format_seconds(seconds)} in the trace, {format_seconds(wall)} by the wall clock"
    accounted, running = timeline.accounted_share, timeline.compute_utilisation
    return {
        f"5 steps take {shown} (limit 5 %)": abs(seconds - wall) <= 0.05 * wall,
        f"their parts add up to {format_percent(accounted)} (limit 95 %)": accounted >= 0.95,
        f"kernels run {format_percent(running)} of the time (limit 1 %)": running >= 0.01,
    }


def check_all_reduce(device: torch.device) -> Answer:
    if device.type != "cpu" and torch.cuda.device_count() < 2:
        return {"needs two CUDA devices": None}
    rendezvous = {"run_id": "selftest", "rdzv_backend": "c10d", "rdzv_endpoint": f"{LOOPBACK}:0"}  # any free port
    launch = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, max_restarts=0, **rendezvous)
    losses = elastic_launch(launch, train_rank)(device.type)[0]
    return compare_losses(losses, train_losses(device), "on a single rank", 0.01)


def train_rank(device_type: str) -> list[float]:
    """Train as one of two ranks. With 0.5 and 1.5 times the loss, only their mean gradient is that of one rank."""
    config = load_config("resnet50", settings=[*SMALL, f"device={device_type}"])
    with connect_ranks(config, None) as world:
        task, factor = build_task(config, world.device, world=world), 0.5 + world.rank.number
        scaled = replace(task, loss=lambda model, batch: factor * task.loss(model, batch))
        steps = train_steps(scaled, choose_timer(world.device), num_steps=10)
        return [step.loss / factor for step in steps]


CHECKS: dict[str, Callable[[torch.device], Answer]] = {"timing": check_timing, "graphs": check_graphs}
CHECKS |= {precision: partial(check_precision, precision=precision) for precision in ERRORS}
CHECKS |= {"telemetry": check_telemetry, "profile": check_profile, "all-reduce": check_all_reduce}
