"""What `trainstone mlperf` calls runs and how it writes minutes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from made_mlperf_ssd import write_ssd_log
from trainstone.cli.mlperfing import make_table, name_runs, print_groups
from trainstone.cli.mlperftimes import COLUMNS, list_cells, tell_evaluations
from trainstone.results.mlperf.logged import LoggedRun, read_logged
from trainstone.results.mlperf.summary import make_group
from trainstone.results.mlperf.times import JudgedAt, Times


def make_run(path: str, seeds: tuple[int, ...] = ()) -> LoggedRun:
    absent: dict[str, Any] = dict.fromkeys(("division", "org", "platform", "status", "global_batch", "train_samples"))
    absent |= dict.fromkeys(("benchmark", "optimizer", "ended", "stop_ms", "epochs"))
    return LoggedRun(path=Path(path), form="0.7", seeds=seeds, start_ms=0, accuracies=(), **absent)


@pytest.mark.parametrize(
    ("runs", "names"),
    [
        ([make_run("x/result_0.txt"), make_run("x/result_1.txt")], ["result_0.txt", "result_1.txt"]),
        ([make_run("a/mlperf.log", (1,)), make_run("b/mlperf.log", (2,))], ["seed 1", "seed 2"]),
        ([make_run("a/mlperf.log", (1,)), make_run("b/mlperf.log", (1,))], ["a", "b"]),
        ([make_run("a/mlperf.log", (1, 2)), make_run("b/mlperf.log")], ["a", "b"]),
    ],
)
def test_runs_have_names_that_tell_them_apart(runs, names):
    assert name_runs(runs) == names


@pytest.mark.parametrize(
    ("minutes", "told"),
    [
        ((39.7797, 0.5, 1146.58345), ["39.78", "0.50", "1146.58"]),
        ((0.01234, 0.009), ["0.0123", "0.0090"]),
        ((0.0, None), ["0.00", "–"]),
    ],
)
def test_minutes_of_a_column_have_the_same_decimals(minutes, told):
    stops = [None if value is None else round(value * 60_000) for value in minutes]
    runs = [replace(make_run(f"r/result_{at}.txt", (at,)), stop_ms=stop) for at, stop in enumerate(stops)]
    assert list(make_table(make_group(tuple(runs))).columns[1].cells) == told


def test_a_narrow_terminal_breaks_no_name(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    name = "20261116-174136-resnet50-mlperf-a-rather-long-name"
    runs = [make_run(f"{name}-{letter}/mlperf.log") for letter in "ab"]
    print_groups([make_group(tuple(runs))])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith(f"{name}-a ")
    assert lines[2].rstrip().endswith("not ended")
    assert lines[4].startswith("score ")


def test_times_stand_below_the_score(capsys, tmp_path: Path):
    write_ssd_log(tmp_path / "mlperf.log")
    print_groups([make_group((read_logged(tmp_path / "mlperf.log"),))])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3].startswith("reference ")
    assert lines[-2].split()[:10] == ["seconds", *COLUMNS]
    cells = ["8", "1024", "1584.0", "1524.0", "60.0", "30.4", "30.4", "1518.0", "3.0"]
    assert lines[-1].split()[2:] == [*cells, "40:", "3.0", "0.1841;", "50:", "3.0", "0.2301"]


def test_a_run_that_missed_its_target_has_a_word_in_place_of_a_time():
    run = replace(make_run("a/result_0.txt"), ended="aborted", times=Times(converge=5.0))
    assert list_cells(run)[3] == "aborted"
    assert list_cells(replace(run, ended=None))[3] == "not ended"


def test_of_many_evaluations_the_last_are_shown():
    told = tell_evaluations([JudgedAt(at, None, at / 100) for at in range(1, 12)])
    assert told.startswith("…; 4: – 0.0400; 5: – ")
    assert told.endswith("; 11: – 0.1100")
