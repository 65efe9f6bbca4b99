"""`trainstone doctor --gpu-selftest`: check that what trainstone measures on this device is right.

A check trains a small network and compares two measurements of the same thing, or one with a known answer. It returns
the values in a sentence, what is expected of them -> whether it holds, and the values; or a reason to skip it.
"""

import json
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import torch

from trainstone.config.load import load_config
from trainstone.config.schema import Config
from trainstone.engine.distributed.rendezvous import connect_ranks
from trainstone.engine.fit import count_step_work
from trainstone.engine.loop import train_steps
from trainstone.engine.task import build_task
from trainstone.errors import ResultError
from trainstone.files import dump_json, write_atomically
from trainstone.flows.doctor import Check
from trainstone.machine.facts import read_facts, read_software
from trainstone.machine.ranks import LOOPBACK, SINGLE_RANK
from trainstone.measure import devices
from trainstone.measure.clock import Timer, choose_timer
from trainstone.measure.peaks import measure_peaks
from trainstone.measure.profiler import Capture, ProfileWindow
from trainstone.measure.telemetry import Reader
from trainstone.trace.breakdown import DEVICE_ORDER, analyse_trace
from trainstone.units import format_bytes, format_decimal, format_seconds

Values = dict[str, Any]
Answer = tuple[str, dict[str, bool], Values] | str
# One batch at a high learning rate: the loss falls by 2 to 7 % per step, so a missing or additional update is visible.
SMALL: tuple[str, ...] = ("model.depth=18", "data.image_size=64", "data.num_synthetic_batches=1", "train.batch_size=16")
SMALL += ("optimizer.learning_rate=0.006", "optimizer.rate_for=run", "schedule.warm_up_epochs=0", "engine.threads=1")
SMALL += ("train.precision=fp32", "train.loss_scale=1024.0", "parallel.timeout_seconds=30")
# Relative error of a product of random matrices: about 3e-7 in fp32; 4e-4 in tf32 and fp16, which round to 11 bits;
# 3e-3 in bf16, which rounds to 8 bits.
ERRORS = {"fp32": (0.0, 5e-5), "tf32": (5e-5, 3e-3), "bf16": (5e-4, 1.5e-2), "fp16": (5e-5, 3e-3)}
NATIVE_FROM = {"fp32": (0, 0), "tf32": (8, 0), "bf16": (8, 0), "fp16": (7, 0)}  # CUDA's compute capability


@dataclass(frozen=True)
class SelfCheck(Check):
    values: Values = field(default_factory=dict)
    traceback: str | None = None


def run_selftest(device_name: str, path: Path) -> Iterator[SelfCheck]:
    """Yield one check after the other. The file `path` is also written before each one: a driver may crash."""
    device = devices.choose_device(device_name)
    if device.type != "cpu":
        torch.accelerator.set_device_index(device)
    software = {name: value for name, value in read_software().items() if name != "environment"}
    software |= {"cuda": torch.version.cuda, "hip": torch.version.hip, "cudnn": torch.backends.cudnn.version()}
    head = {"device": f"{device}: {devices.name_device(device)}", "software": software, "machine": read_facts()}
    checks: list[SelfCheck] = []
    for name, (check, hint) in CHECKS.items():
        write_document(path, head, [*checks, SelfCheck(name, "wrong", "did not end: crashed or interrupted", hint)])
        checks.append(run_check(name, partial(check, device), hint))
        write_document(path, head, checks)
        yield checks[-1]


def run_check(name: str, check: Callable[[], Answer], hint: str) -> SelfCheck:
    try:
        answer = check()
    except Exception as err:  # noqa: BLE001  a driver may raise anything; the other checks must run
        return SelfCheck(name, "wrong", f"{type(err).__name__}: {err}", hint, traceback=traceback.format_exc())
    if isinstance(answer, str):
        return SelfCheck(name, "skipped", answer)
    message, expected, values = answer
    failed = [text for text, holds in expected.items() if not holds]
    if failed:
        return SelfCheck(name, "wrong", f"{message}; expected: {', '.join(failed)}", hint, values)
    return SelfCheck(name, "ok", message, values=values)


def write_document(path: Path, head: Values, checks: list[SelfCheck]) -> None:
    text = json.dumps(head | {"checks": [asdict(check) for check in checks]})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, dump_json(json.loads(text, parse_constant=str)))  # JSON has no NaN
    except OSError as err:
        raise ResultError(f"cannot write {path}: {err.strerror}", hint="choose another folder: --out DIR") from err


def load_small(*settings: str) -> Config:
    return load_config("resnet50", settings=[*SMALL, *settings])


def train_losses(device: torch.device, *settings: str) -> list[float]:
    steps = train_steps(build_task(load_small(*settings), device), choose_timer(device), num_steps=10)
    return [record.loss for record in steps]


def agree(values: Sequence[float], others: Sequence[float], tolerance: float) -> bool:
    """Return whether numbers are equal within a relative tolerance; NaN never is."""
    return all(abs(value - other) <= tolerance * abs(other) for value, other in zip(values, others, strict=True))


def check_timing(device: torch.device, timer: Timer | None = None) -> Answer:
    task, timer = build_task(load_small(), device), timer or choose_timer(device)
    list(train_steps(task, timer, num_steps=5))
    devices.synchronize(device)
    began = time.perf_counter()
    records = list(train_steps(task, timer, num_steps=20, first_step=5))
    devices.synchronize(device)
    wall = time.perf_counter() - began
    steps, waits = [record.step_seconds for record in records], [record.data_seconds for record in records]
    shown = f"{format_seconds(sum(steps))} by the device's timer, {format_seconds(wall)} by the wall clock"
    expected = {
        "a difference of at most 5 %": agree([sum(steps)], [wall], 0.05),
        "0 <= data wait <= step time": all(0 <= wait <= step for wait, step in zip(waits, steps, strict=True)),
    }
    return f"20 steps take {shown}", expected, {"step_seconds": steps, "data_seconds": waits, "wall_seconds": wall}


def check_graphs(device: torch.device) -> Answer:
    if device.type != "cuda":
        return "needs CUDA"
    # Three updates on the same batch precede the capture.
    eager, graphed = train_losses(device)[3:], train_losses(device, "engine.cuda_graphs=true")[:-3]
    message = f"loss after 10 updates: {eager[-1]:.4f}, with a CUDA graph {graphed[-1]:.4f}"
    return message, {"losses within 1 %": agree(graphed, eager, 0.01)}, {"eager": eager, "graphed": graphed}


def check_precision(device: torch.device, precision: str) -> Answer:
    if precision not in devices.candidate_precisions(device):
        return f"this device has no {precision}"
    native = device.type != "cuda" or torch.cuda.get_device_capability(device) >= NATIVE_FROM[precision]
    if precision == "tf32" and not (native and torch.cuda.is_tf32_supported()):
        return "this device has no tf32"
    losses, reference = train_losses(device, f"train.precision={precision}"), train_losses(torch.device("cpu"))
    (low, high), peaks = ERRORS[precision], {}
    for one in dict.fromkeys(("fp32", precision)):  # the last mode also applies below
        devices.switch_tf32(one)
        peaks[one] = measure_peaks(device, one, 0.5).flops
    product = measure_error(torch.mm, device, precision, (1024, 1024), (1024, 1024))
    convolution = measure_error(torch.conv2d, device, precision, (4, 64, 28, 28), (64, 64, 3, 3))
    expected = {
        "losses within 2 % of the CPU's": agree(losses, reference, 0.02),
        f"an error of the product from {low:g} to {high:g}": low <= product <= high,
        f"an error of the convolution ({convolution:.1e}) of at most {high:g}": convolution <= high,
        "a peak not below that of fp32": peaks[precision] >= 0.9 * peaks["fp32"] or not native,  # emulation is slow
    }
    loss = f"loss after 10 steps {losses[-1]:.4f}, in fp32 on the CPU {reference[-1]:.4f}"
    shown = ", ".join(f"{format_decimal(flops, 'FLOP/s')} at {one}" for one, flops in peaks.items())
    values = {"losses": losses, "reference": reference, "peaks": peaks, "product": product, "convolution": convolution}
    return f"{loss}; error of a matrix product {product:.1e}; peak {shown}", expected, values


def measure_error(operator: Any, device: torch.device, precision: str, *shapes: tuple[int, ...]) -> float:
    """Return the error of an operator on random numbers, relative to float64 on the CPU."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(shape, generator=generator) for shape in shapes]
    exact = operator(*(tensor.double() for tensor in inputs))
    with devices.autocast(device, precision):
        found = operator(*(tensor.to(device) for tensor in inputs)).cpu().double()
    return float((found - exact).norm() / exact.norm())


def check_telemetry(device: torch.device) -> Answer:
    reader = devices.choose_reader(device)
    if type(reader) is Reader:
        return reader.unsupported[0]
    readings, began = [reader.read()], time.perf_counter()
    for _ in range(2):
        measure_peaks(device, "fp32", 1.0)
        readings.append(reader.read())
    seconds = time.perf_counter() - began
    reader.close()
    names = ("clock_mhz", "power_watts", "temp_celsius", "mem_used_bytes", "energy_joules")
    read = {name: [value for one in readings if (value := getattr(one, name)) is not None] for name in names}
    excused = {text.partition(":")[0] for text in reader.unsupported}
    missing = [name for name in names[:4] if not read[name] and name.rpartition("_")[0] not in excused]
    held = devices.peak_bytes(device)[0] or 0
    expected = {
        "NVML to find the device by its UUID": "all values" not in excused,
        f"readings of {', '.join(missing)}": not missing,
        f"at least the {format_bytes(held)} that torch uses": max(read["mem_used_bytes"], default=0) >= held,
    }
    shown = [f"{name} {min(values):.6g} to {max(values):.6g}" for name, values in read.items() if values]
    if reader.meter:
        watts = (read["energy_joules"][-1] - read["energy_joules"][0]) / seconds
        highest = max(read["power_watts"], default=float("nan"))
        expected["energy that grows as the power says, within a factor of 3"] = 1 / 3 <= watts / highest <= 3
        shown.append(f"{watts:.0f} W by the energy counter")
    return "; ".join([*shown, *reader.unsupported]), expected, read | {"seconds": seconds, "torch_bytes": held}


def check_memory(device: torch.device) -> Answer:
    config, timer = load_small(), choose_timer(device)
    task, work = build_task(config, device), count_step_work(config, 16)
    list(train_steps(task, timer, num_steps=2))  # cuDNN tries algorithms that need more
    devices.reset_peaks(device)
    list(train_steps(task, timer, num_steps=2, first_step=2))
    held, resident = devices.peak_bytes(device)
    peak = resident if held is None else held
    # After the forward pass: weights, momentum and saved tensors. In the update: weights, momentum and gradients.
    least = 2 * work.parameter_bytes + max(work.parameter_bytes, sum(work.saved_tensor_bytes))
    size = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else psutil.virtual_memory().total
    failure = RuntimeError("none")
    try:
        torch.empty(2**50, dtype=torch.uint8, device=device)
    except RuntimeError as err:
        failure = err
    expected = {
        "a peak from the counted minimum to the memory of the device": least <= peak <= size,
        f"out of memory for 1 PiB (error: {failure})": devices.is_out_of_memory(failure),
    }
    shown = f"peak of a step {format_bytes(peak)}, counted minimum {format_bytes(least)}, device {format_bytes(size)}"
    return shown, expected, {"peak": peak, "least": least, "size": size, "failure": str(failure)}


def check_profile(device: torch.device) -> Answer:
    task, timer = replace(build_task(load_small(), device), mark=torch.profiler.record_function), choose_timer(device)
    window = ProfileWindow(0, 5, 10)
    steps = train_steps(task, timer, num_steps=window.end + timer.lag)
    with TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json.gz"
        with Capture(trace, device, SINGLE_RANK, window) as capture:
            for number, _ in zip(range(window.end), steps, strict=False):
                devices.synchronize(device)
                ended = time.perf_counter()
                capture.step(number)
                if number < window.first:
                    began = time.perf_counter()
        profiled = analyse_trace(trace).timeline.steps
    wall = ended - began
    seconds, kernels = (sum(getattr(one, name) for one in profiled) for name in ("seconds", "kernel_seconds"))
    parts = sum(getattr(one, f"{part}_seconds") for one in profiled for part in DEVICE_ORDER)
    expected = {
        "5 steps as long as the wall clock says, within 5 %": len(profiled) == 5 and agree([seconds], [wall], 0.05),
        "parts that sum to the steps within 5 %": agree([parts], [seconds], 0.05),
        "0 < kernels <= steps": 0 < kernels <= 1.01 * seconds,
    }
    shown = f"{format_seconds(seconds)} in the trace, {format_seconds(wall)} by the wall clock"
    sums = f"parts {format_seconds(parts)}, kernels {format_seconds(kernels)}"
    values = {"wall_seconds": wall, "steps": [one.model_dump() for one in profiled]}
    return f"{len(profiled)} steps take {shown}; {sums}", expected, values


def check_all_reduce(device: torch.device) -> Answer:
    if device.type != "cpu" and torch.cuda.device_count() < 2:
        return "needs two CUDA devices"
    reference, (losses, rate) = train_losses(device), train_two_ranks(device.type)
    message = f"loss after 10 steps: {losses[-1]:.4f} on two ranks, {reference[-1]:.4f} on one"
    values = {"losses": losses, "reference": reference, "bytes_per_second": rate}
    return f"{message}; {format_bytes(rate)}/s", {"losses within 1 %": agree(losses, reference, 0.01)}, values


def train_two_ranks(device_type: str) -> tuple[list[float], float]:
    """Return losses, and bytes per second of the all-reduce, of two ranks in new processes.

    Both have the same batch, but 0.5 and 1.5 times the loss: only their mean gradient is that of a single rank.
    """
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port = probe.getsockname()[1]
    answers = torch.multiprocessing.get_context("spawn").SimpleQueue()
    torch.multiprocessing.spawn(train_rank, (device_type, port, answers), nprocs=2)
    losses, rate = answers.get()
    return losses, rate


def train_rank(number: int, device_type: str, port: int, answers: Any) -> None:
    os.environ |= {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number)}
    config = load_small(f"device={device_type}")
    with connect_ranks(config, None) as world:
        task, factor = build_task(config, world.device, world=world), 0.5 + number
        scaled = replace(task, loss=lambda model, batch: factor * task.loss(model, batch))
        losses = [one.loss / factor for one in train_steps(scaled, choose_timer(world.device), num_steps=10)]
        if world.preflight and world.preflight.all_reduce:  # rank 0
            answers.put((losses, world.preflight.all_reduce.bytes_per_second))


USE_OTHER = "choose another precision, such as --set train.precision=fp32, or another torch build"
CHECKS: dict[str, tuple[Callable[..., Answer], str]] = {
    "timing": (check_timing, "do not use step times and throughput of this device"),
    "graphs": (check_graphs, "--set engine.cuda_graphs=false"),
    **{precision: (partial(check_precision, precision=precision), USE_OTHER) for precision in ERRORS},
    "telemetry": (check_telemetry, "nvidia-smi -q shows what the driver can read"),
    "memory": (check_memory, "choose the batch size yourself: --set train.batch_size=N"),
    "profile": (check_profile, "do not use the parts of a step that profile reports for this device"),
    "all-reduce": (check_all_reduce, "NCCL_DEBUG=INFO shows details; try NCCL_P2P_DISABLE=1"),
}
