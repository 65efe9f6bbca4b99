"""Boxes in CSV files: what is written is read, what cannot be is told with its line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from damage import damaged, quick, read_damaged
from trainstone.data.sample import Box
from trainstone.data.storage.boxfile import box_lines, make_key, read_box_file
from trainstone.errors import DataError


def read_text(folder: Path, text: str) -> dict:
    (folder / "train-boxes.csv").write_bytes(text.encode("utf-8", "surrogateescape"))
    return read_box_file(folder / "train-boxes.csv")


def test_four_decimals_as_the_original_wrote_and_more_where_needed():
    boxes = [Box(0, 0.25, 0.0, 0.5, 1.0), Box(0, 1 / 3, 0.1, 0.99999, 0.2)]
    assert box_lines("n01/x.JPEG", boxes) == (
        "n01/x.JPEG,0.2500,0.0000,0.5000,1.0000\nn01/x.JPEG,0.3333333333333333,0.1000,0.99999,0.2000\n"
    )


@pytest.mark.parametrize(
    "name", ["a/x.jpg", "a/with space.jpg", 'a/quo"te,comma.jpg', "ünï%.two.jpg", "\udcff.jpg", "x"]
)
def test_what_is_written_is_read(tmp_path: Path, name: str):
    boxes = [Box(3, 1 / 3, 0.1, 0.7, 0.2), Box(3, 0.0, 0.0, 1.0, 1.0)]
    text = box_lines("first.jpg", boxes[:1]) + box_lines(name, boxes)
    assert read_text(tmp_path, text)[make_key(name)] == tuple(tuple(box[1:5]) for box in boxes)


@pytest.mark.parametrize("name", ["line\nbreak.jpg", "line\rbreak.jpg"])
def test_a_name_with_a_line_break_is_refused_when_it_is_written(name: str):
    with pytest.raises(DataError, match="no place for a line break"):
        box_lines(name, [Box(0, 0, 0, 1, 1)])


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("n01/n01_1.JPEG", "n01/n01_1"),
        ("x", "x"),
        ("dot.ted/x", "dot.ted/x"),
        ("dot.ted/x.jpg", "dot.ted/x"),
        ("a/two.dots.jpg", "a/two.dots"),
        ("a/.hidden", "a/.hidden"),
    ],
)
def test_keys_are_names_without_extension(name: str, key: str):
    assert make_key(name) == key


def test_a_box_thinner_than_the_decimals_is_passed_over(tmp_path: Path):
    assert read_text(tmp_path, "x.jpg,0.1,0.2,0.1,0.3\ny.jpg,0,0,1,1\n\n") == {"y": ((0.0, 0.0, 1.0, 1.0),)}


@pytest.mark.parametrize(
    "line",
    ["x.jpg", "x.jpg,0,0,1", "x.jpg,0,0,1,1,1", "x.jpg,a,0,1,1", '"x.jpg,0,0,1,1', "x.jpg,0,0,1,nan", "x.jpg,0,0,1,1.1",
     "x.jpg,-0.1,0,1,1", "x.jpg,0.5,0,0.4,1", "x.jpg,0,inf,1,1"],
)  # fmt: skip
def test_a_line_that_cannot_be_is_told(tmp_path: Path, line: str):
    with pytest.raises(DataError, match=r"train-boxes\.csv, line 2: "):
        read_text(tmp_path, f"good.jpg,0,0,1,1\n{line}\n")


SOUND = b'n01/a.JPEG,0.2500,0.1250,0.7500,0.5000\n"b,\xc3\xbc.jpg",0.0000,0.0000,1.0000,1.0000\n'


@quick
@given(data=st.one_of(damaged(SOUND), st.binary(max_size=200)))
def test_a_damaged_file_gives_boxes_or_a_line(tmp_path: Path, data: bytes):
    read_damaged(tmp_path / "x-boxes.csv", data, read_box_file, "line")
