"""Fake machines: /proc and /sys as trees of text files, NVML as a module of functions."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any


def make_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


CPU, RAPL = "sys/devices/system/cpu", "sys/class/powercap"
STAT = "cpu  {0} 0 0 {1} 0 0 0 0 0 0\ncpu0 {0} 0 0 {1} 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\nintr 1\n"


def make_server(root: Path) -> Path:
    """Write /proc and /sys of a server with two sockets, each with one core of two threads."""
    files = {
        "proc/cpuinfo": "processor: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Xeon 8380\n"
        "flags\t: fpu avx2 fma amx_tile\n"
        "\nprocessor: 1\nmodel name\t: another\n",
        "proc/sys/kernel/hostname": "node7\n",
        "proc/sys/kernel/osrelease": "6.1.0\n",
        "proc/stat": STAT.format(100, 100),
        "proc/loadavg": "0.75 0.50 0.25 1/84 123\n",
        **{f"proc/pressure/{kind}": "some avg10=0.00 total=5\n" for kind in ("cpu", "memory", "io")},
        "proc/self/statm": "5000 1000 200 1 0 300 0\n",
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        **{f"sys/fs/cgroup/{name}": "max\n" for name in ("cpu.max", "memory.max", "memory.current", "memory.stat")},
        "etc/os-release": 'NAME=Debian\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
        f"{CPU}/smt/active": "1\n",
        f"{CPU}/intel_pstate/no_turbo": "1\n",
        f"{CPU}/cpu4/online": "0",  # offline: no topology
        "sys/devices/system/node/node0/cpulist": "0-1",
        "sys/devices/system/node/node1/cpulist": "2-3",
        "sys/class/dmi/id/sys_vendor": "Dell Inc.\n",
        "sys/class/hwmon/hwmon0/name": "nvme\n",
        "sys/class/hwmon/hwmon0/temp1_input": "99000\n",
        "sys/class/hwmon/hwmon1/name": "coretemp\n",
        "sys/class/hwmon/hwmon1/temp1_label": "Package id 0\n",
        "sys/class/hwmon/hwmon1/temp1_input": "61000\n",
        "sys/class/hwmon/hwmon1/temp2_label": "Core 0\n",
        "sys/class/hwmon/hwmon1/temp2_input": "88000\n",
    }
    for cpu in range(4):
        values = {
            "topology/physical_package_id": cpu // 2,
            "topology/core_cpus_list": "0-1" if cpu < 2 else "2-3",
            "cpufreq/cpuinfo_max_freq": 3400000,
            "cpufreq/scaling_governor": "performance",
            "cpufreq/scaling_cur_freq": 2_000_000 if cpu < 2 else 3_000_000,
            "thermal_throttle/core_throttle_count": 4,
            "thermal_throttle/package_throttle_count": 4,
        }
        files |= {f"{CPU}/cpu{cpu}/{name}": f"{value}\n" for name, value in values.items()}
    names = {"0": "package-0", "0:0": "package-0-part", "1": "package-1", "2": "psys"}
    for number, name in names.items():
        values = {"name": name, "energy_uj": 1000000, "max_energy_range_uj": 262143328850}
        files |= {f"{RAPL}/intel-rapl:{number}/{key}": f"{value}\n" for key, value in values.items()}
    return make_tree(root, files)


class NotSupported(Exception):
    """Error of the fake NVML."""


def refuse(*_: Any) -> Any:
    raise NotSupported("Not Supported")


def make_nvml(**changes: Any) -> SimpleNamespace:
    """Return a module like pynvml with one A100; `changes` replaces functions, by name without nvml."""
    answers = {
        "Init": lambda: None,
        "Shutdown": lambda: None,
        "SystemGetDriverVersion": lambda: "570.86.10",
        "DeviceGetCount": lambda: 1,
        "DeviceGetHandleByIndex": lambda index: f"handle {index}",
        "DeviceGetHandleByUUID": lambda uuid: uuid,
        "DeviceGetName": lambda handle: "NVIDIA A100-SXM4-80GB",
        "DeviceGetUUID": lambda handle: b"GPU-aaaa",  # bytes in old libraries
        "DeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=85899345920, used=1 << 30),
        "DeviceGetEnforcedPowerLimit": lambda handle: 300000,
        "DeviceGetPowerManagementDefaultLimit": lambda handle: 400000,
        "DeviceGetMaxClockInfo": lambda handle, kind: {1: 1410}[kind],
        "DeviceGetMaxPcieLinkGeneration": lambda handle: 4,
        "DeviceGetCurrPcieLinkWidth": lambda handle: 8,
        "DeviceGetMaxPcieLinkWidth": lambda handle: 16,
        "DeviceGetCurrentEccMode": lambda handle: 1,
        "DeviceGetMigMode": lambda handle: [0, 1],
        "DeviceGetPersistenceMode": lambda handle: 1,
        "DeviceGetClockInfo": lambda handle, kind: {1: 1410, 2: 1593}[kind],
        "DeviceGetPowerUsage": lambda handle: 251500,
        "DeviceGetTotalEnergyConsumption": lambda handle: 123456789,
        "DeviceGetTemperatureV": lambda handle, sensor: 65,
        "DeviceGetTemperature": lambda handle, sensor: 66,
        "DeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=97, memory=40),
        "DeviceGetCurrentClocksEventReasons": lambda handle: 0x4 | 0x40,
    }
    named = {f"nvml{name}": answer for name, answer in (answers | changes).items()}
    constants = {"NVML_CLOCK_SM": 1, "NVML_CLOCK_MEM": 2, "NVML_TEMPERATURE_GPU": 0}
    return SimpleNamespace(NVMLError=NotSupported, **constants, **named)
