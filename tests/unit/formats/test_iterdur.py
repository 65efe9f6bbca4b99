"""Iteration durations of the SC22 study: written, and read better than its own scripts did."""

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainstone.formats.iterdur import (
    DeviceRow,
    Duration,
    IterDur,
    RankPlace,
    format_aggregated,
    format_devices,
    format_duration,
    format_rank,
    format_training_time,
    parse_lines,
    summarise_device,
)

SECONDS = st.floats(1e-7, 1e6)
DURATIONS = st.builds(Duration, st.integers(0, 10**9), st.integers(0, 63), SECONDS)


def test_lines_are_as_the_original_printed_them():
    assert format_rank(RankPlace(0, 4, 2)) == "rank = 0, world_size = 4, device_ids = 2\n"
    assert format_duration(7, 2, 0.21533) == "\nIteration Duration 7 2 : 0.21533\n"
    assert format_training_time(3725.5) == "\nTraining time: 1:02:05.500000\n"


@given(st.lists(DURATIONS, max_size=20), st.none() | st.integers(0, 10**12).map(lambda micro: micro / 1e6))
def test_what_is_written_is_read(durations: list[Duration], train_seconds: float | None):
    text = format_rank(RankPlace(1, 2, 3)) + "".join(format_duration(*duration) for duration in durations)
    text += format_training_time(train_seconds) if train_seconds is not None else ""
    read = parse_lines(text.split("\n"))
    assert read.ranks == [RankPlace(1, 2, 3)]
    assert read.durations == durations
    assert read.train_seconds == pytest.approx(train_seconds, abs=1e-6)


def test_ranks_may_write_over_each_other():
    glued = "Iteration Duration 3 1 : 0.25Iteration Duration 3 0 : 9.5e-05Training time: 0:00:07"
    read = parse_lines(
        ["Epoch 1:  0%|  |rank = 0, world_size = 2, device_ids = 0rank = 1, world_size = 2, device_ids = 1"]
    )
    assert [place.device for place in read.ranks] == [0, 1]
    assert parse_lines([glued]) == IterDur([], [Duration(3, 1, 0.25), Duration(3, 0, 9.5e-05)], 7.0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:00:07", 7.0),
        ("1:02:03.5", 3723.5),
        ("1 day, 0:00:01.000001", 86401.000001),
        ("12 days, 23:00:00", 1119600.0),
    ],
)
def test_training_times_of_any_length(text: str, seconds: float):
    assert parse_lines([f"Training time: {text}"]).train_seconds == seconds


def test_devices_are_summarised_as_the_study_did():
    """Mean and median without the first iteration, largest and smallest with it."""
    row = summarise_device([9.0, 1.0, 2.0, 6.0], "c301-001.frontera.tacc.utexas.edu", 3, 12.5)
    assert row == DeviceRow("resnet", 0, "c301", "1", 3, 12.5, 3.0, 2.0, 9.0, 1.0)
    row = summarise_device([3.0], "here", 0, None)
    assert (row.train_time, row.mean_iter_dur, row.med_iter_dur, row.max_iter_dur) == (None, None, None, 3.0)
    assert format_devices([row]).splitlines()[1] == "resnet,0,,here,0,,,,3.0,3.0"


def test_a_device_s_aggregates_are_those_of_its_run():
    row = DeviceRow("resnet", 1, "c1", "1", 0, 3.0, 2.0, 1.0, 1.0, 1.0)
    (table,) = csv.DictReader(format_aggregated([row]).splitlines())
    assert list(table) == [
        *("exp", "cabinet", "node", "device"),
        *("mean_iter_dur_mean", "mean_iter_dur_median", "train_time_mean", "train_time_median"),
    ]
    assert [float(cell) for cell in list(table.values())[4:]] == [2.0, 2.0, 3.0, 3.0]


@given(st.lists(st.text() | st.just("Iteration Duration 1 0 : 0.1"), max_size=20))
def test_anything_is_read_without_an_error(lines: list[str]):
    assert len(parse_lines(lines).durations) == lines.count("Iteration Duration 1 0 : 0.1")
