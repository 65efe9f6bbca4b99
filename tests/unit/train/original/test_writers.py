"""Which files a recipe's original has, that a resumed run's are an unbroken one's, and the RESULT line of MLPerf's."""

import getpass
import time
from dataclasses import replace
from pathlib import Path

import pytest

from made_original import make_evaluation, make_facts, make_step, play, read_files, resume
from trainstone.results.schema import Status
from trainstone.train.original.lines import list_events
from trainstone.train.original.writers import ResultLine, list_writers

FILES = {
    ("wmlce", "train"): {"nvlog.txt", "training.json"},
    ("wmlce", "bench"): {"nvlog.txt", "training_benchmark.json"},
    ("sc22", "train"): {"resnet_iterdur_1605627653_c301-007.txt", "all_data.csv", "aggregated_data.csv"},
    ("sc22", "bench"): {"resnet_iterdur_1605627653_c301-007.txt", "all_data.csv", "aggregated_data.csv"},
    ("tbd", "train"): {"training.log"},
    ("tbd", "bench"): {"throughput_data/batch_32.log"},
    ("mlperf", "train"): {"200620090636250000000_1.log"},
    ("mlperf", "bench"): set(),
    ("mlperf_ssd", "train"): {"training.log", "200620090636250000000_1.log"},
    ("mlperf_ssd", "bench"): set(),
}
EVENTS = "".join(
    f':::MLLOG {{"namespace": "", "time_ms": {time_ms}, "key": "{key}", "value": null}}\n'
    for key, time_ms in (
        ("submission_org", 1592644020000),
        ("init_start", 1592643996250),
        ("run_start", 1592644020500),
        ("run_stop", 1592646395100),
    )
)
FAR_AWAY = ':::MLLOG {"time_ms": 9223372036854775807, "key": "init_start", "value": null}\n'


@pytest.fixture(autouse=True)
def _fixed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("socket.gethostname", lambda: "c301-007")
    monkeypatch.setattr(getpass, "getuser", lambda: "a,b\n\x1b")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(("name", "kind"), FILES)
def test_each_original_has_its_files(tmp_path: Path, name: str, kind: str):
    (tmp_path / "mlperf.log").write_text(EVENTS)
    play(make_facts(tmp_path, name, kind=kind), 50)
    assert set(read_files(tmp_path)) == FILES[name, kind]


@pytest.mark.parametrize("name", ["wmlce", "sc22", "tbd", "mlperf_ssd"])
@pytest.mark.parametrize("status", [None, "interrupted", "ok"])
@pytest.mark.parametrize(("stopped", "first"), [(37, 31), (28, 3), (20, 20), (50, 50)])
def test_a_resumed_run_has_the_files_of_an_unbroken_one(tmp_path: Path, name: str, status, stopped: int, first: int):
    whole, parts = (make_facts(tmp_path / part, name, "original.every_steps=4") for part in ("whole", "parts"))
    for facts in (whole, parts):
        facts.folder.mkdir()
        (facts.folder / "mlperf.log").write_text(EVENTS)
    play(whole, 50, evaluations=(20, 50))
    play(parts, stopped, status=status, evaluations=(20, 50))
    play(resume(parts, first, (20, 50)), 50, evaluations=(20, 50))
    assert read_files(parts.folder) == read_files(whole.folder)


def test_scores_that_came_later_come_later_again(tmp_path: Path):
    facts = make_facts(tmp_path, "mlperf_ssd")
    play(facts, 30)
    late = make_evaluation(10).model_copy(update={"seconds": make_step(20).start_seconds - 0.001})
    events = list(list_events(replace(facts, first_step=30, history=(late,))))
    assert [event.step for event in events] == [*range(20), 10, *range(20, 30)]


@pytest.mark.parametrize("damage", [b"", b"nonsense\n1,2\n", None])
def test_steps_that_are_lost_are_told(tmp_path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture):
    facts = make_facts(tmp_path, "mlperf_ssd", "original.every_steps=1")
    if damage is not None:
        (tmp_path / "steps-rank0000.csv").write_bytes(damage)
    play(resume(facts, 15), 20, status=None)
    lines = read_files(tmp_path)["training.log"].decode().splitlines()
    assert [line.partition("Iteration ")[2][:2] for line in lines if "Iteration" in line] == [*map(str, range(16, 21))]
    assert "original/ lacks 15 steps" in caplog.text


def test_lines_are_on_disk_at_once(tmp_path: Path):
    (writer,) = list_writers(make_facts(tmp_path, "wmlce"))
    writer.step(make_step(0))
    assert "iteration: 0" in read_files(tmp_path)["nvlog.txt"].decode()
    writer.close()


def write_result(folder: Path, status: Status, name: str = "mlperf") -> dict[str, bytes]:
    ResultLine(make_facts(folder, name, "mlperf.org=dellemc")).finish(status)
    return read_files(folder)


@pytest.mark.parametrize("status", ["target_reached", "target_missed", "ok"])
def test_all_events_then_the_seconds_since_the_program_s_start(tmp_path: Path, status: Status):
    (tmp_path / "mlperf.log").write_text(EVENTS.rstrip("\n"))
    assert write_result(tmp_path, status)["200620090636250000000_1.log"].decode() == (
        f"{EVENTS}ENDING TIMING RUN AT 2020-06-20 09:46:35 AM\n"
        "RESULT,IMAGE_CLASSIFICATION,,2399,a b\\n\\x1b,2020-06-20 09:06:36 AM\n"
    )


def test_a_detector_s_lines_are_in_it_and_its_organisation(tmp_path: Path):
    (tmp_path / "mlperf.log").write_text(EVENTS)
    (tmp_path / "original").mkdir()
    (tmp_path / "original/training.log").write_text("[Training] ...\n")
    assert write_result(tmp_path, "ok", "mlperf_ssd")["200620090636250000000_1.log"].decode() == (
        f"{EVENTS}[Training] ...\nENDING TIMING RUN AT 2020-06-20 09:46:35 AM\n"
        "RESULT,SINGLE_STAGE_DETECTOR,,2399,dellemc,2020-06-20 09:06:36 AM\n"
    )


@pytest.mark.parametrize("content", [None, "", "\x00\n", ':::MLLOG {"time_ms": "x"}\n', FAR_AWAY])
def test_without_an_event_there_is_none(tmp_path: Path, content: str | None, caplog: pytest.LogCaptureFixture):
    if content is not None:
        (tmp_path / "mlperf.log").write_text(content)
    assert write_result(tmp_path, "ok") == {}
    assert "no RESULT line" in caplog.text


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_a_run_that_did_not_end_has_no_result(tmp_path: Path, status: Status):
    (tmp_path / "mlperf.log").write_text(EVENTS)
    assert write_result(tmp_path, status) == {}
