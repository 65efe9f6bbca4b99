"""Sets of spans of time: sorted, disjoint, with union, difference and overlap."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]
NS = 1e9


class Spans(NamedTuple):
    """Sorted, disjoint, none empty."""

    starts: Ints
    ends: Ints


EMPTY = Spans(np.empty(0, np.int64), np.empty(0, np.int64))


def union(starts: Ints, ends: Ints) -> Spans:
    there = ends > starts
    order = np.argsort(starts[there], kind="stable")
    starts, ends = starts[there][order], ends[there][order]
    if not len(starts):
        return EMPTY
    reached = np.maximum.accumulate(ends)
    first = np.concatenate(([True], starts[1:] > reached[:-1]))
    last = np.concatenate((first[1:], [True]))
    return Spans(starts[first], reached[last])


def join(*parts: Spans) -> Spans:
    return union(*np.concatenate((EMPTY, *parts), axis=1))


def contains(spans: Spans, times: Ints) -> Flags:
    if not len(spans.starts):
        return np.zeros(len(times), np.bool_)
    place = np.searchsorted(spans.starts, times, "right") - 1
    return np.asarray((place >= 0) & (times < spans.ends[place.clip(0)]))


def divide(one: Spans, other: Spans) -> tuple[Spans, Spans]:
    """Return the parts of `one` that are inside and outside of `other`."""
    edges = np.unique(np.concatenate((*one, *other)))
    starts, ends = edges[:-1], edges[1:]
    here, inside = contains(one, starts), contains(other, starts)
    return union(starts[here & inside], ends[here & inside]), union(starts[here & ~inside], ends[here & ~inside])


def lengths(spans: Spans, starts: Ints, ends: Ints) -> Ints:
    """Return for each interval how much of it the spans cover."""
    if not len(spans.starts):
        return np.zeros(len(starts), np.int64)
    before = np.concatenate(([0], np.cumsum(spans.ends - spans.starts)))

    def covered(times: Ints) -> Ints:  # before each moment: a clock that stands still outside the spans
        place = np.searchsorted(spans.starts, times, "right")
        open_end = spans.ends[(place - 1).clip(0)]
        return np.asarray(before[place] - np.where(place > 0, (open_end - times).clip(0), 0))

    return covered(ends) - covered(starts)


def sums_within(starts: Ints, ends: Ints, window_starts: Ints, window_ends: Ints) -> Ints:
    """Return for each window the sum of all intervals' parts in it; what runs side by side counts each by itself."""
    if not len(starts) or not len(window_starts):
        return np.zeros(len(window_starts), np.int64)
    first, last = window_starts.min(), window_ends.max()
    moments = np.stack((window_starts, window_ends)) - first

    def passed(times: Ints) -> Ints:
        """Return for each window how much it adds to the sum of how long ago all earlier times are."""
        ordered = np.sort(times.clip(first, last) - first)
        place = np.searchsorted(ordered, moments)
        ago = place * moments - np.concatenate(([0], np.cumsum(ordered)))[place]
        return np.asarray(ago[1] - ago[0])

    return passed(starts) - passed(ends)
