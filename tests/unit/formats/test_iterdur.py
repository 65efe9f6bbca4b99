"""Iteration durations of the SC22 study: written, and read better than its own scripts did."""

import csv
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainstone.errors import DataError
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
    place_host,
    read_devices,
    read_iterdur,
    summarise,
)

SECONDS = st.floats(1e-7, 1e6)
DURATIONS = st.builds(Duration, st.integers(0, 10**9), st.integers(0, 63), SECONDS)


def test_lines_are_as_the_original_printed_them():
    assert format_rank(RankPlace(0, 4, 2)) == "rank = 0, world_size = 4, device_ids = 2\n"
    assert format_duration(Duration(7, 2, 0.21533)) == "\nIteration Duration 7 2 : 0.21533\n"
    assert format_training_time(3725.5) == "\nTraining time: 1:02:05.500000\n"


@given(st.lists(DURATIONS, max_size=20), st.none() | st.integers(0, 10**12).map(lambda micro: micro / 1e6))
def test_what_is_written_is_read(durations: list[Duration], train_seconds: float | None):
    text = format_rank(RankPlace(1, 2, 3)) + "".join(map(format_duration, durations))
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
    durations = [
        Duration(n, d, s) for d, row in enumerate(([9.0, 1.0, 2.0, 6.0], [0.1, 2.0])) for n, s in enumerate(row)
    ]
    rows = summarise(IterDur([], durations, 12.5), "c301-001.frontera.tacc.utexas.edu", reps=2)
    assert rows == [
        DeviceRow("resnet", 2, "c301", "1", 0, 12.5, 3.0, 2.0, 9.0, 1.0),
        DeviceRow("resnet", 2, "c301", "1", 1, 12.5, 2.0, 2.0, 2.0, 0.1),
    ]


def test_one_iteration_has_no_mean():
    (row,) = summarise(IterDur([], [Duration(0, 0, 3.0)], None), "here")
    assert (row.train_time, row.mean_iter_dur, row.med_iter_dur, row.max_iter_dur) == (None, None, None, 3.0)
    assert format_devices([row]).splitlines()[1] == "resnet,0,,here,0,,,,3.0,3.0"


@pytest.mark.parametrize(
    ("host", "place"),
    [
        ("c301-001", ("c301", "1")),
        ("gpu025.bede", ("", "gpu025")),
        ("a-b", ("", "a-b")),
        ("", ("", "")),
        ("c1-", ("", "c1-")),
    ],
)
def test_where_a_host_stands(host: str, place: tuple[str, str]):
    assert place_host(host) == place


ROWS = st.builds(
    DeviceRow,
    exp=st.just("resnet"),
    reps=st.integers(0, 9),
    cabinet=st.sampled_from(["", "c1", "c2"]),
    node=st.sampled_from(["1", "a b", 'x"y', "n,m"]),
    device=st.integers(0, 3),
    train_time=st.none() | SECONDS,
    mean_iter_dur=st.none() | SECONDS,
    med_iter_dur=st.none() | SECONDS,
    max_iter_dur=SECONDS,
    min_iter_dur=SECONDS,
)


@given(rows=st.lists(ROWS, max_size=8))
def test_tables_are_read_back(rows: list[DeviceRow], tmp_path_factory: pytest.TempPathFactory):
    file = tmp_path_factory.mktemp("table") / "all_data.csv"
    file.write_text(format_devices(rows))
    assert read_devices(file) == rows


def test_devices_of_several_runs_are_aggregated():
    rows = [DeviceRow("resnet", n, "c1", "1", 0, float(n), 2.0 * n, 1.0, 1.0, 1.0) for n in (1, 2, 6)]
    other = DeviceRow("resnet", 0, "", "x", 0, None, None, None, 1.0, 1.0)
    table = list(csv.DictReader(format_aggregated([*rows, other]).splitlines()))
    assert list(table[0]) == [
        *("exp", "cabinet", "node", "device"),
        *("mean_iter_dur_mean", "mean_iter_dur_median", "train_time_mean", "train_time_median"),
    ]
    assert list(table[0].values())[4:] == [""] * 4
    assert [float(cell) for cell in list(table[1].values())[4:]] == [statistics.fmean([2, 4, 12]), 4.0, 3.0, 2.0]


def test_pandas_row_numbers_are_passed_over(tmp_path: Path):
    file = tmp_path / "all_data.csv"
    header = ",".join(DeviceRow._fields)
    file.write_text(f",{header}\n0,resnet,1,c301,1,2,10.5,0.2,0.2,0.9,0.1\n")
    assert read_devices(file) == [DeviceRow("resnet", 1, "c301", "1", 2, 10.5, 0.2, 0.2, 0.9, 0.1)]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "columns missing"),
        (b"a,b\n1,2\n", "columns missing: cabinet"),
        (b"\xff\xfe" * 9, "columns missing"),
        (f"{','.join(DeviceRow._fields)}\nresnet,x,,n,0,,,,1,1\n".encode(), "line 2"),
        (f"{','.join(DeviceRow._fields)}\nresnet\n".encode(), "line 2"),
        (f"{','.join(DeviceRow._fields)}\n{'9' * 140_000},1,,n,0,,,,1,1\n".encode(), "line"),
    ],
)
def test_damaged_tables_are_refused(tmp_path: Path, content: bytes, told: str):
    file = tmp_path / "all_data.csv"
    file.write_bytes(content)
    with pytest.raises(DataError, match=told):
        read_devices(file)


@given(st.lists(st.text() | st.just("Iteration Duration 1 0 : 0.1"), max_size=20))
def test_anything_is_read_without_an_error(lines: list[str]):
    assert len(parse_lines(lines).durations) == lines.count("Iteration Duration 1 0 : 0.1")


@pytest.mark.parametrize("content", [b"", b"Iteration Duration x 0 : 1\n", b"\x00" * 50, b"Training time: 0:00:01\n"])
def test_a_file_without_any_is_refused(tmp_path: Path, content: bytes):
    file = tmp_path / "resnet_iterdur_1_x.txt"
    file.write_bytes(content)
    with pytest.raises(DataError, match="no iteration duration"):
        read_iterdur(file)
