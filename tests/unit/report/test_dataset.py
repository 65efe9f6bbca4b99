"""The page of a data set."""

from pathlib import Path

import pytest

from browser import Browser
from hostile import EVIL, hidden
from trainstone.report.blocks import Facts, Gallery, Table
from trainstone.report.dataset import build_dataset_page, write_dataset_page
from trainstone.report.dataset_charts import name_classes
from trainstone.report.page import render
from trainstone.report.vega import Scripts
from trainstone.results.dataset import (
    BadRecord,
    BoxCounts,
    ClassSummary,
    DatasetSummary,
    LookedAt,
    Quantiles,
    SampleBox,
    SamplePicture,
    SizeCount,
    SplitSummary,
)

# One grey pixel
JPEG = (
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAMCAgMCAgMDAwMEAwMEBQgFBQQEBQoHBwYIDAoMDAsKCwsNDhIQDQ4RDgsLEBYQERMUFRUVDA8XGBYU"
    "GBIUFRT/wAALCAABAAEBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAACf/EABQQAQAAAAAAAAAAAAAAAAAAAAD/2gAIAQEAAD8AKp//2Q=="
)


def spread(low: float, high: float) -> Quantiles:
    return Quantiles(minimum=low, p5=low, median=(low + high) / 2, p95=high, maximum=high, mean=(low + high) / 2)


def make_split(name: str, counts: list[int], **changes) -> SplitSummary:
    looked = LookedAt(
        pictures=5,
        width=spread(300, 500),
        height=spread(200, 400),
        bytes=spread(1000, 3000),
        kinds={"jpeg": 4, "png": 1},
        colours={"rgb": 5},
        sizes=[SizeCount(width=500, height=375, pictures=4), SizeCount(width=300, height=200, pictures=1)],
    )
    given = {"records": sum(counts), "counted": sum(counts), "looked_at": looked, **changes}
    return SplitSummary(name=name, class_counts=counts, **given)


def make_summary(num_classes: int = 3, *, text: str = "thing", detect: bool = False) -> DatasetSummary:
    counts = [number % 7 + 1 for number in range(num_classes)]
    boxes = BoxCounts(boxes=sum(counts), pictures=4, per_picture={0: 1, 2: 2, 90: 1}) if detect else None
    bad = [BadRecord(where=f"{text}.rec, byte 8", why=text)]
    box = SampleBox(text=text, left=0.25, top=0, right=0.75, bottom=1, crowd=True)
    return DatasetSummary(
        path=text,
        kind="detect" if detect else "classify",
        storage=text,
        name=text,
        classes=[ClassSummary(name=f"n{number}", text=f"{text} {number}") for number in range(num_classes)],
        splits=[
            make_split("train", counts, boxes=boxes, num_bad=1, bad=bad, shards=2, bytes=2**20),
            make_split("val", counts, boxes=boxes, outside=3, unlabelled=4),
        ],
        samples=[
            SamplePicture(split="train", name=text, label=text, width=40, height=20, jpeg_base64=JPEG, boxes=[box])
        ],
    )


def test_all_that_was_found_is_on_the_page():
    page = build_dataset_page(make_summary(detect=True))
    assert page.verdict == "thing: 12 pictures of 3 classes, 6 in train and 6 in val"
    assert [section.id for section in page.sections] == ["overview", "samples", "labels", "boxes", "sizes", "bad"]
    tiles, table = page.sections[0].blocks
    assert isinstance(tiles, Facts)
    assert ("boxes", "12") in tiles.rows
    assert isinstance(table, Table)
    cells = [cell.replace("\N{NO-BREAK SPACE}", " ") for cell in table.rows[0]]
    assert cells == ["train", "6", "1 MiB", "2", "400 × 300", "jpeg 80.0 %, png 20.0 %", "rgb", "1"]
    assert table.rows[1][2] == "about 11.7 KiB"


def test_what_was_only_counted_in_part_says_so():
    summary = make_summary(detect=True)
    part = summary.splits[0].model_copy(update={"counted": 4})
    page = build_dataset_page(summary.model_copy(update={"splits": [part]}))
    assert page.verdict == "thing: 6 pictures of 3 classes"
    labels = next(section for section in page.sections if section.id == "labels")
    assert "Not all pictures were counted: 4 of 6 in train." in labels.lead
    assert ("boxes in 4 pictures", "6") in page.sections[0].blocks[0].rows


def test_few_classes_are_named_and_many_ranked():
    few = build_dataset_page(make_summary(3)).figures[0]
    assert [row["class"] for row in few.spec["data"]["values"]] == ["thing 2", "thing 1", "thing 0"]
    assert "from 1 (thing 0) to 3 (thing 2)" in few.alt
    page = build_dataset_page(make_summary(1000))
    counts = [row["pictures"] for row in page.figures[0].spec["data"]["values"]]
    assert len(counts) == 1000
    assert counts == sorted(counts, reverse=True)
    labels = next(section for section in page.sections if section.id == "labels")
    extremes = [block for block in labels.blocks if isinstance(block, Table)]
    assert len(extremes) == 2
    assert len(extremes[0].rows) == 10
    assert extremes[0].rows[0][1::2] == ["7", "1"]


def test_classes_of_the_same_name_get_what_tells_them_apart():
    classes = [
        ClassSummary(name=name, text=text) for name, text in (("n1", "crane"), ("n2", "crane"), ("n3", ""), ("n3", ""))
    ]
    assert name_classes(classes) == ["crane (n1)", "crane (n2)", "n3 (n3) #2", "n3 (n3) #3"]


def test_boxes_are_drawn_in_the_pictures_pixels_and_long_tails_end():
    page = build_dataset_page(make_summary(detect=True))
    gallery = page.sections[1].blocks[0]
    assert isinstance(gallery, Gallery)
    (outline,) = gallery.rows[0].outlines
    assert (outline.left, outline.top, outline.width, outline.height) == (10, 0, 20, 20)
    assert outline.text == "thing, a crowd"
    bars = next(figure for figure in page.figures if figure.name == "boxes-0").spec["data"]["values"]
    assert [(bar["boxes"], bar["pictures"]) for bar in bars if bar["pictures"]] == [(0, 1), (2, 2), (40, 1)]


def test_pictures_of_one_size_need_no_chart():
    summary = make_summary()
    looked = summary.splits[0].looked_at
    assert looked is not None
    alike = looked.model_copy(update={"sizes": looked.sizes[:1]})
    splits = [split.model_copy(update={"looked_at": alike}) for split in summary.splits]
    page = build_dataset_page(summary.model_copy(update={"splits": splits}))
    assert not [figure for figure in page.figures if figure.name.startswith("sizes")]


def test_an_empty_data_set_has_a_page():
    nothing = DatasetSummary(
        path="a/b", kind="classify", storage="class folders", name="", classes=[], splits=[], samples=[]
    )
    page = build_dataset_page(nothing)
    assert page.verdict == "b: 0 pictures of 0 classes"
    empty = SplitSummary(name="train", records=0, counted=0, class_counts=[])
    page = build_dataset_page(nothing.model_copy(update={"splits": [empty]}))
    assert [section.id for section in page.sections] == ["overview"]
    assert "a/b" in render(page, "")


@pytest.mark.parametrize("detect", [False, True])
@pytest.mark.parametrize("num_classes", [2, 60])
def test_hostile_text_stays_text(detect: bool, num_classes: int):
    html = render(build_dataset_page(make_summary(num_classes, text=EVIL, detect=detect)), "")
    assert html.count("<script>'") == 0
    assert not hidden(html)
    assert "&lt;script&gt;&#39;" in html


def test_the_page_draws_at_any_width_without_asking_anybody(browser: Browser, tmp_path: Path):
    with Scripts() as scripts:
        write_dataset_page(make_summary(detect=True), tmp_path / "data.html", scripts)
    for width, dark in ((390, True), (1400, False)):
        page = browser.open(tmp_path / "data.html", width=width, dark=dark)
        page.evaluate("window.chartsDrawn.then(() => null)")
        assert page.evaluate("[...document.querySelectorAll('.chart')].every(place => place.dataset.drawn === 'yes')")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.querySelector('.gallery img').naturalWidth") == 1
        ratio = "(({width, height}) => width / height)(document.querySelector('.gallery rect').getBoundingClientRect())"
        assert page.evaluate(ratio) == pytest.approx(1, abs=0.1)
        assert page.console_errors == []
        assert page.network_requests == []
        page.close()
