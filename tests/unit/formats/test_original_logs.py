"""Tests of the logs of the original programs: NVLOG, TimeHistory and iteration durations."""

import json
import re
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.builders.damage import real_data
from trainstone.errors import DataError
from trainstone.formats import iterdur, nvlog, timehistory
from trainstone.formats.iterdur import (
    DeviceRow,
    Duration,
    IterationDurations,
    RankPlace,
    read_iterdur,
    summarise_device,
)
from trainstone.formats.mllog import read_mllog
from trainstone.formats.nvlog import COLUMNS, Entry, read_nvlog
from trainstone.formats.timehistory import Interval, Intervals, choose_log_steps, read_timehistory

GRAMMAR = re.compile(r":::NVLOGv([\d.]+) (\S+) (\d+\.\d{9}) \(([^:]+):(\d+)\) (.*)")
NVLOG = ":::NVLOGv0.2.3 resnet 1605627653.402500391 (training_hooks.py:102) cross_entropy: 9.02121639251709"
NAMES = st.text(st.characters(categories=["L", "N"], include_characters=" _-"), min_size=1).map(str.strip).filter(bool)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
ENTRIES = st.builds(
    Entry,
    version=st.just("0.2.3"),
    model=st.sampled_from(["resnet", None]),
    time_seconds=st.floats(0, 4e9).map(lambda seconds: float(f"{seconds:.9f}")),
    file=st.sampled_from(["runner.py", "training_hooks.py"]),
    line=st.integers(0, 99999),
    key=NAMES,
    value=VALUES | st.none(),
)


def test_nvlog_format_line_equals_original():
    entry = Entry("0.2.3", "resnet", 1605627653.402500391, "training_hooks.py", 102, "cross_entropy", 9.02121639251709)
    written = nvlog.format_line(entry)
    assert written[:36] + written[44:] == NVLOG[:36] + NVLOG[44:]  # a double has no nanosecond resolution here
    bare = nvlog.format_line(Entry("0.2.3", None, 1.5, "runner.py", 374, "Starting Model Training..."))
    assert bare == ":::NVLOGv0.2.3 None 1.500000000 (runner.py:374) Starting Model Training..."


@given(ENTRIES, NUMBERS)
def test_nvlog_parse_lines_reads_formatted_and_wrapped_lines(entry: Entry, value: float):
    line = nvlog.format_line(entry)
    assert GRAMMAR.fullmatch(line)
    assert list(nvlog.parse_lines([line])) == [entry]
    entry = entry._replace(key="total_loss", value=value)
    line = nvlog.format_line(entry)
    rows = [f"   {line[begin : begin + COLUMNS]}".rstrip() for begin in range(0, len(line), COLUMNS)]
    assert list(nvlog.parse_lines([*rows, "   something else"])) == [entry]


def test_nvlog_parse_lines_does_not_join_other_output():
    head = ":::NVLOGv0.2.3 resnet 1605627671.803228855 (training_hooks.py:100) iteration: 10"
    assert len(head) == COLUMNS
    read = list(nvlog.parse_lines([head, "2020-11-17 15:39:49.410620: I tensorflow/stream_executor", "3"]))
    assert [(entry.key, entry.value) for entry in read] == [("iteration", 10)]


def test_read_nvlog_reads_lines_of_the_bede_guide():
    entries = read_nvlog(real_data("profilers/nvlog/nvlog-tf-resnet50-bede-wmlce.rst.txt"))
    assert [(entry.line, entry.key, entry.value) for entry in entries] == [
        (100, "iteration", 0),
        (101, "imgs_per_sec", 37.5667719118656),
        (102, "cross_entropy", 9.02121639251709),
        (103, "l2_loss", 0.7498071789741516),
        (104, "total_loss", 9.771023750305176),
        (105, "learning_rate", 0.0),
        (100, "iteration", 10),
        (101, "imgs_per_sec", 4526.812526349517),
        (102, "cross_entropy", 8.204719543457031),
        (610, "Top-1 Accuracy", 75.863),
        (611, "Top-5 Accuracy", 92.823),
        (630, "Ending Model Evaluation ...", None),
    ]
    assert entries[-1].time_seconds - entries[0].time_seconds == pytest.approx(14328.38, abs=0.01)
    assert {entry.model for entry in entries} == {"resnet"}


@pytest.mark.parametrize(
    "value", ["", " ", "9" * 5000, "[" * 9000, "nul", '{"a":', "\x1b[31mred", "\udcff", "1 2", "tf.float16"]
)
def test_nvlog_parse_lines_keeps_invalid_json_as_text(value: str):
    (entry,) = nvlog.parse_lines([f":::NVLOGv0.2.3 None 1.000000000 (a.py:1) key: {value}"])
    assert entry.value is None
    assert entry.key == f"key: {value}".strip()


@given(st.lists(st.text() | st.text().map(lambda text: NVLOG[: len(text) * 7] + text), max_size=20))
def test_parse_lines_accepts_any_text(lines: list[str]):
    for entry in nvlog.parse_lines(lines):
        json.dumps(entry.value)
    durations = [*lines, "Iteration Duration 1 0 : 0.1"] * 2
    assert len(iterdur.parse_lines(durations).durations) == 2


WHEN = datetime(2026, 11, 6, 14, 5, 3, 1234)
TIMES = (
    "I1106 14:05:03.001234 140234 trainstone.py:1] "
    "TimeHistory: 12.34 seconds, 259.32 examples/second between steps 0 and 100"
)


def test_timehistory_line_equals_absl_and_is_read_back(tmp_path: Path):
    assert timehistory.format_line(Interval(12.341, 259.319, 0, 100), WHEN, 140234) == TIMES
    shorter = timehistory.format_line(Interval(1, 2, 100, 200), WHEN, 42)
    assert shorter.startswith("I1106 14:05:03.001234    42 trainstone.py:1] ")
    (tmp_path / "batch_32.log").write_text(f"{TIMES}\n")
    read = read_timehistory(tmp_path / "batch_32.log")
    assert read == [Interval(12.34, 259.32, 0, 100, "1106 14:05:03.001234")]


def test_read_timehistory_skips_other_lines_and_prefixes(tmp_path: Path):
    file = tmp_path / "training.log"
    lines = [
        b"2020-05-01 10:00:00.1: I tensorflow/stream_executor] Successfully opened",
        b"I0501 10:00:09.123456 140 keras_utils.py:145] TimeHistory: 9.10 seconds, 351.64 examples/second between "
        b"steps 0 and 100",
        b"step: 100        steps_per_second: 11.00        {'train_loss': 7.1}",
        b"worker-0 | TimeHistory: 8.00 seconds, 400.00 examples/second between steps 100 and 200\r",
        b"TimeHistory: x seconds, 1 examples/second between steps 1 and 2",
        b"\xff\xfe\x00",
        b"TimeHistory: 8 seconds, 400 examples/second between steps 200 and 300",
    ]
    file.write_bytes(b"\n".join(lines))
    assert [(one.first_step, one.seconds, one.stamp) for one in read_timehistory(file)] == [
        (0, 9.1, "0501 10:00:09.123456"),
        (100, 8.0, None),
        (200, 8.0, None),
    ]


@pytest.mark.parametrize(
    ("requested", "steps", "every"), [("auto", 0, 10), ("auto", 199, 10), ("auto", 200, 100), (7, 5, 7), (7, 10**6, 7)]
)
def test_choose_log_steps_returns_100_or_10_for_short_runs(requested: int | str, steps: int, every: int):
    assert choose_log_steps(requested, steps) == every


def test_intervals_last_from_first_start_to_last_end():
    intervals = Intervals(2)
    steps = ((1.0, 0.5), (2.0, 0.5), (4.0, 0.5), (8.0, 0.5), (9.0, 0.0), (9.0, 0.0))
    assert [intervals.add(*step, 3) for step in steps] == [
        *(None, Interval(1.5, 4.0, 0, 2), None, Interval(4.5, 6 / 4.5, 2, 4), None, None)
    ]


DURATIONS = st.builds(Duration, st.integers(0, 10**9), st.integers(0, 63), st.floats(1e-7, 1e6))


def test_iterdur_lines_equal_original():
    assert iterdur.format_rank(RankPlace(0, 4, 2)) == "rank = 0, world_size = 4, device_ids = 2\n"
    assert iterdur.format_duration(7, 2, 0.21533) == "\nIteration Duration 7 2 : 0.21533\n"
    assert iterdur.format_training_time(3725.5) == "\nTraining time: 1:02:05.500000\n"


@given(st.lists(DURATIONS, max_size=20), st.none() | st.integers(0, 10**12).map(lambda micro: micro / 1e6))
def test_iterdur_reads_back_formatted_lines(durations: list[Duration], train_seconds: float | None):
    text = iterdur.format_rank(RankPlace(1, 2, 3)) + "".join(iterdur.format_duration(*one) for one in durations)
    text += iterdur.format_training_time(train_seconds) if train_seconds is not None else ""
    read = iterdur.parse_lines(text.split("\n"))
    assert (read.ranks, read.durations) == ([RankPlace(1, 2, 3)], durations)
    assert read.train_seconds == pytest.approx(train_seconds, abs=1e-6)


def test_iterdur_reads_interleaved_rank_output():
    glued = "Iteration Duration 3 1 : 0.25Iteration Duration 3 0 : 9.5e-05Training time: 0:00:07"
    ranks = "Epoch 1:  0%|  |rank = 0, world_size = 2, device_ids = 0rank = 1, world_size = 2, device_ids = 1"
    assert [place.device for place in iterdur.parse_lines([ranks]).ranks] == [0, 1]
    assert iterdur.parse_lines([glued]) == IterationDurations([], [Duration(3, 1, 0.25), Duration(3, 0, 9.5e-05)], 7.0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:00:07", 7.0),
        ("1:02:03.5", 3723.5),
        ("1 day, 0:00:01.000001", 86401.000001),
        ("9 days, 23:00:00", 860400.0),
    ],
)
def test_iterdur_parses_training_times(text: str, seconds: float):
    assert iterdur.parse_lines([f"Training time: {text}"]).train_seconds == seconds


def test_summarise_device_matches_the_study():
    """Mean and median exclude the first iteration; maximum and minimum include it."""
    row = summarise_device([9.0, 1.0, 2.0, 6.0], "c301-001.frontera.tacc.utexas.edu", 3, 12.5)
    assert row == DeviceRow("resnet", 0, "c301", "1", 3, 12.5, 3.0, 2.0, 9.0, 1.0)
    assert iterdur.format_aggregated([row]).splitlines() == [
        "exp,cabinet,node,device,mean_iter_dur_mean,mean_iter_dur_median,train_time_mean,train_time_median",
        "resnet,c301,1,3,3.0,3.0,12.5,12.5",
    ]
    row = summarise_device([3.0], "here", 0, None)
    assert (row.train_time, row.mean_iter_dur, row.med_iter_dur, row.max_iter_dur) == (None, None, None, 3.0)
    assert iterdur.format_devices([row]).splitlines()[1] == "resnet,0,,here,0,,,,3.0,3.0"


READERS = {
    read_timehistory: (b"I1106 nothing here\n", "no TimeHistory line"),
    read_nvlog: (b":::NVLOGv0.2.3 resnet 1605627653.402500391 (training", "no :::NVLOG line"),
    read_iterdur: (b"Iteration Duration x 0 : 1\nTraining time: 0:00:01\n", "no iteration duration"),
    read_mllog: (b"MLLOG {}\n", "no MLPerf log line"),
}


@pytest.mark.parametrize("reader", READERS)
def test_log_readers_reject_logs_without_entries(tmp_path: Path, reader):
    invalid, message = READERS[reader]
    file = tmp_path / "x.log"
    for content in (b"", b"\n\n", b"\xff\x00" * 90, invalid):
        file.write_bytes(content)
        with pytest.raises(DataError, match=message):
            reader(file)
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(DataError, match=r"not a file|No such file"):
            reader(path)
