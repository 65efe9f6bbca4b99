"""Tests of mlperf.log with MLPerf's compliance checker: generated closed runs, and real small, stopped or resumed runs.

Also `trainstone mlperf` with the real checker, on generated runs and published logs.
"""

import json
import os
import random
import re
import signal
from pathlib import Path

import pytest

from support.builders.damage import real_data
from support.builders.hostile_text import HOSTILE, HOSTILE_NAME, hidden
from support.builders.mlperf_logs import (
    RULESETS,
    check_log,
    closed_log,
    write_closed_log,
    write_mlperf_run,
    write_mlperf_runs,
)
from support.builders.training_runs import make_config, set_arguments, train_here
from support.processes.command import ROOT, find_run
from support.processes.forked import Nursery
from support.processes.launches import kill_and_resume, start, wait_for_steps
from trainstone.formats.mllog import Event, read_mllog
from trainstone.machine import page_cache
from trainstone.results.run_folder import read_result

SGD = {"optimizer__name": "sgd", "optimizer__learning_rate": 0.8, "optimizer__rate_for": "run"}


def read_log(run: Path) -> dict[str, Event]:
    return {event.key: event for event in read_mllog(run / "mlperf.log")}


def count(run: Path, key: str) -> int:
    return sum(event.key == key for event in read_mllog(run / "mlperf.log"))


@pytest.mark.parametrize("ruleset", RULESETS)
@pytest.mark.parametrize("changes", [{}, SGD], ids=["lars", "sgd"])
def test_checker_accepts_closed_run(tmp_path: Path, ruleset: str, changes: dict[str, object]):
    log = tmp_path / "result_0.txt"
    write_closed_log(log, seed=3, **changes)
    passed, output = check_log(log, ruleset)
    assert passed, output
    assert "SUCCESS" in output


@pytest.fixture(scope="module")
def reached(nursery: Nursery) -> Path:
    out = nursery.folder / "mlperf-reached"
    arguments = set_arguments(eval__target=0.01, mlperf__org="a lab", mlperf__platform="a laptop")
    ended = nursery.run("train", "demo-classify", *arguments, "--out", str(out))
    assert ended.code == 0, ended.err
    return find_run(out)


@pytest.mark.parametrize("ruleset", ["1.0.0", "2.0.0", "4.0.0"])
def test_checker_accepts_real_small_run_as_open(reached: Path, ruleset: str):
    passed, output = check_log(reached / "mlperf.log", ruleset)
    assert passed, output
    assert "open_resnet" in output


def test_mlperf_log_real_run_has_values_and_times(reached: Path):
    log, result = read_log(reached), read_result(reached)
    assert log["submission_division"].value == "open"
    assert (log["submission_org"].value, log["submission_platform"].value) == ("a lab", "a laptop")
    assert (log["train_samples"].value, log["eval_samples"].value, log["global_batch_size"].value) == (96, 43, 8)
    assert log["cache_clear"].value is False
    assert "not cleared" in log["cache_clear"].metadata["message"]
    assert result.quality is not None
    assert result.quality.seconds_to_target is not None
    assert log["eval_accuracy"].value == result.quality.value
    assert log["run_stop"].metadata["status"] == "success"
    assert "mlperf.log" in result.files
    log_text = (reached / "log.txt").read_text()
    assert "mlperf.log: open division: model.depth = 18, must be 50; model.num_classes = 10, must be 1000; " in log_text
    # Times agree with the result.
    times = [event.time_ms for event in read_mllog(reached / "mlperf.log")]
    assert times == sorted(times)
    assert log["init_start"].time_ms < log["weights_initialization"].time_ms < log["init_stop"].time_ms
    seconds = (log["run_stop"].time_ms - log["run_start"].time_ms) / 1000
    # Between the two clocks the run only writes the header.
    assert seconds == pytest.approx(result.quality.seconds_to_target, abs=0.5)


def test_mlperf_log_stopped_run_is_aborted_and_resumed_run_passes(nursery: Nursery):
    out = nursery.folder / "mlperf-stopped"
    (child,) = start(nursery, 1, "--out", str(out), steps=48)
    wait_for_steps([child])
    child.send(signal.SIGTERM)
    assert child.wait().code == 75
    run = find_run(out)
    stop = read_log(run)["run_stop"].metadata
    assert (stop["status"], stop["ended"]) == ("aborted", "interrupted")
    began = read_log(run)["run_start"].time_ms
    assert nursery.run("train", "--resume", str(run)).code == 0
    log = read_log(run)
    assert (count(run, "run_start"), count(run, "run_stop"), log["run_start"].time_ms) == (1, 1, began)
    assert count(run, "resumed") == 1
    assert 0 < log["resumed"].metadata["step"] < 48
    events = read_mllog(run / "mlperf.log")
    assert [event.metadata["epoch_num"] for event in events if event.key == "epoch_stop"] == [1, 2, 3, 4]
    assert count(run, "eval_accuracy") == 4
    passed, output = check_log(run / "mlperf.log", "4.0.0")
    assert passed, output


@pytest.mark.slow
def test_mlperf_log_killed_and_resumed_on_two_ranks_passes(nursery: Nursery):
    out = nursery.folder / "mlperf-killed"
    kill_and_resume(nursery, 2, 2, out, random.Random(8))
    run = find_run(out)
    keys = [event.key for event in read_mllog(run / "mlperf.log")]
    assert (keys.count("run_start"), keys.count("run_stop")) == (1, 1)
    assert keys.count("epoch_start") == keys.count("epoch_stop") == keys.count("eval_accuracy") == 8
    assert read_log(run)["submission_platform"].value.startswith("2x")
    passed, output = check_log(run / "mlperf.log", "4.0.0")
    assert passed, output


@pytest.mark.parametrize("permitted", [True, False])
def test_train_clear_caches_clears_page_cache_or_reports_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, permitted: bool
):
    switch = tmp_path / "drop_caches" if permitted else tmp_path / "gone" / "drop_caches"
    monkeypatch.setattr(page_cache, "SWITCH", switch)  # not this machine's
    monkeypatch.setattr(page_cache.os, "sync", lambda: None)
    config = make_config(mlperf__clear_caches=True, stop__epochs=1.0)
    run = train_here(config, tmp_path / "runs", monkeypatch)
    clear = read_log(run.path)["cache_clear"]
    assert clear.value is permitted
    found = [one.message for one in run.result.findings if one.code == "page-cache-kept"]
    if permitted:
        assert switch.read_text() == "3"
        assert found == []
    else:
        assert found == [f"mlperf.clear_caches is set, but: {clear.metadata['message']}"]


@pytest.fixture(scope="module")
def published() -> Path:
    return real_data("mlperf")


def test_docs_mlperf_example_works_on_eight_devices(quick, tmp_path):
    """As one of eight ranks, where --runs is rejected."""
    block = re.search(
        r"```sh\n(.*?)```", (ROOT / "docs/how-to/write-and-check-an-mlperf-log.md").read_text(), re.DOTALL
    )
    assert block is not None
    loop = re.search(r"for seed in ([\d ]+); do trainstone launch local --ranks 8 -- (.*); done", block[1])
    assert loop is not None
    assert len(set(loop[1].split())) == 5
    words = loop[2].replace("$seed", loop[1].split()[-1]).replace("IMAGENET", str(tmp_path)).split()
    rank = {"RANK": "0", "WORLD_SIZE": "8", "LOCAL_RANK": "0"}
    done = quick(*words, "--dry-run", env=rank)
    assert done.code == 0, done.err
    assert "seed = 5" in done.out
    refused = quick(*words, "--runs", "5", env=rank)
    assert refused.code == 2
    assert f"summary {' '.join(['RUN'] * 5)} " in block[1]
    assert "pip install -e '.[mlperf]'" in block[1]


def test_mlperf_check_shows_complaints_of_failed_log(quick, tmp_path):
    runs = write_mlperf_runs(tmp_path, seeds=(1, 2), minutes=(28.0, 29.0))
    (runs / "points/run-2/mlperf.log").write_text(closed_log(2, 29.0, converged=False))
    done = quick("mlperf", "check", "repeated", "--keep", "kept")
    assert done.code == 9
    failed = "WARNING -  Failed checks for eval_accuracy : v['value'] >= 0.7590 and v['value'] < 1.0"
    assert f"         {failed}" in done.out.splitlines()
    assert done.out.splitlines()[-1] == "1 of 2 logs pass"
    kept = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert kept == ["0-points-run-1-mlperf.log.log", "1-points-run-2-mlperf.log.log"]
    document = quick("mlperf", "check", "repeated", "--json").json()
    assert [log["passed"] for log in document["logs"]] == [True, False]
    assert document["passed"] is False
    assert document["logs"][1]["complaints"] == [failed]


def test_mlperf_check_published_logs_pass_their_ruleset(quick, published):
    done = quick("mlperf", "check", str(published / "v0.7"), "--ruleset", "0.7.0", "--json")
    document = done.json()
    assert done.code == 0, done.err
    assert len(document["logs"]) == 13
    assert all(log["passed"] and log["complaints"] == [] for log in document["logs"])


def test_mlperf_check_published_logs_with_automatic_ruleset(quick, published):
    done = quick("mlperf", "check", str(published), "--json")
    assert done.code == 9
    logs = done.json()["logs"]
    by_form = sorted((log for log in logs if re.search(r"v0\.[56]", log["path"])), key=lambda log: log["path"])
    assert "no ruleset of mlperf-logging reads" in by_form[0]["error"]
    assert (by_form[1]["ruleset"], by_form[1]["passed"]) == ("0.6.0", True)
    rest = [log for log in logs if log not in by_form]
    assert {(log["benchmark"], log["ruleset"]) for log in rest} == {("resnet", "4.0.0"), ("ssd", "1.0.0")}
    assert {line for log in rest for line in log["complaints"]} == {
        "WARNING -  Required EXACTLY_ONE occurrence of 'gradient_accumulation_steps' but found 0"
    }


def test_mlperf_summary_reports_damaged_log(quick, tmp_path):
    runs = write_mlperf_runs(tmp_path)
    (runs / "points/run-5/mlperf.log").write_bytes(b":::MLLOG {\0\xff\n")
    done = quick("mlperf", "summary", "repeated", "--json")
    assert done.code == 3
    assert done.err.startswith("warning: not read: repeated/points/run-5/mlperf.log, line 1")
    (group,) = done.json()["groups"]
    assert len(group["runs"]) == 4
    assert len(done.json()["not_read"]) == 1


def test_mlperf_check_empty_folder_does_not_hide_other_logs(quick, tmp_path):
    write_mlperf_run(tmp_path, 1)
    (tmp_path / "empty").mkdir()
    done = quick("mlperf", "check", "run-1", "empty")
    assert done.code == 3
    assert done.out.splitlines()[0] == "SUCCESS  run-1/mlperf.log"
    assert done.out.splitlines()[2].startswith("NOT READ ")
    done = quick("mlperf", "summary", "empty", "run-1")
    assert done.code == 3
    assert "score      none: " in done.out
    assert done.err.count("not read: ") == 1


@pytest.mark.parametrize("verb", ["check", "summary"])
@pytest.mark.parametrize(
    ("make", "code", "message"),
    [
        (lambda path: None, 3, "No such file"),
        (lambda path: path.mkdir(), 3, "no mlperf.log or result_*.txt in"),
        (lambda path: path.write_bytes(os.urandom(4096)), 3, "no MLPerf log line found"),
        (lambda path: path.write_text(2 * closed_log()), 3, "several runs in one log"),
        (lambda path: path.write_text(closed_log()[:-40]), 3, "(last): truncated; the run was killed or is still"),
        (lambda path: path.write_text(':::MLLOG {"time_ms": 1, "key": "seed", "value": 1}\n'), 3, "no run_start in it"),
    ],
    ids=["missing", "empty folder", "binary", "two runs", "torn", "no run"],
)  # fmt: skip
def test_mlperf_invalid_input_is_an_error(quick, tmp_path, verb, make, code, message):
    make(tmp_path / "thing")
    done = quick("mlperf", verb, "thing")
    assert done.code == code, done.err
    assert message in done.err
    assert "Traceback" not in done.err
    assert "thing" in done.err


def test_mlperf_output_escapes_hostile_names_and_values(quick, tmp_path):
    folder = tmp_path / HOSTILE_NAME
    folder.mkdir()
    text = closed_log()
    text = text.replace('"example"', json.dumps(HOSTILE)).replace(
        '"value": "8xMade-up accelerator"', f'"value": {json.dumps(HOSTILE)}'
    )
    (folder / "result_0.txt").write_text(text)
    for arguments in (("check",), ("check", "--json"), ("summary",), ("summary", "--json")):
        done = quick("mlperf", arguments[0], str(folder), *arguments[1:])
        assert done.code == 0, done.err
        assert not hidden(done.out + done.err)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ruleset", "9.0.0"), "one of 0.6.0, 0.7.0"),
        (("--ruleset", "5.0.0"), "--ruleset 5.0.0 has no rules for resnet"),
        (("--field", "cooling=air"), "No such option"),
    ],
)
def test_mlperf_check_rejects_invalid_flag(quick, tmp_path, words, message):
    write_mlperf_run(tmp_path, 1)
    done = quick("mlperf", "check", "run-1", *words)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_mlperf_check_without_checker_shows_install_command(trainstone, tmp_path):
    """A package that cannot be imported behaves like a missing one."""
    write_mlperf_run(tmp_path, 1)
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['mlperf_logging'] = None\n")
    done = trainstone("mlperf", "check", "run-1", env={"PYTHONPATH": str(tmp_path)})
    assert done.code == 4
    assert "pip install 'trainstone[mlperf]'" in done.err
    assert trainstone("mlperf", "summary", "run-1", env={"PYTHONPATH": str(tmp_path)}).code == 0
