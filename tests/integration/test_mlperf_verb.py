"""trainstone mlperf through the command line, with MLPerf's real checkers, on made-up runs and others' real logs."""

import json
import os
import re
from pathlib import Path

import pytest

from command import ROOT
from damage import real_data
from hostile import EVIL, EVIL_NAME, hidden
from made_mlperf import closed_log, write_mlperf_run, write_mlperf_runs


@pytest.fixture(scope="module")
def published() -> Path:
    return real_data("mlperf")


def test_the_documents_first_example_works_on_eight_devices(quick, tmp_path):
    """As one of eight ranks; --runs would be refused there."""
    block = re.search(r"```sh\n(.*?)```", (ROOT / "docs/mlperf.md").read_text(), re.DOTALL)
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


def test_check_of_points_shows_what_the_checker_says_of_the_one_that_fails(quick, tmp_path):
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


def test_other_peoples_logs_by_the_rules_of_their_round(quick, published):
    done = quick("mlperf", "check", str(published / "v0.7"), "--ruleset", "0.7.0", "--json")
    document = done.json()
    assert done.code == 0, done.err
    assert len(document["logs"]) == 13
    assert all(log["passed"] and log["complaints"] == [] for log in document["logs"])


def test_other_peoples_logs_by_our_choice_of_rules(quick, published):
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


def test_summary_of_runs_one_of_them_damaged(quick, tmp_path):
    runs = write_mlperf_runs(tmp_path)
    (runs / "points/run-5/mlperf.log").write_bytes(b":::MLLOG {\0\xff\n")
    done = quick("mlperf", "summary", "repeated", "--json")
    assert done.code == 3
    assert done.err.startswith("warning: not read: repeated/points/run-5/mlperf.log, line 1")
    (group,) = done.json()["groups"]
    assert len(group["runs"]) == 4
    assert len(done.json()["not_read"]) == 1


def test_a_folder_without_logs_does_not_keep_the_others_from_being_told(quick, tmp_path):
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
    ("make", "code", "told"),
    [
        (lambda path: None, 3, "No such file"),
        (lambda path: path.mkdir(), 3, "no mlperf.log or result_*.txt in"),
        (lambda path: path.write_bytes(os.urandom(4096)), 3, "no MLPerf log line in it"),
        (lambda path: path.write_text(2 * closed_log()), 3, "several runs in one log"),
        (lambda path: path.write_text(closed_log()[:-40]), 3, "the last: cut off: the run was killed, or still writes"),
        (lambda path: path.write_text(':::MLLOG {"time_ms": 1, "key": "seed", "value": 1}\n'), 3, "no run_start in it"),
    ],
    ids=["missing", "empty folder", "binary", "two runs", "torn", "no run"],
)  # fmt: skip
def test_wrong_input_is_named_and_refused(quick, tmp_path, verb, make, code, told):
    make(tmp_path / "thing")
    done = quick("mlperf", verb, "thing")
    assert done.code == code, done.err
    assert told in done.err
    assert "Traceback" not in done.err
    assert "thing" in done.err


def test_names_and_values_of_strangers_are_made_harmless(quick, tmp_path):
    folder = tmp_path / EVIL_NAME
    folder.mkdir()
    text = closed_log()
    text = text.replace('"somebody"', json.dumps(EVIL)).replace(
        '"value": "8xMade-up accelerator"', f'"value": {json.dumps(EVIL)}'
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
        (("--ruleset", "5.0.0"), "--ruleset 5.0.0 has no resnet"),
        (("--field", "cooling=air"), "No such option"),
    ],
)
def test_wrong_flags(quick, tmp_path, words, message):
    write_mlperf_run(tmp_path, 1)
    done = quick("mlperf", "check", "run-1", *words)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_without_the_checkers_it_says_what_to_install(trainstone, tmp_path):
    """A package of that name that cannot be imported stands for one that is not there."""
    write_mlperf_run(tmp_path, 1)
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['mlperf_logging'] = None\n")
    done = trainstone("mlperf", "check", "run-1", env={"PYTHONPATH": str(tmp_path)})
    assert done.code == 4
    assert "pip install 'trainstone[mlperf]'" in done.err
    assert trainstone("mlperf", "summary", "run-1", env={"PYTHONPATH": str(tmp_path)}).code == 0
