"""The page about how fast a data set feeds."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from browser import Browser
from hostile import EVIL, hidden
from made_feeding import A100, HERE, make_feeding, make_point
from made_results import make_result
from trainstone.report.blocks import Facts, Findings, Table
from trainstone.report.feeding_charts import DEMAND, IDEAL, MEASURED, draw_threads
from trainstone.report.page import Page, build_page, render, write_page
from trainstone.report.vega import Scripts
from trainstone.report.view import RunView
from trainstone.results.feeding import Feeding, Stage, write_verdict
from trainstone.results.schema import Finding

FOUND = [
    Finding(code="a", severity="info", message="i", hint="h"),
    Finding(code="b", severity="error", message="e", hint="h"),
]


def make_wide(**changes) -> Feeding:
    points = [(1, 600, 1.0), (2, 1190, 2.0), (4, 2200, 4.0), (8, 2400, 7.9)]
    made = [make_point(threads, rate, busy, cores=4) for threads, rate, busy in points]
    return make_feeding(made, cores=4, **changes)


def build_feeding_page(feeding: Feeding, **changes) -> Page:
    """The page of a run of data bench."""
    given = {"kind": "data", "status": "ok", "grade": None, "verdict": write_verdict(feeding, "ResNet-50")}
    result = make_result("set", None, data_bench=feeding, **(given | changes))
    return build_page(RunView(Path("nowhere"), result, Path("nowhere")))


def section(page: Page, name: str):
    return next(section for section in page.sections if section.id == name)


def rows_of(chart: dict, kind: str) -> list[dict]:
    """Data rows of the layers that draw this kind."""
    found = []
    for layer in chart["layer"]:
        found += [row for row in layer["data"]["values"] if row["what"].startswith(kind)]
    return found


class Tags(HTMLParser):
    """Collects what a page refers to, and whether its tags are closed in order."""

    VOID = ("meta", "input", "img", "br")

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src", "action", "data")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_all_that_was_measured_is_on_the_page():
    page = build_feeding_page(make_wide(demand=A100, skipped=3), findings=FOUND)
    assert page.verdict.startswith("2,400 images/s with 8 threads on 4 cores (600 a core); decoding takes 78 %")
    names = ["overview", "findings", "threads", "stages", "cores", "method"]
    assert [section.id for section in page.sections][:6] == names
    tiles = page.sections[0].blocks[0]
    assert isinstance(tiles, Facts)
    assert tiles.rows == [
        ("images/s, 8 threads", "2,400"),
        ("images/s a core", "600"),
        ("of the time: decoding", "78 %"),
        ("cores for 20,000 images/s", "34"),
        ("cores here", "4"),
        ("pictures passed over", "3"),
    ]
    found = section(page, "findings").blocks[0]
    assert isinstance(found, Findings)
    assert [one.code for one in found.rows] == ["b", "a"]


def test_tables_hold_the_numbers():
    page = build_feeding_page(make_wide())
    points = section(page, "threads").blocks[-1]
    assert isinstance(points, Table)
    assert points.columns == ["threads", "images/s", "95 % interval", "busy CPUs", "images/s a core", "of the ideal"]
    assert points.rows[-1] == ["8", "2,400", "2,376 … 2,424", "7.90", "600", "50 %"]
    stages = section(page, "stages").blocks[-1]
    assert isinstance(stages, Table)
    assert stages.rows[1] == ["decode", "1,560", "78.0 %"]
    assert stages.rows[-1] == ["all", "2,000", "100.0 %"]
    assert section(page, "cores").lead.startswith("A core feeds 600 images/s with 8 threads, the most measured")


def test_points_have_their_intervals_and_the_ideal_ends_where_it_leaves_the_picture():
    chart = draw_threads(make_wide()).spec
    measured = {row["threads"]: row for row in rows_of(chart, MEASURED)}
    assert {threads: row["rate"] for threads, row in measured.items()} == {1: 600, 2: 1190, 4: 2200, 8: 2400}
    assert (measured[8]["low"], measured[8]["high"]) == (2376, 2424)
    start, end = rows_of(chart, IDEAL)
    assert (start["threads"], start["rate"]) == (0, 0)
    assert end["rate"] == pytest.approx(600 * end["threads"], rel=1e-4)
    assert 2400 < end["rate"] < 600 * 8


def test_an_ideal_within_the_picture_is_drawn_whole():
    _, end = rows_of(draw_threads(make_feeding()).spec, IDEAL)
    assert (end["threads"], end["rate"]) == (2, 1200)


@pytest.mark.parametrize(("rate", "drawn"), [(3000.0, True), (600.0, True), (20_000.0, False), (5.1, False)])
def test_a_demand_is_drawn_where_it_lies_in_the_picture(rate: float, drawn: bool):
    figure = draw_threads(make_wide(demand=A100.model_copy(update={"images_per_second": rate})))
    rules = rows_of(figure.spec, DEMAND)
    assert [row["rate"] for row in rules] == ([rate] if drawn else [])
    assert ("demanded" in figure.alt) == drawn
    tops = {layer["encoding"]["y"]["scale"]["domain"][1] for layer in figure.spec["layer"]}
    assert len(tops) == 1
    assert tops.pop() > (max(rate, 2424) if drawn else 2424)


def test_one_point_needs_no_chart_and_has_its_table():
    page = build_feeding_page(make_feeding([make_point(2, 1190)], stages=[]))
    assert page.figures == []
    assert {"overview", "threads", "cores", "method"} <= {section.id for section in page.sections}
    assert "stages" not in {section.id for section in page.sections}
    (table,) = section(page, "threads").blocks
    assert isinstance(table, Table)
    assert table.columns == ["threads", "images/s", "95 % interval", "images/s a core"]
    assert "1,190" in render(page, "")


def test_points_without_intervals_or_one_thread_are_drawn_as_they_are():
    points = [make_point(n, 600.0 * n, cores=4, ci95=None, ci_covers="not established: 3 batches") for n in (2, 4)]
    feeding = make_feeding(points, cores=4)
    chart = draw_threads(feeding).spec
    assert rows_of(chart, IDEAL) == []
    assert not [row for row in rows_of(chart, MEASURED) if "low" in row]
    threads = section(build_feeding_page(feeding), "threads")
    assert threads.lead == "2,400 images/s with 4 threads; 95 % interval not established: 3 batches."
    assert threads.blocks[-1].columns == ["threads", "images/s", "images/s a core"]


def test_the_cpu_that_feeds_and_trains_is_told():
    page = build_feeding_page(make_wide(demand=HERE))
    assert "of the cores that train" in page.verdict
    assert "of the cores that train" in section(page, "cores").lead


def test_stages_are_bars_with_their_shares_and_told_in_words():
    figure = next(figure for figure in build_feeding_page(make_wide()).figures if figure.name == "stages")
    bars = figure.spec["layer"][0]["data"]["values"]
    assert [(bar["stage"], bar["µs"], bar["share"]) for bar in bars] == [
        ("read", 200, "10 %"),
        ("decode", 1560, "78 %"),
        ("batch", 240, "12 %"),
    ]
    assert figure.alt == "Microseconds an image: read: 200 µs, 10 %; decode: 1,560 µs, 78 %; batch: 240 µs, 12 %."


def test_stages_without_time_still_make_a_page():
    page = build_feeding_page(make_wide(stages=[Stage(name="read", seconds_per_image=0, share=0)]))
    assert "Of 0 µs an image, reading takes 0 %." in render(page, "")


def make_hostile() -> Feeding:
    evil = {
        "path": EVIL,
        "storage": EVIL,
        "split": EVIL,
        "transform": EVIL,
        "engine": EVIL,
        "decode": EVIL,
        "cpu": EVIL,
    }
    return make_feeding(
        [make_point(threads, 600.0 * threads, ci_covers=f"{EVIL} {threads}") for threads in (1, 2)],
        demand=A100.model_copy(update={"device": EVIL, "how": EVIL, "images_per_second": 1300.0}),
        stages=[Stage(name=EVIL, seconds_per_image=1e-3, share=1)],
        **evil,
    )


EVIL_RUN = {"verdict": EVIL, "findings": [Finding(code=EVIL, severity="error", message=EVIL, hint=EVIL)]}


def test_hostile_text_stays_text():
    html = render(build_feeding_page(make_hostile(), **EVIL_RUN), "")
    assert html.count("<script>'") == 0
    assert not hidden(html)
    assert "&lt;script&gt;&#39;" in html


@pytest.mark.parametrize(
    ("feeding", "changes"),
    [(make_wide(demand=A100), {"findings": FOUND}), (make_hostile(), EVIL_RUN)],
    ids=["usual", "hostile"],
)
def test_the_page_parses_and_refers_to_nothing_outside(feeding: Feeding, changes: dict):
    html = render(build_feeding_page(feeding, **changes), "")
    tags = Tags()
    tags.feed(html)
    tags.close()
    assert tags.open == []
    assert tags.addresses
    assert all(address.startswith("#") for address in tags.addresses)
    assert not re.search(r"(https?:)?//[a-z]", re.sub(r"^ *//.*$", "", html, flags=re.MULTILINE))


def test_the_page_draws_at_any_width_without_asking_anybody(browser: Browser, tmp_path: Path):
    with Scripts() as scripts:
        wide = make_wide(demand=A100.model_copy(update={"images_per_second": 3000.0}))
        write_page(build_feeding_page(wide), tmp_path / "a.html", scripts)
        write_page(build_feeding_page(make_hostile(), **EVIL_RUN), tmp_path / "b.html", scripts)
    for name, width, dark in (("a", 390, True), ("a", 1400, False), ("b", 390, False)):
        page = browser.open(tmp_path / f"{name}.html", width=width, dark=dark)
        page.evaluate("window.chartsDrawn.then(() => null)")
        assert (
            page.evaluate("[...document.querySelectorAll('.chart')].map(place => place.dataset.drawn)") == ["yes"] * 2
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.console_errors == []
        assert page.network_requests == []
        page.close()
