"""What an evaluation brought along, on the page: lines, bars, tables of any kind, pictures with boxes, hostile text."""

import base64
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from browser import Browser
from hostile import EVIL, hidden
from made_learning import make_quality, make_training, write_training
from made_quality import box_of, draw_scene, make_found, make_pictures, write_found
from trainstone.report.blocks import Figure, Gallery, Prose, Section, Table
from trainstone.report.figures import export_figures
from trainstone.report.page import Page, build_page, render, write_report
from trainstone.report.quality_pictures import MOST_BYTES, MOST_PICTURES, read_gallery
from trainstone.report.sections.quality import build
from trainstone.report.vega import Scripts
from trainstone.report.view import read_view
from trainstone.results.quality import Quality, QualityPicture, QualityTable

ROWS: list[list[str | float | None]] = [["ant", 0.25, 7], ["bee", 0.5, 1204], ["cat", None, 3]]


def table_of(drawn: str, **changes: Any) -> QualityTable:
    given = {"name": "a-table", "title": "A table", "drawn": drawn, "columns": ["what", "AP", "boxes"], "rows": ROWS}
    return QualityTable(**(given | changes))


def find_section(page: Page) -> Section | None:
    return next((section for section in page.sections if section.id == "quality"), None)


def section_of(folder: Path, **changes: Any) -> Section:
    quality = make_quality(metric="map", **changes)
    found = build(read_view(write_training(folder, make_training(quality=quality))))
    assert found is not None
    return found


def gallery_of(folder: Path, *pictures: QualityPicture) -> tuple[Gallery | None, list[str]]:
    """What the section shows of pictures in a run that has the four of made_quality."""
    found = build(read_view(write_found(folder, make_found(tables=[], pictures=list(pictures)))))
    blocks = found.blocks if found else []
    notes = [block.text for block in blocks if isinstance(block, Prose)]
    return next((block for block in blocks if isinstance(block, Gallery)), None), notes


def picture_of(*boxes: Any, **changes: Any) -> QualityPicture:
    given = {"file": "pictures/000000000000.jpg", "title": "one", "width": 640, "height": 427, "boxes": list(boxes)}
    return QualityPicture(**(given | changes))


def test_a_run_without_tables_and_pictures_has_no_such_section(tmp_path: Path):
    assert find_section(build_page(read_view(write_training(tmp_path)))) is None


def test_everything_is_shown_in_order_below_the_learning(tmp_path: Path):
    page = build_page(read_view(write_found(tmp_path)))
    names = [section.id for section in page.sections]
    assert names[names.index("learning") + 1] == "quality"
    section = find_section(page)
    assert section is not None
    assert section.lead == "Of the evaluation with 0.232 mAP, after 8 epochs."
    kinds = [block.kind for block in section.blocks]
    assert kinds == ["gallery", "table", "figure", "prose", "table", "figure", "prose"]
    figures = [block for block in section.blocks if isinstance(block, Figure)]
    assert [figure.title for figure in figures] == ["Precision over recall", "Average precision by class"]
    assert len(figures[1].spec["layer"][0]["data"]["values"] if "data" in figures[1].spec["layer"][0] else
               figures[1].spec["data"]["values"]) == 80  # fmt: skip


def test_lines_are_drawn_by_their_names_with_axes_of_shares(tmp_path: Path):
    rows = [[x / 10, 1 - x / 10 * steep, f"steep {steep}"] for steep in (0.5, 0.9) for x in range(11)]
    table = table_of("lines", columns=["recall", "precision", "line"], rows=rows, note="How to read it.")
    figure, prose = section_of(tmp_path, tables=[table]).blocks
    assert isinstance(figure, Figure)
    line = figure.spec["layer"][0]["encoding"]
    assert (line["x"]["title"], line["y"]["title"]) == ("recall", "precision")
    assert line["x"]["scale"] == line["y"]["scale"] == {"domain": [0, 1]}
    assert line["color"]["scale"]["domain"] == ["steep 0.5", "steep 0.9"]
    assert figure.alt == (
        "A table: precision over recall. steep 0.5: 1.000 at 0.000, 0.500 at 1.000; "
        "steep 0.9: 1.000 at 0.000, 0.100 at 1.000."
    )
    assert prose == Prose("How to read it.")
    assert figure.data is not None
    assert len(figure.data.rows) == 22


def test_lines_beyond_shares_have_the_axis_they_need(tmp_path: Path):
    table = table_of("lines", columns=["x", "y", "line"], rows=[[0, 5, "a"], [30, 900, "a"]])
    (figure,) = section_of(tmp_path, tables=[table]).blocks
    assert "domain" not in figure.spec["layer"][0]["encoding"]["x"]["scale"]


def test_bars_have_their_values_and_tell_the_rest(tmp_path: Path):
    (figure,) = section_of(tmp_path, tables=[table_of("bars")]).blocks
    assert isinstance(figure, Figure)
    assert figure.spec["data"]["values"] == [
        {"place": "ant", "x": 0.25, "told": "0.250", "more": "AP 0.250, boxes 7"},
        {"place": "bee", "x": 0.5, "told": "0.500", "more": "AP 0.500, boxes 1,204"},
    ]
    assert figure.alt == "A table: AP from 0.500 (bee) to 0.250 (ant)."
    assert figure.spec["height"] == 2 * 18


def test_equal_names_are_bars_of_their_own(tmp_path: Path):
    table = table_of("bars", columns=["what", "AP"], rows=[["crane", 0.5], ["crane", 0.3], ["", 0.1]])
    (figure,) = section_of(tmp_path, tables=[table]).blocks
    assert [bar["place"] for bar in figure.spec["data"]["values"]] == ["crane", "crane #2", "?"]


@pytest.mark.parametrize("value", [0.0, -0.5, 1e300])
def test_bars_of_any_value_are_drawn(tmp_path: Path, value: float):
    (figure,) = section_of(tmp_path, tables=[table_of("bars", rows=[["a", value, 1]])]).blocks
    least, most = figure.spec["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert least <= min(0, value) < max(0, value) <= most or value == 0.0 == least < most


def test_tables_are_tables_with_their_title_and_note(tmp_path: Path):
    (table,) = section_of(tmp_path, tables=[table_of("table", note="Read it.")]).blocks
    assert isinstance(table, Table)
    assert table.caption == "A table. Read it."
    assert table.rows == [["ant", "0.250", "7"], ["bee", "0.500", "1,204"], ["cat", "", "3"]]
    assert table.numeric == [False, True, True]


@pytest.mark.parametrize("drawn", ["lines", "bars", "table"])
def test_tables_that_do_not_fit_their_kind_do_no_harm(tmp_path: Path, drawn: str):
    odd = [
        table_of(drawn, rows=[]),
        table_of(drawn, rows=[["a"], ["a", 1, 2, 3]]),
        table_of(drawn, columns=["one"], rows=[["x"]]),
        table_of(drawn, rows=[["a", "b", "c"], [None, None, None]]),
    ]
    page = build_page(read_view(write_training(tmp_path, make_training(quality=make_quality(tables=odd)))))
    section = find_section(page)
    assert section is not None
    assert all(isinstance(block, Table) for block in section.blocks)
    render(page, "")


def test_a_picture_has_its_boxes_and_how_many_were_found(tmp_path: Path):
    picture = picture_of(
        box_of("dog", (0.5, 0.25, 0.75, 0.5), right_one=True),
        box_of("cat", (0.1, 0.1, 0.2, 0.2), right_one=False),
        box_of("dog", (0.5, 0.25, 0.75, 0.5), score=0.91, right_one=True),
        box_of("cow", (-0.2, 0.9, 0.3, 1.4), score=0.4, right_one=False),
        box_of("dog", (0.5, 0.3, 0.75, 0.5), score=0.1, right_one=True),
    )
    gallery, notes = gallery_of(tmp_path, picture)
    assert gallery is not None
    assert (gallery.min_score, notes) == (0.3, [])
    (shown,) = gallery.rows
    assert base64.b64decode(shown.jpeg_base64).startswith(b"\xff\xd8")
    assert (shown.num_right, shown.num_true) == (1, 2)
    assert shown.alt == "one: 2 true boxes; found dog 0.91 right, cow 0.40 wrong; never found cat."
    assert [(box.look, box.tag, box.score) for box in shown.outlines] == [
        ("true", "", None),
        ("true", "cat", None),
        ("right", "dog 0.10", 0.1),
        ("wrong", "✗ cow 0.40", 0.4),
        ("right", "dog 0.91", 0.91),
    ]
    first, outside = shown.outlines[0], shown.outlines[3]
    assert (first.left, first.top, first.width, first.height) == (320, 106.75, 160, 106.75)
    assert (outside.left, outside.width, outside.top + outside.height) == (0, 192, 427)
    assert shown.outlines[1].text == "cat, true, never found"


def test_words_stay_inside_the_picture(tmp_path: Path):
    corner = box_of("x" * 200, (0.95, 0.0, 1.0, 0.02), score=0.9, right_one=True)
    gallery, _ = gallery_of(tmp_path, picture_of(corner, box_of("dog", (0, 0, 1, 1), right_one=False)))
    assert gallery is not None
    true, found = gallery.rows[0].outlines
    letter = gallery.rows[0].letter_height
    assert len(found.tag) < 40
    assert found.tag_left + 0.6 * letter * len(found.tag) <= 640
    assert letter <= found.tag_base < 427
    assert letter <= true.tag_base < 427


def test_boxes_without_a_place_are_left_out(tmp_path: Path):
    turned, beyond = (0.5, 0.5, 0.2, 0.6), (1.2, 0.1, 1.4, 0.3)
    gallery, _ = gallery_of(tmp_path, picture_of(box_of("a", turned), box_of("b", beyond), box_of("c", (0, 0, 1, 1))))
    assert gallery is not None
    assert [box.text for box in gallery.rows[0].outlines] == ["c, true"]


def test_pictures_that_cannot_be_shown_are_told(tmp_path: Path):
    (tmp_path / "secret.jpg").write_bytes(b"\xff\xd8\xff secret")
    folder = tmp_path / "run"
    (folder / "pictures").mkdir(parents=True)
    (folder / "good.jpg").write_bytes(draw_scene(0)[0])
    (folder / "text.jpg").write_text("no picture")
    (folder / "huge.jpg").write_bytes(b"\xff\xd8\xff" + bytes(MOST_BYTES))
    (folder / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    os.mkfifo(folder / "pipe.jpg")
    faults = {
        "gone.jpg": "missing", "text.jpg": "no JPEG", "huge.jpg": "too large", "link.jpg": "outside of the run folder",
        "pipe.jpg": "missing", "../secret.jpg": "outside of the run folder", "pictures": "missing",
        str(tmp_path / "secret.jpg"): "outside of the run folder", "a\0b": "no name of a file",
    }  # fmt: skip
    for file, fault in faults.items():
        gallery, notes = read_gallery(folder, [picture_of(file=file), picture_of(file="good.jpg")])
        assert gallery is not None
        assert len(gallery.rows) == 1
        assert notes == [f"1 picture left out: {file} ({fault})."]
    flat, endless = picture_of(file="good.jpg", width=0), picture_of(file="x" * 5000)
    gallery, notes = read_gallery(folder, [flat, endless])
    assert gallery is None
    assert notes[0].startswith("2 pictures left out: good.jpg (it has no size), xxx")


def test_a_missing_picture_is_told_on_the_page(tmp_path: Path):
    gallery, notes = gallery_of(tmp_path, picture_of(file="pictures/gone.jpg"))
    assert gallery is None
    assert notes == ["1 picture left out: pictures/gone.jpg (missing)."]


def test_of_many_pictures_the_first_are_shown(tmp_path: Path):
    gallery, notes = gallery_of(tmp_path, *[picture_of()] * (MOST_PICTURES + 2))
    assert gallery is not None
    assert len(gallery.rows) == MOST_PICTURES
    assert notes == [f"The first {MOST_PICTURES} of {MOST_PICTURES + 2} pictures are shown."]


def make_hostile() -> Quality:
    """Text from files everywhere it can stand."""
    tables = [
        table_of("lines", name=EVIL, title=EVIL, columns=[EVIL] * 3, rows=[[0, 1, EVIL], [1, 0, EVIL]], note=EVIL),
        table_of(
            "bars", name="../../x", title=EVIL, columns=[EVIL] * 2, rows=[[EVIL, 0.5], ["a.b[0]", 0.25]], note=EVIL
        ),
        table_of("table", title=EVIL, columns=[EVIL], rows=[[EVIL]], note=EVIL),
    ]
    boxes = [
        box_of(EVIL, (0.2, 0.2, 0.4, 0.5), right_one=False),
        box_of(EVIL, (0, 0, 1, 1), score=0.9, right_one=False),
    ]
    pictures = [picture_of(*boxes, title=EVIL), picture_of(file=EVIL, title=EVIL)]
    return make_found(tables=tables, pictures=pictures)


def test_hostile_text_stays_text(tmp_path: Path):
    page = build_page(read_view(write_found(tmp_path, make_hostile())))
    html = render(page, "")
    assert html.count("<script>'") == 0
    assert not hidden(html)
    assert all(re.fullmatch("[a-z0-9-]+", figure.name) for figure in page.figures)


def test_without_scripts_the_less_sure_boxes_are_hidden_all_the_same(tmp_path: Path):
    html = render(build_page(read_view(write_found(tmp_path))), "")
    boxes = re.findall(r'<g class="(?:right|wrong)( low)?" data-score="([0-9.]+)">', html)
    assert boxes
    assert all(bool(low) == (float(score) < 0.3) for low, score in boxes)
    assert {bool(low) for low, _ in boxes} == {True, False}
    assert re.search(r'<input type="range"[^>]* hidden>', html)
    assert "score at least <output>0.30</output>" in html


def test_the_metric_is_drawn_and_told_as_a_number(tmp_path: Path):
    page = build_page(read_view(write_found(tmp_path)))
    learning = next(section for section in page.sections if section.id == "learning")
    epochs, over_time = learning.blocks[:2]
    assert (epochs.title, over_time.title) == ("mAP and mAP@0.5 over epochs", "mAP and mAP@0.5 over time")
    assert epochs.alt == "mAP from 0.031 to 0.232 after 8 epochs and 2 min 27 s; the target of 0.23 was reached."
    assert '"title": "mAP"' in json.dumps(epochs.spec)
    table = learning.blocks[-1]
    assert table.columns[2:6] == ["mAP", "mAP@0.5", "mAP@0.75", "mAP small"]
    assert table.rows[-1][2:4] == ["0.232", "0.394"]
    assert page.sections[0].blocks[0].rows[:2] == [("mAP", "0.232"), ("target 0.23", "reached")]


def test_the_charts_become_files(tmp_path: Path):
    page = build_page(read_view(write_found(tmp_path)))
    figures = [figure for figure in page.figures if figure.name.startswith("quality")]
    files = export_figures(figures, tmp_path / "figures", "svg")
    assert [file.name for file in files] == ["quality-1-precision-recall.svg", "quality-3-ap-by-class.svg"]
    assert "parking meter" in files[1].read_text()


SHOWN = (
    "[...document.querySelectorAll('.judged g[data-score]')].filter(box => getComputedStyle(box).display !== 'none')"
)
MOVE = (
    "(value => {{ const slider = document.querySelector('.judged input'); slider.value = value;"
    " slider.dispatchEvent(new Event('input')); }})({})"
)


def test_a_browser_draws_it_and_the_reader_chooses_the_score(browser: Browser, tmp_path: Path):
    usual, hostile = write_found(tmp_path), write_found(tmp_path / "hostile", make_hostile())
    with Scripts() as scripts:
        for path in (usual, hostile):
            write_report(path, scripts)
    for path, width, dark in ((usual, 390, True), (usual, 1400, False), (hostile, 390, False)):
        page = browser.open(path / "report.html", width=width, dark=dark)
        page.evaluate("window.chartsDrawn.then(() => null)")
        drawn = page.evaluate("[...document.querySelectorAll('.chart')].map(place => place.dataset.drawn)")
        assert set(drawn) == {"yes"}, page.console_errors
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.console_errors == []
        assert page.network_requests == []
        page.close()
    page = browser.open(usual / "report.html", width=1000)
    scores = sorted(box.score for picture in make_pictures() for box in picture.boxes if box.score is not None)
    for least in (0.3, 0.9, 0.0):
        if least != 0.3:  # where the page begins
            page.evaluate(MOVE.format(least))
        shown = sorted(page.evaluate(f"{SHOWN}.map(box => Number(box.dataset.score))"))
        assert shown == pytest.approx([score for score in scores if score >= least])
        assert page.evaluate("document.querySelector('.judged output').textContent") == f"{least:.2f}"
    right = sum(box.right_one is True for box in make_pictures()[3].boxes if box.score is not None)
    assert page.evaluate("document.querySelectorAll('.judged .count')[3].textContent") == str(right)
    img, svg = (
        page.evaluate(f"document.querySelector('.large {tag}').getBoundingClientRect().width") for tag in ("img", "svg")
    )
    assert img == svg > 200
    page.close()
