"""Losses thinned and averaged: few points whatever the length, nothing invented, bad numbers left out."""

from pathlib import Path

import numpy as np
import pytest

from made_learning import make_steps
from trainstone.errors import ResultError
from trainstone.results.losscurve import LossCurve, read_loss, thin_loss
from trainstone.results.steps import Columns, StepWriter


def make_columns(losses: list[float] | np.ndarray, first_step: int = 0) -> Columns:
    losses = np.asarray(losses, dtype=np.float64)
    steps = np.arange(first_step, first_step + len(losses), dtype=np.float64)
    return {"step": steps, "loss": losses, "lr": np.full(len(losses), 0.1)}


def smooth(losses: list[float] | np.ndarray) -> LossCurve:
    curve = thin_loss([make_columns(losses)])
    assert curve is not None
    return curve


def test_few_steps_stay_as_they_are():
    curve = smooth([3.0, 2.0, 1.0])
    assert curve.loss.tolist() == [3.0, 2.0, 1.0]
    assert curve.step.tolist() == [0, 1, 2]
    assert (curve.num_steps, curve.bucket_steps) == (3, 1)


@pytest.mark.parametrize("number", [1, 999, 1000, 1001, 4321, 100_000])
def test_points_are_bounded_and_keep_the_mean(number: int):
    losses = np.random.default_rng(1).random(number)
    curve = smooth(losses)
    assert len(curve.loss) <= 1000
    assert len(curve.loss) >= min(number, 500)
    whole = number // curve.bucket_steps
    assert curve.loss[:whole].mean() == pytest.approx(losses[: whole * curve.bucket_steps].mean())
    assert np.all(np.diff(curve.step) > 0)


def test_a_straight_line_is_not_bent_by_smoothing():
    line = np.linspace(5, 1, 400)
    np.testing.assert_allclose(smooth(line).smooth, line, rtol=1e-12)


def test_smoothing_scatters_less():
    noise = 2 + np.random.default_rng(2).normal(0, 0.5, 600)
    curve = smooth(noise)
    assert curve.smooth[20:-20].std() < 0.5 * curve.loss.std()


def test_what_is_no_number_is_counted_and_left_out():
    losses = np.full(300, 2.0)
    losses[100:200] = np.nan
    losses[5], losses[6] = np.inf, 1e300
    curve = smooth(losses)
    assert curve.num_not_finite == 102
    assert np.isnan(curve.loss[150])
    assert np.isnan(curve.smooth[150])
    assert np.nanmax(curve.smooth) == pytest.approx(2.0)


def test_a_leap_does_not_spoil_what_comes_after():
    losses = np.full(400, 1.0)
    losses[50] = 1e20
    assert smooth(losses).smooth[-1] == 1.0


def test_a_file_is_read_and_an_empty_one_has_no_curve(tmp_path: Path):
    path = tmp_path / "steps-rank0000.csv"
    with StepWriter(path, split_phases=False) as writer:
        assert read_loss(path) is None
        for step in make_steps():
            writer.add(step)
    curve = read_loss(path)
    assert curve is not None
    assert curve.num_steps == 400
    assert curve.lr.max() == pytest.approx(0.1)
    path.write_text("step,loss\n1,2\n")
    with pytest.raises(ResultError):
        read_loss(path)
