"""Measure the device's peak FLOP/s (multiplying matrices, on a CPU also a convolution) and memory bandwidth (copy).

No table of data-sheet values: they do not include this machine's power limit and other load.
"""

import mmap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from trainstone.measure.devices import free_bytes, synchronize
from trainstone.units import format_count

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
COPY_BYTES = {"cpu": 512 * 2**20}  # larger than the caches
COPY_BYTES_ACCELERATOR = 2 * 2**30
MIN_COPY_BYTES = 2**20
SIZES = {"cpu": (1024, 2048)}
SIZES_ACCELERATOR = (4096, 8192)
CONVOLUTION = (16, 256, 14)  # images, channels, side: a layer of ResNet-50


@dataclass(frozen=True)
class Peaks:
    """The highest measured rates, and how they were measured."""

    flops: float
    flops_source: str
    bytes_per_second: float

    def best_of(self, other: "Peaks") -> "Peaks":
        """Combine two measurements: other load can only lower a peak."""
        better = self if self.flops >= other.flops else other
        return Peaks(better.flops, better.flops_source, max(self.bytes_per_second, other.bytes_per_second))


def measure_peaks(device: torch.device, precision: str, seconds: float = 1.5) -> Peaks:
    """Run the works and copy memory for about `seconds`; the caller must set the TF32 mode."""
    share = 0.7 * seconds / (len(SIZES.get(device.type, SIZES_ACCELERATOR)) + (device.type == "cpu"))
    best_flops, best_name, repeats = 0.0, "", 0
    for name, flops, work in _list_works(device, DTYPES[precision]):
        best, num = _best_seconds(work, device, share)
        del work  # its matrices would take memory from the copy
        repeats += num
        if flops / best > best_flops:
            best_flops, best_name = flops / best, name
    threads = f", {format_count(torch.get_num_threads(), 'thread')}" if device.type == "cpu" else ""
    source = f"measured in this run: {precision} {best_name}, best of {repeats}{threads}"
    free, num_bytes = free_bytes(device), COPY_BYTES.get(device.type, COPY_BYTES_ACCELERATOR)
    num_bytes = max(MIN_COPY_BYTES, num_bytes if free is None else min(num_bytes, free // 8)) // 4096 * 4096
    origin, target = _make_buffer(device, num_bytes), _make_buffer(device, num_bytes)
    best, _ = _best_seconds(lambda: target.copy_(origin), device, 0.3 * seconds)
    return Peaks(best_flops, source, 2 * num_bytes / best)  # read once, written once


def _list_works(device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, int, Callable[[], object]]]:
    """Yield name, FLOPs and function of each work that may reach the peak."""
    for size in SIZES.get(device.type, SIZES_ACCELERATOR):
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        out = torch.empty(size, size, device=device, dtype=dtype)
        yield f"matmul {size}x{size}", 2 * size**3, partial(torch.mm, left, right, out=out)
    if device.type == "cpu":
        # Where torch's matmul uses MKL, which runs at half speed on an AMD CPU in fp32, oneDNN's convolution is the
        # peak. It is direct: Winograd's would count FLOPs that are not executed.
        batch, channels, side = CONVOLUTION
        images, weights = torch.randn(batch, channels, side, side), torch.randn(channels, channels, 3, 3)
        last = [tensor.to(dtype).to(memory_format=torch.channels_last) for tensor in (images, weights)]
        yield "3x3 convolution", 2 * batch * side**2 * channels**2 * 9, partial(torch.conv2d, *last, padding=1)


def _make_buffer(device: torch.device, num_bytes: int) -> torch.Tensor:
    """Return a zeroed buffer; on a CPU from mmap, so that it is freed completely and not counted for the run."""
    if device.type != "cpu":
        return torch.zeros(num_bytes // 4, device=device)
    return torch.frombuffer(mmap.mmap(-1, num_bytes), dtype=torch.float32).zero_()


def _best_seconds(work: Callable[[], object], device: torch.device, seconds: float) -> tuple[float, int]:
    work()  # first touch, library set-up
    synchronize(device)
    best, repeats, begin = float("inf"), 0, time.perf_counter()
    while repeats < 3 or time.perf_counter() - begin < seconds:
        started = time.perf_counter()
        work()
        synchronize(device)
        best = min(best, time.perf_counter() - started)
        repeats += 1
    return best, repeats
