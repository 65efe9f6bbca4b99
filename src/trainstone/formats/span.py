"""Where a record lies in its file."""

from typing import NamedTuple


class Span(NamedTuple):
    """First byte and length of a record, framing included."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        """First byte after it."""
        return self.offset + self.size
