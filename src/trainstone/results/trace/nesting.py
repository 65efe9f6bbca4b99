"""Which operator called which, from their times alone: nesting on each thread, own times, what launched a kernel."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainstone.results.trace.intervals import Flags, Ints, Places, Spans, covered

Floats = npt.NDArray[np.float64]
AnyInts = npt.NDArray[np.integer[Any]]
_SLICE = 1 << 16


class Nesting(NamedTuple):
    """For each event, where its caller stands in the same arrays; -1 for none."""

    parent: Places
    outermost: Flags
    """No caller, direct or not, has the same name."""
    counted_root: Places
    """The outermost counted operator that it is, or is within; -1 for none."""


def nest(
    starts: Ints, ends: Ints, lanes: AnyInts, names: AnyInts, ranks: Ints, *, leaf: Flags, counted: Flags
) -> Nesting:
    """Find each event's caller: the last begun event of its lane that is still open when it starts.

    Of two with the same times the one of smaller rank is the caller. Leaves (calls of the driver) call nothing.
    `counted` says of each name whether its outermost occurrences are wanted.
    """
    order = np.lexsort((names, ranks, leaf, -ends, starts, lanes))
    rows = _slice_rows(order, starts, ends, lanes, names, leaf)
    fields = np.dtype([("parent", np.intp), ("outermost", np.bool_), ("root", np.intp)])
    found = np.fromiter(_walk(rows, counted.tolist()), fields, len(order))
    back = np.append(order, -1)  # a place in sorted order -> a place in the arrays; -1 stays -1
    parent, outermost, root = (
        np.empty(len(order), np.intp),
        np.empty(len(order), np.bool_),
        np.empty(len(order), np.intp),
    )
    parent[order] = back[found["parent"]]
    outermost[order] = found["outermost"]
    root[order] = back[found["root"]]
    return Nesting(parent, outermost, root)


def _slice_rows(order: Places, *columns: npt.NDArray[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield rows of Python numbers, some thousand at a time: all of them would fill more memory than the trace."""
    for first in range(0, len(order), _SLICE):
        part = order[first : first + _SLICE]
        yield from zip(*(column[part].tolist() for column in columns), strict=True)


def _walk(rows: Iterator[tuple[Any, ...]], counted: list[bool]) -> Iterator[tuple[int, bool, int]]:
    """Yield place of the caller, outermost, counted root for rows sorted by lane and start."""
    open_ends: list[float] = [float("inf")]
    open_places: list[int] = [-1]
    open_names: list[int] = [-1]
    open_roots: list[int] = [-1]
    times_open = [0] * len(counted)
    current = None
    for place, (start, end, lane, name, leaf) in enumerate(rows):
        if lane != current:
            current = lane
            for gone in open_names[1:]:
                times_open[gone] -= 1
            del open_ends[1:], open_places[1:], open_names[1:], open_roots[1:]
        while open_ends[-1] <= start:
            open_ends.pop()
            open_places.pop()
            times_open[open_names.pop()] -= 1
            open_roots.pop()
        root = open_roots[-1]
        if leaf:
            yield open_places[-1], True, root
            continue
        if root < 0 and counted[name]:
            root = place
        yield open_places[-1], times_open[name] == 0, root
        open_ends.append(end)
        open_places.append(place)
        open_names.append(name)
        open_roots.append(root)
        times_open[name] += 1


def own_times(starts: Ints, ends: Ints, parent: Places, leaf: Flags, windows: Spans) -> tuple[Floats, Floats]:
    """Return each event's nanoseconds within the windows, with and without what it called; leaves do not count."""
    total = (covered(windows, ends) - covered(windows, starts)).astype(np.float64)
    called = np.flatnonzero((parent >= 0) & ~leaf)
    callers = parent[called]
    cut = np.minimum(ends[called], ends[callers])  # rounded times may let a child outlive its caller
    inside = covered(windows, cut) - covered(windows, starts[called])
    return total, total - np.bincount(callers, inside, minlength=len(starts))
