from pathlib import Path

import pytest
from hypothesis import given

from damage import damaged, quick, read_damaged, real_data
from trainstone.errors import DataError
from trainstone.formats.recordio import ImageRecord, pack, pack_image
from trainstone.formats.recordlist import ListLine, index_line, list_line, read_index, read_list, rebuild_index

LIST = b"3\t0.000000\tn01440764/n01440764_10027.JPEG\n0\t1.000000\t-2.500000\ta b.jpg\n"


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_an_index_is_read_back_in_its_own_order(tmp_path):
    entries = [(13, 0), (8, 171296), (36, 1 << 40)]
    assert index_line(*entries[1]) == "8\t171296\n"
    path = write(tmp_path / "a.idx", "".join(index_line(*entry) for entry in entries).encode())
    assert read_index(path) == entries
    assert read_index(write(tmp_path / "b.idx", b"1\t2\r\n\r\n 3 \t 4")) == [(1, 2), (3, 4)]
    assert read_index(write(tmp_path / "c.idx", b"")) == []


@pytest.mark.parametrize(
    "line", [b"1", b"1 2", b"a\t1", b"1\t-1", b"1\t2\t3", b"1\t1e3", b"\xff\t1", b"1\t" + b"9" * 5000]
)
def test_a_damaged_index_names_its_line(tmp_path, line):
    with pytest.raises(DataError, match=r"a.idx, line 2: expected a key, a tab and a byte offset"):
        read_index(write(tmp_path / "a.idx", b"1\t2\n" + line))


def test_a_line_without_end_is_not_read_whole(tmp_path):
    with pytest.raises(DataError, match="line 1: the line is longer than 1048576 bytes"):
        read_index(write(tmp_path / "a.idx", b"1" * (1 << 21)))


@pytest.mark.parametrize("name", ["", "missing"])
def test_what_is_no_file_is_told(tmp_path, name):
    with pytest.raises(DataError, match="cannot read"):
        read_index(tmp_path / name)


def test_a_lost_index_is_rebuilt_from_the_records(tmp_path):
    first, second = (pack(pack_image(ImageRecord((0.0,), key, b"x" * 9))) for key in (7, 3))
    assert rebuild_index(write(tmp_path / "a.rec", first + second)) == [(7, 0), (3, len(first))]
    with pytest.raises(DataError, match=r"b.rec, byte 44: the record has 2 bytes"):
        rebuild_index(write(tmp_path / "b.rec", first + pack(b"no")))


def test_list_lines_are_im2recs(tmp_path):
    lines = [ListLine(3, (0.0,), "n01440764/n01440764_10027.JPEG"), ListLine(0, (1.0, -2.5), "a b.jpg")]
    assert "".join(map(list_line, lines)).encode() == LIST
    assert list(read_list(write(tmp_path / "a.lst", LIST))) == lines


def test_lists_of_old_tools_and_other_systems_are_read(tmp_path):
    path = write(tmp_path / "a.lst", b"\n3.000000\t1\t\xe4.jpg\r\n  \n4.\t1e1\tb.jpg")
    assert list(read_list(path)) == [ListLine(3, (1.0,), "\udce4.jpg"), ListLine(4, (10.0,), "b.jpg")]


@pytest.mark.parametrize(
    "line",
    [b"1", b"1\tb.jpg", b"1\t2\t", b"x\t1\tb.jpg", b"1.5\t1\tb.jpg", b"-1\t1\tb.jpg", b"1\tcat\tb.jpg", b"1\tnan\tb"],
)
def test_a_damaged_list_names_its_line(tmp_path, line):
    with pytest.raises(DataError, match=r"a.lst, line 3: "):
        list(read_list(write(tmp_path / "a.lst", LIST + line)))


@pytest.mark.parametrize(
    "line", [ListLine(1, (), "a"), ListLine(1, (1.0,), "a\tb"), ListLine(1, (1.0,), "a\nb"), ListLine(1, (1.0,), "")]
)
def test_what_no_list_can_hold_is_refused(line):
    with pytest.raises(DataError, match=r"a line of a .lst needs"):
        list_line(line)


@given(damaged(LIST))
@quick
def test_a_damaged_list_is_told_with_file_and_line(tmp_path, content):
    read_damaged(tmp_path / "damaged.lst", content, lambda path: list(read_list(path)), "line")


@given(damaged(b"13\t0\n8\t171296\n36\t553272\n"))
@quick
def test_a_damaged_index_is_told_with_file_and_line(tmp_path, content):
    read_damaged(tmp_path / "damaged.idx", content, read_index, "line")


def test_the_index_of_real_records_is_rebuilt():
    index = real_data("records/recordio/dali_extra/train.idx")
    entries = rebuild_index(index.with_suffix(".rec"))
    assert entries == read_index(index)
    assert "".join(index_line(*entry) for entry in entries) == index.read_text()
