"""Comparisons on the terminal: table or blocks, colours by judgement."""

import io
import re

import pytest
from rich.console import Console

from trainstone.cli.tables import print_comparison
from trainstone.results.schema import Comparison, ComparisonRow, Side

A = Side(label="new-box", runs=["runs/a"], images_per_second=123.4)
B = Side(label="old-box", runs=["runs/b"], images_per_second=100.0)
FASTER = ComparisonRow(
    label="ResNet-50", a=A, b=B, ratio=1.234, ci95=(1.2, 1.268), ci_covers="between runs", p_value=0.0001,
    p_holm=0.0002, noise_floor=0.011, judgement="faster", differences=["torch 2.13 and 2.14"],
)  # fmt: skip
SLOWER = FASTER.model_copy(
    update={"label": "ResNet-18", "ratio": 0.5, "ci95": (0.4, 0.61), "p_holm": 0.031, "judgement": "slower"}
)
UNJUDGED = FASTER.model_copy(
    update={
        "label": "ResNet-34", "ratio": 12.34, "ci95": None, "ci_covers": "not established: 1 run, 2 needed",
        "p_holm": None, "judgement": "not judged", "differences": [], "noise_floor": None,
    }
)  # fmt: skip


def show(*rows: ComparisonRow, width: int = 100, colour: bool = False, **more: object) -> str:
    file = io.StringIO()
    system = "standard" if colour else None
    console = Console(file=file, width=width, highlight=False, force_terminal=colour, color_system=system)
    print_comparison(console, Comparison(rows=list(rows), verdict="new-box is 1.23 times as fast", **more))
    return file.getvalue()


def test_rows_are_a_table_with_notes():
    text = show(FASTER, SLOWER, UNJUDGED, geometric_mean=1.97, width=140)
    assert re.search(r" +A +B +A / B +p \(Holm\) +judgement", text)
    row = r"ResNet-50 +new-box: 123 images/s +old-box: 100 images/s +1\.234 \(1\.200 … 1\.268\) +< 0\.001 +faster"
    assert re.search(row, text)
    assert re.search(r"ResNet-18 .* 0\.500 \(0\.400 … 0\.610\) +0\.031 +slower", text)
    assert re.search(r"ResNet-34 .* 12\.3 \(no interval\) +not judged", text)
    assert "ResNet-50, ResNet-18: interval between runs\n" in text
    assert "ResNet-34: interval not established: 1 run, 2 needed\n" in text
    assert "geometric mean of A / B: 1.970\n" in text


def test_notes_of_all_rows_are_shown_once():
    both = FASTER.model_copy(update={"differences": ["host: x | y", "steady: no on both sides"]})
    lines = show(both, both.model_copy(update={"label": "SSD"}), width=140).splitlines()
    notes = ["interval between runs", "noise floor 1.1 %", "differs: host: x | y", "steady: no on both sides"]
    assert lines[-4:] == notes


def test_narrow_terminals_get_lines():
    text = show(FASTER, SLOWER, width=50)
    assert text.splitlines()[0] == "ResNet-50"
    assert "  A / B  1.234 (1.200 … 1.268)" in text
    assert max(map(len, text.splitlines())) <= 50


@pytest.mark.parametrize("width", [50, 140])
def test_colour_follows_the_judgement(width: int):
    text = show(FASTER, SLOWER, UNJUDGED, width=width, colour=True)
    for colour, judgement in ((32, "faster"), (31, "slower"), (2, "not judged")):
        assert re.search(rf"\x1b\[{colour}m{judgement} *\x1b\[0m", text)
