"""Who launched what: kernels and copies of a device, the calls that launched them, the operators around these calls."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainstone.formats.eventcolumns import Kind
from trainstone.results.trace.intervals import Ints, Places
from trainstone.results.trace.view import View


class Launches(NamedTuple):
    """One row for each kernel or copy whose launch is known; places are rows of the trace."""

    kernel: Places
    source: Places
    """The call, or the operator itself where the call was not recorded."""
    lane: npt.NDArray[np.int32]
    time: Ints
    """When it was launched."""


def find_launches(view: View) -> Launches:
    """Match kernels to calls by correlation, else to operators by external id."""
    trace, kind = view.trace, view.kind
    ran = np.flatnonzero(((kind == Kind.KERNEL) | (kind == Kind.COPY)) & view.of_device)
    source = _match(view, np.flatnonzero((kind == Kind.CALL) & view.of_host), trace.correlation, ran)
    left = source < 0
    source[left] = _match(view, np.flatnonzero((kind == Kind.OPERATOR) & view.of_host), trace.external, ran[left])
    known = source >= 0
    ran, source = ran[known], source[known]
    return Launches(ran, source, trace.lane[source], trace.start_ns[source])


def _match(view: View, sources: Places, identity: Ints, wanted: Places) -> Places:
    """Return for each wanted row the earliest source of the same identity; -1 where there is none, 0 is none's."""
    sources = sources[identity[sources] > 0]
    if not len(sources):
        return np.full(len(wanted), -1, np.intp)
    sources = sources[np.lexsort((view.end_ns[sources], view.trace.start_ns[sources], identity[sources]))]
    known = identity[sources]
    place = np.searchsorted(known, identity[wanted]).clip(max=len(known) - 1)
    return np.where(known[place] == identity[wanted], sources[place], -1)
