"""Sets of moments as sorted, disjoint spans [start, end) of whole nanoseconds: union, cut, difference, how much."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]


class Spans(NamedTuple):
    """Sorted, disjoint, none empty."""

    starts: Ints
    ends: Ints


EMPTY = Spans(np.empty(0, np.int64), np.empty(0, np.int64))


def union(starts: Ints, ends: Ints) -> Spans:
    """Return what any of the intervals covers; they may overlap and stand in any order."""
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
    """Return what any of the sets covers."""
    starts = np.concatenate([EMPTY.starts, *(part.starts for part in parts)])
    return union(starts, np.concatenate([EMPTY.ends, *(part.ends for part in parts)]))


def contains(spans: Spans, times: Ints) -> Flags:
    """Say of each moment whether it is covered."""
    if not len(spans.starts):
        return np.zeros(len(times), np.bool_)
    place = np.searchsorted(spans.starts, times, "right") - 1
    return np.asarray((place >= 0) & (times < spans.ends[place.clip(0)]))


def intersect(one: Spans, other: Spans) -> Spans:
    """Return what both cover."""
    edges = _edges(one, other)
    return _keep(edges, contains(one, edges[:-1]) & contains(other, edges[:-1]))


def subtract(one: Spans, other: Spans) -> Spans:
    """Return what only the first covers."""
    edges = _edges(one, other)
    return _keep(edges, contains(one, edges[:-1]) & ~contains(other, edges[:-1]))


def covered(spans: Spans, times: Ints) -> Ints:
    """Return how much is covered before each moment: a clock that stands still outside the set."""
    if not len(spans.starts):
        return np.zeros(len(times), np.int64)
    before = np.concatenate(([0], np.cumsum(spans.ends - spans.starts)))
    place = np.searchsorted(spans.starts, times, "right")
    open_end = spans.ends[(place - 1).clip(0)]
    return np.asarray(before[place] - np.where(place > 0, (open_end - times).clip(0), 0))


def lengths(spans: Spans, starts: Ints, ends: Ints) -> Ints:
    """Return how much is covered within each window."""
    return covered(spans, ends) - covered(spans, starts)


def sums_within(starts: Ints, ends: Ints, window_starts: Ints, window_ends: Ints) -> Ints:
    """Return for each window the sum of all intervals' parts in it; what runs side by side counts each by itself."""
    if not len(starts) or not len(window_starts):
        return np.zeros(len(window_starts), np.int64)
    first, last = window_starts.min(), window_ends.max()
    begun = np.sort(starts.clip(first, last) - first)
    ended = np.sort(ends.clip(first, last) - first)

    def passed(times: Ints) -> Ints:
        """Return the sum of all parts before each moment."""
        return _sum_since(begun, times - first) - _sum_since(ended, times - first)

    return passed(window_ends) - passed(window_starts)


def _sum_since(sorted_times: Ints, moments: Ints) -> Ints:
    """Return for each moment the sum of how long ago all earlier times are."""
    place = np.searchsorted(sorted_times, moments)
    before = np.concatenate(([0], np.cumsum(sorted_times)))
    return np.asarray(place * moments - before[place])


def _edges(one: Spans, other: Spans) -> Ints:
    return np.unique(np.concatenate((one.starts, one.ends, other.starts, other.ends)))


def _keep(edges: Ints, wanted: Flags) -> Spans:
    return union(edges[:-1][wanted], edges[1:][wanted])
