"""The RESULT line of MLPerf's MXNet ResNet-50."""

import time
from pathlib import Path

import pytest

from made_original import HandClock, make_evaluation, make_facts, make_step
from trainstone.results.schema import Status
from trainstone.train.original.result_line import ResultLine

EVENTS = (
    ':::MLLOG {"namespace": "", "time_ms": 1592643996250, "event_type": "POINT_IN_TIME", "key": "seed"}\n'
    ':::MLLOG {"namespace": "", "time_ms": 1592646395100, "event_type": "INTERVAL_END", "key": "run_stop"}\n'
)


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def finish(folder: Path, status: Status, user: str = "root") -> list[Path]:
    log = ResultLine(make_facts(folder, "mlperf"), wall=HandClock(1592646395.9), user=user)
    log.step(make_step(0))
    log.evaluation(make_evaluation(1))
    log.finish(status)
    log.close()
    return sorted((folder / "original").iterdir()) if (folder / "original").is_dir() else []


@pytest.mark.parametrize("status", ["target_reached", "target_missed", "ok"])
def test_all_events_then_the_result(tmp_path: Path, status: Status):
    (tmp_path / "mlperf.log").write_text(EVENTS)
    (file,) = finish(tmp_path, status)
    assert file.name == "200620090636250000000_1.log"
    assert file.read_text() == (
        f"{EVENTS}ENDING TIMING RUN AT 2020-06-20 09:46:35 AM\n"
        "RESULT,IMAGE_CLASSIFICATION,,2399,root,2020-06-20 09:06:36 AM\n"
    )


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_a_run_that_did_not_end_has_none(tmp_path: Path, status: Status):
    (tmp_path / "mlperf.log").write_text(EVENTS)
    assert finish(tmp_path, status) == []


def test_a_run_resumed_at_its_end_writes_the_same_file(tmp_path: Path):
    (tmp_path / "mlperf.log").write_text(EVENTS)
    assert finish(tmp_path, "ok") == finish(tmp_path, "ok")


@pytest.mark.parametrize("content", [None, "", "\x00\n", ':::MLLOG {"time_ms": "x"}\n'])
def test_without_an_event_there_is_none(tmp_path: Path, content: str | None, caplog: pytest.LogCaptureFixture):
    if content is not None:
        (tmp_path / "mlperf.log").write_text(content)
    assert finish(tmp_path, "ok") == []
    assert "no RESULT line" in caplog.text


def test_a_name_cannot_break_the_line(tmp_path: Path):
    (tmp_path / "mlperf.log").write_text(EVENTS.rstrip("\n"))
    (file,) = finish(tmp_path, "ok", user="a,b\n\x1b")
    assert file.read_text().splitlines()[-1] == r"RESULT,IMAGE_CLASSIFICATION,,2399,a b\n\x1b,2020-06-20 09:06:36 AM"
    assert len(file.read_text().splitlines()) == 4
