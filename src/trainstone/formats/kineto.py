"""Traces of torch.profiler (Kineto), old and new, or others in Chrome's format: read as a stream, given as columns.

What the events mean for a training step is in results/timeline.py.
"""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainstone.formats.eventcolumns import Columns, Ints, Lane, Shapes
from trainstone.formats.eventlist import PIECE_BYTES, EventFile


@dataclass(frozen=True)
class Trace:
    """Columns of equal length, one row for each event of a known kind, in no order; tables that their numbers index."""

    start_ns: Ints
    """Since a moment near the first event's."""
    duration_ns: Ints
    kind: npt.NDArray[np.int8]
    """See Kind."""
    lane: npt.NDArray[np.int32]
    name: npt.NDArray[np.int32]
    correlation: Ints
    """The same for a kernel and the call that launched it; -1 if there is none."""
    external: Ints
    """Grows with each operator: of two at the same time the outer has the smaller. -1 if there is none."""
    dims: npt.NDArray[np.int32]
    names: list[str]
    lanes: list[Lane]
    shapes: list[Shapes]
    """Sizes of an operator's inputs; () where none were recorded."""
    lane_names: dict[tuple[str, str], str]
    """(process, thread) -> what the program calls it."""
    rank: int | None
    num_events: int
    """In the file, of whatever kind."""
    num_unpaired: int
    """Begins without an end, or the other way round: left out."""


def read_trace(path: Path, *, piece_bytes: int = PIECE_BYTES) -> Trace:
    """Read a trace, plain or gzip; memory grows with its events (45 bytes each), not with its text.

    Events that are neither operator, mark, call of the driver, wait, kernel nor copy are only counted. Raises DataError
    with file and byte for damage, wrong types, a trace that is cut off, and an event of more than 64 MiB.
    """
    file = EventFile(path, piece_bytes)
    columns = Columns(file)
    with closing(file), closing(file.batches()) as batches:
        for batch in batches:
            columns.add(batch)
    num_unpaired = columns.add_pairs()
    start_ns, duration_ns, kind, lane, name, correlation, external, dims = map(_join, columns.rows)
    return Trace(
        start_ns=start_ns,
        duration_ns=duration_ns,
        kind=kind,
        lane=lane,
        name=name,
        correlation=correlation,
        external=external,
        dims=dims,
        names=list(columns.names),
        lanes=list(columns.lanes.known),
        shapes=list(columns.dims.known),
        lane_names=columns.lane_names,
        rank=file.rank,
        num_events=file.num_events,
        num_unpaired=num_unpaired,
    )


def _join(pieces: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the pieces as one, and let go of them: else all columns would be there twice for a moment."""
    joined = np.concatenate(pieces) if pieces else np.empty(0, np.int64)
    pieces.clear()
    return joined
