"""Who called whom, against a plain stack."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from damage import quick
from trainstone.results.trace.intervals import union
from trainstone.results.trace.nesting import Nesting, nest, own_times

EVERYTHING = union(np.array([-1000]), np.array([10_000]))


def nest_rows(
    rows: list[tuple[int, int, int, int]], counted: tuple[int, ...] = (), leaf: tuple[int, ...] = ()
) -> Nesting:
    """Rows of start, end, lane, name."""
    starts, ends, lanes, names = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    wanted = np.isin(np.arange(names.max() + 1), counted)
    leaves = np.isin(np.arange(len(rows)), leaf)
    return nest(starts, ends, lanes, names, np.arange(len(rows)), leaf=leaves, counted=wanted)


def own(rows: list[tuple[int, int, int, int]], nesting: Nesting) -> list[float]:
    starts, ends = (np.array([row[place] for row in rows]) for place in (0, 1))
    return own_times(starts, ends, nesting.parent, np.zeros(len(rows), np.bool_), EVERYTHING)[1].tolist()


def test_callers_and_own_times():
    rows = [(0, 100, 0, 0), (10, 40, 0, 1), (20, 30, 0, 0), (50, 60, 0, 1), (0, 50, 1, 0), (100, 110, 0, 1)]
    nesting = nest_rows(rows)
    assert nesting.parent.tolist() == [-1, 0, 1, 0, -1, -1]
    assert nesting.outermost.tolist() == [True, True, False, True, True, True]  # 0 within 1 within 0
    assert own(rows, nesting) == [60, 20, 10, 10, 50, 10]


def test_of_the_same_times_the_first_recorded_is_the_caller():
    rows = [(0, 10, 0, 2), (0, 10, 0, 1), (0, 10, 0, 0)]
    nesting = nest_rows(rows)
    assert nesting.parent.tolist() == [-1, 0, 1]
    assert own(rows, nesting) == [0, 0, 10]


def test_a_child_that_outlives_its_caller_by_rounding_counts_up_to_its_end():
    rows = [(0, 10, 0, 0), (5, 12, 0, 1), (11, 14, 0, 2)]
    nesting = nest_rows(rows)
    assert nesting.parent.tolist() == [-1, 0, 1]
    assert own(rows, nesting) == [5, 6, 3]


def test_counted_roots_are_the_outermost():
    rows = [(0, 100, 0, 0), (10, 90, 0, 1), (20, 80, 0, 2), (30, 40, 0, 1), (95, 99, 0, 2), (35, 36, 0, 3)]
    nesting = nest_rows(rows, counted=(1, 2), leaf=(5,))
    assert nesting.counted_root.tolist() == [-1, 1, 1, 1, 4, 1]
    assert nesting.parent[5] == 3


def test_leaves_have_callers_and_are_none():
    rows = [(0, 10, 0, 0), (2, 8, 0, 1), (3, 5, 0, 0), (9, 30, 0, 1)]
    nesting = nest_rows(rows, leaf=(1, 3))
    assert nesting.parent.tolist() == [-1, 0, 0, 0]


def test_only_time_within_the_windows_counts():
    starts, ends = np.array([0, 10]), np.array([100, 60])
    windows = union(np.array([50, 80]), np.array([70, 200]))
    total, alone = own_times(starts, ends, np.array([-1, 0]), np.zeros(2, np.bool_), windows)
    assert total.tolist() == [40, 10]
    assert alone.tolist() == [30, 10]


rows_made = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(0, 1), st.integers(0, 3)), min_size=1
)


@quick
@given(rows_made)
def test_any_intervals_give_what_a_stack_gives(made: list[tuple[int, int, int, int]]):
    rows = [(start, start + size, lane, name) for start, size, lane, name in made]
    nesting = nest_rows(rows, counted=(1,))
    for lane in (0, 1):
        stack: list[int] = []
        there = [place for place, row in enumerate(rows) if row[2] == lane]
        for place in sorted(there, key=lambda place: (rows[place][0], -rows[place][1], place)):
            while stack and rows[stack[-1]][1] <= rows[place][0]:
                stack.pop()
            assert nesting.parent[place] == (stack[-1] if stack else -1)
            assert nesting.outermost[place] == (rows[place][3] not in [rows[above][3] for above in stack])
            counted = [above for above in [*stack, place] if rows[above][3] == 1]
            assert nesting.counted_root[place] == (counted[0] if counted else -1)
            stack.append(place)
    alone = own(rows, nesting)
    assert min(alone) >= 0
