"""The [Training] and [Validation] lines of MLPerf's SSD, and the RESULT line of its log."""

import logging
import time
from dataclasses import replace
from pathlib import Path

import pytest

from made_original import HandClock, make_evaluation, make_facts, make_step
from trainstone.results.steps import StepRecord, StepWriter
from trainstone.train.original.facts import Facts
from trainstone.train.original.result_line import open_detector_result
from trainstone.train.original.ssd_lines import TrainingLines

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


def make_c4140(folder: Path, **changes: object) -> Facts:
    return make_facts(folder, "mlperf_ssd", global_batch=512, train_pictures=STEPS * 512, **changes)


def take_step(step: int) -> StepRecord:
    """A step as of the C4140; epoch 1 has a mean loss of 13.224."""
    others = (STEPS * 13.224 - 11.276 - 8.479) / (STEPS - 2)
    loss = LOSSES.get(step, others if step < STEPS else 7.0)
    return StepRecord(
        step, step // STEPS, step * STEP_SECONDS, 0.0, STEP_SECONDS, 128, loss, 0.0475 * (step + 1) / 1202
    )


def write_steps(log: TrainingLines, first: int, end: int) -> None:
    for step in range(first, end):
        log.step(take_step(step))
    log.close()


def read_lines(folder: Path) -> list[str]:
    return (folder / "original/training.log").read_text().splitlines()


def test_lines_are_the_published_ones(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO):
        write_steps(TrainingLines(make_c4140(tmp_path)), 0, 300)
    assert read_lines(tmp_path) == PUBLISHED
    assert [record.getMessage() for record in caplog.records] == PUBLISHED  # log.txt has them, too


def test_the_interval_may_be_another(tmp_path: Path):
    facts = make_facts(tmp_path, "mlperf_ssd", "original.every_steps=7")
    log = TrainingLines(facts)
    for step in range(20):
        log.step(make_step(step))
    log.close()
    lines = read_lines(tmp_path)
    assert [line.split(" lr")[0] for line in lines if "Iteration" in line] == [
        "[Training][Iteration 7][Epoch 1, Batch 7/10]",
        "[Training][Iteration 14][Epoch 2, Batch 4/10]",
    ]
    assert lines[1] == "[Training][Epoch 1] training time: 5.000 [sec],avg speed: 2048.000 [imgs/sec],loss=9.430"


def test_an_evaluation_tells_the_time_that_is_known(tmp_path: Path):
    log = TrainingLines(make_c4140(tmp_path))
    log.evaluation(make_evaluation(10, map=0.188))
    log.close()
    assert read_lines(tmp_path) == ["[Validation] inference: 4000.000 [ms], speed: 128.000 [imgs/sec]"]


def test_epochs_of_no_whole_number_of_steps(tmp_path: Path):
    log = TrainingLines(
        make_facts(tmp_path, "mlperf_ssd", "original.every_steps=1", global_batch=300, train_pictures=1000)
    )
    for step in range(7):
        log.step(make_step(step))
    log.close()
    told = [line.partition("]")[2].split("]")[0] for line in read_lines(tmp_path)]
    assert told == [
        *("[Iteration 1", "[Iteration 2", "[Iteration 3", "[Iteration 4", "[Epoch 1"),
        *("[Iteration 5", "[Iteration 6", "[Iteration 7", "[Epoch 2"),
    ]
    batches = [line.split("Batch ")[1].split("]")[0] for line in read_lines(tmp_path) if "Batch" in line]
    assert batches == ["1/4", "2/4", "3/4", "4/4", "1/4", "2/4", "3/4"]


@pytest.mark.parametrize("killed_after", [150, 220, 300])
def test_a_resumed_run_ends_with_the_same_lines(tmp_path: Path, killed_after: int):
    facts = make_c4140(tmp_path)
    write_steps(TrainingLines(facts), 0, killed_after)
    with StepWriter(tmp_path / "steps-rank0000.csv", split_phases=False) as steps:
        for step in range(killed_after):
            steps.add(take_step(step))
    write_steps(TrainingLines(replace(facts, first_step=140)), 140, 300)
    assert read_lines(tmp_path) == PUBLISHED


@pytest.mark.parametrize(("known", "kept"), [(0, 0), (1, 1), (2, 2)])
def test_evaluations_that_are_made_again_are_not_told_twice(tmp_path: Path, known: int, kept: int):
    log = TrainingLines(make_facts(tmp_path, "mlperf_ssd", "original.every_steps=10"))
    for step in range(10):
        log.step(make_step(step))
    log.evaluation(make_evaluation(10, map=0.1))
    log.evaluation(make_evaluation(10, map=0.2))
    log.close()
    again = TrainingLines(make_facts(tmp_path, "mlperf_ssd", first_step=10, evaluations=known))
    again.evaluation(make_evaluation(10, map=0.3))
    again.close()
    assert len(read_lines(tmp_path)) == 2 + kept + 1


def test_steps_that_took_no_time_have_no_speed(tmp_path: Path):
    log = TrainingLines(make_facts(tmp_path, "mlperf_ssd", "original.every_steps=1"))
    log.step(make_step(0)._replace(step_seconds=0.0))
    log.close()
    assert "speed: 0.000 [imgs/sec]" in read_lines(tmp_path)[0]


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("utc")
def test_the_whole_log_ends_with_the_result(tmp_path: Path):
    events = ':::MLLOG {"namespace": "", "time_ms": 1593107663000, "key": "init_start", "value": null}\n'
    (tmp_path / "mlperf.log").write_text(events)
    facts = make_facts(tmp_path, "mlperf_ssd", "mlperf.org=dellemc", "original.every_steps=1")
    lines = TrainingLines(facts)
    lines.step(make_step(0))
    lines.finish("target_reached")
    result = open_detector_result(facts, wall=HandClock(1593107663.0 + 2672))
    result.step(make_step(0))
    result.finish("target_reached")
    lines.close()
    file = tmp_path / "original/200625175423000000000_1.log"
    text = file.read_text().splitlines()
    assert text[0] == events.strip()
    assert text[1].startswith("[Training][Iteration 1][Epoch 1, Batch 1/10] lr: 0.00000, training time: 500.000 [ms]")
    assert text[2:] == [
        "ENDING TIMING RUN AT 2020-06-25 06:38:55 PM",
        "RESULT,SINGLE_STAGE_DETECTOR,,2672,dellemc,2020-06-25 05:54:23 PM",
    ]
