"""Tests of report sections: numbers in charts and tables, skipped parts, damaged files."""

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from support.builders import pages as made
from support.builders.hostile_text import HOSTILE
from support.builders.mlperf_logs import write_mlperf_run, write_mlperf_runs
from support.builders.results import A100, POINTS, make_data_bench, make_point, make_timeline, write_profile
from support.builders.sweeps import make_row, make_sweep
from support.builders.training_results import (
    make_evaluations,
    make_quality,
    make_steps,
    make_training,
    write_repeated,
    write_training,
)
from support.servers.browser import Browser
from trainstone.report.blocks import CodeBlock, FactsBlock, Figure, Gallery, Links, Prose, Section
from trainstone.report.dataset import build_dataset_page, name_classes
from trainstone.report.page import Page, render, write_report
from trainstone.report.sections import profile, quality
from trainstone.report.sections.training import build_convergence
from trainstone.report.view import RunView, read_view
from trainstone.results.schema.dataset import ClassSummary
from trainstone.results.schema.quality import QualitySample, QualityTable
from trainstone.results.tables import Table
from trainstone.stats.downsample import choose_evenly
from unit.report.test_page import THEMES, contrast, page_of


def find(page: Page, name: str) -> Section:
    return next(section for section in page.sections if section.id == name)


def names(page: Page) -> list[str]:
    return [section.id for section in page.sections]


def blocks(section: Section, kind: type) -> list[Any]:
    return [block for block in section.blocks if isinstance(block, kind)]


def figures(page: Page) -> dict[str, Figure]:
    return {figure.name: figure for figure in page.figures}


def rows_of(spec: Any, what: str = "", key: str = "what") -> list[dict[str, Any]]:
    """Return the distinct data rows of a chart whose `key` starts with `what`."""
    if isinstance(spec, list):
        found = [row for part in spec for row in rows_of(part, what, key)]
    elif isinstance(spec, dict):
        given = [row for row in spec.get("values", []) if isinstance(row, dict) and key in row]
        found = [row for row in given if str(row[key]).startswith(what)]
        found += [row for name, part in spec.items() if name != "values" for row in rows_of(part, what, key)]
    else:
        return []
    return list({json.dumps(row, sort_keys=True): row for row in found}.values())


# A sweep


def test_sweep_chart_has_intervals_log_axis_and_knee(tmp_path: Path):
    page = page_of(made.write_sweep(tmp_path, make_sweep(*made.BATCHES)))
    spec = json.dumps(figures(page)["sweep"].spec)
    assert all(part in spec for part in ('"type": "log"', '"base": 2', '"knee: 16"', '"errorbar"'))
    (table,) = blocks(find(page, "sweep"), Table)
    assert table.links == [*(f"points/point-{n}/result.json" for n in range(6)), None]
    assert [row[-1] == "knee" for row in table.rows] == [place == 4 for place in range(7)]
    assert table.keys[0][:3] == [1, 1, pytest.approx(20)]
    assert "points" not in names(page)


def test_sweep_of_unordered_values_draws_bars_and_zero_uses_linear_axis(tmp_path: Path):
    choice = make_sweep(make_row("fp32", 1.0), make_row("bf16", 2.0), key="train.precision")
    drawn = figures(page_of(made.write_sweep(tmp_path, choice)))
    assert list(drawn) == ["sweep"]
    assert '"bar"' in json.dumps(drawn["sweep"].spec)
    straight = make_sweep(make_row(0, 1.0), make_row(1, 2.0), key="train.mixup")
    drawn = figures(page_of(made.write_sweep(tmp_path / "straight", straight)))
    assert "sweep-steps" not in drawn
    assert '"log"' not in json.dumps(drawn["sweep"].spec)


def test_killed_sweep_shows_finished_rows(tmp_path: Path):
    page = page_of(made.write_sweep(tmp_path, make_sweep(*made.BATCHES[:3], values=[1, 2, 4, 8, 16]), status="running"))
    assert find(page, "sweep").lead.startswith("The sweep is killed: 3 of 5 points")
    assert "--resume RUN" in find(page, "findings").blocks[0].rows[-1].hint
    empty = page_of(made.write_sweep(tmp_path / "empty", make_sweep(values=[1, 2]), status="running"))
    assert find(empty, "sweep").blocks == []
    assert empty.verdict == "No result: the run is killed"


@pytest.mark.parametrize(
    "value", [10**400, 1e308, -1, 0, None, True, [1, [2]], {"a": 1}, "x" * 3000], ids=lambda v: str(v)[:8]
)
def test_sweep_draws_any_value(tmp_path: Path, value: Any):
    sweep = make_sweep(make_row(value, 1.0), make_row(3, 2.0), make_row(4, 2.0), values=[value, 3, 4])
    assert render(page_of(made.write_sweep(tmp_path, sweep)), "")


# A data bench


@pytest.mark.parametrize(("rate", "drawn"), [(3000.0, True), (600.0, True), (20_000.0, False)])
def test_threads_chart_has_intervals_and_demand_line_if_near(tmp_path: Path, rate: float, drawn: bool):
    demand = A100.model_copy(update={"images_per_second": rate})
    page = page_of(made.write_data_bench(tmp_path, make_data_bench(POINTS, cores=4, demand=demand)))
    layers = figures(page)["threads"].spec["layer"]
    rows = {row["x"]: row for row in layers[0]["data"]["values"]}
    assert {threads: row["y"] for threads, row in rows.items()} == {1: 600, 2: 1190, 4: 2200, 8: 2400}
    assert (rows[8]["low"], rows[8]["high"]) == (2376, 2424)
    assert [layer["data"]["values"] for layer in layers[3:]] == ([[{"y": rate}]] if drawn else [])


def test_data_bench_skips_unmeasured_sections(tmp_path: Path):
    page = page_of(made.write_data_bench(tmp_path, make_data_bench([make_point(2, 1190)], stages=[])))
    assert page.figures == []
    assert "stages" not in names(page)
    assert find(page, "threads").blocks[0].columns == ["threads", "images/s", "95 % interval", "images/s per core"]


# Training runs


def make_page(folder: Path, **changes: Any) -> Page:
    steps = changes.pop("steps", None)
    return page_of(write_training(folder, make_training(**changes), steps))


def test_accuracy_chart_marks_target_and_time_reached(tmp_path: Path):
    drawn = figures(make_page(tmp_path))
    spec = drawn["accuracy"].spec
    assert {row["y"] for row in rows_of(spec, "target 90 %")} == {90}
    assert [row["y"] for row in rows_of(spec, "top-1")][:2] == [21.2, 40.5]
    assert rows_of(spec, "reached", "shown") == [{"x": 8, "y": 92.4, "shown": "reached after 8 epochs"}]
    (row,) = rows_of(drawn["accuracy-time"].spec, "reached", "shown")
    assert (row["shown"], row["x"]) == ("reached after 2 min 27 s", pytest.approx(146.8 / 60, rel=1e-3))
    spec = drawn["loss"].spec
    raw, smooth = rows_of(spec, "each step"), rows_of(spec, "smoothed")
    assert (len(raw), len(smooth), raw[-1]["x"]) == (400, 400, 8)
    assert [row["x"] for row in rows_of(spec, "validation")] == list(range(1, 9))
    missed = figures(make_page(tmp_path / "missed", quality=made.MISSED, status="target_missed"))
    assert "time-to-target" not in missed
    assert not rows_of(missed["accuracy"].spec, "reached", "shown")


def test_many_evaluations_are_thinned_but_keep_the_best(tmp_path: Path):
    history = make_evaluations(tuple(0.5 + 0.3 * (n == 77) for n in range(500)))
    page = make_page(tmp_path, quality=make_quality(history=history, seconds_to_target=None), status="target_missed")
    table = find(page, "training").blocks[-1]
    assert len(table.rows) <= 60
    assert [row[0] for row in table.rows if row[-1] == "best"] == ["78"]
    assert table.caption == f"{500 - len(table.rows)} more evaluations not shown."
    assert len(rows_of(figures(page)["accuracy"].spec, "top-1")) <= 300


def test_training_page_without_evaluations_throughput_or_finite_losses(tmp_path: Path):
    never = make_quality(history=[], target=None, seconds_to_target=None, epochs=2.0)
    page = make_page(tmp_path / "a", quality=never, status="interrupted", steps=make_steps()[:100])
    assert "accuracy" not in figures(page)
    assert rows_of(figures(page)["loss"].spec, "each step")[-1]["x"] == 2
    page = make_page(tmp_path / "b", quality=made.MISSED, status="target_missed", throughput=None, steps=[])
    assert (find(page, "numbers").blocks[0].rows[0], find(page, "numbers").lead) == (("top-1, best", "61.2 %"), "")
    steps = [step._replace(loss=float("nan")) if step.step > 300 else step for step in make_steps()]
    page = make_page(tmp_path / "c", steps=steps)
    assert "The loss was NaN or infinite in 99 steps." in find(page, "training").lead
    assert len(rows_of(figures(page)["loss"].spec, "each step")) == 301
    page = make_page(tmp_path / "d", steps=[step._replace(loss=float("inf")) for step in steps[:5]])
    assert "never finite" in figures(page)["loss"].alt
    page = make_page(tmp_path / "e", quality=make_quality(history=make_evaluations((0.95,))), steps=make_steps()[:1])
    assert {"accuracy", "loss", "time-to-target"} <= set(figures(page))


def test_training_with_damaged_step_file_skips_loss_chart(tmp_path: Path):
    path = write_training(tmp_path)
    (path / "steps-rank0000.csv").write_text("not,a,step\n1,2,3\n")
    page = page_of(path)
    assert "loss" not in figures(page)
    assert "not a step file" in str(find(page, "unmeasured").blocks)


def test_runs_that_missed_target_are_dropped_and_single_time_is_not_drawn(tmp_path: Path):
    (table,) = blocks(find(page_of(write_repeated(tmp_path, (41.0, 38.0, None))), "trainings"), Table)
    assert [row[-2:] for row in table.rows] == [
        ["target reached", ""], ["target reached", "dropped"], ["target missed", "dropped"],
    ]  # fmt: skip
    assert list(table.links) == [f"points/run-{seed}/result.json" for seed in (7, 8, 9)]
    drawn = figures(page_of(write_repeated(tmp_path / "two", (41.0, None))))
    assert "times-to-target" not in drawn
    assert "accuracy-runs" in drawn


# Convergence compared with MLPerf's reference


def convergence_of(path: Path) -> Section | None:
    return build_convergence(read_view(path))


def test_convergence_compares_runs_with_reference(tmp_path):
    section = convergence_of(write_mlperf_runs(tmp_path))
    assert section.title == "Convergence compared with MLPerf's reference"
    assert section.lead.startswith("35.0 epochs to the target; the reference needs 35.2 at batch 3,264: passes")
    figure, table = section.blocks
    assert figure.alt == section.lead
    runs = figure.spec["layer"][-1]["data"]["values"]
    assert [(row["batch"], row["epochs"], row["what"]) for row in runs] == [(3264, 35, "reached the target")] * 5
    assert table.rows[1] == ["3,264", "35.15", "34.31", "0.75", "used here"]
    assert [row[-1] for row in table.rows].count("not counted") == 5


def test_convergence_of_single_run(tmp_path):
    passes = "MLPerf multiplies the time by 1.0044 (a result needs 5 runs, not 1)."
    missed = "0 of 1 runs reached the target; the reference needs 35.2 epochs at a batch of 3,264."
    for converged, lead, what in ((True, passes, "reached the target"), (False, missed, "missed the target")):
        section = convergence_of(write_mlperf_run(tmp_path / what, 1, converged=converged))
        assert section.lead.endswith(lead)
        assert rows_of(section.blocks[0].spec, what)[0]["epochs"] == 35


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("mlperf.log", "1281167", "2000"),  # other images
        ("mlperf.log", '"global_batch_size", "value": 3264', '"global_batch_size", "value": 99999'),
        ("mlperf.log", ':::MLLOG {"', ":::MLLOG {"),  # damaged
        ("result.json", '"kind": "train"', '"kind": "bench"'),
    ],
)
def test_convergence_is_skipped_if_reference_does_not_apply(tmp_path, file, old, new):
    path = write_mlperf_run(tmp_path, 1)
    text = (path / file).read_text()
    assert old in text
    (path / file).write_text(text.replace(old, new))
    view = read_view(path)
    assert build_convergence(view) is None
    assert bool(view.warnings) == (new == ":::MLLOG {")


def test_convergence_ignores_logs_outside_the_run_folder(tmp_path):
    outside = write_mlperf_run(tmp_path / "elsewhere", 1)
    path = write_training(tmp_path)
    assert convergence_of(path) is None
    (path / "mlperf.log").symlink_to(outside / "mlperf.log")
    assert convergence_of(path) is None


# A profile


def test_breakdown_parts_add_up_and_have_fixed_colours(tmp_path: Path):
    for kind in ("cpu", "cuda"):
        timeline = make_timeline(kind)
        spec = figures(page_of(write_profile(tmp_path / kind, timeline)))["breakdown"].spec
        rows = spec["data"]["values"]
        for step in timeline.steps:
            inside = sum(row["x"] for row in rows if row["what"] == f"step {step.step}")
            assert inside == pytest.approx(step.seconds * (1 if kind == "cpu" else 1e3), rel=1e-3)
        scale = spec["encoding"]["color"]["scale"]
        assert dict(zip(scale["domain"], scale["range"], strict=True)).items() <= profile.COLOURS.items()
    assert len(set(profile.COLOURS.values())) == 9
    for colour in (profile.OLIVE, profile.PINK, profile.BROWN):
        assert all(contrast(colour, theme["--paper"]) >= 3 for theme in THEMES)


@pytest.mark.parametrize(("count", "most", "keep"), [(5, 30, ()), (200, 30, ()), (500, 60, (77, 78)), (0, 3, ())])
def test_choose_evenly_keeps_ends_and_requested_positions(count: int, most: int, keep: tuple[int, ...]):
    chosen = choose_evenly(count, most, keep)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == min(count, most)
    assert {0, count - 1, *keep} <= set(chosen) or count == 0


@pytest.mark.parametrize(
    "trace", ["../other.json", "/etc/passwd", "javascript:alert(1)", "gone.json", "a\0b", HOSTILE, "."]
)
def test_trace_outside_run_folder_is_not_linked(tmp_path: Path, trace: str):
    (tmp_path / "other.json").write_text("{}")
    section = find(page_of(write_profile(tmp_path, make_timeline(trace=trace))), "breakdown")
    assert not blocks(section, Links)
    assert blocks(section, FactsBlock)[-1].rows == [("trace", f"{trace} is not in the run folder")]


def test_operators_sort_by_number_and_list_full_names(tmp_path: Path):
    page = page_of(write_profile(tmp_path, make_timeline("cuda")))
    (table,) = blocks(find(page, "operators"), Table)
    wrapper = next(place for place, row in enumerate(table.rows) if row[0].startswith("autograd"))
    assert (table.rows[wrapper][4], table.keys[wrapper][4]) == ("", "")
    assert table.keys[0][1] == sum(table.keys[0][1:2])
    (table,) = blocks(find(page, "kernels"), Table)
    assert len(table.rows[0][0]) == 72 < 1800 < len(str(table.keys[0][0]))
    assert table.keys[0][0] in blocks(find(page, "kernels"), CodeBlock)[0].text
    row = rows_of(figures(page)["kernels"].spec, "", "whole")[0]
    assert (len(row["label"].rpartition(":")[0]), len(row["whole"])) == (36, 600)


def test_roofline_draws_roofs_and_points_and_without_flops_only_bounds(tmp_path: Path):
    timeline = make_timeline()
    drawn = figures(page_of(write_profile(tmp_path, timeline)))["roofline"]
    roof = drawn.spec["layer"][0]["data"]["values"]
    assert roof[1] == {"x": pytest.approx(1.9e11 / 1.7e10), "y": 1.9e11}
    assert len(rows_of(drawn.spec, "", "operator")) >= 21
    kept = [point for point in timeline.roofline.operators if point.flops == 0]
    far = [point.model_copy(update={"share_of_bound": 77.0}) for point in kept]
    roofs = timeline.roofline.model_copy(update={"operators": far, "points": far})
    found = figures(page_of(write_profile(tmp_path / "none", timeline.model_copy(update={"roofline": roofs}))))
    assert "roofline" not in found
    bar = rows_of(found["bounds"].spec, "", "label")[0]
    assert (bar["percent"], bar["label"].rpartition(" ")[0][-6:]) == (200, ": 7700")


@pytest.mark.parametrize(
    ("change", "missing"),
    [({"seconds": 0.0}, "roofline"), ({"flops": 1e308, "seconds": 1e-9}, "roofline"), ({"share_of_bound": 1e308}, "")],
    ids=str,
)
def test_section_with_invalid_numbers_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: dict[str, float], missing: str
):
    timeline = make_timeline()
    roofs = timeline.roofline
    spoilt = [roofs.operators[0].model_copy(update=change), *roofs.operators[1:]]
    roofs = roofs.model_copy(update={"operators": spoilt, "points": spoilt})
    page = page_of(write_profile(tmp_path, timeline.model_copy(update={"roofline": roofs})))
    assert ("roofline" in names(page)) is (missing != "roofline")
    assert f"section profile.build_{missing} skipped: " in str(find(page, "unmeasured").blocks) or not missing
    assert f"section profile.build_{missing} skipped: " in caplog.text or not missing
    assert not any(record.exc_info for record in caplog.records if record.levelname == "WARNING")
    render(page, "")


# Details of an evaluation


def table_of(drawn: str, **changes: Any) -> QualityTable:
    rows = [["ant", 0.25, 7], ["bee", 0.5, 1204], ["cat", None, 3]]
    given = {"name": "a-table", "title": "A table", "drawn": drawn, "columns": ["what", "AP", "boxes"], "rows": rows}
    return QualityTable(**(given | changes))


def quality_of(folder: Path, table: QualityTable) -> list[Any]:
    found = make_training(quality=make_quality(metric="map", tables=[table]))
    section = quality.build(read_view(write_training(folder, found)))
    return list(section.blocks) if section else []


def test_quality_lines_have_a_colour_per_name_and_unit_axes(tmp_path: Path):
    rows = [[x / 10, 1 - x / 10 * steep, f"steep {steep}"] for steep in (0.5, 0.9) for x in range(11)]
    table = table_of("lines", columns=["recall", "precision", "line"], rows=rows, note="How to read it.")
    figure, prose = quality_of(tmp_path, table)
    line = figure.spec["layer"][0]["encoding"]
    assert line["x"]["scale"] == line["y"]["scale"] == {"domain": [0, 1]}
    assert line["color"]["scale"]["domain"] == ["steep 0.5", "steep 0.9"]
    assert prose == Prose("How to read it.")
    assert len(figure.data.rows) == 22
    beyond = table_of("lines", columns=["x", "y", "line"], rows=[[0, 5, "a"], [30, 900, "a"], ["text", 5, "a"]])
    (figure,) = quality_of(tmp_path / "beyond", beyond)
    assert "domain" not in figure.spec["layer"][0]["encoding"]["x"]["scale"]


def test_quality_bars_have_values_and_tooltips(tmp_path: Path):
    (figure,) = quality_of(tmp_path, table_of("bars"))
    assert figure.spec["layer"][0]["data"]["values"] == [
        {"what": "ant", "x": 0.25, "shown": "0.250", "more": "AP 0.250, boxes 7"},
        {"what": "bee", "x": 0.5, "shown": "0.500", "more": "AP 0.500, boxes 1,204"},
    ]
    assert figure.spec["height"] == 2 * 18
    (table,) = quality_of(tmp_path / "table", table_of("table", note="Read it."))
    assert table.caption == "A table. Read it."
    assert table.rows == [["ant", "0.250", "7"], ["bee", "0.500", "1,204"], ["cat", "", "3"]]


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": []},
        {"rows": [["a", None, 1]], "drawn": "bars"},
        {"columns": ["a"], "rows": [["b"]], "drawn": "lines"},
        {"rows": [[1.0, "x", "y"]], "drawn": "lines"},
        {"rows": [["a"], ["b", 1.0]], "drawn": "bars"},
    ],
    ids=str,
)
def test_quality_table_that_does_not_fit_chart_is_not_drawn(tmp_path: Path, changes: dict[str, Any]):
    shown = quality_of(tmp_path, table_of(**({"drawn": "table"} | changes)))
    assert not [block for block in shown if isinstance(block, Figure)]


def image_of(*boxes: Any, **changes: Any) -> QualitySample:
    given = {"file": "samples/000000000000.jpg", "title": "one", "width": 640, "height": 427, "boxes": list(boxes)}
    return QualitySample(**(given | changes))


def gallery_of(folder: Path, *images: QualitySample) -> tuple[Gallery | None, list[str]]:
    """Return the gallery and notes of the quality section for these images."""
    section = quality.build(
        read_view(made.write_detection(folder, made.make_detection_quality(tables=[], samples=list(images))))
    )
    shown = section.blocks if section else []
    notes = [block.text for block in shown if isinstance(block, Prose)]
    return next((block for block in shown if isinstance(block, Gallery)), None), notes


def test_gallery_clips_boxes_and_fits_labels(tmp_path: Path):
    image = image_of(
        made.box_of("dog", (0.5, 0.25, 0.75, 0.5), correct=True),
        made.box_of("cat", (0.1, 0.1, 0.2, 0.2), correct=False),
        made.box_of("dog", (0.5, 0.25, 0.75, 0.5), score=0.91, correct=True),
        made.box_of("cow", (-0.2, 0.9, 0.3, 1.4), score=0.4, correct=False),
        made.box_of("x" * 200, (0.95, 0.0, 1.0, 0.02), score=0.1, correct=True),
    )
    gallery, notes = gallery_of(tmp_path, image)
    assert (gallery.min_score, notes) == (0.3, [])
    (shown,) = gallery.rows
    assert base64.b64decode(shown.jpeg_base64).startswith(b"\xff\xd8")
    assert (shown.num_correct, shown.num_true) == (1, 2)
    assert all(word in shown.alt for word in ("dog 0.91 correct", "cow 0.40 wrong", "missed: cat"))
    looks = [(box.look, box.tag[:10], box.score) for box in shown.outlines]
    assert looks[:2] + looks[3:] == [
        ("truth", "", None), ("truth", "cat", None), ("wrong", "✗ cow 0.40", 0.4), ("correct", "dog 0.91", 0.91),
    ]  # fmt: skip
    first, outside = shown.outlines[0], shown.outlines[3]
    assert (first.left, first.top, first.width, first.height) == (320, 106.75, 160, 106.75)
    assert (outside.left, outside.width, outside.top + outside.height) == (0, 192, 427)
    for box in shown.outlines:
        assert len(box.tag) < 40
        assert box.tag_left + 0.6 * shown.letter_height * len(box.tag) <= 640
        assert shown.letter_height <= box.tag_base < 427 or not box.tag


def test_gallery_names_skipped_images(tmp_path: Path):
    (tmp_path / "secret.jpg").write_bytes(b"\xff\xd8\xff secret")
    folder = tmp_path / "run"
    (folder / "samples").mkdir(parents=True)
    (folder / "good.jpg").write_bytes(base64.b64decode(made.JPEG))
    (folder / "text.jpg").write_text("not an image")
    (folder / "huge.jpg").write_bytes(b"\xff\xd8\xff" + bytes(quality.MAX_BYTES))
    (folder / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    os.mkfifo(folder / "pipe.jpg")
    view = RunView(folder, make_training(), folder)
    faults = dict.fromkeys(("text.jpg", "huge.jpg"), "not a JPEG of at most 2 MB")
    outside = ("gone.jpg", "link.jpg", "pipe.jpg", "../secret.jpg", "samples", str(tmp_path / "secret.jpg"), "a\0b")
    for file, fault in (faults | dict.fromkeys(outside, "not in the run folder")).items():
        gallery, notes = quality.read_gallery(view, [image_of(file=file), image_of(file="good.jpg")])
        assert (len(gallery.rows), notes) == (1, [f"1 image skipped: {file} ({fault})."])
    flat, endless = image_of(file="good.jpg", width=0), image_of(file="x" * 5000)
    gallery, notes = quality.read_gallery(view, [flat, endless])
    assert gallery is None
    assert notes[0].startswith("2 images skipped: good.jpg (its size is 0), xxx")
    many = [image_of(file="good.jpg")] * (quality.MAX_IMAGES + 2)
    gallery, notes = quality.read_gallery(view, many)
    assert len(gallery.rows) == quality.MAX_IMAGES
    assert notes == [f"The first {quality.MAX_IMAGES} of {quality.MAX_IMAGES + 2} images are shown."]


SHOWN = (
    "[...document.querySelectorAll('.scored g[data-score]')].filter(box => getComputedStyle(box).display !== 'none')"
)
MOVE = (
    "(value => {{ const slider = document.querySelector('.scored input'); slider.value = value;"
    " slider.dispatchEvent(new Event('input')); }})({})"
)


@pytest.mark.slow
def test_gallery_slider_sets_minimum_score(browser: Browser, tmp_path: Path):
    path = made.write_detection(tmp_path)
    html = render(page_of(path), "")
    assert html.count(' low" data-score=') == sum(  # hidden even without scripts
        (box.score or 1) < 0.3 for image in made.make_images() for box in image.boxes
    )
    write_report(path)
    page = browser.open(path / "report.html", width=1000)
    scores = sorted(box.score for image in made.make_images() for box in image.boxes if box.score is not None)
    for least in (0.3, 0.9, 0.0):
        if least != 0.3:  # the initial value
            page.evaluate(MOVE.format(least))
        shown = sorted(page.evaluate(f"{SHOWN}.map(box => Number(box.dataset.score))"))
        assert shown == pytest.approx([score for score in scores if score >= least])
    correct = sum(box.correct is True for box in made.make_images()[3].boxes if box.score is not None)
    assert page.evaluate("document.querySelectorAll('.scored .count')[3].textContent") == str(correct)
    img, svg = (
        page.evaluate(f"document.querySelector('.large {tag}').getBoundingClientRect().width") for tag in ("img", "svg")
    )
    assert img == svg > 200
    page.close()


# A data set


def test_labels_chart_draws_all_of_few_classes_and_extremes_of_many():
    few = build_dataset_page(made.make_summary(3)).figures[0]
    assert [row["what"] for row in rows_of(few.spec)] == ["thing 2", "thing 1", "thing 0"]
    page = build_dataset_page(made.make_summary(1000))
    counts = [row["x"] for row in rows_of(page.figures[0].spec)]
    assert counts == [7] * 20 + [1] * 20
    classes = [ClassSummary(name=n, text=t) for n, t in (("n1", "crane"), ("n2", "crane"), ("n3", ""))]
    assert name_classes(classes) == ["crane #0", "crane #1", "n3"]


def test_dataset_page_reports_partial_counts_and_skips_chart_of_one_size():
    summary = made.make_summary(detect=True)
    split = summary.splits[0]
    alike = split.sampled.model_copy(update={"sizes": split.sampled.sizes[:1]})
    part = split.model_copy(update={"counted": 4, "sampled": alike})
    page = build_dataset_page(summary.model_copy(update={"splits": [part]}))
    assert "Only a part of the images was counted: 4 of 6 in train." in find(page, "labels").lead
    assert ("boxes in 4 images", "6") in page.sections[0].blocks[0].rows
    assert not [name for name in figures(page) if name.startswith("sizes")]
    (outline,) = page.sections[1].blocks[0].rows[0].outlines
    assert (outline.left, outline.top, outline.width, outline.height) == (10, 0, 20, 20)
    bars = rows_of(figures(page)["boxes-0"].spec, "", "boxes")
    assert [(bar["boxes"], bar["y"]) for bar in bars if bar["y"]] == [(0, 1), (2, 2), (40, 1)]
