"""Step and telemetry files: write, read after truncation, downsample without losing or repeating steps."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainstone.errors import ResultError
from trainstone.results.series import BIN_WIDTH, LossCurve, read_loss, sample_steps, sample_telemetry
from trainstone.results.steps import COLUMNS, StepRecord, StepWriter, cut_steps, read_blocks, read_columns, set_aside
from trainstone.results.telemetry import HEADER, TelemetrySample, format_sample, read_samples, summarise


def write(path: Path, seconds: np.ndarray, losses: np.ndarray | None = None) -> Path:
    starts = np.concatenate(([0.0], np.cumsum(seconds)))[:-1]
    steps = zip(starts, seconds, seconds if losses is None else losses, strict=True)
    rows = [f"{n},0,{a:.9g},0.001,{s:.9g},4,{loss:.17g},0.1" for n, (a, s, loss) in enumerate(steps)]
    path.write_text("\n".join([",".join(COLUMNS), *rows]) + "\n")
    return path


def test_sample_steps_of_short_run_keeps_every_step(tmp_path: Path):
    seconds = np.array([3.0, 1.0, 1.1, 0.9])
    series = sample_steps(write(tmp_path / "s.csv", seconds), 10)
    assert series.bucket_steps == 1
    for values in (series.mean_seconds, series.low_seconds, series.high_seconds):
        assert values.tolist() == seconds.tolist()
    assert series.start_seconds.tolist() == [0.0, 3.0, 4.0, 5.1]
    assert series.end_seconds == pytest.approx(6.0)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 700), st.integers(1, 40), st.integers(60, 5000))
def test_sample_steps_counts_every_step_once(tmp_path_factory, num_steps: int, buckets: int, block_bytes: int):
    seconds = np.random.default_rng(num_steps).lognormal(-3, 0.3, num_steps)
    path = write(tmp_path_factory.mktemp("series") / "s.csv", seconds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainstone.results.steps.BLOCK_BYTES", block_bytes)
        series = sample_steps(path, buckets)
    assert series.num_steps == num_steps == series.count.sum() == series.bin_count.sum()
    assert len(series.count) <= 2 * buckets
    assert series.mean_seconds @ series.count == pytest.approx(seconds.sum())
    assert series.low_seconds.min() == pytest.approx(seconds.min())
    assert series.high_seconds.max() == pytest.approx(seconds.max())
    assert series.first_step.tolist() == np.cumsum([0, *series.count[:-1]]).tolist()
    assert len(set(series.count[:-1])) <= 1


def test_sample_steps_histogram_covers_steady_steps_and_keeps_requested_ones(tmp_path: Path):
    seconds = np.concatenate(([9.0], np.full(20, 0.1), np.full(30, 0.2)))
    series = sample_steps(write(tmp_path / "s.csv", seconds), 5, steady_from=1, keep_steps=[30, 0, 999])
    assert series.bin_count.tolist() == [20, 30]
    for edge, value in zip(series.bin_seconds, (0.1, 0.2), strict=True):
        assert edge * (1 - 1e-9) <= value <= edge * np.exp(BIN_WIDTH)
    assert {name: values.tolist() for name, values in series.kept.items()} == {
        "step": [0, 30],
        "step_seconds": [9.0, 0.2],
        "start_seconds": [0.0, pytest.approx(9 + 2 + 9 * 0.2)],
    }


def test_sample_steps_of_empty_file_is_none(tmp_path: Path):
    empty = write(tmp_path / "s.csv", np.array([]))
    assert (sample_steps(empty), read_loss(empty)) == (None, None)
    (tmp_path / "empty.csv").write_text("")
    assert sample_steps(tmp_path / "empty.csv") is None


@pytest.mark.parametrize("bad", ["nan", "inf", "-1"])
def test_sample_steps_rejects_invalid_duration(tmp_path: Path, bad: str):
    path = write(tmp_path / "s.csv", np.ones(3))
    path.write_text(path.read_text() + f"3,0,3,0.001,{bad},4,1,0.1\n")
    with pytest.raises(ResultError, match=r"step_seconds of step 3 is"):
        sample_steps(path)


def smooth(folder: Path, losses: np.ndarray) -> LossCurve | None:
    return read_loss(write(folder / "s.csv", np.ones(len(losses)), losses))


@pytest.mark.parametrize("number", [1, 3, 1000, 1001, 4321, 100_000])
def test_read_loss_downsamples_and_keeps_mean(tmp_path: Path, number: int):
    losses = np.random.default_rng(1).random(number)
    curve = smooth(tmp_path, losses)
    assert min(number, 500) <= len(curve.loss) <= 1000
    whole = number // curve.bucket_steps
    assert curve.loss[:whole].mean() == pytest.approx(losses[: whole * curve.bucket_steps].mean())
    assert np.all(np.diff(curve.step) > 0)
    assert curve.lr == pytest.approx(np.full(len(curve.lr), 0.1))


def test_read_loss_smoothing_keeps_line_and_reduces_noise(tmp_path: Path):
    line = np.linspace(5, 1, 400)
    np.testing.assert_allclose(smooth(tmp_path, line).smooth, line, rtol=1e-12)
    curve = smooth(tmp_path, 2 + np.random.default_rng(2).normal(0, 0.5, 600))
    assert curve.smooth[20:-20].std() < 0.5 * curve.loss.std()


def test_read_loss_counts_and_skips_non_finite_losses(tmp_path: Path):
    losses = np.full(300, 2.0)
    losses[100:200] = np.nan
    losses[5], losses[6] = np.inf, 1e300
    curve = smooth(tmp_path, losses)
    assert curve.num_not_finite == 102
    assert np.isnan([curve.loss[150], curve.smooth[150]]).all()
    assert np.nanmax(curve.smooth) == pytest.approx(2.0)


def write_telemetry(path: Path, samples: list[TelemetrySample]) -> Path:
    path.write_text(f"{HEADER}\n" + "".join(map(format_sample, samples)))
    return path


@pytest.mark.parametrize("number", [18, 20, 41, 333])
def test_sample_telemetry_averages_and_keeps_throttle_reasons(tmp_path: Path, number: int):
    reasons = ["thermal|sw_power_cap" if n == 17 else "none" for n in range(number)]
    samples = [
        TelemetrySample(time_seconds=float(n), step=n, util_percent=n % 2, throttle=r) for n, r in enumerate(reasons)
    ]
    points = sample_telemetry(write_telemetry(tmp_path / "t.csv", samples), 10)
    assert len(points) == number if number <= 20 else len(points) <= 20
    assert [point.time_seconds for point in points] == sorted(point.time_seconds for point in points)
    assert number < 40 or all(point.means == {"util_percent": pytest.approx(0.5, abs=0.26)} for point in points[:-1])
    (throttled,) = (point for point in points if point.throttle)
    assert throttled.throttle == ("thermal",)  # a power cap does not count
    assert throttled.time_seconds <= 17


def test_sample_telemetry_omits_unmeasured_values(tmp_path: Path):
    samples = [TelemetrySample(time_seconds=0.0, step=0), TelemetrySample(time_seconds=1.0, step=1, temp_celsius=50.0)]
    points = sample_telemetry(write_telemetry(tmp_path / "t.csv", samples))
    assert [point.means for point in points] == [{}, {"temp_celsius": 50.0}]
    assert sample_telemetry(write_telemetry(tmp_path / "t.csv", [])) == []


RECORDS = [
    StepRecord(0, 0, 0.0, 0.001, 1.25, 4, 6.9077, 0.01),
    StepRecord(1, 0, 1.25, 0.002, 0.41234567, 4, float("nan"), 0.01),
]


def write_records(path: Path, records=RECORDS, *, split: bool = False) -> None:
    with closing(StepWriter(path, split_phases=split)) as writer:
        for record in records:
            writer.add(record)


def test_step_writer_output_is_read_back(tmp_path: Path):
    write_records(tmp_path / "s.csv")
    header = (tmp_path / "s.csv").read_text().splitlines()[0]
    assert header == ",".join(COLUMNS) == "step,epoch,start_seconds,data_seconds,step_seconds,images,loss,lr"
    columns = read_columns(tmp_path / "s.csv")
    assert tuple(columns) == COLUMNS
    first, second = zip(*columns.values(), strict=True)
    assert first == RECORDS[0][:8]
    assert second[:6] == RECORDS[1][:6]
    assert second[6] != second[6]  # NaN stays NaN


def test_read_columns_drops_truncated_last_line(tmp_path: Path):
    path = tmp_path / "s.csv"
    write_records(path)
    whole = path.read_bytes()
    header, first = (place + 1 for place, byte in enumerate(whole[:-1]) if byte == ord("\n"))
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        columns = read_columns(path)
        assert columns == {} if length < first else columns["step"].tolist() == [0]
    assert header < first


def test_read_blocks_returns_every_step_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "s.csv"
    write_records(path, [StepRecord(n, 0, n * 0.5, 0.0, 0.5, 4, 1.0, 0.1) for n in range(200)])
    monkeypatch.setattr("trainstone.results.steps.BLOCK_BYTES", 100)
    blocks = list(read_blocks(path, ["step", "forward_seconds"]))
    assert len(blocks) > 10
    assert [list(block) for block in blocks] == [["step"]] * len(blocks)
    assert [step for block in blocks for step in block["step"]] == list(range(200))


def test_step_writer_flushes_every_second(tmp_path: Path):
    now = [0.0]
    path = tmp_path / "s.csv"
    with closing(StepWriter(path, split_phases=False, now=lambda: now[0])) as writer:
        writer.add(RECORDS[0])
        assert len(path.read_text().splitlines()) == 1
        now[0] = 1.0
        writer.add(RECORDS[1])
        assert len(path.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a,b\n1,2\n", "not a step file"),
        *((f"{bad}\n1,0,0,0,1,4,1,1\n", "not step records from line 2") for bad in ("1,2,3", "", "1,2,3,4,5,6,7,é")),
    ],
)
def test_read_columns_rejects_other_files(tmp_path: Path, text: str, match: str):
    path = tmp_path / "s.csv"
    begin = "" if text.startswith("a") else f"{','.join(COLUMNS)}\n0,0,0,0,1,4,1,1\n"
    path.write_text(begin + text)
    with pytest.raises(ResultError, match=match):
        read_columns(path)
    with pytest.raises(ResultError, match="cannot read"):
        read_columns(tmp_path / "absent.csv")


@pytest.mark.parametrize(("begin", "first", "kept"), [(0, 3, 3), (4, 6, 2), (4, 4, 0), (4, 3, None), (0, 9, None)])
def test_cut_steps_keeps_earlier_steps_if_complete(tmp_path: Path, begin: int, first: int, kept: int | None):
    path = tmp_path / "s.csv"
    write_records(path, [StepRecord(n, 0, n * 0.5, 0.0, 0.5, 4, 1.0, 0.1) for n in range(begin, begin + 5)])
    whole = path.read_bytes()
    columns = cut_steps(path, first, split_phases=False)
    if kept is None:
        assert columns is None
        assert path.read_bytes() == whole
    else:
        assert columns is not None
        assert columns["step"].tolist() == list(range(begin, begin + kept))
        assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[: kept + 1])


def test_set_aside_renames_file_that_cannot_be_continued(tmp_path: Path):
    path = tmp_path / "s.csv"
    set_aside(path)  # no file yet
    path.write_text(",".join(COLUMNS) + "\nnan,0,0,0,1,4,1,1\n")
    assert cut_steps(path, 1, split_phases=False) is None
    set_aside(path)
    assert [one.name for one in tmp_path.iterdir()] == ["s.csv.before-1"]


SAMPLES = [
    TelemetrySample(time_seconds=0.0, step=0),
    TelemetrySample(time_seconds=0.5, step=1, clock_mhz=2000.5, mem_used_bytes=123456789012, throttle="none"),
    TelemetrySample(
        time_seconds=1.0, step=2, power_watts=301.25, energy_joules=1e9, throttle="sw_power_cap|sync_boost"
    ),
    TelemetrySample(time_seconds=1.5, step=None, mem_clock_mhz=1215.0, temp_celsius=65.0, util_percent=99.5),
]
TEXT = f"{HEADER}\n" + "".join(map(format_sample, SAMPLES))


def test_read_samples_of_truncated_file_loses_at_most_last_line(tmp_path):
    path = tmp_path / "t.csv"
    known = "time_seconds,step,clock_mhz,mem_clock_mhz,power_watts,energy_joules,temp_celsius,util_percent"
    assert f"{known},mem_used_bytes,throttle" == HEADER  # the documented columns
    for length in range(len(TEXT) + 1):
        path.write_bytes(TEXT.encode()[:length])
        assert read_samples(path) == SAMPLES[: max(0, TEXT[:length].count("\n") - 1)]


def test_read_samples_drops_damaged_lines(tmp_path):
    lines = TEXT.splitlines()
    hostile = ["1.0,2,,,", "\0" * 40, "nan,1,,,,,,,,", "1.0,x,,,,,,,,", "1.0,1,inf,,,,,,,", ",,,,,,,,,"]
    (tmp_path / "t.csv").write_text("\n".join([lines[0], *hostile, *lines[1:]]) + "\n")
    assert read_samples(tmp_path / "t.csv") == SAMPLES
    assert format_sample(TelemetrySample(time_seconds=1.0, step=1, power_watts=float("nan"))) == "1.000,1,,,,,,,,\n"


@pytest.mark.parametrize("text", ["step,loss\n1,2\n", "hello", "\0\0\n"])
def test_read_samples_rejects_other_files(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ResultError, match="not a telemetry file"):
        read_samples(tmp_path / "t.csv")
    with pytest.raises(ResultError, match="cannot read telemetry"):
        read_samples(tmp_path / "none.csv")


def make_samples(count: int, watts: float = 100.0, **values: Any) -> list[TelemetrySample]:
    return [
        TelemetrySample(time_seconds=i / 2, step=i, energy_joules=50.0 + watts * i / 2, **values) for i in range(count)
    ]


def test_summarise_returns_medians_and_energy_of_window():
    samples = make_samples(21, clock_mhz=1400.0, temp_celsius=60.0, throttle="none")
    samples[10] = TelemetrySample(time_seconds=5.0, step=10, energy_joules=550.0, clock_mhz=900.0, temp_celsius=80.0)
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
        (21, 2.1, 7.9, 580.0, 5.8),  # partial intervals at both edges count
        (11, 3.0, 100.0, 200.0, 2.0),  # the samples end at 5 s
    ],
)
def test_summarise_energy_covers_sampled_part_of_window(count, begin, end, joules, seconds):
    summary = summarise(make_samples(count), begin, end)
    assert (summary["joules"], summary["energy_seconds"]) == (pytest.approx(joules), pytest.approx(seconds))
    assert summary["average_watts"] == pytest.approx(100.0)


def test_summarise_does_not_use_power_as_energy():
    samples = [TelemetrySample(time_seconds=float(i), step=i, power_watts=250.0) for i in range(10)]
    summary = summarise(samples, 0.0, 9.0, meter="a meter")
    assert summary["power_watts"] == 250.0
    assert [summary[key] for key in ("joules", "average_watts", "energy_seconds", "meter")] == [None] * 4


@pytest.mark.parametrize("energies", [[5.0, 5.0, 5.0], [9.0, 2.0, 30.0], [0.0, 0.0, 0.0], [4.0, None, None]])
def test_summarise_ignores_constant_or_reset_energy_counter(energies):
    samples = [TelemetrySample(time_seconds=float(i), step=i, energy_joules=e) for i, e in enumerate(energies)]
    assert summarise(samples, 0.0, 2.0, meter="m")["joules"] is None


def test_summarise_returns_throttle_percent_by_reason():
    reasons = ["none"] * 6 + ["sw_power_cap"] * 3 + ["sw_power_cap|hw_thermal_slowdown"]
    samples = [TelemetrySample(time_seconds=float(i), step=i, throttle=reason) for i, reason in enumerate(reasons)]
    summary = summarise(samples, 0.0, 9.0)
    assert summary["throttle_percent"] == {"sw_power_cap": 40.0, "hw_thermal_slowdown": 10.0}
    assert summary["throttled"] is True
    assert summarise(samples, 0.0, 8.0)["throttled"] is False  # a power cap alone is normal for large GPUs
