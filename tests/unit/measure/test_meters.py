"""The readers of CPUs and NVIDIA devices, on made-up machines.

NVML is a made-up module: there was no GPU to test with here.
"""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from made_up import CPU, RAPL, STAT, make_nvml, make_server, make_tree, refuse
from trainstone.measure.telemetry import CpuReader, NvmlReader, name_reasons
from trainstone.results.samples import Reading


def test_server_with_everything(tmp_path):
    root, times = make_server(tmp_path), iter((100.0, 100.5, 101.0, 101.5))
    reader = CpuReader(root, available=range(4), now=lambda: next(times))
    assert reader.meter == "RAPL package-0+package-1"
    assert reader.unsupported == []
    first = reader.read()
    assert (first.clock_mhz, first.temp_celsius, first.throttle) == (2500.0, 61.0, "none")
    assert first.mem_used_bytes == 1000 * os.sysconf("SC_PAGE_SIZE")
    assert (first.energy_joules, first.power_watts) == (2.0, None)  # power needs two looks
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


JUMPED = ["energy: the RAPL counter jumped; not measured from there on"]


# Package 1 shows 1 J at each look, once a second; package 0 what stands in `raw`.
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
def test_energy_counter(tmp_path, wrap, raw, joules, watts, unsupported):
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


def test_energy_that_needs_root_is_said_so(tmp_path, monkeypatch):
    root = make_server(tmp_path)
    real_open = os.open

    def refuse_energy(path: Any, flags: int, *more: Any) -> int:
        if Path(path).name == "energy_uj":
            raise PermissionError(13, "Permission denied")
        return real_open(path, flags, *more)

    monkeypatch.setattr("trainstone.machine.cpus.os.open", refuse_energy)  # as root here we may read anything
    reader = CpuReader(root, available=range(4))
    assert reader.meter is None
    assert reader.unsupported[0] == f"energy: {root}/{RAPL}/intel-rapl:0/energy_uj needs root"
    assert reader.read().energy_joules is None
    reader.close()


def test_cpu_reader_names_what_a_virtual_machine_lacks(tmp_path):
    reader = CpuReader(make_tree(tmp_path, {"proc/stat": STAT.format(1, 1)}), available=range(4))
    assert reader.read().clock_mhz is None
    assert reader.meter is None
    assert reader.unsupported == [
        "power: no RAPL interface here",
        "clock: no cpufreq here",
        "throttle: no thermal_throttle counters here",
        "temp: no CPU sensor under hwmon or thermal",
        "mem_used: no /proc/self/statm here",
    ]
    reader.close()


def read_nvml(monkeypatch: pytest.MonkeyPatch, nvml: SimpleNamespace) -> NvmlReader:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return NvmlReader("GPU-ab")


def test_nvidia_device(monkeypatch):
    nvml = make_nvml()
    reader = read_nvml(monkeypatch, nvml)
    assert (reader.meter, reader.unsupported) == ("NVML total energy counter", [])
    throttle = "sw_power_cap|hw_thermal_slowdown"
    assert reader.read() == Reading(1410.0, 1593.0, 251.5, 123456.789, 65.0, 97.0, 1 << 30, throttle)
    for name in ("PowerUsage", "ClockInfo", "MemoryInfo", "TemperatureV", "UtilizationRates"):  # lost on the way
        setattr(nvml, f"nvmlDeviceGet{name}", refuse)
    reading = reader.read()
    assert (reading.power_watts, reading.clock_mhz, reading.energy_joules) == (None, None, 123456.789)
    reader.close()
    assert reader.read() == Reading()


def test_mig_slice_answers_only_some(monkeypatch):
    reader = read_nvml(monkeypatch, make_nvml(DeviceGetUtilizationRates=refuse, DeviceGetTotalEnergyConsumption=refuse))
    assert reader.meter is None
    assert reader.unsupported == ["energy: Not Supported", "util: Not Supported"]
    reading = reader.read()
    assert (reading.util_percent, reading.energy_joules, reading.power_watts) == (None, None, 251.5)


def test_old_driver_is_asked_the_old_way(monkeypatch):
    nvml = make_nvml(DeviceGetTemperatureV=refuse, DeviceGetCurrentClocksThrottleReasons=lambda handle: 0)
    del nvml.nvmlDeviceGetCurrentClocksEventReasons
    reader = read_nvml(monkeypatch, nvml)
    reading = reader.read()
    assert (reading.temp_celsius, reading.throttle, reader.unsupported) == (66.0, "none", [])


@pytest.mark.parametrize("changes", [{"Init": refuse}, {"DeviceGetHandleByUUID": refuse}])
def test_no_driver_or_no_such_device_still_makes_a_reader(monkeypatch, changes):
    reader = read_nvml(monkeypatch, make_nvml(**changes))
    assert reader.unsupported == ["everything: NVML does not answer for device GPU-ab: Not Supported"]
    assert (reader.meter, reader.read()) == (None, Reading())
    reader.close()


REASONS = {0: "none", 0x1: "gpu_idle", 0x108: "hw_slowdown|display_clocks", 0x600: "0x600", 0x204: "sw_power_cap|0x200"}


@pytest.mark.parametrize(("bits", "words"), REASONS.items())
def test_throttle_reasons(bits, words):
    assert name_reasons(bits) == words
