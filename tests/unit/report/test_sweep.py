"""The page of a sweep: its curve, knee and points; of one that was killed, too; and how it stands in the index."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from hostile import EVIL, hidden
from made_results import make_result, write_run
from made_sweep import make_row, make_sweep, steps_of
from trainstone.files import dump_json
from trainstone.report.blocks import Figure, Prose, Section, Table
from trainstone.report.figures import export_figures
from trainstone.report.index import build_index, read_entries
from trainstone.report.page import Page, build_page, render
from trainstone.report.view import read_view
from trainstone.results.sweep import Sweep, SweepRow
from trainstone.results.swept import conclude_sweep

FULL = make_row(128, status="out_of_memory", note="out of memory: it is large", order=9)
BATCHES = [*steps_of(0.03, 0.02, 1, 2, 4, 8, 16, 32), FULL]
DRAWN = ["sweep", "sweep-steps", "sweep-mfu", "sweep-memory"]


def write_sweep(folder: Path, sweep: Sweep, **changes: Any) -> Path:
    """A sweep's folder with the runs of its points."""
    children = []
    rows: list[SweepRow] = []
    for place, row in enumerate(sweep.rows):
        if row.images_per_second:
            child = make_result(f"point-{place}", row.images_per_second, verdict="ResNet-50: x")
            children.append(child)
            write_run(folder / "swept/points", child)
            rows.append(row.model_copy(update={"run": f"points/{child.run_id}"}))
        else:
            rows.append(row)
    concluded = conclude_sweep(sweep.model_copy(update={"rows": rows}), children)
    # A run of this host whose process is not there: it reads as killed where it says running
    values = {"kind": "sweep", "status": "ok", "host": socket.gethostname()} | concluded | changes
    result = make_result("swept", None, **values)
    path = folder / "swept"
    path.mkdir(parents=True, exist_ok=True)
    (path / "result.json").write_text(dump_json(result.model_dump(mode="json", exclude_none=True)))
    return path


def find_section(page: Page, name: str = "sweep") -> Section:
    return next(section for section in page.sections if section.id == name)


def figures(page: Page) -> dict[str, Figure]:
    return {block.name: block for block in find_section(page).blocks if isinstance(block, Figure)}


def find_table(page: Page) -> Table:
    return next(block for block in find_section(page).blocks if isinstance(block, Table))


def test_the_sweep_stands_first_and_its_points_stand_once(tmp_path: Path):
    page = build_page(read_view(write_sweep(tmp_path, make_sweep(*BATCHES))))
    assert [section.id for section in page.sections][:2] == ["sweep", "findings"]
    assert "points" not in [section.id for section in page.sections]
    assert page.verdict.startswith("ResNet-50: knee at batch 16: 45.7 ± 1.0 % images/s, 96 % of the best (47.8 ± 1.0 %")
    assert list(figures(page)) == DRAWN
    assert "batch 16: 45.7" in figures(page)["sweep"].alt
    sentences = [block.text for block in find_section(page).blocks if isinstance(block, Prose)]
    assert any(sentence.startswith("A step costs 30 ms and 20 ms an image") for sentence in sentences)


def test_every_point_has_its_line_and_its_link(tmp_path: Path):
    table = find_table(build_page(read_view(write_sweep(tmp_path, make_sweep(*BATCHES)))))
    assert [row[0] for row in table.rows] == [f"batch {n}" for n in (1, 2, 4, 8, 16, 32, 128)]
    assert table.links[:2] == ["points/point-0/result.json", "points/point-1/result.json"]
    assert table.links[-1] is None
    assert table.rows[-1][-1] == "out of memory: it is large"
    assert [row[-1] == "knee" for row in table.rows] == [place == 4 for place in range(7)]


def test_the_curve_has_intervals_a_log_axis_and_the_knee(tmp_path: Path):
    page = build_page(read_view(write_sweep(tmp_path, make_sweep(*BATCHES))))
    spec = json.dumps(figures(page)["sweep"].spec)
    assert '"type": "log"' in spec
    assert '"base": 2' in spec
    assert '"knee: 16"' in spec
    assert '"errorbar"' in spec


@pytest.mark.parametrize(
    ("half_width", "title", "lead"),
    [
        (0.01, "Throughput, with 95 % intervals", "bars are 95 % intervals."),
        (None, "Throughput", "no point has an interval."),
    ],
)
def test_intervals_are_promised_only_where_there_are_any(
    tmp_path: Path, half_width: float | None, title: str, lead: str
):
    sweep = make_sweep(make_row(1, 90.0, half_width), make_row(2, 100.0, half_width))
    page = build_page(read_view(write_sweep(tmp_path, sweep)))
    assert figures(page)["sweep"].title == title
    assert find_section(page).lead.endswith(lead)


def test_curves_have_a_legend(tmp_path: Path):
    rows = [make_row(b, b * r, curve=c) for c, r in (("fp32", 1.0), ("bf16", 2.0)) for b in (1, 2, 4)]
    sweep = make_sweep(*rows, curve_key="train.precision", curves=["fp32", "bf16"])
    spec = json.dumps(figures(build_page(read_view(write_sweep(tmp_path, sweep))))["sweep"].spec)
    assert '"domain": ["train.precision fp32", "train.precision bf16"]' in spec


def test_values_without_an_order_are_bars(tmp_path: Path):
    sweep = make_sweep(make_row("fp32", 1.0), make_row("bf16", 2.0), key="train.precision")
    drawn = figures(build_page(read_view(write_sweep(tmp_path, sweep))))
    assert list(drawn) == ["sweep"]
    assert '"bar"' in json.dumps(drawn["sweep"].spec)


def test_numbers_that_cannot_be_doubled_have_a_straight_axis(tmp_path: Path):
    sweep = make_sweep(make_row(0, 1.0), make_row(1, 2.0), key="train.mixup")
    drawn = figures(build_page(read_view(write_sweep(tmp_path, sweep))))
    assert "sweep-steps" not in drawn
    assert '"log"' not in json.dumps(drawn["sweep"].spec)


def test_a_killed_sweep_is_told_with_the_rows_it_has(tmp_path: Path):
    sweep = make_sweep(*BATCHES[:3], values=[1, 2, 4, 8, 16])
    page = build_page(read_view(write_sweep(tmp_path, sweep, status="running")))
    assert find_section(page).lead.startswith("The sweep is killed: 3 of 5 points")
    assert page.verdict.endswith("(3 of 5 points)")
    codes = {found.code: found.hint for found in find_section(page, "findings").blocks[0].rows}
    assert codes["killed"].startswith("go on with: trainstone sweep --resume RUN")


def test_a_sweep_without_any_row_has_a_page(tmp_path: Path):
    page = build_page(read_view(write_sweep(tmp_path, make_sweep(values=[1, 2]), status="running")))
    assert find_section(page).blocks == []
    assert page.verdict == "No number: the run is killed"


def test_text_from_files_stays_text(tmp_path: Path):
    rows = [make_row(EVIL, 1.0), make_row("b", 2.0), make_row("c", note=EVIL)]
    page = build_page(read_view(write_sweep(tmp_path, make_sweep(*rows, key=EVIL, curve_key=EVIL, curves=[None]))))
    html = render(page, "")
    assert "<script>alert" not in html
    assert not hidden(html)


@pytest.mark.parametrize(
    "value", [10**400, 1e308, -1, 0, None, True, [1, [2]], {"a": 1}, "x" * 3000], ids=lambda v: str(v)[:8]
)
def test_any_value_is_drawn(tmp_path: Path, value: Any):
    sweep = make_sweep(make_row(value, 1.0), make_row(3, 2.0), make_row(4, 2.0), values=[value, 3, 4])
    page = build_page(read_view(write_sweep(tmp_path, sweep)))
    assert render(page, "")


def test_the_charts_can_be_exported(tmp_path: Path):
    page = build_page(read_view(write_sweep(tmp_path, make_sweep(*BATCHES))))
    files = export_figures(page.figures, tmp_path / "svg", "svg")
    assert [file.stem for file in files] == DRAWN
    assert all("<svg" in file.read_text() for file in files)


def test_the_index_shows_a_sweep_by_its_knee(tmp_path: Path):
    write_sweep(tmp_path, make_sweep(*BATCHES))
    choice = make_sweep(make_row("fp32", 1.0), make_row("bf16", 2.0), key="train.precision")
    other = write_sweep(tmp_path / "other", choice)
    empty = write_sweep(tmp_path / "third", make_sweep(values=[1, 2]), status="running")
    table = build_index(read_entries([tmp_path / "swept", other, empty]), tmp_path).sections[0].blocks[0]
    batch, rate, half = (list(table.columns).index(name) for name in ("batch", "images/s", "±"))
    assert sorted((row[batch], row[rate], row[half]) for row in table.rows) == [
        ("sweep 1 … 128: batch 16", "45.7", "1.0 %"),
        ("sweep 1 … 2", "", ""),
        ("sweep train.precision: train.precision bf16", "2", "1.0 %"),
    ]
