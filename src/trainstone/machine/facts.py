"""Hardware, container, scheduler and software of this machine, for machine.json.

A missing key was not measured. Needs no root, imports no torch, starts no program. noise.py measures how busy it is.
"""

import importlib
import importlib.metadata
import os
import platform
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from trainstone import __version__
from trainstone.machine import cpus
from trainstone.machine.cpus import read_cpuinfo, read_int, read_text

# Instruction sets by which torch, oneDNN and the JPEG decoders choose their kernels.
RELEVANT_ISA = re.compile(
    r"sse4_2|avx2?|fma|f16c|avx_vnni|avx512(f|bw|vl|_vnni|_bf16|_fp16)|amx_(tile|bf16|int8|fp16)"
    r"|neon|asimd(hp|dp)?|fphp|bf16|i8mm|sve2?|svebf16|sme"
)
# Only these variables are recorded, because they change the speed; others may be private.
SPEED_VARIABLES = re.compile(
    r"(OMP|MKL|KMP|GOMP|ONEDNN|DNNL|NCCL|MALLOC|PYTORCH|TORCH\w*)_\w*"
    r"|ATEN_CPU_CAPABILITY|CUDA_VISIBLE_DEVICES|GLIBC_TUNABLES|LD_PRELOAD"
)
PACKAGES = ("torch", "numpy", "simplejpeg", "opencv-python-headless", "pillow", "psutil", "nvidia-ml-py")
# https://github.com/torvalds/linux/blob/master/arch/arm64/include/asm/cputype.h
ARM_VENDORS = {"0x41": "ARM", "0x46": "Fujitsu", "0x48": "HiSilicon", "0x4e": "NVIDIA", "0xc0": "Ampere"}
DRM_VENDORS = {"0x1002": ("amd", "AMD"), "0x8086": ("intel", "Intel")}
# Per scheduler: key in machine.json and environment variable; the first one is set only by that scheduler.
SCHEDULERS = {
    "slurm": {
        "job_id": "SLURM_JOB_ID",
        "nodelist": "SLURM_JOB_NODELIST",
        "num_nodes": "SLURM_JOB_NUM_NODES",
        "queue": "SLURM_JOB_PARTITION",
        "cluster": "SLURM_CLUSTER_NAME",
    },
    "pbs": {"job_id": "PBS_JOBID", "queue": "PBS_QUEUE"},
    "lsf": {"job_id": "LSB_JOBID", "nodelist": "LSB_MCPU_HOSTS", "queue": "LSB_QUEUE"},
    "flux": {"job_id": "FLUX_JOB_ID"},
}
CONTAINER_VARIABLES = {
    "KUBERNETES_SERVICE_HOST": "kubernetes",
    "APPTAINER_CONTAINER": "apptainer",
    "SINGULARITY_CONTAINER": "singularity",
    "SHIFTER_RUNTIME": "shifter",
    "CH_RUNNING": "charliecloud",
}
CONTAINER_FILES = {"run/.containerenv": "podman", ".dockerenv": "docker", ".singularity.d": "singularity"}


def read_facts(root: Path = Path("/")) -> dict[str, Any]:
    """Return the facts of this machine; tests pass another `root`."""
    here = root == Path("/")
    release = read_text(root / "etc/os-release") or ""
    pretty = re.search(r"^PRETTY_NAME=[\"']?([^\"'\n]+)", release, re.MULTILINE)
    devices, nvml_error = _read_nvidia()
    flags = read_cpuinfo(root).get("flags")  # only x86 has the hypervisor flag
    scheduler: dict[str, Any] = {}
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        scheduler = {"kind": "kubernetes", "pod": os.environ.get("HOSTNAME")}
    for kind, names in reversed(SCHEDULERS.items()):
        values = {key: os.environ.get(name) for key, name in names.items()}
        if next(iter(values.values())):
            scheduler = {"kind": kind, **values}
    # All signs of a container are listed: one may be left over from an image.
    seen = [(kind, f"variable {name}") for name, kind in CONTAINER_VARIABLES.items() if os.environ.get(name)]
    if container := os.environ.get("container"):  # noqa: SIM112  as podman, systemd-nspawn and lxc write it
        seen.append((container, "variable container"))
    seen += [(kind, f"/{name}") for name, kind in CONTAINER_FILES.items() if os.access(root / name, os.F_OK)]
    if manager := read_text(root / "run/systemd/container"):
        seen.append((manager, "/run/systemd/container"))
    signs = [f"{where} ({kind})" for kind, where in seen]
    facts = {
        "host": read_text(root / "proc/sys/kernel/hostname") or (platform.node() if here else None),
        "os": pretty.group(1) if pretty else (platform.platform(terse=True) if here else None),
        "kernel": read_text(root / "proc/sys/kernel/osrelease") or (platform.release() if here else None),
        "cpu": {**_read_cpu(root, here), "available": asdict(cpus.available_cores(root))},
        "memory": {"total_bytes": psutil.virtual_memory().total, "limit_bytes": cpus.memory_limit_bytes(root)},
        "virtualisation": {
            "hypervisor": None if flags is None else "hypervisor" in flags.split(),
            "sys_vendor": read_text(root / "sys/class/dmi/id/sys_vendor"),
            "product_name": read_text(root / "sys/class/dmi/id/product_name"),
        },
        "container": {"kind": seen[0][0], "seen_by": signs} if seen else {},
        "scheduler": scheduler,
        "nvml": nvml_error,
    }
    return {**_without_absent(facts), "devices": devices + _read_other_gpus(root)}


def read_software() -> dict[str, Any]:
    """Return software versions, without importing the packages, and environment variables that change the speed."""
    libc = " ".join(platform.libc_ver()).strip()
    software: dict[str, Any] = {"python": platform.python_version(), "trainstone": __version__}
    software |= {"libc": libc} if libc else {}
    for package in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            software[package] = importlib.metadata.version(package)
    environment = {name: value for name, value in sorted(os.environ.items()) if SPEED_VARIABLES.fullmatch(name)}
    return software | {"environment": environment}


def _without_absent(facts: dict[str, Any]) -> dict[str, Any]:
    kept = {key: _without_absent(value) if isinstance(value, dict) else value for key, value in facts.items()}
    return {key: value for key, value in kept.items() if value is not None and value != {}}


def _read_cpu(root: Path, here: bool) -> dict[str, Any]:
    info = read_cpuinfo(root)
    folder = root / cpus.CPU_FOLDER
    folders = [path.parent for path in folder.glob("cpu[0-9]*/topology")]  # an offline CPU has no topology
    names = [int(cpu.name[3:]) for cpu in folders if cpu.name[3:].isdecimal()]
    sockets = {read_int(cpu / "topology/physical_package_id") for cpu in folders} - {None}
    cores = {cpus.read_siblings(name, root) for name in names} - {frozenset()}
    boost, no_turbo = read_int(folder / "cpufreq/boost"), read_int(folder / "intel_pstate/no_turbo")
    max_khz = [khz for cpu in folders if (khz := read_int(cpu / "cpufreq/cpuinfo_max_freq"))]
    smt = read_int(folder / "smt/active")
    flags = set((info.get("flags") or info.get("Features") or "").split())
    return {
        "model": read_cpu_model(root),
        "vendor": info.get("vendor_id") or ARM_VENDORS.get(info.get("CPU implementer", "")),
        "architecture": platform.machine() if here else None,
        "sockets": len(sockets) or None,
        "physical_cores": len(cores) or (psutil.cpu_count(logical=False) if here and not folders else None),
        "logical_cores": len(folders) or (os.cpu_count() if here else None),
        "isa": sorted(filter(RELEVANT_ISA.fullmatch, flags)) if flags else None,
        "max_mhz": max(max_khz) / 1000 if max_khz else None,
        "governor": cpus.read_governor(root),
        "boost": bool(boost) if boost is not None else None if no_turbo is None else not no_turbo,
        "numa_nodes": len(list(root.glob("sys/devices/system/node/node[0-9]*"))) or None,
        "smt": None if smt is None else bool(smt),
    }


def read_cpu_model(root: Path = Path("/")) -> str | None:
    """Return the CPU's name: x86 has a model name, POWER calls it cpu, ARM has only implementer and part numbers."""
    info = read_cpuinfo(root)
    name = info.get("model name") or info.get("cpu")
    if not name and "CPU part" in info:
        name = f"implementer {info.get('CPU implementer', 'unknown')} part {info['CPU part']}"
    return name or (platform.processor() if root == Path("/") else None) or None


def _read_nvidia() -> tuple[list[dict[str, Any]], str | None]:
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError as error:
        return [], f"cannot import NVML for Python: {error}"
    try:
        nvml.nvmlInit()
    except (nvml.NVMLError, OSError, AttributeError) as error:
        return [], f"the NVIDIA driver does not answer: {error}"
    try:
        count = _query(nvml, nvml.nvmlDeviceGetCount) or 0
        devices = [_read_nvidia_device(nvml, index) for index in range(count)]
        return devices, None if devices else "the NVIDIA driver lists no devices"
    finally:
        _query(nvml, nvml.nvmlShutdown)


def _read_nvidia_device(nvml: Any, index: int) -> dict[str, Any]:
    handle = _query(nvml, lambda: nvml.nvmlDeviceGetHandleByIndex(index))
    if handle is None:
        return {"kind": "cuda", "index": index, "error": "NVML has no handle for this device"}

    def query(name: str, *arguments: Any) -> Any:
        return _query(nvml, lambda: getattr(nvml, name)(handle, *arguments))

    def read_watts(name: str) -> float | None:
        return None if (milliwatts := query(name)) is None else milliwatts / 1000

    def read_flag(name: str) -> bool | None:
        state = query(name)  # MIG returns [current, pending]
        return None if state is None else bool(state[0] if isinstance(state, list | tuple) else state)

    device = {
        "kind": "cuda",
        "index": index,
        "name": query("nvmlDeviceGetName"),
        "uuid": query("nvmlDeviceGetUUID"),
        "memory_bytes": getattr(query("nvmlDeviceGetMemoryInfo"), "total", None),
        "driver": _query(nvml, lambda: nvml.nvmlSystemGetDriverVersion()),
        "power_limit_watts": read_watts("nvmlDeviceGetEnforcedPowerLimit"),
        "default_power_limit_watts": read_watts("nvmlDeviceGetPowerManagementDefaultLimit"),
        "max_sm_clock_mhz": query("nvmlDeviceGetMaxClockInfo", getattr(nvml, "NVML_CLOCK_SM", 1)),
        "pcie_generation": query("nvmlDeviceGetMaxPcieLinkGeneration"),  # the current one drops when idle
        "pcie_width": query("nvmlDeviceGetCurrPcieLinkWidth"),  # less than the maximum: a badly seated card
        "pcie_max_width": query("nvmlDeviceGetMaxPcieLinkWidth"),
        "ecc": read_flag("nvmlDeviceGetCurrentEccMode"),
        "mig": read_flag("nvmlDeviceGetMigMode"),
        "persistence": read_flag("nvmlDeviceGetPersistenceMode"),
    }
    return _without_absent(device)


def _query(nvml: Any, call: Callable[[], Any]) -> Any:
    """Return the result of an NVML call; None if this device, driver or library does not support it."""
    try:
        value = call()
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value  # bytes before 2023
    except (nvml.NVMLError, AttributeError, TypeError, ValueError, OSError):
        return None


def _read_other_gpus(root: Path) -> list[dict[str, Any]]:
    """Return AMD GPUs and discrete Intel GPUs; their telemetry is marked as unsupported."""
    found = []
    for card in sorted(root.glob("sys/class/drm/card[0-9]*")):
        device = card / "device"
        kind, vendor = DRM_VENDORS.get(read_text(device / "vendor") or "", (None, None))
        # Intel's integrated GPU is on PCI bus 0; a card in a slot is behind a bridge, on another bus.
        integrated = kind == "intel" and device.resolve().name.split(":")[1:2] == ["00"]  # 0000:03:00.0
        if kind is None or integrated or not card.name[4:].isdecimal():  # card0-DP-1 is a connector of card0
            continue
        part = read_text(device / "device") or "of unknown model"
        gpu = {
            "kind": kind,
            "index": int(card.name[4:]),
            "name": read_text(device / "product_name") or f"{vendor} GPU {part}",
            "memory_bytes": read_int(device / "mem_info_vram_total"),
            "telemetry": "unsupported",
        }
        found.append(_without_absent(gpu))
    return found
