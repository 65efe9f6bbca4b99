import pytest
import torch

from trainstone.measure import peaks as module
from trainstone.measure.peaks import Peaks, measure_peaks


def test_a_peak_is_measured_and_says_how(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "SIZES", {"cpu": (128, 256)})
    monkeypatch.setattr(module, "COPY_BYTES", {"cpu": 16 * 2**20})
    peaks = measure_peaks(torch.device("cpu"), "fp32", seconds=0.05)
    assert 1e8 < peaks.flops < 1e14
    assert 1e8 < peaks.bytes_per_second < 1e13
    assert "measured in this run: fp32 matmul" in peaks.flops_source
    assert " thread" in peaks.flops_source


def test_the_better_of_two_measurements_counts():
    low, high = Peaks(1.0, "first", 5.0), Peaks(2.0, "second", 4.0)
    assert low.best_of(high) == Peaks(2.0, "second", 5.0)
    assert high.best_of(low) == Peaks(2.0, "second", 5.0)
