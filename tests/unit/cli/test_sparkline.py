"""Sparklines: heights, the cut between warm-up and steady part, and values nobody hoped for."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainstone.cli.sparkline import ASCII, BLOCKS, draw_histogram, draw_sparkline


def test_a_ramp_uses_every_height():
    assert draw_sparkline(np.arange(1, 9), 8) == ("", "▁▂▃▄▅▆▇█")


def test_warm_up_and_steady_part_are_drawn_apart():
    warm_up, steady = draw_sparkline([9, 5, 2, 1, 2, 1, 2, 1], 8, steady_from=2)
    assert (warm_up, steady) == ("██", "█▁█▁█▁")


def test_what_is_no_number_is_a_gap():
    assert draw_sparkline([1, math.nan, 2, math.inf], 4) == ("", "▁ █ ")
    assert draw_sparkline([math.nan] * 3, 3) == ("", "   ")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "iso8859-15", "no-such-encoding", None])
def test_ascii_where_blocks_cannot_be_encoded(encoding: str | None):
    assert draw_sparkline(np.arange(1, 9), 8, encoding=encoding) == ("", ASCII)


@settings(deadline=None)
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True, min_value=None, max_value=None, width=32), max_size=200),
    st.integers(-2, 60),
    st.integers(-2, 250),
)
def test_any_series_gives_a_line_of_the_right_length(values: list[float], width: int, steady_from: int):
    before, after = draw_sparkline(values, width, steady_from)
    assert len(before) + len(after) == min(max(0, width), len(values))
    assert set(before + after) <= set(BLOCKS + " ")
    if min(width, len(values)) >= 2 and 0 < steady_from < len(values):
        assert before
        assert after


def test_a_histogram_begins_at_nothing_and_ends_at_the_most():
    assert draw_histogram([3, 0, 0, 3, 1], 10) == "█▁▁█▃"
    assert draw_histogram([1, 9, 0, 0], 2) == "█▁"
    assert draw_histogram([], 10) == ""
    assert draw_histogram([0, 0], 10) == "▁▁"
