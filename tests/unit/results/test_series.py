"""Sampling a step file down: nothing lost, nothing counted twice, whatever the length."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainstone.errors import ResultError
from trainstone.results.series import BIN_WIDTH, sample_steps
from trainstone.results.steps import COLUMNS


def write(path: Path, seconds: np.ndarray) -> Path:
    starts = np.concatenate(([0.0], np.cumsum(seconds)))[:-1]
    rows = [f"{n},0,{a:.9g},0.001,{s:.9g},4,{n},0.1" for n, (a, s) in enumerate(zip(starts, seconds, strict=True))]
    path.write_text("\n".join([",".join(COLUMNS), *rows]) + "\n")
    return path


def test_a_short_run_keeps_every_step(tmp_path: Path):
    seconds = np.array([3.0, 1.0, 1.1, 0.9])
    series = sample_steps(write(tmp_path / "s.csv", seconds), 10)
    assert series is not None
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
    assert series is not None
    assert series.num_steps == num_steps == series.count.sum() == series.bin_count.sum()
    assert len(series.count) <= 2 * buckets
    assert series.mean_seconds @ series.count == pytest.approx(seconds.sum())
    assert series.low_seconds.min() == pytest.approx(seconds.min())
    assert series.high_seconds.max() == pytest.approx(seconds.max())
    assert series.first_step.tolist() == np.cumsum([0, *series.count[:-1]]).tolist()
    whole = series.count[:-1]
    assert (whole == whole[0]).all() if len(whole) else True


def test_the_histogram_is_of_the_steady_steps_and_true_to_its_bins(tmp_path: Path):
    seconds = np.concatenate(([9.0], np.full(20, 0.1), np.full(30, 0.2)))
    series = sample_steps(write(tmp_path / "s.csv", seconds), steady_from=1)
    assert series is not None
    assert series.bin_count.tolist() == [20, 30]
    for edge, value in zip(series.bin_seconds, (0.1, 0.2), strict=True):
        assert edge * (1 - 1e-9) <= value <= edge * np.exp(BIN_WIDTH)


def test_steps_asked_for_come_with_their_time(tmp_path: Path):
    series = sample_steps(write(tmp_path / "s.csv", np.arange(1.0, 100.0)), 5, keep_steps=[70, 3, 999])
    assert series is not None
    assert series.kept["step"].tolist() == [3, 70]
    assert series.kept["step_seconds"].tolist() == [4.0, 71.0]
    assert series.kept["start_seconds"].tolist() == [6.0, 70 * 71 / 2]


def test_no_steps_no_series(tmp_path: Path):
    assert sample_steps(write(tmp_path / "s.csv", np.array([]))) is None
    (tmp_path / "empty.csv").write_text("")
    assert sample_steps(tmp_path / "empty.csv") is None


@pytest.mark.parametrize("bad", ["nan", "inf", "-1"])
def test_what_is_no_duration_is_named(tmp_path: Path, bad: str):
    path = write(tmp_path / "s.csv", np.ones(3))
    path.write_text(path.read_text() + f"3,0,3,0.001,{bad},4,1,0.1\n")
    with pytest.raises(ResultError, match=r"step_seconds of step 3 is"):
        sample_steps(path)
