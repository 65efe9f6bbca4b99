"""`trainstone doctor`: check what this machine can do and what is missing."""

import importlib.metadata
import os
import platform
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from trainstone.config.load import load_config
from trainstone.engine.fit import finish, fit_engine
from trainstone.machine.allocator import describe_allocator
from trainstone.machine.cpus import available_cores, memory_available_bytes
from trainstone.machine.noise import grade_noise, read_pressure
from trainstone.measure import devices
from trainstone.units import format_bytes

IDLE_SECONDS = 3.0
EXTRAS = {
    "mlperf": ("mlperf-logging", "MLPerf checkers"),
    "tracking": ("mlflow", "TensorBoard and MLflow export"),
}


@dataclass(frozen=True)
class Check:
    """One line of the report. limited: trainstone works without it; missing: a requested feature will not work."""

    name: str
    status: Literal["ok", "limited", "missing", "wrong", "skipped"]
    message: str
    hint: str | None = None


def examine(facts: dict[str, Any], out: Path) -> Iterator[Check]:
    """Yield one check after the other; takes some seconds (precision trial, noise while idle)."""
    yield Check("software", "ok", f"Python {platform.python_version()}, torch {torch.__version__}")
    for name in devices.list_devices():
        yield Check("device", "ok", f"{name}: {devices.name_device(torch.device(name))}")
    usable = {name.partition(":")[0] for name in devices.list_devices()}
    for device in facts.get("devices", []):
        # ROCm builds of torch call AMD devices cuda.
        kind = {"amd": "cuda" if torch.version.hip else "amd", "intel": "xpu"}.get(device["kind"], device["kind"])
        if kind not in usable:
            message = f"{device.get('name', 'a device')} is present, but torch {torch.__version__} cannot use it"
            yield Check("device", "missing", message, "install a torch build for it: make bench TORCH=...")
    cores = available_cores()
    message = f"{cores.threads} threads: {cores.physical or 'unknown'} physical cores, {cores.logical} logical"
    quota = "" if cores.quota_cores is None else f"; CPU quota: {cores.quota_cores:g} cores"
    hint = "raise the container's CPU quota" if quota else None
    yield Check("cores", "limited" if quota else "ok", f"{message}, for this process{quota}", hint)
    place = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    if os.access(place, os.W_OK):
        disk = format_bytes(shutil.disk_usage(place).free)
        yield Check("memory", "ok", f"{format_bytes(memory_available_bytes())} free; {disk} on disk for results")
    else:
        yield Check("results", "missing", f"cannot write run folders under {out}", "choose another folder: --out DIR")
    yield check_precision()
    yield from check_software()
    yield from check_measuring()


def check_precision() -> Check:
    """Report the trial that bench uses, too: taken now, or by an earlier run."""
    fit = finish(fit_engine(load_config("resnet50")))
    (chosen,) = (found.message for found in fit.findings if found.code == "precision-chosen")
    broken = any(trial.failure for trial in fit.trials.precisions)
    hint = "the CPU reports a feature that it cannot execute here; train.precision=auto avoids it" if broken else None
    return Check("precision", "limited" if broken else "ok", f"auto: {chosen}", hint)


def check_software() -> Iterator[Check]:
    libc, version = platform.libc_ver()
    if libc == "glibc":
        yield Check("allocator", "ok", f"glibc {version}: bench restarts itself once, keeping freed memory")
    else:
        message = f"{describe_allocator()}: freed memory returns to the kernel, 10 to 20 % slower on a CPU"
        yield Check("allocator", "limited", message)
    compiler = shutil.which(os.environ.get("CXX", "")) or shutil.which("g++") or shutil.which("clang++")
    if compiler:
        yield Check("compiler", "ok", f"{Path(compiler).name}: engine.compile can be used")
    else:
        message = "no C++ compiler: engine.compile does not work on the CPU"
        yield Check("compiler", "limited", message, "to use it, install g++")
    for extra, (package, purpose) in EXTRAS.items():
        try:
            yield Check("extra", "ok", f"{extra}: {package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            message = f"{extra} ({purpose}) is not installed"
            yield Check("extra", "limited", message, f"pip install 'trainstone[{extra}]'")


def check_measuring() -> Iterator[Check]:
    """Check which telemetry the device offers, and how noisy the machine is while idle."""
    reader = devices.choose_reader(devices.choose_device("auto"))
    unmetered = "no readable energy counter: energy is not reported"
    yield Check("energy", "ok" if reader.meter else "limited", reader.meter or unmetered)
    for message in reader.unsupported:
        yield Check("telemetry", "limited", message)
    reader.close()
    before = read_pressure()
    time.sleep(IDLE_SECONDS)
    noise = grade_noise(before, read_pressure())
    message = f"grade {noise.grade} over {IDLE_SECONDS:.0f} s: {'; '.join(noise.reasons) or 'quiet'}"
    hint = "stop other programs before you measure" if noise.grade == "C" else None
    yield Check("noise", "ok" if noise.grade == "A" else "limited", message, hint)
