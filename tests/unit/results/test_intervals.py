"""Steps gathered into intervals."""

import pytest

from trainstone.formats.timehistory import Interval
from trainstone.results.intervals import Intervals, choose_every


@pytest.mark.parametrize(
    ("asked", "steps", "every"),
    [("auto", 0, 10), ("auto", 199, 10), ("auto", 200, 100), ("auto", 10**6, 100), (7, 5, 7), (7, 10**6, 7)],
)
def test_how_many_steps_a_line_tells_of(asked: int | str, steps: int, every: int):
    assert choose_every(asked, steps) == every


def test_an_interval_lasts_from_its_first_step_s_beginning_to_its_last_s_end():
    intervals = Intervals(2, first_step=6)
    starts = (1.0, 2.0, 4.0, 8.0, 9.0)
    assert [intervals.add(start, 0.5, 3) for start in starts] == [
        None,
        Interval(1.5, 4.0, 6, 8),
        None,
        Interval(4.5, 6 / 4.5, 8, 10),
        None,
    ]


def test_an_interval_without_any_time_is_passed_over():
    intervals = Intervals(1)
    assert intervals.add(0.0, 0.0, 1) is None
    assert intervals.add(0.0, 1.0, 1) == Interval(1.0, 1.0, 1, 2)
