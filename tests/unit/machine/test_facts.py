"""What a machine is, on made-up machines. NVML is a made-up module: no GPU was here to test with."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from made_up import make_nvml, make_server, make_tree, refuse
from trainstone.machine import facts
from trainstone.machine.facts import read_cpu_model, read_facts, read_software

NO_NVML = make_nvml(Init=refuse)


@pytest.fixture(autouse=True)
def made_up_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM", "KUBERNETES"))] + ["container", "HOSTNAME"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRAINSTONE_CPUS", "0,1,2,3")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=1 << 20))
    monkeypatch.setitem(sys.modules, "pynvml", NO_NVML)


def read(root: Path) -> dict[str, Any]:
    found = read_facts(root)
    assert json.loads(json.dumps(found)) == found
    return found


def read_devices(root: Path, monkeypatch: pytest.MonkeyPatch, nvml: Any) -> tuple[list[dict[str, Any]], str | None]:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = read(root)
    return found["devices"], found.get("nvml")


def test_server(tmp_path):
    found = read(make_server(tmp_path))
    cpu = found["cpu"]
    assert (cpu["model"], cpu["vendor"], cpu["isa"]) == ("Xeon 8380", "GenuineIntel", ["amx_tile", "avx2", "fma"])
    assert (cpu["sockets"], cpu["physical_cores"], cpu["logical_cores"], cpu["numa_nodes"]) == (2, 2, 4, 2)
    assert (cpu["max_mhz"], cpu["governor"], cpu["boost"], cpu["smt"]) == (3400.0, "performance", False, True)
    assert cpu["available"] == {"logical": 4, "physical": 2, "threads": 2}
    assert (found["host"], found["kernel"]) == ("node7", "6.1.0")
    assert found["os"] == "Debian GNU/Linux 12 (bookworm)"
    assert found["memory"] == {"total_bytes": 1024 * 1024}
    assert found["virtualisation"] == {"hypervisor": False, "sys_vendor": "Dell Inc."}
    assert found["devices"] == []
    assert not {"container", "scheduler"} & found.keys()


@pytest.mark.parametrize(
    ("cpuinfo", "model", "vendor", "isa"),
    [
        ("CPU implementer : 0x41\nCPU part : 0xd4f\nFeatures : fp sve", "implementer 0x41 part 0xd4f", "ARM", ["sve"]),
        ("processor : 0\ncpu : POWER9, altivec supported\nclock : 3.8", "POWER9, altivec supported", None, None),
        ("vendor_id : AuthenticAMD\nmodel name :\nflags : avx hypervisor\n", None, "AuthenticAMD", ["avx"]),
    ],
)
def test_other_processors(tmp_path, cpuinfo, model, vendor, isa):
    root = make_tree(tmp_path, {"proc/cpuinfo": cpuinfo})
    cpu = read(root)["cpu"]
    assert (cpu.get("model"), cpu.get("vendor"), cpu.get("isa")) == (model, vendor, isa)
    assert read_cpu_model(root) == model
    assert read(root).get("virtualisation") == ({"hypervisor": True} if "hypervisor" in cpuinfo else None)


KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "pod-1"}
SLURM = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "gpu[1-2]", "SLURM_JOB_USER": "me"}


@pytest.mark.parametrize(
    ("files", "environ", "kind", "signs", "scheduler"),
    [
        ({".dockerenv": ""}, {}, "docker", ["/.dockerenv (docker)"], None),
        ({"run/systemd/container": "lxc\n"}, {}, "lxc", ["/run/systemd/container (lxc)"], None),
        ({}, {"APPTAINER_CONTAINER": "/x.sif"}, "apptainer", ["variable APPTAINER_CONTAINER (apptainer)"], None),
        ({}, {"container": "podman"}, "podman", ["variable container (podman)"], None),
        (
            *({".dockerenv": ""}, KUBERNETES, "kubernetes"),
            ["variable KUBERNETES_SERVICE_HOST (kubernetes)", "/.dockerenv (docker)"],
            {"kind": "kubernetes", "pod": "pod-1"},
        ),
        ({}, SLURM, None, [], {"kind": "slurm", "job_id": "42", "nodelist": "gpu[1-2]"}),
        ({}, {"PBS_JOBID": "9.pbs", "PBS_QUEUE": "gpu"}, None, [], {"kind": "pbs", "job_id": "9.pbs", "queue": "gpu"}),
        ({}, {"SLURM_JOB_ID": ""}, None, [], None),
    ],
)
def test_container_and_scheduler(tmp_path, monkeypatch, files, environ, kind, signs, scheduler):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = read(make_tree(tmp_path, files))
    assert found.get("container") == (kind and {"kind": kind, "seen_by": signs})
    assert found.get("scheduler") == scheduler


def test_nvidia_device_and_one_that_answers_little(tmp_path, monkeypatch):
    devices, told = read_devices(tmp_path, monkeypatch, make_nvml())
    values = ["cuda", 0, "NVIDIA A100-SXM4-80GB", "GPU-aaaa", 85899345920, "570.86.10", 300.0, 400.0, 1410, 4, 8, 16]
    keys = "kind index name uuid memory_bytes driver power_limit_watts default_power_limit_watts max_sm_clock_mhz"
    keys += " pcie_generation pcie_width pcie_max_width ecc mig persistence"
    assert devices == [dict(zip(keys.split(), [*values, True, False, True], strict=True))]
    assert told is None
    silent = dict.fromkeys(("DeviceGetEnforcedPowerLimit", "DeviceGetCurrentEccMode", "DeviceGetMemoryInfo"), refuse)
    nvml = make_nvml(**silent)
    del nvml.nvmlDeviceGetMigMode  # a library older than MIG
    (device,), _ = read_devices(tmp_path, monkeypatch, nvml)
    assert not {"power_limit_watts", "ecc", "memory_bytes", "mig"} & device.keys()
    assert device["default_power_limit_watts"] == 400.0


LOST = {"kind": "cuda", "index": 0, "error": "NVML gives no handle for this device"}


@pytest.mark.parametrize(
    ("nvml", "devices", "told"),
    [
        (make_nvml(DeviceGetHandleByIndex=refuse), [LOST], None),
        (make_nvml(DeviceGetCount=lambda: 0), [], "the NVIDIA driver answers but shows no device"),
        (NO_NVML, [], "no NVIDIA driver answers: Not Supported"),
        (None, [], "no NVML library for Python: import of pynvml halted; None in sys.modules"),
    ],
)
def test_nvidia_devices_that_cannot_be_read(tmp_path, monkeypatch, nvml, devices, told):
    assert read_devices(tmp_path, monkeypatch, nvml) == (devices, told)


def make_card(root: Path, card: str, address: str, files: dict[str, str]) -> None:
    make_tree(root / "sys/devices/pci0000:00" / address, files)
    folder = root / "sys/class/drm" / card
    folder.mkdir(parents=True)
    (folder / "device").symlink_to(root / "sys/devices/pci0000:00" / address)


def test_gpus_of_other_makers_are_named_unsupported(tmp_path):
    make_card(tmp_path, "card0", "0000:00:02.0", {"vendor": "0x8086", "device": "0x9a49"})  # built in
    make_card(tmp_path, "card1", "0000:03:00.0", {"vendor": "0x8086\n", "device": "0x56a0\n"})
    amd = {"vendor": "0x1002\n", "product_name": "AMD Instinct MI210\n", "mem_info_vram_total": "68702699520\n"}
    make_card(tmp_path, "card2", "0000:c1:00.0", amd)
    make_card(tmp_path, "card3", "0000:d1:00.0", {"vendor": "0x10de"})  # NVML speaks for NVIDIA
    make_card(tmp_path, "card2-DP-1", "0000:c1:00.1", amd)  # a socket of card2
    unsupported = {"telemetry": "unsupported"}
    assert read(tmp_path)["devices"] == [
        {"kind": "intel", "index": 1, "name": "Intel GPU 0x56a0", **unsupported},
        {"kind": "amd", "index": 2, "name": "AMD Instinct MI210", "memory_bytes": 68702699520, **unsupported},
    ]


def test_software_records_only_variables_that_change_speed(monkeypatch):
    names = (
        "OMP_NUM_THREADS MKL_VERBOSE KMP_AFFINITY GOMP_CPU_AFFINITY ONEDNN_VERBOSE TORCHINDUCTOR_CACHE_DIR TORCH_NUM"
    )
    names += " CUDA_VISIBLE_DEVICES NCCL_DEBUG LD_PRELOAD GLIBC_TUNABLES MALLOC_ARENA_MAX ATEN_CPU_CAPABILITY"
    kept = {name: f"value of {name}" for name in names.split()}
    private = {"HOME": "/home/me", "LD_PRELOAD_TOKEN": "s", "MY_OMP_KEY": "s", "TORCHED": "s", "ATEN_CPU": "s"}
    monkeypatch.setattr(facts, "PACKAGES", ("numpy", "no-such-package-here"))
    monkeypatch.setattr(os, "environ", {**kept, **private})
    software = read_software()
    assert software["environment"] == dict(sorted(kept.items()))
    assert software["python"] == ".".join(map(str, sys.version_info[:3]))
    assert software["trainstone"]
    assert json.loads(json.dumps(software)) == software
    assert software["numpy"][0].isdigit()
    assert "no-such-package-here" not in software
