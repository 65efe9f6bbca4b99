"""Tests of every kind of page: recorded text, escaping, charts in files and browsers.

After an intended change, record again with GOLDEN_RECORD=1 and review the diff.
"""

import json
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from support.builders.hostile_text import hidden
from support.builders.pages import KINDS, make_summary, make_view, poison
from support.servers.browser import Browser
from trainstone.cli.render.run import print_result
from trainstone.report.dataset import build_dataset_page
from trainstone.report.index import build_index
from trainstone.report.page import Page, build_page, export_figures, render, write_page

RECORDED = Path(__file__).parent / "pages"
DATASETS = {"dataset": {"detect": True}, "dataset-classes": {"num_classes": 60}}
ALL = [*KINDS, *DATASETS, "index"]
OF_BENCH = ("killed", "throttled", "ten-ranks", "train-missed")
"""Similar to other kinds; tests/integration/test_report.py opens them all."""
MAX_ROWS = 4


def make_page(kind: str, folder: Path, *, hostile: bool = False) -> Page:
    """Build the page of a kind of run, of a data set, or the index."""
    if kind in DATASETS:
        summary = make_summary(**DATASETS[kind])
        return build_dataset_page(poison(summary) if hostile else summary)
    if kind == "index":
        views = [make_view(name, folder / name) for name in ("bench", "sweep", "train")]
        return build_index([*(view.path for view in views), folder / "gone"], folder)[0]
    return build_page(make_view(kind, folder, hostile=hostile))


def describe(page: Page) -> Iterator[str]:
    """Yield the text of a page without sections that depend on machine or release."""
    yield f"{page.about} | {page.verdict} | {page.setting}"
    for section in page.sections:
        if section.id in ("repeat", "machine"):
            continue
        yield f"== {section.id}: {section.title}. {section.lead}"
        for block in section.blocks:
            if block.kind == "figure":
                yield f"[figure {block.name}] {block.title}: {block.alt}"
            elif block.kind == "prose":
                yield f"[prose] {block.text}"
            elif block.kind == "gallery":
                yield f"[gallery] {'; '.join(image.alt or image.title for image in block.rows)}"
            elif block.kind == "findings":
                yield f"[findings] {', '.join(found.code for found in block.rows)}"
            elif block.kind in ("table", "facts"):
                rows = [" | ".join(map(str, row)) for row in block.rows]
                heads = [f"{' | '.join(block.columns)} ({block.caption})"] if block.kind == "table" else []
                shown = rows[:MAX_ROWS] + rows[max(MAX_ROWS, len(rows) - 1) :]
                yield f"[{block.kind}] {' // '.join(heads + shown)}"


@pytest.mark.parametrize("kind", ALL)
def test_page_matches_recorded_text(kind: str, tmp_path: Path):
    text = "\n".join(describe(make_page(kind, tmp_path))).replace(str(tmp_path), "FOLDER") + "\n"
    file = RECORDED / f"{kind}.txt"
    if os.environ.get("GOLDEN_RECORD"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()


class Tags(HTMLParser):
    """Collect the addresses in a page, and check that its tags are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src", "action", "data")]
        if tag not in ("meta", "input", "img", "br", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag or tag == "rect"


@pytest.mark.parametrize("kind", ALL)
def test_page_escapes_text_from_files(kind: str, tmp_path: Path):
    html = render(make_page(kind, tmp_path, hostile=True), "")
    assert "<script>'" not in html
    assert not hidden(html)
    if kind != "index":
        assert "&lt;script&gt;&#39;" in html
    tags = Tags()
    tags.feed(re.sub(r"<rect[^>]*/>", "", html))
    tags.close()
    assert tags.open == []
    assert not [address for address in tags.addresses if re.match("(https?:)?//|javascript:", address)]


@pytest.mark.parametrize("width", [40, 80, 400])
@pytest.mark.parametrize("kind", KINDS)
def test_terminal_output_escapes_text_from_files(
    kind: str, width: int, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", str(width))
    view = make_view(kind, tmp_path, hostile=True)
    print_result(view.result, view.path)
    text = capsys.readouterr().out
    assert not hidden(text)
    assert "[red][/]" in text or width < 400
    too_long = [line for line in text.splitlines() if len(line) > width]
    assert all(line.startswith(("result  ", "repeat  ")) for line in too_long)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALL)
def test_charts_have_alt_text_and_are_exported(kind: str, tmp_path: Path):
    for hostile in (False, True):
        figures = make_page(kind, tmp_path / str(hostile), hostile=hostile).figures
        assert len({figure.name for figure in figures}) == len(figures)
        for figure in figures:
            assert re.fullmatch("[a-z0-9-]+", figure.name)
            assert len(figure.alt) > 20
            assert figure.alt.endswith(".")
            json.dumps(figure.spec, allow_nan=False)
        for file in export_figures(figures, tmp_path / f"svg {hostile}", "svg"):
            text = file.read_text()
            assert text.startswith("<svg")
            assert not re.search(r"var\(--|NaN|undefined", text)


# Texts that reach out of their chart
CUT = """[...document.querySelectorAll('.chart')].flatMap(place =>
[...place.querySelectorAll('svg text')].filter(text => {
  const box = text.getBoundingClientRect(), around = place.querySelector('svg').getBoundingClientRect();
  return box.left < around.left - 1 || box.right > around.right + 1;
}).map(text => text.textContent))"""


@pytest.mark.slow
@pytest.mark.parametrize("hostile", [False, True], ids=["usual", "hostile"])
@pytest.mark.parametrize("kind", [kind for kind in ALL if kind not in OF_BENCH])
def test_page_fits_any_width_and_makes_no_requests(kind: str, hostile: bool, browser: Browser, tmp_path: Path):
    made = make_page(kind, tmp_path, hostile=hostile)
    write_page(made, tmp_path / "page.html")
    for width, dark in ((390, True),) if hostile else ((390, True), (1400, False)):
        page = browser.open(tmp_path / "page.html", width=width, dark=dark)
        page.evaluate("window.chartsDrawn.then(() => null)")
        drawn = page.evaluate("[...document.querySelectorAll('.chart')].map(place => place.dataset.drawn)")
        assert drawn == ["yes"] * len(made.figures), page.console_errors
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert hostile or page.evaluate(CUT) == []
        assert not re.search(r"NaN|undefined", page.evaluate("document.body.innerText"))
        assert page.console_errors == []
        assert page.network_requests == []
        page.close()
