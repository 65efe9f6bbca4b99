"""MLPerf logs: find and read real logs of three versions, made-up logs, and invalid files."""

import json
from pathlib import Path

import pytest

from support.builders.damage import real_data
from support.builders.hostile_text import HOSTILE
from trainstone.errors import DataError
from trainstone.formats.mllog import Event, find_event_kind
from trainstone.results.mlperf.logs import KEYS, LoggedEvaluation, Times, find_logs, measure_times, read_logged


def real(name: str = "") -> Path:
    return real_data("mlperf") / name


def touch(*paths):
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return list(paths)


def test_find_logs_returns_files_runs_points_and_trees_in_order(tmp_path):
    (own,) = touch(tmp_path / "a/mlperf.log")
    touch(tmp_path / "a/result.json", tmp_path / "a/original/result_0.txt")
    points = touch(tmp_path / "b/points/p2/mlperf.log", tmp_path / "b/points/p10/mlperf.log")
    results = touch(*(tmp_path / f"x/resnet/result_{number}.txt" for number in (2, 10)))
    touch(tmp_path / "x/resnet/other.txt", tmp_path / "x/systems/s.json")
    given = [tmp_path / "gone", tmp_path / "b", tmp_path / "a", tmp_path / "x"]
    assert find_logs(given) == ([tmp_path / "gone", *points, own, *results], {})


def test_find_logs_returns_error_for_folder_without_logs(tmp_path):
    (log,) = touch(tmp_path / "good/mlperf.log")
    touch(tmp_path / "other/result.json")
    (tmp_path / "empty").mkdir()
    logs, errors = find_logs([tmp_path / "empty", tmp_path / "good", tmp_path / "other"])
    assert logs == [log]
    assert list(errors) == [tmp_path / "empty", tmp_path / "other"]
    messages = [err.message.split(" in ")[0] for err in errors.values()]
    assert messages == ["no mlperf.log or result_*.txt", "no mlperf.log"]


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


def test_read_logged_reads_three_log_versions():
    today = read_logged(real("v0.7/NVIDIA/results/dgxa100_ngc20.06_mxnet/resnet/result_0.txt"))
    assert (today.form, today.benchmark, today.division, today.org) == ("0.7", "resnet", "closed", "NVIDIA")
    assert (today.global_batch, today.train_samples, today.optimizer) == (3264, 1_281_167, "sgd")
    assert today.converged
    assert today.minutes == pytest.approx(39.44438, abs=1e-4)
    assert (today.epochs, today.accuracy) == (41, 0.76146)
    assert today.images_per_second == pytest.approx(1_281_167 * 41 / (39.44438 * 60), rel=1e-4)
    old = read_logged(real("v0.6/nvidia-ssd/result_0.txt"))
    assert (old.form, old.benchmark, old.org, old.ended) == ("0.6", "ssd", "NVIDIA", "success")
    assert old.minutes == pytest.approx(22.459, abs=1e-3)
    assert old.images_per_second is None  # the log has no train_samples
    oldest = read_logged(real("v0.5/google-resnet/result_0.txt"))
    assert (oldest.form, oldest.benchmark, oldest.division) == ("0.5", "resnet", None)
    assert oldest.minutes == pytest.approx(301.517, abs=1e-3)
    assert oldest.accuracy == pytest.approx(0.75114, abs=1e-5)


def test_read_logged_returns_none_for_missing_events(tmp_path):
    run = read_logged(write_log(tmp_path / "log", ("run_start", None)))
    assert (run.benchmark, run.ended, run.stop_ms, run.minutes, run.accuracy, run.epochs) == (None,) * 6
    assert not run.converged
    assert run.seeds == ()


def test_read_logged_uses_last_evaluation_before_run_stop(tmp_path):
    events = (*WHOLE[:3], ("eval_accuracy", 0.7, {"epoch_num": 3}), ("eval_accuracy", 0.6, {"epoch_num": 7}))
    run = read_logged(write_log(tmp_path / "log", *events, ("run_stop", None, {"status": "aborted"})))
    assert (run.accuracy, run.epochs, run.converged, run.minutes) == (0.6, 7, False, 3.0)
    run = read_logged(write_log(tmp_path / "log", *WHOLE, ("eval_accuracy", 0.7, {"epoch_num": 11})))
    assert (run.accuracy, run.epochs, len(run.times.evaluations), run.resumed) == (0.76, 7, 3, 0)
    assert read_logged(write_log(tmp_path / "log", *WHOLE[:4], ("resumed", None), *WHOLE[4:])).resumed == 1


def test_read_logged_ignores_wrong_types_and_keeps_hostile_text(tmp_path):
    odd = (("submission_org", 5), ("global_batch_size", "many"), ("train_samples", -3), ("seed", True))
    odd = (*odd, ("submission_platform", HOSTILE))
    run = read_logged(write_log(tmp_path / "log", *odd, *WHOLE[2:4], ("eval_accuracy", "good", {"epoch_num": 9})))
    assert (run.org, run.global_batch, run.train_samples, run.seeds) == (None, None, None, ())
    assert [one.accuracy for one in run.times.evaluations] == [0.5]
    assert run.platform == HOSTILE  # escaped when printed


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (WHOLE + WHOLE, "several runs in one log"),
        (WHOLE[:3] + WHOLE[2:], "several runs in one log"),
        (WHOLE[:2], "no run_start in it"),
        ((WHOLE[5], WHOLE[2]), "run_stop comes before run_start"),
    ],
)
def test_read_logged_rejects_log_without_exactly_one_run(tmp_path, events, message):
    log, num_open = write_log(tmp_path / "log", *events), len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(DataError, match=message) as caught:
        read_logged(log)
    assert caught.type is DataError
    assert len(list(Path("/proc/self/fd").iterdir())) == num_open  # the caught error does not keep the file open


def make_events(*given: tuple[float, str, object, object]) -> dict[str, list[Event]]:
    """Make events from seconds, key, value and epoch."""
    events: dict[str, list[Event]] = {key: [] for key in KEYS}
    for seconds, key, value, epoch in given:
        metadata = {} if epoch is None else {"epoch_num": epoch}
        events[key].append(Event(key, value, find_event_kind(key), int(seconds * 1000), metadata))
    return events


TIMED = make_events(
    *[(0, "init_start", None, None), (0.5, "init_start", None, None), (20, "init_stop", None, None)],
    *[(21, "run_start", None, None), (22, "epoch_start", None, 1), (23, "epoch_start", None, 1)],
    *[(72, "epoch_stop", None, 1), (72, "epoch_start", None, 2), (112, "epoch_stop", None, 2)],
    *[(112, "epoch_start", None, 3), (150, "epoch_stop", None, 3), (150, "epoch_start", None, 4)],
    *[(180, "epoch_stop", None, 4), (180, "eval_start", None, 4), (181, "epoch_start", None, 5)],
    *[(191, "eval_stop", None, 4), (191, "eval_accuracy", 0.2, 4), (301, "epoch_stop", None, 5)],
    *[(301, "eval_start", None, 5), (308, "eval_accuracy", 0.23, 5), (309, "run_stop", None, None)],
)


def test_measure_times_returns_all_times():
    assert measure_times(TIMED) == Times(
        devices=2,
        total_seconds=309.0,
        converge_seconds=288.0,
        init_seconds=20.0,
        first_epoch_seconds=50.0,
        mean_epoch_seconds=39.0,  # epochs 2 and 3: the fourth is evaluated
        train_seconds=50.0 + 40 + 38 + 30 + 120,
        evaluations=(LoggedEvaluation(4, 11.0, 0.2), LoggedEvaluation(5, 7.0, 0.23)),  # the second has no eval_stop
    )


@pytest.mark.parametrize(
    ("events", "times"),
    [
        (make_events((5, "run_start", None, None)), Times()),
        (make_events((5, "epoch_stop", None, 1), (5, "eval_stop", None, 1)), Times()),
        (make_events((9, "init_start", None, None), (5, "init_stop", None, None), (3, "run_stop", 0, None)), Times()),
        (make_events((1, "epoch_start", None, "x")), Times()),
        (make_events((5, "eval_accuracy", 0.5, None)), Times(evaluations=(LoggedEvaluation(None, None, 0.5),))),
    ],
)
def test_measure_times_returns_none_for_missing_events(events, times):
    assert measure_times(events) == times


def test_measure_times_of_published_logs_matches_known_values():
    logs = [*real().glob("v0.6/**/*ssd*/**/result_*.txt"), *sorted(real().glob("v0.7/**/ssd/result_*.txt"))]
    old, *new = [read_logged(log).times for log in logs]
    assert {one.devices for one in (old, *new)} == {8}
    assert [one.epoch for one in old.evaluations] == [33, 44, 50]
    seconds = (old.converge_seconds, old.init_seconds, old.mean_epoch_seconds)
    assert [f"{value:.1f}" for value in seconds] == ["1347.5", "20.0", "26.6"]
    evaluated = [([one.epoch for one in times.evaluations], f"{times.mean_epoch_seconds:.0f}") for times in new]
    assert evaluated == [([40, 50], "12")] * 5
