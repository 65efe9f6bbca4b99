"""Tests of a run's page and of the index of runs: sections, links, escaping, chart scripts, colours."""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from support.builders.results import change_result
from trainstone.errors import ResultError
from trainstone.report.index import build_index
from trainstone.report.page import Page, as_json, build_page, load_scripts, read_template, render
from trainstone.report.view import read_view
from trainstone.results.run_folder import find_runs

ALWAYS = ["numbers", "findings", "timeline", "distribution", "phases"]
SECTIONS = {
    "good": [*ALWAYS, "limits", "resources", "machine", "repeat", "unmeasured"],
    "killed": [*ALWAYS, "machine", "repeat", "unmeasured"],
    "never-steady": [*ALWAYS, "limits", "resources", "machine", "repeat", "unmeasured"],
    "throttled": [*ALWAYS, "limits", "published", "resources", "machine", "repeat", "unmeasured"],
    "data-starved": [*ALWAYS, "limits", "published", "resources", "machine", "repeat", "unmeasured"],
    "ten-ranks": [*ALWAYS, "limits", "published", "resources", "devices", "machine", "repeat", "unmeasured"],
}


def page_of(path: Path) -> Page:
    return build_page(read_view(path))


@pytest.mark.parametrize("case", SECTIONS)
def test_build_page_includes_sections_with_data(golden, case: str):
    assert [section.id for section in page_of(golden(case)).sections] == SECTIONS[case]


def test_build_page_without_steps_or_telemetry_skips_their_charts(golden):
    path = golden("good")
    for file in [*path.glob("steps-*"), *path.glob("telemetry-*")]:
        file.unlink()
    names = [figure.name for figure in page_of(path).figures]
    assert "timeline" not in names
    assert "distribution" not in names
    assert "throughput" in names


def test_build_page_with_damaged_step_file_reports_it_and_skips_its_charts(golden):
    path = golden("good")
    file = path / "steps-rank0000.csv"
    file.write_text(file.read_text() + "not a number\n")
    page = page_of(path)
    assert "distribution" not in [section.id for section in page.sections]
    assert any("not a number" in value for _, value in page.sections[-1].blocks[0].rows)


def test_build_page_does_not_read_points_outside_the_run_folder(golden):
    path = golden("good")
    other = golden("throttled")
    change_result(path, points=[{"label": "sly", "run": f"../{other.name}"}])
    page = page_of(path)
    (table,) = next(section for section in page.sections if section.id == "points").blocks
    assert table.rows[0][-1] == "cannot be read"


def test_timeline_shades_warm_up_and_marks_outliers(golden):
    path = golden("good")
    result = json.loads((path / "result.json").read_text())
    outliers, steady_from = result["step_seconds"]["outlier_steps"], result["throughput"]["steady_from_step"]
    assert outliers
    assert steady_from > 0
    (timeline,) = (figure for figure in page_of(path).figures if figure.name == "timeline")
    layers = timeline.spec["vconcat"][0]["layer"]
    starts = {
        int(float(row.split(",")[0])): float(row.split(",")[2])
        for row in (path / "steps-rank0000.csv").read_text().splitlines()[1:]
    }
    (shade,) = (layer for layer in layers if layer["mark"]["type"] == "rect")
    assert shade["data"]["values"][0]["end"] == pytest.approx(starts[steady_from])
    (marks,) = (layer for layer in layers if layer["mark"]["type"] == "point" and "shape" in layer["encoding"])
    assert {str(step) for step in outliers} <= {row["which"] for row in marks["data"]["values"]}


def test_timeline_panels_share_the_time_axis(golden):
    (timeline,) = (figure for figure in page_of(golden("throttled")).figures if figure.name == "timeline")
    panels = timeline.spec["vconcat"]
    assert len(panels) >= 6

    def domain(panel: dict) -> list[float]:
        encoding = panel["encoding"] if "encoding" in panel else panel["layer"][0]["encoding"]
        return encoding["x"]["scale"]["domain"]

    assert all(domain(panel) == domain(panels[0]) for panel in panels)


def test_links_are_relative_to_the_page_folder(golden, tmp_path: Path):
    path = golden("good")
    for folder in (path, tmp_path, tmp_path / "else/where"):
        sections = {section.id: section for section in build_page(read_view(path, folder)).sections}
        (links,) = (block for block in sections["repeat"].blocks if block.kind == "links")
        assert all((folder / unquote(address)).resolve().is_file() for address, _ in links.rows if (folder.exists()))
    assert links.rows[0][0].startswith("../../good/")


@pytest.mark.skipif(sys.platform == "darwin", reason="names are UTF-8 there")
def test_links_quote_names_that_are_not_utf8(golden):
    path = golden("good")
    Path(os.fsdecode(os.fsencode(path) + b"/x\xff.txt")).write_text("")
    (path / "<img src=x onerror=alert(1)>.txt").write_text("")
    (path / "config.toml").write_text("<script>alert(1)</script>")
    html = render(page_of(path), "")
    assert "x%FF.txt" in html
    assert "<img" not in html
    assert "<script>alert" not in html


def test_build_page_of_run_with_points_shows_only_points(golden):
    path = golden("good")
    child = shutil.copytree(path, path / "points/a")
    shutil.copytree(child, path / "points/b")
    document = json.loads((path / "result.json").read_text())
    kept = {key: document[key] for key in ("format", "kind", "run_id", "command", "status", "recipe", "process")}
    kept |= {"points": [{"label": "A: x", "run": "points/a"}, {"label": "B: y", "run": "points/b"}]}
    kept["phases"] = {"program_seconds": 50.0}
    kept["noise"] = document["noise"]
    (path / "result.json").write_text(json.dumps(kept))
    for file in [*path.glob("steps-*"), *path.glob("telemetry-*")]:
        file.unlink()
    page = page_of(path)
    assert [section.id for section in page.sections] == ["findings", "points", "repeat", "unmeasured"]
    assert page.sections[-1].blocks[0].rows == [("steps, utilisation, memory, energy", "see each run in points/")]


def test_timeline_of_many_devices_names_only_outliers(golden):
    (timeline,) = (figure for figure in page_of(golden("ten-ranks")).figures if figure.name == "timeline")
    scales = [
        panel["encoding"]["color"]["scale"]
        for panel in timeline.spec["vconcat"]
        if "color" in panel.get("encoding", {})
    ]
    assert scales
    assert all(scale["domain"] == ["node-a-cuda0", "other devices"] for scale in scales)
    assert all(len(set(scale["range"])) == 2 for scale in scales)


def test_published_results_have_sources(golden):
    (figure,) = (figure for figure in page_of(golden("data-starved")).figures if figure.name == "published")
    assert len(figure.data.rows) > 30
    assert all(row[-1] for row in figure.data.rows)


def test_timeline_of_long_run_draws_buckets(golden):
    path = golden("good")
    steps = path / "steps-rank0000.csv"
    rows = [f"{n},0,{n / 50:.4f},0.0001,{9.0 if n == 7003 else 0.02},4,1,0.1" for n in range(9000)]
    steps.write_text("step,epoch,start_seconds,data_seconds,step_seconds,images,loss,lr\n" + "\n".join(rows) + "\n")
    (section,) = (section for section in page_of(path).sections if section.id == "timeline")
    assert "The line is the mean of 8 steps," in section.lead
    layers = section.blocks[0].spec["vconcat"][0]["layer"]
    assert {"area", "line"} <= {layer["mark"]["type"] for layer in layers}
    (marks,) = (layer for layer in layers if layer["mark"]["type"] == "point")
    slow = [row for row in marks["data"]["values"] if row["took"] == "9 s"]
    assert [(row["which"], row["what"]) for row in slow] == [("7000 to 7007", "off the scale")]


def test_as_json_escapes_script_end_and_rejects_nan():
    text = str(as_json({"a": "</script><!--&\u2028"}))
    assert not re.search(r"[<>&\u2028]", text)
    assert json.loads(text) == {"a": "</script><!--&\u2028"}
    with pytest.raises(ValueError, match="not JSON compliant"):
        as_json({"a": float("nan")})


# The index of many runs


def make_runs(folder: Path, golden_run: Path, number: int) -> Path:
    for n in range(number):
        copy = shutil.copytree(golden_run, folder / f"run-{n}")
        document = json.loads((copy / "result.json").read_text())
        document["run_id"] = f"run-{n}"
        document["process"] |= {"started_utc": f"2026-03-{n + 1:02d}T10:00:00+00:00", "host": f"host-{n % 2}"}
        document["throughput"]["images_per_second"] *= 1 + n / 100
        (copy / "result.json").write_text(json.dumps(document))
    return folder


def index_of(folder: Path) -> Page:
    return build_index(find_runs(folder), folder.parent)[0]


def test_index_lists_newest_first_with_sort_keys_and_links(golden, tmp_path: Path):
    runs = make_runs(tmp_path / "runs", golden("good"), 4)
    (runs / "run-0/report.html").write_text("")
    page = index_of(runs)
    assert page.verdict == "4 runs of 1 recipe on 2 machines"
    (table,) = page.sections[0].blocks
    assert [row[0] for row in table.rows] == ["run-3", "run-2", "run-1", "run-0"]
    assert list(table.links) == [*(f"runs/run-{n}/result.json" for n in (3, 2, 1)), "runs/run-0/report.html"]
    rate = list(table.columns).index("images/s")
    assert [float(key[rate]) for key in table.keys] == sorted((float(key[rate]) for key in table.keys), reverse=True)


def test_index_draws_trend_of_repeated_runs_by_machine(golden, tmp_path: Path):
    runs = make_runs(tmp_path / "runs", golden("good"), 3)
    shutil.copytree(golden("throttled"), runs / "other")
    (trend,) = index_of(runs).figures
    rows = trend.spec["layer"][0]["data"]["values"]
    assert len(rows) == 3
    assert len({row["machine"] for row in rows}) == 2
    assert all(row["low"] <= row["rate"] <= row["high"] * 1.05 for row in rows)


def test_index_lists_damaged_runs_and_escapes_names(golden, tmp_path: Path):
    runs = make_runs(tmp_path / "runs", golden("good"), 2)
    (runs / "run-1/result.json").write_text('{"format": 1, "kind"')
    (runs / "run-0").rename(runs / "<b onclick='x'>\u202e")
    page = index_of(runs)
    assert len(page.sections[0].blocks[0].rows) == 1
    ((name, why),) = page.sections[-1].blocks[0].rows
    assert name.endswith("run-1")
    assert "cannot read" in why
    html = render(page, "")
    assert "<b onclick" not in html
    assert "%3Cb%20onclick" in html


# The chart scripts

WHOLE = "var x=1;/* </script <!-- */window.vegaEmbed=x;window.vega=x;"


def test_load_scripts_uses_cache_and_tolerates_damaged_or_readonly_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = []
    monkeypatch.setenv("TRAINSTONE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda: made.append(1) or WHOLE)
    text = load_scripts()
    assert "window.vegaEmbed=x" in text
    assert "</script" not in text
    assert "<!--" not in text
    (kept,) = (tmp_path / "cache").iterdir()
    assert kept.read_text() == WHOLE
    assert (load_scripts(), len(made)) == (text, 1)
    kept.write_text(WHOLE[:20])
    assert (load_scripts(), len(made), kept.read_text()) == (text, 2, WHOLE)
    (tmp_path / "file").write_text("a file, not a folder")
    monkeypatch.setenv("TRAINSTONE_CACHE", str(tmp_path / "file"))
    assert load_scripts() == text
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda: "half")
    with pytest.raises(ResultError, match="chart scripts"):
        load_scripts()


# Colours

STYLE = read_template("style.css")
THEMES = [
    dict(re.findall(r"(--[a-z0-9-]+): (#[0-9a-f]{6});", block))
    for block in re.findall(r"\{([^{}]*--paper: #[^{}]*)\}", STYLE)
]
TEXT = ["--ink", "--muted", "--link", "--error", "--warning", "--info"]
MARKS = [f"--chart-{number}" for number in range(1, 7)]


def luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_matches_wcag_values():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_style_has_one_light_and_two_equal_dark_themes():
    light, by_system, by_button = THEMES
    assert by_system == by_button
    assert set(light) == set(by_system)
    assert luminance(light["--paper"]) > 0.9 > 0.1 > luminance(by_system["--paper"])


@pytest.mark.parametrize("theme", THEMES[:2], ids=["light", "dark"])
def test_theme_colours_have_enough_contrast(theme: dict[str, str]):
    """WCAG 2.2 requires 4.5:1 for text and 3:1 for marks."""
    for behind in ("--paper", "--panel"):
        assert not [name for name in TEXT if contrast(theme[name], theme[behind]) < 4.5]
    assert not [name for name in MARKS if contrast(theme[name], theme["--paper"]) < 3]
