"""The page of a profile: its sections, charts and tables, without what is absent, at any width and from any file."""

import math
from pathlib import Path
from typing import Any

import pytest

from browser import Browser
from hostile import EVIL, hidden
from made_profile import CUTLASS, make_profile, make_timeline, write_profile
from made_results import make_result, write_run
from trainstone.report.blocks import Code, Facts, Figure, Links, Prose, Section, Table
from trainstone.report.figures import export_figures
from trainstone.report.page import Page, build_page, render, write_report
from trainstone.report.profile_charts import BROWN, COLOURS, MOST_STEPS, OLIVE, PINK, thin_steps
from trainstone.report.roofline_charts import RIDGE, balance, keep_sound
from trainstone.report.vega import Scripts
from trainstone.report.view import read_view
from trainstone.results.profiled import RooflinePoint, Timeline
from unit.report.test_style import THEMES, contrast

OURS = ["breakdown", "operators", "kernels", "lanes", "roofline", "cores"]


def make_page(folder: Path, timeline: Timeline | None = None, **changes: Any) -> Page:
    return build_page(read_view(write_profile(folder, make_profile(timeline=timeline, **changes))))


def ours(page: Page) -> list[str]:
    return [section.id for section in page.sections if section.id in OURS]


def find_section(page: Page, name: str) -> Section:
    return next(section for section in page.sections if section.id == name)


def blocks(section: Section, kind: type) -> list[Any]:
    return [block for block in section.blocks if isinstance(block, kind)]


def figures(page: Page) -> dict[str, Figure]:
    return {figure.name: figure for figure in page.figures}


def find_rows(figure: Figure) -> list[dict[str, Any]]:
    """The rows a chart draws, wherever it keeps them."""
    data = [figure.spec.get("data", {}), *(layer.get("data", {}) for layer in figure.spec.get("layer", []))]
    return max((part.get("values", []) for part in data), key=len)


def test_a_profile_begins_with_where_a_step_goes(tmp_path: Path):
    page = make_page(tmp_path)
    assert ours(page) == ["breakdown", "operators", "lanes", "roofline"]
    assert [section.id for section in page.sections].index("breakdown") == 2
    assert list(figures(page))[1:5] == ["breakdown", "operators", "roofline", "bounds"]


def test_a_gpu_has_kernels_and_cores_too(tmp_path: Path):
    page = make_page(tmp_path, make_timeline("cuda"))
    assert ours(page) == OURS
    assert {"kernels", "cores"} <= set(figures(page))


def test_a_bench_has_none_of_it(tmp_path: Path):
    assert ours(build_page(read_view(write_run(tmp_path, make_result("bench"))))) == []


def test_what_is_absent_leaves_its_section_out(tmp_path: Path):
    bare = make_timeline("cuda", operators=[], kernels=[], lanes=[], roofline=None, cores=None, told=[], overhead=None)
    page = make_page(tmp_path, bare)
    assert ours(page) == ["breakdown"]
    section = find_section(page, "breakdown")
    assert not blocks(section, Prose)
    assert "cost of profiling" not in dict(blocks(section, Facts)[0].rows)
    assert ours(make_page(tmp_path / "no steps", bare.model_copy(update={"steps": []}), throughput=None)) == []


def test_parts_are_drawn_and_told(tmp_path: Path):
    page = make_page(tmp_path)
    section = find_section(page, "breakdown")
    drawn = figures(page)["breakdown"]
    assert drawn.alt.startswith("Of a step of 1.72 s, on average: compute 90.5 %, optimiser 6.1 %, Python 2.1 %")
    rows = drawn.spec["data"]["values"]
    assert {row["step"] for row in rows} == {f"step {number}" for number in range(10, 15)}
    for step in {row["step"] for row in rows}:
        inside = sum(row["ms"] for row in rows if row["step"] == step)
        timed = next(found.seconds for found in make_timeline().steps if f"step {found.step}" == step)
        assert inside == pytest.approx(1e3 * timed, rel=1e-3)
    parts, beside = blocks(section, Table)
    assert parts.rows[0] == ["compute", "1.56 s", "90.5 %", "operators run"]
    assert [row[0] for row in beside.rows][:2] == ["anything runs", "copies, hidden or not"]
    assert blocks(section, Prose)[0].text.startswith("Operators run for 96.6 %")
    facts = dict(blocks(section, Facts)[0].rows)
    assert facts["cost of profiling"] == "+3.8 % a step (1.65 s without it, 1.72 s with it; steps scatter by 1.2 %)"
    assert facts["cores at work"] == "1.94 on average"


def test_a_part_has_the_same_colour_in_every_run(tmp_path: Path):
    for kind in ("cpu", "cuda"):
        spec = figures(make_page(tmp_path / kind, make_timeline(kind)))["breakdown"].spec
        scale = spec["encoding"]["color"]["scale"]
        assert dict(zip(scale["domain"], scale["range"], strict=True)).items() <= COLOURS.items()
    assert len(set(COLOURS.values())) == 9


@pytest.mark.parametrize("colour", [OLIVE, PINK, BROWN])
def test_fixed_colours_can_be_seen_on_both_papers(colour: str):
    assert all(contrast(colour, theme["--paper"]) >= 3 for theme in THEMES)


def test_of_many_steps_some_are_drawn():
    steps = make_timeline().steps * 40
    shown = thin_steps(steps)
    assert len(shown) == MOST_STEPS
    assert (shown[0], shown[-1]) == (steps[0], steps[-1])


def test_the_trace_is_linked_with_how_to_open_it(tmp_path: Path):
    (links,) = blocks(find_section(make_page(tmp_path), "breakdown"), Links)
    address, told = links.rows[0]
    assert address == "trace/rank0000.json.gz"
    assert "https://ui.perfetto.dev" in told
    assert "chrome://tracing" in told


@pytest.mark.parametrize(
    "trace", ["../other.json", "/etc/passwd", "javascript:alert(1)", "gone.json", "a\0b", EVIL, "."]
)
def test_only_a_trace_within_the_run_folder_is_linked(tmp_path: Path, trace: str):
    (tmp_path / "other.json").write_text("{}")
    section = find_section(make_page(tmp_path, make_timeline(trace=trace)), "breakdown")
    assert not blocks(section, Links)
    assert blocks(section, Facts)[-1].rows == [("trace", f"{trace}, which is not in the run folder")]


def test_operators_are_tabulated_a_step_and_sort_by_their_numbers(tmp_path: Path):
    (table,) = blocks(find_section(make_page(tmp_path), "operators"), Table)
    assert table.columns == ["operator", "calls", "own time", "with callees", "share"]
    assert table.rows[0] == ["aten::convolution_backward", "53", "808 ms", "889 ms", "47.0 %"]
    assert table.sortable
    assert table.keys[0][1] == 265
    gpu = find_section(make_page(tmp_path / "gpu", make_timeline("cuda")), "operators")
    (table,) = blocks(gpu, Table)
    assert table.columns[4] == "on the device"
    wrapper = next(place for place, row in enumerate(table.rows) if row[0].startswith("autograd"))
    assert (table.rows[wrapper][4], table.keys[wrapper][4]) == ("", "")


def test_long_names_are_shortened_and_kept_whole_elsewhere(tmp_path: Path):
    page = make_page(tmp_path, make_timeline("cuda"))
    section = find_section(page, "kernels")
    (table,) = blocks(section, Table)
    assert len(CUTLASS) > 1800
    assert len(table.rows[0][0]) == 72
    assert CUTLASS in blocks(section, Code)[0].text
    row = find_rows(figures(page)["kernels"])[0]
    assert len(row["name"]) == 36
    assert len(row["whole"]) == 600


def test_the_roofline_has_roofs_points_and_numbers(tmp_path: Path):
    page = make_page(tmp_path)
    section = find_section(page, "roofline")
    assert blocks(section, Prose)[0].text.startswith("Convolution backward takes 63 % of the step")
    drawn = figures(page)["roofline"]
    assert drawn.alt.startswith("Peak 190 GFLOP/s, memory 17 GB/s; 21 points, the fastest is convolution with")
    roof = drawn.spec["layer"][0]["data"]["values"]
    assert roof[1] == {"x": pytest.approx(1.9e11 / 1.7e10), "y": 1.9e11}
    assert {row["operator"] for row in find_rows(drawn)} == {
        "convolution", "convolution backward", "matrix multiplication with bias",
    }  # fmt: skip
    bars = find_rows(figures(page)["bounds"])
    assert [row["name"] for row in bars][:3] == ["convolution backward", "convolution", "batch norm"]
    assert {row["name"]: row["kind"] for row in bars}["batch norm"] == "memory"
    (table,) = blocks(section, Table)
    assert table.rows[2][0] == "batch norm"
    assert (table.rows[2][4], table.keys[2][4]) == ("", "")


def test_without_flops_only_the_bounds_are_drawn(tmp_path: Path):
    timeline = make_timeline()
    assert timeline.roofline is not None
    kept = [point for point in timeline.roofline.operators if point.flops == 0]
    roofs = timeline.roofline.model_copy(update={"operators": kept, "points": kept})
    drawn = figures(make_page(tmp_path, timeline.model_copy(update={"roofline": roofs})))
    assert "roofline" not in drawn
    assert "bounds" in drawn


def test_bars_beyond_twice_the_roof_end_there_and_tell_their_number(tmp_path: Path):
    timeline = make_timeline()
    assert timeline.roofline is not None
    far = [point.model_copy(update={"share_of_bound": 77.0}) for point in timeline.roofline.operators]
    roofs = timeline.roofline.model_copy(update={"operators": far})
    bars = find_rows(figures(make_page(tmp_path, timeline.model_copy(update={"roofline": roofs})))["bounds"])
    assert (bars[0]["percent"], bars[0]["label"]) == (200, "convolution backward: 7700 %")


@pytest.mark.parametrize(("low", "high"), [(0.1, 1e5), (0.001, 12.0), (9.0, 11.0)])
def test_the_ridge_stands_where_both_names_have_room(low: float, high: float):
    left, right = balance(low, high, 10.0)
    assert left <= low * (1 + 1e-9)
    assert right >= high * (1 - 1e-9)
    place = math.log(10 / left) / math.log(right / left)
    assert RIDGE[0] - 1e-9 <= place <= RIDGE[1] + 1e-9


BROKEN = [
    {"seconds": 0.0},
    {"seconds": 1e-320},
    {"flops": -1.0},
    {"flops": 1e308},
    {"bytes_moved": -5.0},
    {"share_of_bound": 1e308},
    {"share_of_bound": -1.0},
    {"bytes_moved": 0.0},
]


@pytest.mark.parametrize("change", BROKEN, ids=str)
def test_a_roofline_of_absurd_numbers_is_drawn_without_them(tmp_path: Path, change: dict[str, float]):
    timeline = make_timeline()
    assert timeline.roofline is not None

    def spoil(points: list[RooflinePoint]) -> list[RooflinePoint]:
        return [points[0].model_copy(update=change), *points[1:]]

    roofs = timeline.roofline
    spoilt = roofs.model_copy(update={"operators": spoil(roofs.operators), "points": spoil(roofs.points)})
    page = make_page(tmp_path, timeline.model_copy(update={"roofline": spoilt}))
    render(page, "")  # a chart with a number that is none would not become JSON
    assert "roofline" in ours(page)
    assert all(0 <= row["percent"] <= 200 for row in find_rows(figures(page)["bounds"]))


@pytest.mark.parametrize("peak", [0.0, -1.0, 1e308])
def test_without_sound_roofs_there_is_no_roofline(peak: float):
    roofs = make_timeline().roofline
    assert roofs is not None
    assert keep_sound(roofs.model_copy(update={"peak_flops": peak})) is None
    assert keep_sound(roofs.model_copy(update={"peak_bytes_per_second": peak})) is None
    assert keep_sound(roofs.model_copy(update={"operators": []})) is None


@pytest.mark.parametrize("seconds", [0.0, 1e300])
def test_steps_of_absurd_lengths_are_not_drawn(tmp_path: Path, seconds: float):
    timeline = make_timeline()
    steps = [step.model_copy(update={"seconds": seconds}) for step in timeline.steps]
    page = make_page(tmp_path, timeline.model_copy(update={"steps": steps}), throughput=None)
    assert "breakdown" not in ours(page)
    render(page, "")


def make_hostile() -> Timeline:
    """Every name of a trace is hostile."""
    timeline = make_timeline("cuda")
    assert timeline.roofline is not None
    assert timeline.cores is not None

    def rename(rows: list[Any], field: str = "name") -> list[Any]:
        return [row.model_copy(update={field: f"{EVIL}{number}"}) for number, row in enumerate(rows)]

    roofs, sentence = timeline.roofline, EVIL.replace("\x1b", " \x1b")
    points = [point.model_copy(update={"shapes": EVIL}) for point in rename(roofs.points, "operator")]
    return timeline.model_copy(
        update={
            "trace": EVIL,
            "device": EVIL,
            "told": [sentence],
            "operators": rename(timeline.operators),
            "kernels": rename(timeline.kernels),
            "lanes": rename(timeline.lanes),
            "roofline": roofs.model_copy(
                update={
                    "operators": rename(roofs.operators, "operator"), "points": points, "told": [sentence],
                    "peak_source": EVIL,
                }
            ),
            "cores": timeline.cores.model_copy(update={"pipes_percent": {EVIL: 3.0}, "file": EVIL}),
        }
    )  # fmt: skip


def test_hostile_text_stays_text(tmp_path: Path):
    html = render(make_page(tmp_path, make_hostile()), "")
    assert html.count("<script>'") == 0
    assert not hidden(html)


@pytest.mark.parametrize("kind", ["cpu", "cuda", "hostile"])
def test_charts_can_be_files_for_papers(tmp_path: Path, kind: str):
    timeline = make_hostile() if kind == "hostile" else make_timeline(kind)
    page = make_page(tmp_path, timeline)
    drawn = [figure for figure in page.figures if figure.name in {*OURS, "bounds"}]
    files = export_figures(drawn, tmp_path / "figures", "svg")
    assert {file.stem for file in files} == {figure.name for figure in drawn}
    for file in files:
        text = file.read_text()
        assert "var(--" not in text
        assert "NaN" not in text
        assert "undefined" not in text


def test_the_page_works_in_a_browser_at_every_width(tmp_path: Path, browser: Browser):
    made = {"cpu": make_timeline(), "cuda": make_timeline("cuda"), "hostile": make_hostile()}
    paths = {name: write_profile(tmp_path / name, make_profile(timeline=found)) for name, found in made.items()}
    with Scripts() as scripts:
        for path in paths.values():
            write_report(path, scripts)
    for name, width, dark in (("cpu", 1400, False), ("cuda", 390, True), ("cuda", 1400, True), ("hostile", 390, False)):
        page = browser.open(paths[name] / "report.html", width=width, dark=dark)
        page.evaluate("window.chartsDrawn.then(() => null)")
        drawn = page.evaluate("[...document.querySelectorAll('.chart')].map(place => place.dataset.drawn)")
        assert set(drawn) == {"yes"}, page.console_errors
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CUT_LABELS) == []
        assert page.console_errors == []
        assert page.network_requests == []
        page.close()


# Texts of our charts that reach out of their picture, and axis labels that Vega cut off (it puts … at the end)
CUT_LABELS = """['breakdown', 'operators', 'kernels', 'roofline', 'bounds', 'cores']
.map(name => document.querySelector(`#figure-${name} .chart`)).filter(place => place !== null)
.flatMap(place => [...place.querySelectorAll('svg text')].filter(text => {
  const box = text.getBoundingClientRect(), around = place.querySelector('svg').getBoundingClientRect();
  return box.left < around.left - 1 || box.right > around.right + 1 || text.textContent.endsWith('…');
}).map(text => text.textContent))"""
