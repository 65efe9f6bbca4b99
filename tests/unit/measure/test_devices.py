import itertools
import re

import pytest
import torch

from trainstone.errors import ConfigError, MachineError
from trainstone.measure import peaks as module
from trainstone.measure.clock import HostTimer, choose_timer
from trainstone.measure.devices import (
    candidate_precisions,
    choose_device,
    is_out_of_memory,
    list_devices,
    name_device,
    peak_bytes,
    switch_tf32,
)
from trainstone.measure.peaks import Peaks, measure_peaks


def test_choose_device_auto_is_first_device():
    assert str(choose_device("auto")) == list_devices()[0]
    assert list_devices()[-1] == "cpu"
    assert name_device(torch.device("cpu"))
    assert peak_bytes(torch.device("cpu"))[1] > 50 * 2**20


@pytest.mark.parametrize(
    ("name", "error", "match"),
    [
        ("cuda:99", MachineError, r"'cuda:99' not found.*finds"),
        *((name, ConfigError, "invalid device .*: available are .*cpu") for name in ("gpu", "", "cuda:x")),
    ],
)
def test_choose_device_rejects_unknown_device(name: str, error: type[Exception], match: str):
    with pytest.raises(error, match=match):
        choose_device(name)


def test_candidate_precisions_plain_cpu_has_only_fp32(monkeypatch: pytest.MonkeyPatch):
    assert candidate_precisions(torch.device("cpu"))[0] == "fp32"
    for check in ("_is_avx512_bf16_supported", "_is_amx_tile_supported", "_is_amx_fp16_supported"):
        monkeypatch.setattr(torch.cpu, check, lambda: False)
    assert candidate_precisions(torch.device("cpu")) == ["fp32"]


# Texts of RuntimeErrors, as users have reported them, and whether a smaller batch may help.
TEXTS = [
    ("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 39.39 GiB", True),
    ("HIP out of memory. Tried to allocate 20.00 MiB", True),
    ("XPU out of memory. Tried to allocate 20.00 MiB", True),
    ("MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 1.00 GB, max allowed: 9.07 GB)", True),
    ("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported", True),
    ("[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you tried", True),
    ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
    ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", True),
    ("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", True),
    ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", True),
    ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", True),
    ("GET was unable to find an engine to execute this computation", True),
    ("FIND was unable to find an engine to execute this computation", True),
    ("Unable to find a valid cuDNN algorithm to run convolution", True),
    ("NCCL error in: NCCLUtils.hpp:268, unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'", True),
    ("CUDA error: an illegal memory access was encountered", False),
    ("CUDA error: device-side assert triggered", False),
    ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(...)`", False),
    ("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmul(...)`", False),
    ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", False),
    ("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input.", False),
    ("cuDNN error: CUDNN_STATUS_BAD_PARAM", False),
    ("NCCL error in: ProcessGroupNCCL.cpp:1331, unhandled system error (run with NCCL_DEBUG=INFO for details)", False),
    ("NCCL error: ncclRemoteError: A call failed possibly due to a network error", False),
    ("Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False", False),
    ("The size of tensor a (4) must match the size of tensor b (3) at non-singleton dimension 1", False),
    ("Found no NVIDIA driver on your system.", False),
]


@pytest.mark.parametrize(("text", "expected"), TEXTS)
def test_is_out_of_memory_recognises_texts(text: str, expected: bool):
    assert is_out_of_memory(RuntimeError(text)) == expected


TF32_GETTERS = {
    "matmul": lambda: torch.backends.cuda.matmul.allow_tf32,
    "cudnn": lambda: torch.backends.cudnn.allow_tf32,
    "precision": torch.get_float32_matmul_precision,
    "new matmul": lambda: torch.backends.cuda.matmul.fp32_precision,
    "new conv": lambda: torch.backends.cudnn.conv.fp32_precision,
    "new rnn": lambda: torch.backends.cudnn.rnn.fp32_precision,
}


@pytest.mark.parametrize("precisions", list(itertools.permutations(["fp32", "tf32", "bf16"])))
def test_switch_tf32_leaves_every_getter_of_torch_valid(precisions: tuple[str, ...], recwarn: pytest.WarningsRecorder):
    try:
        for precision in precisions:
            switch_tf32(precision)
            assert [str(warning.message) for warning in recwarn] == []
            found = {name: getter() for name, getter in TF32_GETTERS.items()}
            allowed = precision == "tf32"
            assert (found["matmul"], found["cudnn"]) == (allowed, allowed)
            assert found["precision"] == ("high" if allowed else "highest")
            assert [found[name] == "tf32" for name in ("new matmul", "new conv", "new rnn")] == [allowed] * 3
            recwarn.clear()
    finally:
        switch_tf32("fp32")


def test_host_timer_synchronises_at_each_mark():
    waits: list[int] = []
    times = itertools.count(1.0)
    timer = HostTimer(now=lambda: next(times), synchronize=lambda: waits.append(1))
    first, second = timer.mark(), timer.mark()
    timer.wait(second)
    assert timer.seconds(first, second) == 1.0
    assert len(waits) == 2


def test_cuda_timer_waits_without_a_busy_core(monkeypatch: pytest.MonkeyPatch):
    made: list[dict[str, bool]] = []

    class Event:
        def __init__(self, **options: bool) -> None:
            made.append(options)

        def record(self) -> None:
            pass

    monkeypatch.setattr(torch.cuda, "Event", Event)
    timer = choose_timer(torch.device("cuda"))
    timer.end_step()
    assert timer.begin_step().mark is not timer.mark()
    assert made == [{"enable_timing": True, "blocking": True}] * 3


def test_choose_timer_cpu_does_not_synchronise():
    timer = choose_timer(torch.device("cpu"))
    assert timer.lag == 0
    assert timer.seconds(timer.mark(), timer.mark()) >= 0


def test_measure_peaks_returns_rates_and_source(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "SIZES", {"cpu": (128, 256)})
    monkeypatch.setattr(module, "COPY_BYTES", {"cpu": 16 * 2**20})
    peaks = measure_peaks(torch.device("cpu"), "fp32", seconds=0.05)
    assert 1e8 < peaks.flops < 1e14
    assert 1e8 < peaks.bytes_per_second < 1e13
    assert re.search("measured in this run: fp32 (matmul [0-9]+x[0-9]+|3x3 convolution), best of", peaks.flops_source)
    assert " thread" in peaks.flops_source


def test_peaks_best_of_takes_higher_rates():
    low, high = Peaks(1.0, "first", 5.0), Peaks(2.0, "second", 4.0)
    assert low.best_of(high) == Peaks(2.0, "second", 5.0)
    assert high.best_of(low) == Peaks(2.0, "second", 5.0)
