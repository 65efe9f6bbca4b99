"""The section on MLPerf's reference: there where the reference is a measure, and nowhere else."""

from pathlib import Path

import pytest

from browser import Browser
from made_learning import write_training
from made_mlperf import write_mlperf_run, write_mlperf_runs
from trainstone.report.blocks import Figure, Section
from trainstone.report.page import write_report
from trainstone.report.sections.training import build_convergence
from trainstone.report.view import read_view
from trainstone.results.tables import Table


def build(path: Path) -> Section | None:
    return build_convergence(read_view(path))


def points_of(figure: Figure) -> list[dict]:
    return figure.spec["layer"][-1]["data"]["values"]


def test_runs_are_compared_with_the_reference(tmp_path):
    section = build(write_mlperf_runs(tmp_path))
    assert section is not None
    assert section.title == "Convergence against MLPerf's reference"
    assert section.lead.startswith("35.0 epochs to the target; the reference needs 35.2 at batch 3,264: passes")
    figure, table = section.blocks
    assert isinstance(figure, Figure)
    assert isinstance(table, Table)
    assert figure.alt == section.lead
    assert [(row["batch"], row["epochs"], row["what"]) for row in points_of(figure)] == [
        (3264, 35, "reached the target")
    ] * 5
    assert table.rows[1] == ["3,264", "35.15", "34.31", "0.75", "compared with"]
    assert [row[-1] for row in table.rows].count("not counted") == 5


@pytest.mark.parametrize(
    ("converged", "lead", "what"),
    [
        (True, "MLPerf multiplies the time by 1.0044 (a result needs 5 runs, not 1).", "reached the target"),
        (False, "0 of 1 runs reached the target; the reference needs 35.2 epochs at a batch of 3,264.", "missed it"),
    ],
)  # fmt: skip
def test_one_run_has_the_section_too(tmp_path, converged, lead, what):
    section = build(write_mlperf_run(tmp_path, 1, converged=converged))
    assert section is not None
    assert section.lead.endswith(lead)
    assert points_of(section.blocks[0])[0]["what"] == what


@pytest.mark.parametrize("what", ["no log", "other pictures", "larger batch", "bench", "damaged"])
def test_where_the_reference_is_no_measure_there_is_no_section(tmp_path, what):
    path = write_training(tmp_path) if what == "no log" else write_mlperf_run(tmp_path, 1)
    log = path / "mlperf.log"
    if what == "other pictures":
        log.write_text(log.read_text().replace("1281167", "2000"))
    if what == "larger batch":
        log.write_text(
            log.read_text().replace('"global_batch_size", "value": 3264', '"global_batch_size", "value": 99999')
        )
    if what == "bench":
        result = path / "result.json"
        result.write_text(result.read_text().replace('"kind": "train"', '"kind": "bench"'))
    if what == "damaged":
        log.write_text(":::MLLOG {\n")
    view = read_view(path)
    assert build_convergence(view) is None
    assert bool(view.doubts) == (what == "damaged")


def test_logs_outside_of_the_run_are_not_read(tmp_path):
    outside = write_mlperf_run(tmp_path / "elsewhere", 1)
    path = write_training(tmp_path)
    (path / "mlperf.log").symlink_to(outside / "mlperf.log")
    assert build(path) is None


@pytest.mark.slow
def test_the_page_shows_it_without_errors(tmp_path, browser: Browser):
    path = write_mlperf_runs(tmp_path)
    file, page = write_report(path)
    assert [section.id for section in page.sections].index("convergence") == 3
    for width in (1200, 400):
        shown = browser.open(file, width=width)
        assert shown.console_errors == []
        assert shown.evaluate("document.querySelector('#convergence svg, #convergence canvas') !== null")
        assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
        shown.close()
