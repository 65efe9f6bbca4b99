"""Sparklines: heights, the cut between warm-up and steady part, and values nobody hoped for."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainstone.cli.summary import ASCII, BLOCKS, draw_histogram, draw_sparkline


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
    assert draw_sparkline(values, width, steady_from) == drawn


def test_draw_sparkline_of_a_quiet_series_is_low():
    _, steady = draw_sparkline(1 + np.random.default_rng(0).normal(0, 0.002, 40), 40)
    assert set(steady) <= {"▁", "▂"}


@pytest.mark.parametrize(("encoding", "bars"), [("latin-1", ASCII), (None, ASCII), ("UTF8", BLOCKS)])
def test_draw_sparkline_uses_what_the_encoding_can_carry(encoding: str | None, bars: str):
    assert draw_sparkline(np.arange(1, 9), 8, encoding=encoding) == ("", bars)


@settings(deadline=None)
@given(st.lists(st.floats(width=32), max_size=200), st.integers(-2, 60), st.integers(-2, 250))
def test_draw_sparkline_of_any_series_has_the_right_length(values: list[float], width: int, steady_from: int):
    before, after = draw_sparkline(values, width, steady_from)
    assert len(before) + len(after) == min(max(0, width), len(values))
    assert set(before + after) <= set(BLOCKS + " ")


@pytest.mark.parametrize(
    ("counts", "width", "drawn"), [([3, 0, 0, 3, 1], 10, "█▁▁█▃"), ([1, 9, 0, 0], 2, "█▁"), ([], 10, ""), ([0], 9, "▁")]
)
def test_draw_histogram_begins_at_zero_and_keeps_the_highest(counts: list[int], width: int, drawn: str):
    assert draw_histogram(counts, width) == drawn
