import mmap
from pathlib import Path

import numpy as np

from trainstone.measure.recorder import StepRecorder
from trainstone.results.steps import StepRecord, read_columns


def make_record(step: int) -> StepRecord:
    return StepRecord(step, 0, float(step), 0.01, 0.5, 4, 6.9, 0.1)


def test_step_recorder_stores_steps_in_memory_and_file(tmp_path: Path):
    path = tmp_path / "steps.csv"
    with StepRecorder(path, split_phases=False) as recorder:
        for step in range(3):
            assert recorder.current_step() == step
            recorder.step(make_record(step))
    assert len(recorder) == 3
    assert recorder.column("start_seconds").tolist() == [0.0, 1.0, 2.0]
    assert "forward_seconds" not in recorder.columns()
    assert read_columns(path)["step"].tolist() == [0, 1, 2]


def test_step_recorder_counts_page_faults_per_step(tmp_path: Path):
    with StepRecorder(tmp_path / "s.csv", split_phases=False) as recorder:
        recorder.step(make_record(0))
        # Touch every page of 64 MiB for the first time; memory from malloc may have been touched before.
        held = mmap.mmap(-1, 64 * 2**20)
        held.madvise(mmap.MADV_NOHUGEPAGE)
        np.frombuffer(held, dtype=np.uint8)[:: mmap.PAGESIZE] = 1
        recorder.step(make_record(1))
        recorder.step(make_record(2))
    quiet, loud, after = recorder.page_faults()
    assert loud >= 64 * 2**20 // mmap.PAGESIZE
    assert max(quiet, after) < loud / 10


def test_step_recorder_moves_incomplete_file_aside(tmp_path: Path):
    path = tmp_path / "steps-rank0000.csv"
    with StepRecorder(path, split_phases=False) as recorder:
        for step in range(3):
            recorder.step(make_record(step))
    before = path.read_bytes()
    with StepRecorder(path, split_phases=False, first_step=5) as recorder:
        assert (len(recorder), recorder.current_step()) == (0, 5)
        for step in range(5, 9):
            recorder.step(make_record(step))
    assert (tmp_path / "steps-rank0000.csv.before-1").read_bytes() == before
    with StepRecorder(path, split_phases=False, first_step=7) as recorder:
        assert (len(recorder), recorder.current_step()) == (2, 7)
        recorder.step(make_record(7))
        assert recorder.column("step").tolist() == [5, 6, 7]
        assert len(recorder.page_faults()) == 3
    assert read_columns(path)["step"].tolist() == [5, 6, 7]
    with StepRecorder(path, split_phases=True, first_step=8) as recorder:  # other columns
        assert len(recorder) == 0
    assert len(list(tmp_path.glob("steps-rank0000.csv.before-*"))) == 2
    assert [found.name for found in tmp_path.glob("steps-rank*.csv")] == ["steps-rank0000.csv"]
