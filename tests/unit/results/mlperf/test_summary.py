"""Logs as results: grouped by place and setting, scored and held against the reference."""

import os
from pathlib import Path

import pytest

from made_mlperf import make_logged
from made_mlperf_ssd import write_ssd_log
from made_submission import closed_log, write_mlperf_run, write_mlperf_runs
from trainstone.results.mlperf.logged import JudgedAt, Times, find_logs, read_logged, read_logs
from trainstone.results.mlperf.score import olympic_mean, score_runs
from trainstone.results.mlperf.summary import (
    RUN_COLUMNS,
    TIME_COLUMNS,
    document_group,
    group_runs,
    list_run_rows,
    list_time_rows,
    make_group,
)


def summarise(*paths):
    logs, empty = find_logs(list(paths))
    runs, errors = read_logs(logs)
    assert not errors
    assert not empty
    return group_runs(runs)


def test_published_results_are_found_again():
    data = os.environ.get("TRAINSTONE_REAL_DATA")
    if not data:
        pytest.skip("needs TRAINSTONE_REAL_DATA")
    groups = {group.name: group for group in summarise(Path(data) / "mlperf")}
    assert sum(len(group.runs) for group in groups.values()) == 15
    assert f"{groups['dgxa100_ngc20.06_mxnet'].score.minutes:.2f}" == "39.78"
    assert f"{groups['dgxa100_ngc20.06_pytorch'].score.minutes:.2f}" == "10.21"
    one = groups["modelarts_512_mindspore_close"]
    assert (one.score.minutes, f"{one.score.mean_minutes:.2f}") == (None, "1.59")


def test_points_of_a_run_are_one_result(tmp_path):
    (group,) = summarise(write_mlperf_runs(tmp_path))
    assert group.name == "8xMade-up accelerator"
    assert group.score.minutes == pytest.approx(29.0, abs=0.01)
    assert group.judgement is not None
    assert group.judgement.passes
    assert "MLPerf multiplies the time by 1.00" in group.reference_note


def test_runs_of_another_batch_are_another_result(tmp_path):
    write_mlperf_run(tmp_path, 1)
    write_mlperf_run(tmp_path, 2)
    write_mlperf_run(tmp_path, 3, batch=4096, epochs=40)
    groups = summarise(tmp_path)
    assert [len(group.runs) for group in groups] == [2, 1]
    assert groups[0].score.note == "no score: resnet needs 5 runs, here are 2"
    assert groups[0].reference_note.endswith("(judged for 5 runs, not 2)")
    assert "between batches 3,264 and 32,768" in groups[1].reference_note


def test_epochs_below_the_least_are_said_to_be_refused(tmp_path):
    (group,) = summarise(write_mlperf_runs(tmp_path, epochs=34))
    assert group.judgement is not None
    assert not group.judgement.passes
    assert group.reference_note.endswith("faster than its least of 34.3, which MLPerf refuses")


def test_a_document_has_only_what_the_logs_say(tmp_path):
    log = write_mlperf_run(tmp_path, 1, converged=False) / "mlperf.log"
    document = document_group(*summarise(log))
    assert document["reference_note"] == "0 of 1 run reached the target"
    assert not {"reference", "score_minutes", "mean_minutes"} & set(document)
    (run,) = document["runs"]
    assert (run["ended"], run["epochs"], run["seeds"], run["dropped"]) == ("aborted", 35.0, [1], False)
    assert run["accuracy"] == 0.7584
    assert "best_accuracy" not in run
    first, middle, last = log.read_text().rpartition('"key": "eval_accuracy", "value": 0.7584')
    log.write_text(f"{first}{middle.replace('0.7584', '0.75')}{last}")
    (run,) = document_group(*summarise(log))["runs"]
    assert run["accuracy"] == 0.75
    assert 0.75 < run["best_accuracy"] < 0.759


def test_copies_of_one_log_have_no_score(tmp_path):
    for number in range(5):
        (tmp_path / f"result_{number}.txt").write_text(closed_log(1, 28.0))
    (group,) = summarise(tmp_path)
    told = "result_0.txt and result_1.txt are the same run: they say the same, to the millisecond"
    assert (group.score.minutes, group.score.note, group.score.dropped) == (None, f"no score: {told}", ())
    assert group.score.mean_minutes == pytest.approx(28.0, abs=0.01)
    assert (group.judgement, group.reference_note) == (None, f"none: {told}")


def test_runs_of_one_seed_have_no_score(tmp_path):
    folder = write_mlperf_runs(tmp_path)
    (folder / "points/run-4/mlperf.log").write_text(closed_log(2, 33.0))
    (group,) = summarise(folder)
    assert group.score.minutes is None
    assert group.score.note == (
        "no score: run-2/mlperf.log and run-4/mlperf.log have the same seed 2: every run needs its own"
    )


def test_logs_without_a_seed_are_told_apart_by_what_else_they_say(tmp_path):
    for number in range(5):
        lines = closed_log(1, 28.0 + number).splitlines(keepends=True)
        kept = [line for line in lines if '"key": "seed"' not in line]
        (tmp_path / f"result_{number}.txt").write_text("".join(kept))
    (group,) = summarise(tmp_path)
    assert group.runs[0].seeds == ()
    assert group.score.minutes == pytest.approx(30.0, abs=0.01)


def test_logs_of_two_submitters_are_two_results(tmp_path):
    for number in range(5):
        text = closed_log(number, 28.0 + number)
        (tmp_path / f"result_{number}.txt").write_text(text.replace('"somebody"', '"else"') if number == 4 else text)
    groups = summarise(tmp_path)
    assert [(group.runs[0].org, len(group.runs), group.score.minutes) for group in groups] == [
        ("somebody", 4, None),
        ("else", 1, None),
    ]


def test_a_document_of_five(tmp_path):
    (group,) = summarise(write_mlperf_runs(tmp_path))
    document = document_group(group)
    assert [run["dropped"] for run in document["runs"]] == [False, False, False, True, True]
    assert document["reference"]["how"] == "recorded"
    assert document["reference"]["reference_epochs"] == pytest.approx(35.1538, abs=1e-4)


def test_the_fastest_and_the_slowest_of_five_are_left_out():
    score = score_runs("resnet", [39.44, 39.42, 39.33, 40.57, 40.47])
    assert score.minutes == pytest.approx((39.44 + 39.42 + 40.47) / 3)
    assert score.dropped == (2, 3)
    assert score.mean_minutes == pytest.approx(39.846)
    assert score.note == "mean of 3 of 5 runs: the fastest and the slowest are left out"


def test_one_run_that_missed_the_target_is_the_slowest():
    score = score_runs("ssd", [10.0, None, 12.0, 11.0, 13.0])
    assert score.minutes == pytest.approx(12.0)
    assert score.dropped == (0, 1)
    assert score.mean_minutes == pytest.approx(11.5)
    assert "which missed the target" in score.note


@pytest.mark.parametrize(
    ("benchmark", "minutes", "note", "mean"),
    [
        ("resnet", [1.0, None, None, 2.0, 3.0], "no score: 2 of 5 runs missed the target, one may", 2.0),
        ("resnet", [1.0, 2.0, 3.0, 4.0], "no score: resnet needs 5 runs, here are 4", 2.5),
        ("resnet", [1.0] * 6, "no score: resnet needs 5 runs, here are 6", 1.0),
        ("ssd", [None], "no score: ssd needs 5 runs, here is 1", None),
        ("bert", [1.0] * 10, "how many runs a score of bert needs is not known here", 1.0),
        (None, [1.0] * 5, "how many runs a score of this needs is not known here", 1.0),
    ],
)
def test_where_there_is_no_score_it_says_why(benchmark, minutes, note, mean):
    score = score_runs(benchmark, minutes)
    assert (score.minutes, score.note, score.mean_minutes, score.dropped) == (None, note, mean, ())


@pytest.mark.parametrize(("values", "mean"), [([3.0], 3.0), ([1.0, 2.0], 1.5), ([9.0, 1.0, 2.0], 2.0)])
def test_olympic_mean_of_few_values(values, mean):
    assert olympic_mean(values) == mean


def column(rows: list[list[str]], columns: tuple[str, ...], name: str) -> list[str]:
    return [row[columns.index(name)] for row in rows]


@pytest.mark.parametrize(
    ("paths", "seeds", "names"),
    [
        (["x/result_0.txt", "x/result_1.txt"], [(), ()], ["result_0.txt", "result_1.txt"]),
        (["a/mlperf.log", "b/mlperf.log"], [(1,), (2,)], ["seed 1", "seed 2"]),
        (["a/mlperf.log", "b/mlperf.log"], [(1,), (1,)], ["a", "b"]),
        (["a/mlperf.log", "b/mlperf.log"], [(1, 2), ()], ["a", "b"]),
    ],
)
def test_runs_have_names_that_tell_them_apart(paths, seeds, names):
    runs = tuple(make_logged(path, seeds=seed) for path, seed in zip(paths, seeds, strict=True))
    assert column(list_run_rows(make_group(runs)), RUN_COLUMNS, "log") == names


@pytest.mark.parametrize(
    ("minutes", "shown"),
    [
        ((39.7797, 0.5, 1146.58345), ["39.78", "0.50", "1146.58"]),
        ((0.01234, 0.009), ["0.0123", "0.0090"]),
        ((0.0, None), ["0.00", "–"]),
    ],
)
def test_minutes_of_a_column_have_the_same_decimals(minutes, shown):
    stops = [None if value is None else round(value * 60_000) for value in minutes]
    runs = [make_logged(f"r/result_{at}.txt", seeds=(at,), stop_ms=stop) for at, stop in enumerate(stops)]
    rows = list_run_rows(make_group(tuple(runs)))
    assert column(rows, RUN_COLUMNS, "minutes") == shown


def test_times_have_the_columns_of_mll_status(tmp_path: Path):
    write_ssd_log(tmp_path / "mlperf.log")
    (row,) = list_time_rows(make_group((read_logged(tmp_path / "mlperf.log"),)))
    cells = ["8", "1024", "1584.0", "1524.0", "60.0", "30.4", "30.4", "1518.0", "3.0"]
    assert row == ["seed 1", *cells, "40: 3.0 0.1841; 50: 3.0 0.2301"]
    assert list_time_rows(make_group((make_logged(),))) == []


@pytest.mark.parametrize(("ended", "shown"), [("aborted", "aborted"), (None, "not ended")])
def test_a_run_that_missed_its_target_has_a_word_in_place_of_a_time(ended, shown):
    evaluations = tuple(JudgedAt(at, None, at / 100) for at in range(1, 12))
    group = make_group((make_logged(ended=ended, times=Times(converge=5.0, evaluations=evaluations)),))
    (row,) = list_time_rows(group)
    assert row[TIME_COLUMNS.index("converge")] == shown
    assert row[-1].startswith("…; 4: – 0.0400; 5: – ")
    assert row[-1].endswith("; 11: – 0.1100")
