"""Test terminal summaries: rows, tables and bars at every width; hostile text is escaped."""

import io
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from support.builders.hostile_text import HOSTILE, HOSTILE_NAME, hidden
from support.builders.results import (
    A100,
    make_data_bench,
    make_point,
    make_profile,
    make_result,
    make_timeline,
    write_run,
)
from support.builders.sweeps import make_row, make_sweep, steps_of
from support.builders.training_results import make_quality, make_training, write_training
from trainstone.cli.render import run as summary
from trainstone.cli.render import sparkline, tables
from trainstone.results.compare import compare
from trainstone.results.findings import finding
from trainstone.results.run_folder import read_result
from trainstone.results.schema.data_bench import Stage
from trainstone.results.schema.run import Comparison, ComparisonRow, Result, Side
from trainstone.results.schema.sweep import Sweep
from trainstone.results.step_summary import describe_setting, format_repeat_command


def draw(
    print_it: Callable[[Console, Any], None], what: object, width: int, encoding: str = "utf-8", **more: Any
) -> str:
    """Return the output of `print_it` on a terminal of this width and encoding."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace", write_through=True)
    print_it(Console(file=stream, width=width, highlight=False, **more), what)
    return stream.buffer.getvalue().decode(encoding)


@pytest.fixture
def show(golden, capsys, monkeypatch: pytest.MonkeyPatch):
    """Return a function that prints a run folder or golden case and returns its stdout."""

    def printed(case: str | Path, width: int = 80, *, colour: bool = False, **changes: Any) -> str:
        path = case if isinstance(case, Path) else golden(case)
        monkeypatch.setenv("COLUMNS", str(width))
        if colour:
            monkeypatch.setenv("FORCE_COLOR", "1")
            monkeypatch.setenv("TERM", "xterm-256color")
        summary.print_result(read_result(path).model_copy(update=changes), path)
        return capsys.readouterr().out

    return printed


def as_one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("width", [40, 80, 120])
def test_print_result_at_any_width_shows_verdict_findings_and_rows(show, golden, tmp_path: Path, width: int):
    text = as_one_line(show("throttled", width))
    result = read_result(tmp_path / "throttled")
    assert as_one_line(result.verdict) in text
    for found in result.findings:
        assert f"{found.severity}: {found.message} [{found.code}] {found.hint}" in text
    for name in ("throughput", "step", "first step", "window", "steps", "utilisation", "memory", "energy", "noise"):
        assert f" {name} " in text


def test_print_result_draws_steps_with_min_and_max(show):
    assert re.search(r"^  steps +[▁-█]\|[▁-█]{34}  min 65.4 ms, max 165 ms *$", show("good"), re.MULTILINE)
    text = show("killed")
    assert "no result: killed" in text
    assert re.search(r"^  steps +[▁-█]{36}  min ", text, re.MULTILINE)


def test_print_result_with_unreadable_steps_skips_their_row(show, golden):
    path = golden("good")
    file = path / "steps-rank0000.csv"
    for content in ("", "step,epo", "not a step file\n"):
        file.write_text(content)
        assert "steps  " not in show(path)
    file.unlink()
    assert "steps  " not in show(path)


def test_print_result_on_terminal_colours_findings_by_severity(show, golden, monkeypatch: pytest.MonkeyPatch):
    findings = [finding("not-measured", "one"), finding("run-failed", "two"), finding("outliers", "three")]
    path = golden("throttled")
    text = show(path, colour=True, findings=[*findings, finding("throttled", "four")])
    found = re.findall(r"(\x1b\[[\d;]*m)(error|warning|info): \x1b\[0m(\w+)", text)
    assert found == [
        ("\x1b[1;31m", "error", "two"),
        ("\x1b[33m", "warning", "four"),
        ("\x1b[36m", "info", "one"),
        ("\x1b[36m", "info", "three"),
    ]
    assert re.search(r"\x1b\[2m[▁-█]+\|\x1b\[0m[▁-█]+", text), "warm-up is dim"
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[\d;]*3\dm", show(path, colour=True))


def test_print_result_ends_with_full_quoted_paths(show, golden, tmp_path: Path):
    path = golden("good").rename(tmp_path / "my runs (1)")
    *_, result, repeat = show(path).splitlines()
    assert result == f"result  {path}/result.json"
    assert repeat == f"repeat  trainstone bench '{path}/config.toml'"
    (path / "report.html").write_text("")
    assert show(path).splitlines()[-2] == f"report  {path}/report.html"


def test_print_result_with_hostile_folder_name_escapes_control_characters(show, golden, tmp_path: Path):
    text = show(golden("throttled").rename(tmp_path / HOSTILE_NAME), colour=True, verdict=HOSTILE)
    assert not hidden(re.sub(r"\x1b\[\d[\d;]*m", "", text))
    assert "\x1b[31m<" not in text
    assert repr(HOSTILE_NAME)[1:-1].split("\\x1b")[1] in text.splitlines()[-1]


def collect_rows(rows: Callable[..., Any], result: Result, encoding: str = "utf-8") -> dict[str, str]:
    return {name: str(text) for name, text in rows(result, 36, encoding)}


def test_training_rows_show_quality_target_epochs_and_time():
    assert collect_rows(summary.training_rows, make_training()) == {
        "quality": "92.4 % top-1 after epoch 8; top-5 99.7 %, loss 0.382",
        "over epochs": "▁▃▄▆▆▇██  first 21.2 %, best 92.4 %",
        "target": "90 % top-1, reached in 2 min 27 s",
        "epochs": "8",
        "time": "2 min 27 s: training 76 %, data wait 5 %, evaluation 16 %, checkpoints 2 %",
    }


def test_training_rows_without_evaluations_show_only_epochs():
    quality = make_quality(history=[], target=None, seconds_to_target=None, starts=3)
    result = make_training(status="interrupted", quality=quality).model_copy(update={"phases": None})
    assert collect_rows(summary.training_rows, result) == {"epochs": "0.4, in 3 starts"}


@pytest.mark.parametrize("width", [40, 80, 120])
def test_print_result_of_training_shows_quality_and_throughput(show, tmp_path: Path, width: int):
    text = as_one_line(show(write_training(tmp_path), width))
    assert "ResNet-18: 92.4 % top-1 (target 90 %) after 8 epochs" in text
    for name in ("quality 92.4 %", "target 90 %", "throughput 213 images/s", "steps "):
        assert f" {name}" in text


def test_profile_rows_on_cpu_show_breakdown_and_ascii_bars():
    rows = collect_rows(summary.profile_rows, make_profile())
    assert list(rows) == ["breakdown", "busy", "profiler", "operators", "roofline", "trace"]
    assert rows["breakdown"].startswith("compute 90.5 %, optimiser 6.1 %, Python 2.1 %, waiting for data 0.6 %")
    assert rows["busy"] == "operators run for 96.6 % of the time, on 1.94 cores"
    assert rows["profiler"].startswith("+3.8 % per step (")
    assert rows["roofline"].startswith("Convolution backward takes 63 % of the step and reaches")
    assert rows["trace"] == "trace/rank0000.json.gz; open it at https://ui.perfetto.dev"
    lines = collect_rows(summary.profile_rows, make_profile(), encoding="ascii")["operators"].split("\n")
    assert lines[0].startswith("######## 47.0 %")
    assert all(line.isascii() for line in lines)


def test_profile_rows_on_gpu_show_gaps_and_pipes():
    rows = collect_rows(summary.profile_rows, make_profile(make_timeline("cuda")))
    assert list(rows) == ["breakdown", "gaps", "busy", "profiler", "operators", "roofline", "SM pipes", "trace"]
    assert rows["gaps"].startswith("The device is idle for 29 %")
    assert rows["busy"].startswith("kernels run for 7")
    assert rows["SM pipes"] == "fma 17.5 %, fp16 4.0 %, tensor 38.6 %, sfu 1.3 %"


@pytest.mark.parametrize("width", [30, 40, 80, 120])
def test_profile_rows_at_any_width_print_one_line_per_operator(width: int):
    lines = draw(
        tables.print_rows, list(summary.profile_rows(make_profile(), min(36, width - 2), "utf-8")), width
    ).splitlines()
    assert max(map(len, lines)) <= width
    assert len([line for line in lines if "aten::" in line]) == 6


def test_print_data_bench_shows_threads_stages_and_cores_in_order():
    points = [make_point(1, 600, 0.99), make_point(2, 1190, 1.98)]
    text = draw(summary.print_data_bench, make_data_bench(points, demand=A100, skipped=3), 80)
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines[:4] == [
        "data/set: 1,200 images in train, RecordIO",
        "2 KiB per image; random crop, flip; to 224 x 224, batches of 64",
        "decoder: simplejpeg; a CPU, 2 cores",
        "skipped: 3 images that could not be used",
    ]
    patterns = [
        r"^ +threads +images/s +95 % interval +busy CPUs +images/s per core +of linear$",
        r"^ +2 +1,190 +1,178 … 1,202 +1\.98 +601 +99 %",
        r"^95 % interval within this run$",
        r"^ +read +200 +10\.0 % +█{2}[▏▎▍▌▋▊▉█]?$",
        r"^ +decode +1,560 +78\.0 % +█{16}$",
        r"^One core loads 601 images/s",
    ]
    found = [next(n for n, line in enumerate(lines) if re.search(pattern, line)) for pattern in patterns]
    assert found == sorted(found)


@pytest.mark.parametrize("width", [20, 40, 59, 60, 80, 200])
def test_print_data_bench_fits_terminal_width(width: int):
    points = [make_point(threads, 123_456.0 * threads, cores=128) for threads in (1, 16, 128)]
    text = draw(summary.print_data_bench, make_data_bench(points, cores=128, demand=A100, skipped=1), width)
    assert max(map(len, text.splitlines())) <= width


def test_print_data_bench_omits_missing_measurements():
    point = make_point(2, 1190, ci95=None, ci_covers="not established: 3 batches")
    text = draw(summary.print_data_bench, make_data_bench([point], stages=[]), 80)
    assert [word for word in ("±", "stage", "busy", "skipped") if word in text] == []
    assert "95 % interval not established: 3 batches" in text
    assert "Training at N images/s needs N / 595" in text
    stages = [Stage(name="read", seconds_per_image=0, share=0), Stage(name="decode", seconds_per_image=1e-3, share=1)]
    text = draw(summary.print_data_bench, make_data_bench(stages=stages), 80)
    assert re.search(r"^  read +0 +0\.0 % *$", text, re.MULTILINE)


ROWS = [*steps_of(0.0025, 0.02, 1, 2, 4), make_row(8, status="out_of_memory", note="out of memory: it is large")]


def show_sweep(sweep: Sweep, width: int = 100, encoding: str = "utf-8") -> list[str]:
    return draw(summary.print_sweep, sweep, width, encoding).splitlines()


def test_print_sweep_shows_bars_and_knee():
    lines = show_sweep(make_sweep(*ROWS))
    assert lines[0].split() == ["batch", "images/s", "±", "MFU", "memory", "note"]
    assert lines[1].split()[:4] == ["1", "44.4", "1.0", "%"]
    assert lines[3].rstrip().endswith("█" * 16)
    assert ["knee" in line for line in lines[1:4]] == [False, True, False]
    assert lines[4].split() == ["8", "out", "of", "memory:", "it", "is", "large"]
    assert show_sweep(make_sweep(*ROWS), encoding="ascii")[3].rstrip().endswith("#" * 16)


def test_print_table_on_narrow_terminal_drops_bars_then_columns():
    text = draw(summary.print_data_bench, make_data_bench(), 24)
    assert "images/s  1,190" in text
    assert not set(sparkline.EIGHTHS) & set(text)
    assert "█" not in "".join(show_sweep(make_sweep(*ROWS), width=70))
    narrow = show_sweep(make_sweep(*ROWS), width=40)
    assert narrow[:2] == ["batch 1", "  images/s  44.4"]
    assert max(map(len, narrow)) <= 40
    text = show_comparison(FASTER, SLOWER, width=50)
    assert text.splitlines()[0] == "ResNet-50"
    assert "  A / B  1.234 (1.200 … 1.268)" in text
    assert max(map(len, text.splitlines())) <= 50


def test_print_sweep_with_curves_adds_their_column():
    rows = [make_row(b, 1.0, curve=c) for c in (True, False) for b in (1, 2)]
    lines = show_sweep(make_sweep(*rows, curve_key="engine.compile", curves=[True, False]))
    assert lines[0].split()[:2] == ["batch", "engine.compile"]
    assert [line.split()[:2] for line in lines[1:5]] == [["1", "true"], ["2", "true"], ["1", "false"], ["2", "false"]]
    assert show_sweep(make_sweep(values=[1, 2])) == []


def test_repeat_command_of_sweep_depends_on_status():
    sweep = make_sweep(*ROWS, profile=True)
    result = make_result("x", None, kind="sweep", status="ok", sweep=sweep)
    assert (
        format_repeat_command(result, Path("r/x")) == "trainstone sweep r/x/config.toml --batch-sizes 1,2,4,8 --profile"
    )
    for status in ("killed", "interrupted"):
        stopped = result.model_copy(update={"status": status})
        assert format_repeat_command(stopped, Path("r/a b")) == "trainstone sweep --resume 'r/a b'"
    assert "batch 1 … 8" in describe_setting(result)
    precisions = make_sweep(make_row("fp32", 1.0), make_row("bf16", 2.0), key="train.precision")
    assert describe_setting(result.model_copy(update={"sweep": precisions})).split(" · ")[1:] == [
        "Intel Xeon, 2 threads",
        "batch 8",
        "synthetic data",
    ]
    threads = make_sweep(make_row(1, 1.0), make_row(2, 2.0), key="engine.threads")
    assert "threads" not in describe_setting(result.model_copy(update={"sweep": threads}))
    rows = [make_row(1, 1.0, curve=c) for c in ([0.1, 1], [0.5, 1])]
    both = make_sweep(*rows, curve_key="augment.area", curves=[[0.1, 1], [0.5, 1]])
    command = format_repeat_command(result.model_copy(update={"sweep": both}), Path("x"))
    assert command == "trainstone sweep x/config.toml --batch-sizes 1 --over 'augment.area=[0.1, 1],[0.5, 1]'"


@pytest.mark.parametrize("width", [40, 79, 80, 120])
def test_print_comparison_with_published_figures_fits_terminal_width(tmp_path, width):
    run = write_run(tmp_path, make_result("run", 3.3))
    for baseline in (["published"], ["a10-lambda-amp"]):
        text = draw(summary.print_comparison, compare([str(run)], baseline)[0], width)
        assert all(len(line) <= width for line in text.splitlines())
        assert "a10-lambda-amp" in text
        assert "0.517 % (0.512 … 0.522 %)" in as_one_line(text)


A = Side(label="new-box", runs=["runs/a"], images_per_second=123.4)
B = Side(label="old-box", runs=["runs/b"], images_per_second=100.0)
FASTER = ComparisonRow(
    label="ResNet-50", a=A, b=B, ratio=1.234, ci95=(1.2, 1.268), ci_covers="between runs", p_value=0.0001,
    p_holm=0.0002, noise_floor=0.011, outcome="faster", differences=["torch 2.13 and 2.14"],
)  # fmt: skip
SLOWER = FASTER.model_copy(
    update={"label": "ResNet-18", "ratio": 0.5, "ci95": (0.4, 0.61), "p_holm": 0.031, "outcome": "slower"}
)
NOT_ASSESSED = FASTER.model_copy(
    update={
        "label": "ResNet-34", "ratio": 12.34, "ci95": None, "ci_covers": "not established: 1 run, 2 needed",
        "p_holm": None, "outcome": "not assessed", "differences": [], "noise_floor": None,
    }
)  # fmt: skip


def show_comparison(*rows: ComparisonRow, width: int = 100, colour: bool = False, **more: object) -> str:
    comparison = Comparison(rows=list(rows), verdict="new-box is 1.23 times as fast", **more)
    system = "standard" if colour else None
    return draw(summary.print_comparison, comparison, width, force_terminal=colour, color_system=system)


def test_print_comparison_shows_table_and_notes():
    text = show_comparison(FASTER, SLOWER, NOT_ASSESSED, geometric_mean=1.97, width=140)
    assert re.search(r" +A +B +A / B +p \(Holm\) +outcome", text)
    row = r"ResNet-50 +new-box: 123 images/s +old-box: 100 images/s +1\.234 \(1\.200 … 1\.268\) +< 0\.001 +faster"
    assert re.search(row, text)
    assert re.search(r"ResNet-18 .* 0\.500 \(0\.400 … 0\.610\) +0\.031 +slower", text)
    assert re.search(r"ResNet-34 .* 12\.3 \(no interval\) +not assessed", text)
    assert "ResNet-50, ResNet-18: interval between runs\n" in text
    assert "ResNet-34: interval not established: 1 run, 2 needed\n" in text
    assert "geometric mean of A / B: 1.970\n" in text


def test_print_comparison_shows_shared_notes_once():
    both = FASTER.model_copy(update={"differences": ["host: x | y", "steady: no on both sides"]})
    lines = show_comparison(both, both.model_copy(update={"label": "SSD"}), width=140).splitlines()
    notes = ["interval between runs", "noise floor 1.1 %", "differs: host: x | y", "steady: no on both sides"]
    assert lines[-4:] == notes


@pytest.mark.parametrize("width", [50, 140])
def test_print_comparison_colours_outcomes(width: int):
    text = show_comparison(FASTER, SLOWER, NOT_ASSESSED, width=width, colour=True)
    for colour, outcome in ((32, "faster"), (31, "slower"), (2, "not assessed")):
        assert re.search(rf"\x1b\[{colour}m{outcome} *\x1b\[0m", text)


@pytest.mark.parametrize(
    ("values", "width", "steady_from", "drawn"),
    [
        (np.arange(1, 9), 8, 0, ("", "▁▂▃▄▅▆▇█")),
        ([9, 5, 2, 1, 2, 1, 2, 1], 8, 2, ("██", "█▁█▁█▁")),
        ([1, 1, 1, 1, 3, 3, 3, 3], 2, 0, ("", "▁█")),  # neighbours are averaged
        ([1, 2], 40, 0, ("", "▁█")),
        ([1.0] * 50, 10, 0, ("", "▁" * 10)),
        ([], 40, 0, ("", "")),
        ([1, 2, 3], 0, 0, ("", "")),
        ([1, math.nan, 2, math.inf], 4, 0, ("", "▁ █ ")),
        (np.ones(1000), 10, 1, ("▁", "▁" * 9)),  # each part has a cell
        (np.ones(1000), 10, 999, ("▁" * 9, "▁")),
        (np.ones(5), 5, 99, ("▁" * 5, "")),
        ([50.0] + [1.0, 1.5] * 4, 9, 0, ("", "█▁█▁█▁█▁█")),  # one slow step does not flatten the rest
    ],
)
def test_draw_sparkline(values: Any, width: int, steady_from: int, drawn: tuple[str, str]):
    assert sparkline.draw_sparkline(values, width, steady_from) == drawn


def test_draw_sparkline_of_quiet_series_stays_low():
    _, steady = sparkline.draw_sparkline(1 + np.random.default_rng(0).normal(0, 0.002, 40), 40)
    assert set(steady) <= {"▁", "▂"}


@settings(deadline=None)
@given(st.lists(st.floats(width=32), max_size=200), st.integers(-2, 60), st.integers(-2, 250))
def test_draw_sparkline_of_any_series_has_expected_length(values: list[float], width: int, steady_from: int):
    before, after = sparkline.draw_sparkline(values, width, steady_from)
    assert len(before) + len(after) == min(max(0, width), len(values))
    assert set(before + after) <= set(sparkline.BLOCKS + " ")


@pytest.mark.parametrize(
    ("counts", "width", "drawn"), [([3, 0, 0, 3, 1], 10, "█▁▁█▃"), ([1, 9, 0, 0], 2, "█▁"), ([], 10, ""), ([0], 9, "▁")]
)
def test_draw_histogram_starts_at_zero_and_keeps_maximum(counts: list[int], width: int, drawn: str):
    assert sparkline.draw_histogram(counts, width) == drawn


def test_draw_bars_uses_eighths_of_a_cell():
    assert sparkline.draw_bars([8, 4, 1, 0], 4) == ["████", "██", "▌", ""]
    assert sparkline.draw_bars([1000, 1], 4) == ["████", "▏"]
    assert sparkline.draw_bars([3], 2) == ["██"]
    assert sparkline.draw_bars([], 10) == []
    assert sparkline.draw_bars([0, math.nan, -1, math.inf], 10) == [""] * 4
    assert sparkline.draw_bars([1, 2], 0) == ["", ""]
    assert sparkline.draw_bars([1, 2], -3) == ["", ""]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "no-such-encoding", None])
def test_draw_charts_without_unicode_use_ascii(encoding: str | None):
    assert sparkline.draw_bars([4, 2, 0.1, 0], 4, encoding=encoding) == ["####", "##", "#", ""]
    assert sparkline.draw_sparkline(np.arange(1, 9), 8, encoding=encoding) == ("", sparkline.ASCII)
    assert sparkline.draw_sparkline(np.arange(1, 9), 8, encoding="UTF8") == ("", sparkline.BLOCKS)
