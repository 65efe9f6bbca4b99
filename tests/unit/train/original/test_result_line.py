"""The RESULT line of MLPerf's MXNet ResNet-50."""

import time
from pathlib import Path

import pytest

from made_original import HandClock, make_evaluation, make_facts, make_step
from trainstone.results.schema import Status
from trainstone.train.original.result_line import ResultLine

EVENTS = "".join(
    f':::MLLOG {{"namespace": "", "time_ms": {time_ms}, "key": "{key}", "value": null}}\n'
    for key, time_ms in (
        ("submission_org", 1592644020000),
        ("init_start", 1592643996250),
        ("run_start", 1592644020500),
        ("run_stop", 1592646395100),
    )
)


ENDED = 1592646395.9
FAR_AWAY = ':::MLLOG {"time_ms": 9223372036854775807, "key": "init_start", "value": null}\n'


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def finish(folder: Path, status: Status, user: str = "root") -> list[Path]:
    log = ResultLine(make_facts(folder, "mlperf"), wall=HandClock(ENDED), user=user)
    log.step(make_step(0))
    log.evaluation(make_evaluation(1))
    log.finish(status)
    log.close()
    return sorted((folder / "original").iterdir()) if (folder / "original").is_dir() else []


@pytest.mark.parametrize("status", ["target_reached", "target_missed", "ok"])
def test_all_events_then_the_seconds_since_the_program_s_start(tmp_path: Path, status: Status):
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


def test_a_log_without_init_start_is_counted_from_its_first_event(tmp_path: Path):
    (tmp_path / "mlperf.log").write_text(EVENTS.replace("init_start", "seed"))
    (file,) = finish(tmp_path, "ok")
    assert "RESULT,IMAGE_CLASSIFICATION,,2375,root,2020-06-20 09:07:00 AM\n" in file.read_text()


@pytest.mark.parametrize("lost", [False, True])
def test_a_run_resumed_at_its_end_does_not_last_longer(tmp_path: Path, lost: bool):
    (tmp_path / "mlperf.log").write_text(EVENTS)
    (file,) = finish(tmp_path, "ok")
    before = file.read_text()
    if lost:
        file.unlink()
    again = ResultLine(make_facts(tmp_path, "mlperf", first_step=50), wall=HandClock(ENDED + 9999), user="root")
    again.finish("ok")
    again.close()
    assert [file] == list((tmp_path / "original").iterdir())
    assert file.read_text() == before


@pytest.mark.parametrize("content", [None, "", "\x00\n", ':::MLLOG {"time_ms": "x"}\n', FAR_AWAY])
def test_without_an_event_there_is_none(tmp_path: Path, content: str | None, caplog: pytest.LogCaptureFixture):
    if content is not None:
        (tmp_path / "mlperf.log").write_text(content)
    assert finish(tmp_path, "ok") == []
    assert "no RESULT line" in caplog.text


def test_a_name_cannot_break_the_line(tmp_path: Path):
    (tmp_path / "mlperf.log").write_text(EVENTS.rstrip("\n"))
    (file,) = finish(tmp_path, "ok", user="a,b\n\x1b")
    assert file.read_text().splitlines()[-1] == r"RESULT,IMAGE_CLASSIFICATION,,2399,a b\n\x1b,2020-06-20 09:06:36 AM"
    assert len(file.read_text().splitlines()) == 6
