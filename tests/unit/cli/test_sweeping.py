"""A sweep on the terminal: as a table, without bars, and as lines, whatever fits."""

import io
from pathlib import Path

from rich.console import Console

from made_results import make_result
from made_sweep import make_row, make_sweep, steps_of
from trainstone.cli.summary import print_sweep
from trainstone.results.summary import describe_repeat, describe_setting
from trainstone.results.sweep import Sweep

ROWS = [*steps_of(0.0025, 0.02, 1, 2, 4), make_row(8, status="out_of_memory", note="out of memory: it is large")]


def show(sweep: Sweep, width: int = 100, encoding: str = "utf-8") -> list[str]:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")
    print_sweep(Console(file=stream, width=width, highlight=False), sweep)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding).splitlines()


def test_table_has_bars_and_the_knee():
    lines = show(make_sweep(*ROWS))
    assert lines[0].split() == ["batch", "images/s", "±", "MFU", "memory", "note"]
    assert lines[1].split()[:4] == ["1", "44.4", "1.0", "%"]
    assert lines[3].rstrip().endswith("█" * 16)
    assert ["knee" in line for line in lines[1:4]] == [False, True, False]
    assert lines[4].split() == ["8", "out", "of", "memory:", "it", "is", "large"]
    assert show(make_sweep(*ROWS), encoding="ascii")[3].rstrip().endswith("#" * 16)


def test_narrow_terminals_lose_the_bars_and_then_the_table():
    assert "█" not in "".join(show(make_sweep(*ROWS), width=70))
    narrow = show(make_sweep(*ROWS), width=40)
    assert narrow[:2] == ["batch 1", "  images/s  44.4"]
    assert max(map(len, narrow)) <= 40


def test_curves_have_a_column():
    rows = [make_row(b, 1.0, curve=c) for c in (True, False) for b in (1, 2)]
    lines = show(make_sweep(*rows, curve_key="engine.compile", curves=[True, False]))
    assert lines[0].split()[:2] == ["batch", "engine.compile"]
    assert [line.split()[:2] for line in lines[1:5]] == [["1", "true"], ["2", "true"], ["1", "false"], ["2", "false"]]
    assert show(make_sweep(values=[1, 2])) == []


def test_how_to_repeat_or_go_on():
    sweep = make_sweep(*ROWS, profile=True)
    result = make_result("x", None, kind="sweep", status="ok", sweep=sweep)
    assert describe_repeat(result, Path("r/x")) == "trainstone sweep r/x/config.toml --batch-sizes 1,2,4,8 --profile"
    for status in ("killed", "interrupted"):
        stopped = result.model_copy(update={"status": status})
        assert describe_repeat(stopped, Path("r/a b")) == "trainstone sweep --resume 'r/a b'"
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
    told = describe_repeat(result.model_copy(update={"sweep": both}), Path("x"))
    assert told == "trainstone sweep x/config.toml --batch-sizes 1 --over 'augment.area=[0.1, 1],[0.5, 1]'"
