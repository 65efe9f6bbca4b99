"""The page of train --runs: every run drawn and listed, the score told."""

import re
from pathlib import Path

from browser import Browser
from hostile import EVIL
from made_repeated import make_children, make_repeated, write_repeated
from made_results import write_run
from trainstone.report.blocks import Facts, Figure, Section, Table
from trainstone.report.figures import export_figures
from trainstone.report.index import build_index, read_entries
from trainstone.report.page import Page, build_page, render, write_report
from trainstone.report.vega import Scripts
from trainstone.report.view import read_view

TIMES = (41.0, 38.0, 47.0, 40.0, 42.6)


def find_section(page: Page, name: str) -> Section:
    return next(section for section in page.sections if section.id == name)


def make_page(folder: Path, times: tuple[float | None, ...]) -> Page:
    return build_page(read_view(write_repeated(folder, times)))


def find_table(page: Page) -> Table:
    (table,) = [block for block in find_section(page, "trainings").blocks if isinstance(block, Table)]
    return table


def test_the_page_tells_the_score_first(tmp_path: Path):
    page = make_page(tmp_path, TIMES)
    assert page.verdict == "ResNet-18: reached 90 % top-1 in 41 s (5 runs, 38 s to 47 s; olympic mean 41.2 s)"
    tiles = page.sections[0].blocks[0]
    assert isinstance(tiles, Facts)
    assert ("olympic mean", "41.2 s") in tiles.rows
    assert [section.id for section in page.sections[:3]] == ["numbers", "findings", "trainings"]
    assert not {"learning", "points"} & {section.id for section in page.sections}


def test_every_run_has_a_row_and_a_link(tmp_path: Path):
    table = find_table(make_page(tmp_path, (41.0, 38.0, None)))
    assert list(table.columns) == ["run", "epochs", "time to target", "top-1, best", "images/s", "status", ""]
    assert [list(row) for row in table.rows] == [
        ["seed 7", "4", "41 s", "90.7 %", "213", "target reached", ""],
        ["seed 8", "4", "38 s", "90.8 %", "213", "target reached", "dropped"],
        ["seed 9", "8", "", "87.8 %", "213", "target missed", "dropped"],
    ]
    assert list(table.links) == [f"points/run-{seed}/result.json" for seed in (7, 8, 9)]
    assert table.caption.startswith("Olympic mean")


def test_curves_and_times_are_drawn(tmp_path: Path):
    page = make_page(tmp_path, TIMES)
    figures = {block.name: block for block in find_section(page, "trainings").blocks if isinstance(block, Figure)}
    assert list(figures) == ["accuracy-runs", "times-to-target"]
    assert "seed 11 91.1 %" in figures["accuracy-runs"].alt
    assert figures["times-to-target"].alt.endswith("seed 11 42.6 s; olympic mean 41.2 s.")
    files = export_figures(page.figures, tmp_path / "png", "png")
    assert {file.stem for file in files} >= set(figures)


def test_without_a_second_time_none_are_compared(tmp_path: Path):
    page = make_page(tmp_path, (41.0, None))
    assert [figure.name for figure in page.figures if "runs" in figure.name or "times" in figure.name] == [
        "accuracy-runs"
    ]


def test_runs_that_are_gone_leave_the_rest(tmp_path: Path):
    path = write_run(tmp_path, make_repeated(make_children(TIMES)))
    page = build_page(read_view(path))
    assert len(find_table(page).rows) == 5
    assert set(find_table(page).links) == {None}
    assert "accuracy-runs" not in [figure.name for figure in page.figures]


def test_hostile_names_stay_text(tmp_path: Path):
    result = make_repeated(make_children(TIMES))
    runs = [run.model_copy(update={"status": EVIL, "run": EVIL}) for run in result.repeated.runs]
    quality = result.quality.model_copy(update={"metric": EVIL})
    evil = result.model_copy(update={"repeated": result.repeated.model_copy(update={"runs": runs}), "quality": quality})
    html = render(build_page(read_view(write_run(tmp_path, evil))), "")
    assert EVIL not in html


def test_the_index_names_its_quality(tmp_path: Path):
    write_repeated(tmp_path, TIMES)
    page = build_index(read_entries([tmp_path / "parent"]), tmp_path)
    table = page.sections[0].blocks[0]
    assert isinstance(table, Table)
    assert table.rows[0][list(table.columns).index("quality")] == "90.9 % top-1"


def test_the_page_in_a_browser(tmp_path: Path, browser: Browser):
    path = write_repeated(tmp_path, (*TIMES, None, *(50.0 + n for n in range(6))))
    with Scripts() as scripts:
        file, _ = write_report(path, scripts)
    page = browser.open(file)
    try:
        assert page.console_errors == []
        assert page.network_requests == []
        drawn = page.evaluate("document.querySelectorAll('#trainings svg, #trainings canvas').length")
        assert drawn == 2
        for width in (320, 1200):
            page.resize(width, 800)
            page.settle()
            assert page.evaluate("document.documentElement.scrollWidth") <= width
    finally:
        page.close()
    assert re.search(r"11 of 12 runs reached 90 % top-1", file.read_text())
