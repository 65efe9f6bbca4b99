"""The page of a training: what it learned stands first, is drawn and told, at any width and from any file."""

import re
from pathlib import Path
from typing import Any

import pytest

from browser import Browser
from hostile import EVIL, hidden
from made_learning import make_evaluations, make_quality, make_steps, make_training, write_training
from made_results import make_result, write_run
from trainstone.report.blocks import Facts, Figure, Section, Table
from trainstone.report.figures import export_figures
from trainstone.report.index import build_index, read_entries
from trainstone.report.page import Page, build_page, render, write_report
from trainstone.report.vega import Scripts
from trainstone.report.view import read_view
from trainstone.results.quality import Quality

MISSED = make_quality(history=make_evaluations((0.3, 0.612, 0.55)), target=0.65, seconds_to_target=None)
DRAWN = ["accuracy", "accuracy-time", "loss", "time-to-target"]


def make_page(folder: Path, **changes: Any) -> Page:
    steps = changes.pop("steps", None)
    return build_page(read_view(write_training(folder, make_training(**changes), steps)))


def find_section(page: Page, name: str) -> Section:
    return next(section for section in page.sections if section.id == name)


def learning_figures(page: Page) -> dict[str, Figure]:
    return {block.name: block for block in find_section(page, "learning").blocks if isinstance(block, Figure)}


def rows_of(spec: Any, what: str) -> list[dict[str, Any]]:
    """All data rows of a chart whose `what` begins so."""
    if isinstance(spec, list):
        return [row for part in spec for row in rows_of(part, what)]
    if not isinstance(spec, dict):
        return []
    inside = [row for row in spec.get("values", []) if isinstance(row, dict) and str(row.get("what")).startswith(what)]
    return inside + [row for name, part in spec.items() if name != "values" for row in rows_of(part, what)]


def test_quality_is_the_first_number_of_the_page(tmp_path: Path):
    numbers = make_page(tmp_path).sections[0]
    assert (numbers.id, numbers.title) == ("numbers", "Quality and throughput")
    assert isinstance(numbers.blocks[0], Facts)
    assert numbers.blocks[0].rows[:5] == [
        ("top-1", "92.4 %"),
        ("target 90 %", "reached"),
        ("time to target", "2 min 27 s"),
        ("epochs", "8"),
        ("images/s", "213"),
    ]


def test_a_training_without_throughput_still_tells_its_quality(tmp_path: Path):
    page = make_page(tmp_path, quality=MISSED, status="target_missed", throughput=None, steps=[])
    numbers = find_section(page, "numbers")
    assert numbers.blocks[0].rows[0] == ("top-1, best", "61.2 %")
    assert numbers.lead == ""


def test_all_charts_are_there_and_told_in_words(tmp_path: Path):
    page = make_page(tmp_path)
    assert [section.id for section in page.sections].index("learning") == 2
    figures = learning_figures(page)
    assert list(figures) == DRAWN
    told = "top-1 from 21.2 % to 92.4 % after 8 epochs and 2 min 27 s; the target of 90 % was reached."
    assert figures["accuracy"].alt == told
    assert figures["loss"].alt.startswith("Training loss, smoothed: from 2.5")
    assert figures["time-to-target"].alt.startswith("Of 2 min 27 s: training 76 %, data wait 5 %, evaluation 16 %")


def test_accuracy_has_its_target_and_the_moment_it_was_reached(tmp_path: Path):
    figures = learning_figures(make_page(tmp_path))
    spec = figures["accuracy"].spec
    assert {row["y"] for row in rows_of(spec, "target 90 %")} == {90}
    assert [row["y"] for row in rows_of(spec, "top-1")][:2] == [21.2, 40.5]
    reached = spec["layer"][-1]["data"]["values"]
    assert reached == [{"x": 8, "y": 92.4, "told": "reached after 8 epochs"}]
    (row,) = figures["accuracy-time"].spec["layer"][-1]["data"]["values"]
    assert row["told"] == "reached after 2 min 27 s"
    assert row["x"] == pytest.approx(146.8 / 60, rel=1e-3)


def test_losses_stand_over_epochs(tmp_path: Path):
    spec = learning_figures(make_page(tmp_path))["loss"].spec
    raw, smooth = rows_of(spec, "each step"), rows_of(spec, "smoothed")
    assert len(raw) == len(smooth) == 400
    assert raw[-1]["x"] == 8
    assert [row["x"] for row in rows_of(spec, "validation")] == list(range(1, 9))


def test_a_missed_target_has_a_line_and_no_moment(tmp_path: Path):
    page = make_page(tmp_path, quality=MISSED, status="target_missed")
    figures = learning_figures(page)
    assert "time-to-target" not in figures
    assert "reached after" not in str(figures["accuracy"].spec)
    assert rows_of(figures["accuracy"].spec, "target 65 %")
    assert "the target of 65 % is not reached" in find_section(page, "learning").lead


def test_evaluations_are_tabulated_with_the_best_marked(tmp_path: Path):
    table = find_section(make_page(tmp_path), "learning").blocks[-1]
    assert isinstance(table, Table)
    heads = ["epochs", "steps", "top-1", "top-5", "loss", "run's clock", "evaluation", "images", ""]
    assert table.columns == heads
    assert table.rows[-1] == ["8", "400", "92.4 %", "99.7 %", "0.382", "2 min 27 s", "3 s", "1,000", "best, target"]
    assert table.caption == ""


def test_of_many_evaluations_sixty_rows_are_shown(tmp_path: Path):
    history = make_evaluations(tuple(0.5 + 0.3 * (n == 77) for n in range(500)))
    page = make_page(tmp_path, quality=make_quality(history=history, seconds_to_target=None), status="target_missed")
    table = find_section(page, "learning").blocks[-1]
    assert len(table.rows) <= 60
    assert [row[0] for row in table.rows if row[-1] == "best"] == ["78"]
    assert table.caption == f"{500 - len(table.rows)} evaluations between these left out."
    assert len(rows_of(learning_figures(page)["accuracy"].spec["layer"][1], "top-1")) <= 300


def test_a_run_stopped_before_its_first_evaluation_shows_its_loss(tmp_path: Path):
    quality = make_quality(history=[], target=None, seconds_to_target=None, epochs=2.0)
    page = make_page(tmp_path, quality=quality, status="interrupted", steps=make_steps()[:100])
    figures = learning_figures(page)
    assert list(figures) == ["loss"]
    assert rows_of(figures["loss"].spec, "each step")[-1]["x"] == 2


def test_losses_that_are_no_numbers_are_told_and_drawn_around(tmp_path: Path):
    steps = [step._replace(loss=float("nan")) if step.step > 300 else step for step in make_steps()]
    page = make_page(tmp_path, steps=steps)
    assert "The loss was not a finite number in 99 steps." in find_section(page, "learning").lead
    assert len(rows_of(learning_figures(page)["loss"].spec, "each step")) == 301
    render(page, "")  # JSON has no NaN
    gone = make_page(tmp_path / "gone", steps=[step._replace(loss=float("inf")) for step in steps[:5]])
    assert "never a number" in learning_figures(gone)["loss"].alt


def test_one_step_and_one_evaluation_make_a_page(tmp_path: Path):
    quality = make_quality(history=make_evaluations((0.95,)))
    assert list(learning_figures(make_page(tmp_path, quality=quality, steps=make_steps()[:1]))) == DRAWN


def test_a_damaged_step_file_is_told_and_the_rest_is_shown(tmp_path: Path):
    path = write_training(tmp_path)
    (path / "steps-rank0000.csv").write_text("not,a,step\n1,2,3\n")
    page = build_page(read_view(path))
    assert "loss" not in learning_figures(page)
    assert "not a step file" in str(find_section(page, "unmeasured").blocks)


def test_a_bench_has_no_such_section(tmp_path: Path):
    page = build_page(read_view(write_run(tmp_path, make_result("bench"))))
    assert "learning" not in [section.id for section in page.sections]
    assert find_section(page, "numbers").title == "Throughput"


def test_another_metric_than_a_share_is_drawn_alone(tmp_path: Path):
    history = [found.model_copy(update={"metrics": {"mAP": 0.02 * found.epoch}}) for found in make_evaluations()]
    quality = make_quality(metric="mAP", value=0.16, target=0.14, history=history)
    figures = learning_figures(make_page(tmp_path, quality=quality))
    assert figures["accuracy"].title == "mAP over epochs"
    assert rows_of(figures["accuracy"].spec, "mAP")[0]["y"] == 0.02


def make_hostile() -> Quality:
    history = [
        found.model_copy(update={"metrics": {EVIL: 0.5, "top1": 0.3, "a.b[0]": 1e300}}) for found in make_evaluations()
    ]
    return make_quality(metric=EVIL, value=0.5, history=history, target=0.4)


def test_hostile_text_stays_text(tmp_path: Path):
    html = render(make_page(tmp_path, quality=make_hostile()), "")
    assert html.count("<script>'") == 0
    assert not hidden(html)


def test_the_index_shows_the_accuracy_of_trainings_and_has_no_such_column_without(tmp_path: Path):
    bench = write_run(tmp_path, make_result("bench"))
    train = write_training(tmp_path, make_training("train0"))
    (table,) = build_index(read_entries([bench, train]), tmp_path).sections[0].blocks
    place = list(table.columns).index("quality")
    told = {row[0]: row[place] for row in table.rows}
    assert told == {"bench": "", "train0": "92.4 % top-1"}
    assert {key[place] for key in table.keys} == {"", 0.924}
    (table,) = build_index(read_entries([bench]), tmp_path).sections[0].blocks
    assert "quality" not in table.columns


def test_the_charts_become_files(tmp_path: Path):
    page = make_page(tmp_path)
    files = export_figures(list(learning_figures(page).values()), tmp_path / "figures", "svg")
    assert [file.stem for file in files] == DRAWN
    for file in files:
        assert "var(--" not in file.read_text()


def test_the_page_draws_at_any_width_without_asking_anybody(browser: Browser, tmp_path: Path):
    usual = write_training(tmp_path)
    hostile = write_training(tmp_path / "hostile", make_training(quality=make_hostile()))
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
        assert not re.search(r"NaN|undefined", page.evaluate("document.getElementById('learning').innerText"))
        page.close()
