"""How fast a data set feeds, on the terminal: wide, narrow, with text nobody may obey."""

import io
import math
import re

import pytest
from rich.console import Console

from made_results import A100, make_feeding, make_point
from trainstone.cli.sparkline import ACROSS, draw_bars
from trainstone.cli.tables import print_feeding
from trainstone.results.feeding import Feeding, Stage


def show(feeding: Feeding, *, width: int = 80) -> str:
    file = io.StringIO()
    print_feeding(Console(file=file, width=width, highlight=False), feeding)
    return file.getvalue()


def test_everything_in_its_order():
    points = [make_point(1, 600, 0.99), make_point(2, 1190, 1.98)]
    text = show(make_feeding(points, demand=A100, skipped=3))
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines[:4] == [
        "data/set: 1,200 pictures in train, RecordIO",
        "2 KiB a picture; random crop, flip; to 224 x 224, batches of 64",
        "decoder: simplejpeg; a CPU, 2 cores",
        "passed over: 3 pictures that could not be used",
    ]
    wanted = [
        r"^ +threads +images/s +95 % interval +busy CPUs +images/s a core +of the ideal$",
        r"^ +2 +1,190 +1,178 … 1,202 +1\.98 +601 +99 %",
        r"^95 % interval within this run$",
        r"^ +read +200 +10\.0 % +█{2}[▏▎▍▌▋▊▉█]?$",
        r"^ +decode +1,560 +78\.0 % +█{16}$",
        r"^A core feeds 601 images/s",
    ]
    found = [next(n for n, line in enumerate(lines) if re.search(pattern, line)) for pattern in wanted]
    assert found == sorted(found)


@pytest.mark.parametrize("width", [20, 40, 59, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int):
    points = [make_point(threads, 123_456.0 * threads, cores=128) for threads in (1, 16, 128)]
    feeding = make_feeding(points, cores=128, demand=A100, skipped=1)
    assert max(len(line) for line in show(feeding, width=width).splitlines()) <= width


def test_narrow_terminals_get_lines_without_bars():
    text = show(make_feeding(), width=24)
    assert "images/s  1,190" in text
    assert not set(ACROSS) & set(text)


def test_what_was_not_measured_is_not_told():
    point = make_point(2, 1190, ci95=None, ci_covers="not established: 3 batches")
    text = show(make_feeding([point], stages=[]))
    assert "±" not in text
    assert "95 % interval not established: 3 batches" in text
    assert "stage" not in text
    assert "busy" not in text
    assert "passed over" not in text
    assert "A training that takes N images/s" in text


def test_a_stage_without_time_is_drawn_as_nothing():
    stages = [Stage(name="read", seconds_per_image=0, share=0), Stage(name="decode", seconds_per_image=1e-3, share=1)]
    text = show(make_feeding(stages=stages))
    assert re.search(r"^  read +0 +0\.0 % *$", text, re.MULTILINE)


def test_bars_go_across_in_eighths():
    assert draw_bars([8, 4, 1, 0], 4) == ["████", "██", "▌", ""]
    assert draw_bars([1000, 1], 4) == ["████", "▏"]
    assert draw_bars([3], 2) == ["██"]


def test_bars_of_nothing_are_nothing():
    assert draw_bars([], 10) == []
    assert draw_bars([0, math.nan, -1, math.inf], 10) == [""] * 4
    assert draw_bars([1, 2], 0) == ["", ""]
    assert draw_bars([1, 2], -3) == ["", ""]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "no-such-encoding", None])
def test_bars_where_blocks_cannot_be_encoded(encoding: str | None):
    assert draw_bars([4, 2, 0.1, 0], 4, encoding=encoding) == ["####", "##", "#", ""]
