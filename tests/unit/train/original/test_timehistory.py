"""The TBD suite's logs: throughput of a bench, the training loop of a training."""

import ast
from pathlib import Path

import pytest

from made_original import EPOCH_SECONDS, HandClock, make_evaluation, make_facts, make_step
from trainstone.formats.timehistory import read_timehistory
from trainstone.launch.timehistory import measure
from trainstone.results.steps import StepWriter, read_columns
from trainstone.train.original.facts import Facts
from trainstone.train.original.timehistory import LoopLog, ThroughputLog

BATCH_LOG = "original/throughput_data/batch_32.log"


def bench(folder: Path, steps: int, *settings: str, known: int | None = None) -> Path:
    facts = make_facts(folder, "tbd", *settings, kind="bench", ranks=1, steps=known)
    log = ThroughputLog(facts, wall=HandClock(), now=HandClock(), process=42)
    for step in range(steps):
        log.step(make_step(step)._replace(images=32))
    log.finish("ok")
    log.close()
    return folder / BATCH_LOG


@pytest.mark.parametrize("known", [None, 1000, 5])
@pytest.mark.parametrize(("number", "every"), [(10, 10), (19, 10), (199, 10), (200, 100), (399, 100)])
def test_a_bench_writes_what_a_sweep_makes_of_its_steps(tmp_path: Path, number: int, every: int, known: int | None):
    file = bench(tmp_path, number, known=known)
    with StepWriter(tmp_path / "steps.csv", split_phases=False) as steps:
        for step in range(number):
            steps.add(make_step(step)._replace(images=32))
    expected = [interval for interval, _ in measure(read_columns(tmp_path / "steps.csv"))]
    assert [one._replace(stamp=None) for one in read_timehistory(file)] == expected
    assert len(expected) == number // every
    assert expected[0].examples_per_second == 64.0


def test_lines_come_while_it_runs(tmp_path: Path):
    now = HandClock()
    facts = make_facts(tmp_path, "tbd", kind="bench", steps=None)
    log = ThroughputLog(facts, wall=HandClock(), now=now, process=42)
    for step in range(201):
        log.step(make_step(step))
        now.seconds += 0.25
        if step == 55:
            assert len(read_timehistory(tmp_path / BATCH_LOG)) == 5
        if step == 199:
            assert len(read_timehistory(tmp_path / BATCH_LOG)) == 2
    log.close()


def test_a_bench_of_few_steps_leaves_no_empty_file(tmp_path: Path):
    assert not bench(tmp_path, 9).exists()


def test_steps_between_lines_may_be_chosen(tmp_path: Path):
    log = read_timehistory(bench(tmp_path, 210, "original.every_steps=70"))
    assert [(one.first_step, one.last_step) for one in log] == [(0, 70), (70, 140), (140, 210)]


def train(facts: Facts, last: int, *, status: str | None = "ok", evaluations: tuple[int, ...] = ()) -> str:
    log = LoopLog(facts, wall=HandClock(), now=HandClock(), process=42)
    for step in range(facts.first_step, last):
        log.step(make_step(step))
        log.flush()
        if step + 1 in evaluations:
            log.evaluation(make_evaluation(step + 1))
    if status:
        log.finish(status)
    log.close()
    return (facts.folder / "original/training.log").read_text()


def write_steps(folder: Path, steps: range) -> None:
    """The step file of a start that ended, cut to its checkpoint."""
    with StepWriter(folder / "steps-rank0000.csv", split_phases=False) as file:
        for step in steps:
            file.add(make_step(step))


def test_a_training_tells_speed_loss_and_accuracy(tmp_path: Path):
    lines = train(make_facts(tmp_path, "tbd"), 25, evaluations=(20,)).splitlines()
    assert [line.partition("] ")[2] or line for line in lines[:-1]] == [
        "TimeHistory: 5.00 seconds, 2048.00 examples/second between steps 0 and 10",
        "step: 10        steps_per_second: 2.00        {'train_loss': 9.4296875}",
        "TimeHistory: 5.00 seconds, 2048.00 examples/second between steps 10 and 20",
        "step: 20        steps_per_second: 2.00        {'train_loss': 9.2734375}",
        "step: 20        evaluation metric: {'test_loss': 1.25, 'test_accuracy': 0.7586338141025641}",
        "Run stats:",
    ]
    stats = ast.literal_eval(lines[-1])
    assert list(stats) == [
        *("eval_loss", "eval_acc", "train_loss", "step_timestamp_log", "train_finish_time", "avg_exp_per_second"),
    ]
    assert stats["avg_exp_per_second"] == 2048.0
    assert stats["train_finish_time"] == EPOCH_SECONDS
    assert stats["step_timestamp_log"][0] == f"BatchTimestamp<batch_index: 0, timestamp: {EPOCH_SECONDS - 0.5}>"
    assert [text.split(",")[0][-2:] for text in stats["step_timestamp_log"]] == [" 0", "10", "20"]
    assert len(read_timehistory(tmp_path / "original/training.log")) == 2


def test_an_evaluation_between_two_lines_is_in_none_of_them(tmp_path: Path):
    log = LoopLog(make_facts(tmp_path, "tbd"), wall=HandClock(), now=HandClock())
    for step in range(20):
        later = 4.0 if step >= 15 else 0.0
        log.step(make_step(step)._replace(start_seconds=step / 2 + later))
        if step == 14:
            log.evaluation(make_evaluation(15))
    log.close()
    assert [one.seconds for one in read_timehistory(tmp_path / "original/training.log")] == [5.0, 5.0]


def test_a_long_training_has_a_line_every_hundred_steps(tmp_path: Path):
    text = train(make_facts(tmp_path, "tbd", steps=450000), 250, status="interrupted")
    assert [line.split("        ")[0] for line in text.splitlines() if line.startswith("step")] == [
        "step: 100",
        "step: 200",
    ]
    assert "Run stats" not in text


@pytest.mark.parametrize("status", [None, "interrupted", "ok"])
@pytest.mark.parametrize(("stopped", "first"), [(37, 30), (38, 10), (40, 40), (37, 35), (35, 35), (29, 3), (31, 21)])
def test_a_resumed_run_tells_each_step_once(tmp_path: Path, status: str | None, stopped: int, first: int):
    whole = train(make_facts(tmp_path / "whole", "tbd"), 50, evaluations=(20, 50))
    train(make_facts(tmp_path / "parts", "tbd"), stopped, status=status, evaluations=(20,))
    write_steps(tmp_path / "parts", range(first))
    parts = train(make_facts(tmp_path / "parts", "tbd", first_step=first), 50, evaluations=(20, 50))
    # Statistics are of the last start
    assert parts.splitlines()[:-1] == whole.splitlines()[:-1]


@pytest.mark.parametrize("steps", [None, range(10), range(12, 15), range(14)])
def test_where_earlier_steps_are_lost_the_line_is_of_the_others(tmp_path: Path, steps: range | None):
    train(make_facts(tmp_path, "tbd"), 17, status=None)
    if steps is not None:
        write_steps(tmp_path, steps)
    train(make_facts(tmp_path, "tbd", first_step=15), 40)
    log = read_timehistory(tmp_path / "original/training.log")
    assert [(one.first_step, one.last_step) for one in log] == [(0, 10), (15, 20), (20, 30), (30, 40)]
    assert {one.examples_per_second for one in log} == {2048.0}


def test_an_interval_that_a_pause_lies_in_counts_its_steps(tmp_path: Path):
    """The clock stood still, and a checkpoint was written: neither is a step's time."""
    train(make_facts(tmp_path, "tbd"), 15, status=None)
    write_steps(tmp_path, range(15))
    log = LoopLog(make_facts(tmp_path, "tbd", first_step=15), wall=HandClock(), now=HandClock())
    for step in range(15, 20):
        log.step(make_step(step)._replace(start_seconds=100 + step))
    log.close()
    last = read_timehistory(tmp_path / "original/training.log")[-1]
    assert (last.first_step, last.last_step, last.seconds) == (10, 20, 5 * 0.5 + 4 + 0.5)


def test_a_run_resumed_at_its_end_changes_nothing(tmp_path: Path):
    before = train(make_facts(tmp_path, "tbd"), 50, evaluations=(50,))
    assert train(make_facts(tmp_path, "tbd", first_step=50), 50) == before
