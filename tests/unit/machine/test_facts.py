"""What a machine is, on made-up machines. NVML is a made-up module: no GPU was here to test with."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from made_up import make_tree
from trainstone.machine import facts
from trainstone.machine.facts import read_cpu_model, read_facts, read_software


class NoDriver(Exception):
    pass


def fail(*_: Any) -> Any:
    raise NoDriver("Driver Not Loaded")


NO_NVML = SimpleNamespace(NVMLError=NoDriver, nvmlInit=fail)


def make_nvml(**changes: Any) -> SimpleNamespace:
    answers = {
        "DeviceGetCount": lambda: 1,
        "DeviceGetHandleByIndex": lambda index: f"handle {index}",
        "DeviceGetName": lambda handle: "NVIDIA A100-SXM4-80GB",
        "DeviceGetUUID": lambda handle: b"GPU-aaaa",  # bytes in old libraries
        "DeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=85899345920, used=1),
        "SystemGetDriverVersion": lambda: "570.86.10",
        "DeviceGetEnforcedPowerLimit": lambda handle: 300000,
        "DeviceGetPowerManagementDefaultLimit": lambda handle: 400000,
        "DeviceGetMaxClockInfo": lambda handle, kind: {1: 1410}[kind],
        "DeviceGetMaxPcieLinkGeneration": lambda handle: 4,
        "DeviceGetCurrPcieLinkWidth": lambda handle: 8,
        "DeviceGetMaxPcieLinkWidth": lambda handle: 16,
        "DeviceGetCurrentEccMode": lambda handle: 1,
        "DeviceGetMigMode": lambda handle: [0, 1],
        "DeviceGetPersistenceMode": lambda handle: 1,
        "Init": lambda: None,
        "Shutdown": lambda: None,
    }
    named = {f"nvml{name}": answer for name, answer in (answers | changes).items()}
    return SimpleNamespace(NVMLError=NoDriver, NVML_CLOCK_SM=1, **named)


def make_bare_metal(root: Path) -> Path:
    files = {
        "proc/cpuinfo": "processor: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Xeon 8380\n"
        "flags\t: fpu avx2 fma amx_tile\n"
        "\nprocessor: 1\nmodel name\t: another\n",
        "proc/meminfo": "MemTotal: 1024 kB\n",
        "proc/sys/kernel/hostname": "node7\n",
        "proc/sys/kernel/osrelease": "6.1.0\n",
        "etc/os-release": 'NAME=Debian\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
        "sys/devices/system/cpu/smt/active": "1\n",
        "sys/devices/system/cpu/intel_pstate/no_turbo": "1\n",
        "sys/devices/system/node/node0/cpulist": "0-1",
        "sys/devices/system/node/node1/cpulist": "2-3",
        "sys/class/dmi/id/sys_vendor": "Dell Inc.\n",
    }
    for cpu, (package, siblings) in enumerate([(0, "0-1"), (0, "0-1"), (1, "2-3"), (1, "2-3")]):
        folder = f"sys/devices/system/cpu/cpu{cpu}"
        files[f"{folder}/topology/physical_package_id"] = f"{package}\n"
        files[f"{folder}/topology/core_cpus_list"] = f"{siblings}\n"
        files[f"{folder}/cpufreq/cpuinfo_max_freq"] = "3400000\n"
        files[f"{folder}/cpufreq/scaling_governor"] = "performance\n"
    files["sys/devices/system/cpu/cpu4/online"] = "0"  # offline: no topology
    return make_tree(root, files)


def read(root: Path, environ: dict[str, str] | None = None, nvml: Any = NO_NVML) -> dict[str, Any]:
    found = read_facts(root, nvml=nvml, environ=environ or {}, affinity={0, 1, 2, 3})
    assert json.loads(json.dumps(found)) == found
    return found


def test_bare_metal(tmp_path):
    found = read(make_bare_metal(tmp_path))
    cpu = found["cpu"]
    assert (cpu["model"], cpu["vendor"], cpu["isa"]) == ("Xeon 8380", "GenuineIntel", ["amx_tile", "avx2", "fma"])
    assert (cpu["sockets"], cpu["physical_cores"], cpu["logical_cores"], cpu["numa_nodes"]) == (2, 2, 4, 2)
    assert (cpu["max_mhz"], cpu["governor"], cpu["boost"], cpu["smt"]) == (3400.0, "performance", False, True)
    assert cpu["available"] == {"logical": 4, "physical": 2, "threads": 2}
    assert (found["host"], found["kernel"], found["os"]) == (
        "node7",
        "6.1.0",
        "Debian GNU/Linux 12 (bookworm)",
    )
    assert found["memory"] == {"total_bytes": 1024 * 1024}
    assert found["virtualisation"] == {"hypervisor": False, "sys_vendor": "Dell Inc."}
    assert found["devices"] == []
    assert found["nvml"] == "no NVIDIA driver answers: Driver Not Loaded"
    assert not {"container", "scheduler"} & found.keys()


def test_virtual_machine(tmp_path):
    files = {
        "proc/cpuinfo": "flags : avx hypervisor\n",
        "sys/class/dmi/id/product_name": "KVM Virtual Machine\n",
    }
    found = read(make_tree(tmp_path, files))
    assert found["virtualisation"] == {"hypervisor": True, "product_name": "KVM Virtual Machine"}
    assert "governor" not in found["cpu"]
    assert "boost" not in found["cpu"]


def test_boost_of_amd(tmp_path):
    assert read(make_tree(tmp_path, {"sys/devices/system/cpu/cpufreq/boost": "1"}))["cpu"]["boost"] is True


@pytest.mark.parametrize(
    ("cpuinfo", "model", "vendor", "isa"),
    [
        ("CPU implementer : 0x41\nCPU part : 0xd4f\nFeatures : fp sve", "implementer 0x41 part 0xd4f", "ARM", ["sve"]),
        (
            "processor : 0\ncpu : POWER9, altivec supported\nclock : 3800.0MHz",
            "POWER9, altivec supported",
            None,
            None,
        ),
        ("vendor_id : AuthenticAMD\nmodel name :\nflags :\n", None, "AuthenticAMD", None),
    ],
)
def test_other_processors(tmp_path, cpuinfo, model, vendor, isa):
    root = make_tree(tmp_path, {"proc/cpuinfo": cpuinfo})
    cpu = read(root)["cpu"]
    assert (cpu.get("model"), cpu.get("vendor"), cpu.get("isa")) == (model, vendor, isa)
    assert read_cpu_model(root) == model


@pytest.mark.parametrize(
    ("files", "environ", "kind", "sign"),
    [
        ({".dockerenv": ""}, {}, "docker", "/.dockerenv (docker)"),
        ({"run/.containerenv": ""}, {}, "podman", "/run/.containerenv (podman)"),
        ({"proc/1/cgroup": "0::/kubepods/pod1"}, {}, "kubernetes", "/proc/1/cgroup (kubernetes)"),
        ({"run/systemd/container": "lxc\n"}, {}, "lxc", "/run/systemd/container (lxc)"),
        ({}, {"APPTAINER_CONTAINER": "/x.sif"}, "apptainer", "variable APPTAINER_CONTAINER (apptainer)"),
        ({}, {"container": "podman"}, "podman", "variable container (podman)"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes", "/.dockerenv (docker)"),
    ],
)
def test_container(tmp_path, files, environ, kind, sign):
    container = read(make_tree(tmp_path, files), environ)["container"]
    assert container["kind"] == kind
    assert sign in container["seen_by"]
    assert "/x.sif" not in str(container)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (
            {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "gpu[1-2]", "SLURM_JOB_USER": "me"},
            {"kind": "slurm", "job_id": "42", "nodelist": "gpu[1-2]"},
        ),
        ({"PBS_JOBID": "9.pbs", "PBS_QUEUE": "gpu"}, {"kind": "pbs", "job_id": "9.pbs", "queue": "gpu"}),
        ({"LSB_JOBID": "3"}, {"kind": "lsf", "job_id": "3"}),
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "pod-1"},
            {"kind": "kubernetes", "pod": "pod-1"},
        ),
        ({"SLURM_JOB_ID": ""}, None),
    ],
)
def test_scheduler(tmp_path, environ, expected):
    assert read(tmp_path, environ).get("scheduler") == expected


def test_nvidia_device(tmp_path):
    found = read(tmp_path, nvml=make_nvml())
    (device,) = found["devices"]
    values = ["cuda", 0, "NVIDIA A100-SXM4-80GB", "GPU-aaaa", 85899345920, "570.86.10", 300.0, 400.0, 1410, 4, 8, 16]
    keys = "kind index name uuid memory_bytes driver power_limit_watts default_power_limit_watts max_sm_clock_mhz"
    keys += " pcie_generation pcie_width pcie_max_width ecc mig persistence"
    assert device == dict(zip(keys.split(), [*values, True, False, True], strict=True))
    assert "nvml" not in found


def test_nvidia_device_that_answers_little(tmp_path):
    silent = dict.fromkeys(("DeviceGetEnforcedPowerLimit", "DeviceGetCurrentEccMode", "DeviceGetMemoryInfo"), fail)
    nvml = make_nvml(**silent)
    del nvml.nvmlDeviceGetMigMode  # a library older than MIG
    (device,) = read(tmp_path, nvml=nvml)["devices"]
    assert not {"power_limit_watts", "ecc", "memory_bytes", "mig"} & device.keys()
    assert device["default_power_limit_watts"] == 400.0


def test_nvidia_device_that_is_lost(tmp_path):
    (device,) = read(tmp_path, nvml=make_nvml(DeviceGetHandleByIndex=fail))["devices"]
    assert device == {"kind": "cuda", "index": 0, "error": "NVML gives no handle for this device"}


def test_nvidia_driver_without_devices(tmp_path):
    found = read(tmp_path, nvml=make_nvml(DeviceGetCount=lambda: 0))
    assert found["devices"] == []
    assert found["nvml"] == "the NVIDIA driver answers but shows no device"


def test_nvml_library_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)  # importing it now raises ImportError
    found = read(tmp_path, nvml=None)
    assert found["nvml"].startswith("no NVML library for Python")
    assert found["devices"] == []


def make_card(root: Path, card: str, address: str, files: dict[str, str]) -> None:
    make_tree(root / "sys/devices/pci0000:00" / address, files)
    folder = root / "sys/class/drm" / card
    folder.mkdir(parents=True)
    (folder / "device").symlink_to(root / "sys/devices/pci0000:00" / address)


def test_gpus_of_other_makers_are_named_unsupported(tmp_path):
    make_card(tmp_path, "card0", "0000:00:02.0", {"vendor": "0x8086", "device": "0x9a49"})  # built in
    make_card(tmp_path, "card1", "0000:03:00.0", {"vendor": "0x8086\n", "device": "0x56a0\n"})
    amd = {
        "vendor": "0x1002\n",
        "product_name": "AMD Instinct MI210\n",
        "mem_info_vram_total": "68702699520\n",
    }
    make_card(tmp_path, "card2", "0000:c1:00.0", amd)
    make_card(tmp_path, "card3", "0000:d1:00.0", {"vendor": "0x10de"})  # NVML speaks for NVIDIA
    make_card(tmp_path, "card2-DP-1", "0000:c1:00.1", amd)  # a socket of card2
    unsupported = {"telemetry": "unsupported"}
    assert read(tmp_path)["devices"] == [
        {"kind": "intel", "index": 1, "name": "Intel GPU 0x56a0", **unsupported},
        {"kind": "amd", "index": 2, "name": "AMD Instinct MI210", "memory_bytes": 68702699520, **unsupported},
    ]


@pytest.mark.parametrize("content", ["", "garbage", "-1", "\0\xff", ":\n::\n", "9" * 5000])
def test_broken_files_never_raise(tmp_path, content):
    root = make_bare_metal(tmp_path)
    make_card(tmp_path, "card0", "0000:c1:00.0", {"vendor": "0x1002", "mem_info_vram_total": content})
    for path in list(root.rglob("*")):
        if path.is_file() and path.name != "vendor":
            path.write_text(content)
    found = read(root)
    assert not {"max_mhz", "boost", "smt", "isa", "sockets"} & found["cpu"].keys()
    assert "memory" not in found
    assert "memory_bytes" not in found["devices"][0]


def test_empty_machine(tmp_path):
    found = read(tmp_path)
    assert found["cpu"] == {"available": {"logical": 4, "threads": 4}}
    assert found.keys() == {"cpu", "nvml", "devices"}


def test_this_machine():
    found = read_facts()
    assert json.loads(json.dumps(found)) == found
    assert found["cpu"]["available"]["threads"] >= 1
    assert found["memory"]["total_bytes"] > 1 << 28


def test_software_records_only_variables_that_change_speed():
    names = (
        "OMP_NUM_THREADS MKL_VERBOSE KMP_AFFINITY GOMP_CPU_AFFINITY ONEDNN_VERBOSE TORCHINDUCTOR_CACHE_DIR TORCH_NUM"
    )
    names += " CUDA_VISIBLE_DEVICES NCCL_DEBUG LD_PRELOAD GLIBC_TUNABLES MALLOC_ARENA_MAX ATEN_CPU_CAPABILITY"
    kept = {name: f"value of {name}" for name in names.split()}
    private = {"HOME": "/home/me", "LD_PRELOAD_TOKEN": "s", "MY_OMP_KEY": "s", "TORCHED": "s", "ATEN_CPU": "s"}
    software = read_software({**kept, **private})
    assert software["environment"] == dict(sorted(kept.items()))
    assert software["python"] == ".".join(map(str, sys.version_info[:3]))
    assert software["trainstone"]
    assert json.loads(json.dumps(software)) == software


def test_package_that_is_not_installed_is_absent(monkeypatch):
    monkeypatch.setattr(facts, "PACKAGES", ("numpy", "no-such-package-here"))
    software = read_software({})
    assert "no-such-package-here" not in software
    assert software["numpy"][0].isdigit()


def test_nothing_heavy_is_imported():
    code = (
        "import sys; from trainstone.machine.facts import read_facts, read_software; read_facts(); read_software();"
        "print(sorted({'torch', 'numpy', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
