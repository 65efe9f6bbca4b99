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
OTHER = FASTER.model_copy(
    update={"label": "SSD", "b": Side(label="DGX", runs=["runs/d"], images_per_second=2500.0), "differences": []}
)


def show(*rows: ComparisonRow, width: int = 100, colour: bool = False, **more: object) -> str:
    file = io.StringIO()
    system = "standard" if colour else None
    console = Console(file=file, width=width, highlight=False, force_terminal=colour, color_system=system)
    print_comparison(console, Comparison(rows=list(rows), verdict="new-box is 1.23 times as fast", **more))
    return file.getvalue()


def test_one_row_is_a_table_with_the_verdict_last():
    text = show(FASTER)
    assert re.search(r"A: new-box +B: old-box +A / B +judgement", text)
    assert re.search(r"^ResNet-50 +123 images/s +100 images/s +1\.234 \(1\.200 … 1\.268\) +faster", text, re.MULTILINE)
    assert "p (Holm)" not in text
    notes = ["interval between runs", "noise floor 1.1 %", "differs: torch 2.13 and 2.14"]
    assert text.splitlines()[-5:-2] == notes
    assert text.splitlines()[-1] == "new-box is 1.23 times as fast"


def test_several_rows_have_corrected_p_values_and_a_mean():
    text = show(FASTER, SLOWER, UNJUDGED, geometric_mean=1.97, width=120)
    assert re.search(r"^ResNet-50 .* < 0\.001 +faster", text, re.MULTILINE)
    assert re.search(r"^ResNet-18 .* 0\.500 \(0\.400 … 0\.610\) +0\.031 +slower", text, re.MULTILINE)
    assert re.search(r"^ResNet-34 .* 12\.3 \(no interval\) +– +not judged", text, re.MULTILINE)
    assert "ResNet-50, ResNet-18: interval between runs\n" in text
    assert "ResNet-34: interval not established: 1 run, 2 needed\n" in text
    assert "ResNet-18: differs: torch 2.13 and 2.14\n" in text
    assert "geometric mean of A / B: 1.970\n" in text


def test_sides_are_named_in_their_cells_where_rows_differ():
    text = show(FASTER, OTHER, width=140)
    assert re.search(r"A: new-box +B +A / B", text)
    assert "old-box: 100 images/s" in text
    assert "DGX: 2,500 images/s" in text


@pytest.mark.parametrize("width", [40, 79])
def test_blocks_where_it_is_narrow(width: int):
    text = show(FASTER, SLOWER, width=width)
    assert text.splitlines()[:6] == [
        "ResNet-50",
        "  A  new-box: 123 images/s",
        "  B  old-box: 100 images/s",
        "  A / B  1.234 (1.200 … 1.268)",
        "  p (Holm)  < 0.001",
        "  faster",
    ]


@pytest.mark.parametrize("width", [40, 100])
def test_colour_follows_the_judgement(width: int):
    text = show(FASTER, SLOWER, UNJUDGED, width=width, colour=True)
    assert re.search(r"\x1b\[32mfaster *\x1b\[0m", text)
    assert re.search(r"\x1b\[31mslower *\x1b\[0m", text)
    assert re.search(r"\x1b\[2mnot judged *\x1b\[0m", text)
    assert "\x1b[1mnew-box is 1.23 times as fast\x1b[0m" in text
