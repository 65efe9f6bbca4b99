"""TimeHistory lines: as absl wrote them, and read out of any log."""

from datetime import datetime
from pathlib import Path

import pytest

from trainstone.errors import DataError
from trainstone.formats.iterdur import read_iterdur
from trainstone.formats.mllog import read_mllog
from trainstone.formats.nvlog import read_nvlog
from trainstone.formats.timehistory import Interval, Intervals, choose_every, format_line, read_timehistory

WHEN = datetime(2026, 11, 6, 14, 5, 3, 1234)
LINE = (
    "I1106 14:05:03.001234 140234 trainstone.py:1] "
    "TimeHistory: 12.34 seconds, 259.32 examples/second between steps 0 and 100"
)


def test_a_line_is_written_as_absl_did():
    assert format_line(Interval(12.341, 259.319, 0, 100), WHEN, 140234) == LINE
    assert format_line(Interval(1, 2, 100, 200), WHEN, 42).startswith("I1106 14:05:03.001234    42 trainstone.py:1] ")


def test_what_was_written_is_read(tmp_path: Path):
    file = tmp_path / "batch_32.log"
    file.write_text(f"{LINE}\n")
    assert read_timehistory(file) == [Interval(12.34, 259.32, 0, 100, "1106 14:05:03.001234")]


def test_other_lines_and_prefixes_are_passed_over(tmp_path: Path):
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
def test_choose_every_is_a_hundred_or_ten_of_a_short_run(requested: int | str, steps: int, every: int):
    assert choose_every(requested, steps) == every


def test_intervals_last_from_the_first_step_s_beginning_to_the_last_s_end():
    intervals = Intervals(2)
    steps = ((1.0, 0.5), (2.0, 0.5), (4.0, 0.5), (8.0, 0.5), (9.0, 0.0), (9.0, 0.0))
    assert [intervals.add(*step, 3) for step in steps] == [
        *(None, Interval(1.5, 4.0, 0, 2), None, Interval(4.5, 6 / 4.5, 2, 4), None, None)
    ]


READERS = {
    read_timehistory: (b"I1106 nothing here\n", "no TimeHistory line"),
    read_nvlog: (b":::NVLOGv0.2.3 resnet 1605627653.402500391 (training", "no :::NVLOG line"),
    read_iterdur: (b"Iteration Duration x 0 : 1\nTraining time: 0:00:01\n", "no iteration duration"),
    read_mllog: (b"MLLOG {}\n", "no MLPerf log line"),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_log_of_an_original_without_its_lines_is_refused(tmp_path: Path, reader):
    nearly, message = READERS[reader]
    file = tmp_path / "x.log"
    for content in (b"", b"\n\n", b"\xff\x00" * 90, nearly):
        file.write_bytes(content)
        with pytest.raises(DataError, match=message):
            reader(file)
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(DataError, match=r"it is no file|No such file"):
            reader(path)
