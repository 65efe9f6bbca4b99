"""Sets of moments against sets of whole numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from damage import quick
from trainstone.results.trace.intervals import (
    EMPTY,
    Spans,
    contains,
    covered,
    intersect,
    join,
    lengths,
    subtract,
    sums_within,
    union,
)

pairs = st.lists(st.tuples(st.integers(-20, 40), st.integers(-3, 15)), max_size=12)


def columns(made: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    starts = np.array([start for start, _ in made], np.int64)
    return starts, starts + np.array([size for _, size in made], np.int64)


def moments(spans: Spans) -> set[int]:
    return {moment for start, end in zip(*spans, strict=True) for moment in range(start, end)}


def plain(made: list[tuple[int, int]]) -> set[int]:
    return {moment for start, size in made for moment in range(start, start + size)}


@quick
@given(pairs, pairs)
def test_sets_of_spans_are_sets_of_moments(one: list[tuple[int, int]], other: list[tuple[int, int]]):
    a, b = union(*columns(one)), union(*columns(other))
    assert moments(a) == plain(one)
    assert moments(join(a, b)) == plain(one) | plain(other)
    assert moments(intersect(a, b)) == plain(one) & plain(other)
    assert moments(subtract(a, b)) == plain(one) - plain(other)
    for spans in (a, join(a, b), intersect(a, b), subtract(a, b)):
        assert (spans.ends > spans.starts).all()
        assert (spans.starts[1:] > spans.ends[:-1]).all()  # sorted, and neighbours are one


@quick
@given(pairs, pairs)
def test_lengths_within_windows(made: list[tuple[int, int]], windows: list[tuple[int, int]]):
    windows = [(start, abs(size)) for start, size in windows]
    spans = union(*columns(made))
    inside = [len(plain(made) & set(range(start, start + size))) for start, size in windows]
    assert lengths(spans, *columns(windows)).tolist() == inside
    times = np.arange(-25, 60)
    assert covered(spans, times).tolist() == [
        len([moment for moment in plain(made) if moment < time]) for time in times
    ]
    assert contains(spans, times).tolist() == [time in plain(made) for time in times]


@quick
@given(pairs, pairs)
def test_sums_count_what_runs_side_by_side(made: list[tuple[int, int]], windows: list[tuple[int, int]]):
    made = [(start, abs(size)) for start, size in made]
    windows = [(start, abs(size)) for start, size in windows]
    expected = [sum(len(plain([each]) & plain([window])) for each in made) for window in windows]
    assert sums_within(*columns(made), *columns(windows)).tolist() == expected


def test_nothing_is_nothing():
    assert union(*columns([])) == EMPTY
    assert join() == EMPTY
    assert covered(EMPTY, np.array([1, 2])).tolist() == [0, 0]
    assert sums_within(EMPTY.starts, EMPTY.ends, np.array([0]), np.array([9])).tolist() == [0]


@pytest.mark.parametrize("far", [0, 2**60])
def test_large_numbers_stay_exact(far: int):
    spans = union(np.array([far, far + 5]), np.array([far + 3, far + 2**59]))
    assert lengths(spans, np.array([far + 1]), np.array([far + 7])).tolist() == [4]
