"""The TBD suite's logs: throughput of a bench, the training loop of a training."""

import ast
from pathlib import Path

import pytest

from made_original import BEGAN, make_facts, play
from made_results import make_result, write_run
from trainstone.formats.timehistory import read_timehistory
from trainstone.launch.sweep import write_timehistory

BATCH_LOG = "original/throughput_data/batch_32.log"


def bench(folder: Path, steps: int, *settings: str) -> Path:
    play(make_facts(folder, "tbd", *settings, kind="bench", ranks=1, steps=None), steps, images=32)
    return folder / BATCH_LOG


@pytest.mark.parametrize(("number", "every"), [(10, 10), (19, 10), (199, 10), (200, 100), (399, 100)])
def test_a_bench_writes_what_a_sweep_makes_of_its_steps(tmp_path: Path, number: int, every: int):
    log = [one._replace(stamp=None) for one in read_timehistory(bench(tmp_path, number))]
    assert [one.last_step for one in log] == [every * (line + 1) for line in range(number // every)]
    assert log[0].examples_per_second == 64.0
    run = write_run(tmp_path / "sweep", make_result("x"))
    (tmp_path / "steps-rank0000.csv").rename(run / "steps-rank0000.csv")
    write_timehistory(run, tmp_path / "x.log")
    assert [one._replace(stamp=None) for one in read_timehistory(tmp_path / "x.log")] == log


def test_steps_between_lines_may_be_chosen(tmp_path: Path):
    log = read_timehistory(bench(tmp_path, 210, "original.every_steps=70"))
    assert [(one.first_step, one.last_step) for one in log] == [(0, 70), (70, 140), (140, 210)]


def train(folder: Path, last: int, **changes) -> list[str]:
    play(make_facts(folder, "tbd", steps=changes.pop("steps", 50)), last, **changes)
    return (folder / "original/training.log").read_text().splitlines()


def test_a_training_tells_speed_loss_and_accuracy(tmp_path: Path):
    lines = train(tmp_path, 25, evaluations=(15, 20))
    assert [line.partition("] ")[2] or line for line in lines[:-1]] == [
        "TimeHistory: 5.00 seconds, 2048.00 examples/second between steps 0 and 10",
        "step: 10        steps_per_second: 2.00        {'train_loss': 9.4296875}",
        "step: 15        evaluation metric: {'test_loss': 1.25, 'test_accuracy': 0.7586338141025641}",
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
    assert stats["train_finish_time"] == BEGAN + 3 + 25 / 2 + 8
    assert stats["step_timestamp_log"][0] == f"BatchTimestamp<batch_index: 0, timestamp: {BEGAN + 3}>"
    assert [text.split(",")[0][-2:] for text in stats["step_timestamp_log"]] == [" 0", "10", "20"]
    assert len(read_timehistory(tmp_path / "original/training.log")) == 2


def test_resumed_training_without_its_step_file_keeps_the_numbers_of_steps(tmp_path: Path):
    play(make_facts(tmp_path, "tbd", steps=50, first_step=25), 40, status="interrupted")
    log = read_timehistory(tmp_path / "original/training.log")
    assert [(one.first_step, one.last_step) for one in log] == [(25, 30), (30, 40)]


def test_a_long_training_has_a_line_every_hundred_steps(tmp_path: Path):
    lines = train(tmp_path, 250, status="interrupted", steps=450000)
    assert [line.split("        ")[0] for line in lines if line.startswith("step")] == ["step: 100", "step: 200"]
    assert not [line for line in lines if "Run stats" in line]


def test_a_sweep_s_run_without_steps_or_with_damaged_ones_gives_no_file(tmp_path: Path):
    run = write_run(tmp_path, make_result("x"))
    write_timehistory(run, tmp_path / "x.log")
    (run / "steps-rank0000.csv").write_text("nonsense\n1,2\n")
    write_timehistory(run, tmp_path / "x.log")
    assert not (tmp_path / "x.log").exists()
