"""How far preparing, fetching, unpacking and checking have come; yielded along the way, drawn by cli/progress.py."""

from typing import NamedTuple


class Progress(NamedTuple):
    """How far a piece of work has come."""

    phase: str
    done: int
    total: int | None
    unit: str
    """bytes, files or pictures."""
    written_bytes: int = 0
