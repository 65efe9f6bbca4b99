"""Sets of time spans (sorted, disjoint) with union, difference and overlap."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Masks = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]
NS = 1e9


class Spans(NamedTuple):
    """Sorted, disjoint, non-empty time spans in nanoseconds."""

    starts: Ints
    ends: Ints


EMPTY = Spans(np.empty(0, np.int64), np.empty(0, np.int64))


def union(starts: Ints, ends: Ints) -> Spans:
    nonempty = ends > starts
    order = np.argsort(starts[nonempty], kind="stable")
    starts, ends = starts[nonempty][order], ends[nonempty][order]
    if not len(starts):
        return EMPTY
    reached = np.maximum.accumulate(ends)
    first = np.concatenate(([True], starts[1:] > reached[:-1]))
    last = np.concatenate((first[1:], [True]))
    return Spans(starts[first], reached[last])


def join(*parts: Spans) -> Spans:
    return union(*np.concatenate((EMPTY, *parts), axis=1))


def contains(spans: Spans, times: Ints) -> Masks:
    if not len(spans.starts):
        return np.zeros(len(times), np.bool_)
    index = np.searchsorted(spans.starts, times, "right") - 1
    return np.asarray((index >= 0) & (times < spans.ends[index.clip(0)]))


def divide(one: Spans, other: Spans) -> tuple[Spans, Spans]:
    """Split `one` into the parts inside and outside of `other`."""
    edges = np.unique(np.concatenate((*one, *other)))
    starts, ends = edges[:-1], edges[1:]
    here, inside = contains(one, starts), contains(other, starts)
    return union(starts[here & inside], ends[here & inside]), union(starts[here & ~inside], ends[here & ~inside])


def lengths(spans: Spans, starts: Ints, ends: Ints) -> Ints:
    """Return how much of each interval the spans cover."""
    if not len(spans.starts):
        return np.zeros(len(starts), np.int64)
    before = np.concatenate(([0], np.cumsum(spans.ends - spans.starts)))

    def covered(times: Ints) -> Ints:  # covered time before each of `times`
        index = np.searchsorted(spans.starts, times, "right")
        open_end = spans.ends[(index - 1).clip(0)]
        return np.asarray(before[index] - np.where(index > 0, (open_end - times).clip(0), 0))

    return covered(ends) - covered(starts)


def sum_within(starts: Ints, ends: Ints, window_starts: Ints, window_ends: Ints) -> Ints:
    """Return for each window the sum of the intervals' parts in it; overlapping intervals count separately."""
    if not len(starts) or not len(window_starts):
        return np.zeros(len(window_starts), np.int64)
    first, last = window_starts.min(), window_ends.max()
    moments = np.stack((window_starts, window_ends)) - first

    def passed(times: Ints) -> Ints:
        """Return for each window the growth of the total age (now - time) of all earlier times."""
        ordered = np.sort(times.clip(first, last) - first)
        index = np.searchsorted(ordered, moments)
        ago = index * moments - np.concatenate(([0], np.cumsum(ordered)))[index]
        return np.asarray(ago[1] - ago[0])

    return passed(starts) - passed(ends)
