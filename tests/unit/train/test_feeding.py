"""The speeds a run on real pictures is held against, and those of the loader by numbers of threads."""

from pathlib import Path

import pytest
import torch

from small_loaders import make_loader
from small_sets import Listed, make_set, to_classify
from trainstone.config.load import load_config
from trainstone.data.loader import STAGES, Loader
from trainstone.data.splits import open_split
from trainstone.machine.cpus import Cores
from trainstone.machine.signals import StopSignals
from trainstone.measure.recorder import StepRecorder
from trainstone.results.steps import read_columns
from trainstone.results.summary import summarise_steps
from trainstone.train.feeding import (
    FILE_NAME,
    Alone,
    Turns,
    choose_threads,
    judge_feeding,
    measure_after,
    measure_before,
    measure_threads,
    split_stages,
    summarise_turns,
)
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
        columns = {**alone.recorder.columns()}
        summary = summarise_steps(columns, compiled=False)
        judged = judge_feeding(fitted.config, task.loader, alone, summary)
    assert judged.images_per_second == pytest.approx(2 * 12 / sum(alone.loader.batch_seconds))
    counted = columns["step_seconds"][alone.counted]
    assert judged.synthetic_images_per_second == pytest.approx(2 * 8 / counted.sum())
    assert (judged.storage, judged.pictures, judged.threads) == ("RecordIO", 10, 1)
    assert read_columns(tmp_path / FILE_NAME)["step"].tolist() == list(range(12))


@pytest.mark.parametrize(
    ("logical", "physical", "counts"),
    [(1, 1, [1]), (2, 2, [1, 2]), (12, 6, [1, 2, 4, 6, 8, 12]), (16, 8, [1, 2, 4, 8, 16]), (3, None, [1, 2, 3])],
)
def test_powers_of_two_then_cores_then_hardware_threads(logical: int, physical: int | None, counts: list[int]):
    assert choose_threads(Cores(logical, physical, None, physical or logical)) == counts


def test_each_number_of_threads_has_two_turns_on_pictures_of_their_own():
    opened = []

    def open_with(threads: int, first_step: int) -> Loader:
        opened.append((threads, first_step))
        return make_loader(Listed(to_classify(40)), threads=threads, first_step=first_step)

    done: list[Turns] = []
    told = {progress.phase for progress in measure_threads(open_with, [1, 2], 0.05, done)}
    assert told == {"1 thread", "2 threads"}
    assert [threads for threads, _ in opened] == [1, 2, 2, 1]
    steps = [step for _, step in opened]
    assert steps == sorted(set(steps))
    for turns in done:
        assert len(turns.batch_seconds) >= 2 * 4
        assert turns.wall_seconds == pytest.approx(sum(turns.batch_seconds))
        assert turns.cpu_seconds > 0
        assert turns.pictures >= 4 * len(turns.batch_seconds)
        point = summarise_turns(turns, 4, 2)
        assert point.threads == turns.threads
        assert point.images_per_second == pytest.approx(4 * len(turns.batch_seconds) / turns.wall_seconds)
    stages = split_stages(done[0])
    assert [stage.name for stage in stages] == list(STAGES)
    assert sum(stage.share for stage in stages) == pytest.approx(1)
    assert all(stage.seconds_per_image > 0 for stage in stages)
