"""mlperf.log before MLPerf's own checker: made-up closed runs, real small ones, stopped, killed and resumed ones."""

import random
import signal
from pathlib import Path

import pytest

from command import find_run
from launching import kill_and_resume, start, wait_for_steps
from made_mlperf import RULESETS, check_log, write_closed_log
from nursery import Nursery
from small_training import make_config, set_arguments, train_here
from trainstone.formats.mllog import Event, read_mllog
from trainstone.machine import pagecache
from trainstone.results.store import read_result

SGD = {"optimizer__name": "sgd", "optimizer__learning_rate": 0.8, "optimizer__rate_for": "run"}


def read_log(run: Path) -> dict[str, Event]:
    return {event.key: event for event in read_mllog(run / "mlperf.log")}


def count(run: Path, key: str) -> int:
    return sum(event.key == key for event in read_mllog(run / "mlperf.log"))


@pytest.mark.parametrize("ruleset", RULESETS)
@pytest.mark.parametrize("changes", [{}, SGD], ids=["lars", "sgd"])
def test_a_closed_run_passes(tmp_path: Path, ruleset: str, changes: dict[str, object]):
    log = tmp_path / "result_0.txt"
    write_closed_log(log, seed=3, **changes)
    passed, said = check_log(log, ruleset)
    assert passed, said
    assert "SUCCESS" in said


@pytest.fixture(scope="module")
def reached(nursery: Nursery) -> Path:
    out = nursery.folder / "mlperf-reached"
    arguments = set_arguments(eval__target=0.01, mlperf__org="a lab", mlperf__platform="a laptop")
    ended = nursery.run("train", "demo-classify", *arguments, "--out", str(out))
    assert ended.code == 0, ended.err
    return find_run(out)


@pytest.mark.parametrize("ruleset", ["1.0.0", "2.0.0", "4.0.0"])
def test_a_real_small_run_passes_as_open(reached: Path, ruleset: str):
    passed, said = check_log(reached / "mlperf.log", ruleset)
    assert passed, said
    assert "open_resnet" in said


def test_a_real_run_says_what_it_was(reached: Path):
    log, result = read_log(reached), read_result(reached)
    assert log["submission_division"].value == "open"
    assert (log["submission_org"].value, log["submission_platform"].value) == ("a lab", "a laptop")
    assert (log["train_samples"].value, log["eval_samples"].value, log["global_batch_size"].value) == (96, 43, 8)
    assert log["cache_clear"].value is False
    assert "not cleared" in log["cache_clear"].metadata["told"]
    assert result.quality is not None
    assert log["eval_accuracy"].value == result.quality.value
    assert log["run_stop"].metadata["status"] == "success"
    assert "mlperf.log" in result.files
    told = (reached / "log.txt").read_text()
    assert "mlperf.log: open division: model.depth = 18, not 50; model.num_classes = 10, not 1000; " in told


def test_its_times_are_those_of_the_result(reached: Path):
    log, quality = read_log(reached), read_result(reached).quality
    assert quality is not None
    assert quality.seconds_to_target is not None
    times = [event.time_ms for event in read_mllog(reached / "mlperf.log")]
    assert times == sorted(times)
    assert log["init_start"].time_ms < log["weights_initialization"].time_ms < log["init_stop"].time_ms
    seconds = (log["run_stop"].time_ms - log["run_start"].time_ms) / 1000
    # Between the two clocks nothing is done but writing the head and this line.
    assert seconds == pytest.approx(quality.seconds_to_target, abs=0.5)


def test_stopped_it_is_aborted_and_resumed_it_passes(nursery: Nursery):
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
    assert [event.metadata["epoch_num"] for event in read_mllog(run / "mlperf.log") if event.key == "epoch_stop"] == [
        *range(1, 5)
    ]
    assert count(run, "eval_accuracy") == 4
    passed, said = check_log(run / "mlperf.log", "4.0.0")
    assert passed, said


@pytest.mark.slow
def test_killed_and_resumed_on_two_ranks_it_passes(nursery: Nursery):
    out = nursery.folder / "mlperf-killed"
    kill_and_resume(nursery, 2, 2, out, random.Random(8))
    run = find_run(out)
    keys = [event.key for event in read_mllog(run / "mlperf.log")]
    assert (keys.count("run_start"), keys.count("run_stop")) == (1, 1)
    assert keys.count("epoch_start") == keys.count("epoch_stop") == keys.count("eval_accuracy") == 8
    assert read_log(run)["submission_platform"].value.startswith("2x")
    passed, said = check_log(run / "mlperf.log", "4.0.0")
    assert passed, said


@pytest.mark.parametrize("permitted", [True, False])
def test_the_page_cache_is_cleared_where_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, permitted: bool):
    switch = tmp_path / "drop_caches" if permitted else tmp_path / "gone" / "drop_caches"
    monkeypatch.setattr(pagecache, "SWITCH", switch)  # not this machine's
    monkeypatch.setattr(pagecache.os, "sync", lambda: None)
    config = make_config(mlperf__clear_caches=True, stop__epochs=1.0)
    run = train_here(config, tmp_path / "runs", monkeypatch)
    clear = read_log(run.path)["cache_clear"]
    assert clear.value is permitted
    found = [one.message for one in run.result.findings if one.code == "caches-kept"]
    if permitted:
        assert switch.read_text() == "3"
        assert found == []
    else:
        assert found == [f"mlperf.clear_caches is set, but: {clear.metadata['told']}"]
