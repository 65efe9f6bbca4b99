"""Charts as files."""

from pathlib import Path

import pytest

from trainstone.errors import ResultError
from trainstone.report.figures import export_figures, prepare, read_colours
from trainstone.report.page import build_page
from trainstone.report.view import read_view

MAGIC = {"png": b"\x89PNG\r\n", "svg": b"<svg", "pdf": b"%PDF-"}


@pytest.mark.parametrize("kind", MAGIC)
def test_every_chart_becomes_a_file(golden, tmp_path: Path, kind: str):
    figures = build_page(read_view(golden("throttled"))).figures
    files = export_figures(figures, tmp_path / "new/folder", kind)
    assert [file.name for file in files] == [f"{figure.name}.{kind}" for figure in figures]
    for file in files:
        assert file.read_bytes().startswith(MAGIC[kind])
        assert file.stat().st_size > 1000


def test_no_variable_of_the_page_is_left(golden):
    for figure in build_page(read_view(golden("ten-ranks"))).figures:
        text = repr(prepare(figure.spec))
        assert "var(" not in text
        assert "container" not in text


def test_colours_come_from_the_light_theme():
    colours = read_colours()
    assert colours["--paper"] == "#ffffff"
    assert len(colours) > 15


def test_a_folder_that_cannot_be_made_is_one_message(golden, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultError, match="cannot write figures"):
        export_figures([], tmp_path / "file/x", "png")
