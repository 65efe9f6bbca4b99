"""Telemetry files read back, and their summary."""

from typing import Any

import pytest

from trainstone.errors import ResultError
from trainstone.results.samples import HEADER, Sample, format_sample, read_samples, summarise


def test_header_is_the_contract():
    assert HEADER == (
        "time_seconds,step,clock_mhz,mem_clock_mhz,power_watts,energy_joules,"
        "temp_celsius,util_percent,mem_used_bytes,throttle"
    )


# The file

SAMPLES = [
    Sample(time_seconds=0.0, step=0),
    Sample(time_seconds=0.5, step=1, clock_mhz=2000.5, mem_used_bytes=123456789012, throttle="none"),
    Sample(time_seconds=1.0, step=2, power_watts=301.25, energy_joules=1e9, throttle="sw_power_cap|sync_boost"),
    Sample(time_seconds=1.5, step=None, mem_clock_mhz=1215.0, temp_celsius=65.0, util_percent=99.5),
]
TEXT = f"{HEADER}\n" + "".join(map(format_sample, SAMPLES))


def test_killed_at_any_byte_costs_at_most_the_last_line(tmp_path):
    path = tmp_path / "t.csv"
    for length in range(len(TEXT) + 1):
        path.write_bytes(TEXT.encode()[:length])
        assert read_samples(path) == SAMPLES[: max(0, TEXT[:length].count("\n") - 1)]


def test_torn_line_in_the_middle_is_dropped(tmp_path):
    lines = TEXT.splitlines()
    hostile = ["1.0,2,,,", "\0" * 40, "nan,1,,,,,,,,", "1.0,x,,,,,,,,", "1.0,1,inf,,,,,,,", ",,,,,,,,,"]
    (tmp_path / "t.csv").write_text("\n".join([lines[0], *hostile, *lines[1:]]) + "\n")
    assert read_samples(tmp_path / "t.csv") == SAMPLES


@pytest.mark.parametrize("text", ["step,loss\n1,2\n", "hello", "\0\0\n"])
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ResultError, match="not a telemetry file"):
        read_samples(tmp_path / "t.csv")
    with pytest.raises(ResultError, match="cannot read telemetry"):
        read_samples(tmp_path / "none.csv")


def test_not_a_number_becomes_not_measured():
    assert format_sample(Sample(time_seconds=1.0, step=1, power_watts=float("nan"))) == "1.000,1,,,,,,,,\n"


# The summary


def make_samples(count: int, watts: float = 100.0, **values: Any) -> list[Sample]:
    return [Sample(time_seconds=i / 2, step=i, energy_joules=50.0 + watts * i / 2, **values) for i in range(count)]


def test_summary_of_the_steady_window():
    samples = make_samples(21, clock_mhz=1400.0, temp_celsius=60.0, throttle="none")
    samples[10] = Sample(time_seconds=5.0, step=10, energy_joules=550.0, clock_mhz=900.0, temp_celsius=80.0)
    summary = summarise(samples, 2.0, 8.0, meter="RAPL package-0")
    assert summary["num_samples"] == 13
    assert (summary["clock_mhz"], summary["temp_celsius"], summary["max_temp_celsius"]) == (1400.0, 60.0, 80.0)
    assert summary["joules"] == pytest.approx(600.0)
    assert (summary["average_watts"], summary["energy_seconds"]) == (pytest.approx(100.0), pytest.approx(6.0))
    assert summary["meter"] == "RAPL package-0"
    assert (summary["throttle_percent"], summary["throttled"]) == ({}, False)
    assert summary["mem_used_bytes"] is None


@pytest.mark.parametrize(
    ("count", "begin", "end", "joules", "seconds"),
    [
        (21, 2.1, 7.9, 580.0, 5.8),  # edges between two samples count their part
        (11, 3.0, 100.0, 200.0, 2.0),  # the samples end at 5 s
    ],
)
def test_energy_is_that_of_the_part_of_the_window_that_was_seen(count, begin, end, joules, seconds):
    summary = summarise(make_samples(count), begin, end)
    assert (summary["joules"], summary["energy_seconds"]) == (pytest.approx(joules), pytest.approx(seconds))
    assert summary["average_watts"] == pytest.approx(100.0)


def test_power_is_never_passed_off_as_energy():
    samples = [Sample(time_seconds=float(i), step=i, power_watts=250.0) for i in range(10)]
    summary = summarise(samples, 0.0, 9.0, meter="a meter")
    assert summary["power_watts"] == 250.0
    assert [summary[key] for key in ("joules", "average_watts", "energy_seconds", "meter")] == [None] * 4


@pytest.mark.parametrize("energies", [[5.0, 5.0, 5.0], [9.0, 2.0, 30.0], [0.0, 0.0, 0.0], [4.0, None, None]])
def test_counter_that_stands_still_or_was_reset_measures_nothing(energies):
    samples = [Sample(time_seconds=float(i), step=i, energy_joules=e) for i, e in enumerate(energies)]
    assert summarise(samples, 0.0, 2.0, meter="m")["joules"] is None


def test_throttling_is_shared_out_by_reason():
    reasons = ["none"] * 6 + ["sw_power_cap"] * 3 + ["sw_power_cap|hw_thermal_slowdown"]
    samples = [Sample(time_seconds=float(i), step=i, throttle=reason) for i, reason in enumerate(reasons)]
    summary = summarise(samples, 0.0, 9.0)
    assert summary["throttle_percent"] == {"sw_power_cap": 40.0, "hw_thermal_slowdown": 10.0}
    assert summary["throttled"] is True
    assert summarise(samples, 0.0, 8.0)["throttled"] is False  # a power cap alone is how big GPUs work
