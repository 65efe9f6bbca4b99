"""The readers of CPUs and NVIDIA devices, on made-up machines.

NVML is a made-up module: there was no GPU to test with here.
"""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from made_up import make_tree
from trainstone.measure import meters
from trainstone.measure.meters import CpuReader, NvmlReader, name_reasons
from trainstone.results.samples import Reading


class FakeClock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


STAT = "cpu  {0} 0 0 {1} 0 0 0 0 0 0\ncpu0 {0} 0 0 {1} 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\nintr 1\n"
CPU = "sys/devices/system/cpu"
RAPL = "sys/class/powercap"


def make_server(root: Path) -> Path:
    files = {
        "proc/stat": STAT.format(100, 100),
        "proc/self/statm": "5000 1000 200 1 0 300 0\n",
        "sys/class/hwmon/hwmon0/name": "nvme\n",
        "sys/class/hwmon/hwmon0/temp1_input": "99000\n",
        "sys/class/hwmon/hwmon1/name": "coretemp\n",
        "sys/class/hwmon/hwmon1/temp1_label": "Package id 0\n",
        "sys/class/hwmon/hwmon1/temp1_input": "61000\n",
        "sys/class/hwmon/hwmon1/temp2_label": "Core 0\n",
        "sys/class/hwmon/hwmon1/temp2_input": "88000\n",
    }
    for cpu in (0, 1):
        files[f"{CPU}/cpu{cpu}/topology/core_cpus_list"] = f"{cpu}\n"
        files[f"{CPU}/cpu{cpu}/cpufreq/scaling_cur_freq"] = f"{2_000_000 + 1_000_000 * cpu}\n"
        files[f"{CPU}/cpu{cpu}/thermal_throttle/core_throttle_count"] = "4\n"
        files[f"{CPU}/cpu{cpu}/thermal_throttle/package_throttle_count"] = "4\n"
    names = {
        "intel-rapl:0": "package-0",
        "intel-rapl:0:0": "package-0-part",
        "intel-rapl:1": "package-1",
        "intel-rapl:2": "psys",
    }
    for folder, name in names.items():
        files[f"{RAPL}/{folder}/name"] = f"{name}\n"
        files[f"{RAPL}/{folder}/energy_uj"] = "1000000\n"
        files[f"{RAPL}/{folder}/max_energy_range_uj"] = "262143328850\n"
    return make_tree(root, files)


def test_server_with_everything(tmp_path):
    root, clock = make_server(tmp_path), FakeClock()
    reader = CpuReader(root, available={0, 1}, now=clock)
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
    clock.seconds += 0.5
    second = reader.read()
    assert (second.energy_joules, second.power_watts) == (82.0, 160.0)
    assert (second.util_percent, second.throttle) == (75.0, "thermal")
    assert reader.read().throttle == "none"
    reader.close()
    assert reader.read() == Reading()


def test_energy_counter_wraps_around(tmp_path):
    root, clock = make_server(tmp_path), FakeClock()
    make_tree(root, {f"{RAPL}/intel-rapl:{i}/max_energy_range_uj": "100000000" for i in (0, 1)})
    make_tree(root, {f"{RAPL}/intel-rapl:{i}/energy_uj": "95000000" for i in (0, 1)})
    reader = CpuReader(root, available={0, 1}, now=clock)
    assert reader.read().energy_joules == 190.0
    make_tree(root, {f"{RAPL}/intel-rapl:0/energy_uj": "5000000", f"{RAPL}/intel-rapl:1/energy_uj": "99000000"})
    clock.seconds += 1.0
    reading = reader.read()
    assert (reading.energy_joules, reading.power_watts) == (204.0, 14.0)
    reader.close()


@pytest.mark.parametrize(("raw", "wrap"), [("500", "0"), ("500", ""), ("500", "262143328850"), ("9000000000", "1")])
def test_energy_counter_that_jumps_is_not_trusted_again(tmp_path, raw, wrap):
    root, clock = make_server(tmp_path), FakeClock()
    make_tree(root, {f"{RAPL}/intel-rapl:0/max_energy_range_uj": wrap})
    reader = CpuReader(root, available={0, 1}, now=clock)
    reader.read()
    make_tree(root, {f"{RAPL}/intel-rapl:0/energy_uj": raw})
    for _ in range(2):
        clock.seconds += 0.5
        assert reader.read().energy_joules is None
    assert reader.unsupported[-1] == "energy: the RAPL counter jumped; not measured from there on"
    reader.close()


@pytest.mark.parametrize("content", ["", "garbage", "-5\n"])
def test_one_bad_reading_costs_one_sample(tmp_path, content):
    root, clock = make_server(tmp_path), FakeClock()
    reader = CpuReader(root, available={0, 1}, now=clock)
    reader.read()
    make_tree(root, {f"{RAPL}/intel-rapl:1/energy_uj": content})
    clock.seconds += 0.5
    assert reader.read().energy_joules is None
    make_tree(root, {f"{RAPL}/intel-rapl:1/energy_uj": "101000000"})
    clock.seconds += 0.5
    reading = reader.read()
    assert (reading.energy_joules, reading.power_watts) == (102.0, 100.0)
    reader.close()


@pytest.mark.parametrize("content", ["", "garbage", "-5\n", "\xff\0", "1 x\n"])
def test_files_that_turn_bad_between_samples(tmp_path, content):
    root = make_server(tmp_path)
    reader = CpuReader(root, available={0, 1})
    files = [path for path in root.rglob("*") if path.is_file()]
    for path in files:
        path.write_text(content)
    assert reader.read() == Reading()
    for path in files:
        path.unlink()
    assert reader.read() == Reading()
    reader.close()


def test_energy_that_needs_root_is_said_so(tmp_path, monkeypatch):
    root = make_server(tmp_path)
    real_open = os.open

    def refuse(path: Any, flags: int, *more: Any) -> int:
        if Path(path).name == "energy_uj":
            raise PermissionError(13, "Permission denied")
        return real_open(path, flags, *more)

    monkeypatch.setattr("trainstone.machine.cpus.os.open", refuse)  # as root here we may read anything
    reader = CpuReader(root, available={0, 1})
    assert reader.meter is None
    assert reader.unsupported[0] == f"energy: {root}/{RAPL}/intel-rapl:0/energy_uj needs root"
    assert reader.read().energy_joules is None
    reader.close()


def test_virtual_machine_shows_no_clock(tmp_path):
    files = {"proc/cpuinfo": "cpu MHz\t: 2299.998\nflags\t: avx hypervisor\n", "proc/stat": STAT.format(1, 1)}
    reader = CpuReader(make_tree(tmp_path, files), available={0, 1})
    assert reader.read().clock_mhz is None
    assert reader.meter is None
    assert reader.unsupported == [
        "power: no RAPL interface here",
        "clock: a virtual machine shows a constant",
        "throttle: no thermal_throttle counters here",
        "temp: no CPU sensor under hwmon or thermal",
        "mem_used: no /proc/self/statm here",
    ]
    reader.close()


def test_number_cut_by_the_buffer_is_not_a_number(tmp_path):
    line = "cpu0 100 0 0 100 0 0 0 "  # the eighth number starts on the last of the 512 bytes that one CPU gets
    root = make_tree(tmp_path, {"proc/stat": line + " " * (511 - len(line)) + "1234567 0 0\n"})
    reader = CpuReader(root, available={0})
    make_tree(root, {"proc/stat": line.replace("100", "900") + " " * (511 - len(line)) + "1234567 0 0\n"})
    assert reader.read().util_percent is None
    reader.close()


def test_clock_without_cpufreq_comes_from_cpuinfo(tmp_path):
    text = "cpu MHz\t\t: 2000.000\nflags : avx\n\ncpu MHz\t\t: 3000.000\n"
    root = make_tree(tmp_path, {"proc/cpuinfo": text, "sys/class/thermal/thermal_zone3/type": "x86_pkg_temp"})
    make_tree(root, {"sys/class/thermal/thermal_zone3/temp": "45500"})
    reader = CpuReader(root, available={0, 1})
    reading = reader.read()
    assert (reading.clock_mhz, reading.temp_celsius) == (2500.0, 45.5)
    reader.close()


def test_many_cores_are_sampled_evenly(tmp_path):
    files = {f"{CPU}/cpu{i}/cpufreq/scaling_cur_freq": f"{i}000" for i in range(64)}
    files |= {f"{CPU}/cpu{i}/topology/core_cpus_list": f"{i % 32},{i % 32 + 32}" for i in range(64)}
    cores = meters._choose_cores(range(64), make_tree(tmp_path, files))
    numbers = sorted(int(core.name[3:]) % 32 for core in cores)
    assert numbers == list(range(0, 32, 2))


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="this system has no /proc")
def test_this_machine():
    reader = CpuReader()
    reading = reader.read()
    reader.close()
    assert reading.mem_used_bytes is not None
    assert 1 << 20 < reading.mem_used_bytes < 1 << 36


class NotSupported(Exception):
    pass


def refuse(*_: Any) -> Any:
    raise NotSupported("Not Supported")


def make_nvml(**changes: Any) -> SimpleNamespace:
    answers = {
        "Init": lambda: None,
        "Shutdown": lambda: None,
        "DeviceGetHandleByIndex": lambda index: f"index {index}",
        "DeviceGetHandleByUUID": lambda uuid: uuid,
        "DeviceGetClockInfo": lambda handle, kind: {1: 1410, 2: 1593}[kind],
        "DeviceGetPowerUsage": lambda handle: 251500,
        "DeviceGetTotalEnergyConsumption": lambda handle: 123456789,
        "DeviceGetTemperatureV": lambda handle, sensor: 65,
        "DeviceGetTemperature": lambda handle, sensor: 66,
        "DeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=97, memory=40),
        "DeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=1 << 30, total=1 << 34),
        "DeviceGetCurrentClocksEventReasons": lambda handle: 0x4 | 0x40,
    }
    named = {f"nvml{name}": answer for name, answer in (answers | changes).items()}
    constants = {"NVML_CLOCK_SM": 1, "NVML_CLOCK_MEM": 2, "NVML_TEMPERATURE_GPU": 0}
    return SimpleNamespace(NVMLError=NotSupported, **constants, **named)


def test_nvidia_device():
    reader = NvmlReader(0, nvml=make_nvml())
    assert (reader.meter, reader.unsupported) == ("NVML total energy counter", [])
    throttle = "sw_power_cap|hw_thermal_slowdown"
    assert reader.read() == Reading(1410.0, 1593.0, 251.5, 123456.789, 65.0, 97.0, 1 << 30, throttle)
    reader.close()
    assert reader.read() == Reading()


def test_mig_slice_answers_only_some():
    nvml = make_nvml(DeviceGetUtilizationRates=refuse, DeviceGetTotalEnergyConsumption=refuse)
    reader = NvmlReader("MIG-1234", nvml=nvml)
    assert reader.meter is None
    assert reader.unsupported == ["energy: Not Supported", "util: Not Supported"]
    reading = reader.read()
    assert (reading.util_percent, reading.energy_joules, reading.power_watts) == (None, None, 251.5)


def test_old_driver_is_asked_the_old_way():
    nvml = make_nvml(DeviceGetTemperatureV=refuse, DeviceGetCurrentClocksThrottleReasons=lambda handle: 0)
    del nvml.nvmlDeviceGetCurrentClocksEventReasons
    reader = NvmlReader(0, nvml=nvml)
    assert reader.unsupported == []
    reading = reader.read()
    assert (reading.temp_celsius, reading.throttle) == (66.0, "none")


@pytest.mark.parametrize(("device", "asked"), [("GPU-ab", "GPU-ab"), ("MIG-ab", "MIG-ab"), ("ab", "GPU-ab")])
def test_uuid_with_and_without_prefix(device, asked):
    seen = []
    NvmlReader(device, nvml=make_nvml(DeviceGetHandleByUUID=seen.append))
    assert seen == [asked]


def test_device_lost_on_the_way_gives_empty_readings():
    nvml = make_nvml()
    reader = NvmlReader(0, nvml=nvml)
    for name in ("PowerUsage", "ClockInfo", "MemoryInfo", "TemperatureV", "UtilizationRates"):
        setattr(nvml, f"nvmlDeviceGet{name}", refuse)
    reading = reader.read()
    assert (reading.power_watts, reading.clock_mhz, reading.energy_joules) == (None, None, 123456.789)


@pytest.mark.parametrize("changes", [{"Init": refuse}, {"DeviceGetHandleByIndex": refuse}])
def test_no_driver_or_no_such_device_still_makes_a_reader(changes):
    reader = NvmlReader(7, nvml=make_nvml(**changes))
    assert reader.unsupported == ["everything: NVML does not answer for device 7: Not Supported"]
    assert (reader.meter, reader.read()) == (None, Reading())
    reader.close()


REASONS = {0: "none", 0x1: "gpu_idle", 0x108: "hw_slowdown|display_clocks", 0x600: "0x600", 0x204: "sw_power_cap|0x200"}


@pytest.mark.parametrize(("bits", "words"), REASONS.items())
def test_throttle_reasons(bits, words):
    assert name_reasons(bits) == words
