from pathlib import Path

from trainstone.launch.following import Tail


def test_whole_lines_come_once_and_a_late_or_new_file_is_fine(tmp_path: Path):
    file = tmp_path / "progress.txt"
    tail = Tail(file)
    assert tail.read() == []
    file.write_text("one\ntw")
    assert tail.read() == ["one"]
    with file.open("a") as more:
        more.write("o\n")
    assert tail.read() == ["two"]
    assert tail.read() == []
    (tmp_path / "new").write_text("three\n")
    (tmp_path / "new").replace(file)
    assert tail.read() == ["three"]


def test_from_the_end_on(tmp_path: Path):
    file = tmp_path / "progress.txt"
    file.write_text("of an earlier start\n")
    tail = Tail(file, from_end=True)
    with file.open("a") as more:
        more.write("new\n")
    assert tail.read() == ["new"]
