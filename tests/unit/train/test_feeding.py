"""The speeds a run on real pictures is held against."""

from pathlib import Path

import pytest
import torch

from small_sets import make_set
from trainstone.config.load import load_config
from trainstone.data.splits import open_split
from trainstone.machine.signals import StopSignals
from trainstone.measure.recorder import StepRecorder
from trainstone.results.steps import read_columns
from trainstone.results.summary import summarise_steps
from trainstone.train.feeding import FILE_NAME, Alone, judge_feeding, measure_after, measure_before
from trainstone.train.fit import CPU, fit_to_machine
from trainstone.train.task import build_task

TINY = [
    *("device=cpu", "model.depth=18", "data.image_size=32", "train.batch_size=2", "train.precision=fp32"),
    *("engine.threads=1", "loader.threads=1", "measure.iterations=12"),
]


def test_both_speeds_are_measured_before_and_after(tmp_path: Path):
    torch.manual_seed(0)
    data = make_set(tmp_path / "set", "recordio", count=10)
    config = load_config("resnet50", settings=TINY, flags={"data.source": "files", "data.root": str(data)})
    fitted, opened = fit_to_machine(config, strict=True), open_split(data, "train")
    with StopSignals() as signals, StepRecorder(tmp_path / FILE_NAME, split_phases=False) as recorder:
        alone = Alone(opened, recorder)
        before = [progress.phase for progress in measure_before(fitted, alone, signals)]
        assert before == ["loader alone"] * 6 + ["synthetic data"] * 6
        task = build_task(fitted.config, CPU, opened)
        after = [progress.phase for progress in measure_after(task, fitted, alone, signals)]
        assert after == ["synthetic data"] * 6 + ["loader alone"] * 6
        assert alone.counted == [2, 3, 4, 5, 8, 9, 10, 11]  # the first two of each half do not count
        assert len(alone.loader.batch_seconds) == 12
        assert task.loader is not None
        columns = {**alone.recorder.columns()}
        summary = summarise_steps(columns, compiled=False)
        judged = judge_feeding(fitted.config, task.loader, alone, summary)
    assert judged is not None
    assert judged.images_per_second == pytest.approx(2 * 12 / sum(alone.loader.batch_seconds))
    counted = columns["step_seconds"][alone.counted]
    assert judged.synthetic_images_per_second == pytest.approx(2 * 8 / counted.sum())
    assert (judged.storage, judged.pictures, judged.threads) == ("RecordIO", 10, 1)
    assert read_columns(tmp_path / FILE_NAME)["step"].tolist() == list(range(12))
