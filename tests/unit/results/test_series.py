"""Steps, losses and telemetry sampled down: nothing lost, nothing counted twice, whatever the length."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainstone.errors import ResultError
from trainstone.results.samples import HEADER, Sample, format_sample
from trainstone.results.series import BIN_WIDTH, LossCurve, read_loss, sample_steps, sample_telemetry
from trainstone.results.steps import COLUMNS


def write(path: Path, seconds: np.ndarray, losses: np.ndarray | None = None) -> Path:
    starts = np.concatenate(([0.0], np.cumsum(seconds)))[:-1]
    steps = zip(starts, seconds, seconds if losses is None else losses, strict=True)
    rows = [f"{n},0,{a:.9g},0.001,{s:.9g},4,{loss:.17g},0.1" for n, (a, s, loss) in enumerate(steps)]
    path.write_text("\n".join([",".join(COLUMNS), *rows]) + "\n")
    return path


def test_a_short_run_keeps_every_step(tmp_path: Path):
    seconds = np.array([3.0, 1.0, 1.1, 0.9])
    series = sample_steps(write(tmp_path / "s.csv", seconds), 10)
    assert series.bucket_steps == 1
    for values in (series.mean_seconds, series.low_seconds, series.high_seconds):
        assert values.tolist() == seconds.tolist()
    assert series.start_seconds.tolist() == [0.0, 3.0, 4.0, 5.1]
    assert series.end_seconds == pytest.approx(6.0)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 700), st.integers(1, 40), st.integers(60, 5000))
def test_no_step_is_lost_or_counted_twice(tmp_path_factory, num_steps: int, buckets: int, block_bytes: int):
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


def test_histogram_is_of_the_steady_steps_and_requested_steps_are_kept(tmp_path: Path):
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


def test_files_without_steps_have_no_series(tmp_path: Path):
    empty = write(tmp_path / "s.csv", np.array([]))
    assert (sample_steps(empty), read_loss(empty)) == (None, None)
    (tmp_path / "empty.csv").write_text("")
    assert sample_steps(tmp_path / "empty.csv") is None


@pytest.mark.parametrize("bad", ["nan", "inf", "-1"])
def test_what_is_not_a_duration_is_named(tmp_path: Path, bad: str):
    path = write(tmp_path / "s.csv", np.ones(3))
    path.write_text(path.read_text() + f"3,0,3,0.001,{bad},4,1,0.1\n")
    with pytest.raises(ResultError, match=r"step_seconds of step 3 is"):
        sample_steps(path)


def smooth(folder: Path, losses: np.ndarray) -> LossCurve | None:
    return read_loss(write(folder / "s.csv", np.ones(len(losses)), losses))


@pytest.mark.parametrize("number", [1, 3, 1000, 1001, 4321, 100_000])
def test_losses_are_few_and_keep_their_mean(tmp_path: Path, number: int):
    losses = np.random.default_rng(1).random(number)
    curve = smooth(tmp_path, losses)
    assert min(number, 500) <= len(curve.loss) <= 1000
    whole = number // curve.bucket_steps
    assert curve.loss[:whole].mean() == pytest.approx(losses[: whole * curve.bucket_steps].mean())
    assert np.all(np.diff(curve.step) > 0)
    assert curve.lr == pytest.approx(np.full(len(curve.lr), 0.1))


def test_smoothing_does_not_bend_a_line_and_scatters_less(tmp_path: Path):
    line = np.linspace(5, 1, 400)
    np.testing.assert_allclose(smooth(tmp_path, line).smooth, line, rtol=1e-12)
    curve = smooth(tmp_path, 2 + np.random.default_rng(2).normal(0, 0.5, 600))
    assert curve.smooth[20:-20].std() < 0.5 * curve.loss.std()


def test_losses_that_are_not_finite_are_counted_and_left_out(tmp_path: Path):
    losses = np.full(300, 2.0)
    losses[100:200] = np.nan
    losses[5], losses[6] = np.inf, 1e300
    curve = smooth(tmp_path, losses)
    assert curve.num_not_finite == 102
    assert np.isnan([curve.loss[150], curve.smooth[150]]).all()
    assert np.nanmax(curve.smooth) == pytest.approx(2.0)


def write_telemetry(path: Path, samples: list[Sample]) -> Path:
    path.write_text(f"{HEADER}\n" + "".join(map(format_sample, samples)))
    return path


@pytest.mark.parametrize("number", [18, 20, 41, 333])
def test_telemetry_becomes_means_and_loses_no_throttle_reason(tmp_path: Path, number: int):
    reasons = ["thermal|sw_power_cap" if n == 17 else "none" for n in range(number)]
    samples = [
        Sample(time_seconds=float(n), step=n, util_percent=float(n % 2), throttle=reason)
        for n, reason in enumerate(reasons)
    ]
    points = sample_telemetry(write_telemetry(tmp_path / "t.csv", samples), 10)
    assert len(points) == number if number <= 20 else len(points) <= 20
    assert [point.time_seconds for point in points] == sorted(point.time_seconds for point in points)
    assert number < 40 or all(point.means == {"util_percent": pytest.approx(0.5, abs=0.26)} for point in points[:-1])
    (hindered,) = (point for point in points if point.throttle)
    assert hindered.throttle == ("thermal",)  # a power cap hinders nothing
    assert hindered.time_seconds <= 17


def test_telemetry_that_was_not_measured_is_absent(tmp_path: Path):
    samples = [Sample(time_seconds=0.0, step=0), Sample(time_seconds=1.0, step=1, temp_celsius=50.0)]
    points = sample_telemetry(write_telemetry(tmp_path / "t.csv", samples))
    assert [point.means for point in points] == [{}, {"temp_celsius": 50.0}]
    assert sample_telemetry(write_telemetry(tmp_path / "t.csv", [])) == []
