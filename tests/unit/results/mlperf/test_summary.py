"""Logs as results: grouped by place and setting, scored and held against the reference."""

import os
from pathlib import Path

import pytest

from made_submission import closed_log, write_mlperf_run, write_mlperf_runs
from trainstone.results.mlperf.find import find_logs
from trainstone.results.mlperf.summary import document_group, group_runs, read_logs


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
    (group,) = summarise(write_mlperf_run(tmp_path, 1, converged=False))
    document = document_group(group)
    assert "reference" not in document
    assert document["reference_note"] == "0 of 1 run reached the target"
    assert "score_minutes" not in document
    assert "mean_minutes" not in document
    (run,) = document["runs"]
    assert (run["ended"], run["epochs"], run["seeds"], run["dropped"]) == ("aborted", 35.0, [1], False)
    assert run["accuracy"] == 0.7584
    assert "best_accuracy" not in run


def test_a_document_has_the_best_accuracy_where_the_last_is_another(tmp_path):
    log = write_mlperf_run(tmp_path, 1, converged=False) / "mlperf.log"
    first, middle, last = log.read_text().rpartition('"key": "eval_accuracy", "value": 0.7584')
    log.write_text(f"{first}{middle.replace('0.7584', '0.75')}{last}")
    (group,) = summarise(log)
    (run,) = document_group(group)["runs"]
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
