import resource
from pathlib import Path

import numpy as np

from trainstone.measure.recorder import StepRecorder
from trainstone.results.steps import StepRecord, read_columns


def make_record(step: int) -> StepRecord:
    return StepRecord(step, 0, float(step), 0.01, 0.5, 4, 6.9, 0.1)


def test_steps_are_kept_in_memory_and_on_disk(tmp_path: Path):
    path = tmp_path / "steps.csv"
    with StepRecorder(path, split_phases=False) as recorder:
        for step in range(3):
            assert recorder.current_step() == step
            recorder.add(make_record(step))
    assert len(recorder) == 3
    assert recorder.column("start_seconds").tolist() == [0.0, 1.0, 2.0]
    assert "forward_seconds" not in recorder.columns()
    assert read_columns(path)["step"].tolist() == [0, 1, 2]


def test_page_faults_belong_to_the_step_that_caused_them(tmp_path: Path):
    with StepRecorder(tmp_path / "s.csv", split_phases=False) as recorder:
        recorder.add(make_record(0))
        held = np.ones(64 * 2**20 // 8)  # 64 MiB touched for the first time
        recorder.add(make_record(1))
        recorder.add(make_record(2))
    quiet, loud, after = recorder.page_faults()
    assert held.size
    # Huge pages may serve it with few faults; then the counter of the whole process says the same.
    assert loud > max(quiet, after) or resource.getrusage(resource.RUSAGE_SELF).ru_minflt < 64 * 256
