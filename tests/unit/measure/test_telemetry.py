"""Tests of the telemetry sampler with fake readers and an injected clock, and of the CPU and NVIDIA readers on fake
machines, also with damaged or missing files in /proc and /sys. NVML is a fake module: no GPU is needed.
"""

import logging
import os
import platform
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from support.builders.machines import CPU, RAPL, STAT, make_nvml, make_server, make_tree, refuse
from trainstone.machine.cpus import available_cores, count_oom_kills, memory_available_bytes, memory_limit_bytes
from trainstone.machine.facts import read_facts
from trainstone.machine.noise import Pressure, read_pressure
from trainstone.measure.devices import choose_reader
from trainstone.measure.telemetry import CpuReader, NvmlReader, Telemetry, name_reasons
from trainstone.results.telemetry import HEADER, Reading, read_samples


class FakeReader:
    """Returns its readings in order, then the last one forever; an exception is raised."""

    meter: str | None = "fake"

    def __init__(self, *readings: Reading | Exception) -> None:
        self.unsupported: list[str] = []
        self.readings = list(readings) or [Reading()]
        self.closed = False

    def read(self) -> Reading:
        reading = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        if isinstance(reading, Exception):
            raise reading
        return reading

    def close(self) -> None:
        self.closed = True


def test_telemetry_writes_samples_to_file(tmp_path, monkeypatch):
    monkeypatch.setattr(platform, "node", lambda: "node/7")
    now = [100.0]
    reader = FakeReader(Reading(clock_mhz=1410.0, energy_joules=5.5, mem_used_bytes=7, throttle="none"))
    telemetry = Telemetry(tmp_path, "cuda:0", reader, lambda: 12, 60.0, now=lambda: now[0], started=98.5)
    with telemetry:
        while not read_samples(telemetry.path):
            time.sleep(0.001)
        now[0] = 102.0
    assert telemetry.path == tmp_path / "telemetry-node_7-cuda_0.csv"
    line = "12,1410.000,,,5.500,,,7,none\n"
    assert telemetry.path.read_text() == f"{HEADER}\n1.500,{line}3.500,{line}"
    assert reader.closed


def test_telemetry_reader_error_is_logged_once(tmp_path, caplog):
    gone = RuntimeError("driver gone")
    telemetry = Telemetry(tmp_path, "cpu", FakeReader(gone, gone, Reading(temp_celsius=50.0)), lambda: 4)
    with caplog.at_level(logging.WARNING):
        telemetry.path.touch()
        telemetry._file = telemetry.path.open("ab", buffering=0)
        telemetry._file.write(f"{HEADER}\n".encode())
        for _ in range(3):
            telemetry.sample()
    assert [one.getMessage() for one in caplog.records] == [
        "telemetry: cannot read the device: RuntimeError: driver gone"
    ]
    samples = read_samples(telemetry.path)
    assert [(sample.step, sample.temp_celsius) for sample in samples] == [(4, None), (4, None), (4, 50.0)]
    telemetry._file.close()


def test_telemetry_unwritable_folder_does_not_raise(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    reader = FakeReader()
    with Telemetry(tmp_path / "file", "cpu", reader, lambda: 1, interval_seconds=0.005):
        time.sleep(0.02)
    assert reader.closed
    assert [record.getMessage()[:23] for record in caplog.records] == ["telemetry: cannot write"]


def test_telemetry_hanging_driver_is_abandoned(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("trainstone.measure.telemetry.JOIN_SECONDS", 0.02)
    release = threading.Event()
    reader = FakeReader()
    monkeypatch.setattr(reader, "read", lambda: release.wait() and Reading())
    with Telemetry(tmp_path, "cpu", reader, lambda: 1) as telemetry:
        pass
    assert "hangs" in caplog.text
    release.set()
    telemetry._thread.join()
    telemetry._file.close()


@pytest.mark.parametrize("torn", ["", "0.5", "time_sec", f"{HEADER}\n", f"{HEADER}\n1.000,3,,,,,,,,none\n2.0,4,,"])
def test_telemetry_resume_appends_after_last_complete_line(tmp_path, torn):
    telemetry = Telemetry(tmp_path, "cpu", FakeReader(), lambda: 9, interval_seconds=60)
    telemetry.path.write_text(torn)
    with telemetry:
        pass
    steps = [sample.step for sample in read_samples(telemetry.path)]
    assert [step for step in steps if step != 9] == ([3] if "1.000" in torn else [])
    assert steps[-1] == 9
    assert telemetry.path.read_text().count(HEADER) == 1


def test_cpu_reader_reads_all_values_of_server(tmp_path):
    root, times = make_server(tmp_path), iter((100.0, 100.5, 101.0, 101.5))
    reader = CpuReader(root, available=range(4), now=lambda: next(times))
    assert reader.meter == "RAPL package-0+package-1"
    assert reader.unsupported == []
    first = reader.read()
    assert (first.clock_mhz, first.temp_celsius, first.throttle) == (2500.0, 61.0, "none")
    assert first.mem_used_bytes == 1000 * os.sysconf("SC_PAGE_SIZE")
    assert (first.energy_joules, first.power_watts) == (2.0, None)  # power needs two readings
    changes = {
        "proc/stat": STAT.format(175, 125),
        f"{RAPL}/intel-rapl:0/energy_uj": "61000000\n",
        f"{RAPL}/intel-rapl:1/energy_uj": "21000000\n",
        f"{RAPL}/intel-rapl:0:0/energy_uj": "900000000\n",  # part of package 0, must not count
        f"{CPU}/cpu1/thermal_throttle/core_throttle_count": "5\n",
    }
    make_tree(root, changes)
    second = reader.read()
    assert (second.energy_joules, second.power_watts) == (82.0, 160.0)
    assert (second.util_percent, second.throttle) == (75.0, "thermal")
    assert reader.read().throttle == "none"
    reader.close()
    assert reader.read() == Reading()


JUMPED = ["energy: the RAPL counter jumped; not measured after that"]


# Package 1 always shows 1 J, read once per second; package 0 shows the values of `raw`.
@pytest.mark.parametrize(
    ("wrap", "raw", "joules", "watts", "unsupported"),
    [
        ("100000000", ["95000000", "5000000"], [96.0, 106.0], [None, 10.0], []),  # wraps around
        *(
            (wrap, ["1000000", "500", "500"], [2.0, None, None], [None] * 3, JUMPED)
            for wrap in ("0", "", "262143328850")
        ),
        ("1", ["1000000", "9000000000"], [2.0, None], [None, None], JUMPED),
        # One bad reading costs one sample.
        *(
            ("0", ["1000000", bad, "101000000"], [2.0, None, 102.0], [None, None, 50.0], [])
            for bad in ("", "x", "-5\n")
        ),
    ],
)
def test_cpu_reader_handles_energy_counter_overflow_and_jumps(tmp_path, wrap, raw, joules, watts, unsupported):
    root, times = make_server(tmp_path), iter(range(100, 200))
    make_tree(root, {f"{RAPL}/intel-rapl:0/max_energy_range_uj": wrap})
    reader = CpuReader(root, available=range(4), now=lambda: float(next(times)))
    readings = []
    for count in raw:
        make_tree(root, {f"{RAPL}/intel-rapl:0/energy_uj": count})
        readings.append(reader.read())
    assert [reading.energy_joules for reading in readings] == joules
    assert [reading.power_watts for reading in readings] == watts
    assert reader.unsupported == unsupported
    reader.close()


def test_cpu_reader_energy_without_root_is_unsupported(tmp_path, monkeypatch):
    root = make_server(tmp_path)
    real_open = os.open

    def refuse_energy(path: Any, flags: int, *more: Any) -> int:
        if Path(path).name == "energy_uj":
            raise PermissionError(13, "Permission denied")
        return real_open(path, flags, *more)

    monkeypatch.setattr("trainstone.machine.cpus.os.open", refuse_energy)  # root may read anything
    reader = CpuReader(root, available=range(4))
    assert reader.meter is None
    assert reader.unsupported[0] == f"energy: {root}/{RAPL}/intel-rapl:0/energy_uj needs root"
    assert reader.read().energy_joules is None
    reader.close()


def test_cpu_reader_lists_unsupported_values_of_virtual_machine(tmp_path):
    reader = CpuReader(make_tree(tmp_path, {"proc/stat": STAT.format(1, 1)}), available=range(4))
    assert reader.read().clock_mhz is None
    assert reader.meter is None
    assert reader.unsupported == [
        "power: no RAPL interface",
        "clock: no cpufreq",
        "throttle: no thermal_throttle counters",
        "temp: no CPU sensor under hwmon or thermal",
        "mem_used: no /proc/self/statm",
    ]
    reader.close()


def read_nvml(monkeypatch: pytest.MonkeyPatch, nvml: SimpleNamespace) -> NvmlReader:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return NvmlReader("ab")


def test_nvml_reader_reads_all_values(monkeypatch):
    nvml = make_nvml()
    reader = read_nvml(monkeypatch, nvml)
    assert (reader.meter, reader.unsupported) == ("NVML total energy counter", [])
    throttle = "sw_power_cap|hw_thermal_slowdown"
    assert reader.read() == Reading(1410.0, 1593.0, 251.5, 123456.789, 65.0, 97.0, 1 << 30, throttle)
    for name in ("PowerUsage", "ClockInfo", "MemoryInfo", "TemperatureV", "UtilizationRates"):  # lost later
        setattr(nvml, f"nvmlDeviceGet{name}", refuse)
    reading = reader.read()
    assert (reading.power_watts, reading.clock_mhz, reading.energy_joules) == (None, None, 123456.789)
    reader.close()
    assert reader.read() == Reading()


def test_nvml_reader_mig_slice_lists_unsupported_values(monkeypatch):
    reader = read_nvml(monkeypatch, make_nvml(DeviceGetUtilizationRates=refuse, DeviceGetTotalEnergyConsumption=refuse))
    assert reader.meter is None
    assert reader.unsupported == ["energy: Not Supported", "util: Not Supported"]
    reading = reader.read()
    assert (reading.util_percent, reading.energy_joules, reading.power_watts) == (None, None, 251.5)


@pytest.mark.parametrize("known", ["GPU-ab", "MIG-ab"])
def test_choose_reader_finds_gpu_or_mig_slice_of_the_uuid_that_torch_reports(known: str, monkeypatch):
    def find(uuid: str) -> str:
        return uuid if uuid == known else refuse()

    monkeypatch.setitem(sys.modules, "pynvml", make_nvml(DeviceGetHandleByUUID=find))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: SimpleNamespace(uuid="ab"))
    reader = choose_reader(torch.device("cuda:0"))
    assert (reader.uuid, reader.unsupported) == (known, [])
    assert reader.read().power_watts == 251.5


def test_nvml_reader_old_driver_uses_old_queries(monkeypatch):
    nvml = make_nvml(DeviceGetTemperatureV=refuse, DeviceGetCurrentClocksThrottleReasons=lambda handle: 0)
    del nvml.nvmlDeviceGetCurrentClocksEventReasons
    reader = read_nvml(monkeypatch, nvml)
    reading = reader.read()
    assert (reading.temp_celsius, reading.throttle, reader.unsupported) == (66.0, "none", [])


@pytest.mark.parametrize("changes", [{"Init": refuse}, {"DeviceGetHandleByUUID": refuse}])
def test_nvml_reader_without_driver_reads_nothing(monkeypatch, changes):
    reader = read_nvml(monkeypatch, make_nvml(**changes))
    assert reader.unsupported == ["all values: NVML cannot read device ab: Not Supported"]
    assert (reader.meter, reader.uuid, reader.read()) == (None, None, Reading())
    reader.close()


def test_name_reasons_returns_names_of_bits():
    names = {
        0: "none",
        0x1: "gpu_idle",
        0x108: "hw_slowdown|display_clocks",
        0x600: "0x600",
        0x204: "sw_power_cap|0x200",
    }
    assert {bits: name_reasons(bits) for bits in names} == names


def assert_nothing_measured(root: Path) -> None:
    cores = available_cores(root)
    assert (cores.quota_cores, cores.threads, cores.logical) == (None, cores.physical or 4, 4)
    assert (memory_available_bytes(root), memory_limit_bytes(root), count_oom_kills(root)) == (8, None, {})
    pressure = read_pressure(root, pids={100}, cpus={0}, now=lambda: 1.0)
    assert replace(pressure, governor=None) == Pressure(1.0)
    assert not {"max_mhz", "boost", "smt", "isa", "sockets", "vendor"} & read_facts(root)["cpu"].keys()


BROKEN = ["", "\n", "garbage", "-5", "-5 -5", "max", "1e9", "0 0", "\0\xff", ":::", "some avg10=x total=-5", "cpu0 x 2"]


@pytest.mark.parametrize("content", [*BROKEN, "5 (x"])
def test_cpu_reader_damaged_files_are_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=9, available=8))
    monkeypatch.setitem(sys.modules, "pynvml", make_nvml(Init=refuse))
    monkeypatch.setenv("TRAINSTONE_CPUS", "0,1,2,3")
    root = make_server(tmp_path)
    reader = CpuReader(root)
    files = [path for path in root.rglob("*") if path.is_file()]
    for path in files:
        path.write_text(content)
    assert reader.read() == Reading()
    assert_nothing_measured(root)
    make_tree(root, {"proc/self/cgroup": "0::/\n"})
    assert_nothing_measured(root)
    for path in files:
        path.unlink()
    assert reader.read() == Reading()
    assert_nothing_measured(root)
    for path in files:
        path.mkdir()
    assert_nothing_measured(root)
    reader.close()
