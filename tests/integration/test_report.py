"""trainstone report through the real command line, and its pages in a real browser."""

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.processes.command import Finished
from support.servers.browser import Browser, BrowserError

CASES = ["good", "never-steady", "throttled", "data-starved", "killed", "ten-ranks"]
DRAWN = """
(async () => {
  await window.chartsDrawn;
  return Array.from(document.querySelectorAll('.chart')).map(place => {
    const svg = place.querySelector('svg');
    const box = svg ? svg.getBoundingClientRect() : {width: 0, height: 0};
    return {state: place.dataset.drawn, marks: svg ? svg.querySelectorAll('path, text, line').length : 0,
            width: box.width, height: box.height, room: place.clientWidth};
  });
})()
"""

TYPE = """
(() => {
  const box = document.getElementById('filter');
  box.value = '%s';
  box.dispatchEvent(new Event('input'));
})()
"""


def write(run: Callable[..., Finished], *arguments: str) -> Finished:
    done = run("report", *arguments)
    assert done.code == 0, done.err
    return done


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_page_opens_in_a_browser(quick, golden, browser: Browser, case: str):
    path = golden(case)
    write(quick, str(path))
    for width, dark in itertools.product((390, 1400), (False, True)):
        page = browser.open(path / "report.html", width=width, height=900, dark=dark)
        charts = page.evaluate(DRAWN)
        assert len(charts) >= 4
        for chart in charts:
            assert chart["state"] == "yes"
            assert chart["marks"] > 5
            assert chart["height"] > 20
            assert 0.6 * chart["room"] < chart["width"] <= chart["room"] + 1, "as wide as its place"
        assert page.console_errors == []
        assert page.network_requests == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing to scroll sideways"
        light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert light is not dark


def test_the_theme_button_turns_page_and_charts(quick, golden, browser: Browser):
    path = golden("good")
    write(quick, str(path))
    page = browser.open(path / "report.html")
    page.evaluate(DRAWN)
    look = """[getComputedStyle(document.body).backgroundColor,
               getComputedStyle(document.querySelector('#figure-throughput svg text')).fill]"""
    before = page.evaluate(look)
    page.evaluate("document.getElementById('theme').click()")
    after = page.evaluate(look)
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_it_can_be_used_by_keyboard_and_is_named_for_readers(quick, golden, browser: Browser):
    path = golden("ten-ranks")
    write(quick, str(path))
    page = browser.open(path / "report.html")
    page.evaluate(DRAWN)
    assert page.evaluate("document.querySelector('a, button, input, [tabindex]').className") == "skip"
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.evaluate("document.querySelectorAll('h1').length") == 1
    unnamed = """Array.from(document.querySelectorAll('.chart'))
                 .filter(c => !(c.closest('[role=img]')?.getAttribute('aria-label').length > 20)).length"""
    assert page.evaluate(unnamed) == 0
    dead = "Array.from(document.querySelectorAll('nav a')).filter(a => !document.querySelector(a.hash)).length"
    assert page.evaluate(dead) == 0
    nameless = """Array.from(document.querySelectorAll('button, a, input'))
                  .filter(e => !(e.textContent.trim() || e.labels?.length)).length"""
    assert page.evaluate(nameless) == 0


def test_the_index_filters_and_sorts(quick, golden, browser: Browser, tmp_path: Path):
    for case in CASES:
        shutil.move(golden(case), tmp_path / "runs" / case)
    done = write(quick, "runs")
    assert done.out.strip() == "report  runs/index.html"
    page = browser.open(tmp_path / "runs/index.html", width=390)
    shown = "Array.from(document.querySelectorAll('#filtered tbody tr')).filter(r => !r.hidden).map(r => r.textContent)"
    assert len(page.evaluate(shown)) == 6
    page.evaluate(TYPE % "KILLED")
    (only,) = page.evaluate(shown)
    assert "killed" in only
    assert page.evaluate("document.getElementById('shown').textContent") == "1 of 6 runs"
    heads = page.evaluate("Array.from(document.querySelectorAll('#filtered thead th')).map(h => h.textContent.trim())")
    column = heads.index("images/s")
    keys = f"Array.from(document.querySelectorAll('#filtered tbody tr')).map(r => r.cells[{column}].dataset.key)"
    for direction in ("ascending", "descending"):
        page.evaluate(f"document.querySelectorAll('#filtered thead th button')[{column}].click()")
        assert (
            page.evaluate(f"document.querySelectorAll('#filtered thead th')[{column}].getAttribute('aria-sort')")
            == direction
        )
        rates = [float(key) for key in page.evaluate(keys) if key]
        assert rates == sorted(rates, reverse=direction == "descending")
        assert page.evaluate(keys)[-1] == "", "what was not measured stands last"
    assert page.console_errors == []


def test_the_page_of_a_comparison_opens_in_a_browser(quick, golden, browser: Browser, tmp_path: Path):
    runs = str(golden("throttled")), "--to", str(golden("data-starved"))
    assert quick("compare", *runs, "--page", "runs.html", "--force").code == 0
    assert quick("compare", str(tmp_path / "throttled"), "--to", "published", "--page", "published.html").code == 0
    for name, width in itertools.product(("runs.html", "published.html"), (390, 1400)):
        page = browser.open(tmp_path / name, width=width)
        (chart,) = page.evaluate(DRAWN)
        assert chart["state"] == "yes"
        assert chart["width"] <= chart["room"] + 1
        assert page.console_errors == []
        assert page.network_requests == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert "NVIDIA/DeepLearningExamples" in page.evaluate("document.body.textContent"), "sources are named"


def test_charts_for_papers(quick, golden, tmp_path: Path):
    done = write(quick, str(golden("good")), "--png", "p", "--svg", "s", "--pdf", "d", "--json")
    written = done.json()
    assert Path(written["page"]).name == "report.html"
    for kind, folder in (("png", "p"), ("svg", "s"), ("pdf", "d")):
        names = {path.name for path in (tmp_path / folder).iterdir()}
        assert {f"timeline.{kind}", f"throughput.{kind}", f"distribution.{kind}"} <= names
        assert {Path(name).name for name in written["figures"]} >= names


def test_the_page_may_lie_elsewhere(trainstone, golden, tmp_path: Path):
    path = golden("good")
    done = write(trainstone, str(path / "result.json"), "--page", "mine.html")
    assert done.out.strip() == "report  mine.html"
    assert (tmp_path / "mine.html").stat().st_size < 5_000_000
    assert not (path / "report.html").exists()


def test_wrong_input(quick, golden, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    assert quick("report", "absent").code == 7
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/result.json").write_text('{"benchmarks": []}')
    assert quick("report", "foreign").code == 7
    assert quick("report", "empty").code == 7
    assert quick("report", "empty", "absent").code == 7
    assert quick("report").code == 2
    good = golden("good")
    assert quick("report", str(good), str(golden("throttled")), "--png", "x").code == 2
    assert quick("report", str(good), "--page", "absent/folder/x.html").code == 7
    (tmp_path / "file").write_text("")
    assert quick("report", str(good), "--svg", "file").code == 7


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "error", "request_"),
    [
        ("<script>console.error('bad', 7)</script>", "bad 7", ""),
        ("<script>undefinedFunction()</script>", "undefinedFunction is not defined", ""),
        ("<script>fetch('http://example.com/x').catch(() => {})</script>", "", "http://example.com/x"),
        ("<img src='http://example.com/x'>", "", "http://example.com/x"),
    ],
)
def test_browser_lists_errors_and_requests(browser: Browser, tmp_path: Path, body: str, error: str, request_: str):
    path = tmp_path / "page one & only.html"
    path.write_text(f"<!doctype html><meta charset=utf-8><title>Ünder test</title>{body}", encoding="utf-8")
    # Sees what a page does wrong: else no test of a page could fail.
    page = browser.open(path, width=640, height=480, dark=True)
    assert page.evaluate("[document.title, innerWidth, innerHeight]") == ["Ünder test", 640, 480]
    assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") is True
    with pytest.raises(BrowserError):
        page.evaluate("null.x")
    assert error in " ".join(page.console_errors)
    assert page.network_requests == ([request_] if request_ else [])
