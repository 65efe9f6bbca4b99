"""The invented part of the golden runs: machines, step times and telemetry of make.py's cases. No clock, no chance."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainstone.config.load import load_config
from trainstone.config.schema import Config
from trainstone.machine.health import Pressure
from trainstone.results.samples import Sample
from trainstone.results.schema import Memory

Array = NDArray[np.float64]
GPU = "Example GPU 80GB"
METER = "NVML total energy counter"
SOFTWARE = {"python": "3.12.3", "trainstone": "0.1.0", "torch": "2.13.0", "numpy": "2.4.6", "environment": {}}
GPU_SETTINGS = ("device='cuda:0'", "train.batch_size=256", "train.precision='bf16'", "engine.threads=32")
CPU_UNSUPPORTED = ["power: no RAPL interface here", "temp: no CPU sensor under hwmon or thermal"]


@dataclass(frozen=True)
class Rank:
    """One process and its device."""

    host: str
    label: str
    device: str
    columns: dict[str, Array]
    samples: list[Sample]
    meter: str | None = METER
    unsupported: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """A run before it is judged."""

    name: str
    config: Config
    machine: dict[str, Any]
    ranks: list[Rank]
    pressure: tuple[Pressure, Pressure]
    memory: Memory
    software: dict[str, Any] = field(default_factory=lambda: dict(SOFTWARE))
    flops_per_image: int = 24_500_000_000
    bytes_per_image: int = 340_000_000
    peak_flops: float = 2.5e14
    peak_source: str = "measured in this run: bf16 matmul 8192x8192, best of 212"
    peak_bytes_per_second: float = 1.6e12


def list_cases() -> list[Case]:
    """Every made case."""
    return [make_never_steady(), make_throttled(), make_data_starved(), make_ten_ranks()]


def make_never_steady() -> Case:
    """A CPU whose steps get slower from the first to the last, by a quarter."""
    rng = np.random.default_rng(1)
    seconds = np.linspace(0.080, 0.100, 300) * rng.lognormal(0, 0.015, 300)
    seconds[0] = 0.310
    columns = make_columns(rng, seconds, np.full(300, 5e-6), batch=4)
    times = np.arange(0.004, seconds.sum(), 0.5)
    samples = make_samples(times, columns, util_percent=97 + rng.normal(0, 1, times.size), memory=588e6)
    settings = ("device='cpu'", "model.depth=18", "data.image_size=64", "train.batch_size=4", "engine.threads=8")
    rank = Rank("laptop", "cpu", "Example CPU 8-Core", columns, samples, None, CPU_UNSUPPORTED)
    return Case(
        name="never-steady",
        config=load_config("resnet50", settings=[*settings, "train.precision='fp32'"]),
        machine=make_machine("laptop", cores=8, gpus=0),
        ranks=[rank],
        pressure=make_pressure(float(seconds.sum()), cores=8),
        memory=Memory(peak_host_bytes=588_000_000, allocator="glibc, keeps freed memory", page_faults_per_step=12.0),
        flops_per_image=872_079_360,
        bytes_per_image=71_784_251,
        peak_flops=9.2e11,
        peak_source="measured in this run: fp32 matmul 2048x2048, best of 70, 8 threads",
        peak_bytes_per_second=4.1e10,
    )


def make_throttled() -> Case:
    """A GPU that heats up: after a third of the run the clock is taken back by 30 %, and the steps follow it."""
    rng = np.random.default_rng(2)
    heat = np.clip((np.arange(420) - 140) / 140, 0, 1)
    clock = 1410 - 420 * heat
    seconds = 0.118 * 1410 / clock * rng.lognormal(0, 0.006, 420)
    seconds[:3] = (2.45, 0.31, 0.15)
    columns = make_columns(rng, seconds, np.full(420, 2.1e-4), batch=256)
    times = np.arange(0.004, seconds.sum(), 0.5)
    warmth = np.interp(times, columns["start_seconds"], heat)
    hot = warmth > 0.05
    samples = make_samples(
        times,
        columns,
        util_percent=np.full(times.size, 99.0),
        memory=31.2e9,
        clock_mhz=15 * np.round((1410 - 420 * warmth + rng.normal(0, 6, times.size)) / 15),
        power_watts=392 - 118 * warmth + rng.normal(0, 2, times.size),
        temp_celsius=np.round(58 + 30 * np.minimum(1, times / 20) + 3 * warmth),
        throttle=["sw_thermal_slowdown|hw_thermal_slowdown" if h else "none" for h in hot],
    )
    return make_gpu_case("throttled", [Rank("node-a", "cuda:0", GPU, columns, samples)], seconds)


def make_data_starved() -> Case:
    """A GPU that waits for its batches 40 % of the time."""
    rng = np.random.default_rng(3)
    wait = 0.080 * rng.lognormal(0, 0.10, 360)
    seconds = wait + 0.120 * rng.lognormal(0, 0.005, 360)
    seconds[:2] += (2.1, 0.2)
    columns = make_columns(rng, seconds, wait, batch=256)
    times = np.arange(0.004, seconds.sum(), 0.5)
    samples = make_samples(
        times,
        columns,
        util_percent=np.round(np.clip(60 + rng.normal(0, 4, times.size), 0, 100)),
        memory=31.2e9,
        clock_mhz=np.full(times.size, 1410.0),
        power_watts=262 + rng.normal(0, 6, times.size),
        temp_celsius=np.round(45 + 9 * np.minimum(1, times / 20)),
        throttle=["none"] * times.size,
    )
    return make_gpu_case("data-starved", [Rank("node-a", "cuda:0", GPU, columns, samples)], seconds)


def make_ten_ranks() -> Case:
    """Two hosts with five GPUs each; rank 0 is 15 % slower than the others, which wait for it."""
    rng = np.random.default_rng(4)
    own = 0.236 * rng.lognormal(0, 0.004, (10, 80))
    own[0] *= 1.15
    own[:, 0] += 1.8
    starts = 0.05 + np.concatenate(([0.0], np.cumsum(own.max(axis=0))[:-1]))
    ranks = []
    for number in range(10):
        columns = make_columns(rng, own[number], np.full(80, 3e-4), batch=256, starts=starts)
        times = np.arange(0.004, starts[-1], 0.5)
        slow = number == 0
        samples = make_samples(
            times,
            columns,
            util_percent=np.round(np.full(times.size, 99.0 if slow else 87.0)),
            memory=31.2e9,
            clock_mhz=np.full(times.size, 1215.0 if slow else 1410.0),
            power_watts=(300 if slow else 371) + rng.normal(0, 3, times.size),
            temp_celsius=np.round((79 if slow else 61) + rng.normal(0, 0.4, times.size)),
            throttle=["sw_power_cap" if slow else "none"] * times.size,
        )
        ranks.append(Rank("node-a" if number < 5 else "node-b", f"cuda:{number % 5}", GPU, columns, samples))
    return make_gpu_case("ten-ranks", ranks, own.max(axis=0), "nodes=2", "devices_per_node=5")


def make_gpu_case(name: str, ranks: list[Rank], seconds: Array, *settings: str) -> Case:
    """A case on made-up GPUs."""
    return Case(
        name=name,
        config=load_config("resnet50", settings=[*GPU_SETTINGS, *settings]),
        machine=make_machine(ranks[0].host, cores=32, gpus=max(1, len(ranks) // 2)),
        ranks=ranks,
        pressure=make_pressure(float(seconds.sum()), cores=32),
        memory=Memory(
            peak_device_bytes=29_400_000_000,
            peak_host_bytes=3_100_000_000,
            allocator="glibc, keeps freed memory (GLIBC_TUNABLES)",
            page_faults_per_step=3.0,
        ),
    )


def make_columns(
    rng: np.random.Generator, seconds: Array, wait: Array, *, batch: int, starts: Array | None = None
) -> dict[str, Array]:
    """The step file's columns, times to a microsecond."""
    count = seconds.size
    if starts is None:
        starts = 0.05 + np.concatenate(([0.0], np.cumsum(seconds)[:-1]))
    return {
        "step": np.arange(count, dtype=np.float64),
        "epoch": np.zeros(count),
        "start_seconds": np.round(starts, 6),
        "data_seconds": np.round(wait, 6),
        "step_seconds": np.round(seconds, 6),
        "images": np.full(count, float(batch)),
        "loss": np.round(6.9 - 0.004 * np.arange(count) + rng.normal(0, 0.02, count), 4),
        "lr": np.full(count, 0.01),
    }


def make_samples(
    times: Array,
    columns: dict[str, Array],
    *,
    util_percent: Array,
    memory: float,
    clock_mhz: Array | None = None,
    power_watts: Array | None = None,
    temp_celsius: Array | None = None,
    throttle: list[str] | None = None,
) -> list[Sample]:
    """Telemetry lines; the energy counter is the sum of the power."""
    step = np.searchsorted(columns["start_seconds"] + columns["step_seconds"], times)
    energy = None if power_watts is None else 1000 + np.cumsum(power_watts) * 0.5

    def value(values: Array | None, i: int) -> float | None:
        return None if values is None else round(float(values[i]), 3)

    return [
        Sample(
            time_seconds=round(float(time), 3),
            step=int(min(step[i], columns["step"].size - 1)),
            clock_mhz=value(clock_mhz, i),
            mem_clock_mhz=None if clock_mhz is None else 1593.0,
            power_watts=value(power_watts, i),
            energy_joules=value(energy, i),
            temp_celsius=value(temp_celsius, i),
            util_percent=value(np.minimum(util_percent, 100), i),
            mem_used_bytes=int(memory),
            throttle=throttle[i] if throttle else None,
        )
        for i, time in enumerate(times)
    ]


def make_machine(host: str, *, cores: int, gpus: int) -> dict[str, Any]:
    """machine.json of a made-up machine."""
    cpu = {"model": f"Example CPU {cores}-Core", "architecture": "x86_64", "physical_cores": cores}
    device = {"kind": "cuda", "name": GPU, "memory_bytes": 85_899_345_920, "driver": "590.10"}
    return {
        "host": host,
        "os": "Debian GNU/Linux 13 (trixie)",
        "kernel": "6.12.48",
        "cpu": cpu | {"available": {"logical": cores, "physical": cores, "threads": cores}},
        "memory": {"total_bytes": 8_000_000_000 * cores},
        "devices": [device | {"index": index} for index in range(gpus)],
    }


def make_pressure(seconds: float, *, cores: int) -> tuple[Pressure, Pressure]:
    """Counters of a machine that does nothing else."""
    busy = 0.9 * cores * seconds
    none = dict.fromkeys(("total", "process", "steal", "own", "cpu", "memory", "io", "quota"), 0.0)
    used = none | {"total": cores * seconds, "process": busy, "own": 0.998 * busy}
    before, after = Pressure(0.0, cores, 0.1, none), Pressure(seconds, cores, 1.0, used)
    return before, after
