"""Telemetry sampled down."""

from pathlib import Path

import pytest

from trainstone.results.panels import sample_telemetry
from trainstone.results.samples import HEADER, Sample, format_sample


def write(path: Path, samples: list[Sample]) -> Path:
    path.write_text(f"{HEADER}\n" + "".join(map(format_sample, samples)))
    return path


def test_a_short_file_keeps_every_sample(tmp_path: Path):
    samples = [Sample(time_seconds=n / 2, step=n, clock_mhz=1000.0 + n, throttle="none") for n in range(5)]
    points = sample_telemetry(write(tmp_path / "t.csv", samples), 10)
    assert [point.time_seconds for point in points] == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert [point.means for point in points] == [{"clock_mhz": 1000.0 + n} for n in range(5)]
    assert all(point.throttle == () for point in points)


@pytest.mark.parametrize("number", [19, 20, 21, 40, 41, 100, 333])
def test_a_long_file_becomes_means_and_loses_no_throttle_reason(tmp_path: Path, number: int):
    reasons = ["thermal|sw_power_cap" if n == 17 else "none" for n in range(number)]
    samples = [
        Sample(time_seconds=float(n), step=n, util_percent=float(n % 2), throttle=reason)
        for n, reason in enumerate(reasons)
    ]
    points = sample_telemetry(write(tmp_path / "t.csv", samples), 10)
    assert len(points) <= 20
    assert [point.time_seconds for point in points] == sorted(point.time_seconds for point in points)
    if number > 40:
        assert all(point.means["util_percent"] == pytest.approx(0.5, abs=0.26) for point in points[:-1])
    (hindered,) = (point for point in points if point.throttle)
    assert hindered.throttle == ("thermal",)  # a power cap hinders nothing
    assert hindered.time_seconds <= 17


def test_what_was_not_measured_is_absent(tmp_path: Path):
    samples = [Sample(time_seconds=0.0, step=0), Sample(time_seconds=1.0, step=1, temp_celsius=50.0)]
    first, second = sample_telemetry(write(tmp_path / "t.csv", samples))
    assert first.means == {}
    assert second.means == {"temp_celsius": 50.0}


def test_an_empty_file_has_no_points(tmp_path: Path):
    assert sample_telemetry(write(tmp_path / "t.csv", [])) == []
