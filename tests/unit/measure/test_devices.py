import itertools
import re

import pytest
import torch

from trainstone.errors import ConfigError, MachineError
from trainstone.measure import peaks as module
from trainstone.measure.clock import HostTimer, choose_timer
from trainstone.measure.devices import candidate_precisions, choose_device, list_devices, name_device, peak_bytes
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


def test_host_timer_synchronises_at_each_mark():
    waits: list[int] = []
    times = itertools.count(1.0)
    timer = HostTimer(now=lambda: next(times), synchronize=lambda: waits.append(1))
    first, second = timer.mark(), timer.mark()
    timer.wait(second)
    assert timer.seconds(first, second) == 1.0
    assert len(waits) == 2


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
