"""The [Training] and [Validation] lines of MLPerf's SSD."""

import logging
from pathlib import Path

import pytest

from made_original import make_evaluation, make_facts, make_step, play
from trainstone.results.steps import StepRecord
from trainstone.train.original.writers import SsdLog

STEPS, STEP_SECONDS = 230, 0.22269
# As the first published run of the C4140 printed it.
PUBLISHED = [
    "[Training][Iteration 100][Epoch 1, Batch 100/230] lr: 0.00395, training time: 222.690 [ms], "
    "speed: 2299.160 [imgs/sec], loss=11.276",
    "[Training][Iteration 200][Epoch 1, Batch 200/230] lr: 0.00790, training time: 222.690 [ms], "
    "speed: 2299.160 [imgs/sec], loss=8.479",
    "[Training][Epoch 1] training time: 51.219 [sec],avg speed: 2299.160 [imgs/sec],loss=13.224",
    "[Training][Iteration 300][Epoch 2, Batch 70/230] lr: 0.01186, training time: 222.690 [ms], "
    "speed: 2299.160 [imgs/sec], loss=8.164",
]
LOSSES = {99: 11.276, 199: 8.479, 299: 8.164}


def take_step(step: int) -> StepRecord:
    """A step as of the C4140; epoch 1 has a mean loss of 13.224."""
    others = (STEPS * 13.224 - 11.276 - 8.479) / (STEPS - 2)
    loss = LOSSES.get(step, others if step < STEPS else 7.0)
    return StepRecord(
        step, step // STEPS, step * STEP_SECONDS, 0.0, STEP_SECONDS, 128, loss, 0.0475 * (step + 1) / 1202
    )


def read_lines(folder: Path) -> list[str]:
    return (folder / "original/training.log").read_text().splitlines()


def test_lines_are_the_published_ones_and_in_the_log_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    facts = make_facts(tmp_path, "mlperf_ssd", global_batch=512, train_pictures=STEPS * 512)
    with caplog.at_level(logging.INFO), SsdLog(facts) as file:
        for step in range(300):
            file.step(take_step(step))
    assert read_lines(tmp_path) == PUBLISHED
    assert [record.getMessage() for record in caplog.records] == PUBLISHED


def test_epochs_of_no_whole_number_of_steps(tmp_path: Path):
    facts = make_facts(tmp_path, "mlperf_ssd", "original.every_steps=1", global_batch=300, train_pictures=1000)
    play(facts, 7, status=None)
    assert [line.partition("]")[2].split("]")[0] for line in read_lines(tmp_path)] == [
        *("[Iteration 1", "[Iteration 2", "[Iteration 3", "[Iteration 4", "[Epoch 1"),
        *("[Iteration 5", "[Iteration 6", "[Iteration 7", "[Epoch 2"),
    ]
    batches = [line.split("Batch ")[1].split("]")[0] for line in read_lines(tmp_path) if "Batch" in line]
    assert batches == ["1/4", "2/4", "3/4", "4/4", "1/4", "2/4", "3/4"]


def test_an_evaluation_has_the_time_that_is_known(tmp_path: Path):
    lines = SsdLog(make_facts(tmp_path, "mlperf_ssd", "original.every_steps=1"))
    assert lines.render_evaluation(make_evaluation(10)) == (
        "[Validation] inference: 4000.000 [ms], speed: 128.000 [imgs/sec]\n"
    )
    assert "speed: 0.000 [imgs/sec]" in lines.render_step(make_step(0, step_seconds=0.0))
