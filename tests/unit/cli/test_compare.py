"""Comparing on the terminal: --to takes many words, limits of the gate, tables or lines, colours by judgement."""

import io
import re

import pytest
from rich.console import Console

from made_results import make_result, write_run, write_runs
from trainstone.cli.compare import check_limit, spread_to, suggest_next
from trainstone.cli.tables import print_comparison
from trainstone.errors import ConfigError
from trainstone.results import compare as module
from trainstone.results.schema import Comparison, ComparisonRow, Side


def compare(runs, to) -> Comparison:
    return module.compare(runs, to)[0]


@pytest.mark.parametrize(
    ("given", "spread"),
    [
        ("A --to B", "A --to B"),
        ("A1 A2 --to B1 B2 B3", "A1 A2 --to B1 --to B2 --to B3"),
        ("A --to B1 B2 --json", "A --to B1 --to B2 --json"),
        ("A --to B1 B2 --fail-below 0.9 --to B3 B4", "A --to B1 --to B2 --fail-below 0.9 --to B3 --to B4"),
        ("A --to=B1 B2", "A --to=B1 --to B2"),
        ("--force A --to B", "--force A --to B"),
        ("--to B1 --force A", "--to B1 --force A"),
        ("--to B1 B2 -- A1 A2", "--to B1 --to B2 -- A1 A2"),
        ("-- --to B1 B2", "-- --to B1 B2"),
        ("A --to", "A --to"),
        ("", ""),
    ],
)
def test_to_takes_every_word_up_to_the_next_option(given, spread):
    assert spread_to(given.split()) == spread.split()


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), float("inf"), 95.0])
def test_check_limit_refuses_what_is_not_a_ratio(limit):
    with pytest.raises(ConfigError) as caught:
        check_limit(limit)
    assert ("--fail-below 0.95?" in caught.value.hint) == (limit == 95)


@pytest.mark.parametrize("width", [40, 79, 80, 120])
def test_shares_fit_their_terminal(tmp_path, width):
    run = write_run(tmp_path, make_result("run", 3.3))
    for words in (["published"], ["a10-lambda-amp"]):
        file = io.StringIO()
        print_comparison(Console(file=file, width=width), compare([str(run)], words))
        assert all(len(line) <= width for line in file.getvalue().splitlines())
        assert "a10-lambda-amp" in file.getvalue()
        assert "0.517 % (0.512 … 0.522 %)" in " ".join(file.getvalue().split())


def test_the_next_command_depends_on_what_there_is(tmp_path):
    single = write_runs(tmp_path, "a b", [1.0, 1.0])
    assert f"bench '{single[0]}/config.toml' --runs 5" in suggest_next(compare([str(single[0])], [str(single[1])]))
    fast, slow = write_runs(tmp_path, "fast", [2.0, 2.01, 1.99]), write_runs(tmp_path, "slow", [1.0, 1.01, 0.99])
    words = {name: [str(path) for path in paths] for name, paths in (("f", fast), ("s", slow))}
    assert "trainstone report" in suggest_next(compare(words["f"], words["s"]))
    assert "--runs 5" in suggest_next(compare([str(single[0])], ["a10-lambda-amp"]))


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
