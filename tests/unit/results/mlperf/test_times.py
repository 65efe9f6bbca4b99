"""Where the time of a run went, as its log tells it."""

import os
from pathlib import Path

import pytest

from made_mlperf_ssd import write_ssd_log
from trainstone.formats.mllog import Event, kind_of
from trainstone.results.mlperf.logged import read_logged
from trainstone.results.mlperf.times import JudgedAt, Times, document_times, measure_times


def make_events(*told: tuple[float, str, object, float | None]) -> list[Event]:
    """Events of seconds, key, value and epoch."""
    return [
        Event(key, value, kind_of(key), int(seconds * 1000), {} if epoch is None else {"epoch_num": epoch})
        for seconds, key, value, epoch in told
    ]


WHOLE = make_events(
    *[(0, "init_start", None, None), (0.5, "init_start", None, None), (20, "init_stop", None, None)],
    *[(21, "run_start", None, None), (22, "epoch_start", None, 1), (23, "epoch_start", None, 1)],
    *[(72, "epoch_stop", None, 1), (72, "epoch_start", None, 2), (112, "epoch_stop", None, 2)],
    *[(112, "epoch_start", None, 3), (150, "epoch_stop", None, 3), (150, "epoch_start", None, 4)],
    *[(180, "epoch_stop", None, 4), (180, "eval_start", None, 4), (181, "epoch_start", None, 5)],
    *[(191, "eval_stop", None, 4), (191, "eval_accuracy", 0.2, 4), (301, "epoch_stop", None, 5)],
    *[(301, "eval_start", None, 5), (308, "eval_accuracy", 0.23, 5), (309, "run_stop", None, None)],
)


def test_every_part():
    assert measure_times(WHOLE) == Times(
        devices=2,
        total=309.0,
        converge=288.0,
        init=20.0,
        first_epoch=50.0,
        epoch=39.0,  # epochs 2 and 3: the fourth is judged
        train=50.0 + 40 + 38 + 30 + 120,
        evaluations=(JudgedAt(4, 11.0, 0.2), JudgedAt(5, 7.0, 0.23)),  # the second says no eval_stop
    )


def test_a_run_that_is_judged_after_each_epoch_has_a_mean_of_all_but_the_first():
    told = [(10.0 * at, key, None, at) for at in (1, 2, 3) for key in ("epoch_start",)]
    told += [(10.0 * at + at, "epoch_stop", None, at) for at in (1, 2, 3)]
    told += [(10.0 * at + 5, "eval_accuracy", 0.1, at) for at in (1, 2, 3)]
    assert measure_times(make_events(*sorted(told))).epoch == 2.5


@pytest.mark.parametrize(
    "events",
    [
        [],
        make_events((5, "run_start", None, None)),
        make_events((5, "epoch_stop", None, 1), (5, "eval_stop", None, 1)),
        make_events((9, "init_start", None, None), (5, "init_stop", None, None), (3, "run_stop", None, None)),
        [Event("epoch_start", None, "INTERVAL_START", 1, {"epoch_num": "x"})],
    ],
)
def test_what_a_log_does_not_say_is_absent(events: list[Event]):
    assert measure_times(events) == Times()
    assert document_times(measure_times(events)) == {"evaluations": []}


def test_an_accuracy_without_an_epoch_is_told_all_the_same():
    (judged,) = measure_times(make_events((5, "eval_accuracy", 0.5, None))).evaluations
    assert judged == JudgedAt(None, None, 0.5)


def test_our_own_log(tmp_path: Path):
    write_ssd_log(tmp_path / "a.log", minutes=25.4)
    times = read_logged(tmp_path / "a.log").times
    assert (times.devices, times.init) == (8, 60.0)
    assert times.converge == pytest.approx(25.4 * 60, abs=0.01)
    assert times.total == pytest.approx(25.4 * 60 + 60, abs=0.01)
    assert times.first_epoch == pytest.approx((25.4 * 60 - 6) / 50, abs=0.01)
    assert times.epoch == pytest.approx(times.first_epoch, abs=0.01)
    assert [(one.epoch, one.seconds) for one in times.evaluations] == [(40, 3.0), (50, 3.0)]
    document = document_times(times)
    assert document["evaluations"][1] == {"epoch": 50.0, "seconds": 3.0, "accuracy": 0.2301}


def test_published_logs():
    root = os.environ.get("TRAINSTONE_REAL_DATA")
    if not root:
        pytest.skip("needs TRAINSTONE_REAL_DATA")
    logs = sorted((Path(root) / "mlperf").glob("v0.[67]/**/*ssd*/**/result_*.txt"))
    logs += sorted((Path(root) / "mlperf").glob("v0.7/**/ssd/result_*.txt"))
    times = [read_logged(log).times for log in dict.fromkeys(logs)]
    assert len(times) == 6
    assert {one.devices for one in times} == {8}
    old, *new = times
    assert [one.epoch for one in old.evaluations] == [33, 44, 50]
    assert [f"{old.converge:.1f}", f"{old.init:.1f}", f"{old.epoch:.1f}"] == ["1347.5", "20.0", "26.6"]
    assert all([one.epoch for one in times.evaluations] == [40, 50] for times in new)
    assert [f"{times.epoch:.0f}" for times in new] == ["12"] * 5
