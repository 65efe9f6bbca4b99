"""One log as a run: real ones of three generations, and files that are none."""

import json
import os
from pathlib import Path

import pytest

from hostile import EVIL
from trainstone.errors import DataError
from trainstone.results.mlperf.logged import read_logged


def real(name: str) -> Path:
    data = os.environ.get("TRAINSTONE_REAL_DATA")
    if not data:
        pytest.skip("needs TRAINSTONE_REAL_DATA")
    return Path(data) / "mlperf" / name


def write_log(path: Path, *events: tuple, start_ms: int = 1000) -> Path:
    lines = [
        json.dumps({"namespace": "", "time_ms": start_ms + 60_000 * at, "event_type": "POINT_IN_TIME"}
                   | {"key": key, "value": value, "metadata": (more or [{}])[0]})
        for at, (key, value, *more) in enumerate(events)
    ]  # fmt: skip
    path.write_text("".join(f"noise :::MLLOG {line}\n" for line in lines))
    return path


WHOLE = (
    ("submission_benchmark", "resnet"),
    ("seed", 7),
    ("run_start", None),
    ("eval_accuracy", 0.5, {"epoch_num": 3}),
    ("eval_accuracy", 0.76, {"epoch_num": 7}),
    ("run_stop", None, {"status": "success"}),
)


def test_a_log_of_today():
    run = read_logged(real("v0.7/NVIDIA/results/dgxa100_ngc20.06_mxnet/resnet/result_0.txt"))
    assert (run.form, run.benchmark, run.division, run.org) == ("0.7", "resnet", "closed", "NVIDIA")
    assert (run.global_batch, run.train_samples, run.optimizer) == (3264, 1_281_167, "sgd")
    assert run.converged
    assert run.minutes == pytest.approx(39.44438, abs=1e-4)
    assert (run.epochs, run.accuracy) == (41, 0.76146)
    assert run.images_per_second == pytest.approx(1_281_167 * 41 / (39.44438 * 60), rel=1e-4)


def test_a_log_of_0_6():
    run = read_logged(real("v0.6/nvidia-ssd/result_0.txt"))
    assert (run.form, run.benchmark, run.org, run.ended) == ("0.6", "ssd", "NVIDIA", "success")
    assert run.minutes == pytest.approx(22.459, abs=1e-3)
    assert run.images_per_second is None  # it does not say how many pictures


def test_a_log_of_0_5():
    run = read_logged(real("v0.5/google-resnet/result_0.txt"))
    assert (run.form, run.benchmark, run.division) == ("0.5", "resnet", None)
    assert run.minutes == pytest.approx(301.517, abs=1e-3)
    assert run.accuracy == pytest.approx(0.75114, abs=1e-5)


def test_what_the_log_does_not_say_is_none(tmp_path):
    run = read_logged(write_log(tmp_path / "log", ("run_start", None)))
    assert (run.benchmark, run.ended, run.stop_ms, run.minutes, run.accuracy, run.epochs) == (None,) * 6
    assert not run.converged
    assert run.seeds == ()


def test_accuracy_and_epoch_are_of_one_evaluation(tmp_path):
    events = (*WHOLE[:3], ("eval_accuracy", 0.7, {"epoch_num": 3}), ("eval_accuracy", 0.6, {"epoch_num": 7}))
    run = read_logged(write_log(tmp_path / "log", *events, ("run_stop", None, {"status": "aborted"})))
    assert (run.accuracy, run.epochs, run.converged, run.minutes) == (0.6, 7, False, 3.0)
    assert run.best_accuracy == 0.7


def test_what_is_judged_after_the_target_was_reached_does_not_count(tmp_path):
    later = ("eval_accuracy", 0.7, {"epoch_num": 11})
    run = read_logged(write_log(tmp_path / "log", *WHOLE, later))
    assert (run.accuracy, run.epochs, run.best_accuracy, len(run.accuracies)) == (0.76, 7, 0.76, 3)


def test_a_run_that_was_taken_up_again_is_told(tmp_path):
    again = (*WHOLE[:4], ("resumed", None, {"step": 40}), *WHOLE[4:])
    assert read_logged(write_log(tmp_path / "again.log", *again)).resumed == 1
    assert read_logged(write_log(tmp_path / "whole.log", *WHOLE)).resumed == 0


def test_values_of_another_kind_are_not_taken(tmp_path):
    odd = (("submission_org", 5), ("global_batch_size", "many"), ("train_samples", -3), ("seed", True))
    run = read_logged(write_log(tmp_path / "log", *odd, *WHOLE[2:4], ("eval_accuracy", "good", {"epoch_num": 9})))
    assert (run.org, run.global_batch, run.train_samples, run.seeds) == (None, None, None, ())
    assert run.accuracies == (0.5,)


@pytest.mark.parametrize(
    ("events", "told"),
    [
        (WHOLE + WHOLE, "several runs in one log: 2 times run_start, 2 times run_stop"),
        (WHOLE[:3] + WHOLE[2:], "several runs in one log: 2 times run_start, 1 time run_stop"),
        (WHOLE[:2], "no run_start in it"),
        ((WHOLE[5], WHOLE[2]), "run_stop comes before run_start"),
    ],
)
def test_what_is_not_one_run_is_refused(tmp_path, events, told):
    with pytest.raises(DataError, match=told):
        read_logged(write_log(tmp_path / "log", *events))


@pytest.mark.parametrize("content", [b"", b"hello\n", b"\0" * 5000, bytes(range(256)) * 40, b":::MLLOG {\n"])
def test_what_is_no_log_is_refused(tmp_path, content):
    (tmp_path / "log").write_bytes(content)
    with pytest.raises(DataError):
        read_logged(tmp_path / "log")


def test_hostile_values_are_kept_as_they_are(tmp_path):
    run = read_logged(write_log(tmp_path / "log", ("submission_platform", EVIL), *WHOLE))
    assert run.platform == EVIL  # whoever prints it makes it harmless
