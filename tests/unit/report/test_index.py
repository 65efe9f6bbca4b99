"""The index of many runs."""

import json
import shutil
from pathlib import Path

from trainstone.report.index import build_index
from trainstone.report.page import render
from trainstone.results.store import find_runs


def make_runs(folder: Path, golden_run: Path, number: int) -> None:
    for n in range(number):
        copy = shutil.copytree(golden_run, folder / f"run-{n}")
        document = json.loads((copy / "result.json").read_text())
        document["run_id"] = f"run-{n}"
        document["process"] |= {"started_utc": f"2026-03-{n + 1:02d}T10:00:00+00:00", "host": f"host-{n % 2}"}
        document["throughput"]["images_per_second"] *= 1 + n / 100
        (copy / "result.json").write_text(json.dumps(document))


def test_newest_first_with_numbers_to_sort_by(golden, tmp_path: Path):
    make_runs(tmp_path / "runs", golden("good"), 4)
    page = build_index(find_runs(tmp_path / "runs"), tmp_path / "runs")[0]
    assert page.verdict == "4 runs of 1 recipe on 2 machines"
    (table,) = page.sections[0].blocks
    assert [row[0] for row in table.rows] == ["run-3", "run-2", "run-1", "run-0"]
    assert list(table.links) == [f"run-{n}/result.json" for n in (3, 2, 1, 0)]
    rate = list(table.columns).index("images/s")
    assert [float(key[rate]) for key in table.keys] == sorted((float(key[rate]) for key in table.keys), reverse=True)


def test_a_run_with_a_page_is_linked_to_it(golden, tmp_path: Path):
    make_runs(tmp_path / "runs", golden("good"), 1)
    (tmp_path / "runs/run-0/report.html").write_text("")
    page = build_index(find_runs(tmp_path / "runs"), tmp_path)[0]
    assert page.sections[0].blocks[0].links == ["runs/run-0/report.html"]


def test_what_was_run_twice_has_its_trend_by_machine(golden, tmp_path: Path):
    make_runs(tmp_path / "runs", golden("good"), 3)
    shutil.copytree(golden("throttled"), tmp_path / "runs/other")
    page = build_index(find_runs(tmp_path / "runs"), tmp_path)[0]
    (trend,) = page.figures
    rows = trend.spec["layer"][0]["data"]["values"]
    assert len(rows) == 3
    assert len({row["machine"] for row in rows}) == 2
    assert all(row["low"] <= row["rate"] <= row["high"] * 1.05 for row in rows)


def test_damaged_runs_are_named_and_the_others_shown(golden, tmp_path: Path):
    make_runs(tmp_path / "runs", golden("good"), 2)
    (tmp_path / "runs/run-1/result.json").write_text('{"format": 1, "kind"')
    page = build_index(find_runs(tmp_path / "runs"), tmp_path)[0]
    assert len(page.sections[0].blocks[0].rows) == 1
    ((name, why),) = page.sections[-1].blocks[0].rows
    assert name.endswith("run-1")
    assert "cannot read" in why


def test_hostile_names_stay_text(golden, tmp_path: Path):
    make_runs(tmp_path / "runs", golden("good"), 1)
    (tmp_path / "runs/run-0").rename(tmp_path / "runs/<b onclick='x'>\u202e")
    html = render(build_index(find_runs(tmp_path / "runs"), tmp_path)[0], "")
    assert "<b onclick" not in html
    assert "%3Cb%20onclick" in html
