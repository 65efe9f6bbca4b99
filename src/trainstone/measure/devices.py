"""Device selection, precisions, memory queries and the telemetry reader of a device."""

import contextlib
import resource
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from trainstone.errors import ConfigError, MachineError
from trainstone.machine.cpus import memory_available_bytes
from trainstone.machine.facts import read_cpu_model
from trainstone.measure.telemetry import CpuReader, NvmlReader, Reader

CPU_SIXTEEN_BIT = {
    "bf16": ("_is_avx512_bf16_supported", "_is_amx_tile_supported"),
    "fp16": ("_is_amx_fp16_supported",),
}
# Texts of the allocators of torch, CUDA and NCCL; of cuBLAS and cuDNN, which allocate handles and workspaces themselves
# (a handle without memory is "not initialized"); of cuDNN when no engine has enough memory for its workspace.
OUT_OF_MEMORY = (
    *("out of memory", "can't allocate memory", "ALLOC_FAILED", "ALLOCATION_FAILED"),
    *("CUBLAS_STATUS_NOT_INITIALIZED", "CUDNN_STATUS_NOT_INITIALIZED"),
    *("unable to find an engine", "nable to find a valid cuDNN algorithm"),
)
AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(name: str) -> torch.device:
    present = list_devices()
    if name == "auto":
        return torch.device(present[0])
    try:
        device = torch.device(name)
    except RuntimeError as err:
        raise ConfigError(f"invalid device {name!r}: available are {', '.join(present)}") from err
    wanted = str(device) if device.index is not None or device.type == "cpu" else f"{device.type}:0"
    if wanted not in present:
        raise MachineError(
            f"device {name!r} not found: torch {torch.__version__} finds {', '.join(present)}",
            hint="--device auto selects an available device; see what is missing: trainstone doctor",
        )
    return torch.device(wanted)


def list_devices() -> list[str]:
    if not torch.accelerator.is_available():
        return ["cpu"]
    kind = torch.accelerator.current_accelerator()
    assert kind is not None  # is_available() was true
    return [f"{kind.type}:{index}" for index in range(torch.accelerator.device_count())] + ["cpu"]


def list_pci_ids() -> list[str]:
    """Return the PCI ids of the visible CUDA devices, as in /sys/bus/pci/devices."""
    found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [f"{one.pci_domain_id:04x}:{one.pci_bus_id:02x}:{one.pci_device_id:02x}.0" for one in found]


def name_device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "cpu":
        return read_cpu_model() or "CPU"
    return str(device)


def candidate_precisions(device: torch.device) -> list[str]:
    """Return fp32 and the faster precisions that this device claims to support; a trial must confirm them."""
    if device.type == "cuda":
        return ["fp32", "tf32", "bf16", "fp16"]
    if device.type != "cpu":
        return ["fp32", "bf16", "fp16"]
    probes = {name: [getattr(torch.cpu, check, bool) for check in checks] for name, checks in CPU_SIXTEEN_BIT.items()}
    return ["fp32", *(name for name, checks in probes.items() if any(check() for check in checks))]


def autocast(device: torch.device, precision: str) -> AbstractContextManager[None]:
    dtype = AUTOCAST_DTYPES.get(precision)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


def switch_tf32(precision: str) -> None:
    """Allow TF32 only for precision tf32: cuDNN's default would also use it for fp32.

    The setters of fp32_precision leave the older switches as they are, and torch's getters then raise, which
    torch.compile calls. These setters change both.
    """
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def reset_peaks(device: torch.device) -> None:
    """Reset peak memory statistics, so that set-up and trials do not count."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # man 5 proc: resets VmHWM


def free_bytes(device: torch.device) -> int | None:
    """Return the memory still available on a device, torch's cache included; None if unknown."""
    if device.type == "cpu":
        return memory_available_bytes()
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + cached)
    return None


def is_out_of_memory(err: RuntimeError) -> bool:
    """Return whether an error means out of memory: CUDA's allocator has an exception class, the others only a text."""
    return isinstance(err, torch.OutOfMemoryError) or any(words in str(err) for words in OUT_OF_MEMORY)


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def peak_bytes(device: torch.device) -> tuple[int | None, int]:
    """Return torch's peak device memory since reset_peaks (None on a CPU), and the peak resident memory of this process
    since then (without /proc: since its start)."""
    held = int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else None
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return held, int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return held, resident if sys.platform == "darwin" else resident * 1024


def choose_reader(device: torch.device) -> Reader:
    """Return the telemetry reader of a device; for unsupported devices it reads nothing and gives the reason."""
    if device.type == "cpu":
        return CpuReader()
    if device.type == "cuda" and torch.version.cuda:
        return NvmlReader(str(torch.cuda.get_device_properties(device).uuid))
    return Reader(f"telemetry of {name_device(device)}: not supported; trainstone reads NVIDIA GPUs and CPUs")
