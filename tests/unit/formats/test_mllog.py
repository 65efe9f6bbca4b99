"""Tests of MLPerf logs: lines equal those of MLPerf's logger, logs of all versions are read."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.builders.damage import real_data
from trainstone.errors import DataError
from trainstone.formats import mllog
from trainstone.formats.mllog import Event, format_line, parse_line, read_mllog

LINE = (
    ':::MLLOG {"namespace": "", "time_ms": 1592669189098, "event_type": "POINT_IN_TIME", "key": "seed", "value": 7, '
    '"metadata": {"file": "a.py", "lineno": 72}}'
)
EVENT = Event("seed", 7, "POINT_IN_TIME", 1592669189098, {"file": "a.py", "lineno": 72})
TEXT = st.text(st.characters(codec="utf-8"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def test_format_line_matches_mlperf_logger(tmp_path: Path):
    theirs = tmp_path / "theirs.log"
    script = (
        "import sys; from mlperf_logging import mllog; mllog.config(filename=sys.argv[1]); "
        "logger = mllog.get_mllogger(); logger.event('seed', 7, {'x': 1}); logger.start('run_start'); "
        "logger.end('run_stop', None, {'status': 'success'})"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", script, str(theirs)], check=True, capture_output=True)
    events = read_mllog(theirs)
    assert [(event.key, event.value, event.kind) for event in events] == [
        ("seed", 7, "POINT_IN_TIME"),
        ("run_start", None, "INTERVAL_START"),
        ("run_stop", None, "INTERVAL_END"),
    ]
    assert events[0].metadata["x"] == 1
    assert [format_line(event) for event in events] == theirs.read_text().splitlines()


@given(JSON, st.text(min_size=1), st.dictionaries(st.text(), JSON, max_size=3), st.integers(0, 2**53))
def test_parse_line_reads_formatted_lines(value: object, key: str, metadata: dict[str, object], time_ms: int):
    event = Event(key, value, "POINT_IN_TIME", time_ms, metadata, "space")
    assert parse_line("[rank 0] " + format_line(event)) == event


def test_parse_line_skips_other_text_and_uses_last_token():
    lines = ["", "ENDING TIMING RUN", f"worker-0 | {LINE}", ":::MLLOG", f":::MLLOG {{cut {LINE}", "\x00\udcff"]
    assert [event for line in lines if (event := parse_line(line))] == [EVENT, EVENT]


@pytest.mark.parametrize(
    "text",
    [
        LINE[:-5],
        f"{LINE} tail",
        *(LINE.replace("7,", f"{value},") for value in ("NaN", "-Infinity", "1e999", "[" * 100_000)),
        *(LINE.replace("1592669189098", value) for value in ("-1", '"noon"', "true", "9223372036854775808")),
        LINE.replace("POINT_IN_TIME", "POINT"),
        LINE.replace('"seed"', "3"),
        LINE.replace('"key"', '"kye"'),
        re.sub(r"\{\"file.*?\}", "[]", LINE),
        ":::MLLOG [1]",
        ":::MLL 1558570829.749 key",
        ":::MLL noon key: {}",
        ":::MLL 1558570829.749 key: 3",
        ":::MLPv0.5.0 resnet noon (a:1) key",
        ":::MLPv0.5.0 resnet 15.5 (a:1) key: {",
    ],
)
def test_read_mllog_names_invalid_line(tmp_path: Path, text: str):
    file = tmp_path / "result_0.txt"
    file.write_text(f"\n{LINE}\n{text}\n")
    with pytest.raises(DataError, match=r"result_0\.txt, line 3: ."):
        read_mllog(file)


def test_read_mllog_reports_truncated_last_line(tmp_path: Path):
    file = tmp_path / "mlperf.log"
    file.write_text(f"{LINE}\n" * 55 + LINE[:60])
    with pytest.raises(DataError, match=r"line 56 \(last\): truncated"):
        read_mllog(file)
    for damaged in (f"{LINE[:60]}\n", f"{LINE[:60]}\n{LINE}"):
        file.write_text(damaged)
        with pytest.raises(DataError, match=r"line 1: "):
            read_mllog(file)


def test_read_mllog_rejects_too_many_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a.txt").write_text(f"{LINE}\n" * 4)
    monkeypatch.setattr(mllog, "MAX_EVENTS", 4)
    assert len(read_mllog(tmp_path / "a.txt")) == 4
    monkeypatch.setattr(mllog, "MAX_EVENTS", 3)
    with pytest.raises(DataError, match="more than 3 MLPerf events"):
        read_mllog(tmp_path / "a.txt")


def test_parse_line_reads_version_06_and_lines_without_type_or_metadata():
    line = ':::MLLOG {"namespace": "main", "time_ms": 12.5, "key": "run_stop", "value": null}'
    assert parse_line(line) == Event("run_stop", None, "INTERVAL_END", 12, {}, "main")
    line = ':::MLL 1558570845.3 block_start: {"value": null, "metadata": {"first_epoch_num": 1, "file": "train.py"}}'
    metadata = {"first_epoch_num": 1, "file": "train.py"}
    assert parse_line(line) == Event("block_start", None, "INTERVAL_START", 1558570845300, metadata)


@pytest.mark.parametrize(
    ("rest", "key", "value", "more"),
    [
        ("run_start", "run_start", None, {}),
        ("run_clear_caches", "cache_clear", True, {}),
        ("input_batch_size: 1024", "global_batch_size", 1024, {}),
        ("preproc_num_train_examples: 5", "train_samples", 5, {}),
        ("preproc_num_eval_examples: 6", "eval_samples", 6, {}),
        ("run_set_random_seed: 3", "seed", 3, {}),
        ("train_epoch: 4", "epoch_start", None, {"epoch_num": 4}),
        ('eval_accuracy: {"value": 0.75, "epoch": 61}', "eval_accuracy", 0.75, {"epoch_num": 61}),
        ('run_stop: {"success": "true"}', "run_stop", None, {"status": "success"}),
        ('run_stop: {"success": false}', "run_stop", None, {"status": "aborted"}),
        ("model_hp_relu", "model_hp_relu", None, {}),
    ],
)
def test_parse_line_maps_version_05_keys_to_current_keys(rest: str, key: str, value: object, more: dict[str, object]):
    event = parse_line(f":::MLPv0.5.0 resnet 1541660914.084755421 (resnet/main.py:523) {rest}")
    assert event is not None
    assert (event.key, event.value, event.time_ms, event.namespace) == (key, value, 1541660914084, "resnet")
    assert event.metadata == {"file": "resnet/main.py", "lineno": 523, **more}


# Lines with a token (grep -c), batch, minutes from run_start to run_stop, last accuracy and epoch, checked by hand.
REAL = {
    "v0.5/google-resnet/result_0.txt": (401, 1024, 301.5173, 0.7511393427848816, 61),
    "v0.6/nvidia-ssd/result_0.txt": (141, 960, 22.4587, 0.23309154960042147, 50),
    "v0.7/Google/results/gpu-v100-8-TF2.0/resnet/result_0.txt": (74, 2496, 88.2317, 0.7595199942588806, 39),
    "v0.7/Intel/results/1-node-8s-cpx-1-tensorflow/resnet/result_1.txt": (216, 2048, 1146.5835, 0.7592599987983704, 39),
    "v0.7/SIAT/results/modelarts_512_mindspore_close/resnet/result_0.txt": (70, 32768, 1.58655, 0.76004, 64),
    "v0.7/NVIDIA/results/dgxa100_ngc20.06_mxnet/resnet/result_0.txt": (169, 3264, 39.4444, 0.76146, 41),
    "v0.7/NVIDIA/results/dgxa100_ngc20.06_pytorch/ssd/result_0.txt": (141, 912, 10.214, 0.23333818699997438, 50),
}


@pytest.mark.parametrize("name", REAL)
def test_read_mllog_reads_real_logs(name: str):
    num_lines, batch, minutes, accuracy, epoch = REAL[name]
    events = read_mllog(real_data(f"mlperf/{name}"))
    assert len(events) == num_lines
    last = {event.key: event for event in events}
    assert last["global_batch_size"].value == batch
    assert (last["run_stop"].time_ms - last["run_start"].time_ms) / 60000 == pytest.approx(minutes, abs=1e-4)
    assert last["run_stop"].metadata["status"] == "success"
    assert (last["eval_accuracy"].value, last["eval_accuracy"].metadata["epoch_num"]) == (accuracy, epoch)
