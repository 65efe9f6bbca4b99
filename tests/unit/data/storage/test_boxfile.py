"""Boxes in CSV files: what is written is read. Damage: formats/test_damage.py."""

from pathlib import Path

import pytest

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


def test_a_box_thinner_than_the_decimals_is_passed_over(tmp_path: Path):
    assert read_text(tmp_path, "x.jpg,0.1,0.2,0.1,0.3\ny.jpg,0,0,1,1\n\n") == {"y": ((0.0, 0.0, 1.0, 1.0),)}
