"""How a training ended, as its result says it."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from small_training import make_config, train_here
from trainstone.results.progress import Progress
from trainstone.results.samples import Sample
from trainstone.results.store import read_result
from trainstone.train import judging
from trainstone.train.course import Course
from trainstone.train.learned import sum_up

QUICK = {"stop.epochs": 1.0, "data.generated_val": 11}


def pretend(*_: Any) -> Any:
    """Two of eleven pictures could not be read."""
    yield Progress("evaluating")
    return torch.tensor([[4.5, 9.0, 0.0, 9.0]])


def test_pictures_that_were_not_judged_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(judging, "judge", pretend)
    run = train_here(make_config(**QUICK), tmp_path, monkeypatch)
    told = [found.message for found in run.result.findings if found.code == "pictures-skipped"]
    assert told == ["2 damaged pictures not judged; log.txt names them"]


def test_the_clock_stops_with_the_evaluation_that_reached_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(judging, "judge", pretend)
    run = train_here(make_config(**QUICK, eval__target=0.5), tmp_path, monkeypatch)
    phases, quality = run.result.phases, run.result.quality
    assert run.result.status == "target_reached"
    assert phases.checkpoint_seconds == 0
    assert phases.train_seconds + phases.eval_seconds <= quality.seconds_to_target < phases.program_seconds
    assert (run.path / "checkpoints/best.safetensors").exists()


def test_the_end_is_written_before_the_peak_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen = []

    def act(progress: Progress) -> None:
        if progress.phase == "measuring this device's peak":
            (run,) = tmp_path.iterdir()
            seen.append(read_result(run))

    train_here(make_config(**QUICK, eval__target=1.0), tmp_path, monkeypatch, act=act)
    (early,) = seen
    assert early.status == "target_missed"
    assert early.verdict is not None
    assert early.throughput is None
    assert len(early.quality.history) == 1


def test_who_is_stopped_measures_no_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    phases = []

    def act(progress: Progress) -> None:
        phases.append(progress.phase)
        if progress.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    run = train_here(make_config(**QUICK), tmp_path / "my runs", monkeypatch, act=act)
    assert "measuring this device's peak" not in phases
    result = read_result(run.path)
    assert result.status == "interrupted"
    assert result.utilisation is None
    assert result.throughput is not None
    (stopped,) = [found for found in result.findings if found.code == "interrupted"]
    assert stopped.hint == f"go on with: trainstone train --resume '{run.path}'"


def test_a_start_without_a_step_is_judged_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its step file is lost, and it was stopped in the evaluation that it owed."""
    config = make_config(**QUICK, eval__batch_size=1)

    def act(progress: Progress) -> None:
        if progress.phase == "evaluating":
            os.kill(os.getpid(), signal.SIGTERM)

    run = train_here(config, tmp_path, monkeypatch, act=act)
    (run.path / "steps-rank0000.csv").unlink()
    again = train_here(config, run.path, monkeypatch, resume=True, act=act)
    assert again.result.status == "interrupted"
    assert again.result.throughput is None
    assert [device.rank for device in again.result.devices] == [0]
    assert "interrupted" in [found.code for found in again.result.findings]


@pytest.mark.parametrize(
    ("starts", "times", "counted"), [(1, (0, 1, 2), True), (2, (0, 1, 2), False), (1, (0, 2, 1), False)]
)
def test_energy_is_that_of_a_single_start(starts: int, times: tuple[float, ...], counted: bool):
    samples = [Sample(time_seconds=t, step=0, energy_joules=10.0 * n) for n, t in enumerate(times)]
    course = Course("top1", 96, 8, starts=starts)
    told = sum_up(samples, (0.0, 2.0), "counter", course)
    assert told["num_samples"] == 3
    assert [told[name] is not None for name in ("joules", "energy_seconds", "average_watts", "meter")] == [counted] * 4
